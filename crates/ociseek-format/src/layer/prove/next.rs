//! Checks that a span of a fine document leads to the next one.

use std::iter::Peekable;
use std::ops::ControlFlow;

use crate::codec::WINDOW;
use crate::codec::gzip::{BlockStart, Sink};
use crate::codec::zstd::{ZstdState, zstd_state_after};
use crate::digest::Digest;
use crate::fine::{Codec, FineSpans, SpanWindow};
use crate::layer::span::{
    HasSpans, ProvenSpan, SpanBounds, SpanError, SpanFilter, SpanSink, decode_checkpoint,
    decode_fine, decode_zstd,
};
use crate::offset::{Compressed, SpanId, Uncompressed};

/// What a decoded span shows of the next span's window, apart from the bytes of the tar. To be
/// compared with that window when it is known. It is a digest, because a mount keeps one for each
/// span of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanTail(Digest);

impl SpanTail {
    fn new(lead: &[u8], state: Option<&ZstdState>) -> SpanTail {
        // A lead has at most 64 bytes.
        let mut text = vec![lead.len() as u8];
        text.extend_from_slice(lead);
        if let Some(ZstdState { window, has_checksum, tables }) = state {
            text.extend_from_slice(&[*window, u8::from(*has_checksum)]);
            text.extend_from_slice(tables);
        }
        SpanTail(Digest::sha256(&text))
    }

    /// The tail of a span before this window.
    pub fn of(window: &SpanWindow) -> SpanTail {
        SpanTail::new(window.lead(), window.state())
    }

    /// Whether a window has the same. Its bytes of the tar are not compared
    /// ([`SpanWindow::parts_of_tar`]).
    pub fn agrees(&self, window: &SpanWindow) -> bool {
        *self == SpanTail::of(window)
    }
}

/// Decodes a span as [`SpanTable::decode_with`](crate::layer::span::SpanTable::decode_with) does. A
/// block must start where the next span does, and `next`, the next span's window, must have
/// the bytes before that block. `window` is the span's own. None stands for no window. If the next
/// span has a window that is not given, returns what must be compared with it later, unless `out`
/// stopped early.
///
/// # Errors
/// If `blob` is not what the span's proof says, cannot be decoded, or does not lead to the next
/// span.
pub fn decode_to_next(
    spans: &FineSpans,
    span: SpanId,
    [window, next]: [Option<&SpanWindow>; 2],
    blob: &[u8],
    out: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<Option<SpanTail>, SpanError> {
    if spans.proves(span, blob) {
        proven_to_next(spans, span, [window, next], blob, out)
    } else {
        Err(SpanError::Proof { span })
    }
}

/// [`decode_to_next`] without the proof.
fn proven_to_next(
    spans: &FineSpans,
    span: SpanId,
    [window, next]: [Option<&SpanWindow>; 2],
    blob: &[u8],
    out: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<Option<SpanTail>, SpanError> {
    if spans.codec() == Codec::Zstd {
        return zstd_to_next(spans, span, [window, next], blob, out);
    }
    let plain = spans.plain_range(span);
    let size = plain.end - plain.start;
    let filter = SpanFilter::new(size, out);
    let mut sink = ToNext { filter, next: NextBlock::after(spans, span) };
    decode_fine(span, spans, window, blob, size, &mut sink)?;
    if sink.filter.is_broken_off() {
        return Ok(None);
    }
    compare_next(spans, span, [window, next], sink.next, blob)
}

/// [`decode_to_next`] for zstd, without the proof.
pub(super) fn zstd_to_next(
    spans: &FineSpans,
    span: SpanId,
    [window, next]: [Option<&SpanWindow>; 2],
    blob: &[u8],
    out: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<Option<SpanTail>, SpanError> {
    let has_next = spans.has_window(SpanId(span.0 + 1));
    let plain = spans.plain_range(span);
    let filter = SpanFilter::new(plain.end - plain.start, out);
    // The tar may end before the next span starts.
    let decoded = spans.decoded_range(span);
    let end = decoded.end - decoded.start;
    let parts = next.filter(|_| has_next).map(|next| parts_before(next, end));
    let mut sink = ToNextZstd { filter, at: 0, end, parts, is_right: true, has_next };
    sink.decode(spans, span, [window, next], blob)
}

/// Compares the window of the next span of gzip, after this span was decoded. Of `blob`, the last
/// 64 bytes suffice.
pub(super) fn compare_next(
    spans: &FineSpans,
    span: SpanId,
    [window, next]: [Option<&SpanWindow>; 2],
    block: NextBlock,
    blob: &[u8],
) -> Result<Option<SpanTail>, SpanError> {
    let after = SpanId(span.0 + 1);
    let Some(before) = block.before(after)? else { return Ok(None) };
    let tail = SpanTail::new(&lead_after(spans, span, window, blob), None);
    match next {
        None => Ok(Some(tail)),
        Some(next) if next.is_part_of(&before) && tail.agrees(next) => Ok(None),
        Some(_) => Err(SpanError::Window { span: after }),
    }
}

/// The lead of the next span, which a span's bytes end with.
fn lead_after(
    spans: &FineSpans,
    span: SpanId,
    window: Option<&SpanWindow>,
    blob: &[u8],
) -> Vec<u8> {
    let size = spans.lead(SpanId(span.0 + 1));
    let own_lead = window.map_or(&[][..], SpanWindow::lead);
    let missing = size.saturating_sub(blob.len()).min(own_lead.len());
    let first = &own_lead[own_lead.len() - missing..];
    let rest = &blob[blob.len().saturating_sub(size)..];
    [first, rest].concat()
}

/// Parts of a window, the oldest first: where each begins, counted from the start of the span
/// before the window's, and its bytes. Negative places lie before that span.
struct PartsBefore<I: Iterator>(Peekable<I>);

/// The parts of a window that ends `size` bytes after the start of the span.
fn parts_before(window: &SpanWindow, size: u64) -> PartsBefore<impl Iterator<Item = (i64, &[u8])>> {
    let start = size as i64 - window.length() as i64;
    PartsBefore(window.parts().map(move |(from, part)| (start + from as i64, part)).peekable())
}

impl<'a, I: Iterator<Item = (i64, &'a [u8])>> PartsBefore<I> {
    /// Whether the parts agree with `bytes`, which begin at `at`. Drops what ends before the end of
    /// these bytes: later calls are for later bytes.
    fn agree(&mut self, at: i64, bytes: &[u8]) -> bool {
        let end = at + bytes.len() as i64;
        let mut agree = true;
        while let Some((from, part)) = self.0.peek().filter(|(from, _)| *from < end) {
            let part_end = from + part.len() as i64;
            let first = (*from).max(at);
            let last = part_end.min(end);
            if first < last {
                let range = |start: i64| (first - start) as usize..(last - start) as usize;
                agree &= part[range(*from)] == bytes[range(at)];
            }
            if part_end > end {
                break;
            }
            self.0.next();
        }
        agree
    }
}

/// Decodes a span of zstd for [`decode_to_next`].
struct ToNextZstd<'a, I: Iterator> {
    filter: SpanFilter<'a>,
    /// How many bytes were decoded, and after how many the next span starts.
    at: u64,
    end: u64,
    /// What was not compared yet of the next span's window.
    parts: Option<PartsBefore<I>>,
    is_right: bool,
    has_next: bool,
}

impl<'p, I: Iterator<Item = (i64, &'p [u8])>> ToNextZstd<'_, I> {
    /// Compares all that the next span refers to, as far as it is in this one or its window.
    fn decode(
        &mut self,
        spans: &FineSpans,
        span: SpanId,
        [window, next]: [Option<&SpanWindow>; 2],
        blob: &[u8],
    ) -> Result<Option<SpanTail>, SpanError> {
        let after = SpanId(span.0 + 1);
        // Of the bytes before the span, those in its own window are known.
        if let (Some(parts), Some(window)) = (&mut self.parts, window) {
            for (from, known) in parts_before(window, 0).0 {
                self.is_right &= parts.agree(from, known);
            }
        }
        let wanted = if self.has_next { self.end } else { self.left() };
        decode_zstd(span, spans, window, 0, blob, wanted, self)?;
        if self.filter.is_broken_off() || !self.has_next {
            return Ok(None);
        }
        if self.at != self.end {
            return Err(SpanError::NoBlock { span: after });
        }
        let lead = window.map_or(&[][..], SpanWindow::lead);
        let state =
            zstd_state_after(window.and_then(SpanWindow::state), lead, spans.own(span, blob));
        let state = state.ok_or(SpanError::NoBlock { span: after })?;
        let tail = SpanTail::new(&lead_after(spans, span, window, blob), state.as_ref());
        match next {
            None => Ok(Some(tail)),
            Some(next) if self.is_right && tail.agrees(next) => Ok(None),
            Some(_) => Err(SpanError::Window { span: after }),
        }
    }
}

impl<'p, I: Iterator<Item = (i64, &'p [u8])>> Sink for ToNextZstd<'_, I> {
    fn output(&mut self, bytes: &[u8]) {
        if let Some(parts) = &mut self.parts {
            self.is_right &= parts.agree(self.at as i64, bytes);
        }
        self.at += bytes.len() as u64;
        self.filter.output(bytes);
    }

    fn block_start(&mut self, _at: BlockStart<'_>) {}
}

impl<'p, I: Iterator<Item = (i64, &'p [u8])>> SpanSink for ToNextZstd<'_, I> {
    fn left(&self) -> u64 {
        self.filter.left()
    }

    fn is_over(&self) -> bool {
        // Not at the last byte if the next span must start there.
        self.filter.is_broken_off() || self.left() == 0 && (!self.has_next || self.at > self.end)
    }
}

impl<T: HasSpans> ProvenSpan<'_, T> {
    /// Decodes it as [`ProvenSpan::decode`] does. A block must start where the next span does, and
    /// the next span's window must have the bytes before that block. `windows` are those of the
    /// span and of the next one from pages of the fine document, as far as they are known. Nothing
    /// of the next span is compared if `out` stops early. Returns what [`decode_to_next`] does.
    ///
    /// # Errors
    /// As [`ProvenSpan::decode`], and if the span does not lead to the next one.
    pub fn decode_to_next(
        &self,
        windows: [Option<&SpanWindow>; 2],
        out: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<Option<SpanTail>, SpanError> {
        let ProvenSpan { table, span, blob } = *self;
        if let SpanBounds::Fine(head) = table.bounds() {
            return proven_to_next(head.spans(), span, windows, blob, out);
        }
        let (Some(checkpoint), Some(next)) =
            (table.checkpoint(span), table.checkpoint(SpanId(span.0 + 1)))
        else {
            return self.decode(None, out).map(|()| None);
        };
        let plain = table.plain_range(span);
        let size = plain.end - plain.start;
        let start = Some((next.input, next.output, next.bits));
        let block = NextBlock { start, before: None };
        let mut sink = ToNext { filter: SpanFilter::new(size, out), next: block };
        decode_checkpoint(span, checkpoint, blob, size, &mut sink)?;
        if sink.filter.is_broken_off() {
            return Ok(None);
        }
        match sink.next.before(SpanId(span.0 + 1))? {
            Some(before) if before != next.window => {
                Err(SpanError::Window { span: SpanId(span.0 + 1) })
            }
            _ => Ok(None),
        }
    }
}

/// Looks for the block at which the next span starts.
#[derive(Default)]
pub(super) struct NextBlock {
    /// Input, output and bits, as in [`BlockStart`]. None if no span follows.
    start: Option<(Compressed, Uncompressed, u8)>,
    /// The output before that block.
    before: Option<Box<[u8; WINDOW]>>,
}

impl NextBlock {
    /// The block after a span of a fine document.
    pub(super) fn after(spans: &FineSpans, span: SpanId) -> NextBlock {
        let after = SpanId(span.0 + 1);
        let start = spans.starts().get(after.0 as usize).filter(|_| spans.has_window(after));
        NextBlock {
            start: start.map(|start| (start.input, start.output, start.bits)),
            before: None,
        }
    }

    pub(super) fn see(&mut self, at: BlockStart<'_>) {
        if self.start == Some((at.input, at.output, at.bits)) {
            self.before = Some(Box::new(*at.window));
        }
    }

    /// Whether there is nothing more to look for.
    fn is_over(&self) -> bool {
        self.start.is_none() || self.before.is_some()
    }

    /// The output before the span `after`. None if no span follows.
    ///
    /// # Errors
    /// If no block starts where that span does.
    fn before(self, after: SpanId) -> Result<Option<Box<[u8; WINDOW]>>, SpanError> {
        match self.start {
            None => Ok(None),
            Some(_) => self.before.map(Some).ok_or(SpanError::NoBlock { span: after }),
        }
    }
}

/// Decodes a span of gzip for [`decode_to_next`].
struct ToNext<'a> {
    filter: SpanFilter<'a>,
    next: NextBlock,
}

impl Sink for ToNext<'_> {
    fn output(&mut self, bytes: &[u8]) {
        self.filter.output(bytes);
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        self.next.see(at);
    }
}

impl SpanSink for ToNext<'_> {
    fn left(&self) -> u64 {
        self.filter.left()
    }

    fn is_over(&self) -> bool {
        self.filter.is_broken_off() || self.left() == 0 && self.next.is_over()
    }
}
