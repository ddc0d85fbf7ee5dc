//! What can be done before a container comes: fetching what opening its image reads first.
//!
//! Opening the image finds the documents in the cache of ztocs, and waits for those that are still
//! being fetched. They also say how much memory the image will take.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::timeout;

use super::fine_documents::{DocumentFetch, fetch_document, fetched_size};
use super::judge::Judged;
use super::open::OpenOptions;
use ociseek_format::budget::Budget;
use ociseek_format::fine::list_memory;
use ociseek_format::image::fine::FineRef;
use ociseek_rootfs::layers::Caches;
use ociseek_store::Source;

/// How many bytes of documents are fetched ahead at the same time, for all images together. What
/// does not fit is left to the opening of the image.
const MEMORY: u64 = 16 << 20;

/// How many times as large as a document's head its list of files is in memory: a guess, until the
/// head is there.
const GUESS: u64 = 16;
/// As much memory as a list of files takes, opening it takes at most this many times.
const OPENING: u64 = 4;

/// The fine documents that an image is read with, to be fetched before it is opened.
#[derive(Debug)]
pub struct DocumentsAhead {
    source: Source,
    documents: Vec<FineRef>,
    /// The sizes of the ztocs by which other layers are read, together.
    ztocs: u64,
    fetch: DocumentFetch,
}

/// The memory that the lists of an image's files take, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListMemory {
    /// While it is opened.
    pub opening: u64,
    /// Afterwards.
    pub kept: u64,
}

impl ListMemory {
    fn guessed(stored: u64) -> ListMemory {
        let kept = stored.saturating_mul(GUESS);
        ListMemory { opening: kept.saturating_mul(OPENING), kept }
    }

    fn with(self, other: ListMemory) -> ListMemory {
        ListMemory {
            opening: self.opening.saturating_add(other.opening),
            kept: self.kept.saturating_add(other.kept),
        }
    }
}

impl DocumentsAhead {
    /// What opening an image of `source` by `options` reads first.
    pub fn of(source: &Source, judged: &Judged, options: &OpenOptions) -> DocumentsAhead {
        let image = &judged.image;
        let documents = image.layers.iter().filter_map(|layer| image.document_for(&layer.digest));
        let documents: Vec<FineRef> = documents.cloned().collect();
        let by_ztoc =
            image.layers.iter().filter(|layer| image.document_for(&layer.digest).is_none());
        let ztocs = by_ztoc.filter_map(|layer| image.ztoc_for(&layer.digest)).map(|ztoc| ztoc.size);
        let ztocs = ztocs.fold(0, u64::saturating_add);
        DocumentsAhead { source: source.clone(), documents, ztocs, fetch: options.documents }
    }

    /// What its lists are supposed to take.
    fn guess(&self) -> ListMemory {
        let heads = self.documents.iter().map(|document| document.head_size);
        ListMemory::guessed(heads.fold(0, u64::saturating_add)).with(self.of_ztocs())
    }

    /// A ztoc has as much of a file as a list in memory has.
    fn of_ztocs(&self) -> ListMemory {
        ListMemory { opening: self.ztocs.saturating_mul(OPENING), kept: self.ztocs }
    }

    /// How many bytes [`DocumentsAhead::fetch`] fetches and has in memory, at most.
    pub fn size(&self) -> u64 {
        let sizes = self.documents.iter().map(|document| fetched_size(document, self.fetch.start));
        sizes.fold(0, u64::saturating_add)
    }

    /// Fetches the documents' heads, and the pages of the recorded start, into the cache. Opening
    /// the image reports what cannot be fetched. Returns what the lists of files take, if that is
    /// known then.
    pub async fn fetch(self, caches: &Caches) -> Option<ListMemory> {
        if !caches.ztocs.is_stored() {
            return None;
        }
        let DocumentsAhead { source, fetch: how, .. } = &self;
        let fetch = |document| async move {
            let head = fetch_document(source, document, how, true, caches).await;
            let [opening, kept] = list_memory(&head.ok()?).ok()?;
            Some(ListMemory { opening, kept })
        };
        let lists = join_all(self.documents.iter().map(fetch)).await;
        lists.into_iter().try_fold(self.of_ztocs(), |sum, list| Some(sum.with(list?)))
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
pub struct Fetching {
    guess: ListMemory,
    done: watch::Receiver<Fetched>,
}

/// What is known of documents that are fetched.
#[derive(Debug, Clone, Copy)]
struct Fetched {
    is_done: bool,
    lists: Option<ListMemory>,
}

impl FetchingAhead {
    /// `limit` is the time for the documents of an image.
    pub fn new(caches: Caches, limit: Duration) -> FetchingAhead {
        FetchingAhead { caches, limit, memory: Budget::new(MEMORY) }
    }

    /// Begins to fetch the documents. Must be called on a tokio runtime.
    pub fn start(&self, documents: DocumentsAhead) -> Fetching {
        let guess = documents.guess();
        let (done, fetching) = watch::channel(Fetched { is_done: true, lists: None });
        if let Ok(charge) = self.memory.charge(documents.size(), String::new) {
            let caches = self.caches.clone();
            let limit = self.limit;
            let _ = done.send_replace(Fetched { is_done: false, lists: None });
            tokio::spawn(async move {
                let _charge = charge;
                let lists = timeout(limit, documents.fetch(&caches)).await.ok().flatten();
                done.send_replace(Fetched { is_done: true, lists });
            });
        }
        Fetching { guess, done: fetching }
    }
}

impl Fetching {
    /// Waits until nothing is fetched any more.
    pub async fn done(mut self) {
        // An error says that the task has ended.
        let _ = self.done.wait_for(|fetched| fetched.is_done).await;
    }

    /// What the lists of files take, as far as that is known by now.
    pub fn lists(&self) -> ListMemory {
        self.done.borrow().lists.unwrap_or(self.guess)
    }
}
