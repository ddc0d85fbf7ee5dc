//! Chooses the checkpoints of a zstd blob and collects what their windows need.

use std::collections::VecDeque;

use super::{FineMessage, StartLimits, start};
use crate::budget::{Budget, Charge};
use crate::codec::zstd::{ZstdBorder, ZstdReference, ZstdState};
use crate::fine::{
    DIVIDED_ZSTD_SPAN_SIZE, FineError, FineSpans, FineStart, MAX_ZSTD_SPAN, MAX_ZSTD_WINDOW, SPAN_SIZE, SpanWindow,
};
use crate::offset::{Compressed, SpanId, Uncompressed};

/// Chooses the checkpoints of a zstd blob and collects their windows.
pub(in crate::layer) struct FineZstd {
    /// The least distance between two of them in bytes of the tar, to divide a span. None for a
    /// whole blob: then it depends on how much is referred to.
    divided: Option<u64>,
    limits: StartLimits,
    last: Option<FineStart>,
    /// The state at the last checkpoint, if that needs a window, which the first one does not.
    window: Option<OpenWindow>,
    used: UsedOutput,
    /// The output that windows can have bytes of.
    recent: VecDeque<u8>,
    end: Uncompressed,
    /// Charged for `recent`.
    memory: Charge,
    failed: Option<FineError>,
    notes: Vec<FineMessage>,
}

/// A window that is not complete.
enum OpenWindow {
    Frame,
    /// With how far back the window reaches at least.
    Block(ZstdState, u64),
}

impl FineZstd {
    /// For a whole blob. Charges the recent output to `memory`.
    pub(in crate::layer) fn new(memory: Charge) -> FineZstd {
        FineZstd::after(None, None, StartLimits::NONE, VecDeque::new(), memory)
    }

    /// For the part of a blob that `span` holds, to divide it, as
    /// [`FineGzip::dividing`](super::FineGzip::dividing). `window` has the bytes that the span
    /// refers to.
    pub(in crate::layer) fn dividing(spans: &FineSpans, span: SpanId, window: Option<&SpanWindow>) -> FineZstd {
        // The caller holds the span and its window already.
        let memory = Budget::new(u64::MAX).open();
        let this = spans.starts().get(span.0 as usize).copied();
        let mut recent = Vec::new();
        if let Some(window) = window {
            recent.resize(window.length(), 0);
            window.parts().for_each(|(from, part)| recent[from..from + part.len()].copy_from_slice(part));
        }
        let limits = StartLimits::inside(spans, span, u64::MAX);
        FineZstd::after(this, Some(DIVIDED_ZSTD_SPAN_SIZE), limits, recent.into(), memory)
    }

    fn after(
        last: Option<FineStart>,
        divided: Option<u64>,
        limits: StartLimits,
        recent: VecDeque<u8>,
        memory: Charge,
    ) -> FineZstd {
        FineZstd {
            divided,
            limits,
            end: last.map_or(Uncompressed(0), |last| last.output),
            last,
            window: None,
            used: UsedOutput::default(),
            recent,
            memory,
            failed: None,
            notes: Vec::new(),
        }
    }

    /// Takes output.
    ///
    /// # Errors
    /// If it does not fit into memory, or a span is too long.
    pub(in crate::layer) fn output(&mut self, bytes: &[u8]) -> Result<(), FineError> {
        /// In bytes.
        const GROWTH: usize = 32 << 20;
        if let Some(last) = self.last.filter(|last| self.end - last.output > MAX_ZSTD_SPAN) {
            return Err(FineError::LongSpan(last.output));
        }
        let needed = self.recent.len() + bytes.len();
        if needed > self.recent.capacity() {
            // Not twice as much if it is large: while it grows, both are there.
            let grown = needed.max(self.recent.capacity() + self.recent.capacity().min(GROWTH));
            self.memory.grow(grown as u64, || "the output that its windows are taken from".to_owned())?;
            self.recent.reserve_exact(grown - self.recent.len());
            self.memory.shrink_to(grown as u64);
        }
        self.recent.extend(bytes);
        self.end += bytes.len() as u64;
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Takes a checkpoint as [`FineGzip::block_start`](super::FineGzip::block_start) does.
    pub(in crate::layer) fn block_start(&mut self, at: ZstdBorder<'_>) {
        let next = start(at.input, at.output, 0);
        let Some(last) = self.last else {
            // Skippable frames may precede the first frame.
            let next = start(Compressed(0), Uncompressed(0), 0);
            self.last = Some(next);
            return self.notes.push(FineMessage::Start(next));
        };
        let distance = at.output - last.output;
        let is_next = distance > self.divided.unwrap_or(SPAN_SIZE)
            && (self.divided.is_some() || pays(distance, self.used.count))
            && (next.border() > last.border() || last.output.0 == 0)
            && next.border() <= self.limits.border
            && at.output.0 <= self.limits.output;
        if is_next {
            self.end();
            self.window = Some(at.state().map_or(OpenWindow::Frame, |state| OpenWindow::Block(state, at.reach())));
            let next = FineStart { bits: if self.divided.is_some() { FineStart::DIVIDED } else { 0 }, ..next };
            self.last = Some(next);
            self.notes.push(FineMessage::Start(next));
            let unused = self.recent.len().saturating_sub(usize::try_from(at.window()).unwrap_or(usize::MAX));
            self.recent.drain(..unused);
        }
    }

    /// The position that references to before it are wanted of.
    pub(in crate::layer) fn since(&self) -> Option<Uncompressed> {
        self.last.filter(|_| matches!(self.window, Some(OpenWindow::Block(..)))).map(|last| last.output)
    }

    pub(in crate::layer) fn references(&mut self, references: &[ZstdReference]) {
        references.iter().for_each(|reference| self.used.mark(*reference));
    }

    /// Ends the last checkpoint's window: what follows cannot refer to it.
    pub(in crate::layer) fn end(&mut self) {
        let (Some(window), Some(last)) = (self.window.take(), self.last) else { return };
        let OpenWindow::Block(state, reach) = window else {
            return self.notes.push(FineMessage::Window(SpanWindow::of_frame()));
        };
        let used = self.used.take();
        // Repeat offsets may point to before the first byte of the frame.
        let length = used.first().map_or(0, |(back, _)| *back).max(reach as usize);
        let (old, new) = self.recent.as_slices();
        // Where the checkpoint lies in the recent output.
        let place = self.recent.len().saturating_sub((self.end - last.output) as usize);
        let bytes = |from: usize, end: usize| match (from.checked_sub(old.len()), end.checked_sub(old.len())) {
            (Some(from), Some(end)) => [&new[from..end], &[]],
            (None, Some(end)) => [&old[from..], &new[..end]],
            _ => [&old[from..end], &[]],
        };
        let pieces = used.iter().filter(|(back, _)| *back <= place);
        let pieces = pieces.map(|&(back, size)| (length - back, bytes(place - back, place - back + size)));
        let window = SpanWindow::of_zstd(state, length as u32, pieces);
        if window.encoded_size() > MAX_ZSTD_WINDOW {
            self.failed = self.failed.take().or(Some(FineError::LongSpan(last.output)));
        }
        self.notes.push(FineMessage::Window(window));
    }

    /// Whether a window is too large.
    pub(in crate::layer) fn failed(&self) -> Option<&FineError> {
        self.failed.as_ref()
    }

    /// The messages since the last call.
    pub(in crate::layer) fn notes(&mut self) -> Vec<FineMessage> {
        std::mem::take(&mut self.notes)
    }
}

/// Whether a span may end after `size` bytes of the tar of which the window has `used` bytes. What
/// a window takes in the document is in proportion to its bytes, and grows more slowly than the
/// span. So longer spans make the document smaller, and reading a file more expensive.
fn pays(size: u64, used: u64) -> bool {
    /// Spans of this size end in any case.
    const LONGEST: u64 = 16 << 20;
    size >= LONGEST || used * 28 <= size
}

/// The bytes before a checkpoint that are referred to.
#[derive(Default)]
struct UsedOutput {
    /// Their number.
    count: u64,
    /// A bit for each byte, the one right before the checkpoint first.
    words: Vec<u64>,
    /// A bit for each group of words that is not zero.
    groups: Vec<u64>,
}

/// The words of a group, 4 KiB of output.
const GROUP: usize = 64;

impl UsedOutput {
    fn mark(&mut self, ZstdReference { back, length }: ZstdReference) {
        // From the last byte of the reference to its first.
        let (mut from, end) = ((back - length) as usize, back as usize);
        if end > self.words.len() * 64 {
            let groups = end.div_ceil(64 * GROUP);
            self.words.resize(groups * GROUP, 0);
            self.groups.resize(groups.div_ceil(64), 0);
        }
        while from < end {
            let (word, bit) = (from / 64, from % 64);
            let count = (end - from).min(64 - bit);
            let bits = (u64::MAX >> (64 - count)) << bit;
            self.count += u64::from((bits & !self.words[word]).count_ones());
            self.words[word] |= bits;
            self.groups[word / GROUP / 64] |= 1 << (word / GROUP % 64);
            from += count;
        }
    }

    /// Empties the set. Returns its ranges, the oldest first: how far back each begins, and its
    /// size.
    fn take(&mut self) -> Vec<(usize, usize)> {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        self.count = 0;
        for (number, groups) in self.groups.iter_mut().enumerate() {
            let mut left = std::mem::take(groups);
            while left != 0 {
                let group = number * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                for (place, word) in self.words.iter_mut().enumerate().skip(group * GROUP).take(GROUP) {
                    let mut bits = std::mem::take(word);
                    while bits != 0 {
                        let from = bits.trailing_zeros();
                        let count = (bits >> from).trailing_ones();
                        bits &= u64::MAX.checked_shl(from + count).unwrap_or(0);
                        let (from, size) = (place * 64 + from as usize, count as usize);
                        match ranges.last_mut().filter(|(end, _)| *end == from) {
                            Some(last) => *last = (from + size, last.1 + size),
                            None => ranges.push((from + size, size)),
                        }
                    }
                }
            }
        }
        ranges.reverse();
        ranges
    }
}
