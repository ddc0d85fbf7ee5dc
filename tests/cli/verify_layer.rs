//! Every kind of damage to a layer or its ztoc is found and named.

use ociseek_testkit::sandbox;
use ociseek_testkit::tarball;
use std::sync::Arc;

use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::layer::prove::{Difference, LayerProof, Proof};
use ociseek_format::offset::{Compressed, SpanSize, Uncompressed};
use ociseek_format::tar::PaxRecord;
use ociseek_format::time::Time;
use ociseek_format::ztoc::{Checkpoint, Checkpoints, FileKind, Ztoc, encode};
use ociseek_testkit::layers::{SPAN, gzip, tar, ztoc};

fn proof(ztoc: &Ztoc, layer: &[u8], chunk: usize) -> Proof {
    let mut proof =
        LayerProof::new(Some(Arc::new(ztoc.clone())), Algorithm::Sha256, Algorithm::Sha256);
    layer.chunks(chunk).for_each(|chunk| proof.push(chunk));
    proof.finish()
}

fn differences(ztoc: &Ztoc, layer: &[u8]) -> Vec<Difference> {
    proof(ztoc, layer, 64 << 10).differences
}

/// The distinct codes, sorted.
fn codes(differences: &[Difference]) -> Vec<&'static str> {
    let mut codes: Vec<_> = differences.iter().map(|found| found.code().word()).collect();
    codes.sort();
    codes.dedup();
    codes
}

fn checkpoint(ztoc: &mut Ztoc, number: usize) -> &mut Checkpoint {
    match &mut ztoc.checkpoints {
        Checkpoints::Gzip { list, .. } => &mut list[number],
        Checkpoints::Uncompressed { .. } => panic!("the layer is gzip"),
    }
}

#[test]
fn a_correct_ztoc_has_no_differences() {
    let tar = tar();
    for layer in [gzip(&tar, 6), gzip(&tar, 1), gzip(&tar, 0), tar.clone()] {
        let ztoc = ztoc(&layer, SPAN);
        assert!(ztoc.checkpoints.spans() > 10);
        let first = proof(&ztoc, &layer, usize::MAX);
        assert_eq!(first.differences, []);
        assert_eq!(first.digest, Digest::sha256(&layer));
        assert_eq!(first.diff_id, Some(Digest::sha256(&tar)));
        assert_eq!((first.size, first.plain_size), (layer.len() as u64, tar.len() as u64));
        assert_eq!(
            first.compared,
            if layer == tar { layer.len() as u64 } else { ztoc.uncompressed_size.0 }
        );
        for chunk in [1, 511, 4096] {
            assert_eq!(proof(&ztoc, &layer, chunk), first);
        }
    }
}

#[test]
fn a_layer_without_a_ztoc_has_its_digests() {
    let tar = tar();
    let zstd = zstd::encode_all(&tar[..], 3).unwrap();
    for layer in [gzip(&tar, 6), zstd, tar.clone()] {
        let mut proof = LayerProof::new(None, Algorithm::Sha512, Algorithm::Sha256);
        layer.chunks(1000).for_each(|chunk| proof.push(chunk));
        let found = proof.finish();
        assert_eq!(
            (found.digest, found.diff_id),
            (Digest::of(Algorithm::Sha512, &layer), Some(Digest::sha256(&tar)))
        );
        assert_eq!(found.differences, []);
        let cut = &layer[..layer.len() / 2];
        let mut proof = LayerProof::new(None, Algorithm::Sha256, Algorithm::Sha256);
        proof.push(cut);
        assert_eq!(proof.finish().diff_id.is_none(), layer != tar);
    }
}

/// A change to a ztoc, and the codes that it must cause.
type Damage = (&'static str, fn(&mut Ztoc), &'static [&'static str]);

#[test]
fn tampering_with_the_ztoc_is_found() {
    let layer = gzip(&tar(), 6);
    let whole = ztoc(&layer, SPAN);
    let damages: &[Damage] = &[
        ("span digest", |z| z.span_digests[3] = Digest::sha256(b"other"), &["span-digest"]),
        ("two digests swapped", |z| z.span_digests.swap(2, 3), &["span-digest"]),
        ("last byte of a window", |z| checkpoint(z, 4).window[32_767] ^= 1, &["checkpoint-window"]),
        ("first byte of a window", |z| checkpoint(z, 4).window[0] ^= 1, &["checkpoint-window"]),
        (
            "window of the first checkpoint",
            |z| checkpoint(z, 0).window[5] = 1,
            &["checkpoint-window"],
        ),
        (
            "windows emptied",
            |z| (1..8).for_each(|n| checkpoint(z, n).window.fill(0)),
            &["checkpoint-window", "span-content"],
        ),
        ("checkpoint in", |z| checkpoint(z, 5).input.0 += 1, &["span-content", "span-digest"]),
        (
            "checkpoint in, earlier",
            |z| checkpoint(z, 5).input.0 -= 1,
            &["span-content", "span-digest"],
        ),
        (
            "checkpoint out",
            |z| checkpoint(z, 5).output.0 += 1,
            &["checkpoint-window", "span-content"],
        ),
        (
            "checkpoint out, earlier",
            |z| checkpoint(z, 5).output.0 -= 1,
            &["checkpoint-window", "span-content"],
        ),
        ("bits", |z| checkpoint(z, 5).bits = (checkpoint(z, 5).bits + 3) % 8, &["span-content"]),
        ("version", |z| z.version = (*b"0.8").into(), &["version"]),
        ("compressed size", |z| z.compressed_size.0 += 1, &["size"]),
        ("uncompressed size", |z| z.uncompressed_size.0 -= 512, &["size"]),
        ("uncompressed size, larger", |z| z.uncompressed_size.0 += 512, &["size", "span-content"]),
        ("entry name", |z| z.files[2].name = (*b"dir/other").into(), &["entry-field"]),
        ("entry type", |z| z.files[2].kind = FileKind::Fifo, &["entry-field"]),
        ("entry offset", |z| z.files[2].offset += 512, &["entry-field"]),
        ("entry size", |z| z.files[2].size -= 1, &["entry-field"]),
        ("entry link", |z| z.files[11].linkname = (*b"dir/file2").into(), &["entry-field"]),
        ("entry mode", |z| z.files[2].mode = 0o4755, &["entry-field"]),
        ("entry uid", |z| z.files[2].uid = 1, &["entry-field"]),
        ("entry gid", |z| z.files[2].gid = 1, &["entry-field"]),
        ("entry uname", |z| z.files[2].uname = (*b"root").into(), &["entry-field"]),
        ("entry gname", |z| z.files[2].gname = (*b"root").into(), &["entry-field"]),
        (
            "entry mtime",
            |z| z.files[2].mtime = Some(Time { seconds: 1, nanos: 0 }),
            &["entry-field"],
        ),
        ("entry nanoseconds", |z| z.files[10].mtime.as_mut().unwrap().nanos += 1, &["entry-field"]),
        ("entry without a time", |z| z.files[2].mtime = None, &["entry-field"]),
        (
            "entry devices",
            |z| (z.files[2].devmajor, z.files[2].devminor) = (1, 2),
            &["entry-field"],
        ),
        ("xattr value", |z| z.files[10].pax[0].value = (*b"other").into(), &["entry-field"]),
        ("xattr gone", |z| z.files[10].pax = Box::default(), &["entry-field"]),
        (
            "xattr added",
            |z| {
                z.files[2].pax =
                    [PaxRecord { key: (*b"SCHILY.xattr.user.x").into(), value: (*b"1").into() }]
                        .into()
            },
            &["entry-field"],
        ),
        ("entry missing", |z| drop(z.files.remove(4)), &["entry-missing"]),
        ("first entry missing", |z| drop(z.files.remove(0)), &["entry-missing"]),
        ("last entry missing", |z| drop(z.files.pop()), &["entry-missing"]),
        ("all entries missing", |z| z.files.clear(), &["entry-missing"]),
        (
            "entry added",
            |z| {
                let mut more = z.files[2].clone();
                (more.name, more.offset) = ((*b"more").into(), Uncompressed(7));
                z.files.insert(3, more);
            },
            &["entry-added"],
        ),
        ("entry twice", |z| z.files.insert(3, z.files[2].clone()), &["entry-added"]),
        ("entries swapped", |z| z.files.swap(2, 5), &["entry-order"]),
        ("entries reversed", |z| z.files[1..9].reverse(), &["entry-order"]),
        (
            "first checkpoint too late",
            |z| checkpoint(z, 0).input.0 += 1,
            &["size", "span-content", "span-digest"],
        ),
        (
            "for a plain tar",
            |z| {
                z.checkpoints = Checkpoints::Uncompressed {
                    span_size: SpanSize::new(1 << 30).unwrap(),
                    size: z.compressed_size.0,
                };
                z.span_digests.truncate(1);
            },
            &["compression", "span-digest"],
        ),
        (
            "spans in disorder",
            |z| {
                let Checkpoints::Gzip { list, .. } = &mut z.checkpoints else { return };
                list.swap(3, 4);
            },
            &["spans"],
        ),
    ];
    for (name, damage, expected) in damages {
        let mut ztoc = whole.clone();
        damage(&mut ztoc);
        let found = differences(&ztoc, &layer);
        // If consumers refuse the ztoc because of the damage, that is reported too.
        let codes: Vec<_> =
            codes(&found).into_iter().filter(|code| *code != "unservable").collect();
        assert_eq!(codes, *expected, "{name}: {found:?}");
        assert!(found.len() < 40, "{name}: {found:?}");
        for difference in &found {
            assert!(!difference.to_string().is_empty());
        }
    }
}

#[test]
fn differences_name_their_place() {
    let layer = gzip(&tar(), 6);
    let whole = ztoc(&layer, SPAN);
    let told = |damage: fn(&mut Ztoc)| {
        let mut ztoc = whole.clone();
        damage(&mut ztoc);
        differences(&ztoc, &layer).iter().map(Difference::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        told(|z| z.files[2].mode = 0o4755),
        ["entry 2 of the ztoc, \"dir/file1\", says mode 0o4755; the layer says 0o644"]
    );
    assert_eq!(
        told(|z| z.files[10].pax[1].value = (*b"\n").into()),
        [
            "entry 10 of the ztoc, \"dir/attributes\", says xattrs \"mtime=\\n\"; the layer says \"mtime=1600000000.5\""
        ]
    );
    assert_eq!(
        told(|z| drop(z.files.remove(9))),
        ["the entry \"dir/empty\" at byte 328704 of the tar is not in the ztoc"]
    );
    let window = told(|z| checkpoint(z, 4).window[32_767] ^= 1);
    let output = checkpoint(&mut whole.clone(), 4).output.0;
    assert_eq!(
        window,
        [format!("the window of checkpoint 4 differs from the tar at byte {}", output - 1)]
    );
    let content = told(|z| checkpoint(z, 5).bits = (checkpoint(z, 5).bits + 3) % 8);
    assert!(
        content.iter().any(|one| one.contains("span 5") && one.contains("dir/file")),
        "{content:?}"
    );
}

#[test]
fn long_texts_are_compared_in_full() {
    let name = "n/".repeat(400) + "end";
    let header = tarball::pax(b'x', &[("path", name.as_bytes())]);
    let tar = [header, tarball::file("short", b"content"), tarball::end()].concat();
    let mut ztoc = ztoc(&tar, SPAN);
    assert_eq!(differences(&ztoc, &tar), []);
    *ztoc.files[0].name.last_mut().unwrap() = b'!';
    let told: Vec<String> = differences(&ztoc, &tar).iter().map(Difference::to_string).collect();
    assert_eq!(told.len(), 1);
    let near = |end: &str| format!("\"…{}{end}\"", "n/".repeat(24));
    assert!(
        told[0].ends_with(&format!("{}; the layer says {}", near("en!"), near("end"))),
        "{told:?}"
    );
}

#[test]
fn damage_to_the_layer_is_found() {
    let tar = tar();
    for (layer, is_gzip) in [(gzip(&tar, 6), true), (gzip(&tar, 0), true), (tar.clone(), false)] {
        let ztoc = ztoc(&layer, SPAN);
        let last = layer.len() - 1;
        for at in [last / 7, last / 2, last * 5 / 6] {
            let mut flipped = layer.clone();
            flipped[at] ^= 0x10;
            let found = codes(&differences(&ztoc, &flipped));
            assert!(found.contains(&"span-digest"), "{at}: {found:?}");
            assert_eq!(found.contains(&"broken-layer"), is_gzip, "{at}: {found:?}");
        }
        let cut = codes(&differences(&ztoc, &layer[..last / 2]));
        assert!(cut.contains(&"size") && cut.contains(&"entry-added"), "{cut:?}");
        let longer = codes(&differences(&ztoc, &[&layer[..], b"\0"].concat()));
        assert!(longer.contains(&"size"), "{longer:?}");
        assert!(!differences(&ztoc, b"").is_empty());
    }
    // A damaged tar header in a plain layer. The following entry is no longer examined.
    let ztoc = ztoc(&tar, SPAN);
    let mut flipped = tar.clone();
    flipped[512 + 3] ^= 1;
    let found = codes(&differences(&ztoc, &flipped));
    assert_eq!(found, ["broken-tar", "entry-added", "span-digest"]);
}

#[test]
fn layers_that_consumers_refuse_are_detected() {
    let mut tar = tarball::file("a", b"a");
    tar.extend(tarball::pax(b'g', &[("comment", b"x")]));
    tar.extend(tarball::file("b", b"b"));
    tar.extend(tarball::end());
    let mut ztoc = ztoc(&[tarball::file("a", b"a"), tarball::end()].concat(), SPAN);
    // The ztoc that soci's own library would build without the global header.
    let mut other = ztoc.files[0].clone();
    (other.name, other.offset) = ((*b"b").into(), Uncompressed(2560));
    ztoc.files.push(other);
    (ztoc.compressed_size, ztoc.uncompressed_size) =
        (Compressed(tar.len() as u64), Uncompressed(tar.len() as u64));
    ztoc.checkpoints = Checkpoints::Uncompressed {
        span_size: SpanSize::new(SPAN).unwrap(),
        size: tar.len() as u64,
    };
    ztoc.span_digests = vec![Digest::sha256(&tar)];
    let found = differences(&ztoc, &tar);
    assert_eq!(codes(&found), ["unservable"]);
    assert!(found[0].to_string().contains("PAX global header"), "{found:?}");
}

#[test]
fn the_command_lists_differences_and_exits_with_3() {
    let sandbox = sandbox::Sandbox::new();
    let layer = gzip(&tar(), 6);
    let mut ztoc = ztoc(&layer, SPAN);
    std::fs::write(sandbox.path("layer"), &layer).unwrap();
    std::fs::write(sandbox.path("right"), encode(&ztoc)).unwrap();
    ztoc.files[2].uid = 7;
    ztoc.files[3].name = (*b"\xff").into();
    std::fs::write(sandbox.path("wrong"), encode(&ztoc)).unwrap();
    let verify = |ztoc| ["ztoc", "verify", "--layer", "layer", "--ztoc", ztoc];
    let right = sandbox.run(&verify("right"));
    assert!(
        right.starts_with("the ztoc is correct: ") && right.ends_with("--- status 0 ---"),
        "{right}"
    );
    insta::assert_snapshot!(sandbox.run(&verify("wrong")), @r#"
    entry 2 of the ztoc, "dir/file1", says uid 7; the layer says 0
    entry 3 of the ztoc, "\xff", says name "\xff"; the layer says "dir/file2"
    2 differences
    --- stderr ---
    --- status 3 ---
    "#);
    let json = sandbox.json(3, &[&verify("wrong")[..], &["--format=json"]].concat());
    assert_eq!(json["status"], "different");
    assert_eq!(json["layer"]["digest"], Digest::sha256(&layer).to_string());
    assert_eq!(json["layer"]["diff_id"], Digest::sha256(&tar()).to_string());
    assert_eq!(json["differences"][0]["code"], "entry-field");
    assert_eq!(json["differences"][0]["entry"], 2);
    assert_eq!(json["differences"][0]["name"], "dir/file1");
    assert_eq!(json["differences"][1]["name_b64"], "/w==");
    assert_eq!(json["more_differences"], 0);
    // For the ztoc of another layer, where everything differs, a single line says so.
    std::fs::write(
        sandbox.path("other"),
        gzip(&[tarball::file("else", &[7; 5000]), tarball::end()].concat(), 6),
    )
    .unwrap();
    let other = ["ztoc", "verify", "--layer", "other", "--ztoc", "right"];
    insta::assert_snapshot!(sandbox.run(&other), @r#"
    this is the ztoc of another layer: it is for a blob of 172549 bytes, not 121, and none of its spans is in this one
    39 differences; --format json lists them
    --- stderr ---
    --- status 3 ---
    "#);
    let json = sandbox.json(3, &[&other[..], &["--format=json"]].concat());
    assert_eq!(json["differences"].as_array().map(Vec::len), Some(39));
    // A file that is no longer a ztoc is a difference too.
    let whole = std::fs::read(sandbox.path("right")).unwrap();
    std::fs::write(sandbox.path("cut"), &whole[..whole.len() / 2]).unwrap();
    let json = sandbox.json(3, &[&verify("cut")[..], &["--format=json"]].concat());
    assert_eq!(
        (&json["differences"][0]["code"], &json["ztoc"]["spans"]),
        (&"ztoc-malformed".into(), &serde_json::Value::Null)
    );
    assert_eq!(json["layer"]["digest"], Digest::sha256(&layer).to_string());
    assert_eq!(
        sandbox.json(0, &[&verify("right")[..], &["--format=json"]].concat())["status"],
        "right"
    );
}
