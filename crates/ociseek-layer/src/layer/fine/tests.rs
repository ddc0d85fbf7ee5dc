//! Tests of the fine documents that are collected from layers.

use std::convert::Infallible;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::budget::Budget;
use crate::codec::Used;
use crate::codec::gzip::{BlockStart, GzipReader, Sink};
use crate::digest::{Algorithm, ChainState, Digest};
use crate::fine::{self, Codec, FineLayer, FineSpans, SpanParts, SpanWindow, decode_head, decode_page};
use crate::layer::parallel::{ChunksError, Threads, index_chunks};
use crate::layer::prove::{Difference, LayerProof};
use crate::layer::span::{SpanError, SpanTable};
use crate::layer::{IndexedLayer, LayerError, LayerIndexer, LayerMap, LayerOptions, Outcome};
use crate::offset::SpanId;
use crate::ztoc::{self, FileMetadata};

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

fn encoded(layer: &FineLayer) -> (LayerMap, Vec<u8>) {
    let encoded = layer.encode(&[]).unwrap();
    let head = &encoded.bytes[..encoded.head_size as usize];
    let mut memory = Budget::new(u64::MAX).open();
    let head = decode_head(head, encoded.bytes.len() as u64, &mut memory).unwrap();
    assert_eq!(&fine::decode(&encoded.bytes, &mut memory).unwrap(), layer);
    (LayerMap::from(head), encoded.bytes)
}

/// Decodes a span of a gzip blob from its checkpoint. The window bytes that were left out become
/// `fill`, and the one at index `damaged` among the others is changed.
fn by_window(
    layer: &FineLayer,
    span: SpanId,
    window: &SpanWindow,
    blob: &[u8],
    fill: u8,
    damaged: Option<usize>,
) -> Vec<u8> {
    let (start, range) = (layer.spans().starts()[span.0 as usize], layer.spans().fetch_range(span));
    let fetched = &blob[range.start.0 as usize..range.end.0 as usize];
    let mut bytes = window.expand(fill);
    if let Some(at) = damaged {
        bytes[at] ^= 0xff;
    }
    let (before, lead) = if start.bits == 0 { (0, window.lead()) } else { (window.lead()[0], &window.lead()[1..]) };
    let at = BlockStart { input: start.input, output: start.output, bits: start.bits, window: &bytes };
    let plain = layer.spans().plain_range(span);
    let mut out = decoded(GzipReader::resume(at, before), &[lead, fetched]);
    out.truncate((plain.end - plain.start) as usize);
    out
}

#[test]
fn every_span_decodes_to_its_part_of_the_layer() {
    for (name, blob) in blobs() {
        let indexed = index(&blob, 1 << 16);
        let Outcome::Ztoc(built) = &indexed.outcome else { panic!("{name}: {:?}", indexed.outcome) };
        let layer = indexed.fine.as_ref().unwrap_or_else(|| panic!("{name}: no document"));
        let ztoc = ztoc::decode(&built.bytes).unwrap();
        assert_eq!(layer.entries(), ztoc.files, "{name}");
        assert_eq!((layer.spans().layer(), layer.spans().blob_size()), (indexed.digest, indexed.size), "{name}");
        assert_eq!(layer.spans().tar_end(), ztoc.uncompressed_size, "{name}");

        let (map, document) = encoded(layer);
        let head = Arc::clone(map.fine().unwrap());
        let table = SpanTable::new(Arc::new(map)).unwrap();
        let (straight, mut read) = (plain(&blob), Vec::new());
        let (mut fetched, mut used) = (0, 0);
        for span in table.each() {
            let windows = head.page_of(span).map(|page| {
                let range = head.page_range(page);
                decode_page(&head, page, &document[range.start as usize..range.end as usize]).unwrap()
            });
            let window = windows.as_ref().and_then(|windows| windows.get(span));
            let range = table.blob_range(span);
            assert!(range.start.0 == fetched && range.start.0.is_multiple_of(64), "{name} {span}");
            fetched = range.end.0;
            let mut bytes = blob[range.start.0 as usize..range.end.0 as usize].to_vec();
            let from = read.len();
            let mut decode = |bytes: &[u8], window| {
                table.decode_with(span, window, bytes, &mut |piece| {
                    read.extend_from_slice(piece);
                    ControlFlow::Continue(())
                })
            };
            decode(&bytes, window).unwrap_or_else(|error| panic!("{name} {span}: {error}"));
            bytes[0] ^= 1;
            assert_eq!(decode(&bytes, window), Err(SpanError::Proof { span }));
            bytes[0] ^= 1;
            if let Some(window) = window {
                assert_eq!(decode(&bytes, None), Err(SpanError::NoWindow { span }));
                let part = &read[from..];
                used += window.used();
                assert!(
                    by_window(layer, span, window, &blob, 0xaa, None) == part,
                    "{name} {span}: a byte left out is read"
                );
                let (zeros, ones) = (window.expand(0), window.expand(0xff));
                let known = |at: &usize| zeros[*at] == ones[*at];
                for at in (0..zeros.len()).filter(known).step_by(1000) {
                    let other = by_window(layer, span, window, &blob, 0, Some(at));
                    assert!(part.is_empty() || other != part, "{name} {span}: byte {at} of the window is not read");
                }
            } else {
                assert_eq!(layer.spans().codec() == Codec::Plain, table.map().is_plain(), "{name}");
                assert!(table.map().is_plain() || span.0 == 0, "{name}");
            }
        }
        assert_eq!(fetched, blob.len() as u64, "{name}");
        let end = table.plain_end().0 as usize;
        assert!(read == straight[..end], "{name}");
        match name {
            "level 6" | "members" | "zeros behind the end" | "odd" => assert!(used > 1000, "{name}: {used}"),
            "plain" | "stored" => assert_eq!(used, 0, "{name}"),
            _ => {}
        }
        // At level 1 the whole layer is one block.
        assert!(table.count() > 5 || name == "level 1", "{name}");
    }
}

#[test]
fn how_a_layer_is_cut_does_not_matter() {
    for (name, blob) in blobs() {
        let whole = index(&blob, blob.len());
        for chunk in [1, 7, 64, 1000, 4096] {
            assert!(index(&blob, chunk) == whole, "{name} in chunks of {chunk}");
        }
        // A ztoc with other options shows where a single member can be divided.
        let mut finer = LayerIndexer::new(LayerOptions { span_size: 50_000, ..LayerOptions::default() }, None);
        finer.push(&blob).unwrap();
        let Outcome::Ztoc(finer) = finer.finish().unwrap().outcome else { panic!("{name}") };
        let finer = Arc::new(ztoc::decode(&finer.bytes).unwrap());
        let encoded = |indexed: &IndexedLayer| indexed.fine.as_ref().unwrap().encode(&[]).unwrap().bytes;
        for (cores, size) in [(1, 9000), (2, 9000), (2, 300_000), (4, 64), (7, 1000), (7, 70_001)] {
            for guide in [None, Some(Arc::clone(&finer))] {
                let mut batches =
                    blob.chunks(300_000).map(|batch| batch.chunks(size).map(Bytes::copy_from_slice).collect());
                let threads = Threads { cores, guide };
                let next = || Ok::<Option<Vec<Bytes>>, Infallible>(batches.next());
                let indexed = index_chunks(options(), None, threads, &Budget::new(u64::MAX), next).unwrap();
                assert!(indexed == whole, "{name} in chunks of {size} on {cores} cores");
                assert!(encoded(&indexed) == encoded(&whole), "{name} in chunks of {size} on {cores} cores");
            }
        }
        let mut without = LayerIndexer::new(LayerOptions::default(), None);
        without.push(&blob).unwrap();
        let without = without.finish().unwrap();
        assert_eq!(without.fine, None);
        assert!(without.outcome == whole.outcome, "{name}: the ztoc is the same");
    }
}

#[test]
fn what_has_no_document() {
    let tar = tar();
    let zstd = zstd::bulk::compress(&tar, 1).unwrap();
    assert_eq!(index(&zstd, 1000).fine, None, "zstd");
    let blob = gzip(&tar, 6, 1);
    let trailing = [&blob[..], b"trailing bytes"].concat();
    assert_eq!(index(&trailing, 1000).fine, None, "not servable");
    let expected = Digest::of(Algorithm::Sha512, &blob);
    let mut indexer = LayerIndexer::new(options(), Some((expected, blob.len() as u64)));
    indexer.push(&blob).unwrap();
    let indexed = indexer.finish().unwrap();
    assert!(matches!(indexed.outcome, Outcome::Ztoc(_)) && indexed.fine.is_none(), "SHA-512");
}

#[test]
fn its_memory_is_charged() {
    let blob = gzip(&tar(), 6, 1);
    let with = |limit: u64, fine: bool| {
        let mut batches = blob.chunks(300_000).map(|batch| vec![Bytes::copy_from_slice(batch)]);
        let next = || Ok::<Option<Vec<Bytes>>, Infallible>(batches.next());
        let options = LayerOptions { fine, ..LayerOptions::default() };
        index_chunks(options, None, Threads { cores: 1, guide: None }, &Budget::new(limit), next)
    };
    let least = (0..).map(|step| step * 1000).find(|limit| with(*limit, false).is_ok()).unwrap();
    assert!(matches!(with(least, true), Err(ChunksError::Layer(LayerError::Memory(_)))));
    assert!(with(least + (1 << 20), true).is_ok());
}

/// The differences between a document and its layer. The ztoc has none.
fn proven(blob: &[u8], layer: FineLayer, ztoc: Option<&[u8]>) -> Vec<Difference> {
    let is_whole = layer.spans().blob_size() == blob.len() as u64;
    let ztoc = ztoc.map(|ztoc| Arc::new(ztoc::decode(ztoc).unwrap()));
    let mut proof = LayerProof::with_fine(ztoc, Some(Arc::new(layer)), Algorithm::Sha256, Algorithm::Sha256);
    blob.chunks(10_000).for_each(|chunk| proof.push(chunk));
    let proof = proof.finish();
    assert!(!is_whole || proof.differences.is_empty(), "{:?}", proof.differences);
    proof.of_document.list
}

#[test]
fn documents_hold_against_their_layers() {
    for (name, blob) in blobs() {
        let indexed = index(&blob, 1 << 16);
        let Outcome::Ztoc(built) = &indexed.outcome else { panic!("{name}") };
        let layer = indexed.fine.unwrap();
        assert_eq!(proven(&blob, layer.clone(), Some(&built.bytes)), [], "{name}");
        assert_eq!(proven(&blob, layer, None), [], "{name}: without a ztoc");
    }
}

/// The layer with changed entries, spans, or windows of all spans but the first.
fn changed(
    layer: &FineLayer,
    change: impl FnOnce(&mut Vec<FileMetadata>, &mut SpanParts, &mut Vec<(SpanId, SpanWindow)>),
) -> FineLayer {
    let spans = layer.spans();
    let mut parts = SpanParts {
        layer: spans.layer(),
        codec: spans.codec(),
        blob_size: spans.blob_size(),
        tar_end: spans.tar_end(),
        span_size: spans.span_size(),
        starts: spans.starts().to_vec(),
    };
    let mut files = layer.entries().to_vec();
    let mut windows: Vec<_> = layer.windows().flat_map(|group| group.unwrap().into_windows()).collect();
    change(&mut files, &mut parts, &mut windows);
    FineLayer::new(files, FineSpans::new(parts).unwrap(), windows.into_iter().map(|(_, window)| window)).unwrap()
}

#[test]
fn what_differs_is_found() {
    let blob = gzip(&tar(), 6, 1);
    let indexed = index(&blob, 1 << 16);
    let Outcome::Ztoc(built) = &indexed.outcome else { panic!() };
    let (layer, ztoc) = (indexed.fine.unwrap(), Some(&built.bytes[..]));
    let used = |window: &SpanWindow| {
        let mut used = Used::default();
        let (zeros, ones) = (window.expand(0), window.expand(0xff));
        (0..zeros.len()).filter(|at| zeros[*at] == ones[*at]).for_each(|at| used.mark(at..at + 1));
        used
    };
    let at = (0..).zip(layer.windows().flat_map(|group| group.unwrap().into_windows()));
    let (at, span) = at.filter(|(_, (_, window))| window.used() > 10).map(|(at, (span, _))| (at, span)).next().unwrap();
    let content = |differences: &[Difference]| match differences {
        [Difference::FineContent { span: wrong, reason }] if *wrong == span => reason.clone(),
        other => panic!("{other:?}"),
    };

    let wrong_byte = changed(&layer, |_, _, windows| {
        let window = &mut windows[at].1;
        let (used, mut bytes) = (used(window), window.expand(0));
        bytes[used.ranges().next().unwrap().start] ^= 1;
        *window = SpanWindow::new(window.lead(), &bytes, &used);
    });
    assert!(content(&proven(&blob, wrong_byte, ztoc)).contains("differ from the layer"));

    let left_out = changed(&layer, |_, _, windows| {
        let window = &mut windows[at].1;
        let (ranges, bytes) = (used(window), window.expand(0));
        let mut fewer = Used::default();
        ranges.ranges().skip(1).for_each(|range| fewer.mark(range));
        *window = SpanWindow::new(window.lead(), &bytes, &fewer);
    });
    assert!(content(&proven(&blob, left_out, ztoc)).contains("left out"));

    let state = changed(&layer, |_, parts, _| parts.starts[2].state = ChainState::INITIAL);
    let span = |number| Difference::FineProof { span: SpanId(number) };
    assert_eq!(proven(&blob, state, ztoc), [span(1), span(2)]);

    let renamed = |files: &mut Vec<FileMetadata>| files[3].name = b"another".as_slice().into();
    let entry = changed(&layer, |files, _, _| renamed(files));
    for ztoc in [ztoc, None] {
        let found = proven(&blob, entry.clone(), ztoc);
        assert!(matches!(found[..], [Difference::Entry { entry: 3, field: "name", .. }]), "{found:?}");
    }
    let short = &blob[..blob.len() / 2];
    assert!(proven(short, layer, None).iter().any(|difference| matches!(difference, Difference::FineContent { .. })));
}
