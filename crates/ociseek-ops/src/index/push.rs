//! Pushes an index of either kind: blobs first, the manifest last.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::assemble::IndexedZtoc;
use super::error::IndexError;
use super::existing_manifest::BlobCheck;
use super::options::Existing;
use super::prefetch::Artifact;
use crate::damage::Damage;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::{CONFIG, EncodedIndex, ZTOC};
use ociseek_store::blob::AttachReport;
use ociseek_store::{Destination, StoreError};

/// An index that is not attached, with the blobs that it lists.
pub(super) struct NewIndex {
    pub descriptor: Descriptor,
    manifest: Bytes,
    pub blobs: Vec<NewBlob>,
}

/// A blob of an index, and what it is.
pub(crate) struct NewBlob {
    pub what: &'static str,
    pub descriptor: Descriptor,
    pub content: Bytes,
}

impl NewIndex {
    pub(super) fn new(index: EncodedIndex, blobs: Vec<NewBlob>) -> NewIndex {
        NewIndex { descriptor: index.descriptor, manifest: index.bytes.into(), blobs }
    }

    /// Pushes the blobs, and finally the manifest. Also returns the number of bytes written.
    pub(super) async fn push(
        &self,
        destination: &Destination,
        subject: &Descriptor,
        replaces: &[Digest],
        write: WriteBlob,
    ) -> Result<(AttachReport, u64), IndexError> {
        let mut written = self.push_blobs(destination, write).await?;
        let attached = match self.push_manifest(destination, subject, replaces).await {
            // The registry claimed to have a blob that it does not have, so upload it now.
            Err(error) if error.is_blob_unknown() => {
                written += self.push_blobs(destination, WriteBlob::Always).await?;
                self.push_manifest(destination, subject, replaces).await
            }
            result => result,
        };
        let report = attached.map_err(|source| IndexError::Attach { index: self.descriptor.digest, source })?;
        Ok((report, written + self.manifest.len() as u64))
    }

    async fn push_blobs(&self, destination: &Destination, write: WriteBlob) -> Result<u64, IndexError> {
        let mut written = 0;
        let mut pushed = BTreeSet::new();
        for blob in &self.blobs {
            if pushed.insert(blob.descriptor.digest) {
                written += push_blob(destination, blob, write).await?;
            }
        }
        Ok(written)
    }

    async fn push_manifest(
        &self,
        destination: &Destination,
        subject: &Descriptor,
        replaces: &[Digest],
    ) -> Result<AttachReport, StoreError> {
        destination.attach(&self.descriptor, self.manifest.clone(), subject, replaces).await
    }
}

impl NewBlob {
    /// The config of an index of this type.
    pub(super) fn config(media_type: &str) -> NewBlob {
        NewBlob { what: "config", descriptor: Descriptor::of(media_type, CONFIG), content: Bytes::from_static(CONFIG) }
    }
}

/// The blobs of a SOCI index, whose config has the type `config`.
pub(crate) fn soci_blobs(ztocs: &[IndexedZtoc<'_>], prefetch: &[Artifact], config: &str) -> Vec<NewBlob> {
    let ztocs = ztocs.iter().map(|ztoc| {
        let content = ztoc.content();
        NewBlob { what: "ztoc", descriptor: Descriptor::new(ZTOC, ztoc.digest(), content.len() as u64), content }
    });
    let prefetch = prefetch.iter().map(|Artifact { descriptor, bytes }| NewBlob {
        what: "prefetch artifact",
        descriptor: descriptor.clone(),
        content: bytes.clone(),
    });
    ztocs.chain(prefetch).chain([NewBlob::config(config)]).collect()
}

/// When a blob is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteBlob {
    /// If the destination does not say that it has it.
    IfMissing,
    /// Also if the destination has other bytes in its place.
    IfDamaged,
    /// In any case, because the destination claimed to have it, and does not.
    Always,
}

impl WriteBlob {
    pub(super) fn of(existing: Existing) -> WriteBlob {
        match BlobCheck::of(existing) {
            BlobCheck::Size => WriteBlob::IfMissing,
            BlobCheck::Content => WriteBlob::IfDamaged,
        }
    }
}

/// Writes a blob, if `write` says so. Returns the number of bytes written.
pub(crate) async fn push_blob(destination: &Destination, blob: &NewBlob, write: WriteBlob) -> Result<u64, IndexError> {
    let NewBlob { what, descriptor: blob, content } = blob;
    let (what, digest) = (*what, blob.digest);
    let failed = |source| IndexError::Push { what, digest, source };
    let damage = match write {
        WriteBlob::IfDamaged => match BlobCheck::Content.damage(destination, blob).await.map_err(failed)? {
            None => return Ok(0),
            damage => damage,
        },
        WriteBlob::IfMissing | WriteBlob::Always => None,
    };
    let unchecked = write != WriteBlob::IfMissing;
    let pushed = destination.push_blob(blob, content.clone(), unchecked).await.map_err(failed)?;
    // Some registries keep the bytes that they have for a digest.
    if damage == Some(Damage::Damaged) && BlobCheck::Content.damage(destination, blob).await.map_err(failed)?.is_some()
    {
        return Err(IndexError::StaysDamaged { what, digest });
    }
    Ok(if pushed { blob.size } else { 0 })
}
