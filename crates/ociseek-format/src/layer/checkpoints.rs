//! Where spans of a ztoc start: the choice of checkpoints.

use crate::codec::gzip::BlockStart;
use crate::offset::{Compressed, SpanSize, Uncompressed};
use crate::ztoc::Checkpoint;

/// The first byte of a span in the blob.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanStart {
    pub at: Compressed,
    /// Whether bits of the previous byte belong to the span. That byte is then part of both spans.
    pub shares_byte: bool,
}

/// Chooses checkpoints among the block starts of a gzip blob.
pub(super) struct GzipSpans {
    span_size: SpanSize,
    /// The checkpoints that were chosen so far.
    pub list: Vec<Checkpoint>,
    /// How many of them [`GzipSpans::starts`] has returned.
    reported: usize,
}

impl GzipSpans {
    /// Chooses a checkpoint whenever more than `span_size` bytes of tar followed the last one.
    pub(super) fn new(span_size: SpanSize) -> GzipSpans {
        GzipSpans { span_size, list: Vec::new(), reported: 0 }
    }

    /// Takes a checkpoint at the first block, and wherever more than a span size was decoded since
    /// the last one (soci-snapshotter, gzip_zinfo.c; unlike it, never twice at output 0, since
    /// consumers refuse that).
    pub(super) fn block_start(&mut self, at: BlockStart<'_>) {
        if self.list.last().is_some_and(|last| !is_apart(last.output, at.output, self.span_size)) {
            return;
        }
        self.list.push(Checkpoint { input: at.input, output: at.output, bits: at.bits, window: Box::new(*at.window) });
    }

    /// The spans that started since the last call.
    pub(super) fn starts(&mut self) -> Vec<SpanStart> {
        let new = &self.list[self.reported..];
        self.reported = self.list.len();
        new.iter().map(|checkpoint| SpanStart { at: checkpoint.input, shares_byte: checkpoint.bits != 0 }).collect()
    }
}

fn is_apart(last: Uncompressed, next: Uncompressed, span_size: SpanSize) -> bool {
    next - last > span_size.get()
}

/// Whether indexing a gzip blob could have chosen these checkpoints. They must be in order.
pub fn are_chosen(list: &[Checkpoint], span_size: SpanSize) -> bool {
    let starts = list.first().is_some_and(|first| first.bits == 0 && first.window.iter().all(|byte| *byte == 0));
    starts && list.windows(2).all(|two| is_apart(two[0].output, two[1].output, span_size))
}

/// Cuts a plain tar into slices.
pub(super) struct PlainSpans {
    span_size: SpanSize,
    next: Compressed,
}

impl PlainSpans {
    /// Cuts every `span_size` bytes.
    pub(super) fn new(span_size: SpanSize) -> PlainSpans {
        PlainSpans { span_size, next: Compressed(0) }
    }

    /// The spans that start before the byte `end` and were not returned by earlier calls.
    pub(super) fn starts(&mut self, end: Compressed) -> Vec<SpanStart> {
        let mut starts = Vec::new();
        while self.next < end {
            starts.push(SpanStart { at: self.next, shares_byte: false });
            self.next += self.span_size.get();
        }
        starts
    }
}
