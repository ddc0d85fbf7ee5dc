use super::{IndexedLayer, LayerError, LayerOptions};
use crate::digest::Digest;

/// Takes a layer's blob in chunks and builds its ztoc. Chunk borders carry no meaning.
pub struct LayerIndexer {}

impl LayerIndexer {
    /// Indexes a blob of which digest and size in bytes may be known; if so, they are checked.
    pub fn new(_options: LayerOptions, _expected: Option<(Digest, u64)>) -> LayerIndexer {
        unimplemented!("being written")
    }

    /// The next bytes of the blob.
    ///
    /// # Errors
    /// When the layer is broken; every further call fails the same way.
    pub fn push(&mut self, _chunk: &[u8]) -> Result<(), LayerError> {
        unimplemented!("being written")
    }

    /// The blob is at its end.
    pub fn finish(self) -> Result<IndexedLayer, LayerError> {
        unimplemented!("being written")
    }
}
