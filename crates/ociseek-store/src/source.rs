//! The places to read images from. Documents that are named by their digest come from the local
//! cache of a source first, and so does what its registry said before.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::task::spawn_blocking;

use super::archive::Archive;
use super::blob::{Document, Referrers, Target};
use super::cache::ZtocCache;
use super::layout::Layout;
use super::recall::Recall;
use super::registry::Repository;
use super::stream::{Blob, Part};
use super::{DOCUMENT_COST, StoreError, Traffic, charged, local};
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;

/// A manifest of a registry, unless it is known.
async fn fetched(repository: &Repository, target: Target) -> Result<Document, StoreError> {
    let mut _turn = None;
    if let (Some(known), Target::Digest(digest)) = (repository.known(), &target) {
        _turn = Some(known.turn(digest).await);
        if let Some(document) = known.get(digest) {
            return Ok(document);
        }
    }
    let document = match target {
        Target::Digest(digest) => {
            let ask = |repository: Repository| async move {
                repository.manifest(&Target::Digest(digest)).await
            };
            repository.anywhere(false, ask).await?
        }
        Target::Tag(_) => repository.manifest(&target).await?,
    };
    if let Some(known) = repository.known() {
        known.add(&document);
    }
    Ok(document)
}

/// A place to read an image from. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Source {
    /// A repository of a registry.
    Registry(Repository),
    /// A directory in the format of the OCI image layout.
    Layout(Arc<Layout>),
    /// A file: the tar of a layout, or the output of `docker save`.
    Archive(Arc<Archive>),
}

impl Source {
    /// The traffic of the registry's client so far, including other repositories. Local stores have
    /// none.
    pub fn traffic(&self) -> Traffic {
        match self {
            Source::Registry(repository) => repository.traffic(),
            Source::Layout(_) | Source::Archive(_) => Traffic::default(),
        }
    }

    /// The memory budget for the work on the image. Clones of a source share it.
    pub fn budget(&self) -> &Budget {
        match self {
            Source::Registry(repository) => repository.budget(),
            Source::Layout(layout) => layout.budget(),
            Source::Archive(archive) => archive.budget(),
        }
    }

    /// The same place with another budget.
    #[must_use]
    pub fn with_budget(&self, budget: Budget) -> Source {
        match self {
            Source::Registry(repository) => Source::Registry(repository.with_budget(budget)),
            Source::Layout(layout) => {
                Source::Layout(Arc::new((**layout).clone().with_budget(budget)))
            }
            Source::Archive(archive) => {
                Source::Archive(Arc::new((**archive).clone().with_budget(budget)))
            }
        }
    }

    /// A manifest or image index. Its bytes match its digest. They stay charged to the budget,
    /// together with their parsed form.
    ///
    /// # Errors
    /// If it does not exist, cannot be fetched, does not match its digest, or does not fit into the
    /// budget.
    pub async fn manifest(&self, target: &Target) -> Result<Document, StoreError> {
        let target = target.clone();
        let document = match self {
            Source::Registry(repository) => fetched(repository, target).await?,
            Source::Layout(layout) => local(layout, move |layout| layout.manifest(&target)).await?,
            Source::Archive(archive) => {
                local(archive, move |archive| archive.manifest(&target)).await?
            }
        };
        self.charge_document(&document)?;
        Ok(document)
    }

    /// The digest of what a tag names. A registry is asked by HEAD, which does not count as a pull;
    /// if it does not answer that with a digest, the manifest is fetched.
    ///
    /// # Errors
    /// As [`Source::manifest`].
    pub async fn tag_digest(&self, tag: &str) -> Result<Digest, StoreError> {
        if let Source::Registry(repository) = self
            && let Some(digest) = repository.stated_digest(tag).await
        {
            return Ok(digest);
        }
        Ok(self.manifest(&Target::Tag(tag.to_owned())).await?.digest)
    }

    /// A blob of at most `limit` bytes with a verified digest. It stays charged to the budget for
    /// as long as its bytes exist.
    ///
    /// # Errors
    /// If it does not exist, cannot be fetched, is too large, does not match its digest, or does
    /// not fit into the budget.
    pub async fn blob_bytes(&self, blob: &Descriptor, limit: u64) -> Result<Bytes, StoreError> {
        let Descriptor { digest, size, .. } = *blob;
        // A blob that exceeds the limit is refused for that reason, without charging memory.
        let charge =
            self.budget().charge(size.min(limit), || format!("blob {digest} of {size} bytes"))?;
        let blob = blob.clone();
        let content = match self {
            Source::Registry(repository) => {
                let blob = &blob;
                let ask = |repository: Repository| async move {
                    repository.blob_bytes(blob, limit).await
                };
                repository.anywhere(false, ask).await?
            }
            Source::Layout(layout) => {
                local(layout, move |layout| layout.blob_bytes(&blob, limit)).await?
            }
            Source::Archive(archive) => {
                local(archive, move |archive| archive.blob_bytes(&blob, limit)).await?
            }
        };
        Ok(charged(content, charge))
    }

    /// Whether bytes come over a network, so that damaged ones may be right when they are read once
    /// more.
    pub fn is_remote(&self) -> bool {
        matches!(self, Source::Registry(_))
    }

    /// Whether parts of blobs can be had, as far as is known.
    pub fn sends_parts(&self) -> bool {
        match self {
            Source::Registry(repository) => repository.sends_parts(),
            Source::Layout(_) | Source::Archive(_) => true,
        }
    }

    /// A blob as a stream. Its size matches its descriptor; the reader must verify its digest. With
    /// `bypass_caches`, caches on the way must not answer.
    ///
    /// # Errors
    /// If it does not exist or cannot be fetched.
    pub async fn blob(&self, blob: &Descriptor, bypass_caches: bool) -> Result<Blob, StoreError> {
        let digest = blob.digest;
        let wanted = blob.clone();
        let reader = match self {
            Source::Registry(repository) => {
                let wanted = &wanted;
                let ask = |repository: Repository| async move {
                    repository.layer(wanted, bypass_caches).await
                };
                return Ok(Blob::of_registry(repository.anywhere(bypass_caches, ask).await?));
            }
            Source::Layout(layout) => local(layout, move |layout| layout.blob(&wanted)).await?,
            Source::Archive(archive) => {
                local(archive, move |archive| archive.blob(&wanted)).await?
            }
        };
        Ok(Blob::of_reader(digest, reader))
    }

    /// Exactly the bytes of `range` in a blob. The caller must verify their digest, and account for
    /// their memory.
    ///
    /// # Errors
    /// If the range is not within the blob, or cannot be fetched.
    pub async fn blob_range(
        &self,
        blob: &Descriptor,
        range: Range<u64>,
    ) -> Result<Bytes, StoreError> {
        self.blob_range_bypassing(blob, range, false).await
    }

    /// As [`Source::blob_range`]. With `bypass_caches`, caches on the way must not answer.
    pub async fn blob_range_bypassing(
        &self,
        blob: &Descriptor,
        range: Range<u64>,
        bypass_caches: bool,
    ) -> Result<Bytes, StoreError> {
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or_default();
        let mut part = self.blob_part(blob, range, bypass_caches).await?;
        let mut bytes = BytesMut::new();
        while let Some(chunk) = part.next().await? {
            if chunk.len() == length {
                return Ok(chunk);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    }

    /// The bytes of `range` of a blob as a stream, like [`Source::blob_range`]. With
    /// `bypass_caches`, caches on the way must not answer.
    ///
    /// # Errors
    /// If the range is not within the blob, or cannot be fetched.
    pub async fn blob_part(
        &self,
        blob: &Descriptor,
        range: Range<u64>,
        bypass_caches: bool,
    ) -> Result<Part, StoreError> {
        if range.start > range.end || range.end > blob.size {
            return Err(StoreError::Range { digest: blob.digest, range, size: blob.size });
        }
        if range.is_empty() {
            return Ok(Part::of_bytes(None));
        }
        let wanted = blob.clone();
        let bytes = match self {
            Source::Registry(repository) => {
                let wanted = &wanted;
                let ask = |repository: Repository| {
                    let range = range.clone();
                    async move { repository.blob_part(wanted, range, bypass_caches).await }
                };
                return Ok(Part::of_registry(repository.anywhere(bypass_caches, ask).await?));
            }
            Source::Layout(layout) => {
                local(layout, move |layout| layout.blob_range(&wanted, range)).await?
            }
            Source::Archive(archive) => {
                local(archive, move |archive| archive.blob_range(&wanted, range)).await?
            }
        };
        Ok(Part::of_bytes(Some(bytes)))
    }

    /// Opens one more connection to a registry, for the requests to come.
    pub async fn connect(&self) {
        match self {
            Source::Registry(repository) => repository.connect().await,
            Source::Layout(_) | Source::Archive(_) => {}
        }
    }

    /// Finds out from where a registry sends a blob, if it redirects requests for blobs. Otherwise
    /// this never ends, so it must run next to other work.
    pub async fn locate(&self, blob: &Descriptor) {
        match self {
            Source::Registry(repository) => repository.locate(blob).await,
            Source::Layout(_) | Source::Archive(_) => {}
        }
    }

    /// Whether a blob exists. It is not read.
    ///
    /// # Errors
    /// If the store gives no answer.
    pub async fn blob_exists(&self, blob: &Descriptor) -> Result<bool, StoreError> {
        let wanted = blob.clone();
        match self {
            Source::Registry(repository) => {
                Ok(repository.blob_exists(&wanted.digest, None).await?)
            }
            Source::Layout(layout) => {
                local(layout, move |layout| layout.blob_exists(&wanted.digest, None)).await
            }
            Source::Archive(archive) => {
                match local(archive, move |archive| archive.blob(&wanted)).await {
                    Ok(_) => Ok(true),
                    Err(error) if error.is_not_found() => Ok(false),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// All referrers of `subject`, in the order of the store.
    ///
    /// # Errors
    /// If they cannot be listed. An empty list is not an error.
    pub async fn all_referrers(&self, subject: &Digest) -> Result<Referrers, StoreError> {
        let subject = *subject;
        match self {
            Source::Registry(repository) => {
                let ask = |repository: Repository| async move {
                    repository.recalled_referrers(&subject, None).await
                };
                Ok(repository.anywhere(false, ask).await?)
            }
            Source::Layout(layout) => {
                local(layout, move |layout| layout.referrers(&subject, None)).await
            }
            Source::Archive(archive) => {
                local(archive, move |archive| archive.referrers(&subject, None)).await
            }
        }
    }

    /// The referrers of `subject` with one of these artifact types, from a single list, in its
    /// order.
    ///
    /// # Errors
    /// If they cannot be listed. An empty list is not an error.
    pub async fn referrers_of(
        &self,
        subject: &Digest,
        artifact_types: &[&str],
    ) -> Result<Referrers, StoreError> {
        let mut listed = self.all_referrers(subject).await?;
        let is_wanted = |referrer: &Descriptor| {
            referrer.artifact_type.as_deref().is_some_and(|t| artifact_types.contains(&t))
        };
        listed.descriptors.retain(is_wanted);
        Ok(listed)
    }

    /// The referrers of `subject` with this `artifact_type`, in the order of the store.
    ///
    /// # Errors
    /// If they cannot be listed. An empty list is not an error.
    pub async fn referrers(
        &self,
        subject: &Digest,
        artifact_type: &'static str,
    ) -> Result<Referrers, StoreError> {
        let subject = *subject;
        let wanted = Some(artifact_type);
        match self {
            Source::Registry(repository) => {
                let ask = |repository: Repository| async move {
                    repository.recalled_referrers(&subject, wanted).await
                };
                Ok(repository.anywhere(false, ask).await?)
            }
            Source::Layout(layout) => {
                local(layout, move |layout| layout.referrers(&subject, wanted)).await
            }
            Source::Archive(archive) => {
                local(archive, move |archive| archive.referrers(&subject, wanted)).await
            }
        }
    }
}

impl Source {
    /// The same source, with `cache` for the documents of registries.
    #[must_use]
    pub fn with_documents_in(&self, cache: &ZtocCache) -> Source {
        match self {
            Source::Registry(repository) => Source::Registry(repository.with_documents_in(cache)),
            Source::Layout(_) | Source::Archive(_) => self.clone(),
        }
    }

    /// The same source, which does not ask a registry for what `answers` has, and adds what it asks
    /// for. It needs a cache of documents ([`Source::with_documents_in`]).
    #[must_use]
    pub fn recalling(&self, answers: &Recall) -> Source {
        match self {
            Source::Registry(repository) => Source::Registry(repository.recalling(answers)),
            Source::Layout(_) | Source::Archive(_) => self.clone(),
        }
    }

    /// The manifest or image index that the name of an image refers to, like [`Source::manifest`].
    ///
    /// # Errors
    /// As [`Source::manifest`].
    pub async fn root(&self, target: &Target) -> Result<Document, StoreError> {
        let recall = match self {
            Source::Registry(repository) => repository.recall(),
            Source::Layout(_) | Source::Archive(_) => None,
        };
        match (recall, target) {
            (Some(recall), Target::Digest(digest)) if recall.has(digest) => {
                self.document(digest).await
            }
            (Some(recall), target) => {
                let document = self.manifest(target).await?;
                recall.add_manifest(document.digest);
                self.keep(&document.digest, &document.media_type, &document.bytes);
                Ok(document)
            }
            (None, target) => self.manifest(target).await,
        }
    }

    /// Requests the referrers of a digest before they are needed, if the answer will be recalled.
    /// Those of an image index never are.
    pub async fn list_ahead(&self, target: &Target) {
        if let (Source::Registry(repository), Target::Digest(digest)) = (self, target)
            && repository.recall().is_some()
        {
            // If it fails, it is requested again when it is needed.
            let _ = self.all_referrers(digest).await;
        }
    }

    fn document_cache(&self) -> Option<&ZtocCache> {
        match self {
            Source::Registry(repository) => repository.document_cache(),
            Source::Layout(_) | Source::Archive(_) => None,
        }
    }

    /// A manifest or image index that another document names, like [`Source::manifest`]. The
    /// registry is not asked for one that the cache has ([`Source::with_documents_in`]).
    ///
    /// # Errors
    /// As [`Source::manifest`].
    pub async fn document(&self, digest: &Digest) -> Result<Document, StoreError> {
        if let Some((media_type, bytes)) = self.cached(digest).await {
            let document = Document { media_type, digest: *digest, bytes };
            self.charge_document(&document)?;
            return Ok(document);
        }
        let document = self.manifest(&Target::Digest(*digest)).await?;
        self.keep(digest, &document.media_type, &document.bytes);
        Ok(document)
    }

    /// A small blob that another document names, like [`Source::blob_bytes`]. The registry is not
    /// asked for one that the cache has ([`Source::with_documents_in`]).
    ///
    /// # Errors
    /// As [`Source::blob_bytes`].
    pub async fn document_blob(&self, blob: &Descriptor, limit: u64) -> Result<Bytes, StoreError> {
        let Descriptor { digest, size, .. } = *blob;
        let fits = |bytes: &Bytes| bytes.len() as u64 == size && size <= limit;
        if let Some((_, bytes)) = self.cached(&digest).await.filter(|(_, bytes)| fits(bytes)) {
            let charge = self.budget().charge(size, || format!("blob {digest} of {size} bytes"))?;
            return Ok(charged(bytes, charge));
        }
        let bytes = self.blob_bytes(blob, limit).await?;
        self.keep(&digest, &blob.media_type, &bytes);
        Ok(bytes)
    }

    /// Charges a document and its parsed form to the budget, for good.
    fn charge_document(&self, document: &Document) -> Result<(), StoreError> {
        let digest = document.digest;
        let size = document.bytes.len() as u64;
        let charge = self
            .budget()
            .charge(size * DOCUMENT_COST, || format!("manifest {digest} of {size} bytes"))?;
        charge.keep();
        Ok(())
    }

    async fn cached(&self, digest: &Digest) -> Option<(String, Bytes)> {
        let cache = self.document_cache()?.clone();
        let digest = *digest;
        let (media_type, bytes) =
            spawn_blocking(move || cache.get_document(&digest)).await.ok()??;
        Some((media_type, bytes.into()))
    }

    /// Does not wait until the document is stored: nothing depends on it.
    fn keep(&self, digest: &Digest, media_type: &str, bytes: &Bytes) {
        let Some(cache) = self.document_cache().cloned() else { return };
        let digest = *digest;
        let media_type = media_type.to_owned();
        let bytes = bytes.clone();
        spawn_blocking(move || cache.put_document(&digest, &media_type, &bytes));
    }
}
