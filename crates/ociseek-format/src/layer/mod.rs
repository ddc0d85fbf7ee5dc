//! Indexes and reads one layer.
//!
//! A blob is scanned once, under one of two policies. [`LayerIndexer`] and
//! [`parallel::index_chunks`] are strict: they return a ztoc that can be published, or the reason
//! why no consumer could use one. [`parallel::read_chunks`] is lenient: its result is only used
//! locally.
//!
//! Internally, `plan` reads the blocks of zstd ahead, `scan` decodes with [codec](crate::codec) and
//! finds the entries with the [tar walk](crate::tar), `hashes` hashes, possibly on another thread,
//! `checkpoints` decides where spans start, `fine` collects the fine document, and `consumer`
//! decides whether consumers of the index could serve files from it. [`span`] works in the other
//! direction: from a ztoc or a [`LayerMap`] and ranges of the blob to the bytes of files.
//! [`record`] stores a map. [`prove`] checks a ztoc against its layer, which it decodes with other
//! decoders.

mod body;
mod checkpoints;
mod consumer;
mod contents;
mod divide;
mod file_list;
mod fine;
mod format;
mod hashes;
pub mod map;
mod model;
mod names;
pub mod parallel;
mod plan;
pub mod prove;
pub mod record;
mod scan;
mod scan_result;
mod slices;
pub mod span;

pub use checkpoints::are_chosen;
pub use consumer::{MAX_SPAN, file as stated, servable};
pub use contents::Notes;
pub use divide::divide_span;
pub use file_list::{FileList, NearbyFiles};
pub use format::format;
pub use map::{LayerMap, Starts};
pub use model::{
    BlobForm, BuiltZtoc, IndexedLayer, LayerError, LayerOptions, Outcome, ReadOptions, TOOL_IDENTIFIER, UnservableCode,
    UnservableReason,
};
pub(crate) use names::{below_root, clean_into};
pub use names::{clean, shown};
pub use scan_result::MappedLayer;
pub use slices::KeepSpans;

use crate::budget::Budget;
use crate::digest::Digest;
use hashes::LayerHashes;
use plan::{LayerPlanner, PlannedBatch};
use scan::LayerScan;

/// Builds the ztoc of a layer's blob, pushed in chunks, on one thread.
pub struct LayerIndexer {
    options: LayerOptions,
    planner: LayerPlanner<Vec<u8>>,
    scan: LayerScan,
    hashes: LayerHashes,
}

crate::opaque_debug!(LayerIndexer);

impl LayerIndexer {
    /// Indexes a blob. If its digest and size in bytes are given, they are checked.
    pub fn new(options: LayerOptions, expected: Option<(Digest, u64)>) -> LayerIndexer {
        let (planner, scan, hashes) = LayerScan::to_publish(&options, expected, Budget::new(u64::MAX).open());
        LayerIndexer { options, planner, scan, hashes }
    }

    /// Pushes the next bytes of the blob. Chunk boundaries do not matter.
    ///
    /// # Errors
    /// If the layer is broken, as far as it was read: zstd with a fine document is read with a
    /// delay. Further calls fail the same way.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), LayerError> {
        if matches!(self.planner, LayerPlanner::Idle) {
            let spans = self.scan.push_all(&[chunk], None)?;
            self.hashes.push(chunk, spans);
            return Ok(());
        }
        let ready = self.planner.plan(vec![chunk.to_vec()]);
        self.take(ready)
    }

    fn take(&mut self, ready: Vec<PlannedBatch<Vec<u8>>>) -> Result<(), LayerError> {
        for (chunks, plan) in ready {
            let spans = self.scan.push_all(&chunks, plan)?;
            self.hashes.push_all(&chunks, spans);
        }
        Ok(())
    }

    /// Call this at the end of the blob.
    ///
    /// # Errors
    /// If the size or digest is not as expected, or the blob is truncated.
    pub fn finish(mut self) -> Result<IndexedLayer, LayerError> {
        let rest = self.planner.end();
        self.take(rest)?;
        let spans = self.scan.end()?;
        self.hashes.push(&[], spans);
        self.scan.finish(self.hashes.finish())?.publish(self.options)
    }
}
