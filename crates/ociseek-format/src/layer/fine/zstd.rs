//! Chooses the checkpoints of a zstd blob and collects what their windows need.
//!
//! The blob is read twice, at the same time. [`ZstdPlanner`] reads the blocks, and decides from
//! them alone where checkpoints are and which bytes are referred to. [`FineZstd`] gets the output,
//! a bit later, and takes these bytes from it. So the one does not wait for the other.

use std::collections::VecDeque;

use super::recent::RecentOutput;
use super::{FineMessage, StartLimits, start};
use crate::budget::{Budget, Charge, OverBudget};
use crate::codec::zstd::{ZstdBlocks, ZstdBorder, ZstdReference, ZstdSink, ZstdState};
use crate::fine::{
    DIVIDED_ZSTD_SPAN_SIZE, FineError, FineSpans, FineStart, MAX_ZSTD_SPAN, MAX_ZSTD_WINDOW, SPAN_SIZE, SpanWindow,
};
use crate::layer::LayerError;
use crate::offset::{Compressed, SpanId, Uncompressed};

/// What to do with the output of some bytes of the blob.
pub(in crate::layer) struct ZstdPlan {
    steps: Vec<Step>,
    /// The output of all blocks so far.
    output: Uncompressed,
    /// Whether the bytes end inside a block, so that there may be more output than that.
    is_inside: bool,
    /// Why the blocks after that cannot be read.
    failed: Option<LayerError>,
}

impl ZstdPlan {
    /// # Errors
    /// If the blocks cannot be read.
    pub(in crate::layer) fn check(&self) -> Result<(), LayerError> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

enum Step {
    /// A checkpoint, and how many bytes before it are needed from now on.
    Start { start: FineStart, kept: u64 },
    /// The window of the last checkpoint is known.
    Window(PlannedWindow),
}

impl Step {
    /// How much output there must be.
    fn due(&self) -> Uncompressed {
        match self {
            Step::Start { start, .. } => start.output,
            // It lies before the checkpoint, which precedes this step.
            Step::Window(_) => Uncompressed(0),
        }
    }
}

enum PlannedWindow {
    /// Of a checkpoint at the start of a frame.
    Frame,
    Block {
        /// The position of the checkpoint.
        at: Uncompressed,
        state: ZstdState,
        /// The size of the window in bytes.
        length: u32,
        /// What is referred to, the oldest first: how far back each part begins, and its size.
        parts: Vec<(u32, u32)>,
    },
    TooLarge {
        at: Uncompressed,
    },
}

/// Chooses checkpoints, and finds out what their windows need.
pub(in crate::layer) struct ZstdPlanner {
    /// None after an error.
    blocks: Option<ZstdBlocks>,
    checkpoints: Checkpoints,
    /// Charged for what is known about the open window, and for how many bytes.
    memory: Charge,
    charged: u64,
}

struct Checkpoints {
    /// The least distance between two of them in bytes of the tar, to divide a span. None for a
    /// whole blob: then it depends on how much is referred to.
    divided: Option<u64>,
    limits: StartLimits,
    last: Option<FineStart>,
    /// The state at the last checkpoint, if that needs a window, which the first one does not.
    window: Option<OpenWindow>,
    used: UsedOutput,
    steps: Vec<Step>,
}

/// A window that is not complete.
enum OpenWindow {
    Frame,
    /// With how far back the window reaches at least.
    Block(ZstdState, u64),
}

impl ZstdPlanner {
    /// For a whole blob.
    pub(in crate::layer) fn new(memory: Charge) -> ZstdPlanner {
        let blocks = Some(ZstdBlocks::new(Compressed(0), Uncompressed(0)));
        ZstdPlanner { blocks, checkpoints: Checkpoints::after(None, None, StartLimits::NONE), memory, charged: 0 }
    }

    /// For the part of a blob that `span` holds, to divide it. `blocks` stands where the span
    /// begins.
    pub(in crate::layer) fn dividing(spans: &FineSpans, span: SpanId, blocks: ZstdBlocks) -> ZstdPlanner {
        let this = spans.starts().get(span.0 as usize).copied();
        let limits = StartLimits::inside(spans, span, u64::MAX);
        let checkpoints = Checkpoints::after(this, Some(DIVIDED_ZSTD_SPAN_SIZE), limits);
        // The caller holds the span and its window already.
        let memory = Budget::new(u64::MAX).open();
        ZstdPlanner { blocks: Some(blocks), checkpoints, memory, charged: 0 }
    }

    /// Reads the next bytes of the blob, or the last ones. None after an error.
    pub(in crate::layer) fn plan<C: AsRef<[u8]>>(&mut self, chunks: &[C], is_end: bool) -> Option<ZstdPlan> {
        let blocks = self.blocks.as_mut()?;
        let checkpoints = &mut self.checkpoints;
        let (memory, charged) = (&mut self.memory, &mut self.charged);
        let read = chunks.iter().try_for_each(|chunk| {
            blocks.push(chunk.as_ref(), checkpoints)?;
            let used = checkpoints.used.footprint();
            memory.grow(used - *charged, || "what its windows refer to".to_owned())?;
            *charged = used;
            Ok(())
        });
        if is_end {
            checkpoints.end();
        }
        let plan = ZstdPlan {
            steps: std::mem::take(&mut checkpoints.steps),
            output: blocks.output(),
            is_inside: blocks.is_inside(),
            failed: read.err(),
        };
        if plan.failed.is_some() {
            self.blocks = None;
        }
        Some(plan)
    }
}

impl Checkpoints {
    fn after(last: Option<FineStart>, divided: Option<u64>, limits: StartLimits) -> Checkpoints {
        Checkpoints { divided, limits, last, window: None, used: UsedOutput::default(), steps: Vec::new() }
    }

    /// Ends the last checkpoint's window: what follows cannot refer to it.
    fn end(&mut self) {
        let (Some(window), Some(last)) = (self.window.take(), self.last) else { return };
        let at = last.output;
        let window = match window {
            OpenWindow::Frame => PlannedWindow::Frame,
            OpenWindow::Block(state, reach) => match self.used.take() {
                Some(parts) => {
                    // Repeat offsets may point to before the first byte of the frame.
                    let length = parts.first().map_or(0, |(back, _)| *back).max(reach as u32);
                    PlannedWindow::Block { at, state, length, parts }
                }
                None => PlannedWindow::TooLarge { at },
            },
        };
        self.steps.push(Step::Window(window));
    }
}

impl ZstdSink for Checkpoints {
    /// Takes a checkpoint as [`FineGzip::block_start`](super::FineGzip::block_start) does.
    fn block_start(&mut self, at: ZstdBorder<'_>) {
        let next = start(at.input, at.output, 0);
        let Some(last) = self.last else {
            // Skippable frames may precede the first frame.
            let next = start(Compressed(0), Uncompressed(0), 0);
            self.last = Some(next);
            return self.steps.push(Step::Start { start: next, kept: 0 });
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
            self.steps.push(Step::Start { start: next, kept: at.window() });
        }
    }

    fn since(&self) -> Option<Uncompressed> {
        self.last.filter(|_| matches!(self.window, Some(OpenWindow::Block(..)))).map(|last| last.output)
    }

    fn references(&mut self, references: &[ZstdReference]) {
        references.iter().for_each(|reference| self.used.mark(*reference));
    }
}

/// Takes the windows that a [`ZstdPlanner`] has chosen from the output.
pub(in crate::layer) struct FineZstd {
    /// The steps that are not due.
    steps: VecDeque<Step>,
    /// The position of the last checkpoint that was passed.
    last: Option<Uncompressed>,
    /// The output that windows can have bytes of.
    recent: RecentOutput,
    /// Whether no windows are wanted any more.
    is_over: bool,
    notes: Vec<FineMessage>,
}

impl FineZstd {
    /// For a whole blob. Charges the recent output to `memory`.
    pub(in crate::layer) fn new(memory: Charge) -> FineZstd {
        FineZstd::after(None, RecentOutput::new(Uncompressed(0), memory))
    }

    /// For the part of a blob that `span` holds, to divide it, as
    /// [`FineGzip::dividing`](super::FineGzip::dividing). `window` has the bytes that the span
    /// refers to.
    ///
    /// # Errors
    /// As [`FineZstd::output`].
    pub(in crate::layer) fn dividing(
        spans: &FineSpans,
        span: SpanId,
        window: Option<&SpanWindow>,
    ) -> Result<FineZstd, FineError> {
        // The caller holds the span and its window already.
        let memory = Budget::new(u64::MAX).open();
        let this = spans.starts().get(span.0 as usize).map_or(Uncompressed(0), |start| start.output);
        let mut before = Vec::new();
        if let Some(window) = window {
            before.resize(window.length(), 0);
            window.parts().for_each(|(from, part)| before[from..from + part.len()].copy_from_slice(part));
        }
        // The window may begin before the tar does.
        let before = &before[before.len().saturating_sub(this.0 as usize)..];
        let recent = RecentOutput::new(Uncompressed(this.0 - before.len() as u64), memory);
        let mut fine = FineZstd::after(Some(this), recent);
        fine.output(before)?;
        Ok(fine)
    }

    fn after(last: Option<Uncompressed>, recent: RecentOutput) -> FineZstd {
        FineZstd { steps: VecDeque::new(), last, recent, is_over: false, notes: Vec::new() }
    }

    /// Takes the plan of the bytes that are decoded next.
    pub(in crate::layer) fn expect(&mut self, plan: &mut ZstdPlan) {
        if !self.is_over {
            self.steps.extend(std::mem::take(&mut plan.steps));
        }
    }

    /// Collects nothing from now on. Output still passes through it.
    pub(in crate::layer) fn give_up(&mut self) {
        self.is_over = true;
        self.last = None;
        self.steps.clear();
        self.notes.clear();
        self.recent.forget(self.recent.end());
        self.recent.shrink();
    }

    /// Where the next output goes: at least a byte.
    ///
    /// # Errors
    /// If it does not fit into memory.
    pub(in crate::layer) fn room(&mut self) -> Result<&mut [u8], OverBudget> {
        self.recent.room()
    }

    /// Takes the first `size` bytes of the room as output, and returns them.
    /// [`FineZstd::pass`] must follow.
    pub(in crate::layer) fn take(&mut self, size: usize) -> &[u8] {
        self.recent.take(size)
    }

    /// Takes output from elsewhere.
    ///
    /// # Errors
    /// If it does not fit into memory, or a span or its window is too large.
    pub(in crate::layer) fn output(&mut self, mut bytes: &[u8]) -> Result<(), FineError> {
        while !bytes.is_empty() {
            let room = self.recent.room()?;
            let size = room.len().min(bytes.len());
            let (now, rest) = bytes.split_at(size);
            room[..size].copy_from_slice(now);
            bytes = rest;
            self.take(size);
            self.pass()?;
        }
        Ok(())
    }

    /// Takes the steps that are due.
    ///
    /// # Errors
    /// If a span or its window is too large.
    pub(in crate::layer) fn pass(&mut self) -> Result<(), FineError> {
        if self.is_over {
            self.recent.forget(self.recent.end());
        }
        while let Some(step) = self.steps.pop_front_if(|step| step.due() <= self.recent.end()) {
            self.step(step)?;
        }
        self.check_size(self.recent.end())
    }

    /// Fails if the last span is too large with the output up to `end`.
    fn check_size(&self, end: Uncompressed) -> Result<(), FineError> {
        match self.last {
            // To divide a span, the output begins before it.
            Some(last) if end.0.saturating_sub(last.0) > MAX_ZSTD_SPAN => Err(FineError::LongSpan(last)),
            _ => Ok(()),
        }
    }

    fn step(&mut self, step: Step) -> Result<(), FineError> {
        let window = match step {
            Step::Start { start, kept } => {
                self.check_size(start.output)?;
                self.notes.push(FineMessage::Start(start));
                self.last = Some(start.output);
                self.recent.forget(Uncompressed(start.output.0.saturating_sub(kept)));
                return Ok(());
            }
            Step::Window(PlannedWindow::TooLarge { at }) => return Err(FineError::LongSpan(at)),
            Step::Window(PlannedWindow::Frame) => SpanWindow::of_frame(),
            Step::Window(PlannedWindow::Block { at, state, length, parts }) => {
                let most = at - self.recent.start();
                let parts = parts.into_iter().filter(|(back, _)| u64::from(*back) <= most);
                let pieces = parts.map(|(back, size)| {
                    let from = Uncompressed(at.0 - u64::from(back));
                    ((length - back) as usize, self.recent.bytes(from..from + u64::from(size)))
                });
                let window = SpanWindow::of_zstd(state, length, pieces);
                if window.encoded_size() > MAX_ZSTD_WINDOW {
                    return Err(FineError::LongSpan(at));
                }
                window
            }
        };
        self.notes.push(FineMessage::Window(window));
        Ok(())
    }

    /// Call this after the output of all bytes that `plan` is for.
    ///
    /// # Errors
    /// If the blocks could not be read, or libzstd reads them in another way.
    pub(in crate::layer) fn check(&self, plan: &ZstdPlan) -> Result<(), LayerError> {
        if self.is_over {
            return Ok(());
        }
        plan.check()?;
        let is_right = match plan.is_inside {
            // libzstd decodes parts of raw blocks.
            true => self.recent.end() >= plan.output,
            false => self.recent.end() == plan.output,
        };
        match is_right && self.steps.is_empty() {
            true => Ok(()),
            false => {
                let found = "libzstd reads the zstd blocks in another way";
                Err(LayerError::Zstd(format!("{found}, up to byte {} of the tar", plan.output)))
            }
        }
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
    /// Its memory in bytes.
    fn footprint(&self) -> u64 {
        ((self.words.len() + self.groups.len()) * size_of::<u64>()) as u64
    }

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
    /// size. None if a window cannot have that much.
    fn take(&mut self) -> Option<Vec<(u32, u32)>> {
        /// Each range takes at least three bytes of the window.
        const RANGES: usize = MAX_ZSTD_WINDOW / 3;
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        let is_too_large = std::mem::take(&mut self.count) > MAX_ZSTD_WINDOW as u64;
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
                        let from = place as u32 * 64 + from;
                        // Emptied anyway if they are too many.
                        let is_full = is_too_large || ranges.len() > RANGES;
                        match ranges.last_mut().filter(|(end, _)| *end == from) {
                            Some(last) => *last = (from + count, last.1 + count),
                            None if is_full => {}
                            None => ranges.push((from + count, count)),
                        }
                    }
                }
            }
        }
        ranges.reverse();
        (!is_too_large && ranges.len() <= RANGES).then_some(ranges)
    }
}
