//! The first half of indexing: reading ahead what the rest needs to know about the blob, decoding,
//! and the tar walk. The second half is [`LayerHashes`].

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};

use super::body::LayerBody;
use super::fine::{PlannedWindow, ZstdPlan, ZstdPlanner};
use super::hashes::{BlobDigests, LayerHashes, ScannedSpans};
use super::model::{NoZtoc, ReadOptions};
use super::scan_result::ScanResult;
use super::{LayerError, LayerOptions, format};
use crate::budget::{Budget, Charge};
use crate::codec::sniff::Format;
use crate::codec::stretch::Stretch;
use crate::digest::{Algorithm, Digest};
use crate::fine::FineStart;
use crate::offset::{Compressed, SpanSize};
use crate::tar;

/// Takes a layer's blob in chunks, before [`LayerScan`] does, and hands them on in
/// batches. It can run on another thread.
pub(super) enum LayerPlanner<C> {
    /// Nothing is planned.
    Idle,
    /// Too few bytes to know the format. With what a plan is charged to.
    Unknown(Vec<C>, Charge),
    Zstd(Box<ReadAhead<C>>),
}

/// Chunks that can be scanned, with their plan if the layer is zstd.
pub(super) type PlannedBatch<C> = (Vec<C>, Option<ZstdPlan>);

/// The chunks of a zstd blob that were planned and cannot be scanned yet: checkpoints in them may
/// not be chosen yet, and windows that need some of their output are not known before the spans end
/// that refer to it.
pub(super) struct ReadAhead<C> {
    planner: ZstdPlanner,
    budget: Budget,
    /// With the charge for the chunks.
    waiting: VecDeque<(Vec<C>, ZstdPlan, Charge)>,
    /// Checkpoints and windows that became known since chunks were handed on.
    starts: Vec<FineStart>,
    windows: Vec<PlannedWindow>,
}

impl<C: AsRef<[u8]>> LayerPlanner<C> {
    /// For a layer whose fine document is collected.
    pub(super) fn of_fine(memory: Charge) -> LayerPlanner<C> {
        LayerPlanner::Unknown(Vec::new(), memory)
    }

    /// Takes the next chunks. Returns what can be scanned now, in order.
    pub(super) fn plan(&mut self, chunks: Vec<C>) -> Vec<PlannedBatch<C>> {
        match self {
            LayerPlanner::Idle => vec![(chunks, None)],
            LayerPlanner::Zstd(ahead) => ahead.plan(chunks, false),
            LayerPlanner::Unknown(held, _) => {
                held.extend(chunks);
                if size(held) < tar::BLOCK as u64 { Vec::new() } else { self.decide(false) }
            }
        }
    }

    /// Plans nothing from now on, since the layer is not zstd. Returns the chunks that were held.
    pub(super) fn give_up(&mut self) -> Option<Vec<C>> {
        match std::mem::replace(self, LayerPlanner::Idle) {
            LayerPlanner::Unknown(held, _) => Some(held).filter(|held| !held.is_empty()),
            LayerPlanner::Idle | LayerPlanner::Zstd(_) => None,
        }
    }

    /// The rest of the blob, at its end.
    pub(super) fn end(&mut self) -> Vec<PlannedBatch<C>> {
        match self {
            LayerPlanner::Idle => Vec::new(),
            LayerPlanner::Zstd(ahead) => ahead.plan(Vec::new(), true),
            LayerPlanner::Unknown(..) => self.decide(true),
        }
    }

    fn decide(&mut self, is_end: bool) -> Vec<PlannedBatch<C>> {
        let LayerPlanner::Unknown(held, memory) = std::mem::replace(self, LayerPlanner::Idle)
        else {
            return Vec::new();
        };
        let head: Vec<u8> =
            held.iter().flat_map(|chunk| chunk.as_ref()).take(tar::BLOCK).copied().collect();
        if format(&head) != Format::Zstd {
            return vec![(held, None)];
        }
        let budget = memory.budget().clone();
        let planner = ZstdPlanner::new(memory);
        let waiting = VecDeque::new();
        let mut ahead =
            ReadAhead { planner, budget, waiting, starts: Vec::new(), windows: Vec::new() };
        let ready = ahead.plan(held, is_end);
        *self = LayerPlanner::Zstd(Box::new(ahead));
        ready
    }
}

impl<C: AsRef<[u8]>> ReadAhead<C> {
    fn plan(&mut self, chunks: Vec<C>, is_end: bool) -> Vec<PlannedBatch<C>> {
        let Some(mut plan) = self.planner.plan(&chunks, is_end) else {
            return vec![(chunks, None)];
        };
        let mut memory = self.budget.open();
        let charged = memory.grow(size(&chunks), || "what is read ahead of it".to_owned());
        plan.failed = plan.failed.or(charged.err().map(LayerError::from));
        let is_last = is_end || plan.failed.is_some();
        self.starts.append(&mut plan.starts);
        self.windows.append(&mut plan.windows);
        self.waiting.push_back((chunks, plan, memory));
        let needed = self.planner.needs();
        let mut ready = Vec::new();
        while let Some((chunks, mut plan, _)) =
            self.waiting.pop_front_if(|(_, plan, _)| is_last || plan.end() <= needed)
        {
            plan.starts = std::mem::take(&mut self.starts);
            plan.windows = std::mem::take(&mut self.windows);
            ready.push((chunks, Some(plan)));
        }
        ready
    }
}

fn size<C: AsRef<[u8]>>(chunks: &[C]) -> u64 {
    chunks.iter().map(|chunk| chunk.as_ref().len() as u64).sum()
}

/// Takes a layer's blob in chunks, decodes it and walks the tar. The findings for each chunk go to
/// a [`LayerHashes`] together with the chunk, on this or another thread.
pub(super) struct LayerScan {
    /// The least distance between two checkpoints, in bytes of the tar.
    span_size: SpanSize,
    expected: Option<(Digest, u64)>,
    /// Bytes of the blob so far.
    size: u64,
    body: LayerBody,
    /// What the body needs to start. None after the body took it.
    start: Option<Start>,
    /// The plan of the next bytes, until the body can take it.
    plan: Option<ZstdPlan>,
    failed: Option<LayerError>,
    /// The fault of a blob that ended before its format was known.
    failed_at_end: Option<LayerError>,
}

/// What the body of a blob starts with.
struct Start {
    purpose: Purpose,
    memory: Charge,
}

/// Why a layer is scanned.
enum Purpose {
    Publish {
        /// Whether to collect a fine document too.
        fine: bool,
    },
    Read {
        options: ReadOptions,
        /// Receives the digests of spans.
        hashed: Receiver<Digest>,
    },
}

/// The result of [`LayerScan::push_decoded`].
pub(super) struct StretchResult {
    pub spans: ScannedSpans,
    /// Whether the bytes decoded in advance were usable.
    pub was_right: bool,
    /// A buffer to decode another stretch into.
    pub plain: Vec<u8>,
}

impl LayerScan {
    /// Both halves and what reads ahead, for a blob whose index will be published. `expected` are
    /// its digest and its size in bytes, which are checked. Charges what is collected to `memory`.
    pub(super) fn to_publish<C: AsRef<[u8]>>(
        options: &LayerOptions,
        expected: Option<(Digest, u64)>,
        memory: Charge,
    ) -> (LayerPlanner<C>, LayerScan, LayerHashes) {
        let LayerOptions { span_size, fine, .. } = *options;
        let for_fine = memory.budget().open();
        let for_plan = memory.budget().open();
        let (scan, hashes) = LayerScan::new(
            span_size,
            expected,
            Start { purpose: Purpose::Publish { fine }, memory },
        );
        if fine {
            (LayerPlanner::of_fine(for_plan), scan, hashes.with_fine(for_fine))
        } else {
            (LayerPlanner::Idle, scan, hashes)
        }
    }

    /// Whether a fine document is collected. Only valid before the first bytes.
    pub(super) fn is_fine(&self) -> bool {
        matches!(self.start, Some(Start { purpose: Purpose::Publish { fine: true }, .. }))
    }

    /// Both halves, for a blob that is only read locally.
    pub(super) fn to_read(
        options: ReadOptions,
        expected: (Digest, u64),
        memory: Charge,
    ) -> (LayerScan, LayerHashes) {
        let (listener, hashed) = channel();
        let span_size = options.span_size;
        let has_keeper = options.keeper.is_some();
        let start = Start { purpose: Purpose::Read { options, hashed }, memory };
        let (scan, hashes) = LayerScan::new(span_size, Some(expected), start);
        (scan, if has_keeper { hashes.sending_to(listener) } else { hashes })
    }

    fn new(
        span_size: SpanSize,
        expected: Option<(Digest, u64)>,
        start: Start,
    ) -> (LayerScan, LayerHashes) {
        let algorithm = expected.map_or(Algorithm::Sha256, |(digest, _)| digest.algorithm());
        let body = LayerBody::Unknown(Vec::new());
        let start = Some(start);
        let scan = LayerScan {
            span_size,
            expected,
            size: 0,
            body,
            start,
            plan: None,
            failed: None,
            failed_at_end: None,
        };
        (scan, LayerHashes::new(algorithm))
    }

    /// Takes the next chunks of the blob, which must be hashed together as well, with their plan.
    /// Chunk boundaries do not matter.
    ///
    /// # Errors
    /// If the layer is broken. Further calls fail the same way.
    pub(super) fn push_all<C: AsRef<[u8]>>(
        &mut self,
        chunks: &[C],
        plan: Option<ZstdPlan>,
    ) -> Result<ScannedSpans, LayerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.plan = plan;
        self.pass_plan();
        let pushed = chunks.iter().try_for_each(|chunk| self.take(chunk.as_ref()));
        let pushed = pushed.and_then(|()| self.body.end_plan());
        self.failed = pushed.as_ref().err().cloned();
        pushed.map(|()| self.body.spans(Compressed(self.size)))
    }

    fn pass_plan(&mut self) {
        if !matches!(self.body, LayerBody::Unknown(_))
            && let Some(plan) = self.plan.take()
        {
            self.body.expect(plan);
        }
    }

    /// Takes the next chunks of the blob, which were decoded to `stretch` in advance. The result is
    /// the same as if the chunks were pushed one after the other.
    ///
    /// # Errors
    /// As [`LayerScan::push_all`].
    pub(super) fn push_decoded<C: AsRef<[u8]>>(
        &mut self,
        chunks: &[C],
        stretch: Stretch,
    ) -> Result<StretchResult, LayerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut was_right = false;
        let mut plain = Vec::new();
        let push = || {
            let lead = stretch.lead();
            self.take_range(chunks, 0, lead)?;
            let size: usize = chunks.iter().map(|chunk| chunk.as_ref().len()).sum();
            // Whether a blob is reported as too long or as broken depends on what comes first. For
            // that, a blob that exceeds its size is scanned chunk by chunk.
            let fits = |expected| self.size + (size - lead) as u64 <= expected;
            let handover = match &mut self.body {
                LayerBody::Gzip(body) if self.expected.is_none_or(|(_, size)| fits(size)) => {
                    body.take_over(stretch)
                }
                _ => stretch.give_up(),
            };
            was_right = handover.taken > 0;
            plain = handover.plain;
            self.size += handover.taken as u64;
            if was_right {
                self.body.check()?;
            }
            self.take_range(chunks, lead + handover.taken, size)
        };
        let pushed = push();
        self.failed = pushed.as_ref().err().cloned();
        pushed.map(|()| StretchResult {
            spans: self.body.spans(Compressed(self.size)),
            was_right,
            plain,
        })
    }

    /// Takes the bytes of `chunks` from `from` to `to`.
    fn take_range<C: AsRef<[u8]>>(
        &mut self,
        chunks: &[C],
        from: usize,
        to: usize,
    ) -> Result<(), LayerError> {
        let mut at = 0;
        for chunk in chunks.iter().map(AsRef::as_ref) {
            let within = |position: usize| position.saturating_sub(at).min(chunk.len());
            let part = &chunk[within(from)..within(to)];
            at += chunk.len();
            if !part.is_empty() {
                self.take(part)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, chunk: &[u8]) -> Result<(), LayerError> {
        self.size += chunk.len() as u64;
        if let Some((_, expected)) = self.expected
            && self.size > expected
        {
            return Err(LayerError::Size { expected, actual: self.size });
        }
        let LayerBody::Unknown(head) = &mut self.body else {
            return self.body.push(chunk, Compressed(self.size));
        };
        let taken = chunk.len().min(tar::BLOCK - head.len());
        head.extend_from_slice(&chunk[..taken]);
        if head.len() == tar::BLOCK {
            self.sniff()?;
            self.body.push(&chunk[taken..], Compressed(self.size))?;
        }
        Ok(())
    }

    /// Determines the format from the bytes so far.
    fn sniff(&mut self) -> Result<(), LayerError> {
        let LayerBody::Unknown(head) = &mut self.body else { return Ok(()) };
        let head = std::mem::take(head);
        let Some(Start { purpose, memory }) = self.start.take() else { return Ok(()) };
        self.body = match purpose {
            Purpose::Publish { fine } => {
                LayerBody::to_publish(format(&head), self.span_size, fine, memory)
            }
            Purpose::Read { options, hashed } => {
                LayerBody::to_read(format(&head), options, hashed, memory)
            }
        };
        self.pass_plan();
        self.body.push(&head, Compressed(self.size))
    }

    /// Ends the blob and reports the spans in bytes that were undecided. Faults in a blob this
    /// short are reported by [`LayerScan::finish`], after the digest was checked.
    ///
    /// # Errors
    /// The error of [`LayerScan::push_all`] if the layer is broken.
    pub(super) fn end(&mut self) -> Result<ScannedSpans, LayerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.failed_at_end = self.sniff().err();
        self.pass_plan();
        self.body.end();
        self.failed_at_end = self.failed_at_end.take().or(self.body.end_plan().err());
        Ok(self.body.spans(Compressed(self.size)))
    }

    /// The result for the blob and its digests. Call it after [`LayerScan::end`].
    ///
    /// # Errors
    /// If the size or digest is not the expected one, or the blob is truncated.
    pub(super) fn finish(self, hashed: BlobDigests) -> Result<ScanResult, LayerError> {
        if let Some((expected, expected_size)) = self.expected {
            if self.size != expected_size {
                return Err(LayerError::Size { expected: expected_size, actual: self.size });
            }
            if hashed.blob != expected {
                return Err(LayerError::Digest { expected, actual: hashed.blob });
            }
        }
        if let Some(error) = self.failed_at_end {
            return Err(error);
        }
        let BlobDigests { blob, spans, fine } = hashed;
        let fine = fine.transpose()?;
        let outcome = match self.body.finish(self.span_size, self.size, spans, fine) {
            Ok(sound) => Ok(sound),
            Err(NoZtoc::Unservable(unservable)) => Err(unservable),
            Err(NoZtoc::Broken(error)) => return Err(error),
        };
        Ok(ScanResult { digest: blob, size: self.size, outcome })
    }
}
