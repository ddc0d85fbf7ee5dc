//! Builds the ztoc of a blob in one pass.

use super::hashes::LayerHashes;
use super::scan::LayerScan;
use super::{IndexedLayer, LayerError, LayerOptions};
use crate::budget::Budget;
use crate::digest::Digest;

/// Builds the ztoc of a layer's blob, pushed in chunks, on one thread.
pub struct LayerIndexer {
    options: LayerOptions,
    scan: LayerScan,
    hashes: LayerHashes,
}

crate::opaque_debug!(LayerIndexer);

impl LayerIndexer {
    /// Indexes a blob. If its digest and size in bytes are given, they are checked.
    pub fn new(options: LayerOptions, expected: Option<(Digest, u64)>) -> LayerIndexer {
        let (scan, hashes) = LayerScan::to_publish(&options, expected, Budget::new(u64::MAX).open());
        LayerIndexer { options, scan, hashes }
    }

    /// Pushes the next bytes of the blob. Chunk boundaries do not matter.
    ///
    /// # Errors
    /// If the layer is broken. Further calls fail the same way.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), LayerError> {
        let spans = self.scan.push(chunk)?;
        self.hashes.push(chunk, spans);
        Ok(())
    }

    /// Call this at the end of the blob.
    ///
    /// # Errors
    /// If the size or digest is not as expected, or the blob is truncated.
    pub fn finish(mut self) -> Result<IndexedLayer, LayerError> {
        let spans = self.scan.end()?;
        self.hashes.push(&[], spans);
        self.scan.finish(self.hashes.finish())?.publish(self.options)
    }
}
