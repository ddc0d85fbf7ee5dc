//! The places to write indexes to.

use std::sync::Arc;

use bytes::Bytes;

use super::blob::{AttachReport, Document, Referrers, Target};
use super::layout::Layout;
use super::registry::Repository;
use super::{Source, StoreError, local};
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;

/// A place to write an index to. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Destination {
    /// A repository of a registry.
    Registry(Repository),
    /// A directory in the format of the OCI image layout.
    Layout(Arc<Layout>),
}

impl Destination {
    /// The referrers of `subject` with this `artifact_type`, in the order of the destination.
    ///
    /// # Errors
    /// If they cannot be listed. An empty list is not an error.
    pub async fn referrers(
        &self,
        subject: &Digest,
        artifact_type: &'static str,
    ) -> Result<Referrers, StoreError> {
        self.as_source().referrers(subject, artifact_type).await
    }

    /// A manifest. Its bytes match its digest.
    ///
    /// # Errors
    /// If it does not exist, cannot be fetched, or does not match its digest.
    pub async fn manifest(&self, digest: &Digest) -> Result<Document, StoreError> {
        let source = match self {
            // It may have been deleted since it was read.
            Destination::Registry(repository) => Source::Registry(repository.knowing_nothing()),
            Destination::Layout(layout) => Source::Layout(Arc::clone(layout)),
        };
        source.manifest(&Target::Digest(*digest)).await
    }

    /// The same store as a source.
    pub fn as_source(&self) -> Source {
        match self {
            Destination::Registry(repository) => Source::Registry(repository.clone()),
            Destination::Layout(layout) => Source::Layout(Arc::clone(layout)),
        }
    }

    /// Whether this is the store that `source` reads.
    pub fn is(&self, source: &Source) -> bool {
        match (self, source) {
            (Destination::Registry(here), Source::Registry(other)) => {
                here.registry() == other.registry() && here.name() == other.name()
            }
            (Destination::Layout(here), Source::Layout(other)) => here.is_same(other),
            _ => false,
        }
    }

    /// Whether a blob exists, with its size as far as the destination states it. It is not read.
    ///
    /// # Errors
    /// If the destination gives no answer.
    pub async fn blob_exists(&self, blob: &Descriptor) -> Result<bool, StoreError> {
        let Descriptor { digest, size, .. } = *blob;
        match self {
            Destination::Registry(repository) => {
                Ok(repository.blob_exists(&digest, Some(size)).await?)
            }
            Destination::Layout(layout) => {
                local(layout, move |layout| layout.blob_exists(&digest, Some(size))).await
            }
        }
    }

    /// Writes a blob unless it exists. With `unchecked`, writes it even if the destination claims
    /// to have it. Returns whether it was written.
    ///
    /// # Errors
    /// If the destination refuses it.
    pub async fn push_blob(
        &self,
        blob: &Descriptor,
        content: Bytes,
        unchecked: bool,
    ) -> Result<bool, StoreError> {
        let blob = blob.clone();
        match self {
            Destination::Registry(repository) if unchecked => {
                repository.push_blob_unchecked(&blob, content).await?;
                Ok(true)
            }
            Destination::Registry(repository) => Ok(repository.push_blob(&blob, content).await?),
            Destination::Layout(layout) => {
                local(layout, move |layout| layout.write_blob(&blob, &content)).await
            }
        }
    }

    /// Writes a manifest or index whose parts all exist. A registry gives it the `tag` at the same
    /// time. A layout stores it; naming it in index.json gives it the tag.
    ///
    /// # Errors
    /// If the destination refuses it.
    pub async fn push_manifest(
        &self,
        manifest: &Descriptor,
        bytes: Bytes,
        tag: Option<&str>,
    ) -> Result<(), StoreError> {
        let manifest = manifest.clone();
        match self {
            Destination::Registry(repository) => {
                let target =
                    tag.map_or(Target::Digest(manifest.digest), |tag| Target::Tag(tag.to_owned()));
                Ok(repository.push_manifest(&target, &manifest.media_type, bytes).await?)
            }
            Destination::Layout(layout) => {
                local(layout, move |layout| layout.write_blob(&manifest, &bytes)).await.map(drop)
            }
        }
    }

    /// Gives a tag to an existing manifest.
    ///
    /// # Errors
    /// If the destination refuses it.
    pub async fn tag_manifest(
        &self,
        manifest: &Descriptor,
        bytes: Bytes,
        tag: &str,
    ) -> Result<(), StoreError> {
        match self {
            Destination::Registry(_) => self.push_manifest(manifest, bytes, Some(tag)).await,
            Destination::Layout(layout) => {
                let manifest = manifest.clone();
                let tag = tag.to_owned();
                local(layout, move |layout| layout.name(&manifest, Some(&tag), None)).await
            }
        }
    }

    /// Removes manifests from the list of `subject`'s referrers, and deletes them if the store does
    /// that: in a layout their blobs stay. Returns a result for each, in order. Each must be a
    /// referrer of `subject` that was read before.
    ///
    /// # Errors
    /// If the list cannot be changed. Then nothing is deleted.
    pub async fn detach(
        &self,
        subject: &Digest,
        referrers: &[Digest],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        match self {
            Destination::Registry(repository) => {
                let deleted = repository.detach(subject, referrers).await?;
                Ok(deleted.into_iter().map(|result| result.map_err(StoreError::from)).collect())
            }
            Destination::Layout(layout) => {
                let subject = *subject;
                let gone = referrers.to_vec();
                local(layout, move |layout| layout.detach(&subject, &gone)).await?;
                Ok(referrers.iter().map(|_| Ok(())).collect())
            }
        }
    }

    /// Writes an index manifest, whose blobs all exist, as a referrer of `subject`, replacing
    /// `replaces`.
    ///
    /// # Errors
    /// If the destination refuses it. [`StoreError::is_blob_unknown`] tells whether a blob was
    /// missing.
    pub async fn attach(
        &self,
        index: &Descriptor,
        manifest: Bytes,
        subject: &Descriptor,
        replaces: &[Digest],
    ) -> Result<AttachReport, StoreError> {
        match self {
            Destination::Registry(repository) => {
                Ok(repository.attach(index, manifest, subject, replaces).await?)
            }
            Destination::Layout(layout) => {
                let index = index.clone();
                let replaces = replaces.to_vec();
                let attached =
                    local(layout, move |l| l.attach(&index, &manifest, &replaces)).await?;
                Ok(AttachReport { attached, not_deleted: Vec::new() })
            }
        }
    }
}
