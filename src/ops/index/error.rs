//! Why an image could not be indexed.

use crate::digest::Digest;
use crate::image::ManifestError;
use crate::image::config::ConfigError;
use crate::layer::LayerError;
use crate::store::StoreError;

/// Why an image could not be indexed. Nothing was attached for it, unless [`IndexError::Attach`] says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error("cannot find the image")]
    Find(#[source] StoreError),
    #[error("cannot read {what} {digest}")]
    Document { what: &'static str, digest: Digest, source: StoreError },
    #[error("{digest} cannot be indexed")]
    NotIndexable { digest: Digest, source: ManifestError },
    #[error("{what} {digest} has {found} bytes where its descriptor says {expected}")]
    Size { what: &'static str, digest: Digest, expected: u64, found: u64 },
    #[error("the platform of the image cannot be told from its config {digest}")]
    Config { digest: Digest, source: ConfigError },
    #[error("{0} is listed as an image manifest, but is an image index")]
    NotAManifest(Digest),
    #[error("image index {digest} is nested more than {limit} deep")]
    TooDeep { digest: Digest, limit: usize },
    #[error("image index {digest} holds more than {limit} manifests, with those of the indexes in it")]
    TooMany { digest: Digest, limit: usize },
    #[error("image index {0} lists no image")]
    NoImage(Digest),
    #[error("the image has no manifest for {wanted}; it has {available}")]
    NoPlatform { wanted: String, available: String },
    #[error("cannot list the referrers of {subject}")]
    Referrers { subject: Digest, source: StoreError },
    #[error("layer {layer} is broken")]
    BrokenLayer { layer: Digest, source: LayerError },
    #[error("cannot read layer {layer}, {read} bytes were read of it")]
    ReadLayer { layer: Digest, read: u64, source: StoreError },
    #[error("the thread that indexes layer {layer} ended early")]
    LayerThread { layer: Digest },
    #[error("cannot write {what} {digest}")]
    Push { what: &'static str, digest: Digest, source: StoreError },
    #[error("cannot attach index {index}")]
    Attach { index: Digest, source: StoreError },
}
