//! The definition of done: images in real registries, indexed by the command, and mounted by the real soci-snapshotter, which
//! must use our index, fetch lazily, and show every file as an unpacked image has it. Independent clients list the referrer.
//!
//! `.ci/tools` and `.ci/consumer` set up what this needs: root, FUSE, containerd 2, the snapshotter, registries, the corpus.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::servers::{Server, run, skip, tool};
use serde_json::Value;

const SOCI: &str = "application/vnd.amazon.soci.index.v1+json";

/// An image: its name, and where its layers come from.
enum Image {
    /// Layers of the corpus.
    Layers(&'static str, &'static [&'static str]),
    /// The demo layout, as it is.
    Demo,
}

const IMAGES: &[Image] = &[
    Image::Demo,
    Image::Layers("debian", &["debian-rootfs/debian-rootfs.go.tar.gz"]),
    Image::Layers(
        "podman",
        &[
            "debian-rootfs/debian-rootfs.pgzip.tar.gz",
            "small/tree-docker.tar.gz",
            concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/golden/layers/tree-go-pax.tar.gz"),
        ],
    ),
    Image::Layers("estargz", &["debian-rootfs/debian-rootfs.estargz.tar.gz"]),
    Image::Layers(
        "odd",
        &[
            "small/gz-two-members.tar.gz",
            "small/plain-6MB.bgzip.tar.gz",
            "small/gz-full-flush-every-64K.tar.gz",
            "small/gz-three-empty-first.tar.gz",
            "small/pax-binary-xattr.tar.gz",
            "small/xattr-two-with-values.tar.gz",
            "small/many-empty-files.tar.gz",
        ],
    ),
];

struct Consumer {
    script: PathBuf,
    corpus: PathBuf,
    crane: PathBuf,
    regctl: PathBuf,
}

/// What this machine has. None is said on one line; in CI it is a failure, but for the consumer's own sources, which not
/// every checkout has.
fn consumer() -> Option<Consumer> {
    let cache = PathBuf::from(std::env::var_os("HOME")?).join(".cache");
    let home = std::env::var_os("OCISEEK_CONSUMER").map_or(cache.join("ociseek-consumer"), PathBuf::from);
    let corpus = std::env::var_os("OCISEEK_CORPUS").map_or(cache.join("ociseek-corpus"), PathBuf::from);
    let script = home.join("consumer.sh");
    if !home.join("bin/socisnap").is_file() {
        println!("SKIP: no consumer in {}: .ci/consumer sets it up where its sources are", home.display());
        return None;
    }
    if !corpus.join("layers/small").is_dir() {
        skip(&format!("no corpus in {}: run tests/corpus/make", corpus.display()));
        return None;
    }
    if !Path::new("/dev/fuse").exists() {
        skip("no /dev/fuse");
        return None;
    }
    Some(Consumer { script, corpus: corpus.join("layers"), crane: tool("crane")?, regctl: tool("regctl")? })
}

impl Consumer {
    /// Pushes an image, indexes it, and lets the snapshotter mount it.
    fn accepts(&self, server: &Server, image: &Image, api: bool) {
        let reference = self.push(server, image);
        let output = Command::new(env!("CARGO_BIN_EXE_ociseek"))
            .args([
                "index",
                "--min-layer-size",
                "0",
                "--span-size",
                "1MiB",
                "--no-cache",
                "--format",
                "json",
                &reference,
            ])
            .output()
            .expect("the command runs");
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{reference}: {talk}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        let manifest = &report["images"][0]["manifests"][0];
        let index = manifest["index"]["digest"].as_str().expect("an index").to_owned();
        let listed =
            run(&self.regctl, &["--host", &insecure(server), "artifact", "list", &reference, "--format", "body"]);
        assert!(listed.contains(&index) && listed.contains(SOCI), "{reference}: regctl does not see {index}: {listed}");
        assert_eq!(manifest["attached"].as_str().expect("it was attached").contains("api"), api, "{manifest}");
        self.mounts(&reference, &["--index", &index]);

        // The same image in version 2, by the snapshotter's default settings.
        let enabled = format!("{reference}-soci");
        let output = Command::new(env!("CARGO_BIN_EXE_ociseek"))
            .args(["convert", "--min-layer-size=0", "--span-size=1MiB", "--no-cache", "--format=json"])
            .args([&reference, &enabled])
            .output()
            .expect("the command runs");
        assert!(output.status.success(), "{enabled}: {}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        let index = report["images"][0]["index"]["digest"].as_str().expect("an index");
        self.mounts(&enabled, &["--mode", "v2", "--index", index]);
    }

    /// The snapshotter mounts the image lazily by the index that is named, and every file is right.
    fn mounts(&self, reference: &str, options: &[&str]) {
        let output = Command::new(&self.script).arg(reference).args(options).output().expect("the consumer runs");
        let (said, summary) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        println!("{reference}: {}", summary.lines().last().unwrap_or_default());
        assert!(output.status.success(), "{reference}: the real consumer does not take our index:\n{said}{summary}");
    }

    fn push(&self, server: &Server, image: &Image) -> String {
        match image {
            Image::Demo => {
                let layout = concat!("ocidir://", env!("CARGO_MANIFEST_DIR"), "/fixtures/demo:latest");
                let reference = format!("{}/test/demo:v1", server.host);
                run(&self.regctl, &["--host", &insecure(server), "image", "copy", layout, &reference]);
                reference
            }
            Image::Layers(name, layers) => {
                let reference = format!("{}/test/{name}:v1", server.host);
                let files: Vec<_> = layers.iter().map(|l| self.corpus.join(l).display().to_string()).collect();
                let files = files.join(",");
                run(&self.crane, &["append", "--insecure", "--oci-empty-base", "-f", &files, "-t", &reference]);
                let platform = ["mutate", "--insecure", "--set-platform", "linux/amd64", "-t", &reference, &reference];
                run(&self.crane, &platform);
                reference
            }
        }
    }
}

/// regctl's way to say that a host has no TLS.
fn insecure(server: &Server) -> String {
    format!("reg={},tls=disabled", server.host)
}

#[test]
fn the_real_consumer_mounts_from_olareg() {
    let Some(consumer) = consumer() else { return };
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    for image in IMAGES {
        consumer.accepts(&server, image, true);
    }
}

#[test]
fn the_real_consumer_mounts_from_distribution() {
    let Some(consumer) = consumer() else { return };
    let Some(server) = Server::distribution("127.0.0.1:0", |_| String::new()) else { return };
    for image in IMAGES {
        consumer.accepts(&server, image, false);
    }
}
