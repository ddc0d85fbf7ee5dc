//! The log and the metrics name the true reason why containerd unpacks an image.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::node::Node;
use super::{index, operators::reload, programs};
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::layers::{gzip, text};
use ociseek_testkit::sandbox::{GZIP, program};
use ociseek_testkit::servers::run;
use ociseek_testkit::tarball::{end, file};

/// The key of nobody.
const KEY: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEC7UxZAb+ZwfWv2A17CuhU7kxYwJO
69nCAFT2DDK3EErhVj20ed5T9atrqJTHdhIAG7Ahzrtr/f/CAs2KTE9U8Q==
-----END PUBLIC KEY-----
";
const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// The layers that are indexed in spite of `--min-layer-size`, in bytes, before compression.
const LARGE: usize = 400_000;

fn tar(seed: u64, size: usize) -> Vec<u8> {
    let mut tar = file(&format!("file{seed}"), &text(seed, size));
    tar.extend(end());
    tar
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn images_are_unpacked_for_the_reason_that_is_counted_and_logged() {
    let Some(programs) = programs() else { return };
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let name = |tag: &str| format!("{}/a/b:{tag}", registry.host());
    let add = |tag: &str, tars: &[Vec<u8>], media_type, compress: &dyn Fn(&[u8]) -> Vec<u8>| {
        let layers = tars.iter().map(|tar| (media_type, compress(tar)));
        Image::new(&config(tars), layers).add_to(&registry, tag);
        name(tag)
    };
    let gzipped = |tar: &[u8]| gzip(tar, 6);
    let zstd = |tar: &[u8]| zstd::encode_all(tar, 1).unwrap();
    let none = add("none", &[tar(1, LARGE)], GZIP, &gzipped);
    let half = add("half", &[tar(2, LARGE), tar(3, LARGE / 2)], GZIP, &gzipped);
    let unreadable = add("zstd", &[tar(4, LARGE)], ZSTD, &zstd);
    let indexed = add("indexed", &[tar(5, LARGE)], GZIP, &gzipped);
    // The same files, compressed in another way.
    let alike = add("alike", &[tar(5, LARGE)], GZIP, &|tar| gzip(tar, 1));
    tokio::task::block_in_place(|| {
        let options = ["index", "--kind=v1", "--min-layer-size=200KiB", "--quiet", "--no-cache"];
        run(Path::new(program()), &[&options[..], &[&half]].concat());
        index(&indexed);
        index(&alike);
        let node = Node::new(programs, &none);
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        let unpacks = |namespace: &str, image: &str, reason: &str| {
            let before = (node.logged("unpacked").len(), node.unpacked(reason));
            let pull = ["images", "pull", "--plain-http", "--snapshotter", "ociseek", image];
            node.ctr(&[&["--namespace", namespace][..], &pull].concat());
            let logged = node.logged("unpacked");
            assert_eq!(
                (logged.len(), node.unpacked(reason)),
                (before.0 + 1, before.1 + 1),
                "{reason}"
            );
            let line = logged.last().unwrap();
            assert_eq!(line["reason"], json!(reason), "{line}");
            assert!(line["image"].as_str().unwrap().starts_with(image), "{line}");
        };
        unpacks("one", &none, "no-index");
        unpacks("one", &half, "coverage");
        unpacks("one", &unreadable, "zstd");
        node.pull(&indexed, "ociseek");
        assert_eq!(node.metric("ociseek_snapshotter_images"), 1);
        unpacks("two", &alike, "other-document");
        fs::write(node.at("key.pem"), KEY).unwrap();
        let signed = fs::read_to_string(node.at("snapshotter.toml")).unwrap();
        let signed = format!("{signed}signature-key = [{:?}]\n", node.at("key.pem"));
        reload(&node, &serving, &signed, "reloaded");
        unpacks("three", &alike, "untrusted");
        serving.stop();
    });
}
