//! The documents that the commands write, read by another reader: the crate oci-spec. It must
//! accept each of them, and write it again without losing anything.

use std::collections::BTreeMap;

use oci_spec::image::{ImageIndex, ImageManifest, OciLayout};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use ociseek_testkit::copied::copied;
use ociseek_testkit::sandbox::{GZIP, Layout, PLAIN, Sandbox, for_platform, gzip, tar};

/// An image for two platforms in `oci:img:v1`, whose layers can be indexed.
fn image(sandbox: &Sandbox) {
    let mut layout = Layout::new(&sandbox.path("img"));
    let platforms = [(1, "amd64"), (2, "arm64")].map(|(seed, architecture)| {
        let layers = [
            layout.blob(GZIP, &gzip(&tar(seed, 3, 200_000))),
            layout.blob(PLAIN, &tar(seed + 10, 2, 100_000)),
        ];
        for_platform(layout.image(architecture, &layers), architecture)
    });
    let index = layout.image_index(&platforms);
    layout.tag(index, "v1");
}

/// Reads a document strictly: what is written again is the same, but for the order of keys.
fn read<T: DeserializeOwned + Serialize>(name: &str, document: &Value) {
    let parsed: T =
        serde_json::from_value(document.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(serde_json::to_value(&parsed).expect("JSON"), *document, "{name}");
}

/// Reads all documents of a layout. Returns how many of each kind there are: the type of artifact,
/// or else the media type.
fn documents(sandbox: &Sandbox, layout: &str) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for (path, bytes) in sandbox.files(layout) {
        let Ok(document) = serde_json::from_slice::<Value>(&bytes) else { continue };
        let name = path.display().to_string();
        if path.ends_with("oci-layout") {
            read::<OciLayout>(&name, &document);
            *kinds.entry("oci-layout".to_owned()).or_default() += 1;
            continue;
        }
        if document.get("schemaVersion").is_none() {
            continue;
        }
        if document.get("manifests").is_some() {
            read::<ImageIndex>(&name, &document);
        } else {
            read::<ImageManifest>(&name, &document);
        }
        let kind = if path.ends_with("index.json") {
            "index.json"
        } else {
            kind(&document).expect("a media type")
        };
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    kinds
}

/// The type of artifact of a document, or else its media type.
fn kind(document: &Value) -> Option<&str> {
    let of_config = document["config"]["mediaType"].as_str().filter(|kind| kind.contains("soci"));
    document["artifactType"].as_str().or(of_config).or(document["mediaType"].as_str())
}

#[test]
fn oci_spec_reads_every_document_that_the_commands_write() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    std::fs::write(
        sandbox.path("start.jsonl"),
        r#"{"ms":1.0,"path":"/dir1/file1","layer":"sha256:0","offset":0,"size":4096,"spans":[]}"#,
    )
    .expect("a profile");
    let options = ["--min-layer-size=1KiB", "--span-size=64KiB", "--no-cache", "--quiet"];
    let run = |args: &[&str]| {
        let output = sandbox.command(args).args(options).output().expect("it runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["index", "--kind=v1,v2={tag}-soci,fine", "--profile=start.jsonl", "oci:img:v1"]);
    run(&["index", "--output=oci:out", "oci:img:v1"]);
    run(&["convert", "oci:img:v1", "oci:converted:v2"]);
    copied(&sandbox, "oci:img:v1", "oci:copied:v1");
    let removed = sandbox.run(&["rm", "oci:copied:v1"]);
    assert!(removed.ends_with("--- status 0 ---"), "{removed}");

    let found: BTreeMap<&str, _> = ["img", "out", "converted", "copied"]
        .map(|layout| (layout, documents(&sandbox, layout)))
        .into();
    let count = |layout: &str, kind: &str| found[layout].get(kind).copied().unwrap_or_default();
    let index = "application/vnd.oci.image.index.v1+json";
    let manifest = "application/vnd.oci.image.manifest.v1+json";
    let v1 = "application/vnd.amazon.soci.index.v1+json";
    let v2 = "application/vnd.amazon.soci.index.v2+json";
    let fine =
        found["img"].keys().find(|kind| kind.contains("ociseek.fine")).expect("a fine index");
    for (layout, kind, least) in [
        ("img", v1, 2),
        ("img", v2, 2),
        ("img", fine, 2),
        // Those that were there, and the converted ones.
        ("img", index, 2),
        ("img", manifest, 4),
        ("converted", v2, 2),
        ("converted", index, 1),
        ("converted", manifest, 2),
        ("copied", v1, 2),
        ("copied", fine, 2),
    ] {
        assert!(count(layout, kind) >= least, "{layout} has too few of {kind}: {found:?}");
    }
    for layout in found.keys() {
        assert_eq!(
            (count(layout, "index.json"), count(layout, "oci-layout")),
            (1, 1),
            "{layout}: {found:?}"
        );
    }
}
