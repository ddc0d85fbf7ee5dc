//! Making a manifest a referrer of another: push it, and see to it that it is listed.

use bytes::Bytes;

use super::client::Repository;
use super::error::RegistryError;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::store::blob::{Attached, Target};

/// What became of [`Repository::attach`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachReport {
    /// Where it is listed now.
    pub attached: Attached,
    /// Replaced manifests that the registry would not delete. With the referrers API they are still listed; by the tag
    /// schema they are not.
    pub not_deleted: Vec<Digest>,
}

impl Repository {
    /// Pushes `manifest`, of which `index` is the descriptor and which names `subject`, and makes
    /// it a referrer in the place of `replaces`, which are then deleted as far as the registry
    /// allows it. All blobs that it names must be there. The caller has read each of `replaces`: a
    /// list of referrers can name any manifest of the repository.
    ///
    /// `index` carries artifact type and annotations for the list of the tag schema.
    ///
    /// # Errors
    /// [`RegistryError::is_blob_unknown`] when the registry misses a blob;
    /// [`RegistryError::FallbackTag`] when the manifest was pushed but cannot be listed; whatever
    /// else the registry answers. A replaced manifest that cannot be deleted is no error.
    pub async fn attach(
        &self,
        index: &Descriptor,
        manifest: Bytes,
        subject: &Descriptor,
        replaces: &[Digest],
    ) -> Result<AttachReport, RegistryError> {
        let found = Digest::of(index.digest.algorithm(), &manifest);
        if found != index.digest || manifest.len() as u64 != index.size {
            let found = manifest.len() as u64;
            return Err(RegistryError::Content { digest: index.digest, expected: index.size, found });
        }
        let replaces: Vec<Digest> =
            replaces.iter().copied().filter(|digest| *digest != index.digest && *digest != subject.digest).collect();

        let target = Target::Digest(index.digest);
        let response = self.put_manifest(&target, &index.media_type, manifest, None).await?;
        let linked =
            response.text("oci-subject").and_then(|subject| subject.trim().parse().ok()) == Some(subject.digest);
        let attached = match linked || self.api_lists(index, &subject.digest).await {
            true => Attached::ReferrersApi,
            false => Attached::TagSchema(self.list_under_tag(index, subject, &replaces).await?),
        };

        let mut not_deleted = Vec::new();
        for digest in replaces {
            if self.delete_manifest(&digest).await.is_err() {
                not_deleted.push(digest);
            }
        }
        Ok(AttachReport { attached, not_deleted })
    }

    /// Takes manifests off the list of `subject`'s referrers, if there is one under the fallback
    /// tag, and then deletes them, so that none is listed and not there. Gives what became of each,
    /// in their order. None of them may be anything but a referrer of `subject` that was read: on
    /// most registries a deleted manifest takes all of its tags with it.
    ///
    /// # Errors
    /// When the list cannot be changed; then nothing is deleted.
    pub async fn detach(
        &self,
        subject: &Digest,
        referrers: &[Digest],
    ) -> Result<Vec<Result<(), RegistryError>>, RegistryError> {
        self.unlist_under_tag(subject, referrers).await?;
        let mut deleted = Vec::with_capacity(referrers.len());
        for digest in referrers {
            deleted.push(self.delete_manifest(digest).await);
        }
        Ok(deleted)
    }

    /// The referrers of `subject` that are listed under the fallback tag, whatever the registry lists itself.
    ///
    /// # Errors
    /// When the list cannot be read. That there is none is no error.
    pub async fn listed_under_tag(&self, subject: &Digest) -> Result<Vec<Descriptor>, RegistryError> {
        self.tagged_referrers(subject).await
    }

    /// Takes manifests off the list under the fallback tag. Nothing is deleted.
    ///
    /// # Errors
    /// When the list cannot be changed.
    pub async fn unlist(&self, subject: &Digest, referrers: &[Digest]) -> Result<(), RegistryError> {
        self.unlist_under_tag(subject, referrers).await
    }

    /// Whether a registry that did not say so (`OCI-Subject`) lists the referrer all the same. Any
    /// doubt is a no: then the tag schema is used too, which does no harm.
    async fn api_lists(&self, index: &Descriptor, subject: &Digest) -> bool {
        let listed = self.api_referrers(subject, index.artifact_type.as_deref(), &mut self.budget.open()).await;
        matches!(listed, Ok(Some(listed)) if listed.iter().any(|found| found.digest == index.digest))
    }
}
