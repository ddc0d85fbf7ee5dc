//! `ociseek verify`: valid indexes are reported as valid, and each kind of damage is found and
//! named.

mod damage;
mod fine;
mod image;
mod indexes;
mod mutations;
mod notation;
mod policy;
mod recipe;
mod signatures;

use image::{Image, QUICK, codes};
use insta::assert_snapshot;
use ociseek_format::code::Code;
use ociseek_format::image::soci::{SociIndex, ZtocRef};
use ociseek_format::offset::SpanSize;
use ociseek_testkit::sandbox::{Sandbox, enabled, index};
use ociseek_testkit::servers;
use ociseek_testkit::soci;
use serde_json::json;

#[test]
fn a_correct_index_is_reported_in_one_line() {
    let image = Image::new();
    let index = image.indexes()[0].to_string();
    // Their number depends on the compressor.
    let spans = image.verify(0, &[])["manifests"][0]["indexes"][0]["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layer| layer["of_spans"].as_u64().unwrap())
        .sum::<u64>();
    let masked =
        |text: String| text.replace(&index, "INDEX").replace(&format!("{spans} spans"), "N spans");
    let text = image.sandbox.run(&["verify", "oci:img:v1"]);
    assert_snapshot!(masked(text), @r#"
    oci:img:v1 linux/amd64: index INDEX: ok (3 of 4 layers, N spans, 11 files, 606.0 KiB)
    --- stderr ---
    --- status 0 ---
    "#);
    let text = image.sandbox.run(&["verify", "--quick", "--spans=3", "--seed=1", "oci:img:v1"]);
    assert_snapshot!(masked(text), @r#"
    oci:img:v1 linux/amd64: index INDEX: ok (3 of 4 layers, 9 of N spans (--seed 1))
    --- stderr ---
    --- status 0 ---
    "#);
}

#[test]
fn the_json_document() {
    let image = Image::new();
    let document = image.verify(0, &[]);
    assert_eq!(
        (&document["status"], &document["depth"], &document["seed"]),
        (&json!("right"), &json!("full"), &json!(null))
    );
    let layers: u64 = image.layers[..3].iter().map(|layer| image.read(layer).len() as u64).sum();
    let ztocs: u64 = (0..3).map(|place| image.ztoc(place).1).sum();
    assert_eq!(
        document["bytes_read"],
        layers + ztocs,
        "each layer with a ztoc is read once, and no other"
    );
    let proven = &document["manifests"][0]["indexes"][0]["layers"];
    assert_eq!(proven.as_array().unwrap().len(), 3);
    for layer in proven.as_array().unwrap() {
        assert_eq!(layer["spans"], layer["of_spans"]);
        assert_ne!(layer["entries"], 0);
    }
    assert_eq!(codes(&document), [""; 0]);
    // A few spans are smaller than the layers. The same seed reads the same spans.
    let sample = ["--quick", "--spans=2", "--seed=7"];
    let quick = image.verify(0, &sample);
    assert!(quick["bytes_read"].as_u64().unwrap() < layers + ztocs);
    assert_eq!(quick, image.verify(0, &sample));
}

#[test]
fn the_documentation_lists_every_word() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/policy.md")).unwrap();
    let (_, table) = page.split_once("| code | meaning |\n|---|---|\n").unwrap();
    let listed: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    let words: Vec<String> =
        Code::ALL.iter().map(|c| format!("| `{}` | {} |", c.word(), c.meaning())).collect();
    assert_eq!(listed, words);
}

#[test]
fn an_image_without_an_index_cannot_be_verified() {
    let image = Image::unindexed(|_| {});
    let inspected = image.sandbox.doctor("oci:img:v1");
    let manifest = inspected["manifests"][0]["manifest"]["digest"].as_str().unwrap().to_owned();
    let text = image.sandbox.run(&["verify", "oci:img:v1"]).replace(&manifest, "MANIFEST");
    assert_snapshot!(text, @r#"
    --- stderr ---
    error: image MANIFEST has neither a SOCI index nor a fine index to verify
    hint: the image has no SOCI index: its layers are all smaller than 10 MiB, and faster to pull whole than to mount
    --- status 1 ---
    "#);
}

#[test]
fn platforms_without_an_index_are_reported() {
    let sandbox = Sandbox::with_two_platforms();
    sandbox.run(&index(&["--platform=linux/arm64", "oci:img"]));
    // The images of this helper have configs without diff IDs, which is a difference too.
    let document = sandbox.json(3, &["verify", "--format=json", "oci:img"]);
    assert_eq!(codes(&document), ["config"]);
    let first = &document["manifests"][0];
    assert_eq!(first["indexes"], json!([]));
    assert!(first["warnings"][0].as_str().unwrap().ends_with("has no SOCI index"), "{first}");
}

#[test]
fn two_indexes_cause_a_warning_but_no_difference() {
    let image = Image::unindexed(|_| {});
    image.run_index(&["--build-tool-identifier=someone else's"]);
    image.run_index(&["--build-tool-identifier=another one's"]);
    assert_eq!(image.indexes().len(), 2);
    let document = image.verify(0, &[]);
    let warning = document["manifests"][0]["warnings"][0].as_str().unwrap();
    assert!(warning.contains("has 2 SOCI indexes of version 1"), "{warning}");
    assert_eq!(document["manifests"][0]["indexes"].as_array().unwrap().len(), 2);
    // Only one of them.
    let one = image.indexes()[1].to_string();
    let document = image.verify(0, &["--index", &one]);
    assert_eq!(document["manifests"][0]["indexes"][0]["digest"], one);
}

#[test]
fn an_index_of_version_2() {
    let image = Image::new();
    enabled(&image.sandbox);
    let args = ["verify", "--format=json", "--progress=none", "oci:enabled:v1"];
    let document = image.sandbox.json(0, &args);
    assert_eq!(document["manifests"][0]["indexes"][0]["version"], 2);
    assert_eq!(document["manifests"][0]["warnings"], json!([]));
    assert_eq!(document["manifests"][0]["indexes"][0]["layers"].as_array().unwrap().len(), 3);
    // Its ztocs are the same blobs.
    std::fs::remove_file(image.sandbox.path("enabled/blobs/sha256").join(image.ztoc(1).0.hex()))
        .unwrap();
    assert_eq!(codes(&image.sandbox.json(3, &args)), ["ztoc-missing"]);
    // Only the manifest, without the index that lists both.
    let manifest = document["manifests"][0]["manifest"]["digest"].as_str().unwrap();
    let alone =
        image.sandbox.json(3, &["verify", "--format=json", &format!("oci:enabled@{manifest}")]);
    let warning = alone["manifests"][0]["warnings"][0].as_str().unwrap();
    assert!(warning.contains("does not list the SOCI index"), "{warning}");
}

#[test]
fn ztocs_of_soci_are_right() {
    let Some(oracle) = soci::oracle_binary() else { return };
    let image = Image::new();
    let mut build = soci::Oracle::new(&oracle, "build");
    let document: serde_json::Value = serde_json::from_str(&image.manifest()).unwrap();
    let mut layers = Vec::new();
    for (place, ztoc) in document["layers"].as_array().unwrap().iter().enumerate() {
        let out = image.sandbox.path("ztoc");
        let layer = image.layers[place];
        let verdict = build.build(16 << 10, soci::TOOL, &image.path(&layer), &out);
        assert!(verdict.is_ok(), "{verdict:?}");
        let bytes = std::fs::read(&out).unwrap();
        layers.push(ZtocRef {
            ztoc: image.write(&bytes),
            size: bytes.len() as u64,
            layer,
            layer_media_type: ztoc["annotations"]["com.amazon.soci.image-layer-mediaType"]
                .as_str()
                .unwrap()
                .into(),
            span_size: SpanSize::new(16 << 10).unwrap(),
        });
    }
    assert_eq!(layers.len(), 3);
    let subject = serde_json::from_value(document["subject"].clone()).unwrap();
    let index = SociIndex {
        layers,
        subject,
        build_tool_identifier: soci::TOOL.into(),
        prefetch: Vec::new(),
    }
    .encode();
    image.replace_index(std::str::from_utf8(&index.bytes).unwrap());
    let verified = image.verify(0, &[]);
    assert_eq!(verified["manifests"][0]["indexes"][0]["tool"], soci::TOOL);
    image.verify(0, &QUICK);
}

/// In a registry that lists referrers and in one that does not.
#[test]
fn real_registries() {
    for start in [|| servers::Server::olareg(|_, _| Vec::new()), servers::Server::crane] {
        let (Some(server), Some(crane)) = (start(), servers::tool("crane")) else { return };
        let image = Image::unindexed(|_| {});
        let name = format!("{}/app:v1", server.host);
        servers::run(&crane, &["push", image.dir.to_str().unwrap(), &name]);
        let missing = image.sandbox.command(&["verify", &name]).output().unwrap();
        assert_eq!(missing.status.code(), Some(1));
        image.sandbox.run(&index(&["--quiet", &name]));
        for more in [&[][..], &QUICK] {
            let args = [&["verify", "--format=json", "--progress=none", &name], more].concat();
            let document = image.sandbox.json(0, &args);
            assert_eq!(document["status"], "right");
            assert_eq!(
                document["manifests"][0]["indexes"][0]["layers"].as_array().unwrap().len(),
                3
            );
        }
    }
}
