//! Compares the SOCI index manifest of the command with the bytes of soci's own MarshalIndex.

use ociseek_testkit::sandbox::program;
use ociseek_testkit::soci;
use std::path::Path;
use std::process::Command;

use ociseek_testkit::soci::{Oracle, TOOL, Verdict};
use serde_json::{Value, json};

fn read(layout: &Path, digest: &str) -> Vec<u8> {
    let (algorithm, hex) = digest.split_once(':').expect("a digest");
    std::fs::read(layout.join("blobs").join(algorithm).join(hex))
        .expect("the blob is in the layout")
}

#[test]
fn index_manifests_match_soci() {
    let Some(oracle) = soci::oracle_binary() else { return };
    let dir = tempfile::tempdir().expect("scratch space");
    let layout = dir.path().join("out");
    let output = Command::new(program())
        .args([
            "index",
            "--min-layer-size",
            "0",
            "--span-size",
            "64KiB",
            "--build-tool-identifier",
            TOOL,
            "--no-cache",
        ])
        .args(["--format", "json", "--output", &format!("oci:{}", layout.display())])
        .arg(format!("oci:{}/fixtures/demo", env!("CARGO_MANIFEST_DIR")))
        .output()
        .expect("the command runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let manifest = &report["images"][0]["manifests"][0];
    let ours = read(&layout, manifest["index"]["digest"].as_str().expect("an index"));

    // The manifest that soci would have built from its own ztocs.
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo");
    let mut build = Oracle::new(&oracle, "build");
    let layers = manifest["layers"].as_array().expect("layers");
    assert_eq!(layers.len(), 3);
    let blobs: Vec<Value> = layers
        .iter()
        .map(|layer| {
            let digest = layer["digest"].as_str().expect("a digest");
            let blob = dir.path().join("layer.tar.gz");
            std::fs::write(&blob, read(&fixtures, digest)).expect("scratch space");
            let out = dir.path().join("ztoc");
            let built = build.build(64 << 10, TOOL, &blob, &out);
            assert!(built.is_ok(), "{built:?}");
            let ztoc = built.detail().split(' ').next().expect("a digest");
            let size = out.metadata().expect("it is there").len();
            json!({"mediaType": "application/octet-stream", "digest": ztoc, "size": size,
                "annotations": {"com.amazon.soci.image-layer-digest": digest, "com.amazon.soci.span-size": "65536",
                    "com.amazon.soci.image-layer-mediaType": layer["media_type"]}})
        })
        .collect();
    let image = &manifest["manifest"];
    let subject =
        json!({"mediaType": image["media_type"], "digest": image["digest"], "size": image["size"]});
    let job = json!({"blobs": blobs, "subject": subject, "tool": TOOL}).to_string();
    match Oracle::new(&oracle, "index").ask(&[&job]) {
        Verdict::Ok(theirs) => assert_eq!(String::from_utf8(ours).expect("JSON"), theirs),
        other => panic!("soci's own library: {other:?}"),
    }
}
