//! The work on a layer, shared by the thread that reads ahead and the one that scans. Each item is
//! scanned, and then hashed by whichever thread has time for it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::super::fine::ZstdPlan;
use super::super::hashes::{LayerHashes, ScannedSpans};
use super::pool::QueuedStretch;

/// What is scanned at once.
pub(super) enum WorkItem {
    /// With their plan, if the layer is zstd.
    Batch(Vec<Bytes>, Option<ZstdPlan>),
    Stretch(QueuedStretch),
}

impl WorkItem {
    fn chunks(&self) -> &[Bytes] {
        match self {
            WorkItem::Batch(chunks, _) => chunks,
            WorkItem::Stretch(stretch) => &stretch.chunks,
        }
    }
}

/// The scan ended early.
pub(super) struct Broken;

pub(super) struct SharedWork {
    queues: Mutex<WorkQueues>,
    /// Notified of each change of the queues.
    changed: Condvar,
    /// Only locked by the thread that set `is_hashing`.
    hashes: Mutex<LayerHashes>,
}

#[derive(Default)]
struct WorkQueues {
    to_scan: VecDeque<WorkItem>,
    is_scanning: bool,
    /// Whether nothing more will be added to scan.
    is_read: bool,
    /// Whether the scan is over.
    is_scanned: bool,
    to_hash: VecDeque<(WorkItem, ScannedSpans)>,
    is_hashing: bool,
}

impl WorkQueues {
    /// How many items were not hashed yet.
    fn in_progress(&self) -> usize {
        self.to_scan.len() + usize::from(self.is_scanning) + self.to_hash.len()
    }
}

impl SharedWork {
    pub(super) fn new(hashes: LayerHashes) -> SharedWork {
        SharedWork { queues: Mutex::default(), changed: Condvar::new(), hashes: Mutex::new(hashes) }
    }

    /// For the thread that reads ahead.
    pub(super) fn reader(&self) -> WorkReader<'_> {
        WorkReader(self)
    }

    /// For the thread that scans.
    pub(super) fn scanner(&self) -> WorkScanner<'_> {
        WorkScanner(self)
    }

    /// What was hashed. Only valid if no thread panicked.
    pub(super) fn into_hashes(self) -> LayerHashes {
        self.hashes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn queues(&self) -> MutexGuard<'_, WorkQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hashes an item that was scanned. Waits for a change if there is none, or the other thread is
    /// hashing.
    fn hash_or_wait<'a>(&'a self, mut queues: MutexGuard<'a, WorkQueues>) -> MutexGuard<'a, WorkQueues> {
        if !queues.is_hashing
            && let Some((work, spans)) = queues.to_hash.pop_front()
        {
            queues.is_hashing = true;
            drop(queues);
            self.hashes.lock().unwrap_or_else(PoisonError::into_inner).push_all(work.chunks(), spans);
            drop(work);
            queues = self.queues();
            queues.is_hashing = false;
            self.changed.notify_one();
            return queues;
        }
        self.changed.wait(queues).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads ahead. Dropping it ends the work.
pub(super) struct WorkReader<'a>(&'a SharedWork);

impl WorkReader<'_> {
    /// Passes items on to the scan. Then hashes or waits until no more than `most` are in progress.
    ///
    /// # Errors
    /// If the scan is over.
    pub(super) fn pass_on(&self, work: impl IntoIterator<Item = WorkItem>, most: usize) -> Result<(), Broken> {
        let mut queues = self.0.queues();
        queues.to_scan.extend(work);
        self.0.changed.notify_one();
        while !queues.is_scanned && queues.in_progress() > most {
            queues = self.0.hash_or_wait(queues);
        }
        if queues.is_scanned { Err(Broken) } else { Ok(()) }
    }

    /// Lets nothing more be scanned.
    pub(super) fn give_up(&self) {
        self.0.queues().to_scan.clear();
    }

    /// Ends the work: hashes the rest, until the scan is over.
    pub(super) fn finish(self) {
        let mut queues = self.0.queues();
        queues.is_read = true;
        self.0.changed.notify_one();
        // If the scan is over and something is still being hashed, its thread panicked.
        while !queues.is_scanned || !queues.to_hash.is_empty() && !queues.is_hashing {
            queues = self.0.hash_or_wait(queues);
        }
    }
}

impl Drop for WorkReader<'_> {
    fn drop(&mut self) {
        self.0.queues().is_read = true;
        self.0.changed.notify_one();
    }
}

/// Takes the items to scan. Dropping it ends the scan.
pub(super) struct WorkScanner<'a>(&'a SharedWork);

impl WorkScanner<'_> {
    /// The next item to scan. Hashes while there is none. None at the end.
    pub(super) fn next(&self) -> Option<WorkItem> {
        let mut queues = self.0.queues();
        loop {
            if let Some(work) = queues.to_scan.pop_front() {
                queues.is_scanning = true;
                return Some(work);
            }
            if queues.is_read {
                return None;
            }
            queues = self.0.hash_or_wait(queues);
        }
    }

    /// Hands on what was scanned.
    pub(super) fn scanned(&self, work: WorkItem, spans: ScannedSpans) {
        let mut queues = self.0.queues();
        queues.is_scanning = false;
        queues.to_hash.push_back((work, spans));
        self.0.changed.notify_one();
    }
}

impl Drop for WorkScanner<'_> {
    fn drop(&mut self) {
        self.0.queues().is_scanned = true;
        self.0.changed.notify_one();
    }
}
