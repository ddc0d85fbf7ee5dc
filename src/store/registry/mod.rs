//! Registries: a thin client of the OCI distribution spec 1.1.

use bytes::Bytes;

use super::blob::{Attached, Document, Referrers, Target};
use crate::digest::Digest;
use crate::image::Descriptor;

mod config;
mod error;

pub use config::{ClientConfig, CredentialSource, Limits};
pub use error::RegistryError;

/// Speaks to registries; cheap to clone.
#[derive(Clone)]
pub struct Client {}

impl Client {
    pub fn new(_config: ClientConfig) -> Result<Client, RegistryError> {
        unimplemented!("being written")
    }

    /// The repository `name` (of the distribution grammar) of `registry` (`HOST` or `HOST:PORT`; `docker.io` works).
    pub fn repository(&self, _registry: &str, _name: &str) -> Result<Repository, RegistryError> {
        unimplemented!("being written")
    }
}

/// One repository of a registry; cheap to clone.
#[derive(Clone)]
pub struct Repository {}

/// What became of [`Repository::attach`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachReport {
    pub attached: Attached,
    /// Replaced indexes that the registry would not delete.
    pub not_deleted: Vec<Digest>,
}

/// A blob on its way.
pub struct BlobStream {}

impl BlobStream {
    /// The next bytes; `None` when all of the blob was there.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RegistryError> {
        unimplemented!("being written")
    }
}

impl Repository {
    pub async fn manifest(&self, _target: &Target) -> Result<Document, RegistryError> {
        unimplemented!("being written")
    }

    pub async fn blob(&self, _blob: &Descriptor) -> Result<BlobStream, RegistryError> {
        unimplemented!("being written")
    }

    pub async fn blob_bytes(&self, _blob: &Descriptor, _limit: u64) -> Result<Bytes, RegistryError> {
        unimplemented!("being written")
    }

    pub async fn blob_exists(&self, _digest: &Digest) -> Result<bool, RegistryError> {
        unimplemented!("being written")
    }

    /// Uploads a blob unless it is there. True: it was uploaded.
    pub async fn push_blob(&self, _blob: &Descriptor, _content: Bytes) -> Result<bool, RegistryError> {
        unimplemented!("being written")
    }

    /// Uploads a blob without asking whether it is there.
    pub async fn push_blob_unchecked(&self, _blob: &Descriptor, _content: Bytes) -> Result<(), RegistryError> {
        unimplemented!("being written")
    }

    pub async fn referrers(&self, _subject: &Digest, _artifact_type: Option<&str>) -> Result<Referrers, RegistryError> {
        unimplemented!("being written")
    }

    /// Pushes an index manifest of which all blobs are there, and makes it a referrer of `subject` in the place of `replaces`.
    /// `index` carries the artifact type and annotations for the entry in the fallback tag's index.
    pub async fn attach(
        &self,
        _index: &Descriptor,
        _manifest: Bytes,
        _subject: &Descriptor,
        _replaces: &[Digest],
    ) -> Result<AttachReport, RegistryError> {
        unimplemented!("being written")
    }
}
