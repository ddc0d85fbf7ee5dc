//! The life of an index after it was made: found, moved and removed, in real registries
//! with the referrers API and without.

mod at_once;
mod cache;
mod fine;
mod list;
mod moved;
mod obsolete;
mod rm;

use ociseek_testkit::sandbox;

use ociseek_testkit::sandbox::Sandbox;
use ociseek_testkit::servers::{Server, copied_by_skopeo};
use serde_json::Value;

/// With the referrers API and without.
fn registries() -> impl Iterator<Item = Server> {
    [Server::olareg(|_, _| Vec::new()), without_api()].into_iter().flatten()
}

fn without_api() -> Option<Server> {
    Server::distribution("127.0.0.1:0", |_| String::new())
}

/// Copies the image `v1` of a layout in the sandbox to `name` in a registry.
fn pushed_from(sandbox: &Sandbox, dir: &str, server: &Server, name: &str) -> Option<String> {
    let to = format!("{}/{name}", server.host);
    copied_by_skopeo(&sandbox.path(dir), &to, &[])?;
    Some(to)
}

/// An image for two platforms under `a/b:v1`.
fn image(server: &Server) -> Option<(Sandbox, String)> {
    let sandbox = Sandbox::with_two_platforms();
    let image = pushed_from(&sandbox, "img", server, "a/b:v1")?;
    Some((sandbox, image))
}

/// Indexes the image under a tool name, in addition to other tools' indexes. Returns the digests,
/// one for each platform.
fn indexed_by(sandbox: &Sandbox, maker: &str, image: &str) -> Vec<String> {
    let maker = format!("--build-tool-identifier={maker}");
    let args = [
        "index",
        "--span-size=16KiB",
        "--min-layer-size=1KiB",
        "--no-cache",
        "--jobs=2",
        "--format=json",
    ];
    let report = sandbox.json(0, &[&args[..], &[&maker, image]].concat());
    let manifests = report["images"][0]["manifests"].as_array().unwrap().iter();
    manifests.map(|m| m["index"]["digest"].as_str().unwrap().to_owned()).collect()
}

/// The digests of the indexes that `inspect` finds, by platform, including unreadable ones.
fn found(sandbox: &Sandbox, image: &str) -> Vec<Vec<String>> {
    let report = sandbox.doctor(image);
    let digests = |indexes: &Value| {
        let mut digests: Vec<String> = indexes
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["digest"].as_str().unwrap().to_owned())
            .collect();
        digests.sort();
        digests
    };
    report["manifests"].as_array().unwrap().iter().map(|m| digests(&m["indexes"])).collect()
}

/// The digests of the image's manifests, one for each platform.
fn subjects(sandbox: &Sandbox, image: &str) -> Vec<String> {
    let report = sandbox.doctor(image);
    let manifests = report["manifests"].as_array().unwrap().iter();
    manifests.map(|m| m["manifest"]["digest"].as_str().unwrap().to_owned()).collect()
}

fn is_there(server: &Server, repository: &str, reference: &str) -> bool {
    server.request("GET", &format!("/v2/{repository}/manifests/{reference}")).0 == 200
}

/// A manifest in `a/b` that is deleted after it was listed, because distribution does not list
/// missing manifests.
fn lost(server: &Server) -> String {
    let list = serde_json::json!({"schemaVersion": 2, "mediaType": sandbox::OCI_INDEX, "manifests": [],
        "annotations": {"lost": "soon"}});
    let digest = ociseek_format::digest::Digest::sha256(list.to_string().as_bytes()).to_string();
    server.put_manifest("a/b", &digest, sandbox::OCI_INDEX, list.to_string().as_bytes());
    digest
}
