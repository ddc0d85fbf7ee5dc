//! Threads that decode stretches of a layer before the scan comes to them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

use bytes::Bytes;

use crate::codec::stretch::{Begin, Stretch};
use crate::layer::LayerError;
use crate::layer::hashes::Spans;
use crate::layer::scan::LayerScan;
use crate::offset::Compressed;

/// Plain bytes of a stretch after which it is left to the scan.
const PLAIN: usize = 8 << 20;
/// So many wrong guesses tell that the layer holds bytes that look like members and are none, or
/// that the ztoc is not its own.
const WRONG: usize = 4;

/// The chunks of a stretch and what becomes of them.
pub(super) struct Ahead {
    pub chunks: Arc<Vec<Bytes>>,
    decoded: Receiver<Stretch>,
}

struct Job {
    at: Compressed,
    begin: Begin,
    chunks: Arc<Vec<Bytes>>,
    reply: SyncSender<Stretch>,
}

/// Decodes stretches on threads of its own, which start with the first one.
pub(super) struct Team<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    threads: usize,
    jobs: Option<Sender<Job>>,
    shared: Arc<Shared>,
}

/// What the team shares with the scan.
#[derive(Default)]
pub(super) struct Shared {
    /// Memory that stretches were decoded into.
    idle: Mutex<Vec<Vec<u8>>>,
    wrong: AtomicUsize,
}

impl<'scope, 'env> Team<'scope, 'env> {
    pub(super) fn new(scope: &'scope Scope<'scope, 'env>, threads: usize) -> Team<'scope, 'env> {
        Team { scope, threads, jobs: None, shared: Arc::default() }
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Whether too many guesses were wrong.
    pub(super) fn is_misled(&self) -> bool {
        self.shared.wrong.load(Ordering::Relaxed) >= WRONG
    }

    /// Has a stretch decoded that lies at `at` of the blob.
    pub(super) fn decode(&mut self, at: Compressed, begin: Begin, chunks: Vec<Bytes>) -> Ahead {
        let chunks = Arc::new(chunks);
        let (reply, decoded) = sync_channel(1);
        let jobs = self.jobs.get_or_insert_with(|| start(self.scope, self.threads, &self.shared));
        // Without a thread to take it the scan decodes it.
        let _ = jobs.send(Job { at, begin, chunks: Arc::clone(&chunks), reply });
        Ahead { chunks, decoded }
    }
}

fn start<'scope>(scope: &'scope Scope<'scope, '_>, threads: usize, shared: &Arc<Shared>) -> Sender<Job> {
    let (jobs, queue) = channel::<Job>();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..threads {
        let (queue, shared) = (Arc::clone(&queue), Arc::clone(shared));
        scope.spawn(move || {
            loop {
                let next = locked(&queue).recv();
                let Ok(Job { at, begin, chunks, reply }) = next else { break };
                let plain = locked(&shared.idle).pop().unwrap_or_default();
                // Nobody takes it any more if the scan is over.
                let _ = reply.send(Stretch::decode(at, begin, &chunks, plain, PLAIN));
            }
        });
    }
    jobs
}

impl Shared {
    /// Waits for a stretch, and gives it to `scan`.
    pub(super) fn scan(&self, ahead: &Ahead, scan: &mut LayerScan) -> Result<Spans, LayerError> {
        // There is none if its thread panicked, which the end of the scope passes on.
        let stretch = ahead.decoded.recv().unwrap_or_default();
        let decoded = scan.push_decoded(&ahead.chunks, stretch)?;
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
