//! Layers that get no ztoc for various reasons, and broken layers with their errors.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use ociseek_format::layer::{LayerIndexer, LayerOptions, Outcome, UnservableReason};
use ociseek_format::offset::SpanSize;

use ociseek_testkit::tarball::{Block, end, entry, file, padded, pax};

/// The result of indexing: the number of entries, the code of the refusal, or the error.
#[derive(Debug, PartialEq)]
enum Verdict {
    Entries(u64),
    Refused(&'static str),
    Broken(String),
}

fn index(blob: &[u8], span_size: u64) -> Verdict {
    let options = LayerOptions {
        span_size: SpanSize::new(span_size).unwrap(),
        build_tool_identifier: "refusals".to_owned(),
        fine: false,
    };
    let mut indexer = LayerIndexer::new(options, None);
    match indexer.push(blob).and_then(|()| indexer.finish()).map(|layer| layer.outcome) {
        Ok(Outcome::Ztoc(built)) => Verdict::Entries(built.entries),
        Ok(Outcome::Unservable(UnservableReason { code, .. })) => Verdict::Refused(code.word()),
        Err(error) => Verdict::Broken(error.to_string()),
    }
}

fn gzip(tar: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(tar).unwrap();
    encoder.finish().unwrap()
}

/// Indexes a tar, both plain and compressed, which must give the same result.
fn judge(parts: &[Vec<u8>]) -> Verdict {
    let tar = parts.concat();
    let plain = index(&tar, 1 << 20);
    assert_eq!(plain, index(&gzip(&tar), 1 << 20), "plain and gzip differ");
    plain
}

fn with(change: impl FnOnce(&mut Block)) -> Vec<u8> {
    let mut block = Block::default();
    change(&mut block);
    block.bytes()
}

fn dir(name: &str, uid: i64, gid: i64) -> Vec<u8> {
    with(|b| (b.flag, b.name, b.uid, b.gid) = (b'5', name.into(), uid, gid))
}

#[test]
fn unservable_entries() {
    let a = || file("a", b"hello");
    let x = |records: &[(&str, &[u8])]| pax(b'x', records);
    let xattr = |n: &str| format!("SCHILY.xattr.{n}");
    let two = || x(&[(&xattr("user.a"), b"1"), (&xattr("user.b"), b"2")]);
    for (code, tar) in [
        ("pax-global-header", vec![pax(b'g', &[("comment", b"c")]), a(), end()]),
        ("entry-type", vec![with(|b| b.flag = b'7'), end()]),
        ("entry-type", vec![with(|b| b.flag = b'V'), a(), end()]),
        (
            "sparse-file",
            vec![x(&[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0")]), a(), end()],
        ),
        ("sparse-file", vec![x(&[("GNU.sparse.map", b"0,5")]), a(), end()]),
        ("sparse-file", vec![with(|b| (b.flag, b.magic) = (b'S', *b"ustar  \0")), end()]),
        ("size-without-data", vec![with(|b| (b.flag, b.size) = (b'5', 4096)), a(), end()]),
        (
            "size-without-data",
            vec![a(), with(|b| (b.flag, b.size, b.link) = (b'1', 5, b"a".to_vec())), end()],
        ),
        ("owner-out-of-range", vec![with(|b| b.uid = -2), end()]),
        ("owner-out-of-range", vec![x(&[("gid", b"4294967296")]), a(), end()]),
        ("mtime-out-of-range", vec![x(&[("mtime", b"253402300800")]), a(), end()]),
        ("mode-type-bits", vec![with(|b| b.mode = 0o040_755), end()]),
        ("empty-xattr", vec![x(&[(&xattr("user.a"), b"1"), (&xattr("user.e"), b"")]), a(), end()]),
        ("hard-link-target", vec![entry(b'1', "h", "below/in/another/layer"), a(), end()]),
        ("hard-link-target", vec![entry(b'1', "h", "h"), a(), end()]),
        ("hard-link-target", vec![entry(b'1', "h", "a"), a(), end()]),
        ("hard-link-target", vec![entry(b'5', "d", ""), entry(b'1', "h", "d"), end()]),
        ("hard-link-target", vec![a(), entry(b'1', "h", "a"), entry(b'5', "a", ""), end()]),
        ("below-non-directory", vec![entry(b'2', "bin", "usr/bin"), file("bin/sh", b"#!"), end()]),
        ("below-non-directory", vec![a(), file("a/b", b""), end()]),
        ("repeated-directory", vec![with(|b| b.uid = 5), entry(b'5', "file", ""), end()]),
        ("repeated-directory", vec![dir("d", 0, 5), dir("e", 0, 0), dir("./d", 7, 0), end()]),
        ("repeated-directory", vec![dir("./", 5, 5), dir("d", 0, 0), dir(".", 0, 5), end()]),
        ("repeated-directory", vec![x(&[(&xattr("user.a"), b"1")]), a(), dir("a", 0, 0), end()]),
        (
            "repeated-directory",
            vec![two(), dir("d", 0, 0), x(&[(&xattr("user.a"), b"1")]), dir("d/", 0, 0), end()],
        ),
        (
            "repeated-directory",
            vec![dir("d", 0, 0), x(&[("mtime", b"-62135596800")]), dir("d", 0, 0), end()],
        ),
        ("names-root", vec![file("../..", b""), end()]),
        ("long-name", vec![x(&[("path", &[b'n'; 40_000])]), a(), end()]),
    ] {
        assert_eq!(judge(&tar), Verdict::Refused(code));
    }
}

#[test]
fn odd_but_servable_entries() {
    let x = |records: &[(&str, &[u8])]| pax(b'x', records);
    let long = || Block {
        name: b"@LongLink".to_vec(),
        flag: b'L',
        size: 150,
        magic: *b"ustar  \0",
        ..Block::default()
    };
    let a = || file("a", b"hello");
    let one = || x(&[("SCHILY.xattr.user.a", b"1")]);
    let two = || x(&[("SCHILY.xattr.user.a", b"1"), ("SCHILY.xattr.user.b", b"2")]);
    for (entries, tar) in [
        (1, vec![file("a", b"hello")]),                 // no end blocks
        (1, vec![file("a", b"hello")[..517].to_vec()]), // cut in the padding
        (1, vec![file("a", b"hello"), vec![0; 512]]),   // one end block
        (1, vec![file("a", b"hello"), end(), b"anything".to_vec()]), // bytes behind the end
        (1, vec![file("a", b""), x(&[("path", b"lost")])]), // a PAX header of nothing
        (1, vec![with(|b| b.mode = 0o100_644), end()]), // the type it has anyway
        (1, vec![x(&[("GNU.sparse.major", b"2")]), file("a", b"hello"), end()]), // a sparse format of the future
        (1, vec![x(&[("SCHILY.xattr.user.e", b"")]), file("a", b""), end()]), // a lone empty xattr
        (1, vec![long().bytes(), padded(&[b'n'; 150]), file("short", b""), end()]), // GNU long name
        (3, vec![file("a", b"1"), entry(b'1', "h", "./a"), file("a", b"2"), end()]), // the link keeps the first one
        (2, vec![entry(b'5', "./", ""), file("./a", b""), end()]),
        // Directories that replace all of an earlier entry.
        (4, vec![dir("d", 0, 0), dir("d", 5, 6), dir("d", 7, 8), dir("./", 1, 0), end()]),
        (3, vec![one(), dir("d", 0, 0), one(), dir("d", 0, 0), two(), dir("d", 0, 0), end()]),
        (2, vec![with(|b| b.uid = 5), with(|b| b.uid = 0), end()]), // a file does not keep the owner
        (1, vec![with(|b| (b.flag, b.name) = (0, b"olddir/".to_vec())), end()]),
        // A whiteout that is a hard link (smol-machines/smolvm#397).
        (2, vec![a(), entry(b'1', "d/.wh.x", "below/in/another/layer"), end()]),
        (2, vec![entry(b'5', "d", ""), entry(b'1', "d/.wh..wh..opq", "d"), end()]),
        (2, vec![entry(b'1', ".wh.x", ".wh.x"), entry(b'1', ".wh.y", ".wh.x"), end()]),
        (0, vec![end()]),
    ] {
        assert_eq!(judge(&tar), Verdict::Entries(entries));
    }
}

#[test]
fn broken_tars() {
    let broken = |tar: &[Vec<u8>], message: &str| {
        assert_eq!(judge(tar), Verdict::Broken(message.to_owned()))
    };
    let a = || file("a", b"hello");
    let half = |bytes: Vec<u8>, n: usize| bytes[..n].to_vec();
    broken(
        &[a(), b"no header".to_vec(), vec![1; 503]],
        "not a tar header (its checksum is wrong) at byte 1024 of the tar",
    );
    broken(&[half(a(), 400)], "the tar is truncated inside a header block at byte 0 of the tar");
    broken(
        &[a(), half(a(), 515)],
        "the tar is truncated inside the data of an entry at byte 1024 of the tar",
    );
    broken(&[a(), vec![0; 511]], "the tar is truncated inside a header block at byte 0 of the tar");
    broken(
        &[a(), vec![0; 512], a()],
        "data after a single zero block: the archive ends with two at byte 1024 of the tar",
    );
    broken(&[with(|b| b.size = -1), end()], "negative size in the tar header at byte 0 of the tar");
    broken(&[pax(b'x', &[("path", b"a\0b")]), a()], "malformed PAX records at byte 0 of the tar");
    broken(&[pax(b'x', &[("uid", b"zero")]), a()], "malformed PAX records at byte 0 of the tar");
    broken(
        &[pax(b'x', &[("comment", &vec![b'c'; 2 << 20])]), a()],
        "PAX header or long name of more than 1 MiB at byte 0 of the tar",
    );
}

#[test]
fn blobs_that_are_not_layers() {
    for (blob, what) in [
        (&b"<!DOCTYPE html><html><body>Please log in</body></html>"[..], "an HTML or XML page"),
        (b"{\"errors\":[{\"code\":\"NAME_UNKNOWN\"}]}", "JSON"),
        (b"\x78\x9c zlib", "a zlib stream, not gzip"),
    ] {
        let mut blob = blob.to_vec();
        blob.resize(600, b' ');
        let message = format!("not a layer: it looks like {what}");
        assert_eq!(index(&blob, 4096), Verdict::Broken(message.clone()));
        assert_eq!(index(&gzip(&blob), 4096), Verdict::Broken(message));
    }
    let twice = gzip(&gzip(&vec![7; 100_000]));
    assert_eq!(
        index(&twice, 4096),
        Verdict::Broken("not a layer: it looks like gzip data inside gzip".into())
    );
    assert_eq!(index(b"", 4096), Verdict::Refused("empty"));
    for (magic, _) in
        [(&b"\x28\xb5\x2f\xfd"[..], "zstd"), (b"BZh9", "bzip2"), (b"\xfd7zXZ\0", "xz")]
    {
        assert_eq!(index(&[magic, &[0; 700]].concat(), 4096), Verdict::Refused("compression"));
    }
}

#[test]
fn gzip_framing() {
    let tar = [file("a", &[b'x'; 5000]), end()].concat();
    let good = gzip(&tar);
    let index = |blob: &[u8]| index(blob, 1000);
    let n = good.len();
    assert_eq!(index(&good), Verdict::Entries(1));
    assert_eq!(
        index(&[&gzip(b"")[..], &good, &gzip(b"")].concat()),
        Verdict::Entries(1),
        "empty members"
    );
    for behind in [&b"\0"[..], b"garbage", &[0; 512], b"\x1f\x8b\x07"] {
        assert_eq!(index(&[&good[..], behind].concat()), Verdict::Refused("trailing-bytes"));
    }
    let broken = |blob: &[u8], part: &str| match index(blob) {
        Verdict::Broken(message) => assert!(message.contains(part), "{message}"),
        other => panic!("{part}: {other:?}"),
    };
    broken(&[&good[..], b"\x1f\x8b"].concat(), "inside the header of member 2");
    broken(&good[..n - 4], &format!("truncated at byte {}, inside the trailer of member 1", n - 4));
    broken(&good[..n / 2], "inside the compressed data of member 1");
    broken(&good[..7], "inside the header of member 1");
    let flipped = |at: usize| {
        let mut blob = good.clone();
        blob[at] ^= 1;
        blob
    };
    broken(&flipped(n - 8), "wrong CRC-32");
    broken(&flipped(n - 1), "wrong length");
    broken(&flipped(2), "bad gzip header of member 1 at byte 0");
    let mut reserved = good.clone();
    reserved[3] = 0x20;
    broken(&reserved, "bad gzip header");
    let named = |name: &[u8]| [&good[..3], &[8], &good[4..10], name, b"\0", &good[10..]].concat();
    assert_eq!(index(&named(&[b'n'; 511])), Verdict::Entries(1));
    broken(&named(&[b'n'; 512]), "bad gzip header");
}

#[test]
fn spans_that_consumers_cannot_read() {
    let zeros = [file("a", b"hello"), end(), vec![0; 20 << 20]].concat();
    assert_eq!(index(&gzip(&zeros), 1 << 20), Verdict::Refused("padding-past-span"));
    assert_eq!(index(&zeros, 1 << 20), Verdict::Refused("padding-past-span"));
    assert_eq!(index(&zeros, 32 << 20), Verdict::Entries(1));
    let aligned = file("a", &[1; 4096 - 512]);
    assert_eq!(index(&aligned, 1024), Verdict::Refused("ends-on-span-border"));
    assert_eq!(index(&aligned, 1000), Verdict::Entries(1));
    assert_eq!(index(&[aligned, end()].concat(), 1024), Verdict::Entries(1));
}

/// PAX records compress by a factor of a thousand. The memory for them must be limited.
#[test]
fn a_bomb_of_names_is_refused() {
    let one = [pax(b'x', &[("comment", &vec![b'c'; 1_000_000])]), file("a", b"")].concat();
    let bomb = gzip(&one.repeat(100));
    assert!(bomb.len() < 300_000);
    assert_eq!(index(&bomb, 1 << 20), Verdict::Refused("ztoc-too-large"));
    let fewer = gzip(&[one.repeat(50), end()].concat());
    assert_eq!(index(&fewer, 1 << 20), Verdict::Entries(50));
}

/// Writers and readers have the same size limit. A checkpoint has a window of 32 KiB.
#[test]
fn a_ztoc_too_large_for_readers_is_not_written() {
    assert_eq!(ociseek_ops::discover::MAX_ZTOC, ociseek_format::ztoc::MAX_ENCODED as u64);
    let most = ociseek_format::ztoc::MAX_ENCODED / (33 << 10);
    let gzip_of = |checkpoints: usize| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder
            .write_all(
                &Block { name: b"a".to_vec(), size: 1024 * checkpoints as i64, ..Block::default() }
                    .bytes(),
            )
            .unwrap();
        for _ in 0..checkpoints {
            encoder.write_all(&[0; 1024]).unwrap();
            // The next bytes start a block.
            encoder.flush().unwrap();
        }
        encoder.write_all(&end()).unwrap();
        encoder.finish().unwrap()
    };
    assert_eq!(index(&gzip_of(most + 8), 512), Verdict::Refused("ztoc-too-large"));
    assert_eq!(index(&gzip_of(100), 512), Verdict::Entries(1));
}

/// A layer may have many entries.
#[test]
fn layers_may_have_many_entries() {
    let files: Vec<u8> =
        (0..200_000).flat_map(|n| file(&format!("a/folder/with/files/number-{n}"), b"")).collect();
    assert_eq!(index(&gzip(&files), 4 << 20), Verdict::Entries(200_000));
}
