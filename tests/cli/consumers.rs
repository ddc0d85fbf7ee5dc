//! The verdicts of `doctor` about the runtimes that read indexes.

use serde_json::{Value, json};

use ociseek_testkit::mounts::image;
use ociseek_testkit::sandbox::{Layout, OCI_MANIFEST, Sandbox, enabled, index, small_image};
use ociseek_testkit::tarball::many_files;

/// Copies `oci:img` to `name`, with this annotation for an index of version 2.
fn annotated(sandbox: &Sandbox, name: &str, annotation: &str) {
    let mut layout = Layout::new(&sandbox.path(name));
    let blobs = |name: &str| sandbox.path(name).join("blobs/sha256");
    for file in std::fs::read_dir(blobs("img")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), blobs(name).join(file.file_name())).unwrap();
    }
    let inspected = sandbox.doctor("oci:img");
    let digest = inspected["manifests"][0]["manifest"]["digest"].as_str().unwrap();
    let bytes = std::fs::read(blobs("img").join(&digest["sha256:".len()..])).unwrap();
    let mut manifest: Value = serde_json::from_slice(&bytes).unwrap();
    manifest["annotations"] = json!({"com.amazon.soci.index-digest": annotation});
    let descriptor = layout.blob(OCI_MANIFEST, manifest.to_string().as_bytes());
    layout.tag(descriptor, "v1");
}

#[test]
fn consumers_use_an_index_or_say_why_not() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("none"));
    small_image(&sandbox.path("img"));
    sandbox.run(&index(&["oci:img"]));
    for name in ["v2", "both", "gone"] {
        enabled(&sandbox);
        std::fs::rename(sandbox.path("enabled"), sandbox.path(name)).unwrap();
    }
    annotated(&sandbox, "odd", "not-a-digest");
    annotated(&sandbox, "empty", "");
    for name in ["both", "gone", "odd", "empty"] {
        sandbox.run(&index(&["--quiet", &format!("oci:{name}")]));
    }
    let gone = sandbox.doctor("oci:gone");
    let v2 = gone["manifests"][0]["indexes"][0]["digest"].as_str().unwrap();
    std::fs::remove_file(sandbox.path("gone/blobs/sha256").join(&v2["sha256:".len()..])).unwrap();

    let ways = |diagnosed: &Value| -> Vec<String> {
        let consumers = diagnosed["manifests"][0]["consumers"].as_array().unwrap().iter();
        let way = |one: &Value| match one["version"].as_u64() {
            Some(version) => format!("v{version}"),
            None => one["reason"]["code"].as_str().unwrap().to_owned(),
        };
        consumers.map(way).collect()
    };
    // With default settings, with soci_v1, with parallel pull, before 0.10; Fargate twice;
    // SageMaker.
    for (image, status, expected) in [
        (
            "none",
            3,
            ["no-index", "no-index", "reads-no-index", "no-index", "zstd", "zstd", "no-index"],
        ),
        (
            "img",
            0,
            [
                "other-version-only",
                "v1",
                "reads-no-index",
                "v1",
                "zstd",
                "zstd",
                "other-version-only",
            ],
        ),
        ("v2", 0, ["v2", "v2", "reads-no-index", "other-version-only", "zstd", "zstd", "v2"]),
        ("both", 0, ["v2", "v2", "reads-no-index", "v1", "zstd", "zstd", "v2"]),
        ("gone", 0, ["unusable", "unusable", "reads-no-index", "v1", "zstd", "zstd", "unusable"]),
        (
            "odd",
            0,
            [
                "odd-annotation",
                "odd-annotation",
                "reads-no-index",
                "v1",
                "zstd",
                "zstd",
                "odd-annotation",
            ],
        ),
        (
            "empty",
            0,
            [
                "other-version-only",
                "v1",
                "reads-no-index",
                "v1",
                "zstd",
                "zstd",
                "other-version-only",
            ],
        ),
    ] {
        let name = format!("oci:{image}");
        let diagnosed =
            sandbox.json(status, &["doctor", "--all-platforms", "--format=json", &name]);
        assert_eq!(ways(&diagnosed), expected, "{image}");
    }
}

/// What other runtimes do with an image does not depend on how much memory this program may use.
#[test]
fn our_limit_of_memory_is_no_verdict_on_others() {
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[many_files()], &json!({}));
    sandbox.run(&["index", "--min-layer-size=0", "--kind=v1,fine", "oci:img"]);
    let consumers = |memory: &str| {
        let found = sandbox.json(0, &["doctor", "--format=json", memory, "oci:img"]);
        found["manifests"][0]["consumers"].clone()
    };
    let verdicts = consumers("--max-memory=384MiB");
    assert!(verdicts.as_array().is_some_and(|list| !list.is_empty()), "{verdicts}");
    assert_eq!(consumers("--max-memory=12MiB"), verdicts);
    let text = sandbox.run(&["doctor", "--max-memory=12MiB", "oci:img"]);
    assert!(text.contains("was not examined"), "{text}");
    assert!(!text.contains("cannot be used"), "{text}");
}
