//! The state that all reads of an image share, and the state of each of its layers.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::claim::OthersIgnored;
use super::in_flight::{Misses, SpansInFlight};
use super::pieces::{Memory, PieceId, SplitHeaders};
use super::race::Pace;
use super::readers::Readers;
use super::recorded_start;
use super::rest_progress::RestProgress;
pub(super) use super::span_of::SpanOf;
use super::start_progress::StartProgress;
use super::windows::{WindowChecks, WindowStore};
use super::{ContentOptions, Counts, ReadError, ReadObserver, ReopenLayer};
use crate::cache::{PIECE, SpanCache, SpanKey, SpanPlace};
use crate::layers::{LayerAccess, OpenLayer};
use ociseek_format::digest::Digest;
use ociseek_format::layer::parallel::cores;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_store::Source;
use ociseek_store::disk_watch::PATIENCE;

/// The most different warnings that are reported.
const WARNINGS: usize = 64;
/// The most compressed bytes in memory at a time, waiting for the rest of their span or for a
/// decoder, in units of [`UNIT`].
const UNITS: usize = (128 << 20) / UNIT as usize;
const UNIT: u64 = 64 << 10;
/// Requests at a time: those for a recorded start, and 8 others.
const REQUESTS: usize = recorded_start::AT_A_TIME + 8;

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
    /// A permit for each span that is being decoded, and that no read or that a read asked for.
    pub decoders: Arc<Semaphore>,
    pub read_decoders: Arc<Semaphore>,
    /// The number of reads that are waiting.
    pub waiting: AtomicUsize,
    /// The number of requests in progress for which a read waits.
    pub waited_for: AtomicUsize,
    pub windows: WindowStore,
    pub start: StartProgress,
    pub rest: RestProgress,
    pub pace: Pace,
    /// How to open a layer whose fine document turned out to be damaged.
    pub reopen: OnceLock<ReopenLayer>,
    /// Who learns of reads.
    pub observer: OnceLock<Arc<dyn ReadObserver>>,
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
            read_decoders: Arc::new(Semaphore::new(threads.clamp(2, 8))),
            waiting: AtomicUsize::new(0),
            waited_for: AtomicUsize::new(0),
            windows,
            start: StartProgress::default(),
            rest: RestProgress::default(),
            pace: Pace::default(),
            reopen: OnceLock::new(),
            observer: OnceLock::new(),
            contradicted: Default::default(),
            warned: Mutex::default(),
        }
    }

    /// A layer with all that is needed to read it.
    pub(super) fn handle(self: &Arc<Self>, layer: LayerId) -> Option<LayerHandle> {
        LayerHandle::new(self, layer)
    }

    /// Whether any fine document has a recorded start.
    pub(super) fn has_recorded_start(&self) -> bool {
        self.layers
            .iter()
            .filter_map(|layer| layer.open.map().fine())
            .any(|head| !head.start().is_empty())
    }

    /// A permit for `bytes` compressed bytes, limited to all permits that exist.
    pub(super) async fn permit(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(UNITS as u32);
        Arc::clone(&self.room).acquire_many_owned(units).await.ok()
    }

    /// Stops reading by the index of a layer that is read in this way, because the layer
    /// contradicts it. What it says of the other layers is then worth as little.
    pub(super) fn contradict(
        &self,
        how: LayerAccess,
        layer: &Digest,
        error: &dyn std::error::Error,
    ) {
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

    /// Counts a failed read, and reports it unless an observer does.
    pub(super) fn failed(&self, error: &ReadError) {
        self.counts.errors.add(1);
        if self.observer.get().is_none() {
            self.report(error);
        }
    }

    /// Reports once why data is not available.
    pub(super) fn report(&self, error: &ReadError) {
        self.warn(causes(error));
    }

    /// Reports a warning once.
    pub(super) fn warn(&self, text: String) {
        let is_new = self
            .warned
            .lock()
            .is_ok_and(|mut warned| warned.len() < WARNINGS && warned.insert(text.clone()));
        if is_new {
            self.progress.report(ProgressEvent::Warning(text));
        }
    }
}

/// Looks at the cache on disk, on a thread that may block. None if its disk does not answer soon.
pub(super) async fn on_disk<T: Send + 'static>(
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    timeout(PATIENCE, spawn_blocking(look)).await.ok()?.ok()
}

/// Adds to a counter while it exists.
pub(super) struct CountGuard<'a>(&'a AtomicUsize, usize);

impl<'a> CountGuard<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> CountGuard<'a> {
        CountGuard::of(count, 1)
    }

    pub(super) fn of(count: &'a AtomicUsize, more: usize) -> CountGuard<'a> {
        count.fetch_add(more, Ordering::Relaxed);
        CountGuard(count, more)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Keeps a flag set while it exists.
pub(super) struct RaisedFlag<'a>(&'a AtomicBool);

impl<'a> RaisedFlag<'a> {
    pub(super) fn new(flag: &'a AtomicBool) -> RaisedFlag<'a> {
        flag.store(true, Ordering::Relaxed);
        RaisedFlag(flag)
    }
}

impl Drop for RaisedFlag<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

pub(super) struct Layer {
    pub open: OpenLayer,
    pub readers: Mutex<Readers>,
    /// Held while the layer is decoded from its start, so only one task does that.
    pub unpacking: tokio::sync::Mutex<()>,
    /// Held while pages of the layer's fine document are fetched.
    pub paging: tokio::sync::Mutex<()>,
    pub split_headers: SplitHeaders,
    pub window_checks: WindowChecks,
    /// What the layer is read by after its fine document turned out to be damaged; None if there is
    /// nothing.
    pub replacement: tokio::sync::OnceCell<Option<Arc<Layer>>>,
    /// Kept because hashing a checkpoint's window takes longer than looking up a span.
    keys: Box<[OnceLock<SpanKey>]>,
}

/// A layer of the image, with all that is needed to read it. Cheap to clone.
#[derive(Clone)]
pub(super) struct LayerHandle {
    pub inner: Arc<Inner>,
    pub layer: Arc<Layer>,
    /// The number of the layer in the image.
    pub id: LayerId,
}

impl Layer {
    pub(super) fn new(open: OpenLayer, options: &ContentOptions) -> Layer {
        let readers = Mutex::new(Readers::new(options.read_ahead));
        let keys = open.spans.each().map(|_| OnceLock::new()).collect();
        let [unpacking, paging] = [(), ()].map(tokio::sync::Mutex::new);
        Layer {
            open,
            readers,
            unpacking,
            paging,
            split_headers: SplitHeaders::default(),
            window_checks: WindowChecks::default(),
            replacement: Default::default(),
            keys,
        }
    }

    pub(super) fn digest(&self) -> Digest {
        self.open.descriptor.digest
    }

    /// The end of the tar, as far as spans hold it.
    pub(super) fn end(&self) -> u64 {
        self.open.spans.plain_end().0
    }

    /// The bytes of the tar that belong to the file at `at`.
    pub(super) fn file_at(&self, at: u64) -> Option<Range<u64>> {
        let range = self.open.map().stored_range(Uncompressed(at))?;
        Some(range.start.0..range.end.0)
    }

    /// Where the cache on disk keeps a span.
    pub(super) fn place(&self, span: SpanId) -> SpanPlace {
        SpanPlace::of(&self.open.spans, span, |span| {
            let key = || SpanKey::of(&self.open.spans, span);
            self.keys.get(span.0 as usize).map_or_else(key, |known| *known.get_or_init(key))
        })
    }

    /// The size of a span in bytes of the tar.
    pub(super) fn size(&self, span: SpanId) -> u64 {
        let plain = self.open.spans.plain_range(span);
        plain.end - plain.start
    }

    /// The range of a span in the blob.
    pub(super) fn blob_range(&self, span: SpanId) -> Range<u64> {
        let range = self.open.spans.blob_range(span);
        range.start.0..range.end.0
    }

    /// The spans that hold bytes of `range`, each with its part of `range` relative to the start of
    /// the span. `range` must be within the tar.
    pub(super) fn parts(&self, range: &Range<u64>) -> Vec<(SpanId, Range<u64>)> {
        let spans = self.open.spans.covering(Uncompressed(range.start)..Uncompressed(range.end));
        let part = |span: SpanId| {
            let plain = self.open.spans.plain_range(span);
            let from = range.start.clamp(plain.start.0, plain.end.0) - plain.start.0;
            let to = range.end.clamp(plain.start.0, plain.end.0) - plain.start.0;
            (span, from..to)
        };
        SpanId::each(spans).map(part).filter(|(_, part)| !part.is_empty()).collect()
    }
}

impl LayerHandle {
    /// None if the image has no such layer.
    pub(super) fn new(inner: &Arc<Inner>, id: LayerId) -> Option<LayerHandle> {
        let layer = Arc::clone(inner.layers.get(id.0 as usize)?);
        Some(LayerHandle { inner: Arc::clone(inner), layer, id })
    }

    pub(super) fn span(&self, span: SpanId) -> SpanOf {
        SpanOf { layer: self.id, span }
    }

    pub(super) fn piece(&self, span: SpanId, number: u32) -> PieceId {
        PieceId { of: self.span(span), number }
    }

    /// Whether the cache on disk has a span.
    pub(super) fn is_on_disk(&self, span: SpanId) -> bool {
        self.inner.cache.has(&self.layer.place(span))
    }

    /// Whether the first and the last piece of a span are in memory.
    pub(super) fn is_in_memory(&self, span: SpanId) -> bool {
        let last = (self.layer.size(span).saturating_sub(1) / PIECE as u64) as u32;
        [0, last].into_iter().all(|piece| self.inner.memory.get(self.piece(span, piece)).is_some())
    }

    /// Whether spans are stored on disk. Not if the blob itself is on disk, uncompressed.
    pub(super) fn keeps_on_disk(&self) -> bool {
        let is_near = !matches!(self.inner.source, Source::Registry(_));
        let cache = &self.inner.cache;
        cache.is_enabled() && !cache.is_silent() && !(is_near && self.layer.open.map().is_plain())
    }

    /// Whether all spans of a layer that is decoded from its start are stored on disk, including
    /// those that were not requested.
    pub(super) fn keeps_whole(&self) -> bool {
        self.keeps_on_disk()
            && self.layer.end() <= self.inner.cache.room_for(self.layer.open.descriptor.size)
    }
}
