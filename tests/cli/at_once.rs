//! Commands that change one image layout, at the same time. Whatever their order, nothing is lost,
//! and a further run leaves everything consistent.

use std::process::Stdio;

use serde_json::Value;

use ociseek_testkit::sandbox::{Sandbox, small_image};

/// How many times all of them run.
const ROUNDS: usize = 3;
const SMALL: [&str; 4] = ["--span-size=16KiB", "--min-layer-size=1KiB", "--no-cache", "--jobs=2"];
/// They convert an image of another layout to this one, index both images, convert one, and remove
/// its indexes.
const COMMANDS: [&[&str]; 9] = [
    &["convert", "oci:other:v1", "oci:img:other"],
    &["index", "oci:other:v1", "--output=oci:img"],
    &["index", "oci:img:v1"],
    &["index", "--kind=v1,fine", "oci:img:v1"],
    &["index", "--existing=replace", "oci:img:v1"],
    &["index", "--kind=v1,v2={tag}-soci", "oci:img:v1"],
    &["convert", "oci:img:v1", "oci:img:converted"],
    &["convert", "oci:img:v1", "oci:out:converted"],
    &["rm", "oci:img:v1"],
];

/// The names in index.json, sorted.
fn names(sandbox: &Sandbox, layout: &str) -> Vec<String> {
    let index = std::fs::read(sandbox.path(layout).join("index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let name = |entry: &Value| {
        let name = entry["annotations"]["org.opencontainers.image.ref.name"].as_str();
        name.map(str::to_owned)
    };
    let mut names: Vec<String> =
        index["manifests"].as_array().unwrap().iter().filter_map(name).collect();
    names.sort();
    names
}

#[test]
fn concurrent_commands_on_a_layout_lose_nothing() {
    let sandbox = Sandbox::with_two_platforms();
    small_image(&sandbox.path("other"));
    for _ in 0..ROUNDS {
        let children = COMMANDS.map(|args| {
            let small: &[&str] = if matches!(args[0], "index" | "convert") { &SMALL } else { &[] };
            let mut command = sandbox.command(&[args, small].concat());
            (
                args,
                command
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap(),
            )
        });
        for (args, child) in children {
            let output = child.wait_with_output().unwrap();
            assert!(
                output.status.success(),
                "{args:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        assert_eq!(names(&sandbox, "img"), ["converted", "other", "v1", "v1-soci"]);
        assert_eq!(names(&sandbox, "out"), ["converted"]);
        for image in [
            "oci:img:v1",
            "oci:img:v1-soci",
            "oci:img:other",
            "oci:img:converted",
            "oci:out:converted",
        ] {
            let said = sandbox.run(&["verify", image]);
            // `rm` may have been the last. (The configs list no layers, which `verify` says.)
            let is_removed = said.contains("has neither a SOCI index nor a fine index to verify");
            assert!(is_removed || !said.contains("error: "), "{image}: {said}");
            assert!(!said.contains("wrong"), "{image}: {said}");
        }
    }
    let args = ["index", "--kind=v1,fine", "--format=json", "oci:img:v1"];
    let report = sandbox.json(0, &[&args[..], &SMALL].concat());
    let inspected = sandbox.doctor("oci:img:v1");
    let made = &report["images"][0]["manifests"];
    let there = &inspected["manifests"];
    for platform in 0..2 {
        let made = &made[platform];
        let there = &there[platform];
        for (made, there) in
            [(&made["index"], &there["indexes"]), (&made["fine"]["index"], &there["fine"])]
        {
            let there: Vec<&Value> =
                there.as_array().unwrap().iter().map(|index| &index["digest"]).collect();
            assert_eq!(there, [&made["digest"]], "one index of each kind");
        }
    }
}
