//! What is there already: indexes, our own and those of other tools, and the cache.

use std::process::Stdio;

use super::referrers;
use ociseek_testkit::sandbox::{GZIP, Layout, Sandbox, gzip, index, tar};
use serde_json::Value;

#[test]
fn a_second_run_reads_and_writes_nothing() {
    let sandbox = Sandbox::with_small_image();
    let first = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    let before = sandbox.files("img");
    let second = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    assert_eq!(second["images"][0]["manifests"][0]["status"], "already-there");
    assert_eq!(second["bytes_read"], 0);
    assert_eq!(
        second["images"][0]["manifests"][0]["index"],
        first["images"][0]["manifests"][0]["index"]
    );
    assert!(before == sandbox.files("img"), "the second run changed the layout");
}

#[test]
fn the_image_is_never_changed() {
    let sandbox = Sandbox::with_two_platforms();
    let before = sandbox.files("img");
    sandbox.json(0, &index(&["--format=json", "oci:img"]));
    let after = sandbox.files("img");
    let changed: Vec<_> =
        before.iter().filter(|file| !after.contains(file)).map(|(path, _)| path).collect();
    assert_eq!(changed, [&sandbox.path("img/index.json")]);
}

#[test]
fn existing_indexes_are_skipped_kept_or_replaced() {
    let sandbox = Sandbox::with_small_image();
    let run = |args: &[&str]| {
        let args: Vec<&str> = ["index", "--format=json", "--no-cache", "--min-layer-size=1KiB"]
            .iter()
            .chain(args)
            .copied()
            .collect();
        let report = sandbox.json(0, &[&args[..], &["oci:img"]].concat());
        report["images"][0]["manifests"][0].clone()
    };
    let soci = run(&["--build-tool-identifier=AWS SOCI CLI v0.2"]);
    assert_eq!(soci["status"], "attached");
    // Any index is enough.
    let kept = run(&["--existing=keep"]);
    assert_eq!(kept["status"], "kept");
    assert!(kept["index"]["size"].is_u64() && kept["index"] == soci["index"], "{kept}");
    // Ours goes beside another tool's, which is said.
    let ours = run(&[]);
    assert_eq!(ours["status"], "attached");
    assert_eq!(ours["others"][0]["tool"], "AWS SOCI CLI v0.2");
    assert_eq!(ours["others"][0]["listed_first"], true);
    let again = run(&[]);
    assert_eq!((&again["status"], &again["index"]), (&"already-there".into(), &ours["index"]));
    // Ours of other options gives way; the other tool's stays.
    let smaller = run(&["--span-size=16KiB"]);
    assert_eq!(smaller["replaced"], Value::from(vec![ours["index"]["digest"].clone()]));
    assert_eq!(referrers(&sandbox, "img").len(), 2);
    // Unless all should be replaced.
    let replaced = run(&["--existing=replace"]);
    assert_eq!(replaced["replaced"].as_array().unwrap().len(), 2);
    assert_eq!(referrers(&sandbox, "img").len(), 1);
    assert_eq!(run(&["--existing=replace"])["status"], "already-there");
}

/// An existing index with another span size: its ztoc is a guide to the layer, right or wrong, and
/// does not affect the result.
#[test]
fn an_index_with_other_options_does_not_change_the_result() {
    let sandbox = Sandbox::new();
    let layer = gzip(&tar(5, 3, 16 << 20));
    assert!(layer.len() > 32 << 20, "too small for a guide");
    for name in ["img", "fresh"] {
        let mut layout = Layout::new(&sandbox.path(name));
        let layers = [layout.blob(GZIP, &layer)];
        let image = layout.image("amd64", &layers);
        layout.tag(image, "v1");
    }
    let run = |span_size: &str, image: &str| {
        let report = sandbox
            .json(0, &["index", "--format=json", "--no-cache", "--span-size", span_size, image]);
        report["images"][0]["manifests"][0]["index"]["digest"].clone()
    };
    let first = run("4MiB", "oci:img");
    let fresh = run("1MiB", "oci:fresh");
    assert_ne!(first, fresh);
    assert_eq!(run("1MiB", "oci:img"), fresh);
    // The ztoc of the new index is no longer available.
    let index = sandbox.path("fresh/blobs").join(fresh.as_str().unwrap().replace(':', "/"));
    let index: Value = serde_json::from_slice(&std::fs::read(index).unwrap()).unwrap();
    let ztoc = index["layers"][0]["digest"].as_str().unwrap().replace(':', "/");
    std::fs::write(sandbox.path("img/blobs").join(ztoc), b"gone").unwrap();
    assert_eq!(run("4MiB", "oci:img"), first);
}

#[test]
fn a_dry_run_writes_nothing() {
    let sandbox = Sandbox::with_small_image();
    let before = sandbox.files("");
    let args = [
        "index",
        "--format=json",
        "--min-layer-size=0",
        "--dry-run",
        "--cache-dir=cache",
        "oci:img",
    ];
    let dry = sandbox.json(0, &args);
    assert_eq!(dry["images"][0]["manifests"][0]["status"], "dry-run");
    sandbox.json(0, &[&args[..], &["--output=oci:out"]].concat());
    let cached: Vec<_> =
        sandbox.files("cache").into_iter().filter(|(_, content)| !content.is_empty()).collect();
    assert!(cached.is_empty(), "{cached:?}");
    assert!(!sandbox.path("out").exists());
    let after: Vec<_> = sandbox
        .files("")
        .into_iter()
        .filter(|(p, _)| !p.starts_with(sandbox.path("cache")))
        .collect();
    assert!(before == after);
    // The actual result must equal the predicted one.
    let real =
        sandbox.json(0, &args.iter().copied().filter(|a| *a != "--dry-run").collect::<Vec<_>>());
    assert_eq!(
        real["images"][0]["manifests"][0]["index"],
        dry["images"][0]["manifests"][0]["index"]
    );
}

#[test]
fn cached_layers_are_not_read_again() {
    let sandbox = Sandbox::with_small_image();
    let args = [
        "index",
        "--format=json",
        "--min-layer-size=0",
        "--cache-dir=cache",
        "oci:img",
        "--existing=replace",
    ];
    let first = sandbox.json(0, &[&args[..], &["--output=oci:a"]].concat());
    let second = sandbox.json(0, &[&args[..], &["--output=oci:b"]].concat());
    assert_ne!(first["bytes_read"], 0);
    assert_eq!(second["bytes_read"], 0);
    assert_eq!(second["images"][0]["manifests"][0]["layers"][0]["origin"], "cache");
    assert_eq!(
        second["images"][0]["manifests"][0]["index"],
        first["images"][0]["manifests"][0]["index"]
    );
    // Without a usable cache directory, the work is done without a cache.
    std::fs::write(sandbox.path("file"), "").unwrap();
    let text = sandbox.run(&["index", "-q", "--cache-dir=file/x", "--min-layer-size=0", "oci:img"]);
    assert!(text.ends_with("--- status 0 ---"), "{text}");
}

#[test]
fn an_index_by_another_tool_stays_if_ours_would_be_empty() {
    let sandbox = Sandbox::with_small_image();
    sandbox.run(&index(&["oci:img"]));
    let said = sandbox.run(&["index", "--no-cache", "--existing=replace", "oci:img"]);
    assert!(said.contains(" by \"test\" exists and was left unchanged\n"), "{said}");
    assert!(said.contains("no index:") && !said.contains("--existing replace"), "{said}");
}

#[test]
fn concurrent_runs_leave_one_index() {
    let sandbox = Sandbox::with_small_image();
    let args = ["index", "-q", "--min-layer-size=0", "--cache-dir=cache", "oci:img"];
    let children: Vec<_> = (0..8)
        .map(|_| {
            sandbox.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let outputs: Vec<_> =
        children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    for output in &outputs {
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, outputs[0].stdout);
    }
    assert_eq!(referrers(&sandbox, "img").len(), 1);
}
