//! Checks that a span of a fine document leads to the next one.

use std::ops::ControlFlow;

use crate::codec::WINDOW;
use crate::codec::gzip::{BlockStart, Sink};
use crate::fine::{FineSpans, FineStart, SpanWindow};
use crate::layer::span::{SpanError, SpanFilter, SpanSink, decode_fine};
use crate::offset::SpanId;

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
    let start = spans.starts().get(after.0 as usize).filter(|_| spans.has_window(after)).copied();
    let plain = spans.plain_range(span);
    let size = plain.end - plain.start;
    let mut sink = ToNext { filter: SpanFilter::new(size, out), start, before: None };
    decode_fine(span, spans, window, blob, size, &mut sink)?;
    let ToNext { filter, before, .. } = sink;
    if start.is_none() || filter.is_broken_off() {
        return Ok(());
    }
    let before = before.ok_or(SpanError::NoBlock { span: after })?;
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

/// Looks for the block at which the next span starts.
struct ToNext<'a> {
    filter: SpanFilter<'a>,
    start: Option<FineStart>,
    /// The output before that block.
    before: Option<Box<[u8; WINDOW]>>,
}

impl Sink for ToNext<'_> {
    fn output(&mut self, bytes: &[u8]) {
        self.filter.output(bytes);
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        let is_it = |start: FineStart| (start.input, start.output, start.bits) == (at.input, at.output, at.bits);
        if self.start.is_some_and(is_it) {
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
