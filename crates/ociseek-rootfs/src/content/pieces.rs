//! Decoded spans in pieces of [`PIECE`] bytes: cuts spans into pieces, keeps the most recently used
//! pieces, and puts spans into memory and on disk.
//!
//! Of a tar header that lies in two spans, the part in either span is kept until the other span is
//! decoded, and both together are compared with the entry that the index states.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};

use super::inner::{LayerHandle, SpanOf};
use super::lru::Lru;
use crate::cache::{PIECE, SpanWriter};
use crate::layers::OpenLayer;
use ociseek_format::fine::Windows;
use ociseek_format::layer::prove::{Difference, SpanHeaders, headers_across};
use ociseek_format::layer::span::{ProvenSpan, SpanError};
use ociseek_format::layer::{LayerMap, NearbyFiles};
use ociseek_format::offset::{SpanId, Uncompressed};
use ociseek_store::lock::Hold;

/// The pieces that hold bytes of `range`, relative to the start of the span.
pub(super) fn covering(range: &Range<u64>) -> Range<u32> {
    let number = |at: u64| u32::try_from(at).unwrap_or(u32::MAX);
    number(range.start / PIECE as u64)..number(range.end.div_ceil(PIECE as u64))
}

/// Where a piece begins in its span.
pub(super) fn start_of(piece: u32) -> u64 {
    u64::from(piece) * PIECE as u64
}

/// Adjacent pieces of a span.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub first: u32,
    pub pieces: Vec<Bytes>,
}

impl Run {
    /// The bytes of `range`, relative to the start of the span, in as many parts as there are
    /// pieces. None if some are missing.
    pub(super) fn get(&self, range: &Range<u64>) -> Option<Vec<Bytes>> {
        let mut parts = Vec::new();
        for number in covering(range) {
            let piece = self.pieces.get(number.checked_sub(self.first)? as usize)?;
            let at = start_of(number);
            let from = usize::try_from(range.start.saturating_sub(at)).ok()?;
            let to = usize::try_from(range.end - at).ok()?.min(PIECE);
            if from > to || to > piece.len() {
                return None;
            }
            parts.push(piece.slice(from..to));
        }
        Some(parts)
    }
}

/// Cuts a span's bytes into pieces.
struct PieceCutter {
    piece: BytesMut,
    number: u32,
    /// The size of the pieces after this one, in bytes.
    rest: u64,
}

impl PieceCutter {
    /// For a span of `size` bytes.
    pub(super) fn new(size: u64) -> PieceCutter {
        let mut cutter = PieceCutter { piece: BytesMut::new(), number: 0, rest: size };
        cutter.piece = cutter.next();
        cutter
    }

    /// An empty piece. No piece takes more memory than its bytes need, because it may be kept for
    /// long, and the last one of a span may be short.
    fn next(&mut self) -> BytesMut {
        let size = self.rest.min(PIECE as u64);
        self.rest -= size;
        BytesMut::with_capacity(size as usize)
    }

    /// Passes each complete piece to `out`, with its number.
    pub(super) fn push(&mut self, mut bytes: &[u8], out: &mut impl FnMut(u32, Bytes)) {
        while !bytes.is_empty() {
            let (taken, rest) = bytes.split_at(bytes.len().min(PIECE - self.piece.len()));
            self.piece.extend_from_slice(taken);
            if self.piece.len() == PIECE {
                self.cut(out);
            }
            bytes = rest;
        }
    }

    /// Ends the span.
    pub(super) fn finish(mut self, out: &mut impl FnMut(u32, Bytes)) {
        if !self.piece.is_empty() {
            self.cut(out);
        }
    }

    fn cut(&mut self, out: &mut impl FnMut(u32, Bytes)) {
        let next = self.next();
        let piece = std::mem::replace(&mut self.piece, next);
        out(self.number, piece.freeze());
        self.number += 1;
    }
}

/// A piece of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PieceId {
    pub of: SpanOf,
    pub number: u32,
}

/// The most recently used pieces.
pub(super) type Memory = Lru<PieceId, Bytes>;

/// Spans of up to this many bytes are passed on as a whole. Of a larger span, this many bytes are
/// passed on, starting where it is wanted; the rest is written to disk as it is decoded.
pub(super) const HANDED_OVER: u64 = 16 << 20;

/// The pieces of a span of `size` bytes that are passed on to tasks that want `wanted` of it.
fn handed_over(size: u64, wanted: Option<&Range<u32>>) -> Range<u32> {
    let most = (HANDED_OVER / PIECE as u64) as u32;
    match wanted {
        None => 0..0,
        Some(_) if size <= HANDED_OVER => 0..u32::MAX,
        Some(wanted) => wanted.start..wanted.end.max(wanted.start.saturating_add(most)),
    }
}

/// Takes the plain bytes of a span and passes them on.
pub(super) struct PieceSink<'a> {
    handle: &'a LayerHandle,
    span: SpanId,
    cutter: PieceCutter,
    keeper: SpanKeeper,
}

/// Keeps the pieces of a span that are asked for, and writes all of them to the cache on disk.
struct SpanKeeper {
    writer: Option<SpanWriter>,
    over: Range<u32>,
    run: Run,
    /// Whether further pieces are not needed.
    is_over: bool,
}

impl SpanKeeper {
    fn take(&mut self, number: u32, piece: Bytes) {
        self.writer =
            self.writer.take().and_then(|mut writer| writer.write(&piece).then_some(writer));
        if self.over.contains(&number) {
            self.run.pieces.push(piece);
        }
        self.is_over = self.writer.is_none() && number.saturating_add(1) >= self.over.end;
    }
}

impl<'a> PieceSink<'a> {
    /// At least the pieces of `wanted` are passed on.
    pub(super) fn new(
        handle: &'a LayerHandle,
        span: SpanId,
        wanted: Option<&Range<u32>>,
    ) -> PieceSink<'a> {
        let size = handle.layer.size(span);
        let over = handed_over(size, wanted);
        let writer = handle
            .keeps_on_disk()
            .then(|| handle.inner.cache.writer(&handle.layer.place(span)))
            .flatten();
        let run = Run { first: over.start, pieces: Vec::new() };
        let is_over = writer.is_none() && over.is_empty();
        PieceSink {
            handle,
            span,
            cutter: PieceCutter::new(size),
            keeper: SpanKeeper { writer, over, run, is_over },
        }
    }

    /// Takes the next bytes of the span. Returns whether more are needed.
    pub(super) fn push(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        let keeper = &mut self.keeper;
        self.cutter.push(bytes, &mut |number, piece| keeper.take(number, piece));
        if self.keeper.is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether the cache on disk has accepted everything so far.
    pub(super) fn is_kept(&self) -> bool {
        self.keeper.writer.is_some()
    }

    /// Call this after all bytes were verified. Adds the span to memory. The caller stores it on
    /// disk.
    pub(super) fn finish(mut self) -> DecodedSpan {
        let keeper = &mut self.keeper;
        if !keeper.is_over {
            self.cutter.finish(&mut |number, piece| keeper.take(number, piece));
        }
        let SpanKeeper { writer, run, .. } = self.keeper;
        for (number, piece) in (run.first..).zip(&run.pieces) {
            self.handle.inner.memory.put(
                self.handle.piece(self.span, number),
                piece.clone(),
                piece.len() as u64,
            );
        }
        self.handle.inner.counts.spans_decoded.add(1);
        let is_whole = self.handle.layer.size(self.span) <= HANDED_OVER && !run.pieces.is_empty();
        DecodedSpan { run: Arc::new(run), is_whole, writer }
    }
}

/// A span that is decoded, and not on disk yet.
pub(super) struct DecodedSpan {
    pub run: Arc<Run>,
    /// Whether the run has all of it.
    pub is_whole: bool,
    writer: Option<SpanWriter>,
}

impl DecodedSpan {
    /// Whether there is something to store.
    pub(super) fn is_unstored(&self) -> bool {
        self.writer.is_some()
    }

    /// Stores it on disk. Returns whether it is there. Blocks.
    pub(super) fn store(&mut self) -> bool {
        self.writer.take().is_some_and(SpanWriter::finish)
    }
}

impl LayerHandle {
    /// Decodes a span. `windows` is the page with its window, if there is one. Blocks.
    ///
    /// What the span shows of an index's other claims is compared: the window and the place of the
    /// next checkpoint, and the tar headers in the span. If the next window is not known, it is
    /// compared before it is used.
    pub(super) fn decode(
        &self,
        span: SpanId,
        wanted: Option<&Range<u32>>,
        windows: Option<&Windows>,
        proven: &ProvenSpan<'_, LayerMap>,
    ) -> Result<DecodedSpan, SpanError> {
        let mut sink = PieceSink::new(self, span, wanted);
        let window = windows.and_then(|windows| windows.get(span));
        let OpenLayer { spans, how, .. } = &self.layer.open;
        if !how.is_claimed() {
            proven.decode(window, &mut |bytes| sink.push(bytes))?;
            return Ok(sink.finish());
        }
        if let Some(window) = window {
            self.check_used_window(span, window)?;
        }
        let after = SpanId(span.0 + 1);
        let next_page = self.loaded_windows(after);
        let next = next_page.as_ref().and_then(|page| page.get(after));
        let plain = spans.plain_range(span);
        let near = spans.map().files.near(&plain);
        let mut headers = SpanHeaders::among(near.first, &near.files, &plain);
        let mut ends = SpanEnds::new(&near, &plain);
        let tail = proven.decode_to_next([window, next], &mut |bytes| {
            headers.push(bytes);
            ends.push(bytes);
            sink.push(bytes)
        })?;
        let split = ends.finish(&self.layer.split_headers);
        match headers.finish().first().or(split.as_ref()) {
            Some(difference) => Err(SpanError::Header { span, what: difference.to_string() }),
            None => {
                self.check_next_window(after, next.is_some(), tail)?;
                Ok(sink.finish())
            }
        }
    }
}

/// Larger headers are not compared, in bytes.
const LARGEST: u64 = 64 << 10;
/// How many bytes of headers are kept for a layer.
const KEPT: usize = 1 << 20;

/// The parts that wait for the other one.
#[derive(Default)]
pub(super) struct SplitHeaders(Mutex<WaitingParts>);

#[derive(Default)]
struct WaitingParts {
    bytes: usize,
    /// By the offset where the first span ends: what it holds, or what the second one holds.
    by_offset: BTreeMap<Uncompressed, [Option<Vec<u8>>; 2]>,
}

impl SplitHeaders {
    /// Keeps a part. Returns both parts if the other one is here.
    fn join(&self, at: Uncompressed, part: usize, bytes: Vec<u8>) -> Option<[Vec<u8>; 2]> {
        let mut waiting = self.0.hold();
        let WaitingParts { bytes: total, by_offset } = &mut *waiting;
        let mut parts = by_offset.remove(&at).unwrap_or_default();
        *total -= parts.iter().flatten().map(Vec::len).sum::<usize>();
        parts[part] = Some(bytes);
        match parts {
            [Some(first), Some(second)] => Some([first, second]),
            parts => {
                let size = parts.iter().flatten().map(Vec::len).sum::<usize>();
                if *total + size <= KEPT {
                    *total += size;
                    by_offset.insert(at, parts);
                }
                None
            }
        }
    }
}

/// What a span holds of headers that begin before it or end after it.
struct SpanEnds<'a> {
    near: &'a NearbyFiles,
    position: Uncompressed,
    ends: Vec<SpanEnd>,
}

struct SpanEnd {
    /// The offset between the two spans.
    at: Uncompressed,
    /// 0 if this span holds the first part of the headers, 1 if it holds the second one.
    part: usize,
    headers: Range<Uncompressed>,
    bytes: Vec<u8>,
}

impl SpanEnd {
    /// This span's part of the headers.
    fn wanted(&self) -> Range<Uncompressed> {
        if self.part == 0 { self.headers.start..self.at } else { self.at..self.headers.end }
    }
}

impl<'a> SpanEnds<'a> {
    /// For the bytes of the tar in `span`, which has the entries in `near`.
    pub(super) fn new(near: &'a NearbyFiles, span: &Range<Uncompressed>) -> SpanEnds<'a> {
        let ends = [(span.start, 1), (span.end, 0)].into_iter().filter_map(|(at, part)| {
            let headers = headers_across(&near.files, at)
                .filter(|headers| headers.end - headers.start <= LARGEST)?;
            Some(SpanEnd { at, part, headers, bytes: Vec::new() })
        });
        SpanEnds { near, position: span.start, ends: ends.collect() }
    }

    /// Takes the next bytes of the span.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let start = self.position;
        let end = self.position + piece.len() as u64;
        for one in &mut self.ends {
            let wanted = one.wanted();
            let from = wanted.start.max(start);
            let to = wanted.end.min(end);
            if from < to {
                one.bytes.extend_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
            }
        }
        self.position = end;
    }

    /// Ends the span. Returns a difference of headers if this was their missing part.
    pub(super) fn finish(self, waiting: &SplitHeaders) -> Option<Difference> {
        let NearbyFiles { first, files } = self.near;
        self.ends.into_iter().find_map(|end| {
            let wanted = end.wanted();
            // A span may have been decoded only in part.
            if wanted.end - wanted.start != end.bytes.len() as u64 {
                return None;
            }
            let parts = waiting.join(end.at, end.part, end.bytes)?;
            let mut both = SpanHeaders::among(*first, files, &end.headers);
            parts.iter().for_each(|part| both.push(part));
            both.finish().into_iter().next()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_found_by_offset() {
        let span: Vec<u8> = (0..3 * PIECE + 100).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
        let mut run = Run { first: 1, pieces: Vec::new() };
        let mut cutter = PieceCutter::new(span.len() as u64);
        let mut take = |number, piece| {
            if number >= 1 {
                run.pieces.push(piece);
            }
        };
        for bytes in span.chunks(1000) {
            cutter.push(bytes, &mut take);
        }
        cutter.finish(&mut take);
        let p = PIECE as u64;
        for range in [
            p..p,
            p..p + 1,
            p + 5..2 * p,
            2 * p - 1..3 * p + 100,
            p..3 * p + 100,
            3 * p + 99..3 * p + 100,
        ] {
            let content = run.get(&range).unwrap().concat();
            assert!(content == span[range.start as usize..range.end as usize], "{range:?}");
        }
        for range in [0..1, p - 1..p + 1, p..3 * p + 101, 4 * p..4 * p + 1] {
            assert!(run.get(&range).is_none(), "{range:?}");
        }
    }

    #[test]
    fn pieces_take_no_more_memory_than_their_bytes() {
        for size in [0, 1, 100, PIECE, PIECE + 1, 2 * PIECE - 1, 3 * PIECE] {
            let mut cutter = PieceCutter::new(size as u64);
            let mut total = 0;
            let mut take = |_, piece: Bytes| total += piece.try_into_mut().unwrap().capacity();
            for bytes in vec![1; size].chunks(1000) {
                cutter.push(bytes, &mut take);
            }
            cutter.finish(&mut take);
            assert_eq!(total, size);
        }
    }
}
