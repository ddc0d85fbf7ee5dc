//! Images of many shapes: archives, nested indexes, attestations, artifacts.

use super::referrers;
use insta::assert_snapshot;
use ociseek_testkit::image::image_manifest;
use ociseek_testkit::sandbox::{self, GZIP, Layout, Sandbox, gzip, index, tar};
use serde_json::Value;

#[test]
fn an_archive_is_indexed_into_a_layout_with_the_same_result() {
    let sandbox = Sandbox::with_two_platforms();
    let mut archive = tar::Builder::new(std::fs::File::create(sandbox.path("img.tar")).unwrap());
    archive.append_dir_all(".", sandbox.path("img")).unwrap();
    archive.finish().unwrap();
    let from_archive =
        sandbox.json(0, &index(&["--format=json", "--output=oci:out", "oci-archive:img.tar:v1"]));
    let from_layout = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    for platform in 0..2 {
        let digest =
            |report: &Value| report["images"][0]["manifests"][platform]["index"]["digest"].clone();
        assert_eq!(digest(&from_archive), digest(&from_layout));
    }
    assert_eq!(referrers(&sandbox, "out").len(), 2);
}

#[test]
fn an_index_without_its_image_is_refused() {
    let sandbox = Sandbox::with_small_image();
    sandbox.run(&index(&["--output=oci:alone", "oci:img"]));
    assert_snapshot!(sandbox.run(&["ls", "oci:alone"]), @r"
    --- stderr ---
    error: alone holds no image
    hint: what ociseek index --output oci:DIR writes is an index without its image: name the image that it was made for
    --- status 1 ---
    ");
}

#[test]
fn artifacts_are_refused_with_their_kind() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("chart"));
    let config = layout.blob("application/vnd.cncf.helm.config.v1+json", b"{}");
    let chart = layout.blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip", b"x");
    let manifest = image_manifest(&config, &[chart]);
    let manifest = layout.blob(sandbox::OCI_MANIFEST, manifest.to_string().as_bytes());
    layout.tag(manifest, "v1");
    assert_snapshot!(sandbox.run(&index(&["oci:chart:v1"])), @r#"
    --- stderr ---
    error: oci:chart:v1: sha256:b5c3aa7d09f9cb9f225efb4f8f58a4d02310c76a9bce5a433fc13416ea51beed cannot be used: this is not an image but a Helm chart
    --- status 1 ---
    "#);
}

/// An index that lists `manifests`, nested in further indexes.
fn nested(layout: &Layout, levels: usize, image: Value) -> Value {
    (0..levels).fold(image, |inner, _| layout.image_index(&[inner]))
}

#[test]
fn nested_indexes_are_followed_up_to_a_limit() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layer = layout.blob(GZIP, &gzip(&tar(1, 2, 20_000)));
    let image = sandbox::for_platform(layout.image("amd64", &[layer]), "amd64");
    for (levels, tag) in [(4, "deep"), (5, "deeper")] {
        let index = nested(&layout, levels, image.clone());
        layout.tag(index, tag);
    }
    let deep = sandbox.json(0, &index(&["--format=json", "--dry-run", "oci:img:deep"]));
    assert_eq!(deep["images"][0]["manifests"][0]["manifest"]["digest"], image["digest"]);
    let deeper = sandbox.run(&index(&["oci:img:deeper"]));
    assert!(
        deeper.contains("is nested more than 4 deep") && deeper.ends_with("--- status 1 ---"),
        "{deeper}"
    );
}

#[test]
fn attestations_and_repeated_platforms_are_skipped() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layer = layout.blob(GZIP, &gzip(&tar(1, 2, 20_000)));
    let other = layout.blob(GZIP, &gzip(&tar(2, 2, 20_000)));
    let first = sandbox::for_platform(layout.image("amd64", std::slice::from_ref(&layer)), "amd64");
    let second = sandbox::for_platform(layout.image("amd64", &[other]), "amd64");
    let mut attestation = layout.image("amd64", &[layer]);
    attestation["platform"] = serde_json::json!({"os": "unknown", "architecture": "unknown"});
    attestation["annotations"] =
        serde_json::json!({"vnd.docker.reference.type": "attestation-manifest"});
    let list = layout.image_index(&[attestation, first.clone(), second.clone(), first.clone()]);
    layout.tag(list, "v1");
    let output = sandbox.command(&index(&["--format=json", "oci:img"])).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let manifests = report["images"][0]["manifests"].as_array().unwrap();
    assert_eq!(manifests.len(), 1);
    assert_eq!(manifests[0]["manifest"]["digest"], first["digest"]);
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(
        warning.starts_with("warning: ") && warning.contains(second["digest"].as_str().unwrap()),
        "{warning}"
    );
}

#[test]
fn unservable_layers_are_left_out() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let sound = layout.blob(GZIP, &gzip(&tar(1, 2, 20_000)));
    let trailing = layout.blob(GZIP, &[&gzip(&tar(2, 2, 20_000))[..], b"x"].concat());
    let mislabelled = layout.blob(GZIP, &tar(3, 2, 20_000));
    let image = layout.image("amd64", &[trailing, sound, mislabelled]);
    layout.tag(image, "v1");
    let report = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    let layers = &report["images"][0]["manifests"][0]["layers"];
    assert_eq!(layers[0]["reason"]["code"], "trailing-bytes");
    assert_eq!(layers[1]["status"], "indexed");
    assert_eq!(layers[2]["reason"]["code"], "mislabelled");
}
