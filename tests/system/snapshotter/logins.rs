//! Images that only those with a login may read.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::{Node, programs};
use crate::support::corpus::{Image, debian_layers};
use crate::support::sandbox::program;
use crate::support::servers::{Server, htpasswd, run};

/// A pod's imagePullSecrets are given to containerd only.
#[test]
fn an_image_whose_login_only_the_pull_has_is_unpacked() {
    let Some(programs) = programs() else { return };
    let (Some(layers), Some(line)) = (debian_layers(), htpasswd("u", "s3cret")) else { return };
    let sections = |dir: &Path| {
        fs::write(dir.join("passwords"), line).unwrap();
        format!("auth: {{htpasswd: {{realm: r, path: '{}'}}}}\n", dir.join("passwords").display())
    };
    let Some(registry) = Server::distribution("127.0.0.1:0", sections) else { return };
    let image = Image::of(&layers.join("../small/plain-6MB.tar.gz"));
    let ociseek = |args: &[&str]| run(Path::new(program()), args);
    ociseek(&[
        "index",
        "--kind=fine",
        "--min-layer-size=0",
        "--quiet",
        "--no-cache",
        &image.name(),
    ]);
    let name = format!("{}/app:v1", registry.host);
    image.copied_to(&name, Some("u:s3cret"));

    let mut node = Node::new(programs, &name);
    let serving = node.snapshotter();
    let _containerd = node.containerd();
    let unpacked = |node: &Node, reason: &str| {
        node.metric(&format!("ociseek_snapshotter_unpacked_total{{reason=\"{reason}\"}}"))
    };
    // Whether it is lazy.
    let pulled = |node: &Node| {
        node.crictl(&["pull", "--creds", "u:s3cret", &name]);
        let images = node.inspected("images").1["images"].as_array().unwrap().len();
        node.crictl(&["rmi", &name]);
        images == 1
    };
    assert!(!pulled(&node));
    assert_eq!((unpacked(&node, "login"), unpacked(&node, "failed")), (1, 0));

    // With a login of its own, the snapshotter needs none from the pull.
    drop(serving);
    let logins = json!({"auths": {&registry.host: {"auth": "dTpzM2NyZXQ="}}});
    fs::write(node.at("logins.json"), logins.to_string()).unwrap();
    node.config = format!("authfile = \"{}\"\n", node.at("logins.json"));
    let _serving = node.snapshotter();
    assert!(pulled(&node));
}
