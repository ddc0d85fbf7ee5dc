//! Documents that are named by their digest, from the local cache of a source, and what its
//! registry said before.

use bytes::Bytes;
use tokio::task::spawn_blocking;

use super::blob::{Document, Target};
use super::cache::ZtocCache;
use super::recall::Recall;
use super::{DOCUMENT_COST, Source, StoreError, charged};
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;

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
            (Some(recall), Target::Digest(digest)) if recall.has(digest) => self.document(digest).await,
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
    pub(super) fn charge_document(&self, document: &Document) -> Result<(), StoreError> {
        let (digest, size) = (document.digest, document.bytes.len() as u64);
        let charge = self.budget().charge(size * DOCUMENT_COST, || format!("manifest {digest} of {size} bytes"))?;
        charge.keep();
        Ok(())
    }

    async fn cached(&self, digest: &Digest) -> Option<(String, Bytes)> {
        let (cache, digest) = (self.document_cache()?.clone(), *digest);
        let (media_type, bytes) = spawn_blocking(move || cache.get_document(&digest)).await.ok()??;
        Some((media_type, bytes.into()))
    }

    /// Does not wait until the document is stored: nothing depends on it.
    fn keep(&self, digest: &Digest, media_type: &str, bytes: &Bytes) {
        let Some(cache) = self.document_cache().cloned() else { return };
        let (digest, media_type, bytes) = (*digest, media_type.to_owned(), bytes.clone());
        spawn_blocking(move || cache.put_document(&digest, &media_type, &bytes));
    }
}
