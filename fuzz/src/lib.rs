//! The bodies of the fuzz targets. Each accepts any bytes and panics if an invariant is violated.
//! tests/pure/fuzz_bodies.rs also calls them, with the fixtures and with every input that once
//! crashed one (fuzz/regressions).

#[cfg(target_os = "linux")]
#[path = "../../src/allocator.rs"]
mod allocator;
#[cfg(target_os = "linux")]
mod blocks;
mod documents;
mod events;
mod fine;
mod headers;
pub mod inflate;
pub mod listing;
mod sha256;
mod span;
mod zstd_blocks;
mod zstd_frames;
pub mod ztocs;

use std::io::Read;
use std::sync::Arc;

use ociseek_format::budget::Budget;
use ociseek_format::codec::GzipError;
use ociseek_format::digest::Algorithm;
use ociseek_format::fine::FineLayer;
use ociseek_format::internals::{BlockStart, GzipEnd, GzipReader, Sink};
use ociseek_format::internals::{MemberFinder, Stretch, StretchStart};
use ociseek_format::layer::prove::LayerProof;
use ociseek_format::layer::{
    IndexedLayer, LayerError, LayerIndexer, LayerOptions, Outcome, UnservableCode,
};
use ociseek_format::offset::{Compressed, SpanSize, Uncompressed};
use ociseek_format::tar::{Entry, Kind, TarError, Walker};
use ociseek_format::ztoc::{self, Checkpoints, Ztoc};

/// The limit for decoding: inputs of a few KiB can hold megabytes of zeros.
const MOST: u64 = 64 << 20;

/// The pieces in which the second run takes its input: their sizes come from the input's last
/// bytes.
fn pieces(data: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let sizes: Vec<usize> =
        data.iter().rev().take(8).map(|&b| 1 + usize::from(b) * usize::from(b) / 16).collect();
    let mut rest = data;
    let mut turn = 0;
    std::iter::from_fn(move || {
        let size = sizes.get(turn % sizes.len().max(1))?;
        turn += 1;
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[derive(Default, PartialEq, Debug)]
struct Decoded {
    crc: u32,
    length: u64,
    /// The block starts: input, output, bits and a checksum of the window.
    starts: Vec<(u64, u64, u8, u32)>,
}

struct Recorder(Decoded, crc32fast::Hasher);

impl Sink for Recorder {
    fn output(&mut self, bytes: &[u8]) {
        self.1.update(bytes);
        self.0.length += bytes.len() as u64;
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        assert_eq!(at.output.0, self.0.length, "a block starts where the output is");
        assert!(at.bits < 8);
        self.0.starts.push((at.input.0, at.output.0, at.bits, crc32fast::hash(at.window)));
    }
}

fn decode<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Option<(Decoded, Result<GzipEnd, GzipError>)> {
    let mut reader = GzipReader::new();
    let mut recorder = Recorder(Decoded::default(), crc32fast::Hasher::new());
    for piece in pieces {
        for step in piece.chunks(1 << 16) {
            if let Err(e) = reader.push(step, &mut recorder) {
                recorder.0.crc = recorder.1.finalize();
                return Some((recorder.0, Err(e)));
            }
            if recorder.0.length > MOST {
                return None;
            }
        }
    }
    recorder.0.crc = recorder.1.finalize();
    Some((recorder.0, reader.finish()))
}

/// The same, with the bytes from `at` decoded in advance as `begin`, which may be wrong.
fn decode_ahead(
    data: &[u8],
    at: usize,
    begin: StretchStart,
) -> (Decoded, Result<GzipEnd, GzipError>) {
    let (before, rest) = data.split_at(at);
    let ahead: Vec<&[u8]> = pieces(rest).collect();
    let limit = usize::from(data[data.len() - 1]) << (data.len() % 16);
    let stretch = Stretch::decode(
        Compressed(at as u64),
        begin,
        &ahead,
        vec![1, 2, 3],
        limit,
        limit.is_multiple_of(2),
    );
    let mut reader = GzipReader::new();
    let mut recorder = Recorder(Decoded::default(), crc32fast::Hasher::new());
    let (lead, rest) = rest.split_at(stretch.lead());
    let pushed = reader.push(before, &mut recorder);
    let mut decoded = pushed.and_then(|()| reader.push(lead, &mut recorder));
    if decoded.is_ok() {
        let taken = stretch.hand_over(&mut reader, &mut recorder).taken;
        decoded = reader.push(&rest[taken..], &mut recorder);
    }
    recorder.0.crc = recorder.1.finalize();
    (recorder.0, decoded.and_then(|()| reader.finish()))
}

/// The positions where decoding in advance may start: apparent members, a block, sometimes with a
/// wrong window, and anywhere.
fn begins(data: &[u8], starts: usize) -> Vec<(usize, StretchStart)> {
    struct Wanted(usize, Option<(usize, StretchStart)>);
    impl Sink for Wanted {
        fn output(&mut self, _bytes: &[u8]) {}
        fn block_start(&mut self, at: BlockStart<'_>) {
            if self.0 == 0 {
                let block =
                    StretchStart::Block { bits: at.bits, before: 0, window: Box::new(*at.window) };
                self.1 = Some((at.input.0 as usize, block));
            }
            self.0 = self.0.wrapping_sub(1);
        }
    }
    let mut begins = Vec::new();
    let finder = MemberFinder::like(data);
    let mut at = 0;
    while let Some(next) =
        finder.as_ref().and_then(|finder| finder.find(data, at)).filter(|_| begins.len() < 8)
    {
        begins.push((next, StretchStart::Member));
        at = next + 1;
    }
    let last = usize::from(data.last().copied().unwrap_or(0));
    if !data.is_empty() {
        begins.extend([0, last * data.len() / 512].map(|at| (at, StretchStart::Unknown)));
    }
    let mut wanted = Wanted(last * starts / 256, None);
    let _ = GzipReader::new().push(data, &mut wanted);
    if let Some((at, StretchStart::Block { bits, mut window, .. })) = wanted.1 {
        window[(last << 7) % (32 << 10)] ^= u8::from(data.len().is_multiple_of(8));
        begins.push((at, StretchStart::Block { bits, before: data[at - 1], window }));
    }
    begins
}

/// Invariants: neither the chunks nor decoding in advance affect the result; block starts only move
/// forward; accepted input decodes to the same bytes as with flate2.
pub fn gzip(data: &[u8]) {
    let Some((whole, end)) = decode(std::iter::once(data)) else { return };
    for (at, begin) in begins(data, whole.starts.len()) {
        let (ahead, ahead_end) = decode_ahead(data, at, begin);
        assert_eq!(end, ahead_end, "what is at {at} was decoded ahead");
        if end.is_ok() {
            assert_eq!(whole, ahead);
        }
    }
    if let Some((cut, cut_end)) = decode(pieces(data)) {
        assert_eq!(end, cut_end);
        if end.is_ok() {
            assert_eq!(whole, cut);
        }
    }
    let Ok(end) = end else { return };
    assert_eq!(end.output.0, whole.length);
    assert!(
        whole.starts.windows(2).all(|w| (w[0].0, w[0].1) <= (w[1].0, w[1].1)),
        "block starts go backwards"
    );
    let gzip = end.trailing.map_or(data, |at| &data[..at.0 as usize]);
    let mut hasher = crc32fast::Hasher::new();
    let mut decoder = flate2::read::MultiGzDecoder::new(gzip);
    let mut length = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match decoder.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                hasher.update(&buffer[..n]);
                length += n as u64;
            }
            Err(e) => panic!("accepted here, refused by flate2: {e}"),
        }
    }
    assert_eq!((whole.length, whole.crc), (length, hasher.finalize()));
}

/// Invariants: input is accepted exactly if zlib accepts it, with the same bytes, by both loops.
pub fn inflate(data: &[u8]) {
    inflate::compare(data);
}

/// A span decodes to the bytes that its ztoc claims, or gives an error.
pub fn span(data: &[u8]) {
    span::decode(data);
}

fn walk<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<Entry>, Result<Uncompressed, TarError>) {
    let mut walker = Walker::new();
    let mut entries = Vec::new();
    for piece in pieces {
        if let Err(e) = walker.push(piece, &mut |entry| entries.push(entry)) {
            return (entries, Err(e));
        }
    }
    (entries, walker.finish())
}

/// The walk of a reader that seeks: data and padding are skipped.
fn walk_headers(data: &[u8]) -> (Vec<Entry>, Result<Uncompressed, TarError>) {
    let mut walker = Walker::new();
    let mut entries = Vec::new();
    let mut rest = data;
    loop {
        rest = &rest[walker.skip(rest.len() as u64) as usize..];
        if rest.is_empty() {
            return (entries, walker.finish());
        }
        let (block, after) = rest.split_at(rest.len().min(512));
        if let Err(e) = walker.push(block, &mut |entry| entries.push(entry)) {
            return (entries, Err(e));
        }
        rest = after;
    }
}

/// Invariants: neither the chunks nor skipping data affect the result; entries follow each other on
/// block borders.
pub fn tar(data: &[u8]) {
    let whole = walk(std::iter::once(data));
    let cut = walk(pieces(data));
    assert_eq!(whole.1, cut.1);
    assert_eq!(whole, walk_headers(data), "data passed over");
    let kept = |entries: &[Entry]| {
        entries.iter().filter(|e| e.kind != Kind::GlobalHeader).cloned().collect::<Vec<_>>()
    };
    assert_eq!(kept(&whole.0), kept(&cut.0));
    for entry in &kept(&whole.0) {
        assert!(entry.header < entry.data);
        assert_eq!((entry.header.0 % 512, entry.data.0 % 512), (0, 0));
    }
    assert!(whole.0.windows(2).all(|w| w[0].data <= w[1].header), "entries overlap");
    if let Ok(end) = whole.1 {
        assert!(end.0 <= data.len() as u64, "the end lies behind the input");
    }
}

/// Ztocs, their trees and their spans; see `ztocs`.
pub fn ztoc(data: &[u8]) {
    ztocs::read(data);
}

fn index<'a>(
    span_size: u64,
    fine: bool,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<IndexedLayer, LayerError> {
    let mut indexer = LayerIndexer::new(
        LayerOptions {
            span_size: SpanSize::new(span_size).unwrap(),
            build_tool_identifier: "fuzz".into(),
            fine,
        },
        None,
    );
    for piece in pieces {
        indexer.push(piece)?;
    }
    indexer.finish()
}

/// The relevant result for callers: the ztoc's digest, the code of a refusal, or that the layer is
/// broken (the offset may vary).
fn verdict(indexed: &Result<IndexedLayer, LayerError>) -> String {
    match indexed {
        Ok(IndexedLayer { outcome: Outcome::Ztoc(built), .. }) => built.digest.to_string(),
        Ok(IndexedLayer { outcome: Outcome::Unservable(why), .. }) => why.code.to_string(),
        Err(_) => "broken".into(),
    }
}

/// Invariants: the chunks do not affect the result; our reader accepts the ztoc for this blob. A
/// fine document does not affect the ztoc, survives encoding and decoding, and `verify` finds no
/// difference between the two and the layer.
pub fn layer(data: &[u8]) {
    // The last byte chooses the span size, and whether there is a fine document. It also belongs to
    // the layer.
    let last = data.last().copied().unwrap_or(0);
    let span_size = 1 << (last % 21);
    let fine = last >= 128;
    let whole = index(span_size, fine, std::iter::once(data));
    let cut = index(span_size, fine, pieces(data));
    assert_eq!(verdict(&whole), verdict(&cut), "{whole:?}, in pieces {cut:?}");
    if fine {
        let without = index(span_size, false, std::iter::once(data));
        // zstd is only decoded for a document.
        let is_zstd = verdict(&without) == UnservableCode::Compression.to_string();
        assert!(
            is_zstd || verdict(&whole) == verdict(&without),
            "{whole:?}, without a fine document {without:?}"
        );
    }
    let (Ok(whole), Ok(cut)) = (whole, cut) else { return };
    assert_eq!(whole.size, data.len() as u64);
    assert_eq!(whole.fine, cut.fine);
    let built = match whole.outcome {
        Outcome::Ztoc(built) => built,
        Outcome::Unservable(_) => {
            if let Some(fine) = whole.fine {
                assert_proven(None, fine, data);
            }
            return;
        }
    };
    let decoded = ztoc::decode(&built.bytes).expect("our own ztoc is sound");
    assert_eq!(ztoc::encode(&decoded), built.bytes);
    assert_eq!(decoded.compressed_size.0, whole.size);
    assert_eq!(
        (decoded.files.len() as u64, decoded.span_digests.len()),
        (built.entries, built.spans as usize)
    );
    if let Checkpoints::Gzip { list, .. } = &decoded.checkpoints {
        assert!(
            list.windows(2)
                .all(|w| w[0].span_start() < w[1].span_start() && w[0].output < w[1].output)
        );
        assert!(
            list.windows(2).all(|w| w[1].output - w[0].output > span_size),
            "checkpoints too close"
        );
    }
    assert_eq!(whole.fine.is_some(), fine, "a fine document is collected if it was requested");
    if let Some(fine) = whole.fine {
        assert_proven(Some(Arc::new(decoded)), fine, data);
    }
}

/// A document that was just made survives encoding, and `verify` finds nothing wrong in it.
fn assert_proven(ztoc: Option<Arc<Ztoc>>, fine: FineLayer, layer: &[u8]) {
    let encoded = fine.encode(&[]).expect("it is small");
    let again = ociseek_format::fine::decode(&encoded.bytes, &mut Budget::new(u64::MAX).open());
    assert_eq!(again.as_ref(), Ok(&fine));
    let mut proof =
        LayerProof::with_fine(ztoc, Some(Arc::new(fine)), Algorithm::Sha256, Algorithm::Sha256);
    proof.push(layer);
    let proof = proof.finish();
    assert!(proof.holds(), "{:?} {:?}", proof.differences, proof.of_document);
}

/// Two hashes at the same time; see `sha256`.
pub fn sha256(data: &[u8]) {
    sha256::both(data);
}

/// Fine documents; see `fine`.
pub fn fine(data: &[u8]) {
    fine::decode(data);
}

/// Documents of registries; see `documents`.
pub fn documents(data: &[u8]) {
    documents::read(data);
}

/// Notifications of registries; see `events`.
pub fn events(data: &[u8]) {
    events::read(data);
}

/// Challenges and links; see `headers`.
pub fn headers(data: &[u8]) {
    headers::read(data);
}

/// Layers of zstd frames; see `zstd_frames`.
pub fn zstd(data: &[u8]) {
    zstd_frames::frames(data, pieces(data), MOST);
}

/// Where zstd frames can be resumed; see `zstd_blocks`.
pub fn zstd_scan(data: &[u8]) {
    zstd_blocks::scan(data, pieces(data), MOST);
}

/// Resuming zstd frames in any state; see `zstd_blocks`.
pub fn zstd_resume(data: &[u8]) {
    zstd_blocks::resume(data, MOST);
}

/// Archives, and what Go lists in them; see `listing`. It wants ociseek-oracle (.ci/tools).
pub fn listing(data: &[u8]) {
    listing::compare(data);
}

/// Blocks of the static program's allocator; see `blocks`.
#[cfg(target_os = "linux")]
pub fn blocks(data: &[u8]) {
    blocks::take(data);
}
