//! Images in real registries, indexed by the command, and mounted by the real soci-snapshotter,
//! which must use our index, fetch lazily, and show every file like in an unpacked image.
//! Independent clients list the referrer. With prefetching enabled, it fetches exactly the spans of
//! our list before it mounts.
//!
//! Root and FUSE; `.ci/test` sets up the rest: containerd 2, the snapshotter, registries, the
//! corpus.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ociseek_format::image::prefetch;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::SpanId;
use ociseek_format::ztoc;
use serde_json::Value;

use ociseek_testkit::blobs::SOCI;
use ociseek_testkit::corpus::debian_layers;
use ociseek_testkit::in_own_mounts;
use ociseek_testkit::sandbox::program;
use ociseek_testkit::servers::{self, Server, pushed_by_crane, run, skip, tool};

/// An image: its name and the source of its layers.
enum Image {
    /// Layers of the corpus.
    Layers(&'static str, &'static [&'static str]),
    /// The unchanged demo layout.
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

/// An image with two layers, and files in both of them.
const TO_PREFETCH: (Image, [&str; 3]) = (
    Image::Layers("prefetch", &["small/plain-6MB.tar.gz", "small/pax-binary-xattr.tar.gz"]),
    ["--prefetch-file=/f010", "--prefetch-file=/f05*", "--prefetch-file=/a.txt"],
);

struct Consumer {
    programs: PathBuf,
    corpus: PathBuf,
    crane: PathBuf,
    regctl: PathBuf,
}

/// What this machine has for these tests. If something is missing, prints a line.
fn consumer() -> Option<Consumer> {
    let layers = debian_layers()?;
    if !Path::new("/dev/fuse").exists() {
        skip("no /dev/fuse");
        return None;
    }
    Some(Consumer {
        programs: servers::consumer()?,
        corpus: layers.parent().expect("a folder of the corpus").to_owned(),
        crane: tool("crane")?,
        regctl: tool("regctl")?,
    })
}

impl Consumer {
    /// Pushes an image, indexes it, and lets the snapshotter mount it.
    fn accepts(&self, server: &Server, image: &Image, api: bool) {
        let reference = self.push(server, image);
        let output = Command::new(program())
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
        let listed = run(
            &self.regctl,
            &["--host", &insecure(server), "artifact", "list", &reference, "--format", "body"],
        );
        assert!(
            listed.contains(&index) && listed.contains(SOCI),
            "{reference}: regctl does not see {index}: {listed}"
        );
        assert_eq!(
            manifest["attached"].as_str().expect("it was attached").contains("api"),
            api,
            "{manifest}"
        );
        self.mounts(&reference, &index, &["--v1"]);

        // The same image in version 2, with the snapshotter's default settings.
        let enabled = format!("{reference}-soci");
        let output = Command::new(program())
            .args([
                "convert",
                "--min-layer-size=0",
                "--span-size=1MiB",
                "--no-cache",
                "--format=json",
            ])
            .args([&reference, &enabled])
            .output()
            .expect("the command runs");
        assert!(output.status.success(), "{enabled}: {}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        let index = report["manifests"][0]["index"]["digest"].as_str().expect("an index");
        self.mounts(&enabled, index, &[]);
    }

    /// The snapshotter mounts the image lazily by this index, and every file is correct. Returns
    /// what it requested from the registry until then.
    fn mounts(&self, reference: &str, index: &str, options: &[&str]) -> Vec<Value> {
        let folder = tempfile::tempdir().expect("a folder");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/consumer/consume");
        // What containerd and the snapshotter unpack and fetch stays in memory: on ext4 without a
        // journal, a third of the CPU time of these tests was the search for free inodes.
        let mut command = in_own_mounts(r#"mount -t tmpfs tmpfs "$2" && exec "$0" "$@""#);
        command
            .arg(script)
            .arg(&self.programs)
            .arg(folder.path())
            .args([reference, index])
            .args(options);
        let output = command.output().expect("the consumer runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{reference}: the real consumer does not take our index:\n{errors}"
        );
        let mut summary: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        let Value::Array(requests) = summary["requests"].take() else {
            panic!("no requests: {summary}")
        };
        println!("{reference}: {summary}");
        requests
    }

    /// With prefetching enabled, the snapshotter fetches exactly the spans that the index or
    /// SOCI-enabled image lists, when it mounts the layers.
    fn prefetches(&self, server: &Server, mode: &str) {
        let (image, files) = &TO_PREFETCH;
        let mut reference = self.push(server, image);
        let mut command = Command::new(program());
        let enabled = format!("{reference}-soci");
        match mode {
            "v1" => command.args(["index", &reference]),
            _ => command.args(["convert", &reference, &enabled]),
        };
        command
            .args(["--min-layer-size=0", "--span-size=256KiB", "--no-cache", "--format=json"])
            .args(files);
        let output = command.output().expect("the command runs");
        assert!(
            output.status.success(),
            "{reference}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        let place = if mode == "v1" { "/images/0/manifests/0" } else { "/manifests/0" };
        let index = report.pointer(place).expect("an image")["index"]["digest"]
            .as_str()
            .expect("an index")
            .to_owned();
        if mode == "v2" {
            reference = enabled;
        }

        let options: &[&str] = if mode == "v1" { &["--v1", "--prefetch"] } else { &["--prefetch"] };
        let requests = self.mounts(&reference, &index, options);

        let (lists, wanted) = self.listed(&reference, &index);
        assert!(lists.len() == 2 && wanted.len() > 3, "{wanted:?}");
        let layers: BTreeSet<&str> = wanted.iter().map(|(layer, _)| layer.as_str()).collect();
        let mut fetched = BTreeSet::new();
        for request in requests.iter().filter(|request| request["method"] == "GET") {
            let path = request["path"].as_str().expect("a path");
            let Some(layer) = layers.iter().find(|layer| path.ends_with(*layer)) else { continue };
            fetched.insert((
                (*layer).to_owned(),
                request["range"].as_str().unwrap_or("all").to_owned(),
            ));
        }
        // It tests whether the registry supports ranges, and reads the header of each gzip layer.
        fetched.retain(|(_, range)| range != "bytes=0-1" && range != "bytes=0-9");
        assert_eq!(fetched, wanted, "{reference}");
        for list in lists {
            assert!(
                requests.iter().any(|r| r["path"].as_str().expect("a path").ends_with(&list)),
                "{reference}: {list}"
            );
        }
    }

    /// The digests of an index's prefetch artifacts, and the ranges of layers that they list.
    fn listed(&self, reference: &str, index: &str) -> (Vec<String>, BTreeSet<(String, String)>) {
        let repository = reference.rsplit_once(':').expect("a tag").0;
        let crane = |verb: &str, digest: &str| {
            let mut command = Command::new(&self.crane);
            let output =
                command.args([verb, "--insecure", &format!("{repository}@{digest}")]).output();
            let output = output.expect("crane runs");
            assert!(
                output.status.success(),
                "{digest}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            output.stdout
        };
        let index: Value = serde_json::from_slice(&crane("manifest", index)).expect("JSON");
        let blobs = index["layers"].as_array().expect("a list");
        let of = |media_type: &str| {
            let is_one = move |blob: &&Value| blob["mediaType"] == media_type;
            let pair = |blob: &Value| {
                let layer = &blob["annotations"]["com.amazon.soci.image-layer-digest"];
                [layer, &blob["digest"]].map(|text| text.as_str().expect("a digest").to_owned())
            };
            blobs.iter().filter(is_one).map(pair).collect::<Vec<_>>()
        };
        let ztocs = of("application/octet-stream");
        let mut wanted = BTreeSet::new();
        let lists = of("application/vnd.amazon.soci.prefetch.v1+json");
        for [layer, list] in &lists {
            let [_, digest] = ztocs.iter().find(|[of, _]| of == layer).expect("a ztoc");
            let spans =
                SpanTable::new(Arc::new(ztoc::decode(&crane("blob", digest)).expect("a ztoc")))
                    .expect("spans");
            let listed = prefetch::parse(&crane("blob", list)).expect("a list");
            for span in
                listed.iter().flat_map(|range| (range.start().0..=range.end().0).map(SpanId))
            {
                let range = spans.blob_range(span);
                wanted
                    .insert((layer.clone(), format!("bytes={}-{}", range.start, range.end.0 - 1)));
            }
        }
        (lists.into_iter().map(|[_, list]| list).collect(), wanted)
    }

    fn push(&self, server: &Server, image: &Image) -> String {
        match image {
            Image::Demo => {
                let layout =
                    concat!("ocidir://", env!("CARGO_MANIFEST_DIR"), "/fixtures/demo:latest");
                let reference = format!("{}/test/demo:v1", server.host);
                run(
                    &self.regctl,
                    &["--host", &insecure(server), "image", "copy", layout, &reference],
                );
                reference
            }
            Image::Layers(name, layers) => {
                let reference = format!("{}/test/{name}:v1", server.host);
                let files: Vec<PathBuf> =
                    layers.iter().map(|layer| self.corpus.join(layer)).collect();
                let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
                pushed_by_crane(&self.crane, &reference, &files);
                reference
            }
        }
    }
}

/// regctl's option for a host without TLS.
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
    let Some(server) = Server::distribution_on_disk("docker-registry") else { return };
    // Only how an index is found and how blobs are served is different here.
    for image in &IMAGES[..2] {
        consumer.accepts(&server, image, false);
    }
}

#[test]
fn the_real_consumer_prefetches_the_listed_spans() {
    let Some(consumer) = consumer() else { return };
    if let Some(server) = Server::distribution_on_disk("docker-registry") {
        consumer.prefetches(&server, "v1");
    }
    if let Some(server) = Server::olareg(|_, _| Vec::new()) {
        consumer.prefetches(&server, "v2");
    }
}
