//! Each kind of damage, with its code. `mutations` changes each field of a document.

use ociseek_format::digest::Digest;
use ociseek_format::offset::Uncompressed;
use ociseek_format::ztoc::{Checkpoints, FileKind, Ztoc};

use super::image::{Image, QUICK, found};
use ociseek_testkit::sandbox::{GZIP, tar};

fn checkpoint(ztoc: &mut Ztoc, number: usize) -> &mut ociseek_format::ztoc::Checkpoint {
    match &mut ztoc.checkpoints {
        Checkpoints::Gzip { list, .. } => &mut list[number],
        Checkpoints::Uncompressed { .. } => panic!("not a gzip layer"),
    }
}

#[test]
fn a_byte_of_a_layer() {
    for (place, at) in [(0, 30_000), (1, 40_000), (2, 15_000)] {
        let image = Image::new();
        image.damage(&image.layers[place], |layer| layer[at] ^= 0x10);
        found(&image, &["layer-digest", "span-digest"], &["span-digest"]);
    }
}

#[test]
fn a_truncated_layer() {
    let image = Image::new();
    // The CRC after the data: only the last span's digest and the decoder detect it.
    image.damage(&image.layers[0], |layer| {
        let end = layer.len();
        layer[end - 6] ^= 1;
    });
    found(&image, &["layer-digest", "span-digest", "broken-layer"], &["span-digest"]);
    let image = Image::new();
    image.damage(&image.layers[0], |layer| layer.truncate(layer.len() - 1));
    found(&image, &["layer-damaged"], &["layer-damaged"]);
}

#[test]
fn missing_blobs() {
    let image = Image::new();
    std::fs::remove_file(image.path(&image.layers[1])).unwrap();
    found(&image, &["layer-missing"], &["layer-missing"]);
    let image = Image::new();
    std::fs::remove_file(image.path(&image.ztoc(1).0)).unwrap();
    found(&image, &["ztoc-missing"], &["ztoc-missing"]);
    // A layer without a ztoc is never requested.
    let image = Image::new();
    std::fs::remove_file(image.path(&image.layers[3])).unwrap();
    found(&image, &[], &[]);
}

#[test]
fn a_ztoc_with_a_wrong_digest() {
    let image = Image::new();
    image.damage(&image.ztoc(0).0, |ztoc| ztoc[5000] ^= 1);
    found(&image, &["ztoc-damaged"], &["ztoc-damaged"]);
    let image = Image::new();
    image.replace_ztoc(0, b"this is no ztoc, but its digest is right");
    found(&image, &["ztoc-malformed"], &["ztoc-malformed"]);
}

#[test]
fn a_window() {
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| checkpoint(ztoc, 3).window[20_000] ^= 1);
    found(&image, &["checkpoint-window"], &["checkpoint-window"]);
}

#[test]
fn a_checkpoint() {
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| {
        let at = checkpoint(ztoc, 2);
        at.output = Uncompressed(at.output.0 + 1);
    });
    assert_ne!(image.codes(&QUICK), [""; 0]);
}

#[test]
fn a_span_digest() {
    for place in [0, 1] {
        let image = Image::new();
        image.edit_ztoc(place, |ztoc| ztoc.span_digests[1] = Digest::sha256(b"another"));
        found(&image, &["span-digest"], &["span-digest"]);
    }
}

#[test]
fn missing_and_invented_entries() {
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| {
        ztoc.files.remove(2);
    });
    found(&image, &["entry-missing"], &["entry-field"]);
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| {
        let mut last = ztoc.files[0].clone();
        last.name = b"made-up"[..].into();
        last.offset = ztoc.uncompressed_size;
        last.size = 0;
        ztoc.files.push(last);
    });
    found(&image, &["entry-added"], &["entry-added"]);
}

#[test]
fn at_most_a_thousand_differences_of_a_layer_are_listed() {
    let image = Image::of(&[(GZIP, &tar(1, 1100, 10))], |_| {});
    image.run_index(&[]);
    image.edit_ztoc(0, |ztoc| ztoc.files.iter_mut().for_each(|file| file.uid += 1));
    assert_eq!(image.codes(&[]), ["entry-field", "more"]);
}

#[test]
fn spans_that_start_too_late() {
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| checkpoint(ztoc, 0).output.0 += 1);
    found(&image, &["spans"], &["spans"]);
}

#[test]
fn entries_in_another_order() {
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| ztoc.files.swap(1, 2));
    found(&image, &["entry-order"], &["entry-field"]);
}

#[test]
fn a_ztoc_for_another_compression() {
    let image = Image::new();
    let plain = image.read(&image.ztoc(1).0);
    image.replace_ztoc(0, &plain);
    // A reader of spans sees that they are not those of the layer.
    found(&image, &["compression"], &["size", "span-digest"]);
}

#[test]
fn a_layer_that_is_not_a_tar() {
    let image =
        Image::of(&[(GZIP, &tar(1, 6, 70_000)), (GZIP, &b"not a tar".repeat(20_000))], |_| {});
    image.run_index(&[]);
    image.edit_index(&image.layers[0].to_string(), &image.layers[1].to_string());
    found(&image, &["broken-tar"], &["size", "span-range"]);
}

#[test]
fn an_entry_at_the_end_of_another() {
    // No header fits between them. A reader of all entries sees that the offset is wrong.
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| ztoc.files[2].offset = Uncompressed(ztoc.files[2].offset.0 - 512));
    found(&image, &["entry-field"], &["entry-range"]);
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| ztoc.files.last_mut().unwrap().offset = ztoc.uncompressed_size);
    found(&image, &["entry-field"], &["entry-range"]);
}

#[test]
fn wrong_sizes_and_versions() {
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| ztoc.compressed_size.0 += 1);
    // Only a reader of spans asks for bytes after the end of the layer.
    found(&image, &["size"], &["size", "span-range"]);
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| ztoc.version = b"0.8"[..].into());
    found(&image, &["version"], &["version"]);
}

#[test]
fn layers_that_consumers_refuse() {
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| {
        ztoc.files[5].kind = FileKind::HardLink;
        ztoc.files[5].size = 0;
        ztoc.files[5].linkname = b"nowhere"[..].into();
    });
    found(&image, &["unservable"], &["unservable"]);
}

/// What `doctor` says of soci-snapshotter with version 1 enabled.
pub fn consumer(image: &Image, status: i32) -> serde_json::Value {
    let report = image.sandbox.json(status, &["doctor", "--format=json", "oci:img:v1"]);
    report["manifests"][0]["consumers"][1].clone()
}

#[test]
fn the_effect_of_a_broken_ztoc_on_consumers_is_reported() {
    let layers = |consumer: &serde_json::Value| consumer["coverage"]["layers"].as_u64();
    let text = |image: &Image| {
        String::from_utf8(image.sandbox.command(&["doctor", "oci:img:v1"]).output().unwrap().stdout)
    };
    let all = layers(&consumer(&Image::new(), 0)).unwrap();
    assert!(all > 1);
    // It has its digest but is not a ztoc: only its layer is pulled whole.
    let image = Image::new();
    image.replace_ztoc(0, b"not a ztoc, but its digest is right");
    assert_eq!(layers(&consumer(&image, 0)), Some(all - 1));
    assert!(text(&image).unwrap().contains("consumers pull this layer whole"));
    // Nobody uses an index if one of its blobs does not have its digest.
    let image = Image::new();
    image.damage(&image.ztoc(0).0, |ztoc| ztoc[5000] ^= 1);
    assert_eq!(consumer(&image, 3)["reason"]["code"], "broken-ztoc");
    assert!(text(&image).unwrap().contains("consumers pull the image whole"));
    // Another layer's is taken, and what is read through it is refused.
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| ztoc.compressed_size.0 += 1);
    assert_eq!(consumer(&image, 3)["reason"]["code"], "wrong-ztoc");
    assert!(text(&image).unwrap().contains("  fails  index "));
}

#[test]
fn diff_ids() {
    let image = Image::unindexed(|config| {
        config["rootfs"]["diff_ids"][2] = Digest::sha256(b"another").to_string().into();
    });
    image.run_index(&[]);
    found(&image, &["diff-id"], &[]);
    let image = Image::unindexed(|config| {
        config["rootfs"]["diff_ids"].as_array_mut().unwrap().pop();
    });
    image.run_index(&[]);
    found(&image, &["config"], &["config"]);
}

/// The index of an image with the prefetch list `list` for its first layer.
fn with_list(list: &str) -> Image {
    let image = Image::new();
    let digest = image.write(list.as_bytes());
    let layer = image.layers[0];
    let entry = format!(
        r#",{{"mediaType":"application/vnd.amazon.soci.prefetch.v1+json","digest":"{digest}","size":{},"annotations":{{"com.amazon.soci.image-layer-digest":"{layer}"}}}}],"subject""#,
        list.len()
    );
    image.edit_index(r#"],"subject""#, &entry);
    image
}

fn spans(ranges: &[(u32, u32)]) -> String {
    let ranges: Vec<String> =
        ranges.iter().map(|(a, b)| format!(r#"{{"start_span":{a},"end_span":{b}}}"#)).collect();
    format!(r#"{{"version":"1.0","prefetch_spans":[{}]}}"#, ranges.join(","))
}

#[test]
fn a_prefetch_list() {
    let image = Image::new();
    let ztoc = ociseek_format::ztoc::decode(&image.read(&image.ztoc(0).0)).unwrap();
    let last = ztoc.span_digests.len() as u32 - 1;
    let image = with_list(&spans(&[(0, 1), (3, last)]));
    found(&image, &[], &[]);
    for (list, word) in [
        (spans(&[(0, last + 1)]), "prefetch-range"),
        (spans(&[(0, 0), (u32::MAX, u32::MAX)]), "prefetch-range"),
        (spans(&[]), "prefetch-malformed"),
        (spans(&[(2, 1)]), "prefetch-malformed"),
        ("{}".to_owned(), "prefetch-malformed"),
    ] {
        found(&with_list(&list), &[word], &[word]);
    }
    // A span that is listed twice is fetched once.
    let image = with_list(&spans(&[(1, 2), (0, 1)]));
    let warnings = image.verify(0, &[])["manifests"][0]["warnings"].to_string();
    assert!(warnings.contains("names a span twice"), "{warnings}");

    let list = spans(&[(0, 1)]);
    let digest = Digest::sha256(list.as_bytes());
    let image = with_list(&list);
    image.damage(&digest, |list| list[20] ^= 1);
    found(&image, &["prefetch-damaged"], &["prefetch-damaged"]);
    std::fs::remove_file(image.path(&digest)).unwrap();
    found(&image, &["prefetch-missing"], &["prefetch-missing"]);
    // A list for a layer without a ztoc, one without a layer, and a second one.
    let layer = r#""com.amazon.soci.image-layer-digest":"#;
    for (old, new) in [
        (
            format!(r#"{{{layer}"{}"}}}}],"#, image.layers[0]),
            format!(r#"{{{layer}"{}"}}}}],"#, image.layers[3]),
        ),
        (
            format!(r#"{{{layer}"{}"}}}}],"#, image.layers[0]),
            format!(r#"{{{layer}"no digest"}}}}],"#),
        ),
    ] {
        let image = with_list(&list);
        image.edit_index(&old, &new);
        found(&image, &["prefetch-layer"], &["prefetch-layer"]);
    }
}
