//! What can be done before a container comes: finding out whether an index covers an image, and
//! fetching what opening it reads first.
//!
//! Opening the image finds the documents in the cache of ztocs, and waits for those that are still
//! being fetched.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::timeout;

use super::discover::{DiscoverError, PlatformImage, both};
use super::fine_documents::{DocumentFetch, fetch_document, fetched_size};
use super::open::{OpenImageError, OpenOptions, read_config};
use super::trust;
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::{Descriptor, config};
use ociseek_format::progress::Progress;
use ociseek_rootfs::layers::Caches;
use ociseek_store::Source;
use ociseek_store::blob::Target;

/// How many bytes of documents are fetched ahead at the same time, for all images together. What
/// does not fit is left to the opening of the image.
const MEMORY: u64 = 16 << 20;

/// How much of an image an index covers.
#[derive(Debug)]
pub struct IndexCoverage {
    /// The layers that the image manifest lists, from the bottom up.
    pub layers: Vec<Descriptor>,
    /// The digests of their uncompressed content, according to the config.
    pub diff_ids: Vec<Digest>,
    /// The bytes of all layers.
    pub bytes: u64,
    /// The bytes of those layers that [`open`](super::open::open) would not read completely.
    pub indexed: u64,
    /// What opening the image reads first.
    pub documents: DocumentsAhead,
}

/// The fine documents that an image is read with, to be fetched before it is opened.
#[derive(Debug)]
pub struct DocumentsAhead {
    source: Source,
    documents: Vec<FineRef>,
    fetch: DocumentFetch,
}

impl DocumentsAhead {
    /// How many bytes [`DocumentsAhead::fetch`] fetches and has in memory, at most.
    pub fn size(&self) -> u64 {
        let sizes = self.documents.iter().map(|document| fetched_size(document, self.fetch.start));
        sizes.fold(0, u64::saturating_add)
    }

    /// Fetches the documents' heads, and the pages of the recorded start, into the cache. Opening
    /// the image reports what cannot be fetched.
    pub async fn fetch(self, caches: &Caches) {
        if caches.ztocs.is_stored() {
            let fetch =
                |document| fetch_document(&self.source, document, &self.fetch, true, caches);
            join_all(self.documents.iter().map(fetch)).await;
        }
    }
}

/// Finds out how much of the image `root` of `source` an index covers that `options` allow. If the
/// source keeps the registry's answers ([`Source::recalling`]), the referrers of a digest are
/// requested together with its manifest.
///
/// # Errors
/// If the image, its config or its index cannot be read.
pub async fn coverage(
    source: &Source,
    root: &Target,
    options: &OpenOptions,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<IndexCoverage, OpenImageError> {
    let platform = options.platform.as_ref();
    let index = options.index.as_ref();
    // The image is often opened right after this.
    let source = &source.with_documents_in(&caches.ztocs);
    let finding =
        async { Ok(Box::pin(PlatformImage::find(source, root, platform, progress)).await?) };
    let listing = async {
        source.list_ahead(root).await;
        Ok::<_, DiscoverError>(())
    };
    let (image, ()) = both(finding, listing).await?;
    let digest = image.manifest.config.digest;
    let indexes = Box::pin(async { Ok(image.indexes(source, index, progress).await?) });
    let ((config, _), mut found) = both(read_config(source, &image, platform), indexes).await?;
    let diff_ids =
        config::diff_ids(&config).map_err(|source| OpenImageError::OddConfig { digest, source })?;
    trust::choose(source, &mut found, index, &options.trust, &caches.ztocs, &**progress).await?;
    if options.soci_only {
        found.chosen_fine = None;
    }
    let is_indexed = |layer: &&Descriptor| {
        found.ztoc_for(&layer.digest).is_some() || found.document_for(&layer.digest).is_some()
    };
    let size = |sum: u64, layer: &Descriptor| sum.saturating_add(layer.size);
    let indexed = found.layers.iter().filter(is_indexed).fold(0, size);
    let bytes = found.layers.iter().fold(0, size);
    let documents = found
        .layers
        .iter()
        .filter_map(|layer| found.document_for(&layer.digest))
        .cloned()
        .collect();
    let documents = DocumentsAhead { source: source.clone(), documents, fetch: options.documents };
    Ok(IndexCoverage { layers: found.layers, diff_ids, bytes, indexed, documents })
}

/// Fetches documents in the background, within limits for memory and time.
pub struct FetchingAhead {
    caches: Caches,
    limit: Duration,
    memory: Budget,
}

ociseek_format::opaque_debug!(FetchingAhead);

/// Documents that are being fetched.
#[derive(Debug, Clone)]
pub struct Fetching(watch::Receiver<bool>);

impl FetchingAhead {
    /// `limit` is the time for the documents of an image.
    pub fn new(caches: Caches, limit: Duration) -> FetchingAhead {
        FetchingAhead { caches, limit, memory: Budget::new(MEMORY) }
    }

    /// Begins to fetch the documents. Must be called on a tokio runtime.
    pub fn start(&self, documents: DocumentsAhead) -> Fetching {
        let (done, fetching) = watch::channel(true);
        if let Ok(charge) = self.memory.charge(documents.size(), String::new) {
            let caches = self.caches.clone();
            let limit = self.limit;
            let _ = done.send_replace(false);
            tokio::spawn(async move {
                let _charge = charge;
                let _ = timeout(limit, documents.fetch(&caches)).await;
                done.send_replace(true);
            });
        }
        Fetching(fetching)
    }
}

impl Fetching {
    /// Waits until nothing is fetched any more.
    pub async fn done(mut self) {
        // An error says that the task has ended.
        let _ = self.0.wait_for(|is_done| *is_done).await;
    }
}
