//! `ociseek inspect` on layouts.

use crate::support::sandbox::{
    GZIP, Layout, OCI_CONFIG, OCI_MANIFEST, Sandbox, enabled, gzip, index, small_image, tar,
    two_platforms,
};
use insta::assert_snapshot;
use serde_json::json;

#[test]
fn an_image_with_an_index() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    assert_snapshot!(sandbox.run(&["inspect", "oci:img"]), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      index none
      soci-snapshotter 0.10 or later (default settings): pulls all layers (it reads version 2, but the image has no index)
      soci-snapshotter 0.10 or later (soci_v1 enabled): pulls all layers (it reads version 2 and 1, but the image has no index)
    --- stderr ---
    --- status 0 ---
    "#);
    sandbox.run(&index(&["oci:img"]));
    assert_snapshot!(sandbox.run(&["inspect", "oci:img"]), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      index sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
        version 1, 1.6 KiB, by "test", 3 of 4 layers, listed in the layout (the repository's word)
      LAYER              SIZE  SPANS  FILES      PLAIN       ZTOC
      b7ffb93ee50b  199.1 KiB      9      4  199.0 KiB  289.6 KiB  122fa77d34d7
      d92a9332da0b   61.0 KiB      4      2   61.0 KiB      840 B  cb4de5f71533
      ee25e607aff9       24 B                                      no ztoc: zstd
      bbd59e0ff808    2.0 KiB      1      1    2.0 KiB   32.4 KiB  9c912a729319
      covered: 3 of 4 layers, 262.2 KiB of 262.2 KiB (99.99%), by 322.8 KiB of ztocs
      soci-snapshotter 0.10 or later (default settings): pulls all layers (it reads version 2, but the index of the image is of version 1)
      soci-snapshotter 0.10 or later (soci_v1 enabled): mounts 3 layers lazily, pulls 1
    --- stderr ---
    --- status 0 ---
    "#);
    // The verdicts of the consumers are checked in `consumers`.
    let text = sandbox.run(&["inspect", "--format=json", "oci:img"]);
    let before = text.split_once("\"consumers\": [").unwrap().0;
    assert_snapshot!(before, @r#"
    {
      "schema_version": 1,
      "tool": "ociseek vX",
      "image": "oci:img",
      "manifests": [
        {
          "platform": "linux/amd64",
          "manifest": {
            "media_type": "application/vnd.oci.image.manifest.v1+json",
            "digest": "sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad",
            "size": 862
          },
          "listing": "layout",
          "error": null,
          "indexes": [
            {
              "digest": "sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95",
              "size": 1624,
              "version": 1,
              "found_by": "layout",
              "trust": "repository",
              "chosen": true,
              "tool": "test",
              "canonical": true,
              "ztocs": [
                {
                  "digest": "sha256:122fa77d34d71ff257c128a067ea59999dbc85ada64227fc99f5fe90c2c18e6e",
                  "size": 296560,
                  "layer": "sha256:b7ffb93ee50b7699056f7e0e804a24c1a5e41c5c179e9feda71ecfa4370f4afa",
                  "span_size": 16384
                },
                {
                  "digest": "sha256:cb4de5f71533033896ad9f3c3d283dd00a4a2eb0a4712d6345cb40dad6813f89",
                  "size": 840,
                  "layer": "sha256:d92a9332da0be33d91e9359250803208a8a2f4a909e6a6ece70571d33ce6bde2",
                  "span_size": 16384
                },
                {
                  "digest": "sha256:9c912a729319e21c40d1f2cd0d0bee708c3409bb2e1732bc06051c3d04583b47",
                  "size": 33192,
                  "layer": "sha256:bbd59e0ff80836ca400b04a8a0a5115e76177e94f236034664c8e817c053485e",
                  "span_size": 16384
                }
              ],
              "prefetch": [],
              "notes": [],
              "error": null
            }
          ],
          "fine": [],
          "layers": [
            {
              "media_type": "application/vnd.oci.image.layer.v1.tar+gzip",
              "digest": "sha256:b7ffb93ee50b7699056f7e0e804a24c1a5e41c5c179e9feda71ecfa4370f4afa",
              "size": 203924,
              "ztoc": {
                "digest": "sha256:122fa77d34d71ff257c128a067ea59999dbc85ada64227fc99f5fe90c2c18e6e",
                "size": 296560,
                "span_size": 16384,
                "compression": "gzip",
                "spans": 9,
                "entries": 4,
                "uncompressed_size": 203776,
                "error": null
              },
              "prefetch": null,
              "document": null
            },
            {
              "media_type": "application/vnd.oci.image.layer.v1.tar",
              "digest": "sha256:d92a9332da0be33d91e9359250803208a8a2f4a909e6a6ece70571d33ce6bde2",
              "size": 62464,
              "ztoc": {
                "digest": "sha256:cb4de5f71533033896ad9f3c3d283dd00a4a2eb0a4712d6345cb40dad6813f89",
                "size": 840,
                "span_size": 16384,
                "compression": "uncompressed",
                "spans": 4,
                "entries": 2,
                "uncompressed_size": 62464,
                "error": null
              },
              "prefetch": null,
              "document": null
            },
            {
              "media_type": "application/vnd.oci.image.layer.v1.tar+zstd",
              "digest": "sha256:ee25e607aff98c0624b0076c4dce5fb633362bf440fcd80f4bffed082398e119",
              "size": 24,
              "ztoc": null,
              "prefetch": null,
              "document": null
            },
            {
              "media_type": "application/vnd.oci.image.layer.v1.tar+gzip",
              "digest": "sha256:bbd59e0ff80836ca400b04a8a0a5115e76177e94f236034664c8e817c053485e",
              "size": 2071,
              "ztoc": {
                "digest": "sha256:9c912a729319e21c40d1f2cd0d0bee708c3409bb2e1732bc06051c3d04583b47",
                "size": 33192,
                "span_size": 16384,
                "compression": "gzip",
                "spans": 1,
                "entries": 1,
                "uncompressed_size": 2048,
                "error": null
              },
              "prefetch": null,
              "document": null
            }
          ],
          "coverage": {
            "layers": 3,
            "of_layers": 4,
            "bytes": 268459,
            "of_bytes": 268483,
            "percent": 99.99,
            "ztoc_bytes": 330592
          },
    "#);
}

#[test]
fn one_ztoc() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    sandbox.run(&index(&["oci:img"]));
    // Selected by its layer.
    assert_snapshot!(sandbox.run(&["inspect", "--ztoc=d92a9332da0b", "oci:img"]), @r#"
    ztoc sha256:cb4de5f71533033896ad9f3c3d283dd00a4a2eb0a4712d6345cb40dad6813f89
    size               840 bytes
    version            0.9
    made by            test
    compression        uncompressed
    compressed size    62464 bytes (61.0 KiB)
    uncompressed size  62464 bytes (61.0 KiB)
    span size          16384 bytes (16.0 KiB)

    4 spans
                    bytes of the blob           bytes of the tar bits  digest, window digest
         0                   0..16384                   0..16384    -  sha256:5c0e3baee1849dac0555368f384cd0e079335398b6c1469a3dc5903a5093b507
         1               16384..32768               16384..32768    -  sha256:6c33b33de38bd93fd615053e2665760a6d1f7cfa3ed461da9393b49eae8de541
         2               32768..49152               32768..49152    -  sha256:63f652629e892d9666587afe301df9ce4d2425c0fa1a6528733f7f5a12467a90
         3               49152..62464               49152..62464    -  sha256:f89b9145f48fc2ff7ea6eb6a494f4915e74686bdc4421456906d8c6686a87bc4

    2 entries
    reg      000644 0 0        30000 @512          2023-11-14T22:13:20Z dir2/file0
    reg      000644 0 0        30000 @31232        2023-11-14T22:13:20Z dir2/file1
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["inspect", "--ztoc=d92a", "oci:img"]), @r#"
    --- stderr ---
    error: invalid value 'd92a' for '--ztoc <DIGEST>': expected a digest, or at least 6 of its first digits

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["inspect", "--ztoc=abcdef", "oci:img"]), @r#"
    --- stderr ---
    error: "abcdef" matches no ztoc of the image, or more than one
    hint: ociseek inspect without --ztoc lists the ztocs
    --- status 1 ---
    "#);
}

/// The first digits, as other reports print them, are enough to name an index that is listed.
#[test]
fn an_index_is_named_by_its_first_digits() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    sandbox.run(&index(&["oci:img"]));
    let full = "sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95";
    for command in [&["inspect"][..], &["verify", "--json"]] {
        let run = |index: &str| sandbox.run(&[command, &["--index", index, "oci:img"]].concat());
        let seconds = |text: String| {
            text.lines()
                .filter(|line| !line.contains("seconds"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let by_digest = seconds(run(full));
        // verify finds a difference in the config of this image.
        assert!(
            ["--- status 0 ---", "--- status 3 ---"].contains(&by_digest.last().unwrap().as_str()),
            "{by_digest:?}"
        );
        for short in ["7ba91f25e64f", "7ba91f", "sha256:7ba91f25"] {
            assert_eq!(seconds(run(short)), by_digest, "{command:?} {short}");
        }
        let none = run("123456");
        assert!(none.contains("the digest of no index of the image starts with 123456"), "{none}");
        assert!(run("7ba91").contains("at least 6 of its first digits"), "{command:?}");
    }
}

#[test]
fn platforms_are_shown_one_by_one() {
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("img"));
    sandbox.run(&index(&["oci:img", "--platform=linux/arm64"]));
    assert_snapshot!(sandbox.run(&["inspect", "oci:img"]), @r#"
    oci:img linux/amd64
      manifest sha256:e99eebebe89a7d9b692a6842fe584c72b60df838c13b7f4829097ac467520932
      index none
      soci-snapshotter 0.10 or later (default settings): pulls all layers (it reads version 2, but the image has no index)
      soci-snapshotter 0.10 or later (soci_v1 enabled): pulls all layers (it reads version 2 and 1, but the image has no index)

    oci:img linux/arm64
      manifest sha256:90399e5d0ee827a0b067de30b552c917528926e8383f1bcf09fade9c55d698a5
      index sha256:d355c6ca99448a34a8995e0d10b33e041b590f5d451b70da9053d7136d58efce
        version 1, 1.2 KiB, by "test", 2 of 2 layers, listed in the layout (the repository's word)
      LAYER              SIZE  SPANS  FILES      PLAIN       ZTOC
      b7ffb93ee50b  199.1 KiB      9      4  199.0 KiB  289.6 KiB  122fa77d34d7
      e88179a68c0a   42.0 KiB      2      2   42.0 KiB   64.7 KiB  0421609b3e48
      covered: 2 of 2 layers, 241.2 KiB of 241.2 KiB (100%), by 354.3 KiB of ztocs
      soci-snapshotter 0.10 or later (default settings): pulls all layers (it reads version 2, but the index of the image is of version 1)
      soci-snapshotter 0.10 or later (soci_v1 enabled): mounts 2 layers lazily, pulls 0
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["inspect", "--platform=linux/s390x", "oci:img"]), @r#"
    --- stderr ---
    error: the image has no manifest for linux/s390x; it has linux/amd64, linux/arm64
    hint: choose one of the image's platforms with --platform
    --- status 1 ---
    "#);
}

#[test]
fn an_index_of_version_2() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    sandbox.run(&index(&["oci:img"]));
    enabled(&sandbox);
    assert_snapshot!(sandbox.run(&["inspect", "oci:enabled"]), @r#"
    oci:enabled linux/amd64
      manifest sha256:f72c32e171b15fcb107d00610ed26ee73245b2f59db3e0c807cba9dd3b4485b6
      index sha256:4f7077e7503eb69bfd0f250bf3a871a4b6d247137574494f2b5a9701826ee57c
        version 2, 1.4 KiB, by "test", 3 of 4 layers, named by the image manifest (bound by the image)
      LAYER              SIZE  SPANS  FILES      PLAIN       ZTOC
      b7ffb93ee50b  199.1 KiB      9      4  199.0 KiB  289.6 KiB  122fa77d34d7
      d92a9332da0b   61.0 KiB      4      2   61.0 KiB      840 B  cb4de5f71533
      ee25e607aff9       24 B                                      no ztoc: zstd
      bbd59e0ff808    2.0 KiB      1      1    2.0 KiB   32.4 KiB  9c912a729319
      covered: 3 of 4 layers, 262.2 KiB of 262.2 KiB (99.99%), by 322.8 KiB of ztocs
      soci-snapshotter 0.10 or later (default settings): mounts 3 layers lazily, pulls 1
      soci-snapshotter 0.10 or later (soci_v1 enabled): mounts 3 layers lazily, pulls 1
    --- stderr ---
    --- status 0 ---
    "#);
    // An attached index of version 1 is not used.
    sandbox.run(&index(&["--quiet", "oci:enabled"]));
    let inspected = sandbox.json(0, &["inspect", "--format=json", "oci:enabled"]);
    let indexes = inspected["manifests"][0]["indexes"].as_array().unwrap();
    let facts: Vec<_> =
        indexes.iter().map(|i| json!([i["version"], i["found_by"], i["chosen"]])).collect();
    assert_eq!(facts, [json!([2, "annotation", true]), json!([1, "layout", false])]);
    // Unless it is requested.
    let asked = indexes[1]["digest"].as_str().unwrap();
    let inspected = sandbox.json(0, &["inspect", "--format=json", "--index", asked, "oci:enabled"]);
    assert_eq!(inspected["manifests"][0]["indexes"][1]["chosen"], true);
}

#[test]
fn indexes_that_cannot_be_used() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    sandbox.run(&index(&["oci:img"]));
    enabled(&sandbox);
    // The manifest names an index that does not exist.
    let inspected = sandbox.json(0, &["inspect", "--format=json", "oci:enabled"]);
    let digest = inspected["manifests"][0]["indexes"][0]["digest"].as_str().unwrap();
    std::fs::remove_file(sandbox.path("enabled/blobs/sha256").join(&digest["sha256:".len()..]))
        .unwrap();
    assert_snapshot!(sandbox.run(&["inspect", "oci:enabled"]), @r#"
    oci:enabled linux/amd64
      manifest sha256:f72c32e171b15fcb107d00610ed26ee73245b2f59db3e0c807cba9dd3b4485b6
      index sha256:4f7077e7503eb69bfd0f250bf3a871a4b6d247137574494f2b5a9701826ee57c
        version 2, 1.4 KiB, named by the image manifest (bound by the image)
        note: it cannot be used: it cannot be read: enabled does not hold sha256:4f7077e7503eb69bfd0f250bf3a871a4b6d247137574494f2b5a9701826ee57c
      soci-snapshotter 0.10 or later (default settings): pulls all layers (index 4f7077e7503e cannot be used, and it tries no other)
      soci-snapshotter 0.10 or later (soci_v1 enabled): pulls all layers (index 4f7077e7503e cannot be used, and it tries no other)
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["inspect", "--index", digest, "oci:enabled"]), @r#"
    --- stderr ---
    error: SOCI index sha256:4f7077e7503eb69bfd0f250bf3a871a4b6d247137574494f2b5a9701826ee57c cannot be used: it cannot be read: enabled does not hold sha256:4f7077e7503eb69bfd0f250bf3a871a4b6d247137574494f2b5a9701826ee57c
    --- status 1 ---
    "#);
}

#[test]
fn a_converted_image_whose_config_states_no_platform() {
    let sandbox = Sandbox::new();
    for (name, stated, platform) in [
        ("no-os", json!({"architecture": "arm64"}), "linux/arm64"),
        ("no-architecture", json!({"os": "linux"}), "linux/unknown"),
        ("neither", json!({}), "linux/unknown"),
    ] {
        let mut layout = Layout::new(&sandbox.path(name));
        let layer = layout.blob(GZIP, &gzip(&tar(1, 2, 30_000)));
        let mut config = stated;
        config["rootfs"] = json!({"type": "layers", "diff_ids": []});
        let config = layout.blob(OCI_CONFIG, config.to_string().as_bytes());
        let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [layer]});
        let manifest = layout.blob(OCI_MANIFEST, manifest.to_string().as_bytes());
        layout.tag(manifest, "v1");
        let from = format!("oci:{name}");
        let to = format!("oci:{name}-soci");
        sandbox
            .json(0, &["convert", "--format=json", "--no-cache", "--min-layer-size=0", &from, &to]);
        let text = sandbox.run(&[
            "convert",
            "--no-cache",
            "--min-layer-size=0",
            &from,
            &format!("{to}-2"),
        ]);
        assert_eq!(text.contains("unknown platform"), platform.ends_with("unknown"), "{text}");
        let files = |image: &str| sandbox.run(&["ls", "--no-cache", image]);
        assert_eq!(files(&to), files(&from), "{name}");
        assert_eq!(
            sandbox.json(0, &["inspect", "--format=json", &to])["manifests"][0]["platform"],
            platform,
            "{name}"
        );
    }
}
