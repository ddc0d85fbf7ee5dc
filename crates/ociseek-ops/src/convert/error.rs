//! Why an image could not be converted.

use super::limits::{MAX_DOCUMENTS, MAX_MANIFESTS};
use crate::index::{IndexError, LayerReport};
use ociseek_format::digest::Digest;
use ociseek_format::image::go::GoError;
use ociseek_store::StoreError;

/// Why an image could not be converted. The destination's tag is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ConvertError {
    #[error("cannot find the image")]
    Find(#[source] StoreError),
    #[error("cannot read {what} {digest}")]
    Document { what: &'static str, digest: Digest, source: StoreError },
    #[error("{what} {digest} has {found} bytes, but its descriptor says {expected}")]
    Size { what: &'static str, digest: Digest, expected: u64, found: u64 },
    #[error("{digest} cannot be converted")]
    Unsound { digest: Digest, source: GoError },
    #[error("{digest} is not an image")]
    NotAnImage { digest: Digest },
    #[error("image index {digest} lists {count} manifests; at most {MAX_MANIFESTS} can be converted")]
    TooMany { digest: Digest, count: usize },
    #[error("image index {digest} is nested more than {limit} deep")]
    TooDeep { digest: Digest, limit: usize },
    #[error("the manifests of image index {digest} exceed {MAX_DOCUMENTS} bytes in total")]
    TooLarge { digest: Digest },
    #[error("image index {digest} lists no existing manifest")]
    Empty { digest: Digest },
    #[error("{digest} holds no image of a known platform")]
    NoImage { digest: Digest },
    #[error("the image has no manifest for {wanted}; it has {available}")]
    NoPlatform { wanted: String, available: String },
    #[error("no layer of the image can be indexed, so there is nothing to convert")]
    NothingToIndex { layers: Vec<LayerReport> },
    #[error("timed out before all layers were indexed; layers left: {left}")]
    OutOfTime { left: usize },
    #[error("the destination is the image's own tag, {digest}, which was left unchanged")]
    SourceTag { digest: Digest },
    #[error("the tag already points to {digest}, which is not a SOCI-enabled image, and was left unchanged")]
    Occupied { digest: Digest },
    #[error("the tag {tag} no longer points to the image: someone pushed to it meanwhile, and nothing was written")]
    Moved { tag: String },
    #[error("someone pushed {digest} to the tag {tag} meanwhile, which was left unchanged")]
    Changed { tag: String, digest: Digest },
    #[error(transparent)]
    Index(Box<IndexError>),
    #[error("cannot read the destination's current image")]
    Destination(#[source] StoreError),
    #[error("cannot copy blob {digest}")]
    Copy { digest: Digest, source: StoreError },
    #[error("cannot write {what} {digest}")]
    Push { what: &'static str, digest: Digest, source: StoreError },
}

impl From<IndexError> for ConvertError {
    fn from(error: IndexError) -> ConvertError {
        ConvertError::Index(Box::new(error))
    }
}
