//! One span: from its compressed bytes into memory and onto the disk.

use std::ops::{ControlFlow, Range};

use super::Inner;
use super::layer::Layer;
use super::pieces::{Cutter, Run};
use crate::layer::span::SpanError;
use crate::offset::SpanId;
use crate::rootfs::cache::{PIECE, Writer};

/// Spans of at most so many bytes are handed over whole. Of a larger one as much is, from where it is wanted on; the rest goes to
/// the disk as it is decoded.
pub(super) const HANDED_OVER: u64 = 16 << 20;

/// The pieces of a span of `size` bytes that are handed over to those who want `wanted` of it.
fn handed_over(size: u64, wanted: Option<&Range<u32>>) -> Range<u32> {
    let most = (HANDED_OVER / PIECE as u64) as u32;
    match wanted {
        None => 0..0,
        Some(_) if size <= HANDED_OVER => 0..u32::MAX,
        Some(wanted) => wanted.start..wanted.end.max(wanted.start.saturating_add(most)),
    }
}

/// Takes the plain bytes of a span, and hands them on.
pub(super) struct Landing<'a> {
    inner: &'a Inner,
    layer: u32,
    span: u32,
    cutter: Cutter,
    keep: Keep,
}

struct Keep {
    writer: Option<Writer>,
    over: Range<u32>,
    run: Run,
    /// No piece behind this one is of use.
    is_over: bool,
}

impl Keep {
    fn take(&mut self, number: u32, piece: bytes::Bytes) {
        self.writer = self.writer.take().and_then(|mut writer| writer.write(&piece).then_some(writer));
        if self.over.contains(&number) {
            self.run.pieces.push(piece);
        }
        self.is_over = self.writer.is_none() && number.saturating_add(1) >= self.over.end;
    }
}

impl<'a> Landing<'a> {
    /// Pieces of `wanted` are handed over at least.
    pub fn new(
        inner: &'a Inner,
        layer_number: u32,
        layer: &Layer,
        span: u32,
        wanted: Option<&Range<u32>>,
    ) -> Landing<'a> {
        let size = layer.size(span);
        let over = handed_over(size, wanted);
        let writer = inner.keeps_on_disk(layer).then(|| inner.cache.writer(&layer.key(span), size)).flatten();
        let run = Run { first: over.start, pieces: Vec::new() };
        let is_over = writer.is_none() && over.is_empty();
        let keep = Keep { writer, over, run, is_over };
        Landing { inner, layer: layer_number, span, cutter: Cutter::new(), keep }
    }

    /// The next bytes of the span; says whether more are of use.
    pub fn push(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        let keep = &mut self.keep;
        self.cutter.push(bytes, &mut |number, piece| keep.take(number, piece));
        if self.keep.is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether the cache on disk has taken all of it so far.
    pub fn is_kept(&self) -> bool {
        self.keep.writer.is_some()
    }

    /// All bytes were right. They are in the caches after this; the second value tells whether the
    /// one on disk has them.
    pub fn finish(mut self) -> (Run, bool) {
        let keep = &mut self.keep;
        if !keep.is_over {
            self.cutter.finish(&mut |number, piece| keep.take(number, piece));
        }
        let is_kept = self.keep.writer.is_some_and(Writer::finish);
        for (number, piece) in (self.keep.run.first..).zip(&self.keep.run.pieces) {
            self.inner.memory.put((self.layer, self.span, number), piece.clone());
        }
        self.inner.counts.spans_decoded.add(1);
        (self.keep.run, is_kept)
    }
}

/// Decodes a span of which `blob` are all bytes. Blocks.
pub(super) fn decode(
    inner: &Inner,
    number: u32,
    layer: &Layer,
    span: u32,
    wanted: Option<&Range<u32>>,
    blob: &[u8],
) -> Result<Run, SpanError> {
    let mut landing = Landing::new(inner, number, layer, span, wanted);
    layer.open.spans.decode(SpanId(span), blob, &mut |bytes| landing.push(bytes))?;
    Ok(landing.finish().0)
}
