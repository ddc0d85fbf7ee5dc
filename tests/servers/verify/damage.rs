//! Each kind of damage, with its code.

use ociseek::digest::Digest;
use ociseek::offset::Uncompressed;
use ociseek::ztoc::{Checkpoints, FileKind, Ztoc};

use super::image::{Image, QUICK};
use crate::support::sandbox::index;
use crate::support::servers;

/// Checks the codes of a full verification and of one by spans; each must be in the output.
fn found(image: &Image, full: &[&str], quick: &[&str]) {
    for (words, more) in [(full, &[][..]), (quick, &QUICK[..])] {
        if words.is_empty() {
            image.verify(0, more);
            continue;
        }
        let codes = image.codes(more);
        for word in words {
            assert!(codes.iter().any(|code| code == word), "{word} is not in {codes:?} ({more:?})");
        }
    }
}

fn checkpoint(ztoc: &mut Ztoc, number: usize) -> &mut ociseek::ztoc::Checkpoint {
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
fn the_end_of_a_layer() {
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
fn blobs_that_are_gone() {
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
fn a_ztoc_that_is_not_what_its_digest_says() {
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
    assert_ne!(image.codes(&[]), [""; 0]);
    assert_ne!(image.codes(&QUICK), [""; 0]);
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| {
        let at = checkpoint(ztoc, 2);
        at.bits = (at.bits + 1) % 8;
    });
    assert_ne!(image.codes(&[]), [""; 0]);
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
fn an_entry() {
    type Change = fn(&mut Ztoc);
    let changes: [Change; 7] = [
        |ztoc| ztoc.files[1].name = b"dir1/other"[..].into(),
        |ztoc| ztoc.files[1].mode = 0o4755,
        |ztoc| ztoc.files[1].uid = 1,
        |ztoc| ztoc.files[1].size -= 1,
        |ztoc| ztoc.files[1].mtime.as_mut().unwrap().seconds += 1,
        |ztoc| ztoc.files[1].offset = Uncompressed(ztoc.files[1].offset.0 + 512),
        |ztoc| ztoc.files[1].kind = FileKind::Fifo,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let image = Image::new();
        image.edit_ztoc(0, change);
        let codes = image.codes(&[]);
        assert!(codes.iter().any(|code| code.starts_with("entry-")), "{number}: {codes:?}");
    }
}

#[test]
fn entries_that_are_missing_or_made_up() {
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
fn sizes_and_version() {
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| ztoc.compressed_size.0 += 1);
    found(&image, &["size"], &["size"]);
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| ztoc.uncompressed_size.0 += 512);
    assert_ne!(image.codes(&[]), [""; 0]);
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| ztoc.version = b"0.8"[..].into());
    found(&image, &["version"], &["version"]);
}

#[test]
fn what_consumers_refuse() {
    let image = Image::new();
    image.edit_ztoc(0, |ztoc| {
        ztoc.files[5].kind = FileKind::HardLink;
        ztoc.files[5].size = 0;
        ztoc.files[5].linkname = b"nowhere"[..].into();
    });
    found(&image, &["unservable"], &["unservable"]);
}

#[test]
fn the_index_document() {
    let image = Image::new();
    image.edit_index(",\"subject\"", ", \"subject\"");
    found(&image, &["not-canonical"], &["not-canonical"]);

    let image = Image::new();
    image.edit_index("span-size\":\"16384\"", "span-size\":\"16385\"");
    found(&image, &["span-size-annotation"], &["span-size-annotation"]);

    let image = Image::new();
    image.edit_index("layer.v1.tar+gzip", "layer.v1.tar");
    found(&image, &["media-type-annotation"], &["media-type-annotation"]);

    let image = Image::new();
    let (layer, other) = (image.layers[0].to_string(), Digest::sha256(b"of another image").to_string());
    image.edit_index(&layer, &other);
    found(&image, &["layer-not-in-image"], &["layer-not-in-image"]);

    let image = Image::new();
    let (first, second) = (image.layers[0].to_string(), image.layers[2].to_string());
    image.edit_index(&second, &first);
    found(&image, &["second-ztoc"], &["second-ztoc"]);
    // The last one is used, as by soci-snapshotter. Here it is another layer's.
    found(&image, &["size"], &["size"]);
    assert_eq!(consumer(&image, 3)["reason"]["code"], "wrong-ztoc");

    // The ztoc of one layer, listed for another one.
    let image = Image::new();
    let ztoc = image.read(&image.ztoc(2).0);
    image.replace_ztoc(0, &ztoc);
    found(&image, &["size", "span-digest"], &["size", "span-digest"]);
}

/// What `doctor` says of soci-snapshotter with version 1 enabled.
fn consumer(image: &Image, status: i32) -> serde_json::Value {
    let report = image.sandbox.json(status, &["doctor", "--format=json", "oci:img:v1"]);
    report["manifests"][0]["consumers"][1].clone()
}

#[test]
fn what_consumers_do_about_a_broken_ztoc() {
    let layers = |consumer: &serde_json::Value| consumer["coverage"]["layers"].as_u64();
    let text =
        |image: &Image| String::from_utf8(image.sandbox.command(&["doctor", "oci:img:v1"]).output().unwrap().stdout);
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
fn the_first_of_two_indexes() {
    let image = Image::unindexed(|_| {});
    image.run_index(&["--build-tool-identifier=someone else's"]);
    image.run_index(&["--build-tool-identifier=another one's"]);
    // soci's decoder rejects unknown fields.
    image.edit_index("{", "{\"unknown\":1,");
    found(&image, &["index-malformed"], &["index-malformed"]);
    let (first, second) = (image.indexes()[0].to_string(), image.indexes()[1].to_string());
    let inspected = image.sandbox.json(0, &["inspect", "--format=json", "oci:img:v1"]);
    let indexes = inspected["manifests"][0]["indexes"].as_array().unwrap();
    assert_eq!((&indexes[0]["chosen"], &indexes[1]["chosen"]), (&false.into(), &true.into()));
    let code = &inspected["manifests"][0]["consumers"][1]["reason"]["code"];
    assert_eq!(code, "unusable", "consumers look at the first only");
    let output = image.sandbox.command(&["ls", "--json", "--no-cache", "oci:img:v1"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains(&format!("skipping SOCI index {first}")), "{errors}");
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listed["index"]["digest"], second);
}

#[test]
fn an_index_of_another_image() {
    // A layout lists by subject, so it is not an index of this image there.
    let image = Image::new();
    let text = image.manifest();
    let subject = text.split("\"subject\":").nth(1).unwrap().split("sha256:").nth(1).unwrap()[..64].to_owned();
    let other = Digest::sha256(b"another image").hex();
    image.edit_index(&subject, &other);
    let output = image.sandbox.command(&["verify", "oci:img:v1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    // A registry's tag can list it.
    let (Some(server), Some(crane)) = (servers::Server::crane(), servers::tool("crane")) else { return };
    let image = Image::unindexed(|_| {});
    let name = format!("{}/app:v1", server.host);
    servers::run(&crane, &["push", image.dir.to_str().unwrap(), &name]);
    image.sandbox.run(&index(&["--quiet", &name]));
    let inspected = image.sandbox.json(0, &["inspect", "--format=json", &name]);
    let found = inspected["manifests"][0]["indexes"][0]["digest"].as_str().unwrap().to_owned();
    assert_eq!(inspected["manifests"][0]["indexes"][0]["found_by"], "tag-schema");
    let manifest = servers::run(&crane, &["manifest", &format!("{}/app@{found}", server.host)]);
    let manifest = manifest.trim_end().replace(&subject, &other);
    let digest = Digest::sha256(manifest.as_bytes());
    let oci = crate::support::sandbox::OCI_MANIFEST;
    server.put_manifest("app", &digest.to_string(), oci, manifest.as_bytes());
    let tag = format!("sha256-{subject}");
    let list = servers::run(&crane, &["manifest", &format!("{}/app:{tag}", server.host)]);
    let list = list.trim_end().replace(&found, &digest.to_string());
    server.put_manifest("app", &tag, crate::support::sandbox::OCI_INDEX, list.as_bytes());
    let document = image.sandbox.json(3, &["verify", "--format=json", &name]);
    assert_eq!(super::codes(&document), ["subject"]);
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
    let ranges: Vec<String> = ranges.iter().map(|(a, b)| format!(r#"{{"start_span":{a},"end_span":{b}}}"#)).collect();
    format!(r#"{{"version":"1.0","prefetch_spans":[{}]}}"#, ranges.join(","))
}

#[test]
fn a_prefetch_list() {
    let image = Image::new();
    let ztoc = ociseek::ztoc::decode(&image.read(&image.ztoc(0).0)).unwrap();
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
        (format!(r#"{{{layer}"{}"}}}}],"#, image.layers[0]), format!(r#"{{{layer}"{}"}}}}],"#, image.layers[3])),
        (format!(r#"{{{layer}"{}"}}}}],"#, image.layers[0]), format!(r#"{{{layer}"no digest"}}}}],"#)),
    ] {
        let image = with_list(&list);
        image.edit_index(&old, &new);
        found(&image, &["prefetch-layer"], &["prefetch-layer"]);
    }
}
