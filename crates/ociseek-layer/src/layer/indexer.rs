//! The indexer: a blob's bytes in, its ztoc out, in one pass.

use super::hashes::LayerHashes;
use super::scan::LayerScan;
use super::{IndexedLayer, LayerError, LayerOptions};
use crate::budget::Budget;
use crate::digest::Digest;

/// Takes a layer's blob in chunks and builds its ztoc, all on one thread.
pub struct LayerIndexer {
    options: LayerOptions,
    scan: LayerScan,
    hashes: LayerHashes,
}

impl LayerIndexer {
    /// Indexes a blob of which digest and size in bytes may be known; if so, they are checked.
    pub fn new(options: LayerOptions, expected: Option<(Digest, u64)>) -> LayerIndexer {
        let (scan, hashes) = LayerScan::to_publish(options.span_size, expected, Budget::new(u64::MAX).open());
        LayerIndexer { options, scan, hashes }
    }

    /// The next bytes of the blob. Chunk borders carry no meaning.
    ///
    /// # Errors
    /// When the layer is broken; every further call fails the same way.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), LayerError> {
        let spans = self.scan.push(chunk)?;
        self.hashes.push(chunk, &spans);
        Ok(())
    }

    /// The blob is at its end.
    ///
    /// # Errors
    /// When size or digest are not the expected ones, or when the blob ends too soon.
    pub fn finish(mut self) -> Result<IndexedLayer, LayerError> {
        let spans = self.scan.end()?;
        self.hashes.push(&[], &spans);
        self.scan.finish(self.hashes.finish())?.publish(self.options)
    }
}
