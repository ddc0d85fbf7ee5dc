//! Chooses the checkpoints of a zstd blob, and finds out what their windows need.
//!
//! The blob is read twice. [`ZstdPlanner`] reads the blocks, and decides from them alone where
//! checkpoints are and which bytes are referred to. The output comes later: when it does, the
//! windows that need bytes of it are known ([`FineZstd`](super::FineZstd)).

use super::start;
use crate::budget::{Budget, Charge, OverBudget};
use crate::codec::zstd::{MAX_BLOCK, ZstdBlocks, ZstdBorder, ZstdReference, ZstdSink, ZstdState};
use crate::fine::{FineSpans, FineStart, MAX_ZSTD_SPAN, MAX_ZSTD_WINDOW, SPAN_SIZE};
use crate::layer::LayerError;
use crate::offset::{Compressed, SpanId, Uncompressed};

/// What to do with the output of some bytes of the blob.
pub(in crate::layer) struct ZstdPlan {
    /// The checkpoints in it.
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
    /// Where they are, to divide a span. None for a whole blob: then that depends on how much is
    /// referred to.
    cuts: Option<Vec<Compressed>>,
    last: Option<FineStart>,
    /// The state at the last checkpoint, if that needs a window, which the first one does not.
    window: Option<OpenWindow>,
    used: UsedOutput,
    /// How many bytes a window has that was closed before the next checkpoint.
    closed: u64,
    starts: Vec<FineStart>,
    windows: Vec<PlannedWindow>,
    /// What windows are charged to, and what did not fit.
    budget: Budget,
    over: Option<OverBudget>,
    /// Whether a span or window was too large.
    is_over: bool,
}

/// A window that is not complete.
enum OpenWindow {
    Frame,
    Block {
        state: ZstdState,
        /// How far back it reaches at least.
        reach: u64,
        /// It needs nothing before that.
        from: Uncompressed,
    },
}

impl ZstdPlanner {
    /// For a whole blob.
    pub(in crate::layer) fn new(memory: Charge) -> ZstdPlanner {
        let blocks = Some(ZstdBlocks::new(Compressed(0), Uncompressed(0)));
        let checkpoints = Checkpoints::after(None, None, memory.budget().clone());
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
        let checkpoints = Checkpoints::after(this, Some(cuts), budget);
        ZstdPlanner { blocks: Some(blocks), checkpoints, memory, charged: 0 }
    }

    /// Reads the next bytes of the blob, or the last ones. None after an error.
    pub(in crate::layer) fn plan<C: AsRef<[u8]>>(&mut self, chunks: &[C], is_end: bool) -> Option<ZstdPlan> {
        let blocks = self.blocks.as_mut()?;
        let checkpoints = &mut self.checkpoints;
        let (memory, charged) = (&mut self.memory, &mut self.charged);
        let read = chunks.iter().try_for_each(|chunk| {
            blocks.push(chunk.as_ref(), checkpoints)?;
            // So that a long skippable frame does not wait for what follows it.
            if blocks.is_outside_frames() {
                checkpoints.end();
            }
            checkpoints.check_size(blocks.output());
            let used = checkpoints.used.footprint();
            memory.grow(used - *charged, || "what its windows refer to".to_owned())?;
            *charged = used;
            Ok(checkpoints.over.take().map_or(Ok(()), Err)?)
        });
        if is_end {
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
        match (&self.blocks, &self.checkpoints.window) {
            (None, _) => Uncompressed(u64::MAX),
            _ if self.checkpoints.is_over => Uncompressed(u64::MAX),
            (Some(blocks), Some(OpenWindow::Block { from, .. })) => blocks.referable().min(*from),
            (Some(blocks), _) => blocks.referable(),
        }
    }
}

impl Checkpoints {
    fn after(last: Option<FineStart>, cuts: Option<Vec<Compressed>>, budget: Budget) -> Checkpoints {
        Checkpoints {
            cuts,
            last,
            window: None,
            used: UsedOutput::default(),
            closed: 0,
            starts: Vec::new(),
            windows: Vec::new(),
            budget,
            over: None,
            is_over: false,
        }
    }

    /// Ends the last checkpoint's window: what follows cannot refer to it.
    fn end(&mut self) {
        let (Some(window), Some(last)) = (self.window.take(), self.last) else { return };
        let at = last.output;
        let content = match window {
            OpenWindow::Frame => PlannedContent::Frame,
            OpenWindow::Block { state, reach, .. } => {
                let count = self.used.count;
                self.closed = count;
                let Some(parts) = self.used.take() else { return self.give_up(at) };
                // Repeat offsets may point to before the first byte of the frame.
                let length = parts.first().map_or(0, |(back, _)| *back).max(reach as u32);
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
        if let Some(last) = self.last.filter(|last| end - last.output > MAX_ZSTD_SPAN && !self.is_over) {
            self.give_up(last.output);
        }
    }

    fn give_up(&mut self, at: Uncompressed) {
        self.windows.push(PlannedWindow { at, content: PlannedContent::TooLarge });
        (self.window, self.is_over) = (None, true);
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
            return self.starts.push(next);
        };
        let is_next = match &self.cuts {
            Some(cuts) => cuts.binary_search(&at.input).is_ok(),
            None => {
                let distance = at.output - last.output;
                distance > SPAN_SIZE
                    && pays(distance, next.input - last.input, self.used.count + self.closed)
                    && (next.border() > last.border() || last.output.0 == 0)
            }
        };
        let is_next = is_next && !self.is_over;
        if is_next {
            self.end();
            if self.is_over {
                return;
            }
            self.closed = 0;
            let from = Uncompressed(at.output.0.saturating_sub(at.window()));
            let state = at.state();
            let window = state.map(|state| OpenWindow::Block { state, reach: at.reach(), from });
            self.window = Some(window.unwrap_or(OpenWindow::Frame));
            let next = FineStart { bits: if self.cuts.is_some() { FineStart::DIVIDED } else { 0 }, ..next };
            self.last = Some(next);
            self.starts.push(next);
        }
    }

    fn since(&self) -> Option<Uncompressed> {
        self.last.filter(|_| matches!(self.window, Some(OpenWindow::Block { .. }))).map(|last| last.output)
    }

    fn references(&mut self, references: &[ZstdReference]) {
        references.iter().for_each(|reference| self.used.mark(*reference));
    }
}

/// Whether a span may end after `size` bytes of the tar and `stored` bytes of the blob, if the
/// window has `used` bytes. What a window takes in the document is in proportion to its bytes, and
/// grows more slowly than the span. So longer spans make the document smaller, and reading a file
/// more expensive: the limits were found by trying.
fn pays(size: u64, stored: u64, used: u64) -> bool {
    /// From here on, the window is compared with the tar: of what compresses well or refers far
    /// back, spans would seldom end otherwise.
    const LONG: u64 = 3 << 20;
    /// Spans of this size end in any case.
    const LONGEST: u64 = 16 << 20;
    size >= LONGEST || used * 10 <= stored || size >= LONG && used * 28 <= size
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
