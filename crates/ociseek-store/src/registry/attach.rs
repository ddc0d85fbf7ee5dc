//! Attaches a manifest to another as a referrer: pushes it and makes sure that it is listed.

use bytes::Bytes;

use super::client::Repository;
use super::error::RegistryError;
use crate::blob::{AttachMethod, AttachReport, Target};
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;

impl Repository {
    /// Pushes `manifest`, whose descriptor is `index` and which names `subject`, and makes it a
    /// referrer that replaces `replaces`. Those are then deleted, if the registry allows it. All
    /// blobs that the manifest names must exist. The caller must have read each of `replaces`,
    /// because a list of referrers can name any manifest of the repository.
    ///
    /// `index` has the artifact type and annotations for the list of the tag schema.
    ///
    /// # Errors
    /// [`RegistryError::is_blob_unknown`] if a blob is missing; [`RegistryError::FallbackTag`] if
    /// the manifest was pushed but cannot be listed; other errors of the registry. A replaced
    /// manifest that cannot be deleted is not an error.
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
        let response = self.put_new_manifest(&target, &index.media_type, manifest.clone()).await?;
        let linked = response.is_some_and(|response| {
            response.text("oci-subject").and_then(|subject| subject.trim().parse().ok()) == Some(subject.digest)
        });
        let attached = match self.api_lists(index, &subject.digest, linked).await {
            true => AttachMethod::ReferrersApi,
            false => AttachMethod::TagSchema(self.list_under_tag(index, &manifest, subject, &replaces).await?),
        };

        let mut not_deleted = Vec::new();
        for digest in replaces {
            if self.delete_manifest(&digest).await.is_err() {
                not_deleted.push(digest);
            }
        }
        Ok(AttachReport { attached, not_deleted })
    }

    /// Removes manifests from the list of `subject`'s referrers under the fallback tag, if there is
    /// one, and then deletes them. In this order, no deleted manifest is ever listed. Returns a
    /// result for each, in order. Each must be a referrer of `subject` that was read before: on
    /// most registries, deleting a manifest also deletes all its tags.
    ///
    /// # Errors
    /// If the list cannot be changed. Then nothing is deleted.
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

    /// The referrers of `subject` that are listed under the fallback tag, whatever the registry's
    /// own list has.
    ///
    /// # Errors
    /// If the list cannot be read. A missing list is not an error.
    pub async fn listed_under_tag(&self, subject: &Digest) -> Result<Vec<Descriptor>, RegistryError> {
        self.tagged_referrers(subject).await
    }

    /// Removes manifests from the list under the fallback tag. Nothing is deleted.
    ///
    /// # Errors
    /// If the list cannot be changed.
    pub async fn unlist(&self, subject: &Digest, referrers: &[Digest]) -> Result<(), RegistryError> {
        self.unlist_under_tag(subject, referrers).await
    }

    /// Whether the registry lists the referrer itself. One that did not send `OCI-Subject` may do
    /// so anyway, and one that did may have no API (Amazon ECR in 2024, sigstore/sigstore-js#1183).
    /// One that has the API may list the referrer a little later. In doubt the answer is no: then
    /// the tag schema is used as well, which does no harm.
    async fn api_lists(&self, index: &Descriptor, subject: &Digest, linked: bool) -> bool {
        if linked && self.registry.referrers.is_known() {
            return true;
        }
        match self.api_referrers(subject, index.artifact_type.as_deref(), &mut self.budget.open()).await {
            Ok(Some(listed)) => linked || listed.iter().any(|found| found.digest == index.digest),
            Ok(None) => false,
            // A refusal may mean that the path is unknown.
            Err(error) => linked && !error.is_refusal(),
        }
    }
}
