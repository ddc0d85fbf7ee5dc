//! Images of people who are not trusted: they decide nothing about what others see.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ociseek_format::digest::Digest;
use serde_json::Value;

use super::node::Node;
use super::{index, programs};
use crate::bundle::rootfs;
use ociseek_testkit::faulty::{Faulty, ReceivedRequest, RegistrySettings};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::layers::gzip;
use ociseek_testkit::mounts::{FileAttributes, assert_same, seen, wait_until};
use ociseek_testkit::sandbox::{GZIP, OCI_MANIFEST, program};
use ociseek_testkit::servers::{run, tool};

/// Adds an image with the diff ID of `tar` and the blob `layer`.
fn add(registry: &Faulty, tag: &str, tar: &[u8], layer: &[u8]) -> Digest {
    let image = Image::new(&config(&[tar.to_vec()]), [(GZIP, layer.to_vec())]);
    image.add_to(registry, tag).digest
}

/// The files of an image in a namespace of containerd.
fn files(
    node: &Node,
    namespace: &str,
    image: &str,
    snapshotter: &str,
) -> BTreeMap<PathBuf, FileAttributes> {
    let dir = node.at(&format!("seen-{namespace}-{snapshotter}"));
    fs::create_dir(&dir).unwrap();
    let snapshotter = ["--snapshotter", snapshotter];
    let images = ["--namespace", namespace, "images"];
    let ctr = |args: &[&[&str]]| node.ctr(&[&images[..], &args.concat()].concat());
    ctr(&[&["mount"], &snapshotter, &[image, &dir]]);
    let files = seen(Path::new(&dir), true);
    ctr(&[&["unmount"], &snapshotter, &["--rm", &dir]]);
    files
}

/// A stranger's image has the layer of an honest one, and an index by which the stranger's registry
/// serves other bytes for parts of the layer. It is pulled first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn files_of_a_shared_layer_are_those_that_containerd_unpacks() {
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let settings = RegistrySettings::with_referrers();
    let tar = rootfs(&busybox);
    let evil_tar = {
        let at = tar.windows(9).position(|bytes| bytes == b"root:x:0:").unwrap();
        let mut evil = tar.clone();
        evil[at..at + 9].copy_from_slice(b"evil::00:");
        evil
    };
    // Without compression, both have the same length.
    let [layer, evil_layer] = [&tar, &evil_tar].map(|tar| gzip(tar, 0));
    assert_eq!(layer.len(), evil_layer.len());
    let [blob, evil_blob] = [&layer, &evil_layer].map(|layer| Digest::sha256(layer));

    // The index of an image with the other layer...
    let source = Faulty::honest(settings.clone()).await;
    let evil_image = add(&source, "v1", &evil_tar, &evil_layer);
    tokio::task::block_in_place(|| {
        let image = format!("{}/a/b:v1", source.host());
        let options = ["index", "--kind=v1", "--min-layer-size=0", "--quiet", "--no-cache"];
        run(Path::new(program()), &[&options[..], &[&image]].concat());
    });
    // ...becomes one of the honest layer.
    let lie = move |request: &ReceivedRequest, registry: &Faulty| {
        let is_part = request.header("range").is_some() && request.is("GET", &blob.to_string());
        is_part.then(|| registry.get_blob(request, &evil_blob.to_string()))
    };
    let stranger = Faulty::start(settings.clone(), lie).await;
    let manifest = add(&stranger, "v1", &tar, &layer);
    stranger.add_blob(evil_layer);
    for (_, bytes) in source.manifests() {
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        let Some(subject) = document.get("subject") else { continue };
        assert_eq!(subject["digest"], evil_image.to_string());
        for named in [&document["config"], &document["layers"][0]] {
            let named = named["digest"].as_str().unwrap().parse().unwrap();
            stranger.add_blob(source.blob(&named).unwrap());
        }
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let text = text.replace(&evil_image.to_string(), &manifest.to_string());
        let text = text.replace(&evil_blob.to_string(), &blob.to_string());
        stranger.add_manifest("index", OCI_MANIFEST, text);
    }
    let honest = Faulty::honest(settings).await;
    assert_eq!(add(&honest, "v1", &tar, &layer), manifest);

    tokio::task::block_in_place(|| {
        let image = format!("{}/team/app:v1", honest.host());
        let strange = format!("{}/x/base:v1", stranger.host());
        index(&image);
        // Whoever believes the stranger sees the stranger's files.
        let cat = run(Path::new(program()), &["cat", "--no-cache", &strange, "/etc/passwd"]);
        assert!(cat.starts_with("evil::00:"), "{cat}");

        let mut node = Node::new(programs, &image);
        node.lazy_from = format!("[\"{}/team/*\"]", honest.host());
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        let pull = |namespace: &str, image: &str, snapshotter: &str| {
            let options = ["images", "pull", "--plain-http", "--snapshotter", snapshotter, image];
            node.ctr(&[&["--namespace", namespace][..], &options].concat())
        };
        let parts = || {
            let blobs = stranger.saw("GET", "/blobs/");
            blobs.iter().filter(|request| request.header("range").is_some()).count()
        };
        let before = parts();
        pull("default", &image, "overlayfs");
        let unpacked = files(&node, "default", &image, "overlayfs");
        // After the stranger's image in the same namespace, in another one, and before it.
        for (namespace, first, lazy) in
            [("one", &strange, false), ("two", &image, true), ("three", &strange, false)]
        {
            pull(namespace, first, "ociseek");
            let mounts = node.lazy_mounts().len();
            for pulled in [first, &image, &strange] {
                pull(namespace, pulled, "ociseek");
            }
            assert_same(&files(&node, namespace, &image, "ociseek"), &unpacked);
            assert_eq!(node.lazy_mounts().len() > mounts, lazy, "{namespace}");
            if namespace == "one" {
                // containerd would use what it has unpacked for one namespace in another.
                let rm = ["--namespace", "one", "images", "rm", "--sync", &image, &strange];
                node.ctr(&rm);
                wait_until("nothing is left", || node.in_dir("lazy/snapshots") == 0);
            }
        }
        assert_eq!(parts(), before, "nothing is read by the stranger's index");
        assert!(node.unpacked("not-listed") >= 1);
        serving.stop();
    });
}
