//! The bytes of an image's layers, by ranges of their tars.
//!
//! A read looks for its spans in memory (`memory`, in pieces of 64 KiB), then in the cache on disk, then it boards their flights
//! (`flights`): of all who want a span, one fetches it (`fetch`), decodes it (`decode`) and fills both caches. A layer without places
//! to start from is decoded anew (`again`). Who reads on gets what comes next before asking (`ahead`), and `prefetch` brings the rest.
//!
//! Fetches are tasks of their own: a reader that goes away takes nothing from the others. No error is kept: the next read tries again.

mod again;
mod ahead;
mod counts;
mod decode;
mod error;
mod fetch;
mod flights;
mod late;
mod layer;
mod memory;
mod model;
mod pieces;
mod prefetch;
mod read;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::Semaphore;

pub use error::ReadError;
pub use model::{ContentOptions, ContentStats};

use super::cache::SpanCache;
use super::layers::OpenLayer;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::offset::{SpanId, Uncompressed};
use crate::progress::{Event, Progress, causes};
use crate::store::Source;
use counts::Counts;
use flights::Flights;
use late::Late;
use layer::Layer;
use memory::Memory;

/// Different warnings that are given.
const WARNINGS: usize = 64;

/// Reads from the layers of one image. Cheap to clone.
#[derive(Clone)]
pub struct Content {
    inner: Arc<Inner>,
}

struct Inner {
    source: Source,
    /// The same layer twice is one of these.
    layers: Vec<Arc<Layer>>,
    cache: SpanCache,
    options: ContentOptions,
    progress: Arc<dyn Progress>,
    memory: Memory,
    flights: Flights,
    late: Late,
    counts: Counts,
    /// Room for compressed bytes.
    room: Arc<Semaphore>,
    /// One for each request that may be under way.
    lines: Semaphore,
    /// One for each span that may be decoded at a time.
    decoders: Arc<Semaphore>,
    /// Reads that wait for something.
    waiting: AtomicUsize,
    /// The warnings that were given.
    told: Mutex<BTreeSet<String>>,
}

impl Content {
    /// The content of `layers`, which were opened from `source`.
    pub fn new(
        source: Source,
        layers: Vec<OpenLayer>,
        cache: SpanCache,
        options: ContentOptions,
        progress: Arc<dyn Progress>,
    ) -> Content {
        let counts = Counts::default();
        let mut seen = BTreeSet::new();
        for layer in layers.iter().filter(|layer| seen.insert(layer.descriptor.digest)) {
            counts.image_bytes.add(layer.descriptor.size);
            counts.bytes_fetched.add(layer.bytes_read);
            counts.requests.add(u64::from(layer.bytes_read > 0));
        }
        if let Source::Registry(repository) = &source {
            // The deadline of a read is its only limit: a registry that restarts is no error to a file's reader.
            repository.outlast_outages();
        }
        let mut once: HashMap<(Digest, u64), Arc<Layer>> = HashMap::new();
        let mut shared = |open: OpenLayer| {
            let blob = (open.descriptor.digest, open.descriptor.size);
            Arc::clone(once.entry(blob).or_insert_with(|| Arc::new(Layer::new(open, &options))))
        };
        let layers = layers.into_iter().map(&mut shared).collect();
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let inner = Inner {
            source,
            layers,
            cache,
            progress,
            memory: Memory::new(options.memory),
            late: Late::new(options.deadline),
            options,
            flights: Flights::default(),
            counts,
            room: Arc::new(Semaphore::new(fetch::UNITS)),
            lines: Semaphore::new(fetch::LINES),
            decoders: Arc::new(Semaphore::new(threads.clamp(2, 8))),
            waiting: AtomicUsize::new(0),
            told: Mutex::default(),
        };
        Content { inner: Arc::new(inner) }
    }

    /// Exactly `size` bytes of a layer's tar from `at` on; `size` should be some MiB at most. Needs a tokio runtime with time and IO. The
    /// future may be dropped at any time.
    ///
    /// # Errors
    /// When they cannot be had within the deadline, or are not what the ztoc says. It is also reported as a warning, once for each
    /// message. A span that has missed the deadline within the last second is not waited for again.
    pub async fn read(&self, layer: u32, at: Uncompressed, size: usize) -> Result<Bytes, ReadError> {
        read::read(&self.inner, layer, at, size).await.inspect_err(|error| self.inner.failed(error))
    }

    /// A read of a sparse file, which fails: a layer has of it what tar made of it.
    ///
    /// # Errors
    /// Always. It is also reported as a warning, once for each layer.
    pub fn read_sparse(&self, layer: u32) -> Result<Bytes, ReadError> {
        let layer = self.inner.layers.get(layer as usize).ok_or(ReadError::NoLayer(layer));
        let read = layer.and_then(|layer| Err(ReadError::Sparse { layer: layer.open.descriptor.digest }));
        read.inspect_err(|error| self.inner.failed(error))
    }

    /// The spans that hold bytes of `range` of a layer's tar; none for a layer that is not there.
    pub fn spans(&self, layer: u32, range: Range<Uncompressed>) -> Range<SpanId> {
        self.inner.layers.get(layer as usize).map_or(SpanId(0)..SpanId(0), |layer| layer.open.spans.covering(range))
    }

    /// The layers, lowest first.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &OpenLayer> {
        self.inner.layers.iter().map(|layer| &layer.open)
    }

    /// Fetches the spans that prefetch artifacts list, each for the layer of a number, into the
    /// cache on disk. Without one it ends at once. To stop it, drop it.
    pub async fn prefetch_listed(&self, artifacts: Vec<(u32, Descriptor)>) {
        prefetch::artifacts(&self.inner, artifacts).await;
    }

    /// Fetches all spans that the cache on disk lacks, in order, letting reads go first. It ends when that is done, when the cache
    /// is full, or when nothing more can be had; without a cache on disk, at once. To stop it, drop it.
    pub async fn prefetch(&self) {
        prefetch::prefetch(&self.inner).await;
    }

    /// What was done so far.
    pub fn stats(&self) -> ContentStats {
        self.inner.counts.stats()
    }
}

impl Inner {
    /// Whether spans of a layer go to the disk: not where they lie there as they are.
    fn keeps_on_disk(&self, layer: &Layer) -> bool {
        let is_near = !matches!(self.source, Source::Registry(_));
        self.cache.is_enabled() && !(is_near && layer.open.map().is_plain())
    }

    /// Whether all spans of a layer that is decoded whole go to the disk, also those that nobody has asked for.
    fn keeps_whole(&self, layer: &Layer) -> bool {
        self.keeps_on_disk(layer) && layer.end() <= self.cache.room_for(layer.open.descriptor.size)
    }

    /// A read has failed.
    fn failed(&self, error: &ReadError) {
        self.counts.errors.add(1);
        self.tell(error);
    }

    fn tell(&self, error: &ReadError) {
        self.warn(causes(error));
    }

    /// Warns once.
    fn warn(&self, text: String) {
        let is_new = self.told.lock().is_ok_and(|mut told| told.len() < WARNINGS && told.insert(text.clone()));
        if is_new {
            self.progress.report(Event::Warning(text));
        }
    }
}
