//! Fetches documents of an image as soon as containerd pulls it. The process that mounts the image
//! for its first container finds them in the cache, or waits for them.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::time::timeout;

use super::LOOKUP;
use ociseek_format::budget::Budget;
use ociseek_ops::ahead::DocumentsAhead;
use ociseek_rootfs::layers::Caches;
use ociseek_store::lock::Hold;

/// How many bytes of documents are fetched ahead at the same time, for all images together. What
/// does not fit is left to the process that mounts the image.
const MEMORY: u64 = 16 << 20;

/// Fetches documents, within limits for memory and time.
pub(super) struct FetchingAhead {
    caches: Caches,
    memory: Budget,
}

/// The files that are locked as long as the documents of an image are fetched. None once they are.
#[derive(Clone, Default)]
pub(super) struct Fetching(Arc<Mutex<Option<Vec<File>>>>);

impl FetchingAhead {
    pub(super) fn new(caches: Caches) -> FetchingAhead {
        FetchingAhead { caches, memory: Budget::new(MEMORY) }
    }

    /// Begins to fetch the documents.
    pub(super) fn start(&self, documents: DocumentsAhead) -> Fetching {
        let fetching = Fetching::default();
        if let Ok(charge) = self.memory.charge(documents.size(), String::new) {
            let (caches, locked) = (self.caches.clone(), Arc::clone(&fetching.0));
            *locked.hold() = Some(Vec::new());
            tokio::spawn(async move {
                let _charge = charge;
                let _ = timeout(LOOKUP, documents.fetch(&caches)).await;
                *locked.hold() = None;
            });
        }
        fetching
    }
}

impl Fetching {
    /// Locks this file as long as something is fetched.
    pub(super) fn lock(&self, file: &Path) {
        if let Some(locked) = &mut *self.0.hold()
            && let Ok(file) = File::open(file)
            // Another mount of the image may have locked it.
            && file.try_lock().is_ok()
        {
            locked.push(file);
        }
    }
}
