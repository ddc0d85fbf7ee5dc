//! Reads one layer on several threads. The thread that reads ahead and the one that scans share the
//! work: each item is scanned, and then hashed by whichever thread has time for it.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use bytes::Bytes;

use super::fine::ZstdPlan;
use super::hashes::{LayerHashes, ScannedSpans};
use super::scan::{LayerPlanner, LayerScan};
use super::scan_result::ScanResult;
use super::{IndexedLayer, LayerError, LayerOptions, MappedLayer, ReadOptions};
use crate::budget::{Budget, Charge};
use crate::digest::Digest;
use crate::ztoc::Ztoc;
use stretches::{BlobCutter, DecoderPool, MOST_PLAIN, Piece, QueuedStretch};

mod stretches;

/// How many batches or stretches may be in progress unless more decoders need more: enough to even
/// out those that decode to much and those that decode to little.
const UNDER_WAY: usize = 4;
/// The same for zstd that is planned ahead: a whole span comes at once, and the next one must be
/// planned before that is scanned. The rest is hashed when there is nothing to scan.
const AHEAD: usize = 96;
/// More threads for one layer would be idle, because the work that cannot be divided takes longer
/// by then.
const MOST_DECODERS: usize = 8;
/// How much memory a core needs, in bytes: a layer with several has two more stretches in progress
/// than cores.
const FOR_A_CORE: u64 = 2 * MOST_PLAIN as u64;

/// How to divide the decoding of a layer.
#[derive(Debug, Clone)]
pub struct Threads {
    /// The number of cores for this layer.
    pub cores: usize,
    /// A ztoc that is said to belong to the layer, built with any options. It may be wrong: the
    /// layer itself confirms each part of it before that is used.
    pub guide: Option<Arc<Ztoc>>,
}

impl Threads {
    /// The share of one of `layers` layers that are read at the same time, of an image with this
    /// budget. What is decoded ahead is not charged to it, but takes no more than it.
    pub fn for_one_of(layers: usize, guide: Option<Arc<Ztoc>>, budget: &Budget) -> Threads {
        let cores = cores().min(usize::try_from(budget.limit() / FOR_A_CORE).unwrap_or(usize::MAX));
        Threads { cores: cores / layers.max(1), guide }
    }
}

/// The number of CPUs, at least 1.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Why a blob could not be read: a fault of its source, or of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunksError<E> {
    /// The next chunks could not be fetched.
    Next(E),
    /// The layer is broken, or cannot be read.
    Layer(LayerError),
}

impl<E> From<LayerError> for ChunksError<E> {
    fn from(error: LayerError) -> ChunksError<E> {
        ChunksError::Layer(error)
    }
}

/// Indexes a blob, whose digest and size in bytes are checked if known. `next` returns its chunks,
/// a batch at a time, and None at its end; it waits for the network. Each batch is passed from
/// thread to thread as a whole.
///
/// What is collected is charged to `budget` until the layer is done. The result does not depend on
/// the number of threads.
///
/// # Errors
/// Those of `next`, or if the layer is broken.
pub fn index_chunks<E>(
    options: LayerOptions,
    expected: Option<(Digest, u64)>,
    threads: Threads,
    budget: &Budget,
    next: impl FnMut() -> Result<Option<Vec<Bytes>>, E>,
) -> Result<IndexedLayer, ChunksError<E>> {
    let (planner, scan, hashes) = LayerScan::to_publish(&options, expected, budget.open());
    Ok(scan_chunks(planner, scan, hashes, threads, next)?.publish(options)?)
}

/// Reads a blob with the `expected` digest and size in bytes like [`index_chunks`], to read files
/// from it here. Charges what is collected to `memory` and returns that with it.
///
/// # Errors
/// Those of `next`, or if the layer is broken or cannot be read.
pub fn read_chunks<E>(
    options: ReadOptions,
    expected: (Digest, u64),
    threads: Threads,
    memory: Charge,
    next: impl FnMut() -> Result<Option<Vec<Bytes>>, E>,
) -> Result<MappedLayer, ChunksError<E>> {
    let (scan, hashes) = LayerScan::to_read(options, expected, memory);
    Ok(scan_chunks(LayerPlanner::Idle, scan, hashes, threads, next)?.map()?)
}

/// Scans, which is mostly decoding, on a separate thread, and reads and plans on this one. Both
/// hash: this one if the other is behind, and that one while it has nothing to scan. The time is
/// that of the slower thread: the one that decodes, or for a plain tar the one that hashes.
/// With two cores, a third thread would only slow down the one that decodes. Blobs with many gzip
/// members or with an existing ztoc are decoded by further threads, and with three cores or more
/// all gzip blobs.
fn scan_chunks<E>(
    mut planner: LayerPlanner<Bytes>,
    mut scan: LayerScan,
    hashes: LayerHashes,
    threads: Threads,
    mut next: impl FnMut() -> Result<Option<Vec<Bytes>>, E>,
) -> Result<ScanResult, ChunksError<E>> {
    let decoders = threads.cores.min(MOST_DECODERS);
    let most = UNDER_WAY.max(decoders + 2) - 1;
    let is_fine = scan.is_fine();
    let work = SharedWork::new(hashes);
    let scanned = thread::scope(|scope| {
        let reader = work.reader();
        let scanner = work.scanner();
        let mut pool = DecoderPool::new(scope, decoders, is_fine);
        let shared = pool.shared();
        let scanning = scope.spawn(move || {
            while let Some(mut work) = scanner.next() {
                let spans = match &mut work {
                    WorkItem::Batch(chunks, plan) => scan.push_all(chunks, plan.take())?,
                    WorkItem::Stretch(stretch) => shared.scan(stretch, &mut scan)?,
                };
                scanner.scanned(work, spans);
            }
            Ok((scan.end()?, scan))
        });
        let mut cutter = if decoders > 1 {
            BlobCutter::new(decoders, threads.guide)
        } else {
            BlobCutter::idle()
        };
        let mut pass_on_all = |pieces: Vec<Piece>, pool: &mut DecoderPool, is_end: bool| {
            let mut ready = Vec::new();
            let mut batch = Vec::new();
            for piece in pieces {
                match piece {
                    Piece::Chunk(chunk) => batch.push(chunk),
                    Piece::Stretch { at, begin, chunks } => {
                        if !batch.is_empty() {
                            ready.extend(planner.plan(std::mem::take(&mut batch)));
                        }
                        ready.extend(planner.give_up().map(|held| (held, None)));
                        reader.pass_on(
                            ready.drain(..).map(|(chunks, plan)| WorkItem::Batch(chunks, plan)),
                            most,
                        )?;
                        reader
                            .pass_on([WorkItem::Stretch(pool.decode(at, begin, chunks))], most)?;
                    }
                }
            }
            if !batch.is_empty() {
                ready.extend(planner.plan(batch));
            }
            if is_end {
                ready.extend(planner.end());
            }
            let Some((_, plan)) = ready.first() else { return Ok(()) };
            let most = if plan.is_some() { AHEAD } else { most };
            reader.pass_on(
                ready.into_iter().map(|(chunks, plan)| WorkItem::Batch(chunks, plan)),
                most,
            )
        };
        let mut passed_on = Ok(());
        while passed_on.is_ok()
            && let Some(chunks) =
                next().inspect_err(|_| reader.give_up()).map_err(ChunksError::Next)?
        {
            let mut pieces = Vec::with_capacity(chunks.len());
            chunks.into_iter().for_each(|chunk| cutter.push(chunk, |piece| pieces.push(piece)));
            passed_on = pass_on_all(pieces, &mut pool, false);
            if pool.is_misled() {
                cutter.give_up();
            }
        }
        // The scan reports that the layer is broken.
        let _ = passed_on
            .and_then(|()| pass_on_all(cutter.end().into_iter().collect(), &mut pool, true));
        drop(pool);
        reader.finish();
        match scanning.join() {
            Ok(Ok(scanned)) => Ok(scanned),
            Ok(Err(error)) => Err(ChunksError::Layer(error)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    let ((spans, scan), mut hashes) = (scanned, work.into_hashes());
    hashes.push(&[], spans);
    Ok(scan.finish(hashes.finish())?)
}

/// What is scanned at once.
enum WorkItem {
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
struct Broken;

struct SharedWork {
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
    fn new(hashes: LayerHashes) -> SharedWork {
        SharedWork { queues: Mutex::default(), changed: Condvar::new(), hashes: Mutex::new(hashes) }
    }

    /// For the thread that reads ahead.
    fn reader(&self) -> WorkReader<'_> {
        WorkReader(self)
    }

    /// For the thread that scans.
    fn scanner(&self) -> WorkScanner<'_> {
        WorkScanner(self)
    }

    /// What was hashed. Only valid if no thread panicked.
    fn into_hashes(self) -> LayerHashes {
        self.hashes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn queues(&self) -> MutexGuard<'_, WorkQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hashes an item that was scanned. Waits for a change if there is none, or the other thread is
    /// hashing.
    fn hash_or_wait<'a>(
        &'a self,
        mut queues: MutexGuard<'a, WorkQueues>,
    ) -> MutexGuard<'a, WorkQueues> {
        if !queues.is_hashing
            && let Some((work, spans)) = queues.to_hash.pop_front()
        {
            queues.is_hashing = true;
            drop(queues);
            self.hashes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_all(work.chunks(), spans);
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
struct WorkReader<'a>(&'a SharedWork);

impl WorkReader<'_> {
    /// Passes items on to the scan. Then hashes or waits until no more than `most` are in progress.
    ///
    /// # Errors
    /// If the scan is over.
    fn pass_on(&self, work: impl IntoIterator<Item = WorkItem>, most: usize) -> Result<(), Broken> {
        let mut queues = self.0.queues();
        queues.to_scan.extend(work);
        self.0.changed.notify_one();
        while !queues.is_scanned && queues.in_progress() > most {
            queues = self.0.hash_or_wait(queues);
        }
        if queues.is_scanned { Err(Broken) } else { Ok(()) }
    }

    /// Lets nothing more be scanned.
    fn give_up(&self) {
        self.0.queues().to_scan.clear();
    }

    /// Ends the work: hashes the rest, until the scan is over.
    fn finish(self) {
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
struct WorkScanner<'a>(&'a SharedWork);

impl WorkScanner<'_> {
    /// The next item to scan. Hashes while there is none. None at the end.
    fn next(&self) -> Option<WorkItem> {
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
    fn scanned(&self, work: WorkItem, spans: ScannedSpans) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_budget_gets_few_cores() {
        let of = |layers, mebibytes: u64| {
            Threads::for_one_of(layers, None, &Budget::new(mebibytes << 20)).cores
        };
        assert_eq!((of(1, 95), of(2, 95), of(1, 1)), (1, 0, 0));
        assert_eq!(of(1, 1 << 20), cores());
    }
}
