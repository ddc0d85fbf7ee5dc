//! Why an image could not be indexed.

use super::model::RefusedImage;
use crate::prefetch::PathLookupError;
use crate::resolve::ResolveError;
use ociseek_format::budget::OverBudget;
use ociseek_format::digest::Digest;
use ociseek_format::fine::FineError;
use ociseek_format::image::Descriptor;
use ociseek_format::layer::LayerError;
use ociseek_format::ztoc::ZtocError;
use ociseek_store::{StoreError, read_times};

/// Why an image could not be indexed. Nothing was attached, unless [`IndexError::Attach`] says
/// otherwise.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum IndexError {
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("cannot read {what} {digest}")]
    Document { what: &'static str, digest: Digest, source: StoreError },
    #[error("cannot list the referrers of {subject}")]
    Referrers { subject: Digest, source: StoreError },
    /// `reads` is how many times it was read: what a registry sent is read once more.
    #[error("layer {layer} is broken{}", read_times(*.reads))]
    BrokenLayer { layer: Digest, reads: u32, source: LayerError },
    #[error("layer {layer} does not fit into memory")]
    Memory { layer: Digest, source: OverBudget },
    #[error("the files to prefetch cannot be looked up")]
    PrefetchMemory(#[from] OverBudget),
    #[error("cannot read layer {layer} (stopped after {read} bytes)")]
    ReadLayer { layer: Digest, read: u64, source: StoreError },
    #[error("the thread indexing layer {layer} stopped unexpectedly")]
    LayerThread { layer: Digest },
    /// Readers take only the fine index that such an image names.
    #[error("{image} is SOCI-enabled, and a fine index that is only attached to it would not be used")]
    Enabled { image: Digest },
    /// It could be indexed, but falls short of the gate ([`super::Gate`]).
    #[error(transparent)]
    Refused(#[from] Box<RefusedImage>),
    #[error(transparent)]
    Prefetch(#[from] PathLookupError),
    #[error("cannot make the fine document of layer {layer}")]
    Fine { layer: Digest, source: FineError },
    #[error("cannot read the spans of layer {layer} that the recorded start reads")]
    ReadSpans { layer: Digest, source: StoreError },
    #[error("cannot reread the ztoc of layer {layer}")]
    OwnZtoc { layer: Digest, source: ZtocError },
    #[error("the thread looking up the files to prefetch stopped unexpectedly")]
    PrefetchThread,
    #[error("cannot write {what} {digest}")]
    Push { what: &'static str, digest: Digest, source: StoreError },
    #[error("{what} {digest} was written again, but is still damaged there: it must be deleted from the storage first")]
    StaysDamaged { what: &'static str, digest: Digest },
    #[error("cannot attach index {index}")]
    Attach { index: Digest, source: StoreError },
}

impl IndexError {
    pub(super) fn memory(layer: &Descriptor, source: OverBudget) -> IndexError {
        IndexError::Memory { layer: layer.digest, source }
    }
}
