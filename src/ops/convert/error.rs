//! Why an image could not be converted.

use super::load::{MAX_DOCUMENTS, MAX_MANIFESTS};
use crate::digest::Digest;
use crate::image::go::GoError;
use crate::ops::index::{IndexError, IndexedLayer};
use crate::store::StoreError;

/// Why an image could not be converted. The destination's tag is what it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    #[error("cannot find the image")]
    Find(#[source] StoreError),
    #[error("cannot read {what} {digest}")]
    Document { what: &'static str, digest: Digest, source: StoreError },
    #[error("{what} {digest} has {found} bytes where its descriptor says {expected}")]
    Size { what: &'static str, digest: Digest, expected: u64, found: u64 },
    #[error("{digest} cannot be converted")]
    Unsound { digest: Digest, source: GoError },
    #[error("{digest} is not an image")]
    NotAnImage { digest: Digest },
    #[error("image index {digest} lists {count} manifests, and at most {MAX_MANIFESTS} are converted")]
    TooMany { digest: Digest, count: usize },
    #[error("image index {digest} is nested more than {limit} deep")]
    TooDeep { digest: Digest, limit: usize },
    #[error("the manifests of image index {digest} together have more than {MAX_DOCUMENTS} bytes")]
    TooLarge { digest: Digest },
    #[error("image index {digest} lists no manifest that is there")]
    Empty { digest: Digest },
    #[error("{digest} holds no image of a known platform")]
    NoImage { digest: Digest },
    #[error("the image has no manifest for {wanted}; it has {available}")]
    NoPlatform { wanted: String, available: String },
    #[error("no layer of the image can be indexed, so there is nothing to convert")]
    NothingToIndex { layers: Vec<IndexedLayer> },
    #[error("the time was up before all layers were indexed; layers left: {left}")]
    OutOfTime { left: usize },
    #[error("the destination is the tag of the image itself, {digest}, which is left as it is")]
    SourceTag { digest: Digest },
    #[error("the tag names {digest} already, which is not a SOCI-enabled image and is left as it is")]
    Occupied { digest: Digest },
    #[error("the tag {tag} no longer names the image")]
    Moved { tag: String },
    #[error(transparent)]
    Index(Box<IndexError>),
    #[error("cannot read what the destination names now")]
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

impl ConvertError {
    /// What a store did not do, if that is why.
    pub fn store(&self) -> Option<&StoreError> {
        match self {
            ConvertError::Find(source)
            | ConvertError::Destination(source)
            | ConvertError::Document { source, .. }
            | ConvertError::Copy { source, .. }
            | ConvertError::Push { source, .. } => Some(source),
            ConvertError::Index(error) => error.store(),
            _ => None,
        }
    }
}
