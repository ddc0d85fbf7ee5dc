//! Why an index could not be verified.

use crate::discover::DiscoverError;
use crate::doctor::NoIndex;
use ociseek_format::budget::OverBudget;
use ociseek_format::digest::Digest;
use ociseek_store::StoreError;

/// Why an image's indexes could not be verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum VerifyError {
    #[error(transparent)]
    Discover(Box<DiscoverError>),
    #[error("cannot list the SOCI indexes of {manifest}")]
    Listing { manifest: Digest, source: StoreError },
    #[error("image {0} has neither a SOCI index nor a fine index to verify")]
    NoIndex(Digest, NoIndex),
    #[error("docker save keeps no SOCI index: only the layers can be verified, and only all of them")]
    Saved,
    #[error("cannot read the image's config {digest}")]
    Config { digest: Digest, source: StoreError },
    #[error("cannot read SOCI index {digest}")]
    Index { digest: Digest, source: StoreError },
    #[error("cannot read the signatures of {subject}")]
    Signatures { subject: Digest, source: StoreError },
    #[error("cannot read prefetch list {digest}")]
    Prefetch { digest: Digest, source: StoreError },
    #[error("cannot read layer {layer}")]
    Layer { layer: Digest, source: StoreError },
    #[error("ztoc {ztoc} of layer {layer} does not fit into memory")]
    Memory { ztoc: Digest, layer: Digest, source: OverBudget },
    #[error("cannot read fine document {document}")]
    Document { document: Digest, source: StoreError },
    #[error("fine document {document} of layer {layer} does not fit into memory")]
    DocumentMemory { document: Digest, layer: Digest, source: OverBudget },
    #[error("the thread verifying layer {layer} stopped unexpectedly")]
    Thread { layer: Digest },
}

impl From<DiscoverError> for VerifyError {
    fn from(error: DiscoverError) -> VerifyError {
        VerifyError::Discover(Box::new(error))
    }
}
