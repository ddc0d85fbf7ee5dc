//! The JSON documents: each matches `docs/schema`, and the same facts have the same form in all of
//! them. [`Sandbox::json`] checks the first in every test that reads a document.

use serde_json::{Value, json};

use ociseek_testkit::mounts;
use ociseek_testkit::sandbox::{Sandbox, index, tar};
use ociseek_testkit::schema::check;

#[test]
fn undocumented_fields_are_detected() {
    let version = serde_json::json!({
        "schema_version": 1, "tool": "ociseek v1.0.0", "version": "1.0.0", "commit": null, "target": "x",
        "features": ["nats"], "build_tool_identifier": "x", "ztoc_version": "0.9", "soci_version": "v0.15.0",
    });
    check(&["version"], &version);
    let changes: [(&str, Value); 4] = [
        ("commit", 1.into()),
        ("features", Value::Null),
        ("schema_version", (-1).into()),
        ("new", Value::Null),
    ];
    for (field, wrong) in changes {
        let mut changed = version.clone();
        changed[field] = wrong;
        assert!(std::panic::catch_unwind(|| check(&["version"], &changed)).is_err(), "{field}");
    }
}

/// An indexed image in a layout.
fn indexed() -> Sandbox {
    let sandbox = Sandbox::with_small_image();
    sandbox.json(0, &index(&["--format=json", "oci:img:v1"]));
    sandbox
}

#[test]
fn manifests_have_the_same_form_in_all_documents() {
    let sandbox = Sandbox::new();
    mounts::image(&sandbox, "img", &[tar(1, 4, 50_000), tar(2, 2, 30_000)], &json!({}));
    let inspected = sandbox.doctor("oci:img:v1");
    let manifest = &inspected["manifests"][0]["manifest"];
    assert!(
        manifest["digest"].is_string()
            && manifest["size"].is_u64()
            && manifest["media_type"].is_string()
    );
    let again = sandbox.json(
        0,
        &["index", "--min-layer-size=0", "--span-size=64KiB", "--no-cache", "--json", "oci:img:v1"],
    );
    assert_eq!(&again["images"][0]["manifests"][0]["manifest"], manifest);
    let doctor = sandbox.json(0, &["doctor", "--json", "oci:img:v1"]);
    assert_eq!(&doctor["manifests"][0]["manifest"], manifest);
    assert_eq!(
        &sandbox.json(0, &["verify", "--json", "oci:img:v1"])["manifests"][0]["manifest"],
        manifest
    );
    let listed = sandbox.json(0, &["ls", "--json", "oci:img:v1"]);
    assert_eq!(&listed["manifest"], manifest);
    // Only the digest is known here.
    let digest_alone = json!({"media_type": null, "digest": manifest["digest"], "size": null});
    for args in [&["list", "--json", "oci:img"][..], &["rm", "--json", "--dry-run", "oci:img:v1"]] {
        let document = sandbox.json(0, args);
        let manifests = document.pointer("/images/0/manifests").unwrap_or(&document["manifests"]);
        assert_eq!(manifests[0]["manifest"], digest_alone, "{args:?}");
    }
    let index = &inspected["manifests"][0]["indexes"][0];
    let index = json!({"digest": index["digest"], "size": index["size"]});
    assert!(index["size"].is_u64(), "{index}");
    assert_eq!(listed["index"], index);
    let lazy = doctor["manifests"][0]["consumers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["lazy"] == true)
        .unwrap();
    assert_eq!(lazy["index"], index);
    let coverage = &again["images"][0]["manifests"][0]["coverage"];
    assert_eq!(&lazy["coverage"], coverage);
    assert_eq!(inspected["manifests"][0]["coverage"]["percent"], coverage["percent"]);
}

#[test]
fn layers_are_listed_for_images_that_are_up_to_date() {
    let sandbox = indexed();
    let layers = |args: &[&str]| {
        let document = sandbox.json(0, &index(args));
        let manifest = &document["images"][0]["manifests"][0];
        let shown = |layer: &Value| {
            (
                layer["status"].clone(),
                layer["ztoc"]["digest"].clone(),
                layer["reason"]["code"].clone(),
            )
        };
        let layers: Vec<_> = manifest["layers"].as_array().unwrap().iter().map(shown).collect();
        (manifest["status"].as_str().unwrap().to_owned(), layers)
    };
    let (status, there) = layers(&["--json", "oci:img:v1"]);
    assert_eq!((&*status, there.len()), ("already-there", 4));
    let (status, built) = layers(&["--json", "--existing=replace", "--dry-run", "oci:img:v1"]);
    assert_eq!(status, "already-there");
    assert_eq!(there, built);
    let (status, kept) = layers(&["--json", "--existing=keep", "oci:img:v1"]);
    assert_eq!((&*status, kept), ("kept", there));
}

#[test]
fn every_command_reports_errors_as_json() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let commands: [&[&str]; 10] = [
        &["doctor", "--json", "oci:nothing"],
        &["ls", "--json", "oci:nothing"],
        &["verify", "--json", "oci:nothing"],
        &["doctor", "--json", "oci:nothing"],
        &["list", "--json", "oci:nothing"],
        &["rm", "--json", "oci:nothing"],
        &["convert", "--json", "oci:nothing:v1", "oci:there:v1"],
        &["ztoc", "show", "--json", "nothing"],
        &["mount", "--json", "oci:nothing", "mnt"],
        &["mount", "--json", "--detach", "oci:nothing", "mnt"],
    ];
    for args in commands {
        let document = sandbox.json(1, args);
        let error = &document["error"];
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains("nothing")),
            "{args:?}: {document}"
        );
        assert_eq!(error["causes"].as_array().map(Vec::is_empty), Some(false));
        // The same text for people goes to standard error, and without --json nothing goes to
        // standard output.
        let text: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--json").collect();
        let output = sandbox.command(&text).output().unwrap();
        assert!(output.stdout.is_empty() || args[0] == "list", "{text:?}");
        assert!(String::from_utf8(output.stderr).unwrap().starts_with("error: "), "{text:?}");
    }
    // A command that fails before its first write leaves no new layout.
    assert!(!sandbox.path("there").exists());
    let output = sandbox
        .command(&["backfill", "--json", "--state=/nowhere/state", "localhost:1"])
        .output()
        .unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    check(&["backfill"], &serde_json::from_str(&line).unwrap());
}
