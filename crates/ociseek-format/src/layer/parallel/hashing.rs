//! Hashes what was scanned, on whichever thread has time for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::super::hashes::{LayerHashes, ScannedSpans};
use super::WorkItem;

/// The hashes of a layer, shared by the thread that reads ahead and the one that scans.
pub(super) struct SharedHashes {
    worker: Mutex<HashWorker>,
    /// The numbers of work items that were passed on and not scanned yet, or not hashed yet.
    unscanned: AtomicUsize,
    unhashed: AtomicUsize,
    is_given_up: AtomicBool,
}

struct HashWorker {
    hashes: LayerHashes,
    /// In the order of the blob. The thread that takes an item holds the lock until it is hashed.
    scanned: Receiver<(WorkItem, ScannedSpans)>,
}

/// How many work items may be in progress.
#[derive(Clone, Copy)]
pub(super) struct WorkLimits {
    pub unscanned: usize,
    /// Those that were scanned are among them.
    pub unhashed: usize,
}

/// The scan ended early.
pub(super) struct Broken;

impl SharedHashes {
    /// With the sender for what was scanned, for up to `room` items.
    pub(super) fn new(hashes: LayerHashes, room: usize) -> (SharedHashes, SyncSender<(WorkItem, ScannedSpans)>) {
        let (sender, scanned) = sync_channel(room);
        let worker = Mutex::new(HashWorker { hashes, scanned });
        let (unscanned, unhashed, is_given_up) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        (SharedHashes { worker, unscanned, unhashed, is_given_up }, sender)
    }

    /// Counts an item that will be scanned.
    pub(super) fn add(&self) {
        self.unscanned.fetch_add(1, Ordering::Relaxed);
        self.unhashed.fetch_add(1, Ordering::Relaxed);
    }

    /// Hashes until no more than this is in progress.
    pub(super) fn catch_up(&self, most: WorkLimits) -> Result<(), Broken> {
        let is_behind = || {
            self.unscanned.load(Ordering::Relaxed) > most.unscanned
                || self.unhashed.load(Ordering::Relaxed) > most.unhashed
        };
        while is_behind() {
            let mut worker = self.lock();
            // The other thread may have hashed meanwhile.
            if is_behind() {
                let (work, spans) = worker.scanned.recv().map_err(|_| Broken)?;
                self.hash(&mut worker, &work, spans);
            }
        }
        Ok(())
    }

    /// Counts an item that was scanned.
    pub(super) fn remove(&self) {
        self.unscanned.fetch_sub(1, Ordering::Relaxed);
    }

    /// The next item to scan. Hashes while there is none. None at the end.
    pub(super) fn until_next(&self, to_scan: &Receiver<WorkItem>) -> Option<WorkItem> {
        loop {
            match to_scan.try_recv() {
                _ if self.is_given_up.load(Ordering::Relaxed) => return None,
                Ok(work) => return Some(work),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if self.hash_one() => {}
                Err(TryRecvError::Empty) => return to_scan.recv().ok(),
            }
        }
    }

    /// Hashes an item that was scanned, unless there is none, or the other thread is hashing.
    /// Returns whether it did.
    fn hash_one(&self) -> bool {
        let mut worker = match self.worker.try_lock() {
            Ok(worker) => worker,
            Err(TryLockError::Poisoned(worker)) => worker.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Ok((work, spans)) = worker.scanned.try_recv() else { return false };
        self.hash(&mut worker, &work, spans);
        true
    }

    /// Lets nothing more be scanned.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Hashes the rest, until the scan has ended.
    pub(super) fn finish(&self) {
        let mut worker = self.lock();
        while let Ok((work, spans)) = worker.scanned.recv() {
            self.hash(&mut worker, &work, spans);
        }
    }

    pub(super) fn into_hashes(self) -> LayerHashes {
        self.worker.into_inner().unwrap_or_else(PoisonError::into_inner).hashes
    }

    fn lock(&self) -> MutexGuard<'_, HashWorker> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hash(&self, worker: &mut HashWorker, work: &WorkItem, spans: ScannedSpans) {
        self.unhashed.fetch_sub(1, Ordering::Relaxed);
        match work {
            WorkItem::Batch(chunks, _) => worker.hashes.push_all(chunks, spans),
            WorkItem::Stretch(stretch) => worker.hashes.push_all(&stretch.chunks, spans),
        }
    }
}
