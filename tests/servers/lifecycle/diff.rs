//! `ociseek diff`.

use serde_json::Value;

use super::{image, indexed_by, registries};
use crate::support::sandbox::{GZIP, Layout, Sandbox, gzip, tar};

fn codes(differences: &Value) -> Vec<&str> {
    let mut codes: Vec<&str> =
        differences.as_array().unwrap().iter().map(|d| d["code"].as_str().unwrap()).collect();
    codes.dedup();
    codes
}

/// The ztoc of a layer with these files, in the sandbox.
fn ztoc(sandbox: &Sandbox, name: &str, tar: &[u8], span_size: &str) -> String {
    std::fs::write(sandbox.path("layer"), gzip(tar)).unwrap();
    let span_size = format!("--span-size={span_size}");
    let text = sandbox.run(&["ztoc", "create", &span_size, "layer", "--output", name]);
    assert!(text.ends_with("--- status 0 ---"), "{text}");
    name.to_owned()
}

#[test]
fn ztocs_are_compared() {
    let sandbox = Sandbox::new();
    let base = tar(1, 3, 50_000);
    let a = ztoc(&sandbox, "a.ztoc", &base, "16KiB");
    let same = ztoc(&sandbox, "same.ztoc", &base, "16KiB");
    let report = sandbox.json(0, &["diff", "--format=json", &a, &same]);
    assert_eq!(
        (&report["status"], &report["differences"]),
        (&"same".into(), &Value::Array(Vec::new()))
    );
    assert_eq!(
        sandbox.run(&["diff", &a, &same]),
        "no difference\n--- stderr ---\n--- status 0 ---"
    );

    // Other spans for the same layer.
    let spans = ztoc(&sandbox, "spans.ztoc", &base, "32KiB");
    let report = sandbox.json(3, &["diff", "--format=json", &a, &spans]);
    let found = codes(&report["differences"]);
    assert_eq!(found[..2], ["span-size", "spans"]);
    assert!(found.contains(&"span-start") && found.contains(&"span-digest"), "{found:?}");
    assert!(!found.iter().any(|code| code.starts_with("entry")), "{found:?}");

    // A file with another mode, a removed one, and a new one.
    let mut changed = tar::Builder::new(Vec::new());
    for (number, entry) in tar::Archive::new(&base[..]).entries().unwrap().enumerate() {
        let entry = entry.unwrap();
        let mut header = entry.header().clone();
        match number {
            0 => header.set_mode(0o600),
            1 => header.set_path("dir1/new").unwrap(),
            _ => {}
        }
        header.set_cksum();
        changed.append(&header, entry).unwrap();
    }
    let b = ztoc(&sandbox, "b.ztoc", &changed.into_inner().unwrap(), "16KiB");
    let report = sandbox.json(3, &["diff", "--format=json", &a, &b]);
    let entries: Vec<_> = (report["differences"].as_array().unwrap().iter())
        .filter_map(|d| Some((d["code"].as_str().unwrap(), d["name"].as_str()?)))
        .collect();
    let want = [
        ("entry-field", "dir1/file0"),
        ("entry-removed", "dir1/file1"),
        ("entry-added", "dir1/new"),
    ];
    assert_eq!(entries, want);
    let text = sandbox.run(&["diff", &a, &b]);
    assert!(text.contains("entry-field: \"dir1/file0\": mode 0o644 in A, 0o600 in B\n"), "{text}");
    assert!(text.contains(" differences\n--- stderr ---\n--- status 3 ---"), "{text}");
    // A truncated file is not a ztoc.
    std::fs::write(sandbox.path("cut.ztoc"), b"no ztoc").unwrap();
    assert!(sandbox.run(&["diff", &a, "cut.ztoc"]).ends_with("--- status 1 ---"));
}

#[test]
fn indexes_of_images_are_compared() {
    for server in registries() {
        let Some((sandbox, image)) = image(&server) else { return };
        let theirs = indexed_by(&sandbox, "AWS SOCI CLI v0.2", &image);
        let ours = indexed_by(&sandbox, "ociseek v0.0.1", &image);
        let at = |digest: &str| format!("{}/a/b@{digest}", server.host);
        let report = sandbox.json(3, &["diff", "--format=json", &at(&theirs[0]), &at(&ours[0])]);
        assert_eq!(
            (&report["index_a"]["digest"], &report["index_b"]["digest"]),
            (&theirs[0].clone().into(), &ours[0].clone().into())
        );
        assert!(
            report["index_a"]["size"].is_u64() && report["index_b"]["size"].is_u64(),
            "{report}"
        );
        assert_eq!(codes(&report["differences"]), ["tool"]);
        for layer in report["layers"].as_array().unwrap() {
            assert_eq!(codes(&layer["differences"]), ["tool"]);
        }
        assert_eq!(report["layers"].as_array().unwrap().len(), 2);
        // For an image, the index that a reader takes. The two platforms share a layer.
        let report = sandbox
            .json(3, &["diff", "--format=json", "--platform=linux/arm64", &image, &at(&theirs[0])]);
        assert_eq!(codes(&report["differences"]).last(), Some(&"subject"));
        assert!(report["index_a"]["size"].is_u64(), "{report}");
        let layers = report["layers"].as_array().unwrap().iter();
        let all: Vec<_> = layers.flat_map(|layer| codes(&layer["differences"])).collect();
        assert!(all.contains(&"ztoc-removed") && all.contains(&"ztoc-added"), "{all:?}");
        let text = sandbox.run(&["diff", &at(&ours[0]), &at(&ours[0])]);
        assert!(text.ends_with("no difference\n--- stderr ---\n--- status 0 ---"), "{text}");
    }
}

#[test]
fn incomparable_inputs_are_refused() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layer = layout.blob(GZIP, &gzip(&tar(1, 1, 1000)));
    let image = layout.image("amd64", &[layer]);
    layout.tag(image, "v1");
    let text = sandbox.run(&["diff", "oci:img", "oci:img"]);
    assert!(
        text.contains("has no usable SOCI index") && text.contains("smaller than 10 MiB"),
        "{text}"
    );
    std::fs::write(sandbox.path("file"), b"").unwrap();
    for args in [["diff", "file", "oci:img"], ["diff", "UPPER", "oci:img"]] {
        let text = sandbox.run(&args);
        assert!(text.ends_with("--- status 2 ---"), "{text}");
    }
}
