//! Threads that decode stretches of a layer ahead of the scan.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

use bytes::Bytes;

use crate::codec::stretch::{Stretch, StretchStart};
use crate::layer::LayerError;
use crate::layer::hashes::ScannedSpans;
use crate::layer::scan::LayerScan;
use crate::offset::Compressed;

/// After this many plain bytes, the rest of a stretch is left to the scan.
const PLAIN: usize = 8 << 20;
/// After this many wrong guesses, either the layer has bytes that only look like gzip members, or
/// the ztoc belongs to another layer.
const WRONG: usize = 4;

/// The chunks of a stretch and the result of decoding them.
pub(super) struct QueuedStretch {
    pub chunks: Arc<Vec<Bytes>>,
    decoded: Receiver<Stretch>,
}

struct Job {
    at: Compressed,
    begin: StretchStart,
    chunks: Arc<Vec<Bytes>>,
    reply: SyncSender<Stretch>,
}

/// Decodes stretches on its own threads, which start with the first stretch.
pub(super) struct DecoderPool<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    threads: usize,
    /// Whether a fine document is collected.
    is_fine: bool,
    jobs: Option<Sender<Job>>,
    shared: Arc<PoolState>,
}

/// What the pool shares with the scan.
#[derive(Default)]
pub(super) struct PoolState {
    /// Buffers of earlier stretches, for reuse.
    idle: Mutex<Vec<Vec<u8>>>,
    wrong: AtomicUsize,
}

impl<'scope, 'env> DecoderPool<'scope, 'env> {
    pub(super) fn new(scope: &'scope Scope<'scope, 'env>, threads: usize, is_fine: bool) -> DecoderPool<'scope, 'env> {
        DecoderPool { scope, threads, is_fine, jobs: None, shared: Arc::default() }
    }

    pub(super) fn shared(&self) -> Arc<PoolState> {
        Arc::clone(&self.shared)
    }

    /// Whether too many guesses were wrong.
    pub(super) fn is_misled(&self) -> bool {
        self.shared.wrong.load(Ordering::Relaxed) >= WRONG
    }

    /// Queues a stretch that lies at `at` in the blob for decoding.
    pub(super) fn decode(&mut self, at: Compressed, begin: StretchStart, chunks: Vec<Bytes>) -> QueuedStretch {
        let chunks = Arc::new(chunks);
        let (reply, decoded) = sync_channel(1);
        let jobs = self.jobs.get_or_insert_with(|| start(self.scope, self.threads, self.is_fine, &self.shared));
        // If all threads are gone, the scan decodes the stretch.
        let _ = jobs.send(Job { at, begin, chunks: Arc::clone(&chunks), reply });
        QueuedStretch { chunks, decoded }
    }
}

fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    threads: usize,
    is_fine: bool,
    shared: &Arc<PoolState>,
) -> Sender<Job> {
    let (jobs, queue) = channel::<Job>();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..threads {
        let (queue, shared) = (Arc::clone(&queue), Arc::clone(shared));
        scope.spawn(move || {
            loop {
                let next = locked(&queue).recv();
                let Ok(Job { at, begin, chunks, reply }) = next else { break };
                let plain = locked(&shared.idle).pop().unwrap_or_default();
                // The receiver is gone if the scan is over.
                let _ = reply.send(Stretch::decode(at, begin, &chunks, plain, PLAIN, is_fine));
            }
        });
    }
    jobs
}

impl PoolState {
    /// Waits for a stretch and passes it to `scan`.
    pub(super) fn scan(&self, queued: &QueuedStretch, scan: &mut LayerScan) -> Result<ScannedSpans, LayerError> {
        // The stretch is missing if its thread panicked. The scope passes that on when it ends.
        let stretch = queued.decoded.recv().unwrap_or_default();
        let decoded = scan.push_decoded(&queued.chunks, stretch)?;
        if !decoded.was_right {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
        locked(&self.idle).push(decoded.plain);
        Ok(decoded.spans)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
