//! Images that only those with a login may read.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{Node, programs};
use ociseek_testkit::corpus::{Image, debian_layers};
use ociseek_testkit::mounts::wait_until;
use ociseek_testkit::sandbox::program;
use ociseek_testkit::schema;
use ociseek_testkit::servers::{Server, htpasswd, run};

/// An image of this layer with a fine index, in a registry that wants the login u:s3cret.
fn private_image(layer: &Path) -> Option<(Server, String)> {
    let line = htpasswd("u", "s3cret")?;
    let sections = |dir: &Path| {
        fs::write(dir.join("passwords"), line).unwrap();
        format!("auth: {{htpasswd: {{realm: r, path: '{}'}}}}\n", dir.join("passwords").display())
    };
    let registry = Server::distribution("127.0.0.1:0", sections)?;
    let image = Image::of(layer);
    let kind = ["index", "--kind=fine", "--min-layer-size=0", "--quiet", "--no-cache"];
    run(Path::new(program()), &[&kind[..], &[&image.name()]].concat());
    let name = format!("{}/app:v1", registry.host);
    image.copied_to(&name, Some("u:s3cret"));
    Some((registry, name))
}

/// Without the image service, a pod's imagePullSecrets are given to containerd only.
#[test]
fn an_image_whose_login_only_the_pull_has_is_unpacked() {
    let Some(programs) = programs() else { return };
    let Some(layers) = debian_layers() else { return };
    let layer = layers.join("../small/plain-6MB.tar.gz");
    let Some((_registry, name)) = private_image(&layer) else { return };

    let mut node = Node::new(programs, &name);
    let serving = node.snapshotter();
    let _containerd = node.containerd();
    // Whether it is lazy.
    let pulled = |node: &Node| {
        node.crictl(&["pull", "--creds", "u:s3cret", &name]);
        let images = node.inspected("images").1["images"].as_array().unwrap().len();
        node.crictl(&["rmi", &name]);
        images == 1
    };
    // The same code judges by the same configuration.
    let judged = |node: &Node, status: i32| {
        let config = format!("--node={}", node.at("snapshotter.toml"));
        let args = ["doctor", &config, &name, "--json"];
        let [text, json] = [&args[..3], &args].map(|args| {
            let output = Command::new(program()).args(args).output().unwrap();
            assert_eq!(output.status.code(), Some(status));
            String::from_utf8(output.stdout).unwrap()
        });
        let document: Value = serde_json::from_str(&json).unwrap();
        schema::check(&args, &document);
        assert_eq!(document["lazy"], status == 0, "{document}");
        let code = document["reason"]["code"].as_str();
        assert!(code.is_none_or(|code| text.contains(&format!("({code})"))), "{text}{document}");
        text
    };
    let refused = judged(&node, 3);
    assert!(refused.contains("whole  the registry wants a login: "), "{refused}");
    assert!(refused.contains("(login)\n") && refused.contains("image-service"), "{refused}");
    assert!(!pulled(&node));
    assert_eq!((node.unpacked("login"), node.unpacked("failed")), (1, 0));

    // With a login of its own, the snapshotter needs none from the pull.
    drop(serving);
    let host = name.split('/').next().unwrap();
    let logins = json!({"auths": {host: {"auth": "dTpzM2NyZXQ="}}});
    fs::write(node.at("logins.json"), logins.to_string()).unwrap();
    node.config = format!("authfile = \"{}\"\n", node.at("logins.json"));
    let _serving = node.snapshotter();
    assert!(judged(&node, 0).contains("lazy   1 of 1 layers are read by an index\n"));
    assert!(pulled(&node));
}

/// kubelet speaks to the snapshotter's socket, which passes its calls on to containerd.
#[test]
fn an_image_is_lazy_by_the_login_of_its_pull() {
    let Some(programs) = programs() else { return };
    let Some(layers) = debian_layers() else { return };
    let layer = layers.join("debian-rootfs.go.tar.gz");
    let Some((_registry, name)) = private_image(&layer) else { return };
    let mut node = Node::new(programs, &name);
    node.config = "image-service = true\n".to_owned();
    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();
    let endpoint = format!("unix://{}", node.at("ociseek.sock"));
    let by_us =
        |args: &[&str]| node.try_crictl(&[&["--image-endpoint", &endpoint][..], args].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let images = || node.inspected("images").1["images"].as_array().unwrap().len();

    // A login that the registry refuses, and none, get what containerd says, and nothing else.
    let refuse = |creds: &[&str]| {
        let pull = [&["pull"][..], creds, &[&name]].concat();
        let [ours, theirs] = [by_us(&pull), node.try_crictl(&pull)];
        assert!(!ours.status.success());
        let of_ours = text(ours.stderr);
        assert!(of_ours.contains("401") || of_ours.contains("authorization failed"), "{of_ours}");
        // Up to the time of the next line.
        let said = |text: &str| {
            text.split("err=").nth(1).and_then(|error| error.lines().next()).map(str::to_owned)
        };
        assert_eq!(said(&of_ours), said(&text(theirs.stderr)));
    };
    refuse(&["--creds", "u:wrong"]);
    refuse(&[]);
    assert_eq!(images(), 0);
    let pull = || {
        let pulled = by_us(&["pull", "--creds", "u:s3cret", &name]);
        assert!(pulled.status.success(), "{}", text(pulled.stderr));
    };
    pull();
    assert_eq!((images(), node.unpacked("login")), (1, 0));
    refuse(&["--creds", "u:wrong"]);
    refuse(&[]);

    // The other calls are answered as by containerd itself.
    for call in [&["images", "-o", "json"][..], &["inspecti", &name], &["inspecti", "r.example/x"]]
    {
        let [ours, theirs] = [by_us(call), node.try_crictl(call)];
        assert_eq!(
            (ours.status.code(), text(ours.stdout)),
            (theirs.status.code(), text(theirs.stdout)),
            "{call:?}"
        );
    }
    // containerd notes the sizes every ten seconds.
    wait_until("the disk is the same", || {
        let [ours, theirs] = [by_us(&["imagefsinfo"]), node.try_crictl(&["imagefsinfo"])];
        assert!(ours.status.success());
        ours.stdout == theirs.stdout
    });

    let mounted = node.at("mounted");
    fs::create_dir(&mounted).unwrap();
    let in_kubernetes = |args: &[&str]| node.ctr(&[&["--namespace", "k8s.io"][..], args].concat());
    in_kubernetes(&["images", "mount", "--snapshotter", "ociseek", &name, &mounted]);
    assert_eq!(node.lazy_mounts().len(), 1);
    let licence = |mounted: &str| {
        let file = format!("{mounted}/usr/share/common-licenses/GPL-3");
        run(Path::new("sha256sum"), &[&file])[..64].to_owned()
    };
    let digest = "3972dc9744f6499f0f9b2dbf76696f2ae7ad8af9b23dde66d6af86c9dfb36986";
    assert_eq!(licence(&mounted), digest);

    // The login does not outlive the snapshotter. The next pull brings it again.
    node.restart(&mut serving);
    // The cache has none of it.
    let other = format!("{mounted}/usr/bin/perl");
    assert!(fs::read(&other).is_err());
    pull();
    wait_until("the mount reads by the new login", || fs::read(&other).is_ok());
    in_kubernetes(&["images", "unmount", "--snapshotter", "ociseek", "--rm", &mounted]);

    assert!(by_us(&["rmi", &name]).status.success());
    assert!(!text(node.try_crictl(&["images"]).stdout).contains("app"));
    wait_until("nothing is left", || node.lazy_mounts().is_empty() && images() == 0);
    for file in ["snapshotter.toml", "lazy/state.json"] {
        assert!(!fs::read_to_string(node.at(file)).unwrap().contains("s3cret"), "{file}");
    }
    serving.kill();
    containerd.kill();
}
