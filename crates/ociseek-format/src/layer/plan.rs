//! Reads ahead what the other halves of indexing need to know about a blob.

use super::fine::{ZstdPlan, ZstdPlanner};
use super::format::format;
use crate::budget::Charge;
use crate::codec::sniff::Format;
use crate::tar;

/// Takes a layer's blob in chunks, before [`LayerScan`](super::scan::LayerScan) does. It can run on
/// another thread.
pub(super) enum LayerPlanner {
    /// Nothing is planned.
    Idle,
    /// Too few bytes to know the format, and what a plan is charged to.
    Unknown(Vec<u8>, Charge),
    Zstd(Box<ZstdPlanner>),
}

impl LayerPlanner {
    /// For a layer whose fine document is collected.
    pub(super) fn of_fine(memory: Charge) -> LayerPlanner {
        LayerPlanner::Unknown(Vec::new(), memory)
    }

    /// The plan of the next chunks, if the layer is zstd.
    pub(super) fn plan<C: AsRef<[u8]>>(&mut self, chunks: &[C]) -> Option<ZstdPlan> {
        let head = match self {
            LayerPlanner::Idle => return None,
            LayerPlanner::Zstd(planner) => return planner.plan(chunks, false),
            LayerPlanner::Unknown(head, _) => head,
        };
        // Once the format is known, the chunks that were collected are planned together.
        chunks.iter().for_each(|chunk| head.extend_from_slice(chunk.as_ref()));
        if head.len() < tar::BLOCK {
            return None;
        }
        self.decide(false)
    }

    /// The rest of the plan, at the end of the blob.
    pub(super) fn end(&mut self) -> Option<ZstdPlan> {
        match self {
            LayerPlanner::Idle => None,
            LayerPlanner::Zstd(planner) => planner.plan::<&[u8]>(&[], true),
            LayerPlanner::Unknown(..) => self.decide(true),
        }
    }

    fn decide(&mut self, is_end: bool) -> Option<ZstdPlan> {
        let LayerPlanner::Unknown(head, memory) = std::mem::replace(self, LayerPlanner::Idle) else { return None };
        if format(head.get(..tar::BLOCK).unwrap_or(&head)) != Format::Zstd {
            return None;
        }
        let mut planner = ZstdPlanner::new(memory);
        let plan = planner.plan(&[head], is_end);
        *self = LayerPlanner::Zstd(Box::new(planner));
        plan
    }
}
