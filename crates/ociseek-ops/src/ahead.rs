//! What can be done before a container comes: fetching what opening its image reads first.
//!
//! Opening the image finds the documents in the cache of ztocs, and waits for those that are still
//! being fetched.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::timeout;

use super::fine_documents::{DocumentFetch, fetch_document, fetched_size};
use super::judge::Judged;
use super::open::OpenOptions;
use ociseek_format::budget::Budget;
use ociseek_format::image::fine::FineRef;
use ociseek_rootfs::layers::Caches;
use ociseek_store::Source;

/// How many bytes of documents are fetched ahead at the same time, for all images together. What
/// does not fit is left to the opening of the image.
const MEMORY: u64 = 16 << 20;

/// The fine documents that an image is read with, to be fetched before it is opened.
#[derive(Debug)]
pub struct DocumentsAhead {
    source: Source,
    documents: Vec<FineRef>,
    fetch: DocumentFetch,
}

impl DocumentsAhead {
    /// What opening an image of `source` by `options` reads first.
    pub fn of(source: &Source, judged: &Judged, options: &OpenOptions) -> DocumentsAhead {
        let found = &judged.found;
        let documents = found.layers.iter().filter_map(|layer| found.document_for(&layer.digest));
        let documents = documents.cloned().collect();
        DocumentsAhead { source: source.clone(), documents, fetch: options.documents }
    }

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
