//! Why a layer cannot be opened.

use std::io;

use ociseek_format::budget::OverBudget;
use ociseek_format::digest::Digest;
use ociseek_format::layer::LayerError;
use ociseek_format::layer::span::SpanError;
use ociseek_store::{StoreError, read_times};

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum OpenError {
    #[error("layer {layer} is encrypted")]
    Encrypted { layer: Digest },
    #[error("layer {layer} is compressed with {name} (supported: gzip, zstd, plain tar)")]
    Compression { layer: Digest, name: String },
    #[error("{media_type:?} is not the media type of a layer ({layer})")]
    NotALayer { layer: Digest, media_type: String },
    #[error("cannot fetch layer {layer} (stopped after {read} bytes)")]
    Read { layer: Digest, read: u64, source: StoreError },
    #[error("layer {layer} does not fit into memory")]
    Memory { layer: Digest, source: OverBudget },
    /// `reads` is how many times it was read: what a registry sent is read once more.
    #[error("layer {layer} is broken{}", read_times(*.reads))]
    Broken { layer: Digest, reads: u32, source: LayerError },
    #[error("layer {layer} is broken zstd{}", read_times(*.reads))]
    Zstd { layer: Digest, reads: u32, source: io::Error },
    #[error("layer {layer} cannot be read: its entries or checkpoints exceed the limit for a layer of its size")]
    TooLarge { layer: Digest },
    #[error("layer {layer} cannot be read by its ztoc")]
    Spans { layer: Digest, source: SpanError },
    #[error("layer {layer} was not read completely: ociseek is shutting down")]
    Ending { layer: Digest },
}

impl OpenError {
    /// The layer that cannot be opened.
    pub fn layer(&self) -> Digest {
        match self {
            OpenError::Encrypted { layer }
            | OpenError::Compression { layer, .. }
            | OpenError::NotALayer { layer, .. }
            | OpenError::Read { layer, .. }
            | OpenError::Memory { layer, .. }
            | OpenError::Broken { layer, .. }
            | OpenError::Zstd { layer, .. }
            | OpenError::TooLarge { layer }
            | OpenError::Spans { layer, .. }
            | OpenError::Ending { layer } => *layer,
        }
    }

    /// Whether the bytes of the layer are wrong, which may have been damaged on the way.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            OpenError::Compression { .. }
            | OpenError::Broken { .. }
            | OpenError::Zstd { .. }
            | OpenError::TooLarge { .. }
            | OpenError::Spans { .. } => true,
            OpenError::Encrypted { .. }
            | OpenError::NotALayer { .. }
            | OpenError::Read { .. }
            | OpenError::Memory { .. }
            | OpenError::Ending { .. } => false,
        }
    }

    pub(super) fn of(error: LayerError, layer: Digest, reads: u32) -> OpenError {
        match error {
            LayerError::Memory(source) => OpenError::Memory { layer, source },
            LayerError::Zstd(text) => OpenError::Zstd { layer, reads, source: io::Error::other(text) },
            LayerError::Compression(name) => OpenError::Compression { layer, name: name.to_owned() },
            LayerError::TooLarge => OpenError::TooLarge { layer },
            source => OpenError::Broken { layer, reads, source },
        }
    }
}
