//! Sparse files in the four forms of GNU tar: their bytes are what Go's archive/tar reads.

use std::convert::Infallible;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::layer::parallel::{ChunksError, Threads, read_chunks};
use ociseek_format::layer::{LayerError, MappedLayer, ReadOptions};
use ociseek_format::tar::SparseMap;
use ociseek_format::tree::{NodeKind, Tree};
use ociseek_testkit::tarball::{Block, end, file, padded, pax};

/// The layer, and its bytes as a plain tar.
fn read(blob: &[u8]) -> Result<(MappedLayer, Vec<u8>), LayerError> {
    let expected = (Digest::sha256(blob), blob.len() as u64);
    let mut batch = Some(vec![Bytes::copy_from_slice(blob)]);
    let next = || Ok::<_, Infallible>(batch.take());
    let threads = Threads { cores: 1, guide: None };
    let memory = Budget::new(u64::MAX).open();
    let read = read_chunks(ReadOptions::default(), expected, threads, memory, next);
    let read = read.map_err(|error| match error {
        ChunksError::Layer(error) => error,
        ChunksError::Next(never) => match never {},
    })?;
    let mut plain = blob.to_vec();
    if blob.starts_with(b"\x1f\x8b") {
        plain.clear();
        std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(blob), &mut plain)
            .unwrap();
    }
    Ok((read, plain))
}

/// The bytes of `range` of a file, or of the whole file.
fn bytes(file: &NodeKind, plain: &[u8], range: Option<std::ops::Range<u64>>) -> Vec<u8> {
    let range = range.unwrap_or(0..file.size());
    let stored = file.stored_in(range.clone()).unwrap().range();
    let stored = &plain[stored.start.0 as usize..stored.end.0 as usize];
    file.expand(range, stored).unwrap_or_else(|| stored.to_vec())
}

fn content(read: &MappedLayer, plain: &[u8], path: &str) -> Vec<u8> {
    let tree = Tree::flatten([&read.map.entries()]).unwrap();
    bytes(&tree.node(tree.resolve(path.as_bytes(), false).unwrap()).kind, plain, None)
}

fn golden(name: &str) -> Vec<u8> {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden/layers").join(name);
    std::fs::read(path).unwrap()
}

/// Sizes and checksums are those that Go 1.26 reads.
#[test]
fn sparse_files_of_real_archivers_are_read_as_go_reads_them() {
    for (layer, path, size, sum) in [
        ("sparse-gnu.tar.gz", "hole", 307_200, 0x6353_68d3),
        ("sparse-pax-0.0.tar.gz", "hole", 307_200, 0x6353_68d3),
        ("sparse-pax-0.1.tar.gz", "hole", 307_200, 0x6353_68d3),
        ("sparse-pax-1.0.tar.gz", "hole", 307_200, 0x6353_68d3),
        ("sparse-bsdtar.tar.gz", "hole", 307_200, 0x6353_68d3),
        ("a26-after-file.tar.gz", "s", 4096, 0xc71c_0011),
        ("a26-old-no-extents.tar", "s", 8192, 0xd8f4_9994),
        ("a26-old.tar.gz", "s", 8192, 0xd8f4_9994),
        ("a27-pax-00.tar", "s", 9999, 0xf5a6_ca31),
        ("a27-pax-03.tar", "s", 518, 0x4dba_614d),
    ] {
        let (read, plain) = read(&golden(layer)).unwrap();
        let found = content(&read, &plain, path);
        assert_eq!((found.len(), crc32fast::hash(&found)), (size, sum), "{layer}");
        let after =
            if layer.starts_with('s') { ("z", 0x3385_33db) } else { ("z.txt", 0x3633_f73c) };
        assert_eq!(crc32fast::hash(&content(&read, &plain, after.0)), after.1, "{layer}");
    }
    for layer in [
        "a26-old-ext-cut.tar",
        "a26-old-ext.tar.gz",
        "a26-old-overlap.tar.gz",
        "a26-old-ustar.tar.gz",
        "a27-pax-01.tar",
    ] {
        assert!(matches!(read(&golden(layer)), Err(LayerError::Tar(_))), "{layer}");
    }
}

/// A file in PAX format 1.0 with this map before its data.
fn text(map: &[u8], data: &[u8], size: &str) -> Vec<u8> {
    let records: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"s"),
        ("GNU.sparse.realsize", size.as_bytes()),
    ];
    [pax(b'x', &records), file("GNUSparseFile.0/s", &[&padded(map)[..], data].concat()), end()]
        .concat()
}

/// A file in PAX format 0.1.
fn listed(map: &str, count: &str, data: &[u8], size: &str) -> Vec<u8> {
    let records: [(&str, &[u8]); 4] = [
        ("GNU.sparse.map", map.as_bytes()),
        ("GNU.sparse.name", b"s"),
        ("GNU.sparse.numblocks", count.as_bytes()),
        ("GNU.sparse.size", size.as_bytes()),
    ];
    [pax(b'x', &records), file("GNUSparseFile.0/s", data), end()].concat()
}

#[test]
fn maps_that_go_refuses_are_refused() {
    for good in [
        text(b"1\n2\n3\n", b"abc", "10"),
        listed("2,3", "1", b"abc", "10"),
        listed("2,0,2,3", "2", b"abc", "10"),
    ] {
        let (read, plain) = read(&good).unwrap();
        assert_eq!(content(&read, &plain, "s"), b"\0\0abc\0\0\0\0\0");
        assert!(read.notes.warnings.is_empty());
    }
    let long = format!("300000\n{}", "0\n0\n".repeat(300_000));
    for bad in [
        text(b"1\n2\n3\n", b"abc", "4"),        // past the end of the file
        text(b"1\n2\n3\n", b"abcd", "10"),      // more data than parts
        text(b"1\n2\n3\n", b"ab", "10"),        // fewer
        text(b"2\n2\n2\n3\n1\n", b"abc", "10"), // parts that overlap
        text(b"2\n4\n2\n0\n1\n", b"abc", "10"), // not in order
        text(b"1\n-2\n3\n", b"abc", "10"),
        text(b"-1\n", b"", "10"),
        text(b"1\n2\n", b"", "10"), // a map that ends early
        text(b"9223372036854775807\n0\n0\n", b"", "10"),
        text(b"1\n9223372036854775807\n1\n", b"a", "9223372036854775807"),
        text(b"1\n2\n3\n", b"abc", "-10"),
        text(b"one\n2\n3\n", b"abc", "10"),
        text(long.as_bytes(), b"", "10"), // more than 1 MiB of map
        listed("2,3", "2", b"abc", "10"),
        listed("2,3,4", "1", b"abc", "10"),
        listed("2,3", "", b"abc", "10"),
        listed("2,3", "9223372036854775807", b"abc", "10"),
        listed("2,3", "1", b"abc", "ten"),
    ] {
        assert!(matches!(read(&bad), Err(LayerError::Tar(_))), "{}", bad.escape_ascii());
    }
}

/// The header of an old sparse file with these parts, and further blocks for more than four.
fn old(parts: &[(u64, u64)], size: u64) -> Vec<u8> {
    let number = |value: u64| format!("{value:011o}\0").into_bytes();
    let put = |block: &mut [u8], parts: &[(u64, u64)]| {
        for (at, (start, length)) in parts.iter().enumerate() {
            block[24 * at..24 * at + 24]
                .copy_from_slice(&[number(*start), number(*length)].concat());
        }
    };
    let stored = parts.iter().map(|(_, length)| *length as i64).sum();
    let mut header = Block {
        name: b"s".to_vec(),
        flag: b'S',
        size: stored,
        magic: *b"ustar  \0",
        ..Block::default()
    }
    .bytes();
    let (first, rest) = parts.split_at(parts.len().min(4));
    put(&mut header[386..482], first);
    header[482] = u8::from(!rest.is_empty());
    header[483..495].copy_from_slice(&number(size));
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let blocks = rest.chunks(21).enumerate().flat_map(|(number, parts)| {
        let mut block = vec![0; 512];
        put(&mut block, parts);
        block[504] = u8::from((number + 1) * 21 < rest.len());
        block
    });
    header.extend(blocks);
    header
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A file's bytes do not depend on the form of its map, and every range of it is a range of
    /// the whole.
    #[test]
    fn every_form_and_every_range_of_a_file_is_the_same(
        parts in vec((0..300u64, 0..700u64), 0..60),
        hole in 0..300u64,
        cuts in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 8),
    ) {
        let mut map = Vec::new();
        let mut data = Vec::new();
        let mut expected = Vec::new();
        for (number, (skipped, length)) in parts.into_iter().enumerate() {
            expected.resize(expected.len() + skipped as usize, 0);
            map.push((expected.len() as u64, length));
            data.resize(data.len() + length as usize, number as u8 + 1);
            expected.resize(expected.len() + length as usize, number as u8 + 1);
        }
        expected.resize(expected.len() + hole as usize, 0);
        let size = expected.len() as u64;
        let numbers: Vec<String> = map.iter().flat_map(|(start, length)| [start, length]).map(u64::to_string).collect();
        let lines = format!("{}\n{}\n", map.len(), numbers.join("\n"));
        for tar in [
            text(lines.as_bytes(), &data, &size.to_string()),
            [old(&map, size), padded(&data), end()].concat(),
            listed(&numbers.join(","), &map.len().to_string(), &data, &size.to_string()),
        ] {
            // An empty map in the records counts as missing.
            if map.is_empty() && tar.windows(14).any(|text| text == b"GNU.sparse.map") {
                continue;
            }
            let (read, plain) = read(&tar).unwrap();
            let tree = Tree::flatten([&read.map.entries()]).unwrap();
            let kind = &tree.node(tree.resolve(b"s", false).unwrap()).kind;
            prop_assert!(bytes(kind, &plain, None) == expected);
            for (one, other) in &cuts {
                let one = one.index(expected.len() + 1);
                let other = other.index(expected.len() + 1);
                let range = one.min(other)..one.max(other);
                let found = bytes(kind, &plain, Some(range.start as u64..range.end as u64));
                prop_assert!(found == expected[range]);
            }
        }
        let again = SparseMap::new(size, map.iter().copied()).unwrap();
        prop_assert_eq!(again.parts().map(|(_, length)| length).sum::<u64>(), again.stored());
    }
}
