//! Takes the windows of a zstd blob's checkpoints from the output.

use std::collections::VecDeque;

use super::FineMessage;
use super::zstd::{PlannedContent, PlannedWindow, ZstdPlan};
use crate::fine::{FineError, FineSpans, FineStart, MAX_ZSTD_SPAN, MAX_ZSTD_WINDOW, SpanWindow};
use crate::layer::LayerError;
use crate::offset::{SpanId, Uncompressed};

/// How much is decoded in one step: little enough to stay in the CPU's cache.
const ROOM: usize = 128 << 10;

/// Copies the bytes that windows need while the output passes. The windows were chosen by a
/// [`ZstdPlanner`](super::ZstdPlanner), so nothing else has to be kept.
pub(in crate::layer) struct FineZstd {
    /// Where the decoder writes.
    room: Box<[u8]>,
    /// How much output there was.
    end: Uncompressed,
    /// The checkpoints that were not reached, and the last one that was.
    starts: VecDeque<FineStart>,
    last: Option<Uncompressed>,
    /// The windows of checkpoints that were not reached.
    windows: VecDeque<WindowTaker>,
    /// Whether no windows are wanted any more.
    is_over: bool,
    notes: Vec<FineMessage>,
}

/// A window that is being collected.
struct WindowTaker {
    window: PlannedWindow,
    /// How many of its parts are complete.
    done: usize,
    bytes: Vec<u8>,
}

impl WindowTaker {
    /// Takes what it needs of `output`, which begins at `from`.
    fn take(&mut self, from: Uncompressed, output: &[u8]) {
        let PlannedContent::Block { parts, .. } = &self.window.content else { return };
        let end = from.0 + output.len() as u64;
        while let Some((back, size)) = parts.get(self.done) {
            let part = self.window.at.0 - u64::from(*back);
            let part_end = part + u64::from(*size);
            if part >= end {
                return;
            }
            let place = |at: u64| at.saturating_sub(from.0) as usize;
            let bytes = output.get(place(part)..place(part_end.min(end)));
            self.bytes.extend_from_slice(bytes.unwrap_or_default());
            if part_end > end {
                return;
            }
            self.done += 1;
        }
    }
}

impl FineZstd {
    /// For a whole blob.
    pub(in crate::layer) fn new() -> FineZstd {
        FineZstd::after(None, Uncompressed(0))
    }

    /// For the part of a blob that `span` holds, to divide it by this plan, as
    /// [`FineGzip::dividing`](super::FineGzip::dividing). `window` has the bytes that the span
    /// refers to.
    ///
    /// # Errors
    /// As [`FineZstd::output`].
    pub(in crate::layer) fn dividing(
        spans: &FineSpans,
        span: SpanId,
        window: Option<&SpanWindow>,
        plan: &mut ZstdPlan,
    ) -> Result<FineZstd, FineError> {
        let this =
            spans.starts().get(span.0 as usize).map_or(Uncompressed(0), |start| start.output);
        let mut before = Vec::new();
        if let Some(window) = window {
            before.resize(window.length(), 0);
            window
                .parts()
                .for_each(|(from, part)| before[from..from + part.len()].copy_from_slice(part));
        }
        // The window may begin before the tar does.
        let before = &before[before.len().saturating_sub(this.0 as usize)..];
        let mut fine = FineZstd::after(Some(this), Uncompressed(this.0 - before.len() as u64));
        fine.expect(plan);
        fine.output(before)?;
        Ok(fine)
    }

    fn after(last: Option<Uncompressed>, end: Uncompressed) -> FineZstd {
        let starts = VecDeque::new();
        let windows = VecDeque::new();
        FineZstd {
            room: vec![0; ROOM].into(),
            end,
            starts,
            last,
            windows,
            is_over: false,
            notes: Vec::new(),
        }
    }

    /// Takes the plan of the bytes that are decoded next.
    pub(in crate::layer) fn expect(&mut self, plan: &mut ZstdPlan) {
        if self.is_over {
            return;
        }
        self.starts.extend(std::mem::take(&mut plan.starts));
        for mut window in std::mem::take(&mut plan.windows) {
            let mut bytes = Vec::new();
            if let PlannedContent::Block { parts, .. } = &mut window.content {
                // A span that is divided may refer to what its own window leaves out.
                let first = window.at.0.saturating_sub(self.end.0);
                parts.retain(|(back, _)| u64::from(*back) <= first);
                bytes.reserve_exact(parts.iter().map(|(_, size)| *size as usize).sum());
            }
            self.windows.push_back(WindowTaker { window, done: 0, bytes });
        }
    }

    /// Collects nothing from now on. Output still passes through it.
    pub(in crate::layer) fn give_up(&mut self) {
        (self.is_over, self.last) = (true, None);
        self.starts.clear();
        self.windows.clear();
        self.notes.clear();
    }

    /// Where the next output goes.
    pub(in crate::layer) fn room(&mut self) -> &mut [u8] {
        &mut self.room
    }

    /// Takes the first `size` bytes of the room as output, and returns them.
    /// [`FineZstd::pass`] must follow.
    pub(in crate::layer) fn take(&mut self, size: usize) -> &[u8] {
        let output = self.room.get(..size).unwrap_or_default();
        self.windows.iter_mut().for_each(|window| window.take(self.end, output));
        self.end += output.len() as u64;
        output
    }

    /// Takes output from elsewhere.
    ///
    /// # Errors
    /// If a span or its window is too large.
    pub(in crate::layer) fn output(&mut self, bytes: &[u8]) -> Result<(), FineError> {
        for piece in bytes.chunks(ROOM) {
            self.room[..piece.len()].copy_from_slice(piece);
            self.take(piece.len());
            self.pass()?;
        }
        Ok(())
    }

    /// Passes on the checkpoints and windows that are complete.
    ///
    /// # Errors
    /// If a span or its window is too large.
    pub(in crate::layer) fn pass(&mut self) -> Result<(), FineError> {
        while let Some(start) = self.starts.pop_front_if(|start| start.output <= self.end) {
            self.check_size(start.output)?;
            self.notes.push(FineMessage::Start(start));
            self.last = Some(start.output);
        }
        while let Some(taker) = self.windows.pop_front_if(|taker| taker.window.at <= self.end) {
            let PlannedWindow { at, content } = taker.window;
            let window = match content {
                PlannedContent::TooLarge => return Err(FineError::LongSpan(at)),
                PlannedContent::Frame => SpanWindow::of_frame(),
                PlannedContent::Block { state, length, parts, .. } => {
                    let parts =
                        parts.iter().map(|(back, size)| ((length - back) as usize, *size as usize));
                    SpanWindow::of_zstd(state, length, parts, taker.bytes)
                }
            };
            if window.encoded_size() > MAX_ZSTD_WINDOW {
                return Err(FineError::LongSpan(at));
            }
            self.notes.push(FineMessage::Window(window));
        }
        self.check_size(self.end)
    }

    /// Fails if the last span is too large with the output up to `end`.
    fn check_size(&self, end: Uncompressed) -> Result<(), FineError> {
        match self.last {
            // To divide a span, the output begins before it.
            Some(last) if end.0.saturating_sub(last.0) > MAX_ZSTD_SPAN => {
                Err(FineError::LongSpan(last))
            }
            _ => Ok(()),
        }
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
            true => self.end >= plan.output,
            false => self.end == plan.output,
        };
        if is_right && self.starts.front().is_none_or(|start| start.output > plan.output) {
            Ok(())
        } else {
            let fault = "libzstd reads the zstd blocks in another way";
            Err(LayerError::Zstd(format!("{fault}, up to byte {} of the tar", plan.output)))
        }
    }

    /// The messages since the last call.
    pub(in crate::layer) fn notes(&mut self) -> Vec<FineMessage> {
        std::mem::take(&mut self.notes)
    }
}
