//! Tests of the fine documents that are collected from layers.

mod deflate;
mod proof;
mod spans;
mod zstd;

use std::io::Write;

use crate::codec::gzip::{BlockStart, GzipReader, Sink};
use crate::layer::{IndexedLayer, LayerIndexer, LayerOptions};
use deflate::odd;
use flate2::Compression;
use flate2::write::GzEncoder;

fn options() -> LayerOptions {
    LayerOptions { fine: true, ..LayerOptions::default() }
}

fn index(blob: &[u8], chunk: usize) -> IndexedLayer {
    let mut indexer = LayerIndexer::new(options(), None);
    blob.chunks(chunk).for_each(|chunk| indexer.push(chunk).unwrap());
    indexer.finish().unwrap()
}

fn noise(size: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as u8
    };
    (0..size).map(|_| next()).collect()
}

/// Words, which give matches at all distances.
fn text(size: usize, seed: u64) -> Vec<u8> {
    let words = noise(4096, seed);
    let places = noise(size, seed + 1);
    let mut text = Vec::with_capacity(size + 32);
    for place in places.chunks_exact(3) {
        let (at, length) = (usize::from(place[0]) * 15 + usize::from(place[1] & 15), usize::from(place[2] & 15) + 2);
        text.extend_from_slice(&words[at..at + length]);
        text.extend((place[2] == 0).then_some(place[0]));
        if text.len() >= size {
            break;
        }
    }
    text.resize(size, b' ');
    text
}

/// A tar with a few files.
fn tar() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (number, size) in [10, 700_000, 0, 300_000, 1_500_000, 3].into_iter().enumerate() {
        let content = if number == 3 { noise(size, 9) } else { text(size, number as u64) };
        let mut header = tar::Header::new_gnu();
        header.set_size(size as u64);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000 + number as u64);
        archive.append_data(&mut header, format!("dir/file-{number}"), &content[..]).unwrap();
    }
    archive.into_inner().unwrap()
}

/// A tar as `members` gzip members of about equal size.
pub(in crate::layer) fn gzip(tar: &[u8], level: u32, members: usize) -> Vec<u8> {
    let mut blob = Vec::new();
    for part in tar.chunks(tar.len().div_ceil(members)) {
        let mut encoder = GzEncoder::new(&mut blob, Compression::new(level));
        encoder.write_all(part).unwrap();
        encoder.finish().unwrap();
    }
    blob
}

/// Named blobs of every kind.
fn blobs() -> Vec<(&'static str, Vec<u8>)> {
    let tar = tar();
    let bounded = [&tar[..], &vec![0; 900_000]].concat();
    vec![
        ("plain", tar.clone()),
        ("level 6", gzip(&tar, 6, 1)),
        ("level 1", gzip(&tar, 1, 1)),
        ("stored", gzip(&tar, 0, 1)),
        ("members", gzip(&tar, 9, 23)),
        ("many members", gzip(&tar, 6, 2000)),
        ("zeros behind the end", gzip(&bounded, 6, 1)),
        ("odd", odd()),
    ]
}

/// The layer, decoded from start to end.
fn plain(blob: &[u8]) -> Vec<u8> {
    if blob.starts_with(b"\x1f\x8b") { decoded(GzipReader::new(), &[blob]) } else { blob.to_vec() }
}

fn decoded(mut reader: GzipReader, parts: &[&[u8]]) -> Vec<u8> {
    struct Plain(Vec<u8>);
    impl Sink for Plain {
        fn output(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }
        fn block_start(&mut self, _at: BlockStart<'_>) {}
    }
    let mut plain = Plain(Vec::new());
    // The input may be cut anywhere after the span.
    let _ = parts.iter().try_for_each(|part| reader.push(part, &mut plain));
    plain.0
}
