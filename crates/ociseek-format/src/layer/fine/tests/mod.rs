//! Tests of the fine documents that are collected from layers.

mod spans;
mod zstd;

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::codec::gzip::{BlockStart, GzipReader, Sink};
use crate::layer::{IndexedLayer, LayerIndexer, LayerOptions};

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
        let at = usize::from(place[0]) * 15 + usize::from(place[1] & 15);
        let length = usize::from(place[2] & 15) + 2;
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

/// Writes deflate by hand and records the decoded bytes.
#[derive(Default)]
struct Deflate {
    bytes: Vec<u8>,
    bits: u64,
    count: u32,
    plain: Vec<u8>,
}

impl Deflate {
    fn put(&mut self, value: u64, count: u32) {
        self.bits |= value << self.count;
        self.count += count;
        while self.count >= 8 {
            self.bytes.push(self.bits as u8);
            (self.bits, self.count) = (self.bits >> 8, self.count - 8);
        }
    }

    /// Writes a fixed Huffman code, high bit first.
    fn code(&mut self, code: u64, count: u32) {
        self.put(code.reverse_bits() >> (64 - count), count);
    }

    fn stored(&mut self, bytes: &[u8], last: bool) {
        self.put(u64::from(last), 3);
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
        let length = bytes.len() as u64;
        self.put(length | (!length & 0xffff) << 16, 32);
        self.bytes.extend_from_slice(bytes);
        self.plain.extend_from_slice(bytes);
    }

    /// Starts a block with the fixed codes.
    fn fixed(&mut self) {
        self.put(0b010, 3);
    }

    fn literal(&mut self, byte: u8) {
        match byte {
            0..144 => self.code(0x30 + u64::from(byte), 8),
            144.. => self.code(0x190 + u64::from(byte - 144), 9),
        }
        self.plain.push(byte);
    }

    /// A match of 258 or 3 bytes.
    fn copy(&mut self, is_long: bool, distance: usize) {
        let length = if is_long { 258 } else { 3 };
        if is_long {
            self.code(0xc0 + 285 - 280, 8)
        } else {
            self.code(1, 7)
        }
        let far = distance - 1;
        let (symbol, extra) = match far {
            0..4 => (far as u64, 0),
            _ => {
                let log = far.ilog2();
                (u64::from(2 * log) + (far >> (log - 1) & 1) as u64, log - 1)
            }
        };
        self.code(symbol, 5);
        self.put((far & ((1 << extra) - 1)) as u64, extra);
        for _ in 0..length {
            self.plain.push(self.plain[self.plain.len() - distance]);
        }
    }

    fn end(&mut self) {
        self.code(0, 7);
    }

    /// The gzip member: header, written bytes, and trailer. Also returns the decoded bytes.
    fn member(mut self) -> (Vec<u8>, Vec<u8>) {
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
        let mut blob = b"\x1f\x8b\x08\0\0\0\0\0\0\xff".to_vec();
        blob.extend(self.bytes);
        blob.extend(crc32fast::hash(&self.plain).to_le_bytes());
        blob.extend((self.plain.len() as u32).to_le_bytes());
        (blob, self.plain)
    }
}

/// A stream that no common tool writes: a tar with one file, in blocks of all kinds, with the
/// farthest and nearest possible matches across the places where spans may begin.
fn odd() -> Vec<u8> {
    const CONTENT: usize = 1_600_000;
    let mut header = tar::Header::new_gnu();
    header.set_size(CONTENT as u64);
    header.set_mode(0o644);
    header.set_path("odd").unwrap();
    header.set_cksum();
    let mut deflate = Deflate::default();
    deflate.stored(header.as_bytes(), false);
    deflate.stored(&[], false);
    let random = noise(1 << 20, 3);
    let mut at = random.iter().cycle();
    let mut next = || usize::from(*at.next().unwrap());
    while deflate.plain.len() < CONTENT - 70_000 {
        match next() % 6 {
            0 => deflate.stored(&random[..next() * 200], false),
            1 => deflate.stored(&[], false),
            2 => {
                deflate.fixed();
                deflate.end();
            }
            _ => {
                deflate.fixed();
                for _ in 0..next() * 8 {
                    let made = deflate.plain.len().min(32768);
                    match next() % 8 {
                        0 => deflate.literal(next() as u8),
                        1 => deflate.copy(true, made),
                        2 => deflate.copy(false, made),
                        3 => deflate.copy(true, 1 + next() % 5),
                        4 => deflate.copy(true, made - next() % 300),
                        _ => deflate.copy(false, 1 + (next() << 7 | next()) % made),
                    }
                }
                deflate.end();
            }
        }
    }
    while deflate.plain.len() < 512 + CONTENT {
        let left = 512 + CONTENT - deflate.plain.len();
        deflate.stored(&random[..left.min(60_000)], false);
    }
    let padding = CONTENT.next_multiple_of(512) - CONTENT;
    deflate.stored(&vec![0; padding + 1024], true);
    deflate.member().0
}
