//! OCI archives: the tar of an image layout, read in place.

use std::path::Path;

use bytes::Bytes;

use super::blob::{Document, Referrers, Target};
use super::layout::{BlobReader, LayoutError};
use crate::digest::Digest;
use crate::image::{Descriptor, Select};

/// An image layout in a tar file. All calls block.
#[derive(Debug, Clone)]
pub struct Archive {}

impl Archive {
    pub fn open(_file: &Path) -> Result<Archive, LayoutError> {
        unimplemented!("being written")
    }
    pub fn find(&self, _select: &Select) -> Result<Descriptor, LayoutError> {
        unimplemented!("being written")
    }
    pub fn manifest(&self, _target: &Target) -> Result<Document, LayoutError> {
        unimplemented!("being written")
    }
    pub fn blob(&self, _blob: &Descriptor) -> Result<BlobReader, LayoutError> {
        unimplemented!("being written")
    }
    pub fn blob_bytes(&self, _blob: &Descriptor, _limit: u64) -> Result<Bytes, LayoutError> {
        unimplemented!("being written")
    }
    pub fn blob_exists(&self, _digest: &Digest) -> Result<bool, LayoutError> {
        unimplemented!("being written")
    }
    pub fn referrers(&self, _subject: &Digest, _artifact_type: Option<&str>) -> Result<Referrers, LayoutError> {
        unimplemented!("being written")
    }
}
