//! Reads ahead what the other halves of indexing need to know about a blob.

use std::collections::VecDeque;

use super::LayerError;
use super::fine::{PlannedWindow, ZstdPlan, ZstdPlanner};
use super::format::format;
use crate::budget::{Budget, Charge};
use crate::codec::sniff::Format;
use crate::fine::FineStart;
use crate::tar;

/// Takes a layer's blob in chunks, before [`LayerScan`](super::scan::LayerScan) does, and hands
/// them on in batches. It can run on another thread.
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
                match size(held) < tar::BLOCK as u64 {
                    true => Vec::new(),
                    false => self.decide(false),
                }
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
        let LayerPlanner::Unknown(held, memory) = std::mem::replace(self, LayerPlanner::Idle) else {
            return Vec::new();
        };
        let head: Vec<u8> = held.iter().flat_map(|chunk| chunk.as_ref()).take(tar::BLOCK).copied().collect();
        if format(&head) != Format::Zstd {
            return vec![(held, None)];
        }
        let budget = memory.budget().clone();
        let (planner, waiting) = (ZstdPlanner::new(memory), VecDeque::new());
        let mut ahead = ReadAhead { planner, budget, waiting, starts: Vec::new(), windows: Vec::new() };
        let ready = ahead.plan(held, is_end);
        *self = LayerPlanner::Zstd(Box::new(ahead));
        ready
    }
}

impl<C: AsRef<[u8]>> ReadAhead<C> {
    fn plan(&mut self, chunks: Vec<C>, is_end: bool) -> Vec<PlannedBatch<C>> {
        let Some(mut plan) = self.planner.plan(&chunks, is_end) else { return vec![(chunks, None)] };
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
