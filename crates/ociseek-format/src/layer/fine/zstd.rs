//! Chooses the checkpoints of a zstd blob, and finds out what their windows need.
//!
//! The blob is read twice. [`ZstdPlanner`] reads the blocks, and decides from them alone where
//! checkpoints are and which bytes are referred to. The output comes later: when it does, the
//! windows that need bytes of it are known ([`FineZstd`](super::FineZstd)).

use super::start;
use super::zstd_parts::{BlobPart, BlobParts, OpenWindow};
use crate::budget::{Budget, Charge, OverBudget};
use crate::codec::zstd::{MAX_BLOCK, ZstdBlocks, ZstdBorder, ZstdReference, ZstdSink, ZstdState};
use crate::fine::{FineSpans, FineStart, MAX_ZSTD_SPAN, MAX_ZSTD_WINDOW};
use crate::layer::LayerError;
use crate::offset::{Compressed, SpanId, Uncompressed};

/// What to do with the output of some bytes of the blob.
pub(in crate::layer) struct ZstdPlan {
    /// The checkpoints that became known, in order. They are not in earlier bytes.
    pub starts: Vec<FineStart>,
    /// The windows that became known, in order. They need nothing of earlier output.
    pub windows: Vec<PlannedWindow>,
    /// The output of all blocks so far.
    pub output: Uncompressed,
    /// Whether the bytes end inside a block, so that there may be more output than that.
    pub is_inside: bool,
    /// Why the blocks after that cannot be read.
    pub failed: Option<LayerError>,
}

impl ZstdPlan {
    /// # Errors
    /// If the blocks cannot be read.
    pub(in crate::layer) fn check(&self) -> Result<(), LayerError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// The position that the output cannot exceed.
    pub(in crate::layer) fn end(&self) -> Uncompressed {
        self.output + if self.is_inside { MAX_BLOCK as u64 } else { 0 }
    }
}

/// The window of a checkpoint.
pub(in crate::layer) struct PlannedWindow {
    /// The position of the checkpoint.
    pub at: Uncompressed,
    pub content: PlannedContent,
}

pub(in crate::layer) enum PlannedContent {
    /// Of a checkpoint at the start of a frame.
    Frame,
    Block {
        state: ZstdState,
        /// The size of the window in bytes.
        length: u32,
        /// What is referred to, the oldest first: how far back each part begins, and its size.
        parts: Vec<(u32, u32)>,
        /// Charged for this and for the bytes of the parts.
        _memory: Charge,
    },
    /// The span or its window is too large. Nothing is planned after that.
    TooLarge,
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
    choice: Choice,
    last: Option<FineStart>,
    /// The state at the last checkpoint, if that needs a window, which the first one does not.
    window: Option<OpenWindow>,
    used: UsedOutput,
    starts: Vec<FineStart>,
    windows: Vec<PlannedWindow>,
    /// What windows are charged to, and what did not fit.
    budget: Budget,
    over: Option<OverBudget>,
    /// Whether a span or window was too large.
    is_over: bool,
}

/// How checkpoints are chosen.
enum Choice {
    /// To divide a span: where they are.
    Given(Vec<Compressed>),
    /// For a whole blob: by what is referred to.
    Own(Box<BlobParts>),
}

impl ZstdPlanner {
    /// For a whole blob.
    pub(in crate::layer) fn new(memory: Charge) -> ZstdPlanner {
        let blocks = Some(ZstdBlocks::new(Compressed(0), Uncompressed(0)));
        let checkpoints = Checkpoints::after(
            None,
            Choice::Own(Box::new(BlobParts::new())),
            memory.budget().clone(),
        );
        ZstdPlanner { blocks, checkpoints, memory, charged: 0 }
    }

    /// For the part of a blob that `span` holds, to divide it at the blocks that begin at `cuts`.
    /// `blocks` stands where the span begins.
    pub(in crate::layer) fn dividing(
        spans: &FineSpans,
        span: SpanId,
        blocks: ZstdBlocks,
        cuts: Vec<Compressed>,
    ) -> ZstdPlanner {
        let this = spans.starts().get(span.0 as usize).copied();
        // The caller holds the span and its window already.
        let budget = Budget::new(u64::MAX);
        let memory = budget.open();
        let checkpoints = Checkpoints::after(this, Choice::Given(cuts), budget);
        ZstdPlanner { blocks: Some(blocks), checkpoints, memory, charged: 0 }
    }

    /// Reads the next bytes of the blob, or the last ones. None after an error.
    pub(in crate::layer) fn plan<C: AsRef<[u8]>>(
        &mut self,
        chunks: &[C],
        is_end: bool,
    ) -> Option<ZstdPlan> {
        let blocks = self.blocks.as_mut()?;
        let checkpoints = &mut self.checkpoints;
        let memory = &mut self.memory;
        let charged = &mut self.charged;
        let read = chunks.iter().try_for_each(|chunk| {
            blocks.push(chunk.as_ref(), checkpoints)?;
            // So that a long skippable frame does not wait for what follows it.
            if blocks.is_outside_frames() && checkpoints.undecided().next().is_none() {
                checkpoints.end();
            }
            checkpoints.check_size(blocks.output());
            let used = checkpoints.footprint();
            memory
                .grow(used.saturating_sub(*charged), || "what its windows refer to".to_owned())?;
            *charged = used.max(*charged);
            Ok(checkpoints.over.take().map_or(Ok(()), Err)?)
        });
        if is_end {
            checkpoints.decide(start(blocks.input(), blocks.output(), 0));
            checkpoints.end();
        }
        let plan = ZstdPlan {
            starts: std::mem::take(&mut checkpoints.starts),
            windows: std::mem::take(&mut checkpoints.windows),
            output: blocks.output(),
            is_inside: blocks.is_inside(),
            failed: read.err().or(checkpoints.over.take().map(LayerError::from)),
        };
        if plan.failed.is_some() {
            self.blocks = None;
        }
        Some(plan)
    }

    /// Windows that are not planned yet need nothing of the output before that.
    pub(in crate::layer) fn needs(&self) -> Uncompressed {
        let Some(blocks) = self.blocks.as_ref().filter(|_| !self.checkpoints.is_over) else {
            return Uncompressed(u64::MAX);
        };
        let windows = self
            .checkpoints
            .window
            .iter()
            .chain(self.checkpoints.undecided().map(|part| &part.window));
        let starts = self
            .checkpoints
            .undecided()
            .map(|part| Uncompressed(part.start.output.0.saturating_sub(1)));
        let needed = windows.filter_map(|window| match window {
            OpenWindow::Frame => None,
            OpenWindow::Block { from, .. } => Some(*from),
        });
        // The bytes before a checkpoint are part of what is hashed after it is known.
        needed.chain(starts).fold(blocks.referable(), Uncompressed::min)
    }
}

impl Checkpoints {
    fn after(last: Option<FineStart>, choice: Choice, budget: Budget) -> Checkpoints {
        Checkpoints {
            choice,
            last,
            window: None,
            used: UsedOutput::default(),
            starts: Vec::new(),
            windows: Vec::new(),
            budget,
            over: None,
            is_over: false,
        }
    }

    /// The parts of a whole blob that begin no span yet, but could.
    fn undecided(&self) -> impl Iterator<Item = &BlobPart> {
        let parts = match &self.choice {
            Choice::Own(parts) => Some(parts.undecided()),
            Choice::Given(_) => None,
        };
        parts.into_iter().flatten()
    }

    /// Its memory in bytes.
    fn footprint(&self) -> u64 {
        let parts = match &self.choice {
            Choice::Own(parts) => parts.footprint(),
            Choice::Given(_) => 0,
        };
        self.used.footprint() + parts
    }

    /// Takes a checkpoint with this window.
    fn take(&mut self, next: FineStart, window: OpenWindow) {
        self.end();
        if !self.is_over {
            (self.last, self.window) = (Some(next), Some(window));
            self.starts.push(next);
        }
    }

    /// Chooses all checkpoints up to `end`, without what follows.
    fn decide(&mut self, end: FineStart) {
        while let Choice::Own(parts) = &mut self.choice
            && let Some(count) = parts.choose_at_end(end)
        {
            self.advance(count);
        }
        if let Choice::Own(parts) = &mut self.choice {
            parts
                .following(usize::MAX)
                .for_each(|(distance, part)| mark(&mut self.used, distance, &part.references));
            parts.pass();
        }
    }

    /// Takes the checkpoint that is `count` parts after the last one.
    fn advance(&mut self, count: usize) {
        let Choice::Own(parts) = &mut self.choice else { return };
        parts
            .following(count)
            .for_each(|(distance, part)| mark(&mut self.used, distance, &part.references));
        let Some(first) = parts.advance(count) else { return };
        let next = first.start;
        let window = std::mem::replace(&mut first.window, OpenWindow::Frame);
        let own = std::mem::take(&mut first.references);
        self.take(next, window);
        mark(&mut self.used, 0, &own);
    }

    /// Ends the last checkpoint's window: what follows cannot refer to it.
    fn end(&mut self) {
        let (Some(window), Some(last)) = (self.window.take(), self.last) else { return };
        let at = last.output;
        let content = match window {
            OpenWindow::Frame => PlannedContent::Frame,
            OpenWindow::Block { state, reach, .. } => {
                let Some(parts) = self.used.take() else { return self.give_up(at) };
                // Repeat offsets may point to before the first byte of the frame.
                let length = parts.first().map_or(0, |(back, _)| *back).max(reach as u32);
                let count = parts.iter().map(|(_, size)| u64::from(*size)).sum::<u64>();
                let size = count + (parts.len() * size_of::<(u32, u32)>()) as u64;
                match self.budget.charge(size, || "the windows of its fine document".to_owned()) {
                    Ok(memory) => PlannedContent::Block { state, length, parts, _memory: memory },
                    Err(over) => {
                        self.over = Some(over);
                        return;
                    }
                }
            }
        };
        self.windows.push(PlannedWindow { at, content });
    }

    /// Gives up if the last span is too large with the output up to `end`.
    fn check_size(&mut self, end: Uncompressed) {
        if let Some(last) =
            self.last.filter(|last| end - last.output > MAX_ZSTD_SPAN && !self.is_over)
        {
            self.give_up(last.output);
        }
    }

    fn give_up(&mut self, at: Uncompressed) {
        self.windows.push(PlannedWindow { at, content: PlannedContent::TooLarge });
        (self.window, self.is_over) = (None, true);
    }
}

impl ZstdSink for Checkpoints {
    fn block_start(&mut self, at: ZstdBorder<'_>) {
        if self.is_over {
            return;
        }
        let next = start(at.input, at.output, 0);
        let window = || match at.state() {
            None => OpenWindow::Frame,
            Some(state) => {
                let from = Uncompressed(at.output.0.saturating_sub(at.window()));
                OpenWindow::Block { state, reach: at.reach(), from }
            }
        };
        match &mut self.choice {
            Choice::Given(cuts) => {
                if cuts.binary_search(&at.input).is_ok() {
                    self.take(FineStart { bits: FineStart::DIVIDED, ..next }, window());
                }
            }
            Choice::Own(parts) if parts.last().is_none() => {
                // Skippable frames may precede the first frame.
                let next = start(Compressed(0), Uncompressed(0), 0);
                parts.begin(next, OpenWindow::Frame);
                self.last = Some(next);
                self.starts.push(next);
            }
            Choice::Own(parts) if parts.can_begin(&next) => {
                parts.begin(next, window());
                while let Choice::Own(parts) = &mut self.choice
                    && let Some(count) = parts.choose()
                {
                    self.advance(count);
                }
            }
            Choice::Own(_) => {}
        }
    }

    fn skippable(&mut self, at: Compressed, output: Uncompressed, size: u32) {
        /// So much is not read ahead in addition.
        const LONG: u32 = 1 << 20;
        if size >= LONG {
            self.decide(start(at, output, 0));
        }
    }

    fn since(&self) -> Option<Uncompressed> {
        match &self.choice {
            Choice::Own(parts) => parts.last().filter(|_| !self.is_over).map(|last| last.output),
            Choice::Given(_) => self
                .last
                .filter(|_| matches!(self.window, Some(OpenWindow::Block { .. })))
                .map(|last| last.output),
        }
    }

    fn references(&mut self, references: &[ZstdReference]) {
        // Whether the window of the last checkpoint needs those of later parts is not known yet.
        if let Choice::Own(parts) = &mut self.choice
            && parts.refer(references)
        {
            return;
        }
        mark(&mut self.used, 0, references);
    }
}

/// Marks what references need of the output before a checkpoint, which is `distance` bytes before
/// the position that they count from.
fn mark(used: &mut UsedOutput, distance: u64, references: &[ZstdReference]) {
    for ZstdReference { back, length } in references {
        if let Some(back) = u64::from(*back).checked_sub(distance).filter(|back| *back > 0) {
            used.mark(ZstdReference { back: back as u32, length: (*length).min(back as u32) });
        }
    }
}

/// The bytes before a checkpoint that are referred to.
#[derive(Default)]
struct UsedOutput {
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
        let mut from = (back - length) as usize;
        let end = back as usize;
        if end > self.words.len() * 64 {
            let groups = end.div_ceil(64 * GROUP);
            self.words.resize(groups * GROUP, 0);
            self.groups.resize(groups.div_ceil(64), 0);
        }
        while from < end {
            let word = from / 64;
            let bit = from % 64;
            let count = (end - from).min(64 - bit);
            let bits = (u64::MAX >> (64 - count)) << bit;
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
        let mut ranges = Vec::<(u32, u32)>::new();
        let mut used = 0;
        for (number, groups) in self.groups.iter_mut().enumerate() {
            let mut left = std::mem::take(groups);
            while left != 0 {
                let group = number * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                for (place, word) in
                    self.words.iter_mut().enumerate().skip(group * GROUP).take(GROUP)
                {
                    let mut bits = std::mem::take(word);
                    while bits != 0 {
                        let from = bits.trailing_zeros();
                        let count = (bits >> from).trailing_ones();
                        bits &= u64::MAX.checked_shl(from + count).unwrap_or(0);
                        let from = place as u32 * 64 + from;
                        used += count as usize;
                        // Emptied anyway if they are too many.
                        let is_full = ranges.len() > RANGES;
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
        (used <= MAX_ZSTD_WINDOW && ranges.len() <= RANGES).then_some(ranges)
    }
}
