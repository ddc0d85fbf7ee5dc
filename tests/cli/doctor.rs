//! `ociseek doctor` on layouts: what it shows of indexes and layers. Its verdicts: `consumers`.

use insta::assert_snapshot;
use ociseek_testkit::image::image_manifest;
use ociseek_testkit::mounts::image_of;
use ociseek_testkit::sandbox::{
    GZIP, Layout, OCI_CONFIG, OCI_MANIFEST, PLAIN, Sandbox, enabled, gzip, index, tar,
};
use serde_json::json;

/// Without `--verbose`, the text ends before the indexes and the layers.
fn assert_plain_text(sandbox: &Sandbox) {
    let verbose = sandbox.run(&["doctor", "--verbose", "oci:img"]);
    let plain = sandbox.run(&["doctor", "oci:img"]);
    let (text, end) = plain.split_once("--- stderr ---").unwrap();
    let more = verbose.strip_prefix(text).and_then(|more| more.strip_suffix(end));
    let more = more.unwrap_or_else(|| panic!("{plain}\n{verbose}"));
    assert!(more.contains("LAYER") && !plain.contains("LAYER"), "{plain}");
}

#[test]
fn an_image_with_an_index() {
    let sandbox = Sandbox::with_small_image();
    assert_snapshot!(sandbox.run(&["doctor", "--verbose", "--all-platforms", "oci:img"]), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      soci-snapshotter 0.10 or later (default settings)  whole  it reads version 2, but the image has no index
      soci-snapshotter 0.10 or later (soci_v1 enabled)   whole  it reads version 2 and 1, but the image has no index
      soci-snapshotter (parallel_pull_unpack enabled)    whole  it pulls layers in parallel and reads no index
      soci-snapshotter before 0.10                       whole  it reads version 1, but the image has no index
      AWS Fargate                                        whole  it does not support images with zstd layers
      AWS Fargate (accounts with earlier SOCI use)       whole  it does not support images with zstd layers
      Amazon SageMaker Studio                            whole  it reads version 2, but the image has no index
      ociseek snapshotter                                whole  it has no index
      ociseek store (podman, CRI-O)                      whole  it has no index
      ociseek mount, bundle                              whole  it has no index
      problem: the image has no SOCI index, and none of its layers can be indexed: 3 smaller than 10 MiB, 1 zstd
      note: layer sha256:ee25e607aff98c0624b0076c4dce5fb633362bf440fcd80f4bffed082398e119 is pulled whole: it is zstd, but consumers support only gzip and plain tars (24 B)
        next: build the image with gzip layers: docker buildx build --output type=image,compression=gzip,force-compression=true
      note: Fargate's documentation recommends lazy loading from 250 MiB of layers on, and the image has less (262.2 KiB)
      LAYER              SIZE
      b7ffb93ee50b  199.1 KiB
      d92a9332da0b   61.0 KiB
      ee25e607aff9       24 B
      bbd59e0ff808    2.0 KiB
    --- stderr ---
    --- status 3 ---
    "#);
    assert_plain_text(&sandbox);
    sandbox.run(&index(&["oci:img"]));
    assert_snapshot!(sandbox.run(&["doctor", "--verbose", "--all-platforms", "oci:img"]), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      soci-snapshotter 0.10 or later (default settings)  whole  it reads version 2, but the index of the image is of version 1
      soci-snapshotter 0.10 or later (soci_v1 enabled)   lazy   index 7ba91f25e64f (version 1): 3 of 4 layers, 99.99% of 262.2 KiB
      soci-snapshotter (parallel_pull_unpack enabled)    whole  it pulls layers in parallel and reads no index
      soci-snapshotter before 0.10                       lazy   index 7ba91f25e64f (version 1): 3 of 4 layers, 99.99% of 262.2 KiB
      AWS Fargate                                        whole  it does not support images with zstd layers
      AWS Fargate (accounts with earlier SOCI use)       whole  it does not support images with zstd layers
      Amazon SageMaker Studio                            whole  it reads version 2, but the index of the image is of version 1
      ociseek snapshotter                                lazy   index 7ba91f25e64f: 3 of 4 layers, 99.99% of 262.2 KiB; if the node trusts it: lazy-from names its repository, or signature-key the key that signed it
      ociseek store (podman, CRI-O)                      lazy   index 7ba91f25e64f: 3 of 4 layers, 99.99% of 262.2 KiB; if the node trusts it: lazy-from names its repository, or signature-key the key that signed it; podman 5.1 or later also needs convert --toc-digests
      ociseek mount, bundle                              lazy   index 7ba91f25e64f: 3 of 4 layers, 99.99% of 262.2 KiB
      note: index sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95 was made by another tool, "test"
        next: ociseek verify --quick oci:img
      note: the index is of version 1: soci-snapshotter 0.10 or later reads it only with soci_v1 enabled, Amazon SageMaker Studio does not read it, and Fargate did so only for accounts with earlier SOCI use, with an announced end on 9 February 2026
        next: ociseek convert oci:img oci:img:soci
      note: layer sha256:ee25e607aff98c0624b0076c4dce5fb633362bf440fcd80f4bffed082398e119 is pulled whole: it is zstd, but consumers support only gzip and plain tars (24 B)
        next: build the image with gzip layers: docker buildx build --output type=image,compression=gzip,force-compression=true
      note: Fargate's documentation recommends lazy loading from 250 MiB of layers on, and the image has less (262.2 KiB)
      index sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
        version 1, 1.6 KiB, by "test", 3 of 4 layers, listed in the layout (vouched for only by the repository)
      LAYER              SIZE      PLAIN  FILES          SPANS       ZTOC
      b7ffb93ee50b  199.1 KiB  199.0 KiB      4  9 of 16.0 KiB  289.6 KiB
      d92a9332da0b   61.0 KiB   61.0 KiB      2  4 of 16.0 KiB      840 B
      ee25e607aff9       24 B                                              no ztoc: zstd
      bbd59e0ff808    2.0 KiB    2.0 KiB      1  1 of 16.0 KiB   32.4 KiB
      covered: 3 of 4 layers, 262.2 KiB of 262.2 KiB (99.99%), by 322.8 KiB of ztocs
    --- stderr ---
    --- status 0 ---
    "#);
    assert_plain_text(&sandbox);
    let mut found = sandbox.doctor("oci:img")["manifests"][0].take();
    for elsewhere in ["consumers", "ociseek", "findings"] {
        found.as_object_mut().unwrap().remove(elsewhere).unwrap();
    }
    assert_snapshot!(format!("{found:#}"), @r#"
    {
      "platform": "linux/amd64",
      "manifest": {
        "media_type": "application/vnd.oci.image.manifest.v1+json",
        "digest": "sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad",
        "size": 862
      },
      "coverage": {
        "layers": 3,
        "of_layers": 4,
        "bytes": 268459,
        "of_bytes": 268483,
        "percent": 99.99,
        "ztoc_bytes": 330592
      },
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
      "fine": [],
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
      ]
    }
    "#);
}

/// The first digits, as other reports print them, are enough to name an index that is listed.
#[test]
fn an_index_is_named_by_its_first_digits() {
    let sandbox = Sandbox::with_small_image();
    sandbox.run(&index(&["oci:img"]));
    let full = "sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95";
    let run = |index: &str| sandbox.run(&["verify", "--json", "--index", index, "oci:img"]);
    let seconds = |text: String| {
        let lines = text.lines().filter(|line| !line.contains("seconds"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let by_digest = seconds(run(full));
    // There is a difference in the config of this image.
    assert_eq!(by_digest.last().unwrap(), "--- status 3 ---", "{by_digest:?}");
    for short in ["7ba91f25e64f", "7ba91f", "sha256:7ba91f25"] {
        assert_eq!(seconds(run(short)), by_digest, "{short}");
    }
    let none = run("123456");
    assert!(none.contains("the digest of no index of the image starts with 123456"), "{none}");
    assert!(run("7ba91").contains("at least 6 of its first digits"));
}

#[test]
fn platforms_are_shown_one_by_one() {
    let sandbox = Sandbox::with_two_platforms();
    sandbox.run(&index(&["oci:img", "--platform=linux/arm64"]));
    assert_snapshot!(sandbox.run(&["doctor", "--verbose", "--all-platforms", "oci:img"]), @r#"
    oci:img linux/amd64
      manifest sha256:e99eebebe89a7d9b692a6842fe584c72b60df838c13b7f4829097ac467520932
      soci-snapshotter 0.10 or later (default settings)  whole  it reads version 2, but the image has no index
      soci-snapshotter 0.10 or later (soci_v1 enabled)   whole  it reads version 2 and 1, but the image has no index
      soci-snapshotter (parallel_pull_unpack enabled)    whole  it pulls layers in parallel and reads no index
      soci-snapshotter before 0.10                       whole  it reads version 1, but the image has no index
      AWS Fargate                                        whole  it reads version 2, but the image has no index
      AWS Fargate (accounts with earlier SOCI use)       whole  it reads version 2 and 1, but the image has no index
      Amazon SageMaker Studio                            whole  it reads version 2, but the image has no index
      ociseek snapshotter                                whole  it has no index
      ociseek store (podman, CRI-O)                      whole  it has no index
      ociseek mount, bundle                              whole  it has no index
      problem: the image has no SOCI index: its layers are all smaller than 10 MiB, and faster to pull whole than to mount
      note: Fargate's documentation recommends lazy loading from 250 MiB of layers on, and the image has less (241.2 KiB)
      LAYER              SIZE
      b7ffb93ee50b  199.1 KiB
      b1a090c9a649   42.0 KiB

    oci:img linux/arm64
      manifest sha256:90399e5d0ee827a0b067de30b552c917528926e8383f1bcf09fade9c55d698a5
      soci-snapshotter 0.10 or later (default settings)  whole  it reads version 2, but the index of the image is of version 1
      soci-snapshotter 0.10 or later (soci_v1 enabled)   lazy   index d355c6ca9944 (version 1): 2 of 2 layers, 100% of 241.2 KiB
      soci-snapshotter (parallel_pull_unpack enabled)    whole  it pulls layers in parallel and reads no index
      soci-snapshotter before 0.10                       lazy   index d355c6ca9944 (version 1): 2 of 2 layers, 100% of 241.2 KiB
      AWS Fargate                                        whole  it reads version 2, but the index of the image is of version 1
      AWS Fargate (accounts with earlier SOCI use)       lazy   index d355c6ca9944 (version 1): 2 of 2 layers, 100% of 241.2 KiB
      Amazon SageMaker Studio                            whole  it reads version 2, but the index of the image is of version 1
      ociseek snapshotter                                lazy   index d355c6ca9944: 2 of 2 layers, 100% of 241.2 KiB; if the node trusts it: lazy-from names its repository, or signature-key the key that signed it
      ociseek store (podman, CRI-O)                      lazy   index d355c6ca9944: 2 of 2 layers, 100% of 241.2 KiB; if the node trusts it: lazy-from names its repository, or signature-key the key that signed it; podman 5.1 or later also needs convert --toc-digests
      ociseek mount, bundle                              lazy   index d355c6ca9944: 2 of 2 layers, 100% of 241.2 KiB
      note: index sha256:d355c6ca99448a34a8995e0d10b33e041b590f5d451b70da9053d7136d58efce was made by another tool, "test"
        next: ociseek verify --quick oci:img
      note: the index is of version 1: soci-snapshotter 0.10 or later reads it only with soci_v1 enabled, Amazon SageMaker Studio does not read it, and Fargate did so only for accounts with earlier SOCI use, with an announced end on 9 February 2026
        next: ociseek convert oci:img oci:img:soci
      note: Fargate's documentation recommends lazy loading from 250 MiB of layers on, and the image has less (241.2 KiB)
      index sha256:d355c6ca99448a34a8995e0d10b33e041b590f5d451b70da9053d7136d58efce
        version 1, 1.2 KiB, by "test", 2 of 2 layers, listed in the layout (vouched for only by the repository)
      LAYER              SIZE      PLAIN  FILES          SPANS       ZTOC
      b7ffb93ee50b  199.1 KiB  199.0 KiB      4  9 of 16.0 KiB  289.6 KiB
      e88179a68c0a   42.0 KiB   42.0 KiB      2  2 of 16.0 KiB   64.7 KiB
      covered: 2 of 2 layers, 241.2 KiB of 241.2 KiB (100%), by 354.3 KiB of ztocs
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["doctor", "--platform=linux/s390x", "oci:img"]), @r#"
    --- stderr ---
    error: the image has no manifest for linux/s390x; it has linux/amd64, linux/arm64
    hint: choose one of the image's platforms with --platform
    --- status 1 ---
    "#);
}

#[test]
fn an_index_of_version_2() {
    let sandbox = Sandbox::with_small_image();
    sandbox.run(&index(&["oci:img"]));
    enabled(&sandbox);
    assert_snapshot!(sandbox.run(&["doctor", "--verbose", "--all-platforms", "oci:enabled"]), @r#"
    oci:enabled linux/amd64
      manifest sha256:f72c32e171b15fcb107d00610ed26ee73245b2f59db3e0c807cba9dd3b4485b6
      soci-snapshotter 0.10 or later (default settings)  lazy   index 4f7077e7503e (version 2): 3 of 4 layers, 99.99% of 262.2 KiB
      soci-snapshotter 0.10 or later (soci_v1 enabled)   lazy   index 4f7077e7503e (version 2): 3 of 4 layers, 99.99% of 262.2 KiB
      soci-snapshotter (parallel_pull_unpack enabled)    whole  it pulls layers in parallel and reads no index
      soci-snapshotter before 0.10                       whole  it reads version 1, but the index of the image is of version 2
      AWS Fargate                                        whole  it does not support images with zstd layers
      AWS Fargate (accounts with earlier SOCI use)       whole  it does not support images with zstd layers
      Amazon SageMaker Studio                            lazy   index 4f7077e7503e (version 2): 3 of 4 layers, 99.99% of 262.2 KiB
      ociseek snapshotter                                lazy   index 4f7077e7503e: 3 of 4 layers, 99.99% of 262.2 KiB; if the node trusts it: lazy-from names its repository, or signature-key the key that signed it
      ociseek store (podman, CRI-O)                      lazy   index 4f7077e7503e: 3 of 4 layers, 99.99% of 262.2 KiB; if the node trusts it: lazy-from names its repository, or signature-key the key that signed it; podman 5.1 or later also needs convert --toc-digests
      ociseek mount, bundle                              lazy   index 4f7077e7503e: 3 of 4 layers, 99.99% of 262.2 KiB
      note: index sha256:4f7077e7503eb69bfd0f250bf3a871a4b6d247137574494f2b5a9701826ee57c was made by another tool, "test"
        next: ociseek verify --quick oci:enabled
      note: layer sha256:ee25e607aff98c0624b0076c4dce5fb633362bf440fcd80f4bffed082398e119 is pulled whole: it is zstd, but consumers support only gzip and plain tars (24 B)
        next: build the image with gzip layers: docker buildx build --output type=image,compression=gzip,force-compression=true
      note: Fargate's documentation recommends lazy loading from 250 MiB of layers on, and the image has less (262.2 KiB)
      index sha256:4f7077e7503eb69bfd0f250bf3a871a4b6d247137574494f2b5a9701826ee57c
        version 2, 1.4 KiB, by "test", 3 of 4 layers, named by the image manifest (bound by the image)
      LAYER              SIZE      PLAIN  FILES          SPANS       ZTOC
      b7ffb93ee50b  199.1 KiB  199.0 KiB      4  9 of 16.0 KiB  289.6 KiB
      d92a9332da0b   61.0 KiB   61.0 KiB      2  4 of 16.0 KiB      840 B
      ee25e607aff9       24 B                                              no ztoc: zstd
      bbd59e0ff808    2.0 KiB    2.0 KiB      1  1 of 16.0 KiB   32.4 KiB
      covered: 3 of 4 layers, 262.2 KiB of 262.2 KiB (99.99%), by 322.8 KiB of ztocs
    --- stderr ---
    --- status 0 ---
    "#);
    // An attached index of version 1 is not used.
    sandbox.run(&index(&["--quiet", "oci:enabled"]));
    let inspected = sandbox.doctor("oci:enabled");
    let indexes = inspected["manifests"][0]["indexes"].as_array().unwrap();
    let facts: Vec<_> =
        indexes.iter().map(|i| json!([i["version"], i["found_by"], i["chosen"]])).collect();
    assert_eq!(facts, [json!([2, "annotation", true]), json!([1, "layout", false])]);
}

#[test]
fn indexes_that_cannot_be_used() {
    let sandbox = Sandbox::with_small_image();
    sandbox.run(&index(&["oci:img"]));
    enabled(&sandbox);
    // The manifest names an index that does not exist.
    let inspected = sandbox.doctor("oci:enabled");
    let digest = inspected["manifests"][0]["indexes"][0]["digest"].as_str().unwrap();
    std::fs::remove_file(sandbox.path("enabled/blobs/sha256").join(&digest["sha256:".len()..]))
        .unwrap();
    assert_snapshot!(sandbox.run(&["doctor", "--verbose", "--all-platforms", "oci:enabled"]), @r#"
    oci:enabled linux/amd64
      manifest sha256:f72c32e171b15fcb107d00610ed26ee73245b2f59db3e0c807cba9dd3b4485b6
      soci-snapshotter 0.10 or later (default settings)  whole  index 4f7077e7503e cannot be used, and it tries no other
      soci-snapshotter 0.10 or later (soci_v1 enabled)   whole  index 4f7077e7503e cannot be used, and it tries no other
      soci-snapshotter (parallel_pull_unpack enabled)    whole  it pulls layers in parallel and reads no index
      soci-snapshotter before 0.10                       whole  it reads version 1, but the index of the image is of version 2
      AWS Fargate                                        whole  it does not support images with zstd layers
      AWS Fargate (accounts with earlier SOCI use)       whole  it does not support images with zstd layers
      Amazon SageMaker Studio                            whole  index 4f7077e7503e cannot be used, and it tries no other
      ociseek snapshotter                                whole  it has no index
      ociseek store (podman, CRI-O)                      whole  it has no index
      ociseek mount, bundle                              whole  it has no index
      problem: index sha256:4f7077e7503eb69bfd0f250bf3a871a4b6d247137574494f2b5a9701826ee57c cannot be used: it cannot be read: enabled does not hold sha256:4f7077e7503eb69bfd0f250bf3a871a4b6d247137574494f2b5a9701826ee57c
        next: ociseek convert, from the original image, to a new tag
      note: layer sha256:ee25e607aff98c0624b0076c4dce5fb633362bf440fcd80f4bffed082398e119 is pulled whole: it is zstd, but consumers support only gzip and plain tars (24 B)
        next: build the image with gzip layers: docker buildx build --output type=image,compression=gzip,force-compression=true
      note: Fargate's documentation recommends lazy loading from 250 MiB of layers on, and the image has less (262.2 KiB)
      index sha256:4f7077e7503eb69bfd0f250bf3a871a4b6d247137574494f2b5a9701826ee57c
        version 2, 1.4 KiB, named by the image manifest (bound by the image)
      LAYER              SIZE
      b7ffb93ee50b  199.1 KiB
      d92a9332da0b   61.0 KiB
      ee25e607aff9       24 B
      bbd59e0ff808    2.0 KiB
    --- stderr ---
    --- status 3 ---
    "#);
}

/// All runtimes that load images lazily run on Linux.
#[test]
fn no_index_is_advised_for_an_image_for_windows() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layer = layout.blob(GZIP, &gzip(&tar(1, 2, 30_000)));
    let config = json!({"os": "windows", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": []}});
    let config = layout.blob(OCI_CONFIG, config.to_string().as_bytes());
    let manifest = image_manifest(&config, &[layer]);
    let manifest = layout.blob(OCI_MANIFEST, manifest.to_string().as_bytes());
    layout.tag(manifest, "v1");
    let doctor = ["doctor", "--all-platforms", "oci:img:v1"];
    let said = sandbox.run(&doctor);
    assert!(!said.contains("next:") && said.ends_with("--- status 3 ---"), "{said}");
    // One that has an index all the same.
    sandbox.run(&index(&["oci:img:v1", "--kind=v1,fine"]));
    let said = sandbox.run(&doctor);
    assert!(said.contains(
        "ociseek snapshotter                                whole  it runs only Linux images"
    ));
    assert!(!said.contains(" lazy ") && said.ends_with("--- status 3 ---"), "{said}");
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
        let manifest = image_manifest(&config, &[layer]);
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
        assert_eq!(sandbox.doctor(&to)["manifests"][0]["platform"], platform, "{name}");
    }
}

/// An index that is attached to it would not be used.
#[test]
fn a_layer_without_a_ztoc_in_a_soci_enabled_image_is_for_convert() {
    let sandbox = Sandbox::new();
    let tars = [tar(1, 1, 11 << 20), tar(2, 1, 13 << 20)];
    let layers = tars.clone().map(|tar| (PLAIN, tar));
    image_of(&sandbox, "img", &layers, &tars, &json!({}));
    let convert = ["convert", "--no-cache", "--min-layer-size=12MiB", "oci:img:v1", "oci:img:soci"];
    sandbox.run(&convert);
    let said = sandbox.run(&["doctor", "oci:img:soci"]);
    assert!(said.contains("the index has no ztoc for it (11.0 MiB)"), "{said}");
    let next = "next: ociseek convert --dry-run --replace-tag oci:img:soci oci:img:soci\n";
    assert!(said.contains(next), "{said}");
}
