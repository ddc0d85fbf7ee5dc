//! Layers of zstd: their fine documents are made, and files are read by them.

use std::fs;

use serde_json::{Value, json};

use ociseek_testkit::copied::copied;
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::sandbox::{GZIP, Layout, Sandbox, ZSTD, gzip, tar};

/// The tars of the image's layers.
struct Layers {
    lower: Vec<u8>,
    upper: Vec<u8>,
}

/// An image of two layers of zstd, of several frames and of one, in `oci:img:v1`.
fn image(sandbox: &Sandbox) -> Layers {
    image_of(sandbox, [tar(7, 4, 400_000), tar(8, 3, 700_000)])
}

fn image_of(sandbox: &Sandbox, [lower, upper]: [Vec<u8>; 2]) -> Layers {
    let frames: Vec<u8> =
        lower.chunks(300_000).flat_map(|part| ::zstd::encode_all(part, 3).unwrap()).collect();
    let layers = [(ZSTD, frames), (ZSTD, ::zstd::encode_all(&upper[..], 9).unwrap())];
    let config = config(&[lower.clone(), upper.clone()]);
    Image::new(&config, layers).write(&sandbox.path("img"));
    Layers { lower, upper }
}

fn run(sandbox: &Sandbox, args: &[&str]) -> Value {
    sandbox.json(
        0,
        &[&["index", "--min-layer-size=1KiB", "--format=json"], args, &["oci:img:v1"]].concat(),
    )
}

fn fine(report: &Value) -> &Value {
    &report["images"][0]["manifests"][0]["fine"]
}

/// Reads a file of each layer with `cat`.
fn read_by_document(sandbox: &Sandbox, name: &str, layers: &Layers) {
    for (content, number) in [(&layers.upper, 0), (&layers.lower, 3)] {
        let mut archive = tar::Archive::new(&content[..]);
        let mut entry = archive.entries().unwrap().nth(number).unwrap().unwrap();
        let file = entry.path().unwrap().to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        let read = sandbox.command(&["cat", "--no-cache", name, &file]).output().unwrap();
        assert!(
            read.status.success() && read.stdout == bytes,
            "{file}: {}",
            String::from_utf8_lossy(&read.stderr)
        );
    }
}

#[test]
fn layers_of_zstd_are_read_by_their_documents() {
    let sandbox = Sandbox::new();
    let layers = image(&sandbox);
    let first = run(&sandbox, &["--kind=fine"]);
    assert_eq!(
        (&fine(&first)["status"], fine(&first)["documents"].as_array().unwrap().len()),
        (&json!("attached"), 2)
    );
    let again = run(&sandbox, &["--kind=fine"]);
    assert_eq!(
        (&fine(&again)["index"]["digest"], &again["bytes_read"]),
        (&fine(&first)["index"]["digest"], &json!(0))
    );
    let verified = sandbox.run(&["verify", "oci:img:v1"]);
    assert!(verified.contains(": ok (2 of 2 layers, 4 spans, 7 files, 3.5 MiB)"), "{verified}");
    read_by_document(&sandbox, "oci:img:v1", &layers);
}

#[test]
fn documents_of_zstd_layers_are_copied_and_used_again() {
    let sandbox = Sandbox::new();
    let layers = image(&sandbox);
    let first = run(&sandbox, &["--kind=fine"]);
    // For another profile, by the cached documents.
    let entry = tar::Archive::new(&layers.lower[..])
        .entries()
        .unwrap()
        .nth(1)
        .unwrap()
        .unwrap()
        .path()
        .unwrap()
        .into_owned();
    let path = format!("/{}", entry.display());
    let read = json!({"ms": 1.0, "path": path, "layer": "sha256:0", "offset": 0, "size": 4096, "spans": []});
    fs::write(sandbox.path("start.jsonl"), read.to_string()).unwrap();
    let second = run(&sandbox, &["--kind=fine", "--profile=start.jsonl"]);
    assert_eq!(fine(&second)["status"], "attached", "{second:#}");
    assert_ne!(fine(&second)["index"]["digest"], fine(&first)["index"]["digest"]);
    let whole = first["bytes_read"].as_u64().unwrap();
    assert!(
        second["bytes_read"].as_u64().unwrap() < whole / 2,
        "{} of {whole}",
        second["bytes_read"]
    );
    read_by_document(&sandbox, "oci:img:v1", &layers);

    copied(&sandbox, "oci:img:v1", "oci:copied:v1");
    read_by_document(&sandbox, "oci:copied:v1", &layers);
    let verified = sandbox.run(&["verify", "--no-cache", "oci:copied:v1"]);
    assert!(verified.contains(": ok (2 of 2 layers"), "{verified}");
}

#[test]
fn a_broken_layer_of_zstd_has_no_document_and_the_others_do() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let content = tar(3, 3, 300_000);
    let sound = ::zstd::encode_all(&content[..], 3).unwrap();
    let layers = [
        layout.blob(ZSTD, &sound),
        layout.blob(ZSTD, &sound[..sound.len() / 2]),
        layout.blob(GZIP, &gzip(&content)),
    ];
    let image = layout.image("amd64", &layers);
    layout.tag(image, "v1");
    let indexed = run(&sandbox, &["--kind=v1,fine", "--no-cache"]);
    let manifest = &indexed["images"][0]["manifests"][0];
    assert_eq!(
        (&manifest["status"], &manifest["fine"]["status"]),
        (&json!("attached"), &json!("attached"))
    );
    assert_eq!(manifest["fine"]["documents"].as_array().unwrap().len(), 2, "{indexed:#}");
    let said = sandbox.run(&[
        "index",
        "--kind=v1,fine",
        "--no-cache",
        "--min-layer-size=1KiB",
        "--progress=none",
        "oci:img:v1",
    ]);
    let warning =
        "has no fine document: it cannot be decoded: the zstd data is truncated inside a frame";
    assert!(said.contains(warning) && said.ends_with("--- status 0 ---"), "{said}");
}

#[test]
fn an_image_of_zstd_layers_can_name_its_fine_index() {
    let sandbox = Sandbox::new();
    let layers = image(&sandbox);
    let convert = |more: &[&str]| {
        let options = [
            "convert",
            "--fine",
            "--min-layer-size=1KiB",
            "--format=json",
            "oci:img:v1",
            "oci:new:v1",
        ];
        sandbox.json(0, &[&options, more].concat())
    };
    let first = convert(&[]);
    assert_eq!(
        (&first["status"], &first["manifests"][0]["index"]),
        (&json!("written"), &Value::Null),
        "{first:#}"
    );
    assert!(first["manifests"][0]["fine"].is_object(), "{first:#}");
    let again = convert(&["--no-cache"]);
    assert_eq!(
        (&again["status"], &again["digest"]),
        (&json!("already-there"), &first["digest"]),
        "{again:#}"
    );
    read_by_document(&sandbox, "oci:new:v1", &layers);
    let verified = sandbox.run(&["verify", "oci:new:v1"]);
    assert!(
        verified.contains("2 of 2 layers") && verified.ends_with("--- status 0 ---"),
        "{verified}"
    );
    // Without --fine, there is nothing to name.
    let nothing = sandbox.run(&["convert", "--min-layer-size=1KiB", "oci:img:v1", "oci:other:v1"]);
    assert!(nothing.ends_with("--- status 1 ---"), "{nothing}");
    let text =
        sandbox.run(&["convert", "--fine", "--min-layer-size=1KiB", "oci:img:v1", "oci:third:v1"]);
    assert!(
        text.contains("an image that names its fine index; SOCI consumers pull it whole"),
        "{text}"
    );
}

#[test]
fn doctor_gives_each_hint_once() {
    let sandbox = Sandbox::new();
    // Each is too large to count as small.
    image_of(&sandbox, [tar(7, 1, 24_000_000), tar(8, 1, 24_000_000)]);
    let text = sandbox.run(&["doctor", "oci:img:v1"]);
    assert_eq!(text.matches("is pulled whole: it is zstd").count(), 2, "{text}");
    assert_eq!(text.matches("next: build the image with gzip layers").count(), 1, "{text}");
}

#[test]
fn list_and_report_show_the_documents() {
    let sandbox = Sandbox::new();
    // The upper layer has several spans.
    let layers = image_of(&sandbox, [tar(7, 4, 400_000), tar(8, 12, 700_000)]);
    let read = json!({"ms": 1.0, "path": "dir8/file1", "layer": "sha256:0", "offset": 0, "size": 4096, "spans": []});
    fs::write(sandbox.path("start.jsonl"), read.to_string()).unwrap();
    let made = run(&sandbox, &["--kind=fine", "--profile=start.jsonl"]);
    let documents = fine(&made)["documents"].as_array().unwrap();
    let sum =
        |key: &str| documents.iter().map(|document| document[key].as_u64().unwrap()).sum::<u64>();
    // The window of the span that is read belongs to the recorded start.
    assert!(sum("head_size") < sum("start_size") && sum("start_size") < sum("size"), "{made:#}");

    let listed = sandbox.json(0, &["list", "--json", "oci:img"]);
    let shown = &listed["images"][0]["manifests"][0];
    assert_eq!(shown["indexes"], json!([]));
    let shown = &shown["fine"][0];
    assert_eq!(
        (&shown["digest"], &shown["chosen"]),
        (&fine(&made)["index"]["digest"], &json!(true))
    );
    assert_eq!(
        (&shown["bytes"], &shown["start_bytes"]),
        (&json!(sum("size")), &json!(sum("start_size")))
    );
    assert_eq!(
        (&shown["coverage"]["layers"], &shown["coverage"]["percent"]),
        (&json!(2), &json!(100.0))
    );
    let text = sandbox.run(&["list", "oci:img"]);
    assert!(text.contains("fine") && text.ends_with("--- status 0 ---"), "{text}");

    let report =
        sandbox.json(0, &["try", "--json", "--no-cache", "--profile=start.jsonl", "oci:img"]);
    assert_eq!((&report["index"], &report["coverage"]["layers"]), (&Value::Null, &json!(0)));
    assert_eq!(report["layers"][0]["reason"]["code"], "zstd", "{report:#}");
    let shown = &report["fine"];
    assert_eq!(
        (&shown["digest"], &shown["coverage"]["layers"]),
        (&fine(&made)["index"]["digest"], &json!(2))
    );
    assert_eq!(
        (&shown["bytes"], &shown["start_bytes"]),
        (&json!(sum("size")), &json!(sum("start_size")))
    );
    // By the documents, one span is fetched instead of both layers.
    let fetch = &shown["fetch"];
    assert_eq!((&fetch["whole_bytes"], &fetch["read_spans"]), (&json!(0), &json!(1)), "{fetch:#}");
    assert!(fetch["read_bytes"].as_u64() < Some(500_000), "{fetch:#}");
    assert_eq!(report["start"]["bytes"], report["coverage"]["of_bytes"]);
    let page =
        sandbox.run(&["try", "--no-cache", "--output=-", "--profile=start.jsonl", "oci:img"]);
    assert!(page.contains("<th>fine index</th>") && page.contains("<dt>Fine index</dt>"), "{page}");
    read_by_document(&sandbox, "oci:img:v1", &layers);
}
