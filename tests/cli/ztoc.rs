//! `ociseek ztoc create` and `ociseek ztoc show`.

use std::io::Write;
use std::process::Stdio;

use insta::assert_snapshot;
use ociseek_testkit::sandbox::{Sandbox, gzip, tar};
use serde_json::Value;

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
fn a_ztoc_is_created_and_shown() {
    let sandbox = layers();
    assert_snapshot!(sandbox.run(&create(&["layer.tgz", "--output", "z"])), @r#"
    sha256:ec02345f2f20177470e69d057b23b91907f7307a1917e5aae879dd0fae35d3c9
    42.0 KiB compressed, 42.0 KiB plain, 2 spans, 2 files, ztoc 64.7 KiB, in …
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ztoc", "show", "z"]), @r#"
    ztoc sha256:ec02345f2f20177470e69d057b23b91907f7307a1917e5aae879dd0fae35d3c9
    size               66208 bytes
    version            0.9
    made by            test
    compression        gzip
    compressed size    43056 bytes (42.0 KiB)
    uncompressed size  43008 bytes (42.0 KiB)
    span size          16384 bytes (16.0 KiB)

    2 spans
                    bytes of the blob           bytes of the tar bits  digest, window digest
         0                  10..24025                   0..24000    0  sha256:effb65a65761b8146ec381a5e3cb6798ad03e6268958cd5b571d9dcc19350f3b
                                                                       sha256:c35020473aed1b4642cd726cad727b63fff2824ad68cedd7ffb73c7cbd890479
         1               24025..43056               24000..43008    0  sha256:75d7d6e006b61bb412e03f66a6b018a36383fdf7451f6df0dd404d87e46b70d3
                                                                       sha256:3ae8eb6030d50b34ae54d26be0436a907ef7bc0bebbe82e85474c050151a5484

    2 entries
    reg      000644 0 0        20000 @512          2023-11-14T22:13:20Z dir1/file0
    reg      000644 0 0        20000 @21504        2023-11-14T22:13:20Z dir1/file1
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&create(&["layer.tar", "--output", "p"])), @r#"
    sha256:1d72d343f0d383d9ca91375ebefd29a6ce998c06d30aa4f518515245950fa956
    42.0 KiB compressed, 42.0 KiB plain, 3 spans, 2 files, ztoc 760 B, in …
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ztoc", "show", "p", "--format", "json"]), @r#"
    {
      "schema_version": 1,
      "tool": "ociseek vX",
      "digest": "sha256:1d72d343f0d383d9ca91375ebefd29a6ce998c06d30aa4f518515245950fa956",
      "size": 760,
      "version": "0.9",
      "build_tool_identifier": "test",
      "compression": "uncompressed",
      "compressed_size": 43008,
      "uncompressed_size": 43008,
      "span_size": 16384,
      "spans": [
        {
          "span": 0,
          "start": 0,
          "end": 16384,
          "uncompressed_start": 0,
          "uncompressed_end": 16384,
          "digest": "sha256:e1af165ef2aa9c178117e7bcb2adbbddf934bac4a30ba0d4bfcf645d859f935c",
          "bits": null,
          "window": null
        },
        {
          "span": 1,
          "start": 16384,
          "end": 32768,
          "uncompressed_start": 16384,
          "uncompressed_end": 32768,
          "digest": "sha256:be1620adaf508e2519f9e6ee87afc33fb9b71bca8b0c0bb74fdb9d909d31c3fa",
          "bits": null,
          "window": null
        },
        {
          "span": 2,
          "start": 32768,
          "end": 43008,
          "uncompressed_start": 32768,
          "uncompressed_end": 43008,
          "digest": "sha256:ed351fdffdbad2f81e2da83800c9a279291a3b47b1c783444aa55f08988aab69",
          "bits": null,
          "window": null
        }
      ],
      "entries": [
        {
          "name": "dir1/file0",
          "type": "reg",
          "offset": 512,
          "size": 20000,
          "linkname": "",
          "mode": 420,
          "uid": 0,
          "gid": 0,
          "uname": "",
          "gname": "",
          "mtime": "2023-11-14T22:13:20Z",
          "devmajor": 0,
          "devminor": 0,
          "pax_records": []
        },
        {
          "name": "dir1/file1",
          "type": "reg",
          "offset": 21504,
          "size": 20000,
          "linkname": "",
          "mode": 420,
          "uid": 0,
          "gid": 0,
          "uname": "",
          "gname": "",
          "mtime": "2023-11-14T22:13:20Z",
          "devmajor": 0,
          "devminor": 0,
          "pax_records": []
        }
      ]
    }
    --- stderr ---
    --- status 0 ---
    "#);
}

#[test]
fn standard_input_and_output_give_the_same_bytes() {
    let sandbox = layers();
    let status = sandbox.command(&create(&["layer.tgz", "-o", "z"])).output().unwrap().status;
    assert!(status.success());
    let mut child = sandbox.command(&create(&["-", "--output", "-"]));
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&std::fs::read(sandbox.path("layer.tgz")).unwrap())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, std::fs::read(sandbox.path("z")).unwrap());
}

#[test]
fn refused_layers_leave_no_file() {
    let sandbox = layers();
    assert_snapshot!(sandbox.run(&create(&["cut.tgz", "--output", "z"])), @r#"
    --- stderr ---
    error: cut.tgz: the layer is broken: the gzip data is truncated at byte 21528, inside the compressed data of member 1
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&create(&["trailing.tgz", "--output", "z"])), @r#"
    --- stderr ---
    error: trailing.tgz: no ztoc written: no consumer could serve files from this layer: non-gzip bytes follow its last member, from byte 43056
    hint: ociseek index leaves out such layers and indexes the others
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&create(&["layer.html", "--output", "z"])), @r#"
    --- stderr ---
    error: layer.html: the layer is broken: not a layer: it looks like an HTML or XML page: the tar is truncated inside a header block at byte 0 of the tar
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&create(&["missing", "--output", "z"])), @r#"
    --- stderr ---
    error: missing: cannot read: No such file or directory (os error 2)
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&create(&["layer.tgz", "--output", "no/such/dir"])), @r#"
    --- stderr ---
    error: no/such/dir: cannot write: No such file or directory (os error 2)
    hint: create its directory first: mkdir -p no/such
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&["ztoc", "show", "layer.tar"]), @r#"
    --- stderr ---
    error: layer.tar: not a usable ztoc: not a ztoc, or a damaged one: an offset at byte 0 points outside the buffer
    --- status 1 ---
    "#);
    // The old file is unchanged, and no temporary file remains.
    std::fs::write(sandbox.path("z"), "old").unwrap();
    sandbox.run(&create(&["cut.tgz", "--force", "--output", "z"]));
    assert_eq!(std::fs::read(sandbox.path("z")).unwrap(), b"old");
    assert_snapshot!(sandbox.run(&create(&["layer.tgz", "--output", "z"])), @r#"
    --- stderr ---
    error: z already exists
    hint: use --force to replace it
    --- status 1 ---
    "#);
    assert_eq!(std::fs::read(sandbox.path("z")).unwrap(), b"old");
    assert!(
        sandbox
            .run(&create(&["layer.tgz", "--force", "--output", "z"]))
            .ends_with("--- status 0 ---")
    );
    assert_ne!(std::fs::read(sandbox.path("z")).unwrap(), b"old");
    assert_eq!(sandbox.files("").len(), 6);
}

#[test]
fn a_device_is_written_to_and_not_replaced() {
    let sandbox = layers();
    let status =
        sandbox.command(&create(&["layer.tgz", "--output", "/dev/null"])).output().unwrap().status;
    assert!(status.success());
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn names_that_are_not_utf8_are_escaped_unambiguously() {
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
fn a_closed_pipe_is_not_an_error() {
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
