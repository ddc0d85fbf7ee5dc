//! Verification of fine indexes: valid ones in a layout and in a real registry, and each kind of
//! damage with its code.

use insta::assert_snapshot;
use ociseek_format::digest::{ChainState, Digest};
use ociseek_format::image::fine::{FINE_INDEX, FineIndex, parse};
use serde_json::{Value, json};

use super::image::{Image, QUICK, codes};
use super::signatures::{Key, Signed, payload};
use ociseek_testkit::fine::{DocumentParts, with_wrong_byte};
use ociseek_testkit::servers;

/// An image with only a fine index.
fn image() -> Image {
    let image = Image::unindexed(|_| {});
    image.run_index(&["--kind=fine"]);
    image
}

fn digest(image: &Image) -> Digest {
    let listed = std::fs::read(image.dir.join("index.json")).unwrap();
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    let found = listed["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["artifactType"] == FINE_INDEX);
    found.unwrap()["digest"].as_str().unwrap().parse().unwrap()
}

fn index(image: &Image) -> FineIndex {
    parse(&image.read(&digest(image))).unwrap()
}

/// Replaces the fine index.
fn edit_index(image: &Image, change: impl FnOnce(&mut FineIndex)) {
    let old = digest(image);
    let size = image.read(&old).len();
    let mut index = index(image);
    change(&mut index);
    let new = index.encode().bytes;
    let text = |digest: &Digest, size: usize| format!("\"digest\":\"{digest}\",\"size\":{size}");
    let path = image.dir.join("index.json");
    let listed = std::fs::read_to_string(&path).unwrap();
    let changed = listed.replace(&text(&old, size), &text(&image.write(&new), new.len()));
    std::fs::write(path, changed).unwrap();
}

/// Replaces the first layer's document by another consistent one.
fn edit_document(image: &Image, change: impl FnOnce(&mut DocumentParts)) {
    let bytes = image.read(&index(image).layers[0].document);
    let mut parts = DocumentParts::of(&bytes);
    change(&mut parts);
    let encoded = parts.encoded();
    let document = image.write(&encoded.bytes);
    edit_index(image, |index| {
        let reference = &mut index.layers[0];
        (reference.document, reference.size) = (document, encoded.bytes.len() as u64);
        (reference.head_size, reference.head_digest) = (encoded.head_size, encoded.head_digest);
        reference.start_size = encoded.start_size;
    });
}

/// Checks the exact codes of a full verification and of one by spans.
fn found(image: &Image, full: &[&str], quick: &[&str]) {
    assert_eq!(image.codes(&[]), full);
    assert_eq!(image.codes(&QUICK), quick);
}

#[test]
fn a_correct_fine_index_is_reported_in_one_line() {
    let image = image();
    let fine = digest(&image);
    let document = image.verify(0, &[]);
    let layers = &document["manifests"][0]["fine"][0]["layers"];
    let spans: u64 =
        layers.as_array().unwrap().iter().map(|layer| layer["of_spans"].as_u64().unwrap()).sum();
    let masked = |text: String| {
        text.replace(&fine.to_string(), "FINE").replace(&format!("{spans} spans"), "N spans")
    };
    let text = masked(image.sandbox.run(&["verify", "oci:img:v1"]));
    assert_snapshot!(text, @r#"
    oci:img:v1 linux/amd64: fine index FINE: ok (3 of 4 layers, N spans, 11 files, 606.0 KiB)
    --- stderr ---
    --- status 0 ---
    "#);
    let text =
        masked(image.sandbox.run(&["verify", "--quick", "--spans=100", "--seed=1", "oci:img:v1"]));
    let all = format!("{spans} of N spans");
    assert_snapshot!(text.replace(&all, "all of N spans"), @r#"
    oci:img:v1 linux/amd64: fine index FINE: ok (3 of 4 layers, all of N spans (--seed 1))
    --- stderr ---
    --- status 0 ---
    "#);
    // Each layer and each document is read once.
    let blobs: u64 = image.layers[..3].iter().map(|layer| image.read(layer).len() as u64).sum();
    let documents: u64 = index(&image).layers.iter().map(|document| document.size).sum();
    assert_eq!(document["bytes_read"], blobs + documents);
    for (layer, reference) in layers.as_array().unwrap().iter().zip(index(&image).layers) {
        assert_eq!(layer["digest"], reference.layer.to_string());
        assert_eq!(layer["document"]["digest"], reference.document.to_string());
        assert_eq!(layer["spans"], layer["of_spans"]);
    }
    // Another index was requested.
    let other = Digest::sha256(b"another").to_string();
    let output =
        image.sandbox.command(&["verify", "--index", &other, "oci:img:v1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn both_kinds_are_verified_in_a_real_registry() {
    let (Some(server), Some(crane)) = (servers::Server::crane(), servers::tool("crane")) else {
        return;
    };
    let image = Image::unindexed(|_| {});
    let name = format!("{}/app:v1", server.host);
    servers::run(&crane, &["push", image.dir.to_str().unwrap(), &name]);
    let args = ["index", "--quiet", "--no-cache", "--kind=v1,fine", "--min-layer-size=1KiB", &name];
    let output = image.sandbox.command(&args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for more in [&[][..], &QUICK] {
        let args = [&["verify", "--format=json", "--progress=none", &name], more].concat();
        let manifest = &image.sandbox.json(0, &args)["manifests"][0];
        assert_eq!(manifest["indexes"][0]["layers"].as_array().unwrap().len(), 3, "{manifest:#}");
        assert_eq!(manifest["fine"][0]["layers"].as_array().unwrap().len(), 3, "{manifest:#}");
        // Only one of them.
        let fine = manifest["fine"][0]["digest"].as_str().unwrap();
        let alone =
            &image.sandbox.json(0, &[&args[..], &["--index", fine]].concat())["manifests"][0];
        assert_eq!((&alone["indexes"], &alone["fine"]), (&json!([]), &manifest["fine"]));
        assert_eq!(alone["warnings"], json!([]));
        let soci = manifest["indexes"][0]["digest"].as_str().unwrap();
        let alone =
            &image.sandbox.json(0, &[&args[..], &["--index", soci]].concat())["manifests"][0];
        assert_eq!((&alone["indexes"], &alone["fine"]), (&manifest["indexes"], &json!([])));
    }
}

#[test]
fn policies_judge_fine_indexes_too() {
    let key = Key::p256();
    let signed = Signed::new(&key);
    let payload = payload(&signed.index);
    signed.tag(&[signed.layer(&payload, &key.sign(payload.as_bytes()))]);
    let image = &signed.image;
    let by_key = ["--signature-key=key.pub", "--min-coverage=0%"];
    let judged = |status: i32, more: &[&str]| image.verify(status, &[&QUICK[..], more].concat());
    judged(0, &by_key);
    judged(0, &["--fine-index=none"]);
    // A stranger's fine index: it is right, but who made it is not known.
    image.run_index(&["--kind=fine"]);
    let document = judged(3, &by_key);
    let fine = &document["manifests"][0]["fine"][0];
    assert_eq!(
        (&fine["policy"][0]["rule"], &fine["policy"][0]["status"]),
        (&json!("signature"), &json!("broken"))
    );
    assert_eq!(fine["policy"][0]["violations"][0]["code"], "signature-missing");
    assert_eq!(fine["policy"].as_array().unwrap().len(), 1, "coverage is about SOCI indexes");
    assert_eq!(document["manifests"][0]["indexes"][0]["policy"][0]["status"], "kept");
    judged(0, &[&by_key[..], &["--fine-index=unsigned"]].concat());
    assert_eq!(codes(&judged(3, &[&by_key[..], &["--fine-index=none"]].concat())), ["fine-index"]);
    assert_eq!(codes(&judged(3, &["--fine-index=none"])), ["fine-index"]);
    let text = image.sandbox.run(&["verify", "--quick", "--signature-key=key.pub", "oci:img:v1"]);
    assert!(text.contains(&format!("fine index {}: 1 violation", digest(image))), "{text}");
    // In a file, and an option overrides it.
    std::fs::write(
        image.sandbox.path("p.json"),
        r#"{"signature_keys": ["key.pub"], "fine_index": "none"}"#,
    )
    .unwrap();
    assert_eq!(codes(&judged(3, &["--policy=p.json"])), ["fine-index"]);
    judged(0, &["--policy=p.json", "--fine-index=unsigned"]);
    // Signed by the same key.
    let own = super::signatures::payload(&digest(image));
    signed.tag_for(&digest(image), &[signed.layer(&own, &key.sign(own.as_bytes()))]);
    judged(0, &by_key);
}

#[test]
fn a_missing_or_damaged_document() {
    let image = image();
    let document = index(&image).layers[1].document;
    image.damage(&document, |document| *document.last_mut().unwrap() ^= 1);
    found(&image, &["document-damaged"], &["document-damaged"]);
    std::fs::remove_file(image.path(&document)).unwrap();
    found(&image, &["document-missing"], &["document-missing"]);
    let text = image.sandbox.run(&["verify", "oci:img:v1"]);
    assert!(
        text.contains(&format!(
            "  layer {} document {document}\n    document-missing: ",
            image.layers[1]
        )),
        "{text}"
    );
    assert!(text.contains("--- status 3 ---"), "{text}");
}

#[test]
fn a_fine_index_with_wrong_facts_about_a_document() {
    type Change = fn(&mut FineIndex);
    let changes: [Change; 4] = [
        |index| index.layers[0].head_digest = Digest::sha256(b"another"),
        |index| index.layers[0].head_size -= 1,
        |index| index.layers[0].start_size += 1,
        |index| {
            // The document of another layer.
            let layer = index.layers[0].layer;
            index.layers[0] =
                ociseek_format::image::fine::FineRef { layer, ..index.layers[2].clone() };
        },
    ];
    for change in changes {
        let image = image();
        edit_index(&image, change);
        found(&image, &["document-malformed"], &["document-malformed"]);
    }
    let image = image();
    edit_index(&image, |index| index.layers[0].layer = Digest::sha256(b"of another image"));
    found(&image, &["layer-not-in-image"], &["layer-not-in-image"]);
}

#[test]
fn a_page_that_cannot_be_decoded() {
    let image = image();
    let mut reference = index(&image).layers[0].clone();
    let mut bytes = image.read(&reference.document);
    assert!(reference.head_size < reference.size, "it has a page");
    *bytes.last_mut().unwrap() ^= 1;
    reference.document = image.write(&bytes);
    edit_index(&image, |index| index.layers[0] = reference);
    found(&image, &["document-malformed"], &["document-malformed"]);
}

#[test]
fn an_entry() {
    let image = image();
    edit_document(&image, |parts| parts.entries[1].mode = 0o4755);
    found(&image, &["entry-field"], &["entry-field"]);
    let text = image.sandbox.run(&["verify", "oci:img:v1"]);
    assert!(text.contains("entry-field: entry 1 of the fine document, "), "{text}");
    edit_document(&image, |parts| {
        parts.entries.remove(2);
    });
    let full = image.codes(&[]);
    assert!(full.contains(&"entry-missing".to_owned()), "{full:?}");
}

#[test]
fn a_used_byte_of_a_window() {
    let image = image();
    edit_document(&image, |parts| parts.windows[0] = with_wrong_byte(&parts.windows[0]));
    found(&image, &["span-content"], &["checkpoint-window"]);
}

#[test]
fn a_proof() {
    let image = image();
    edit_document(&image, |parts| {
        let mut state = parts.starts[1].state.to_bytes();
        state[31] ^= 1;
        parts.starts[1].state = ChainState::from_bytes(state);
    });
    found(&image, &["span-digest"], &["span-digest"]);
}

#[test]
fn a_byte_of_a_layer() {
    let image = image();
    image.damage(&image.layers[1], |layer| layer[40_000] ^= 0x10);
    let full = image.codes(&[]);
    assert!(
        ["layer-digest", "span-digest"].iter().all(|word| full.contains(&(*word).to_owned())),
        "{full:?}"
    );
    assert_eq!(image.codes(&QUICK), ["span-digest"]);
}
