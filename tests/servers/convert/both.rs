//! `ociseek index --kind v1,v2=TAG`: both versions from a single reading of the layers.

use std::process::{Command, Stdio};

use ociseek_format::digest::Algorithm;
use serde_json::Value;

use super::assert_whole;
use super::maker::{self, Maker};
use super::stores::{command, image};
use ociseek_testkit::sandbox::{GZIP, gzip, program};
use ociseek_testkit::servers::{Server, run, tool};

const SMALL: [&str; 6] = [
    "--min-layer-size=0",
    "--span-size=16KiB",
    "--no-cache",
    "--no-reuse",
    "--format=json",
    "--progress=none",
];

/// The standard output and standard error of `ociseek index`, with this exit status.
fn index(code: i32, args: &[&str]) -> (Value, String) {
    let mut command = Command::new(program());
    let output = command.arg("index").args(SMALL).args(args).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    (serde_json::from_slice(&output.stdout).unwrap_or_default(), said)
}

/// The result for the only image.
fn made(args: &[&str]) -> Value {
    index(0, args).0["images"][0].take()
}

#[test]
fn both_versions_are_written_to_a_layout_from_one_reading() {
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("l");
    let root = image(&layout);
    let named = format!("oci:{}:v1", layout.display());
    let by_digest = format!("oci:{}@{root}", layout.display());
    let index_json = || std::fs::read(layout.join("index.json")).unwrap();
    let before = index_json();

    let alone = made(&["--dry-run", &named]);
    let dry = made(&["--dry-run", "--kind=v1,v2={tag}-soci", &named]);
    let enabled = &dry["enabled"];
    assert_eq!(
        (&enabled["status"], &dry["bytes_read"]),
        (&"dry-run".into(), &alone["bytes_read"]),
        "{dry}"
    );
    assert_eq!(enabled["name"], format!("oci:{}:v1-soci", layout.display()));
    assert_eq!(index_json(), before);

    // The tag of an image that is named by digest is in index.json.
    let outputs = dir.path().join("outputs");
    let both = made(&[
        "--kind=v1,v2={tag}-soci",
        &format!("--step-outputs={}", outputs.display()),
        &by_digest,
    ]);
    assert_eq!(
        (&both["enabled"]["status"], &both["bytes_read"]),
        (&"written".into(), &alone["bytes_read"]),
        "{both}"
    );
    assert_eq!(both["manifests"][1]["status"], "attached");
    assert_eq!(
        (&both["enabled"]["digest"], &both["digest"]),
        (&enabled["digest"], &root.as_str().into())
    );
    let digest = enabled["digest"].as_str().unwrap();
    assert_whole(&layout, digest);
    let outputs = std::fs::read_to_string(outputs).unwrap();
    assert!(outputs.contains(&format!("\nenabled_digest={digest}\n")), "{outputs}");

    let again = made(&["--kind=v1,v2={tag}-soci", &named]);
    assert_eq!(
        (&again["enabled"]["status"], &again["manifests"][0]["status"]),
        (&"already-there".into(), &"already-there".into())
    );

    let short = &root["sha256:".len()..][..12];
    let only = made(&[
        "--kind=v2={digest}",
        "--output",
        &format!("oci:{}", dir.path().join("out").display()),
        &named,
    ]);
    assert_eq!(
        (&only["enabled"]["digest"], &only["manifests"]),
        (&enabled["digest"], &Value::Array(Vec::new()))
    );
    assert_eq!(
        only["enabled"]["name"],
        format!("oci:{}:{short}", dir.path().join("out").display())
    );
    assert_eq!(
        (&only["digest"], &only["enabled"]["manifests"][0]["coverage"]["percent"]),
        (&root.as_str().into(), &100.0.into())
    );
    assert_whole(&dir.path().join("out"), digest);
}

#[test]
fn the_enabled_image_has_fine_documents_that_the_image_already_has() {
    let dir = tempfile::tempdir().unwrap();
    let enabled = |layout: &str, before: &[&str]| {
        let layout = dir.path().join(layout);
        image(&layout);
        let named = format!("oci:{}:v1", layout.display());
        if !before.is_empty() {
            made(&[before, &[&named]].concat());
        }
        let image = made(&["--kind=v1,v2={tag}-soci,fine", &named]);
        let digest = image["enabled"]["digest"].as_str().unwrap().to_owned();
        assert_whole(&layout, &digest);
        digest
    };
    // Then the first part reads the layers only for their ztocs.
    assert_eq!(enabled("fine", &["--kind=fine"]), enabled("none", &[]));
    assert_eq!(enabled("both", &["--kind=v1,fine"]), enabled("bare", &[]));
}

/// A fine index refers to layers by SHA-256.
#[test]
fn a_layer_by_another_digest_is_left_out_for_that_reason() {
    let dir = tempfile::tempdir().unwrap();
    let maker = Maker::new(dir.path());
    let layer = gzip(&maker::tar(1));
    let layers = [maker.blob_by(Algorithm::Sha512, GZIP, &layer), maker.layer(2)];
    maker.root(maker.manifest(&maker.linux("amd64"), &layers));
    let [from, to] = ["", "/out"].map(|folder| format!("oci:{}{folder}", dir.path().display()));
    let output = command(&["--kind=fine", &from, &to]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let layers = report["manifests"][0]["layers"].as_array().unwrap();
    let reasons: Vec<&Value> = layers.iter().map(|layer| &layer["reason"]["code"]).collect();
    assert_eq!(reasons, ["not-sha256"], "{report}");
}

#[test]
fn an_index_is_attached_even_if_the_soci_enabled_image_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("l");
    let root = image(&layout);
    let named = format!("oci:{}:v1", layout.display());
    // The tag is the image's own, which the template alone does not show.
    let (report, said) =
        index(1, &["--kind=v1,v2=v1", &format!("oci:{}@{root}", layout.display())]);
    assert!(said.contains("own tag"), "{said}");
    assert_eq!(report["images"][0]["status"], "failed");
    let (report, said) = index(1, &["--kind=v1,v2={tag}", &named]);
    assert!(
        said.contains("v1 is the image's own tag")
            && said.contains("hint: use another tag in --kind v2=TAG"),
        "{said}"
    );
    assert_eq!(report["images"][0]["manifests"], Value::Array(Vec::new()));

    // Configs are deleted after the index was attached: the index stays, and the image is too
    // incomplete to be converted.
    let out = dir.path().join("out");
    made(&["--output", &format!("oci:{}", out.display()), &named]);
    let lost = layout.join("blobs/sha256");
    let config = std::fs::read_dir(&lost).unwrap().map(|entry| entry.unwrap().path());
    let config = config
        .filter(|path| std::fs::read(path).is_ok_and(|b| b.starts_with(b"{\"architecture\"")))
        .collect::<Vec<_>>();
    assert!(!config.is_empty());
    config.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let (report, said) = index(
        1,
        &["--kind=v1,v2={tag}-soci", "--output", &format!("oci:{}", out.display()), &named],
    );
    let image = &report["images"][0];
    assert_eq!(
        (&image["status"], &image["manifests"][0]["status"]),
        (&"failed".into(), &"already-there".into()),
        "{said}"
    );
    assert!(image["error"]["message"].as_str().unwrap().contains("cannot"), "{image}");
    assert_eq!(image["enabled"], Value::Null);
}

#[test]
fn impossible_requests_are_refused() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let (_, said) = index(1, &["--kind=v1,v2={tag}-soci", &format!("127.0.0.1:1/app@{digest}")]);
    assert!(
        said.contains("named by its digest only")
            && said.contains("use {digest} (its first 12 digits) instead of {tag}"),
        "{said}"
    );
    for (args, want) in [
        (&["--kind=v1,v2=soci", "a:1", "a:2"][..], "must be different for each image"),
        (&["--kind=v1,v2={tag}", "a:1", "a:2"], "{tag} is the image's own tag"),
        (&["--kind=v1,v2=a b", "a:1"], "does not make a valid tag"),
        (&["--kind=v1,v2={tag}-soci", "--kind=v2={tag}-soci", "a:1"], "--kind takes one v2=TAG"),
        (&["--kind=v2={tag}-soci", "--timeout=1m", "a:1"], "--timeout needs v1 in --kind"),
    ] {
        let (_, said) = index(2, args);
        assert!(said.contains(want), "{args:?}: {said}");
    }
}

#[test]
fn both_versions_are_written_to_a_registry() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let Some(regctl) = tool("regctl") else { return };
    let dir = tempfile::tempdir().unwrap();
    image(&dir.path().join("l"));
    let source = format!("{}/team/app:v1", server.host);
    let host = format!("reg={},tls=disabled", server.host);
    run(
        &regctl,
        &[
            "--host",
            &host,
            "image",
            "copy",
            &format!("ocidir://{}:v1", dir.path().join("l").display()),
            &source,
        ],
    );
    let both = made(&["--kind=v1,v2=soci-{tag}", &source]);
    assert_eq!(
        (&both["enabled"]["status"], &both["manifests"][0]["status"]),
        (&"written".into(), &"attached".into())
    );
    let enabled = both["enabled"]["name"].as_str().unwrap();
    assert_eq!(enabled, format!("{}/team/app:soci-v1", server.host));
    for image in [enabled, &source] {
        let output =
            Command::new(program()).args(["verify", "--platform=linux/amd64", image]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{image}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let now = run(&regctl, &["--host", &host, "manifest", "head", &source]);
    assert_eq!(now.trim(), both["digest"].as_str().unwrap(), "the image keeps its tag");
}
