//! OCI image layouts (image-spec image-layout.md): a directory of blobs and its index.json.

use std::path::Path;

use bytes::Bytes;

use super::blob::{Attached, Document, Referrers, Target};
use crate::digest::Digest;
use crate::image::{Descriptor, Select};

/// Why a layout or archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("being written")]
    BeingWritten,
}

/// The bytes of one blob, exactly as many as its descriptor says. Their digest is not checked.
pub struct BlobReader {}

impl std::io::Read for BlobReader {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        unimplemented!("being written")
    }
}

/// An image layout in a directory. All calls block.
#[derive(Debug, Clone)]
pub struct Layout {}

impl Layout {
    pub fn open(_dir: &Path) -> Result<Layout, LayoutError> {
        unimplemented!("being written")
    }
    pub fn open_or_create(_dir: &Path) -> Result<Layout, LayoutError> {
        unimplemented!("being written")
    }
    /// The entry of index.json that `select` names; entries that are no images (referrers) are passed over.
    pub fn find(&self, _select: &Select) -> Result<Descriptor, LayoutError> {
        unimplemented!("being written")
    }
    pub fn manifest(&self, _target: &Target) -> Result<Document, LayoutError> {
        unimplemented!("being written")
    }
    pub fn blob(&self, _blob: &Descriptor) -> Result<BlobReader, LayoutError> {
        unimplemented!("being written")
    }
    /// A small blob whole, its digest checked; more than `limit` bytes are refused.
    pub fn blob_bytes(&self, _blob: &Descriptor, _limit: u64) -> Result<Bytes, LayoutError> {
        unimplemented!("being written")
    }
    pub fn blob_exists(&self, _digest: &Digest) -> Result<bool, LayoutError> {
        unimplemented!("being written")
    }
    pub fn referrers(&self, _subject: &Digest, _artifact_type: Option<&str>) -> Result<Referrers, LayoutError> {
        unimplemented!("being written")
    }
    /// True: it was not there before.
    pub fn write_blob(&self, _blob: &Descriptor, _content: &[u8]) -> Result<bool, LayoutError> {
        unimplemented!("being written")
    }
    pub fn attach(
        &self,
        _index: &Descriptor,
        _manifest: &[u8],
        _subject: &Descriptor,
        _replaces: &[Digest],
    ) -> Result<Attached, LayoutError> {
        unimplemented!("being written")
    }
}
