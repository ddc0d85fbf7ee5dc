//! Hostile ztocs: each span gives an error or the layer's content, and no reader of a ztoc panics
//! or hangs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::layer::prove::LayerProof;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::{SpanSize, Uncompressed};
use ociseek_format::time::Time;
use ociseek_format::tree::Tree;
use ociseek_format::ztoc::{Checkpoint, Checkpoints, FileKind, Ztoc, decode, encode};
use ociseek_testkit::layers::{SPAN, gzip, tar, ztoc};

/// Much longer than any case takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Case {
    name: String,
    ztoc: Vec<u8>,
    /// Whether the decoded bytes may be wrong, because no digest covers windows and the positions
    /// of checkpoints (CATALOGUE d8).
    may_lie: bool,
}

fn list(ztoc: &mut Ztoc) -> &mut Vec<Checkpoint> {
    match &mut ztoc.checkpoints {
        Checkpoints::Gzip { list, .. } => list,
        Checkpoints::Uncompressed { .. } => panic!("the layer is gzip"),
    }
}

/// All cases for a layer with this ztoc.
fn cases(whole: &Ztoc) -> Vec<Case> {
    let mut cases = Vec::new();
    let encoded = encode(whole);
    let mut add = |name: String, ztoc: Vec<u8>, may_lie| cases.push(Case { name, ztoc, may_lie });
    let mut with = |name: String, may_lie, damage: &dyn Fn(&mut Ztoc)| {
        let mut ztoc = whole.clone();
        damage(&mut ztoc);
        add(name, encode(&ztoc), may_lie);
    };
    // d4: sizes.
    for size in [0, 1, 511, whole.compressed_size.0 + 1, 1 << 62, i64::MAX as u64] {
        with(format!("compressed size {size}"), false, &|z| z.compressed_size.0 = size);
        with(format!("uncompressed size {size}"), false, &|z| z.uncompressed_size.0 = size);
    }
    // d5, d6, d7, d8: spans.
    with("no digests".into(), false, &|z| z.span_digests.clear());
    with("a digest too few".into(), false, &|z| z.span_digests.truncate(5));
    with("a digest too many".into(), false, &|z| z.span_digests.push(Digest::sha256(b"")));
    with("no checkpoints".into(), false, &|z| list(z).clear());
    for number in [0, 1, list(&mut whole.clone()).len() - 1] {
        for by in [1, 3, 1000, 1 << 40, 1 << 62] {
            with(format!("checkpoint {number} in + {by}"), true, &|z| {
                list(z)[number].input.0 += by
            });
            with(format!("checkpoint {number} out + {by}"), true, &|z| {
                list(z)[number].output.0 += by
            });
        }
        for bits in [1, 7, 8, 255] {
            with(format!("checkpoint {number} bits {bits}"), true, &|z| {
                list(z)[number].bits = bits
            });
        }
        with(format!("window {number}"), true, &|z| {
            list(z)[number].window.iter_mut().for_each(|b| *b ^= 0x55)
        });
        with(format!("wrong digest {number}"), false, &|z| {
            z.span_digests[number] = Digest::sha256(b"x")
        });
        with(format!("sha512 {number}"), false, &|z| {
            z.span_digests[number] = Digest::of(Algorithm::Sha512, b"x")
        });
        with(format!("checkpoint {number} twice"), false, &|z| {
            let again = list(z)[number].clone();
            list(z).insert(number, again);
            z.span_digests.insert(number, Digest::sha256(b"x"));
        });
    }
    with("checkpoints reversed".into(), false, &|z| list(z).reverse());
    for span_size in [1, 1 << 40, i64::MAX as u64] {
        with(format!("a plain tar in spans of {span_size}"), false, &|z| {
            let size = z.compressed_size.0;
            z.checkpoints =
                Checkpoints::Uncompressed { span_size: SpanSize::new(span_size).unwrap(), size };
            z.span_digests.truncate(1);
        });
    }
    with("a plain tar with its digest".into(), true, &|z| {
        z.checkpoints = Checkpoints::Uncompressed {
            span_size: SpanSize::new(1 << 40).unwrap(),
            size: z.compressed_size.0,
        };
        z.span_digests = vec![Digest::sha256(b"not it")];
    });
    // d9: extents.
    let end = whole.uncompressed_size.0;
    for number in [1, 5, 10] {
        for offset in [0, 1, end - 1, end, end + 1, 1 << 40, i64::MAX as u64 - (1 << 20)] {
            with(format!("offset of entry {number} is {offset}"), true, &|z| {
                z.files[number].offset = Uncompressed(offset)
            });
        }
        for size in [0, 1, 1 << 20, 1 << 40, (i64::MAX as u64) - end] {
            with(format!("size of entry {number} is {size}"), true, &|z| {
                z.files[number].size = size
            });
        }
    }
    with("two files in one place".into(), false, &|z| z.files[2].offset = z.files[1].offset);
    with("all files in one place".into(), false, &|z| {
        z.files.iter_mut().for_each(|f| f.offset = Uncompressed(512))
    });
    with("entries reversed".into(), false, &|z| z.files.reverse());
    with("no entries".into(), false, &|z| z.files.clear());
    for kind in [
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::CharDevice,
        FileKind::Fifo,
        FileKind::HardLink,
    ] {
        with(format!("every entry a {}", kind.name()), false, &|z| {
            z.files.iter_mut().for_each(|f| f.kind = kind)
        });
        with(format!("an entry a {}", kind.name()), false, &|z| z.files[3].kind = kind);
    }
    // d11 and a35: names.
    let names: [&[u8]; 28] = [
        b"",
        b".",
        b"..",
        b"/",
        b"//",
        b"./",
        b"../",
        b"../../../../escaped",
        b"/escaped",
        b"/../../escaped",
        b"a/../../../escaped",
        b"dir/../../escaped",
        b"dir/soft/below",
        b"dir/out/escaped",
        b"dir/out/tmp/escaped",
        b"dir/file1",
        b"dir/file1/below",
        b"dir",
        b"a\0b",
        b"\xff\xfe",
        b"a\nb\x1b[2J",
        b"\xe2\x80\xae",
        b".ociseek-1-1",
        b"...",
        b". .",
        b"~",
        b"-rf",
        b"C:\\x",
    ];
    for name in names {
        with(format!("name {:?}", name.escape_ascii().to_string()), false, &|z| {
            z.files[3].name = name.into()
        });
        with(format!("link {:?}", name.escape_ascii().to_string()), false, &|z| {
            (z.files[3].kind, z.files[3].linkname) = (FileKind::HardLink, name.into());
        });
        with(format!("symlink first {:?}", name.escape_ascii().to_string()), false, &|z| {
            let mut link = z.files[1].clone();
            (link.kind, link.name, link.linkname) =
                (FileKind::Symlink, (*b"dir").into(), name.into());
            link.size = 0;
            z.files.insert(0, link);
        });
    }
    for length in [255, 256, 3000, 4096, 100_000] {
        with(format!("a name of {length} bytes"), false, &|z| {
            z.files[3].name = vec![b'n'; length].into()
        });
        with(format!("a path of {length} bytes"), false, &|z| {
            z.files[3].name = b"p/".repeat(length / 2).into()
        });
        with(format!("a link of {length} bytes"), false, &|z| {
            (z.files[3].kind, z.files[3].linkname) =
                (FileKind::HardLink, vec![b'n'; length].into());
        });
    }
    with("a name of 500,000 parts".into(), false, &|z| {
        z.files[3].name = b"p/".repeat(500_000).into()
    });
    with("a link to itself".into(), false, &|z| {
        (z.files[3].kind, z.files[3].linkname) = (FileKind::HardLink, z.files[3].name.clone());
    });
    with("a circle of links".into(), false, &|z| {
        for (one, other) in [(3, 4), (4, 3)] {
            let name = z.files[other].name.clone();
            (z.files[one].kind, z.files[one].linkname) = (FileKind::HardLink, name);
        }
    });
    with("a circle of symlinks".into(), false, &|z| {
        for (name, target) in [("dir", "s"), ("s", "dir")] {
            let mut link = z.files[1].clone();
            (link.kind, link.size) = (FileKind::Symlink, 0);
            (link.name, link.linkname) = (name.as_bytes().into(), target.as_bytes().into());
            z.files.insert(0, link);
        }
    });
    // Other fields.
    for number in [i64::MIN, -1, i64::MAX] {
        with(format!("mode {number}"), false, &|z| {
            z.files.iter_mut().for_each(|f| f.mode = number)
        });
        with(format!("device {number}"), false, &|z| {
            z.files.iter_mut().for_each(|f| {
                (f.kind, f.devmajor, f.devminor) = (FileKind::CharDevice, number, number)
            });
        });
    }
    for seconds in [-62_167_219_200, -1, 253_402_300_799] {
        with(format!("time {seconds}"), false, &|z| {
            z.files.iter_mut().for_each(|f| f.mtime = Some(Time { seconds, nanos: 999_999_999 }));
        });
    }
    // d2: the buffer itself.
    for cut in (0..40).map(|n| encoded.len() * n / 40) {
        add(format!("cut at {cut}"), encoded[..cut].to_vec(), false);
    }
    let mut state = 1u64;
    for number in 0..200 {
        let mut bytes = encoded.clone();
        for _ in 0..1 + number % 5 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // Windows are most of the bytes, but little is parsed in them. The tables are before
            // and after them.
            let at = (state >> 33) as usize % 20_000;
            let at =
                if number % 2 == 0 { at % bytes.len() } else { bytes.len() - 1 - at % bytes.len() };
            bytes[at] = (state >> 20) as u8;
        }
        add(format!("bytes changed, {number}"), bytes, true);
    }
    cases
}

/// Decodes each span of `blob` by the ztoc, if it is usable at all. Says whether all of them
/// decode. Unless it may lie, their bytes are those of the tar.
fn decodes(case: &Case, blob: &[u8], tar: &[u8]) -> Option<bool> {
    let table = SpanTable::new(Arc::new(decode(&case.ztoc).ok()?)).ok()?;
    let mut all = true;
    for span in table.each() {
        let range = table.blob_range(span);
        let Some(bytes) = blob.get(range.start.0 as usize..range.end.0 as usize) else {
            all = false;
            continue;
        };
        let mut plain = Vec::new();
        let decoded = table.decode(span, bytes, &mut |piece| {
            plain.extend_from_slice(piece);
            ControlFlow::Continue(())
        });
        let stated = table.plain_range(span);
        let truth = tar.get(stated.start.0 as usize..stated.end.0 as usize);
        all &= decoded.is_ok();
        match decoded {
            Ok(()) => assert!(case.may_lie || truth == Some(&plain), "{}", case.name),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    Some(all)
}

#[test]
fn hostile_ztocs_do_no_harm() {
    let tar = tar();
    let blob = gzip(&tar, 6);
    let cases = cases(&ztoc(&blob, SPAN));
    assert!(cases.len() > 400, "{}", cases.len());
    let mut results = BTreeMap::new();
    for case in &cases {
        let started = Instant::now();
        *results.entry(decodes(case, &blob, &tar)).or_insert(0) += 1;
        // The other readers of a ztoc must cope with it too.
        if let Ok(ztoc) = decode(&case.ztoc) {
            let _ = Tree::flatten([&ztoc.files[..]]);
            let mut proof =
                LayerProof::new(Some(Arc::new(ztoc)), Algorithm::Sha256, Algorithm::Sha256);
            proof.push(&blob);
            proof.finish();
        }
        assert!(started.elapsed() < PATIENCE, "{} took {:?}", case.name, started.elapsed());
    }
    println!("{} cases, by whether all of their spans decode: {results:?}", cases.len());
    let is_usual = |result| results.get(&result).is_some_and(|count| *count > 30);
    assert!([None, Some(false), Some(true)].into_iter().all(is_usual), "{results:?}");
}
