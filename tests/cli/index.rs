//! `ociseek index` on layouts and archives.

use crate::support::sandbox;
use std::process::Stdio;

use crate::support::sandbox::{GZIP, Layout, Sandbox, gzip, index, masked, shown, small_image, tar, two_platforms};
use insta::assert_snapshot;
use serde_json::Value;

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
    assert_snapshot!(sandbox.run(&index(&["oci:img"])), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      b7ffb93ee50b   199.1 KiB  9 spans  4 files  ztoc 289.6 KiB
      d92a9332da0b    61.0 KiB  4 spans  2 files      ztoc 840 B
      ee25e607aff9        24 B  left out: zstd: SOCI consumers support only gzip and uncompressed layers
      bbd59e0ff808     2.0 KiB   1 span   1 file   ztoc 32.4 KiB
      index sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
      written as a referrer into the image's layout
      read by soci-snapshotter with [pull_modes.soci_v1] enable = true, or when given this index digest
      covers 3 of 4 layers, 99.99% of 262.2 KiB
    read 262.2 KiB, wrote 324.4 KiB, in …
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&index(&["oci:img:v1"])), @r#"
    oci:img:v1 linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      index sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
      up to date: same options and version, no layer was read
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
fn the_report_for_programs() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
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
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("img"));
    assert_snapshot!(sandbox.run(&index(&["oci:img"])), @r#"
    oci:img linux/amd64
      manifest sha256:e99eebebe89a7d9b692a6842fe584c72b60df838c13b7f4829097ac467520932
      b7ffb93ee50b   199.1 KiB  9 spans  4 files  ztoc 289.6 KiB
      b1a090c9a649    42.0 KiB  2 spans  2 files   ztoc 64.7 KiB
      index sha256:cb0bc10a529cd8114f6ef4e257eca331f8749db1e13d69479aba003329a1852d
      written as a referrer into the image's layout
      read by soci-snapshotter with [pull_modes.soci_v1] enable = true, or when given this index digest
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
    let one = sandbox.json(0, &index(&["--format=json", "--dry-run", "--platform=linux/arm64", "oci:img"]));
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
fn an_index_of_other_options_changes_nothing() {
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
        let report = sandbox.json(0, &["index", "--format=json", "--no-cache", "--span-size", span_size, image]);
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
    // The actual result must equal the predicted one.
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
    // Without a usable cache directory, the work is done without a cache.
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
    assert_snapshot!(sandbox.run(&index(&["oci:img"])), @r#"
    --- stderr ---
    error: oci:img: layer sha256:ba1e62f6fa161cab5ca6e440e40a27434464d54dceaba4c6c6e93a8143925cb3 is broken: the gzip data is truncated at byte 9000, inside the compressed data of member 1
    hint: nothing was pushed for this image; if the image can be pulled, the layer was damaged in transit: try again
    --- status 1 ---
    "#);
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
fn the_others_are_done_when_one_fails() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("a"));
    two_platforms(&sandbox.path("c"));
    let text = sandbox.run(&index(&["-q", "oci:a", "oci:b", "oci:c"]));
    assert_snapshot!(text, @r#"
    sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
    sha256:cb0bc10a529cd8114f6ef4e257eca331f8749db1e13d69479aba003329a1852d
    sha256:d355c6ca99448a34a8995e0d10b33e041b590f5d451b70da9053d7136d58efce
    --- stderr ---
    error: oci:b: cannot open b: No such file or directory (os error 2)
    error: 1 of 3 images failed
    --- status 1 ---
    "#);
}

#[test]
fn artifacts_are_refused_with_their_kind() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("chart"));
    let config = layout.blob("application/vnd.cncf.helm.config.v1+json", b"{}");
    let chart = layout.blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip", b"x");
    let manifest = serde_json::json!({"schemaVersion": 2, "mediaType": sandbox::OCI_MANIFEST, "config": config,
        "layers": [chart]});
    let manifest = layout.blob(sandbox::OCI_MANIFEST, manifest.to_string().as_bytes());
    layout.tag(manifest, "v1");
    assert_snapshot!(sandbox.run(&index(&["oci:chart:v1"])), @r#"
    --- stderr ---
    error: oci:chart:v1: sha256:b5c3aa7d09f9cb9f225efb4f8f58a4d02310c76a9bce5a433fc13416ea51beed cannot be used: this is not an image but a Helm chart
    --- status 1 ---
    "#);
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
fn an_index_of_others_stays_where_there_is_none_of_ours() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    sandbox.run(&index(&["oci:img"]));
    let said = sandbox.run(&["index", "--no-cache", "--existing=replace", "oci:img"]);
    assert!(said.contains(" by \"test\" exists and was left unchanged\n"), "{said}");
    assert!(said.contains("no index:") && !said.contains("--existing replace"), "{said}");
}

#[test]
fn an_index_without_its_image_is_no_image() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    sandbox.run(&index(&["--output=oci:alone", "oci:img"]));
    assert_snapshot!(sandbox.run(&["ls", "oci:alone"]), @r"
    --- stderr ---
    error: alone holds no image
    hint: what ociseek index --output oci:DIR writes is an index without its image: name the image that it was made for
    --- status 1 ---
    ");
}

#[test]
fn a_wrong_value_is_told_with_the_variable_that_it_came_from() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["index", "oci:img"]);
    assert_snapshot!(shown(command.env("OCISEEK_SPAN_SIZE", "abc")), @r"
    --- stderr ---
    error: invalid value 'abc' for '$OCISEEK_SPAN_SIZE': want a number of bytes, such as 4MiB, 64KiB or 4194304

    For more information, try '--help'.
    --- status 2 ---
    ");
    // Arguments take precedence over variables.
    let mut command = sandbox.command(&["index", "--span-size=x", "oci:img"]);
    let typed = shown(command.env("OCISEEK_SPAN_SIZE", "abc"));
    assert!(typed.contains("invalid value 'x' for '--span-size <SIZE>'"), "{typed}");
    // A variable does not add its option to the usage line.
    let usage = shown(sandbox.command(&["index"]).env("OCISEEK_CACHE_DIR", "/nowhere"));
    assert!(usage.contains("Usage: ociseek index [OPTIONS] <IMAGE>...\n"), "{usage}");
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

/// An index that lists `manifests`, nested in further indexes.
fn nested(layout: &Layout, levels: usize, image: Value) -> Value {
    (0..levels).fold(image, |inner, _| layout.image_index(&[inner]))
}

#[test]
fn nested_indexes_are_followed_so_far() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layer = layout.blob(GZIP, &gzip(&tar(1, 2, 20_000)));
    let image = sandbox::for_platform(layout.image("amd64", &[layer]), "amd64");
    for (levels, tag) in [(4, "deep"), (5, "deeper")] {
        let index = nested(&layout, levels, image.clone());
        layout.tag(index, tag);
    }
    let deep = sandbox.json(0, &index(&["--format=json", "--dry-run", "oci:img:deep"]));
    assert_eq!(deep["images"][0]["manifests"][0]["manifest"]["digest"], image["digest"]);
    let deeper = sandbox.run(&index(&["oci:img:deeper"]));
    assert!(deeper.contains("is nested more than 4 deep") && deeper.ends_with("--- status 1 ---"), "{deeper}");
}

#[test]
fn attestations_are_passed_over_and_a_platform_is_indexed_once() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layer = layout.blob(GZIP, &gzip(&tar(1, 2, 20_000)));
    let other = layout.blob(GZIP, &gzip(&tar(2, 2, 20_000)));
    let first = sandbox::for_platform(layout.image("amd64", std::slice::from_ref(&layer)), "amd64");
    let second = sandbox::for_platform(layout.image("amd64", &[other]), "amd64");
    let mut attestation = layout.image("amd64", &[layer]);
    attestation["platform"] = serde_json::json!({"os": "unknown", "architecture": "unknown"});
    let list = layout.image_index(&[attestation, first.clone(), second.clone(), first.clone()]);
    layout.tag(list, "v1");
    let output = sandbox.command(&index(&["--format=json", "oci:img"])).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let manifests = report["images"][0]["manifests"].as_array().unwrap();
    assert_eq!(manifests.len(), 1);
    assert_eq!(manifests[0]["manifest"]["digest"], first["digest"]);
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.starts_with("warning: ") && warning.contains(second["digest"].as_str().unwrap()), "{warning}");
}

#[test]
fn a_layer_that_no_consumer_could_serve_is_left_out() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let sound = layout.blob(GZIP, &gzip(&tar(1, 2, 20_000)));
    let trailing = layout.blob(GZIP, &[&gzip(&tar(2, 2, 20_000))[..], b"x"].concat());
    let mislabelled = layout.blob(GZIP, &tar(3, 2, 20_000));
    let image = layout.image("amd64", &[trailing, sound, mislabelled]);
    layout.tag(image, "v1");
    let report = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    let layers = &report["images"][0]["manifests"][0]["layers"];
    assert_eq!(layers[0]["reason"]["code"], "trailing-bytes");
    assert_eq!(layers[1]["status"], "indexed");
    assert_eq!(layers[2]["reason"]["code"], "mislabelled");
}
