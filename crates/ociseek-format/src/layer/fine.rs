//! Collects the fine document of a layer during indexing: the decoding half contributes starts and
//! windows, the hashing half proofs and leads.

mod zstd;
mod zstd_parts;
mod zstd_windows;

use std::collections::VecDeque;

pub(super) use zstd::{PlannedWindow, ZstdPlan, ZstdPlanner};
pub(super) use zstd_windows::FineZstd;

use crate::budget::Charge;
use crate::codec::gzip::BlockStart;
use crate::codec::inflate::BackReference;
use crate::codec::{UsedBytes, WINDOW};
use crate::digest::{ChainState, Hasher};
use crate::fine::{
    DIVIDED_SPAN_SIZE, FineError, FineSpans, FineStart, Groups, SPAN_SIZE, SpanWindow,
};
use crate::offset::{Compressed, SpanId, Uncompressed};

/// A message from the decoding half to the hashing half.
#[derive(Debug)]
pub(super) enum FineMessage {
    /// A span starts here. Its state is not known yet.
    Start(FineStart),
    /// The window of the next span that has one, without its lead.
    Window(SpanWindow),
}

pub(super) fn start(input: Compressed, output: Uncompressed, bits: u8) -> FineStart {
    FineStart { input, output, bits, state: ChainState::INITIAL }
}

/// Chooses the checkpoints of a gzip blob and collects their windows.
pub(super) struct FineGzip {
    /// The least distance between two of them, in bytes of the tar.
    span_size: u64,
    limits: StartLimits,
    last: Option<FineStart>,
    /// The window of the last checkpoint, and what was referred to of it so far.
    window: Box<[u8; WINDOW]>,
    used: UsedBytes,
    /// Whether the last checkpoint needs a window, which the first one does not.
    has_window: bool,
    /// Whether the last block became a checkpoint that needs a window.
    is_new: bool,
    notes: Vec<FineMessage>,
}

/// How far checkpoints may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartLimits {
    /// The largest border, in bytes of the blob.
    pub border: u64,
    /// The largest output.
    pub output: u64,
}

impl StartLimits {
    /// For a whole blob.
    const NONE: StartLimits = StartLimits { border: u64::MAX, output: u64::MAX };

    /// To divide a span. All new checkpoints are at most `most` bytes after its start.
    pub(super) fn inside(spans: &FineSpans, span: SpanId, most: u64) -> StartLimits {
        let starts = spans.starts();
        let this = starts.get(span.0 as usize);
        let next = starts.get(span.0 as usize + 1);
        let end = next.map_or(spans.tar_end(), |next| next.output);
        StartLimits {
            border: next.map_or(spans.blob_size(), FineStart::border).saturating_sub(1),
            output: end
                .0
                .saturating_sub(WINDOW as u64)
                .min(this.map_or(0, |this| this.output.0.saturating_add(most))),
        }
    }
}

impl FineGzip {
    /// For a whole blob.
    pub(super) fn new() -> FineGzip {
        FineGzip::after(None, SPAN_SIZE, StartLimits::NONE)
    }

    /// For the part of a blob that `span` holds, to divide it. All new checkpoints are at most
    /// [`SPAN_SIZE`] bytes after its start, so the division can be undone.
    pub(super) fn dividing(spans: &FineSpans, span: SpanId) -> FineGzip {
        let this = spans.starts().get(span.0 as usize).copied();
        FineGzip::after(this, DIVIDED_SPAN_SIZE, StartLimits::inside(spans, span, SPAN_SIZE))
    }

    fn after(last: Option<FineStart>, span_size: u64, limits: StartLimits) -> FineGzip {
        FineGzip {
            span_size,
            limits,
            last,
            window: Box::new([0; WINDOW]),
            used: UsedBytes::default(),
            has_window: false,
            is_new: false,
            notes: Vec::new(),
        }
    }

    /// Takes a checkpoint at the first block, and wherever more than a span size was decoded since
    /// the last one, as [`GzipSpans`](super::slices::GzipSpans) does. No two checkpoints share
    /// a SHA-256 block.
    pub(super) fn block_start(&mut self, at: BlockStart<'_>) {
        let next = start(at.input, at.output, at.bits);
        let is_next = self.last.as_ref().is_none_or(|last| {
            at.output - last.output > self.span_size
                && (next.border() > last.border() || last.output.0 == 0)
        });
        let is_next =
            is_next && next.border() <= self.limits.border && at.output.0 <= self.limits.output;
        self.is_new = is_next && self.last.is_some();
        if is_next {
            self.end();
            self.has_window = self.is_new;
            self.last = Some(next);
            self.notes.push(FineMessage::Start(next));
            self.window.copy_from_slice(at.window);
        }
    }

    /// Whether references to before the last block are wanted.
    pub(super) fn wants_references(&self) -> bool {
        self.is_new
    }

    /// Takes matches at positions counted from `base`. Those of output before the last checkpoint
    /// were taken earlier.
    pub(super) fn references(&mut self, base: Uncompressed, references: &[BackReference]) {
        let Some(last) = self.last.filter(|_| self.has_window) else { return };
        for BackReference { to, distance, length } in references {
            let first = (base + u64::from(*to) - last.output + WINDOW as u64)
                .saturating_sub(u64::from(*distance));
            // A match after the window has no byte in it.
            let first = usize::try_from(first).unwrap_or(WINDOW);
            self.used.mark(first..first + usize::from(*length));
        }
    }

    /// Ends the last checkpoint's window: what follows cannot refer to it.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.has_window) {
            self.notes.push(FineMessage::Window(SpanWindow::new(&[], &self.window, &self.used)));
            self.used.clear();
        }
    }

    /// The messages since the last call.
    pub(super) fn notes(&mut self) -> Vec<FineMessage> {
        std::mem::take(&mut self.notes)
    }
}

/// Cuts a plain tar into spans.
#[derive(Default)]
pub(super) struct FinePlain {
    next: u64,
}

impl FinePlain {
    /// The spans that start before the byte `end` and were not returned by earlier calls.
    pub(super) fn notes(&mut self, end: Compressed) -> Vec<FineMessage> {
        let mut notes = Vec::new();
        while self.next < end.0 {
            notes.push(FineMessage::Start(start(
                Compressed(self.next),
                Uncompressed(self.next),
                0,
            )));
            self.next += SPAN_SIZE;
        }
        notes
    }
}

/// Collects the proofs of spans and their leads from the bytes of the blob.
pub(super) struct FineHashes {
    /// Starts whose border was not reached yet.
    pending: VecDeque<FineStart>,
    /// The number of bytes of the blob so far, and the last of these bytes.
    position: u64,
    tail: Vec<u8>,
    /// Leads that wait for their windows, and windows that wait for their leads.
    leads: VecDeque<Vec<u8>>,
    windows: VecDeque<SpanWindow>,
    parts: FineParts,
    failed: Option<FineError>,
}

/// The result for a blob.
pub(super) struct FineParts {
    pub(super) starts: Vec<FineStart>,
    pub(super) windows: Groups,
    /// The memory that starts and windows take.
    pub(super) memory: Charge,
}

impl FineHashes {
    /// Charges everything collected to `memory`.
    pub(super) fn new(memory: Charge) -> FineHashes {
        FineHashes {
            pending: VecDeque::new(),
            position: 0,
            tail: Vec::new(),
            leads: VecDeque::new(),
            windows: VecDeque::new(),
            parts: FineParts { starts: Vec::new(), windows: Groups::default(), memory },
            failed: None,
        }
    }

    /// Takes the scan's messages about the bytes that come next.
    pub(super) fn note(&mut self, notes: Vec<FineMessage>) {
        for note in notes {
            match note {
                // The first span starts with the initial SHA-256 state, so it needs no proof.
                FineMessage::Start(start)
                    if self.parts.starts.is_empty() && self.pending.is_empty() =>
                {
                    self.parts.starts.push(start);
                }
                FineMessage::Start(start) => self.pending.push_back(start),
                FineMessage::Window(window) => self.windows.push_back(window),
            }
        }
        self.join();
    }

    /// How many of `left` bytes come before the next border. At a border, takes the state of
    /// `blob`.
    pub(super) fn reach(&mut self, left: usize, blob: &Hasher) -> usize {
        while let Some(next) = self.pending.front() {
            if let Some(before) =
                next.border().checked_sub(self.position).filter(|before| *before > 0)
            {
                return usize::try_from(before).map_or(left, |before| before.min(left));
            }
            if let (Some(start), Some(state)) = (self.pending.pop_front(), blob.chain_state()) {
                let lead = (start.border() - start.first()) as usize;
                self.leads.push_back(self.tail[self.tail.len().saturating_sub(lead)..].to_vec());
                self.keep(FineStart { state, ..start });
            }
        }
        left
    }

    /// Takes bytes that were hashed.
    pub(super) fn pass(&mut self, bytes: &[u8]) {
        /// The largest size of a lead.
        const TAIL: usize = 64;
        self.position += bytes.len() as u64;
        let new = &bytes[bytes.len().saturating_sub(TAIL)..];
        let old = (self.tail.len() + new.len()).saturating_sub(TAIL);
        self.tail.drain(..old);
        self.tail.extend_from_slice(new);
    }

    fn keep(&mut self, start: FineStart) {
        /// Including the growth of its list, and its copy in the layer.
        const START: u64 = 3 * size_of::<FineStart>() as u64;
        let charged =
            self.parts.memory.grow(START, || "the checkpoints of its fine document".to_owned());
        self.failed = self.failed.take().or(charged.err().map(FineError::Memory));
        self.parts.starts.push(start);
        self.join();
    }

    /// Combines leads with their windows.
    fn join(&mut self) {
        while let (Some(lead), Some(_)) = (self.leads.front(), self.windows.front()) {
            if let Some(window) = self.windows.pop_front().filter(|_| self.failed.is_none()) {
                let stored = self.parts.windows.push(window.led_by(lead));
                let what = || "the windows of its fine document".to_owned();
                let charged =
                    stored.and_then(|bytes| Ok(self.parts.memory.grow(bytes as u64, what)?));
                self.failed = charged.err();
            }
            self.leads.pop_front();
        }
    }

    /// Returns what was collected, at the end of the blob. Spans whose border is not before the end
    /// are dropped.
    ///
    /// # Errors
    /// If it did not fit into memory.
    pub(super) fn finish(self) -> Result<FineParts, FineError> {
        self.failed.map_or(Ok(self.parts), Err)
    }
}

#[cfg(test)]
pub(super) mod tests;
