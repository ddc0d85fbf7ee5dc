//! Checks that a span of a fine document leads to the next one.

use std::ops::ControlFlow;

use crate::codec::WINDOW;
use crate::codec::gzip::{BlockStart, Sink};
use crate::fine::{FineSpans, SpanWindow};
use crate::layer::span::{
    HasSpans, SpanBounds, SpanError, SpanFilter, SpanSink, SpanTable, decode_checkpoint, decode_fine,
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
    let mut sink = ToNext::new(SpanFilter::new(size, out), start);
    decode_fine(span, spans, window, blob, size, &mut sink)?;
    let Some(before) = sink.before(after)? else { return Ok(()) };
    let own_lead = window.map_or(&[][..], SpanWindow::lead);
    let is_right = |next: &SpanWindow| {
        let bytes = blob.iter().rev().chain(own_lead.iter().rev());
        next.is_part_of(&before) && next.lead().iter().rev().eq(bytes.take(next.lead().len()))
    };
    match next.is_none_or(is_right) {
        true => Ok(()),
        false => Err(SpanError::Window { span: after }),
    }
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
