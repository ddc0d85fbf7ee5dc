//! Checks that a span of a fine document leads to the next one.

use std::io;
use std::ops::ControlFlow;

use crate::codec::WINDOW;
use crate::codec::gzip::{BlockStart, Sink};
use crate::codec::zstd::{ZstdBorder, ZstdReference, ZstdSink, ZstdState};
use crate::fine::{Codec, FineSpans, SpanWindow};
use crate::layer::span::{
    HasSpans, SpanBounds, SpanError, SpanFilter, SpanSink, SpanTable, decode_checkpoint, decode_fine, scan_zstd,
};
use crate::offset::{Compressed, SpanId, Uncompressed};

/// Decodes a span as [`SpanTable::decode_with`](crate::layer::span::SpanTable::decode_with) does. A
/// deflate block must start where the next span does, and `next`, the next span's window, must have
/// the bytes before that block. `window` is the span's own. None stands for no window.
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
) -> Result<(), SpanError> {
    if !spans.proves(span, blob) {
        return Err(SpanError::Proof { span });
    }
    let after = SpanId(span.0 + 1);
    let start = spans.starts().get(after.0 as usize).filter(|_| spans.has_window(after));
    let start = start.map(|start| (start.input, start.output, start.bits));
    let plain = spans.plain_range(span);
    let size = plain.end - plain.start;
    if spans.codec() == Codec::Zstd {
        let mut sink = ToNextZstd { filter: SpanFilter::new(size, out), plain: Vec::new(), start, state: None };
        return sink.decode(spans, span, [window, next], blob);
    }
    let mut sink = ToNext::new(SpanFilter::new(size, out), start);
    decode_fine(span, spans, window, blob, size, &mut sink)?;
    let Some(before) = sink.before(after)? else { return Ok(()) };
    match next.is_none_or(|next| next.is_part_of(&before) && leads(next, window, blob)) {
        true => Ok(()),
        false => Err(SpanError::Window { span: after }),
    }
}

/// Whether a span's bytes end with the lead of the next one.
fn leads(next: &SpanWindow, window: Option<&SpanWindow>, blob: &[u8]) -> bool {
    let own_lead = window.map_or(&[][..], SpanWindow::lead);
    let bytes = blob.iter().rev().chain(own_lead.iter().rev());
    next.lead().iter().rev().eq(bytes.take(next.lead().len()))
}

/// Looks for the block or frame of zstd at which the next span starts.
struct ToNextZstd<'a> {
    filter: SpanFilter<'a>,
    /// What the span decodes to.
    plain: Vec<u8>,
    /// None if no span follows.
    start: Option<(Compressed, Uncompressed, u8)>,
    /// The state of the decoder where the next span starts: none at the start of a frame.
    state: Option<Option<ZstdState>>,
}

impl ToNextZstd<'_> {
    /// Compares all that the next span refers to, as far as it is in this one or its window.
    fn decode(
        &mut self,
        spans: &FineSpans,
        span: SpanId,
        [window, next]: [Option<&SpanWindow>; 2],
        blob: &[u8],
    ) -> Result<(), SpanError> {
        let after = SpanId(span.0 + 1);
        let scanned = scan_zstd(span, spans, window, blob, self);
        if self.filter.is_broken_off() {
            return Ok(());
        }
        let end = match scanned {
            // The bytes after the end of the tar are nobody's.
            Err(_) if self.filter.left() == 0 && self.start.is_none() => return Ok(()),
            scanned => scanned?,
        };
        if self.filter.left() > 0 {
            let plain = spans.plain_range(span);
            let expected = plain.end - plain.start;
            return Err(SpanError::Short { span, expected, found: expected - self.filter.left() });
        }
        if self.start.is_none() {
            return Ok(());
        }
        // A frame that begins after the last byte was not seen.
        let is_frame = end == Some(spans.plain_range(span).end);
        let state = self.state.take().or(is_frame.then_some(None));
        let state = state.ok_or(SpanError::NoBlock { span: after })?;
        let Some(next) = next else { return Ok(()) };
        let own = window.map_or(0, SpanWindow::length);
        // Of the bytes before the span, those in its own window are known.
        let is_known = |back: usize, part: &[u8]| match self.plain.len().checked_sub(back) {
            Some(from) => self.plain.get(from..from + part.len()) == Some(part),
            None => {
                let before = back - self.plain.len();
                let (old, new) = part.split_at(before.min(part.len()));
                let is_old = |(from, bytes): (usize, &[u8])| {
                    // Both as distances from the span's start.
                    let (first, end) = (own - from, own - from - bytes.len());
                    let (top, bottom) = (first.min(before), end.max(before - old.len()));
                    top <= bottom || bytes[first - top..first - bottom] == old[before - top..before - bottom]
                };
                window.is_none_or(|window| window.parts().all(is_old)) && self.plain.starts_with(new)
            }
        };
        match next.follows(state.as_ref(), is_known) && leads(next, window, blob) {
            true => Ok(()),
            false => Err(SpanError::Window { span: after }),
        }
    }
}

impl ZstdSink for ToNextZstd<'_> {
    type Error = io::Error;

    fn output(&mut self, bytes: &[u8]) -> io::Result<()> {
        let wanted = usize::try_from(self.filter.left()).map_or(bytes.len(), |left| left.min(bytes.len()));
        self.plain.extend_from_slice(&bytes[..wanted]);
        self.filter.output(bytes);
        let is_over = self.filter.is_broken_off() || self.start.is_none() && self.filter.is_over();
        if is_over { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }

    fn block_start(&mut self, at: ZstdBorder<'_>) {
        if self.start.is_some_and(|(input, output, _)| (input, output) == (at.input, at.output)) {
            self.state = Some(at.state());
        }
    }

    fn since(&self) -> Option<Uncompressed> {
        None
    }

    fn references(&mut self, _references: &[ZstdReference]) {}
}

impl<T: HasSpans> SpanTable<T> {
    /// Decodes a span as [`SpanTable::decode_with`] does. A deflate block must start where the next
    /// span does, and the next span's window must have the bytes before that block. `windows` are
    /// those of the span and of the next one from pages of the fine document, as far as they are
    /// known. Nothing of the next span is compared if `out` stops early.
    ///
    /// # Errors
    /// As [`SpanTable::decode`], and if the span does not lead to the next one.
    pub fn decode_to_next(
        &self,
        span: SpanId,
        windows: [Option<&SpanWindow>; 2],
        blob: &[u8],
        out: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), SpanError> {
        self.check_length(span, blob)?;
        if let SpanBounds::Fine(head) = self.bounds() {
            return decode_to_next(head.spans(), span, windows, blob, out);
        }
        let (Some(checkpoint), Some(next)) = (self.checkpoint(span), self.checkpoint(SpanId(span.0 + 1))) else {
            return self.decode(span, blob, out);
        };
        self.check_digest(span, blob)?;
        let plain = self.plain_range(span);
        let size = plain.end - plain.start;
        let mut sink = ToNext::new(SpanFilter::new(size, out), Some((next.input, next.output, next.bits)));
        decode_checkpoint(span, checkpoint, blob, size, &mut sink)?;
        match sink.before(SpanId(span.0 + 1))? {
            Some(before) if before != next.window => Err(SpanError::Window { span: SpanId(span.0 + 1) }),
            _ => Ok(()),
        }
    }
}

/// Looks for the block at which the next span starts.
struct ToNext<'a> {
    filter: SpanFilter<'a>,
    /// Input, output and bits, as in [`BlockStart`].
    start: Option<(Compressed, Uncompressed, u8)>,
    /// The output before that block.
    before: Option<Box<[u8; WINDOW]>>,
}

impl<'a> ToNext<'a> {
    /// `start` is None if no span follows.
    fn new(filter: SpanFilter<'a>, start: Option<(Compressed, Uncompressed, u8)>) -> ToNext<'a> {
        ToNext { filter, start, before: None }
    }

    /// The output before the span `after`. None if no span follows, or the receiver wanted no more.
    ///
    /// # Errors
    /// If no block starts where that span does.
    fn before(self, after: SpanId) -> Result<Option<Box<[u8; WINDOW]>>, SpanError> {
        match self.start.is_none() || self.filter.is_broken_off() {
            true => Ok(None),
            false => self.before.map(Some).ok_or(SpanError::NoBlock { span: after }),
        }
    }
}

impl Sink for ToNext<'_> {
    fn output(&mut self, bytes: &[u8]) {
        self.filter.output(bytes);
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        if self.start == Some((at.input, at.output, at.bits)) {
            self.before = Some(Box::new(*at.window));
        }
    }
}

impl SpanSink for ToNext<'_> {
    fn left(&self) -> u64 {
        self.filter.left()
    }

    fn is_over(&self) -> bool {
        let is_there = self.start.is_none() || self.before.is_some();
        self.filter.is_broken_off() || self.left() == 0 && is_there
    }
}
