//! What `index` prints, for people and for programs.

use super::referrers;
use insta::assert_snapshot;
use ociseek_testkit::mounts::image;
use ociseek_testkit::sandbox::{Sandbox, index, tar};
use ociseek_testkit::tarball::many_files;
use serde_json::json;

#[test]
fn the_text_report() {
    let sandbox = Sandbox::with_small_image();
    assert_snapshot!(sandbox.run(&index(&["oci:img"])), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      b7ffb93ee50b   199.1 KiB  9 spans  4 files  ztoc 289.6 KiB
      d92a9332da0b    61.0 KiB  4 spans  2 files      ztoc 840 B
      ee25e607aff9        24 B  left out: zstd: SOCI consumers support only gzip and uncompressed layers
      bbd59e0ff808     2.0 KiB   1 span   1 file   ztoc 32.4 KiB
      index sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
      written as a referrer into the image's layout
      version 1: read by ociseek's own programs, and by soci-snapshotter with soci_v1 enabled or before 0.10
      covers 3 of 4 layers, 99.99% of 262.2 KiB
    read 262.2 KiB, wrote 324.4 KiB, in …
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&index(&["oci:img:v1"])), @r#"
    oci:img:v1 linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      index sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
      up to date: same options and version; not compared with the layers (ociseek verify does that)
      covers 3 of 4 layers, 99.99% of 262.2 KiB
    read 0 B, in …
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&index(&["--quiet", "oci:img"])), @r#"
    sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
    --- stderr ---
    --- status 0 ---
    "#);
    assert_eq!(referrers(&sandbox, "img").len(), 1);
}

#[test]
fn a_ztoc_that_is_a_large_part_of_its_layer_is_noted() {
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[tar(1, 1, 3_000_000)], &json!({}));
    let noted = |span_size: &str| {
        let text = sandbox.run(&[
            "index",
            "--min-layer-size=0",
            span_size,
            "--existing=replace",
            "oci:img",
        ]);
        assert!(text.ends_with("--- status 0 ---"), "{text}");
        text.contains("note: 1 ztoc is larger than a fifth of the layer")
            && text.contains("a larger --span-size")
    };
    assert!(noted("--span-size=64KiB") && !noted("--span-size=1MiB"));
    let text = sandbox.run(&[
        "convert",
        "--min-layer-size=0",
        "--span-size=64KiB",
        "oci:img",
        "oci:img:v2",
    ]);
    assert!(text.contains("note: 1 ztoc is larger"), "{text}");
}

#[test]
fn no_span_size_is_advised_for_a_long_list_of_files() {
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[many_files()], &json!({}));
    let text = sandbox.run(&["index", "--min-layer-size=0", "--existing=replace", "oci:img"]);
    assert!(text.contains("note: 1 ztoc is larger than a fifth of the layer"), "{text}");
    assert!(text.contains("but --kind fine does") && !text.contains("a larger"), "{text}");
}

#[test]
fn the_json_report() {
    let sandbox = Sandbox::with_small_image();
    assert_snapshot!(sandbox.run(&index(&["--format=json", "oci:img", "oci:missing"])), @r#"
    {
      "schema_version": 1,
      "tool": "ociseek vX",
      "images": [
        {
          "image": "oci:img",
          "status": "ok",
          "digest": "sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad",
          "manifests": [
            {
              "platform": "linux/amd64",
              "manifest": {
                "media_type": "application/vnd.oci.image.manifest.v1+json",
                "digest": "sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad",
                "size": 862
              },
              "status": "attached",
              "index": {
                "digest": "sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95",
                "size": 1624
              },
              "checked": null,
              "attached": "layout",
              "tag": null,
              "replaced": [],
              "not_deleted": [],
              "others": [],
              "coverage": {
                "layers": 3,
                "of_layers": 4,
                "bytes": 268459,
                "of_bytes": 268483,
                "percent": 99.99
              },
              "prefetch": null,
              "fine": null,
              "shortfalls": [],
              "layers": [
                {
                  "media_type": "application/vnd.oci.image.layer.v1.tar+gzip",
                  "digest": "sha256:b7ffb93ee50b7699056f7e0e804a24c1a5e41c5c179e9feda71ecfa4370f4afa",
                  "size": 203924,
                  "status": "indexed",
                  "reason": null,
                  "ztoc": {
                    "digest": "sha256:122fa77d34d71ff257c128a067ea59999dbc85ada64227fc99f5fe90c2c18e6e",
                    "size": 296560,
                    "spans": 9,
                    "entries": 4,
                    "uncompressed_size": 203776,
                    "gzip_members": 1
                  },
                  "origin": "read",
                  "seconds": …
                },
                {
                  "media_type": "application/vnd.oci.image.layer.v1.tar",
                  "digest": "sha256:d92a9332da0be33d91e9359250803208a8a2f4a909e6a6ece70571d33ce6bde2",
                  "size": 62464,
                  "status": "indexed",
                  "reason": null,
                  "ztoc": {
                    "digest": "sha256:cb4de5f71533033896ad9f3c3d283dd00a4a2eb0a4712d6345cb40dad6813f89",
                    "size": 840,
                    "spans": 4,
                    "entries": 2,
                    "uncompressed_size": 62464,
                    "gzip_members": 0
                  },
                  "origin": "read",
                  "seconds": …
                },
                {
                  "media_type": "application/vnd.oci.image.layer.v1.tar+zstd",
                  "digest": "sha256:ee25e607aff98c0624b0076c4dce5fb633362bf440fcd80f4bffed082398e119",
                  "size": 24,
                  "status": "left-out",
                  "reason": {
                    "code": "zstd",
                    "text": "zstd: SOCI consumers support only gzip and uncompressed layers"
                  },
                  "ztoc": null,
                  "origin": null,
                  "seconds": null
                },
                {
                  "media_type": "application/vnd.oci.image.layer.v1.tar+gzip",
                  "digest": "sha256:bbd59e0ff80836ca400b04a8a0a5115e76177e94f236034664c8e817c053485e",
                  "size": 2071,
                  "status": "indexed",
                  "reason": null,
                  "ztoc": {
                    "digest": "sha256:9c912a729319e21c40d1f2cd0d0bee708c3409bb2e1732bc06051c3d04583b47",
                    "size": 33192,
                    "spans": 1,
                    "entries": 1,
                    "uncompressed_size": 2048,
                    "gzip_members": 1
                  },
                  "origin": "read",
                  "seconds": …
                }
              ]
            }
          ],
          "error": null,
          "left": [],
          "bytes_read": 268459,
          "bytes_written": 332218,
          "seconds": …
        },
        {
          "image": "oci:missing",
          "status": "failed",
          "digest": null,
          "manifests": [],
          "error": {
            "message": "cannot open missing: No such file or directory (os error 2)",
            "causes": [
              "cannot open missing",
              "No such file or directory (os error 2)"
            ],
            "hint": null
          },
          "left": [],
          "bytes_read": 0,
          "bytes_written": 0,
          "seconds": …
        }
      ],
      "bytes_read": 268459,
      "bytes_written": 332218,
      "seconds": …
    }
    --- stderr ---
    error: oci:missing: cannot open missing: No such file or directory (os error 2)
    error: 1 of 2 images failed
    --- status 1 ---
    "#);
}

#[test]
fn a_layer_that_two_platforms_share_is_read_once() {
    let sandbox = Sandbox::with_two_platforms();
    assert_snapshot!(sandbox.run(&index(&["oci:img"])), @r#"
    oci:img linux/amd64
      manifest sha256:e99eebebe89a7d9b692a6842fe584c72b60df838c13b7f4829097ac467520932
      b7ffb93ee50b   199.1 KiB  9 spans  4 files  ztoc 289.6 KiB
      b1a090c9a649    42.0 KiB  2 spans  2 files   ztoc 64.7 KiB
      index sha256:cb0bc10a529cd8114f6ef4e257eca331f8749db1e13d69479aba003329a1852d
      written as a referrer into the image's layout
      version 1: read by ociseek's own programs, and by soci-snapshotter with soci_v1 enabled or before 0.10
    oci:img linux/arm64
      manifest sha256:90399e5d0ee827a0b067de30b552c917528926e8383f1bcf09fade9c55d698a5
      b7ffb93ee50b   199.1 KiB  9 spans  4 files  ztoc 289.6 KiB  duplicate of another layer
      e88179a68c0a    42.0 KiB  2 spans  2 files   ztoc 64.7 KiB
      index sha256:d355c6ca99448a34a8995e0d10b33e041b590f5d451b70da9053d7136d58efce
      attached in the same way
    read 283.2 KiB, wrote 421.4 KiB, in …
    --- stderr ---
    --- status 0 ---
    "#);
    let one = sandbox
        .json(0, &index(&["--format=json", "--dry-run", "--platform=linux/arm64", "oci:img"]));
    assert_eq!(one["images"][0]["manifests"].as_array().unwrap().len(), 1);
    assert_eq!(one["images"][0]["manifests"][0]["platform"], "linux/arm64");
    assert_snapshot!(sandbox.run(&index(&["--platform=linux/s390x", "oci:img"])), @r#"
    --- stderr ---
    error: oci:img: the image has no manifest for linux/s390x; it has linux/amd64, linux/arm64
    hint: omit --platform to index all platforms of the image
    --- status 1 ---
    "#);
}

#[test]
fn an_image_without_servable_layers_gets_no_index() {
    let sandbox = Sandbox::with_small_image();
    assert_snapshot!(sandbox.run(&["index", "--no-cache", "oci:img"]), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      b7ffb93ee50b   199.1 KiB  left out: smaller than 10MiB
      d92a9332da0b    61.0 KiB  left out: smaller than 10MiB
      ee25e607aff9        24 B  left out: zstd: SOCI consumers support only gzip and uncompressed layers
      bbd59e0ff808     2.0 KiB  left out: smaller than 10MiB
      no index: none of the layers can be indexed, so there is nothing to attach
    read 0 B, in …
    --- stderr ---
    --- status 0 ---
    "#);
    assert_eq!(referrers(&sandbox, "img").len(), 0);
}

#[test]
fn layers_left_out_for_one_reason_are_one_line_if_they_are_many() {
    let sandbox = Sandbox::new();
    let small: Vec<_> = (0..9).map(|n| tar(n, 1, 2000)).collect();
    image(&sandbox, "img", &small, &json!({}));
    let said = sandbox.run(&["index", "--no-cache", "--kind=v1", "oci:img"]);
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("left out")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].starts_with("  9 layers  "), "{said}");
    assert!(lines[0].ends_with("  left out: smaller than 10MiB"), "{said}");
}

#[test]
fn output_to_a_pipe_has_no_colour() {
    let sandbox = Sandbox::with_small_image();
    for run in
        [index(&["oci:img"]), index(&["oci:missing"]), vec!["index", "--help"], vec!["index"]]
    {
        assert!(!sandbox.run(&run).contains('\x1b'));
    }
}
