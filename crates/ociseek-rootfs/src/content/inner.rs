//! The state that all reads of an image share.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::claim::OthersIgnored;
use super::in_flight::{Misses, SpansInFlight};
use super::layer::{Layer, LayerHandle};
use super::model::{ContentOptions, Counts, ReadError, ReopenLayer};
use super::pieces::Memory;
use super::race::Pace;
use super::start::{self, StartProgress};
use super::windows::WindowStore;
use crate::cache::SpanCache;
use crate::layers::{LayerAccess, OpenLayer};
use ociseek_format::digest::Digest;
use ociseek_format::layer::parallel::cores;
use ociseek_format::offset::LayerId;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_store::Source;

/// The most different warnings that are reported.
const WARNINGS: usize = 64;
/// The most compressed bytes in memory at a time, waiting for the rest of their span or for a
/// decoder, in units of [`UNIT`].
const UNITS: usize = (128 << 20) / UNIT as usize;
const UNIT: u64 = 64 << 10;
/// Requests at a time: those for a recorded start, and 8 others.
const REQUESTS: usize = start::AT_A_TIME + 8;

pub(super) struct Inner {
    pub source: Source,
    /// Equal layers share one of these.
    pub layers: Vec<Arc<Layer>>,
    pub cache: SpanCache,
    pub options: ContentOptions,
    pub progress: Arc<dyn Progress>,
    pub memory: Memory,
    pub in_flight: SpansInFlight,
    pub misses: Misses,
    pub others_ignored: OthersIgnored,
    pub counts: Counts,
    /// Permits for compressed bytes.
    room: Arc<Semaphore>,
    /// A permit for each request in progress.
    pub requests: Semaphore,
    /// A permit for each span that is being decoded.
    pub decoders: Arc<Semaphore>,
    /// The number of reads that are waiting.
    pub waiting: AtomicUsize,
    /// The number of requests in progress for which a read waits.
    pub waited_for: AtomicUsize,
    pub windows: WindowStore,
    pub start: StartProgress,
    pub pace: Pace,
    /// How to open a layer whose fine document turned out to be damaged.
    pub reopen: OnceLock<ReopenLayer>,
    /// Why the fine index, and the SOCI index, are not used any more.
    contradicted: [OnceLock<Arc<str>>; 2],
    /// The warnings reported so far.
    warned: Mutex<BTreeSet<String>>,
}

impl Inner {
    pub(super) fn new(
        source: Source,
        layers: Vec<OpenLayer>,
        cache: SpanCache,
        options: ContentOptions,
        progress: Arc<dyn Progress>,
    ) -> Inner {
        let counts = Counts::default();
        let mut seen = BTreeSet::new();
        for layer in layers.iter().filter(|layer| seen.insert(layer.descriptor.digest)) {
            counts.image_bytes.add(layer.descriptor.size);
            counts.bytes_fetched.add(layer.bytes_read);
            counts.requests.add(u64::from(layer.bytes_read > 0));
        }
        if let Source::Registry(repository) = &source
            && options.retry_forever
        {
            // Reads are only limited by their deadline: a registry that restarts must not be an
            // error to programs.
            repository.retry_forever();
        }
        let windows = WindowStore::new(&layers);
        let mut once: HashMap<(Digest, u64), Arc<Layer>> = HashMap::new();
        let shared = |open: OpenLayer| {
            let blob = (open.descriptor.digest, open.descriptor.size);
            Arc::clone(once.entry(blob).or_insert_with(|| Arc::new(Layer::new(open, &options))))
        };
        let layers = layers.into_iter().map(shared).collect();
        let threads = cores();
        Inner {
            source,
            layers,
            cache,
            progress,
            memory: Memory::new(options.memory),
            misses: Misses::new(options.deadline),
            options,
            in_flight: SpansInFlight::default(),
            others_ignored: OthersIgnored::default(),
            counts,
            room: Arc::new(Semaphore::new(UNITS)),
            requests: Semaphore::new(REQUESTS),
            decoders: Arc::new(Semaphore::new(threads.clamp(2, 8))),
            waiting: AtomicUsize::new(0),
            waited_for: AtomicUsize::new(0),
            windows,
            start: StartProgress::default(),
            pace: Pace::default(),
            reopen: OnceLock::new(),
            contradicted: Default::default(),
            warned: Mutex::default(),
        }
    }

    /// A layer with all that is needed to read it.
    pub(super) fn on(self: &Arc<Self>, layer: LayerId) -> Option<LayerHandle> {
        LayerHandle::new(self, layer)
    }

    /// Whether any fine document has a recorded start.
    pub(super) fn has_recorded_start(&self) -> bool {
        self.layers.iter().filter_map(|layer| layer.open.map().fine()).any(|head| !head.start().is_empty())
    }

    /// A permit for `bytes` compressed bytes, limited to all permits that exist.
    pub(super) async fn permit(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(UNITS as u32);
        Arc::clone(&self.room).acquire_many_owned(units).await.ok()
    }

    /// Stops reading by the index of a layer that is read in this way, because the layer
    /// contradicts it. What it says of the other layers is then worth as little.
    pub(super) fn contradict(&self, how: LayerAccess, layer: &Digest, error: &dyn std::error::Error) {
        if let Some(known) = self.verdict_on(how) {
            let _ = known.set(format!("layer {layer}: {}", causes(error)).into());
        }
    }

    /// The error of a read by an index that a layer contradicted.
    pub(super) fn check_index(&self, how: LayerAccess) -> Result<(), ReadError> {
        match self.verdict_on(how).and_then(OnceLock::get) {
            Some(why) => Err(ReadError::Contradicted { why: Arc::clone(why) }),
            None => Ok(()),
        }
    }

    fn verdict_on(&self, how: LayerAccess) -> Option<&OnceLock<Arc<str>>> {
        let [fine, soci] = &self.contradicted;
        match how {
            LayerAccess::Fine => Some(fine),
            LayerAccess::Index => Some(soci),
            LayerAccess::Local | LayerAccess::Whole => None,
        }
    }

    /// Counts and reports a failed read.
    pub(super) fn failed(&self, error: &ReadError) {
        self.counts.errors.add(1);
        self.report(error);
    }

    /// Reports once why data is not available.
    pub(super) fn report(&self, error: &ReadError) {
        self.warn(causes(error));
    }

    /// Reports a warning once.
    pub(super) fn warn(&self, text: String) {
        let is_new = self.warned.lock().is_ok_and(|mut warned| warned.len() < WARNINGS && warned.insert(text.clone()));
        if is_new {
            self.progress.report(ProgressEvent::Warning(text));
        }
    }
}

/// Increments a counter while it exists.
pub(super) struct CountGuard<'a>(&'a AtomicUsize);

impl<'a> CountGuard<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> CountGuard<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        CountGuard(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
