//! Replaces registries in builds without the feature `registry`: types without values, so code that
//! matches on a source or a destination is the same in all builds.

use std::ops::Range;

use bytes::Bytes;

use super::Traffic;
use super::blob::{AttachReport, Document, Referrers, Target};
use super::cache::ZtocCache;
use crate::budget::Budget;
use crate::digest::Digest;
use crate::image::Descriptor;

/// Private, so that the compiler does not report code that can never run as unreachable.
#[derive(Debug, Clone, Copy)]
enum Never {}

/// A repository of a registry.
#[derive(Debug, Clone)]
pub struct Repository(Never);

/// Why a registry call failed.
#[derive(Debug, thiserror::Error)]
#[error("this build knows no registries")]
pub struct RegistryError(Never);

/// A blob as a stream.
#[derive(Debug)]
pub struct BlobStream(Never);

/// A blob over several connections.
pub type LayerStream = BlobStream;

/// An upload of a blob to a registry.
#[derive(Debug)]
pub struct Upload(Never);

/// The result of an upload.
#[derive(Debug)]
#[expect(dead_code, reason = "nothing makes one")]
pub(crate) enum UploadOutcome {
    Done,
    Restart(RegistryError),
}

/// A list of names that arrives in pages.
#[derive(Debug)]
pub(crate) struct Names(Never);

/// A page of a list.
pub(crate) struct Page {
    pub names: Vec<String>,
}

impl RegistryError {
    pub(crate) fn is_not_found(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn is_transient(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn is_blob_unknown(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn is_other_content(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn upload_lost(_digest: Digest, _times: u32, source: RegistryError) -> RegistryError {
        source
    }
}

impl BlobStream {
    pub(super) fn received(&self) -> u64 {
        match self.0 {}
    }

    pub(super) fn requests(&self) -> u32 {
        match self.0 {}
    }

    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, RegistryError> {
        match self.0 {}
    }
}

impl Upload {
    pub(super) async fn push(&mut self, _chunk: &[u8]) -> Result<UploadOutcome, RegistryError> {
        match self.0 {}
    }

    pub(super) async fn finish(self) -> Result<UploadOutcome, RegistryError> {
        match self.0 {}
    }
}

impl Names {
    pub(crate) fn is_over(&self) -> bool {
        match self.0 {}
    }

    pub(crate) async fn next_page(&mut self) -> Result<Option<Page>, RegistryError> {
        match self.0 {}
    }
}

impl Repository {
    pub(super) async fn connect(&self) {
        match self.0 {}
    }

    pub(super) async fn locate(&self, _blob: &Descriptor) {
        match self.0 {}
    }

    /// The memory budget for the work on an image.
    pub fn budget(&self) -> &Budget {
        match self.0 {}
    }

    pub(crate) fn with_budget(&self, _budget: Budget) -> Repository {
        match self.0 {}
    }

    pub(super) fn with_documents_in(&self, _cache: &ZtocCache) -> Repository {
        match self.0 {}
    }

    pub(super) fn document_cache(&self) -> Option<&ZtocCache> {
        match self.0 {}
    }

    pub(super) fn traffic(&self) -> Traffic {
        match self.0 {}
    }

    pub(crate) fn outlast_outages(&self) {
        match self.0 {}
    }

    /// The registry as the user named it.
    pub fn registry(&self) -> &str {
        match self.0 {}
    }

    /// The name of the repository without its registry.
    pub fn name(&self) -> &str {
        match self.0 {}
    }

    pub(crate) async fn manifest(&self, _target: &Target) -> Result<Document, RegistryError> {
        match self.0 {}
    }

    pub(super) async fn push_manifest(
        &self,
        _target: &Target,
        _media_type: &str,
        _bytes: Bytes,
    ) -> Result<(), RegistryError> {
        match self.0 {}
    }

    pub(super) async fn layer(&self, _blob: &Descriptor, _anew: bool) -> Result<LayerStream, RegistryError> {
        match self.0 {}
    }

    pub(super) fn sends_parts(&self) -> bool {
        match self.0 {}
    }

    pub(super) async fn blob_part(
        &self,
        _blob: &Descriptor,
        _range: Range<u64>,
        _anew: bool,
    ) -> Result<BlobStream, RegistryError> {
        match self.0 {}
    }

    pub(super) async fn blob_bytes(&self, _blob: &Descriptor, _limit: u64) -> Result<Bytes, RegistryError> {
        match self.0 {}
    }

    pub(super) async fn blob_exists(&self, _digest: &Digest, _size: Option<u64>) -> Result<bool, RegistryError> {
        match self.0 {}
    }

    pub(super) async fn push_blob(&self, _blob: &Descriptor, _content: Bytes) -> Result<bool, RegistryError> {
        match self.0 {}
    }

    pub(super) async fn push_blob_unchecked(&self, _blob: &Descriptor, _content: Bytes) -> Result<(), RegistryError> {
        match self.0 {}
    }

    pub(super) async fn is_there(&self, _blob: &Descriptor) -> Result<bool, RegistryError> {
        match self.0 {}
    }

    pub(super) async fn mount_blob(&self, _digest: &Digest, _from: &Repository) -> Result<bool, RegistryError> {
        match self.0 {}
    }

    pub(super) async fn upload(&self, _blob: &Descriptor, _small: bool) -> Result<Upload, RegistryError> {
        match self.0 {}
    }

    pub(super) async fn referrers(
        &self,
        _subject: &Digest,
        _artifact_type: Option<&str>,
    ) -> Result<Referrers, RegistryError> {
        match self.0 {}
    }

    pub(super) async fn attach(
        &self,
        _index: &Descriptor,
        _manifest: Bytes,
        _subject: &Descriptor,
        _replaces: &[Digest],
    ) -> Result<AttachReport, RegistryError> {
        match self.0 {}
    }

    pub(crate) async fn detach(
        &self,
        _subject: &Digest,
        _referrers: &[Digest],
    ) -> Result<Vec<Result<(), RegistryError>>, RegistryError> {
        match self.0 {}
    }

    pub(crate) async fn listed_under_tag(&self, _subject: &Digest) -> Result<Vec<Descriptor>, RegistryError> {
        match self.0 {}
    }

    pub(crate) async fn unlist(&self, _subject: &Digest, _referrers: &[Digest]) -> Result<(), RegistryError> {
        match self.0 {}
    }

    pub(crate) async fn tags(&self, _after: Option<&str>) -> Result<Names, RegistryError> {
        match self.0 {}
    }
}
