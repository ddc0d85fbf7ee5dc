//! `ociseek ztoc create` and `ociseek ztoc show`.

#[path = "cli/support.rs"]
mod support;

use std::io::Write;
use std::process::Stdio;

use insta::assert_snapshot;
use serde_json::Value;
use support::{Sandbox, gzip, tar};

fn layers() -> Sandbox {
    let sandbox = Sandbox::new();
    let gz = gzip(&tar(1, 2, 20_000));
    std::fs::write(sandbox.path("layer.tgz"), &gz).unwrap();
    std::fs::write(sandbox.path("cut.tgz"), &gz[..gz.len() / 2]).unwrap();
    std::fs::write(sandbox.path("trailing.tgz"), [&gz[..], b"x"].concat()).unwrap();
    std::fs::write(sandbox.path("layer.tar"), tar(1, 2, 20_000)).unwrap();
    std::fs::write(sandbox.path("layer.html"), "<!DOCTYPE html><html></html>").unwrap();
    sandbox
}

fn create<'a>(args: &[&'a str]) -> Vec<&'a str> {
    ["ztoc", "create", "--build-tool-identifier=test", "--span-size=16KiB"]
        .into_iter()
        .chain(args.iter().copied())
        .collect()
}

#[test]
fn creates_and_shows() {
    let sandbox = layers();
    assert_snapshot!(sandbox.run(&create(&["layer.tgz", "--output", "z"])), @"");
    assert_snapshot!(sandbox.run(&["ztoc", "show", "z"]), @"");
    assert_snapshot!(sandbox.run(&create(&["layer.tar", "--output", "p"])), @"");
    assert_snapshot!(sandbox.run(&["ztoc", "show", "p", "--format", "json"]), @"");
}

#[test]
fn standard_input_and_output_give_the_same_bytes() {
    let sandbox = layers();
    let status = sandbox.command(&create(&["layer.tgz", "-o", "z"])).output().unwrap().status;
    assert!(status.success());
    let mut child = sandbox.command(&create(&["-", "--output", "-"]));
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&std::fs::read(sandbox.path("layer.tgz")).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, std::fs::read(sandbox.path("z")).unwrap());
}

#[test]
fn what_is_refused_is_not_written() {
    let sandbox = layers();
    assert_snapshot!(sandbox.run(&create(&["cut.tgz", "--output", "z"])), @"");
    assert_snapshot!(sandbox.run(&create(&["trailing.tgz", "--output", "z"])), @"");
    assert_snapshot!(sandbox.run(&create(&["layer.html", "--output", "z"])), @"");
    assert_snapshot!(sandbox.run(&create(&["missing", "--output", "z"])), @"");
    assert_snapshot!(sandbox.run(&create(&["layer.tgz", "--output", "no/such/dir"])), @"");
    assert_snapshot!(sandbox.run(&["ztoc", "show", "layer.tar"]), @"");
    // An old file stays as it was, and no temporary file is left.
    std::fs::write(sandbox.path("z"), "old").unwrap();
    sandbox.run(&create(&["cut.tgz", "--output", "z"]));
    assert_eq!(std::fs::read(sandbox.path("z")).unwrap(), b"old");
    assert_eq!(sandbox.files("").len(), 6);
}

#[test]
fn a_device_is_written_not_replaced() {
    let sandbox = layers();
    let status = sandbox.command(&create(&["layer.tgz", "--output", "/dev/null"])).output().unwrap().status;
    assert!(status.success());
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn names_that_are_not_utf8_stay_recoverable() {
    let sandbox = Sandbox::new();
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.as_old_mut().name[..6].copy_from_slice(b"a\xff\\b\x1bc");
    header.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header, &b""[..]).unwrap();
    std::fs::write(sandbox.path("odd.tar"), builder.into_inner().unwrap()).unwrap();
    sandbox.run(&create(&["odd.tar", "--output", "z"]));
    let json: Value = sandbox.json(0, &["ztoc", "show", "z", "--format=json"]);
    assert_eq!(json["entries"][0]["name_b64"], "Yf9cYhtj");
    assert_eq!(json["entries"][0]["name"], Value::Null);
    assert!(sandbox.run(&["ztoc", "show", "z"]).contains(r"a\xff\\b\x1bc"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("many.tar"), tar(1, 5000, 1)).unwrap();
    sandbox.run(&create(&["many.tar", "--output", "z"]));
    for format in ["text", "json"] {
        let mut child = sandbox.command(&["ztoc", "show", "z", "--format", format]);
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}
