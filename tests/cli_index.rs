//! `ociseek index` on layouts and archives.

#[path = "cli/support.rs"]
mod support;

use std::process::Stdio;

use insta::assert_snapshot;
use serde_json::Value;
use support::{GZIP, Layout, Sandbox, gzip, index, masked, shown, small_image, tar, two_platforms};

fn referrers(sandbox: &Sandbox, layout: &str) -> Vec<Value> {
    let index: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path(layout).join("index.json")).unwrap()).unwrap();
    let manifests = index["manifests"].as_array().unwrap().iter();
    manifests.filter(|m| m["artifactType"] == "application/vnd.amazon.soci.index.v1+json").cloned().collect()
}

#[test]
fn the_report_for_people() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    assert_snapshot!(sandbox.run(&index(&["oci:img"])), @"");
    assert_snapshot!(sandbox.run(&index(&["oci:img:v1"])), @"");
    assert_snapshot!(sandbox.run(&index(&["--quiet", "oci:img"])), @"");
    assert_eq!(referrers(&sandbox, "img").len(), 1);
}

#[test]
fn the_report_for_programs() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    assert_snapshot!(sandbox.run(&index(&["--format=json", "oci:img", "oci:missing"])), @"");
}

#[test]
fn a_layer_that_two_platforms_share_is_read_once() {
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("img"));
    assert_snapshot!(sandbox.run(&index(&["oci:img"])), @"");
    let one = sandbox.json(0, &index(&["--format=json", "--dry-run", "--platform=linux/arm64", "oci:img"]));
    assert_eq!(one["images"][0]["manifests"].as_array().unwrap().len(), 1);
    assert_eq!(one["images"][0]["manifests"][0]["platform"], "linux/arm64");
    assert_snapshot!(sandbox.run(&index(&["--platform=linux/s390x", "oci:img"])), @"");
}

#[test]
fn nothing_is_read_twice_and_the_second_run_writes_nothing() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    let first = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    let before = sandbox.files("img");
    let second = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    assert_eq!(second["images"][0]["manifests"][0]["status"], "already-there");
    assert_eq!(second["bytes_read"], 0);
    assert_eq!(second["images"][0]["manifests"][0]["index"], first["images"][0]["manifests"][0]["index"]);
    assert!(before == sandbox.files("img"), "the second run changed the layout");
}

#[test]
fn the_image_is_never_changed() {
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("img"));
    let before = sandbox.files("img");
    sandbox.json(0, &index(&["--format=json", "oci:img"]));
    let after = sandbox.files("img");
    let changed: Vec<_> = before.iter().filter(|file| !after.contains(file)).map(|(path, _)| path).collect();
    assert_eq!(changed, [&sandbox.path("img/index.json")]);
}

#[test]
fn rules_for_what_is_there() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    let run = |args: &[&str]| {
        let args: Vec<&str> =
            ["index", "--format=json", "--no-cache", "--min-layer-size=1KiB"].iter().chain(args).copied().collect();
        let report = sandbox.json(0, &[&args[..], &["oci:img"]].concat());
        report["images"][0]["manifests"][0].clone()
    };
    let soci = run(&["--build-tool-identifier=AWS SOCI CLI v0.2"]);
    assert_eq!(soci["status"], "attached");
    // Any index is enough.
    assert_eq!(run(&["--existing=keep"])["status"], "kept");
    // Ours goes beside another tool's, which is said.
    let ours = run(&[]);
    assert_eq!(ours["status"], "attached");
    assert_eq!(ours["others"][0]["tool"], "AWS SOCI CLI v0.2");
    assert_eq!(ours["others"][0]["listed_first"], true);
    assert_eq!(run(&[])["status"], "already-there");
    // Ours of other options gives way; the other tool's stays.
    let smaller = run(&["--span-size=16KiB"]);
    assert_eq!(smaller["replaced"], Value::from(vec![ours["index"]["digest"].clone()]));
    assert_eq!(referrers(&sandbox, "img").len(), 2);
    // Unless all are to go.
    let replaced = run(&["--existing=replace"]);
    assert_eq!(replaced["replaced"].as_array().unwrap().len(), 2);
    assert_eq!(referrers(&sandbox, "img").len(), 1);
    assert_eq!(run(&["--existing=replace"])["status"], "already-there");
}

#[test]
fn a_dry_run_writes_nothing() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    let before = sandbox.files("");
    let args = ["index", "--format=json", "--min-layer-size=0", "--dry-run", "--cache-dir=cache", "oci:img"];
    let dry = sandbox.json(0, &args);
    assert_eq!(dry["images"][0]["manifests"][0]["status"], "dry-run");
    sandbox.json(0, &[&args[..], &["--output=oci:out"]].concat());
    let cached: Vec<_> = sandbox.files("cache").into_iter().filter(|(_, content)| !content.is_empty()).collect();
    assert!(cached.is_empty(), "{cached:?}");
    assert!(!sandbox.path("out").exists());
    let after: Vec<_> = sandbox.files("").into_iter().filter(|(p, _)| !p.starts_with(sandbox.path("cache"))).collect();
    assert!(before == after);
    // What it promised is what comes.
    let real = sandbox.json(0, &args.iter().copied().filter(|a| *a != "--dry-run").collect::<Vec<_>>());
    assert_eq!(real["images"][0]["manifests"][0]["index"], dry["images"][0]["manifests"][0]["index"]);
}

#[test]
fn the_cache_spares_reading() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    let args = ["index", "--format=json", "--min-layer-size=0", "--cache-dir=cache", "oci:img", "--existing=replace"];
    let first = sandbox.json(0, &[&args[..], &["--output=oci:a"]].concat());
    let second = sandbox.json(0, &[&args[..], &["--output=oci:b"]].concat());
    assert_ne!(first["bytes_read"], 0);
    assert_eq!(second["bytes_read"], 0);
    assert_eq!(second["images"][0]["manifests"][0]["layers"][0]["origin"], "cache");
    assert_eq!(second["images"][0]["manifests"][0]["index"], first["images"][0]["manifests"][0]["index"]);
    // Where the cache cannot be, the work is done without it.
    std::fs::write(sandbox.path("file"), "").unwrap();
    let text = sandbox.run(&["index", "-q", "--cache-dir=file/x", "--min-layer-size=0", "oci:img"]);
    assert!(text.ends_with("--- status 0 ---"), "{text}");
}

#[test]
fn an_archive_is_indexed_into_a_layout_and_gives_the_same() {
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("img"));
    let mut archive = tar::Builder::new(std::fs::File::create(sandbox.path("img.tar")).unwrap());
    archive.append_dir_all(".", sandbox.path("img")).unwrap();
    archive.finish().unwrap();
    let from_archive = sandbox.json(0, &index(&["--format=json", "--output=oci:out", "oci-archive:img.tar:v1"]));
    let from_layout = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    for platform in 0..2 {
        let digest = |report: &Value| report["images"][0]["manifests"][platform]["index"]["digest"].clone();
        assert_eq!(digest(&from_archive), digest(&from_layout));
    }
    assert_eq!(referrers(&sandbox, "out").len(), 2);
}

#[test]
fn any_number_of_jobs_gives_the_same() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    let digests: Vec<String> =
        ["1", "2", "64"].iter().map(|n| sandbox.run(&index(&["-q", "--dry-run", "--jobs", n, "oci:img"]))).collect();
    assert!(digests.windows(2).all(|two| two[0] == two[1]), "{digests:?}");
}

#[test]
fn a_broken_layer_is_an_error_and_nothing_is_attached() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let sound = layout.blob(GZIP, &gzip(&tar(1, 2, 20_000)));
    let whole = gzip(&tar(2, 2, 20_000));
    let cut = layout.blob(GZIP, &whole[..9000]);
    let image = layout.image("amd64", &[sound, cut]);
    layout.tag(image, "v1");
    let before = sandbox.files("img");
    assert_snapshot!(sandbox.run(&index(&["oci:img"])), @"");
    assert!(before == sandbox.files("img"), "something was written");
}

#[test]
fn a_layer_that_is_not_what_its_digest_says_is_an_error() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layer = layout.blob(GZIP, &gzip(&tar(1, 2, 20_000)));
    let other = gzip(&tar(9, 2, 20_000));
    let digest = layer["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
    let image = layout.image("amd64", std::slice::from_ref(&layer));
    layout.tag(image, "v1");
    let mut same_size = other.clone();
    same_size.resize(layer["size"].as_u64().unwrap() as usize, 0);
    std::fs::write(sandbox.path("img/blobs/sha256").join(digest), same_size).unwrap();
    let text = sandbox.run(&index(&["oci:img"]));
    assert!(text.contains("layer sha256:") && text.ends_with("--- status 1 ---"), "{text}");
    assert_eq!(referrers(&sandbox, "img").len(), 0);
}

#[test]
fn without_a_layer_to_serve_there_is_nothing_to_do() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    assert_snapshot!(sandbox.run(&["index", "--no-cache", "oci:img"]), @"");
    assert_eq!(referrers(&sandbox, "img").len(), 0);
}

#[test]
fn the_others_are_done_when_one_fails() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("a"));
    two_platforms(&sandbox.path("c"));
    let text = sandbox.run(&index(&["-q", "oci:a", "oci:b", "oci:c"]));
    assert_snapshot!(text, @"");
}

#[test]
fn artifacts_are_refused_with_their_kind() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("chart"));
    let config = layout.blob("application/vnd.cncf.helm.config.v1+json", b"{}");
    let chart = layout.blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip", b"x");
    let manifest = serde_json::json!({"schemaVersion": 2, "mediaType": support::OCI_MANIFEST, "config": config, "layers": [chart]});
    let manifest = layout.blob(support::OCI_MANIFEST, manifest.to_string().as_bytes());
    layout.tag(manifest, "v1");
    assert_snapshot!(sandbox.run(&index(&["oci:chart:v1"])), @"");
}

#[test]
fn options_may_come_from_the_environment() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    let mut command = sandbox.command(&["index", "oci:img"]);
    for (name, value) in [
        ("MIN_LAYER_SIZE", "1KiB"),
        ("SPAN_SIZE", "16KiB"),
        ("BUILD_TOOL_IDENTIFIER", "test"),
        ("DRY_RUN", "1"),
        ("QUIET", "true"),
        ("NO_CACHE", "yes"),
        ("PLATFORM", "linux/amd64"),
    ] {
        command.env(format!("OCISEEK_{name}"), value);
    }
    let by_environment = shown(&mut command);
    assert_eq!(by_environment, sandbox.run(&index(&["-q", "--dry-run", "oci:img"])));
}

#[test]
fn there_is_no_colour_in_a_pipe() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    for run in [index(&["oci:img"]), index(&["oci:missing"]), vec!["index", "--help"], vec!["index"]] {
        assert!(!sandbox.run(&run).contains('\x1b'));
    }
}

#[test]
fn a_reader_that_goes_away_does_not_stop_the_work() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    let mut child =
        sandbox.command(&index(&["oci:img"])).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), masked(std::str::from_utf8(&output.stderr).unwrap())), (Some(0), String::new()));
    assert_eq!(referrers(&sandbox, "img").len(), 1);
}

#[test]
fn many_at_once_leave_one_index() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    let args = ["index", "-q", "--min-layer-size=0", "--cache-dir=cache", "oci:img"];
    let children: Vec<_> =
        (0..8).map(|_| sandbox.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()).collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    for output in &outputs {
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, outputs[0].stdout);
    }
    assert_eq!(referrers(&sandbox, "img").len(), 1);
}
