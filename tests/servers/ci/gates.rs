//! The gates of `index`: `--strict` and `--min-coverage`.

use ociseek_testkit::sandbox::{self, GZIP, Layout, Sandbox, gzip, index, tar};
use serde_json::Value;

/// `index` with the options of [`index`], but another minimum layer size.
fn index_from<'a>(least: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    index(args)
        .into_iter()
        .map(|arg| if arg == "--min-layer-size=1KiB" { least } else { arg })
        .collect()
}

fn referrers(sandbox: &Sandbox) -> usize {
    let index: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("img/index.json")).unwrap()).unwrap();
    index["manifests"].as_array().unwrap().len() - 1
}

#[test]
fn strict_names_each_omitted_layer_and_attaches_nothing() {
    let sandbox = Sandbox::with_small_image();
    insta::assert_snapshot!(sandbox.run(&index(&["--strict", "oci:img"])), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      b7ffb93ee50b   199.1 KiB  9 spans  4 files  ztoc 289.6 KiB
      d92a9332da0b    61.0 KiB  4 spans  2 files      ztoc 840 B
      ee25e607aff9        24 B  left out: zstd: SOCI consumers support only gzip and uncompressed layers
      bbd59e0ff808     2.0 KiB   1 span   1 file   ztoc 32.4 KiB
      covers 3 of 4 layers, 99.99% of 262.2 KiB
      refused: nothing was written
    --- stderr ---
    error: oci:img: nothing was written: the index does not meet the requirements
      linux/amd64: layer sha256:ee25e607aff98c0624b0076c4dce5fb633362bf440fcd80f4bffed082398e119 was left out: zstd: SOCI consumers support only gzip and uncompressed layers
    --- status 1 ---
    "#);
    assert_eq!(referrers(&sandbox), 0);
    // Without --strict, the same layer is left out and the rest is indexed. After that, the
    // existing index counts.
    sandbox.json(0, &index(&["--format=json", "oci:img"]));
    assert_eq!(referrers(&sandbox), 1);
    let again = sandbox.json(1, &index(&["--format=json", "--strict", "oci:img"]));
    let image = &again["images"][0];
    assert_eq!(
        (&image["status"], &image["manifests"][0]["status"]),
        (&"failed".into(), &"refused".into())
    );
    let shortfalls = image["manifests"][0]["shortfalls"].as_array().unwrap();
    assert_eq!(shortfalls.len(), 1);
    assert_eq!(shortfalls[0]["code"], "left-out");
    assert!(shortfalls[0]["text"].as_str().unwrap().contains("zstd"));
    assert_eq!(referrers(&sandbox), 1);
}

#[test]
fn strict_ignores_small_layers() {
    let sandbox = Sandbox::with_two_platforms();
    let report = sandbox
        .json(0, &index_from("--min-layer-size=100KiB", &["--format=json", "--strict", "oci:img"]));
    let manifest = &report["images"][0]["manifests"][0];
    assert_eq!(
        (&manifest["coverage"]["layers"], &manifest["coverage"]["of_layers"]),
        (&1.into(), &2.into())
    );
}

#[test]
fn nothing_is_attached_if_one_platform_falls_short() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let good = layout.blob(GZIP, &gzip(&tar(1, 4, 50_000)));
    let zstd = layout.blob(sandbox::ZSTD, b"\x28\xb5\x2f\xfd, which nobody reads");
    let images = [("amd64", vec![good.clone()]), ("arm64", vec![good, zstd])].map(
        |(architecture, layers)| {
            sandbox::for_platform(layout.image(architecture, &layers), architecture)
        },
    );
    let list = layout.image_index(&images);
    layout.tag(list, "v1");
    let report = sandbox.json(1, &index(&["--format=json", "--strict", "oci:img"]));
    let manifests = report["images"][0]["manifests"].as_array().unwrap();
    assert_eq!(
        manifests.iter().map(|m| m["shortfalls"].as_array().unwrap().len()).collect::<Vec<_>>(),
        [0, 1]
    );
    assert_eq!(referrers(&sandbox), 0);
    sandbox.json(0, &index(&["--format=json", "--strict", "--platform=linux/amd64", "oci:img"]));
    assert_eq!(referrers(&sandbox), 1);
}

#[test]
fn coverage_is_a_share_of_the_compressed_bytes() {
    let sandbox = Sandbox::with_small_image();
    insta::assert_snapshot!(
        sandbox.run(&index_from("--min-layer-size=0", &["--min-coverage=100%", "oci:img"])), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      b7ffb93ee50b   199.1 KiB  9 spans  4 files  ztoc 289.6 KiB
      d92a9332da0b    61.0 KiB  4 spans  2 files      ztoc 840 B
      ee25e607aff9        24 B  left out: zstd: SOCI consumers support only gzip and uncompressed layers
      bbd59e0ff808     2.0 KiB   1 span   1 file   ztoc 32.4 KiB
      covers 3 of 4 layers, 99.99% of 262.2 KiB
      refused: nothing was written
    --- stderr ---
    error: oci:img: nothing was written: the index does not meet the requirements
      linux/amd64: 99.99% of 262.2 KiB in layers covered, less than 100%: 24 B missing
    --- status 1 ---
    "#);
    assert_eq!(referrers(&sandbox), 0);
    for (least, layers, status) in
        [("100%", "100KiB", 0), ("100%", "1KiB", 0), ("99.9%", "0", 0), ("100", "0", 1)]
    {
        let least = format!("--min-coverage={least}");
        let layers = format!("--min-layer-size={layers}");
        let report = sandbox
            .json(status, &index_from(&layers, &["--dry-run", "--format=json", &least, "oci:img"]));
        let coverage = &report["images"][0]["manifests"][0]["coverage"];
        assert_eq!(coverage["of_bytes"], 268_483, "{coverage}");
    }
    assert_eq!(referrers(&sandbox), 0);
}

#[test]
fn an_image_of_small_layers_passes() {
    let sandbox = Sandbox::with_small_image();
    let least = "--min-layer-size=1GiB";
    for gate in [&[][..], &["--min-coverage=100%"]] {
        let text = sandbox.run(&index_from(least, &[gate, &["oci:img"]].concat()));
        assert!(
            text.contains("no index: all layers are small") || text.contains("no index: none"),
            "{text}"
        );
        assert!(text.ends_with("--- status 0 ---"), "{text}");
    }
}

#[test]
fn an_existing_index_is_measured_and_kept() {
    let sandbox = Sandbox::with_small_image();
    sandbox.run(&index_from("--min-layer-size=100KiB", &["oci:img"]));
    let args =
        index_from("--min-layer-size=1KiB", &["--existing=keep", "--min-coverage=90%", "oci:img"]);
    let text = sandbox.run(&args);
    assert!(!text.contains("no index") && text.contains("existed before and was kept"), "{text}");
    assert!(
        text.contains("in layers of at least 1KiB covered, less than 90%: 63.0 KiB missing"),
        "{text}"
    );
    assert!(text.contains("hint: --existing replace rebuilds the existing index"), "{text}");
    let json = sandbox.json(1, &[&args[..], &["--format=json"]].concat());
    let manifest = &json["images"][0]["manifests"][0];
    assert!(text.contains(manifest["index"]["digest"].as_str().unwrap()), "{text}");
    assert!(manifest["index"]["size"].is_u64(), "{json}");
    assert_eq!(referrers(&sandbox), 1);
}

#[test]
fn an_invalid_percentage_is_a_usage_error() {
    for wrong in ["0.8", "101%", "80%%", "all", ""] {
        let text = Sandbox::new().run(&["index", &format!("--min-coverage={wrong}"), "oci:img"]);
        assert!(text.ends_with("--- status 2 ---") && text.contains("--min-coverage"), "{text}");
    }
}

#[test]
fn version_2_has_the_same_gates() {
    let sandbox = Sandbox::with_small_image();
    let convert = |gate: &str| {
        sandbox.run(&[
            "convert",
            "--min-layer-size=0",
            "--no-cache",
            gate,
            "oci:img:v1",
            "oci:img:v1-soci",
        ])
    };
    for (gate, why) in [
        ("--strict", "linux/amd64: layer sha256:ee25e607aff9"),
        (
            "--min-coverage=100%",
            "linux/amd64: 99.99% of 262.2 KiB in layers covered, less than 100%: 24 B missing",
        ),
    ] {
        let text = convert(gate);
        assert!(text.contains("refused: nothing was written") && text.contains(why), "{text}");
        assert!(text.ends_with("--- status 1 ---"), "{text}");
        let kind = ["--kind=v2=v1-soci", "--format=json", gate, "oci:img:v1"];
        let report = sandbox.json(1, &index_from("--min-layer-size=0", &kind));
        let image = &report["images"][0];
        assert_eq!(
            (&image["status"], &image["manifests"][0]["status"]),
            (&"failed".into(), &"refused".into())
        );
        assert_eq!(referrers(&sandbox), 0);
    }
    assert!(convert("--min-coverage=99%").ends_with("--- status 0 ---"));
    assert_eq!(referrers(&sandbox), 1);
    let files = ["--kind=v2={tag}-soci", "--step-summary=sum", "oci:img:v1"];
    sandbox.run(&index_from("--min-layer-size=0", &files));
    let summary = std::fs::read_to_string(sandbox.path("sum")).unwrap();
    assert!(
        summary.contains("| linux/amd64 | in the SOCI-enabled image | 99.99% of 262.2 KiB"),
        "{summary}"
    );
    assert!(
        summary.contains("- linux/amd64: layer `ee25e607aff9` (24 B) is left out: zstd"),
        "{summary}"
    );
}
