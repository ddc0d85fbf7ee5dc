//! Indexes and reads one layer.
//!
//! A blob is scanned once, under one of two policies. [`LayerIndexer`] and
//! [`parallel::index_chunks`] are strict: they return a ztoc that can be published, or the reason
//! why no consumer could use one. [`parallel::read_chunks`] is lenient: its result is only used
//! locally.
//!
//! Internally, `scan` reads the blocks of zstd ahead, decodes with [codec](crate::codec) and finds
//! the entries with the [tar walk](crate::tar), `hashes` hashes, possibly on another thread,
//! `slices` decides where spans start, `fine` collects the fine document, and `consumer` decides
//! whether consumers of the index could serve files from it. [`span`] works in the other direction:
//! from a ztoc or a [`LayerMap`] and ranges of the blob to the bytes of files. [`record`] stores a
//! map. [`prove`] checks a ztoc against its layer, which it decodes with other decoders.

mod body;
mod consumer;
mod contents;
mod divide;
mod file_list;
mod fine;
mod hashes;
pub mod map;
mod model;
pub mod parallel;
pub mod prove;
pub mod record;
mod scan;
mod scan_result;
mod slices;
pub mod span;

pub use consumer::{MAX_SPAN, file as stated, servable};
pub use contents::Notes;
pub use divide::divide_span;
pub use file_list::{FileList, NearbyFiles};
pub use map::{LayerMap, Starts};
pub use model::{
    BlobForm, BuiltZtoc, IndexedLayer, LayerError, LayerOptions, Outcome, ReadOptions,
    TOOL_IDENTIFIER, UnservableCode, UnservableReason,
};
pub use scan_result::MappedLayer;
pub use slices::{KeepSpans, are_chosen};

use crate::budget::Budget;
use crate::codec::sniff::{self, Format};
use crate::digest::Digest;
use crate::tar;
use hashes::LayerHashes;
use scan::{LayerPlanner, LayerScan, PlannedBatch};

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
        let (planner, scan, hashes) =
            LayerScan::to_publish(&options, expected, Budget::new(u64::MAX).open());
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

/// Sniffs the format of a blob from its first block, or from the whole blob if it is shorter. The
/// name of a tar's first file may look like the magic number of a compression format, but the
/// checksum of its header shows that it is a tar.
pub fn format(head: &[u8]) -> Format {
    match sniff::format(head) {
        Format::Zstd | Format::Foreign(_)
            if head.first_chunk().is_some_and(tar::has_valid_checksum) =>
        {
            Format::Plain
        }
        format => format,
    }
}

/// The consumer stores xattrs and file names as keys of a bbolt database, which limits their
/// length.
const MAX_KEY: usize = 32_768;
