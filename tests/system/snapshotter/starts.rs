//! The snapshotter records the start of an image, and an index is made from the record.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{Ground, Node, index, push};
use ociseek_testkit::mounts::wait_until;
use ociseek_testkit::sandbox::program;
use ociseek_testkit::servers::run;

/// Whether the image's fine index has a recorded start.
fn has_recorded_start(image: &str) -> bool {
    run(Path::new(program()), &["doctor", image]).contains(", with its recorded startup")
}

#[test]
fn an_index_is_made_from_a_start_that_containerd_recorded() {
    let Some(Ground { programs, layers, crane, registry }) = Ground::new() else { return };
    let image = push(&crane, &registry.host, "app", &[&layers.join("debian-rootfs.go.tar.gz")]);
    index(&image);
    assert!(!has_recorded_start(&image));

    let mut node = Node::new(programs, &image);
    node.config = "record-starts = \"1h\"\n".to_owned();
    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();
    let start = || {
        node.pull(&image, "ociseek");
        assert_eq!(
            node.shell(&image, "cat /etc/debian_version >/dev/null && echo READY"),
            "READY\n"
        );
    };
    let remove = || {
        node.remove(&image);
        wait_until("nothing is mounted", || node.lazy_mounts().is_empty());
    };
    start();
    assert_eq!(node.inspected("images").1["images"][0]["start"], Value::Null);
    // The start ends with the mount, at the latest. The record stays.
    remove();
    assert_eq!(node.in_dir("lazy/starts"), 1);
    start();
    let (_, found) = node.inspected("images");
    let record = found["images"][0]["start"].as_str().unwrap();
    let text = fs::read_to_string(record).unwrap();
    assert!(text.contains("etc/debian_version") && text.contains("bin/cat\""), "{text}");
    assert!(!text.contains("etc/issue"), "{text}");
    let output = Command::new(program())
        .args(["snapshotter", "images", "--config", &node.at("snapshotter.toml")])
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.contains(&format!("ociseek index --kind fine --profile {record} IMAGE\n")),
        "{shown}"
    );
    // A shorter start does not replace it, and a server that replaces another records nothing.
    node.restart(&mut serving);
    remove();
    assert_eq!(fs::read_to_string(record).unwrap(), text);

    let record = record.to_owned();
    let again = [
        "index",
        "--kind",
        "fine",
        "--min-layer-size=0",
        "--quiet",
        "--no-cache",
        "--profile",
        &record,
        &image,
    ];
    run(Path::new(program()), &again);
    assert!(has_recorded_start(&image));
    // Now there is nothing to learn. The snapshotter still knows the image without the new index.
    fs::remove_file(&record).unwrap();
    serving.kill();
    drop(serving);
    let mut serving = node.snapshotter();
    start();
    remove();
    assert_eq!(node.in_dir("lazy/starts"), 0);
    serving.kill();
    containerd.kill();
}
