//! Reads ranges of the tars of an image's layers.
//!
//! A read looks for its spans in memory (`pieces`, of 64 KiB), then in the cache on disk, and then
//! joins their fetches (`in_flight`): one of the tasks that want a span fetches it (`fetch`),
//! decodes it and adds it to both caches. Images of one process do not fetch what another is
//! fetching (`claim`). A layer that cannot be decoded from a checkpoint is decoded from
//! its start, and one whose fine document is damaged is opened without it (both `unpack`).
//! For sequential readers, the following bytes are fetched in advance (`readers`).
//! `recorded_start` fetches a recorded start, `prefetch` what lists name, and `rest` all that is
//! left. The `windows` of fine documents are fetched as spans need them.
//!
//! `tests/schedules` includes `in_flight`, `lru` and `read` in a program that tries many orders of
//! their steps. So these files use little of the rest.
//!
//! Fetches are independent tasks, so a reader that disappears does not affect others. Errors are
//! not remembered: the next read tries again.

mod budget;
mod claim;
mod fetch;
mod in_flight;
mod inner;
mod lru;
mod observer;
mod pieces;
mod prefetch;
mod race;
mod read;
mod readers;
mod recorded_start;
mod rest;
mod rest_progress;
mod span_of;
mod start_progress;
mod unpack;
mod windows;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::cache::SpanCache;
use crate::layers::{OpenError, OpenLayer};
use budget::ReadBudget;
use inner::{Inner, LayerHandle};
pub use observer::ReadObserver;
use ociseek_format::digest::Digest;
use ociseek_format::fine::FineError;
use ociseek_format::image::Descriptor;
use ociseek_format::layer::span::SpanError;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_format::printable::exact_size;
use ociseek_format::progress::Progress;
use ociseek_format::tree::{Extent, NodeKind};
use ociseek_store::{Source, StoreError};
pub use recorded_start::StartArrivals;
pub use rest::BackgroundFetches;
pub use rest_progress::RestStats;

/// The content of an image's layers. Cheap to clone.
#[derive(Clone)]
pub struct Content {
    inner: Arc<Inner>,
}

ociseek_format::opaque_debug!(Content);

impl Content {
    /// The content of `layers`, which were opened from `source`.
    pub fn new(
        source: Source,
        layers: Vec<OpenLayer>,
        cache: SpanCache,
        options: ContentOptions,
        progress: Arc<dyn Progress>,
    ) -> Content {
        Content { inner: Arc::new(Inner::new(source, layers, cache, options, progress)) }
    }

    /// Exactly `size` bytes of a layer's tar, starting at `at`; `size` should be at most a few MiB.
    /// Needs a tokio runtime with time and IO, except for its first poll: that returns bytes which
    /// are in memory, even if only the system has them there as a part of the cache on disk, and it
    /// never blocks. The future may be dropped at any time.
    ///
    /// # Errors
    /// If the bytes cannot be fetched within the deadline, or do not match the ztoc. Each error
    /// message is also reported as a warning once. A read fails at once if its span missed the
    /// deadline within the last second.
    pub async fn read(
        &self,
        layer: LayerId,
        at: Uncompressed,
        size: usize,
    ) -> Result<Bytes, ReadError> {
        let budget = ReadBudget::new(self.inner.options.deadline);
        let read = async {
            let handle = self.handle(layer)?;
            if let Some(other) = handle.replacement() {
                return other.read(at, size, budget).await;
            }
            match handle.read(at, size, budget).await {
                Ok(bytes) => Ok(bytes),
                Err(error) => handle.read_without_document(error, at, size, budget).await,
            }
        };
        let result = read.await.inspect_err(|error| self.inner.failed(error));
        if let Some(observer) = self.inner.observer.get() {
            observer.observe(budget.elapsed(), result.as_ref().err());
        }
        result
    }

    /// Changes [`ContentOptions::memory`] for the content read from now on, and drops what exceeds
    /// it.
    pub fn limit_memory(&self, bytes: u64) {
        self.inner.memory.limit(bytes);
    }

    /// How many bytes of decoded content are in memory.
    pub fn memory(&self) -> u64 {
        self.inner.memory.bytes()
    }

    /// Drops what is in memory and was not read since the last call, if the cache on disk has such
    /// content, too.
    pub fn drop_unused(&self) {
        if self.inner.cache.is_enabled() {
            self.inner.memory.drop_unused();
        }
    }

    /// The same content. A layer whose fine document turns out to be damaged is opened by `reopen`
    /// and read by that; otherwise its reads fail.
    #[must_use]
    pub fn with_reopen(self, reopen: ReopenLayer) -> Content {
        let _ = self.inner.reopen.set(reopen);
        self
    }

    /// The same content. `observer` learns of its reads, and reports those that fail.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn ReadObserver>) -> Content {
        let _ = self.inner.observer.set(observer);
        self
    }

    /// Exactly the bytes of `range` of a regular file; otherwise like [`Content::read`].
    ///
    /// # Errors
    /// As for [`Content::read`].
    pub async fn read_file(&self, file: &NodeKind, range: Range<u64>) -> Result<Bytes, ReadError> {
        let stored = match file.stored_in(range.clone()) {
            Some(Extent { layer, offset, size }) if size > 0 => {
                self.read(layer, offset, size as usize).await?
            }
            _ => Bytes::new(),
        };
        Ok(file.expand(range, &stored).map_or(stored, Bytes::from))
    }

    /// The spans that hold bytes of `range` in a layer's tar. Empty if there is no such layer.
    pub fn spans(&self, layer: LayerId, range: Range<Uncompressed>) -> Range<SpanId> {
        self.inner
            .handle(layer)
            .map_or(SpanId(0)..SpanId(0), |handle| handle.layer.open.spans.covering(range))
    }

    /// The layers, lowest first.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &OpenLayer> {
        self.inner.layers.iter().map(|layer| &layer.open)
    }

    /// Fetches the spans that prefetch artifacts list into the cache on disk. Each artifact comes
    /// with the number of its layer. Without such a cache it ends at once. Drop the future to stop
    /// it.
    pub async fn prefetch_artifacts(&self, artifacts: Vec<(LayerId, Descriptor)>) {
        prefetch::fetch_artifacts(&self.inner, artifacts).await;
    }

    /// Fetches all spans that are missing in the cache on disk, what is likely to be read first,
    /// giving priority to reads. Ends when all are fetched or the cache is full; without a cache on
    /// disk it ends at once. Drop the future to stop it.
    pub async fn fetch_rest(&self, shared: &BackgroundFetches) {
        rest::fetch(&self.inner, shared).await;
    }

    /// How far [`Content::fetch_rest`] has come, if it was called.
    pub fn rest_stats(&self) -> Option<RestStats> {
        self.inner.rest.stats()
    }

    /// Fetches the recorded starts of the fine documents, giving priority to reads: into up to half
    /// of the memory, and into the cache on disk. Ends when all is fetched, when its spans are not
    /// read for a minute, or when fetching fails. Drop the future to stop it.
    pub async fn fetch_start(&self) {
        recorded_start::fetch(&self.inner).await;
    }

    /// Puts what the cache on disk has of the recorded starts into up to half of the memory.
    /// Blocks.
    pub fn load_start(&self) {
        recorded_start::load(&self.inner);
    }

    /// The ranges of layers that the recorded start reads, approximately in its order.
    pub fn recorded_start(&self) -> Vec<(LayerId, Range<Uncompressed>)> {
        recorded_start::ranges(&self.inner)
    }

    /// What [`Content::fetch_start`] fetches, as it arrives. None if that was not called, or if a
    /// caller has it already.
    pub fn start_arrivals(&self) -> Option<StartArrivals> {
        StartArrivals::of(&self.inner)
    }

    /// Whether any fine document has a recorded start.
    pub fn has_recorded_start(&self) -> bool {
        self.inner.has_recorded_start()
    }

    /// Whether the cache had a span of a layer before this image was opened: it is on disk or in
    /// memory, and was not fetched in advance. Blocks.
    pub fn is_from_cache(&self, layer: LayerId, span: SpanId) -> bool {
        let is_from_cache = |handle: LayerHandle| {
            (handle.is_in_memory(span) || handle.is_on_disk(span))
                && !self.inner.start.is_unread(handle.span(span))
        };
        self.inner.handle(layer).is_some_and(is_from_cache)
    }

    /// The same bytes as [`Content::read`], if they need not be fetched. It does not count as a
    /// program's read. The first poll never blocks, as in [`Content::read`].
    pub async fn read_at_hand(
        &self,
        layer: LayerId,
        at: Uncompressed,
        size: usize,
    ) -> Option<Bytes> {
        self.inner
            .handle(layer)
            .filter(|handle| handle.replacement().is_none())?
            .read_at_hand(at, size)
            .await
    }

    /// The progress of the recorded start.
    pub fn start_stats(&self) -> StartStats {
        self.inner.start.stats()
    }

    /// The statistics so far.
    pub fn stats(&self) -> ContentStats {
        self.inner.counts.stats()
    }

    fn handle(&self, layer: LayerId) -> Result<LayerHandle, ReadError> {
        self.inner.handle(layer).ok_or(ReadError::NoLayer(layer))
    }
}

/// Opens a layer without its fine document.
pub type ReopenLayer =
    Arc<dyn Fn(Descriptor) -> BoxFuture<'static, Result<OpenLayer, OpenError>> + Send + Sync>;

/// Options for reading layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentOptions {
    /// The time limit of a read.
    pub deadline: Duration,
    /// Whether requests to a registry are retried until the deadline, whatever its client's limits.
    pub retry_forever: bool,
    /// How many bytes of decoded content are kept in memory.
    pub memory: u64,
    /// The most bytes of a file that are fetched ahead of a sequential reader; 0 for none.
    pub read_ahead: u64,
    /// How many compressed bytes of a recorded start may have been fetched without being read.
    /// Above this, no more are fetched.
    pub unread: u64,
}

impl Default for ContentOptions {
    fn default() -> ContentOptions {
        ContentOptions {
            deadline: Duration::from_secs(60),
            retry_forever: true,
            memory: 64 << 20,
            read_ahead: 16 << 20,
            unread: 64 << 20,
        }
    }
}

/// Statistics since the image was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ContentStats {
    /// The number of requests for layers or parts of them, without redirects and tokens.
    pub requests: u64,
    /// The number of bytes of layers, and of windows for decoding them, that came from the store.
    pub bytes_fetched: u64,
    /// The number of these requests that were only for spans of the recorded start.
    pub start_requests: u64,
    /// The number of bytes that these requests returned.
    pub start_bytes: u64,
    /// The number of decoded spans, whatever the source of their bytes.
    pub spans_decoded: u64,
    /// The number of parts of spans served from memory or from the cache on disk.
    pub memory_hits: u64,
    /// The number of spans found in the cache on disk.
    pub disk_hits: u64,
    /// The number of requests that were repeated because they failed or returned wrong bytes.
    pub retries: u64,
    /// The number of failed reads.
    pub errors: u64,
    /// The size of all layers in the store, in bytes.
    pub image_bytes: u64,
}

/// The progress of the recorded start in the image's fine documents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StartStats {
    /// The number of spans that were fetched before they were requested.
    pub spans: u64,
    /// The size of the compressed bytes of those spans that were not read yet.
    pub unread_bytes: u64,
    /// Whether it waits or has ended, because too much was not read or could not be fetched.
    pub stopped: bool,
}

/// The purpose for which bytes are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The recorded start, whether or not a read requests it first.
    Start,
    /// Any other read.
    Read,
}

/// The reason for fetching spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FetchCause {
    /// A read waits for one of them.
    Read,
    /// They may be read later.
    Readahead,
}

/// The counters for [`ContentStats`].
#[derive(Default)]
struct Counts {
    /// The number of second connections that were tried.
    doubled: Count,
    start_requests: Count,
    start_bytes: Count,
    pub requests: Count,
    pub bytes_fetched: Count,
    pub spans_decoded: Count,
    pub memory_hits: Count,
    pub disk_hits: Count,
    pub retries: Count,
    pub errors: Count,
    pub image_bytes: Count,
}

#[derive(Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    fn stats(&self) -> ContentStats {
        ContentStats {
            requests: self.requests.get(),
            bytes_fetched: self.bytes_fetched.get(),
            start_requests: self.start_requests.get(),
            start_bytes: self.start_bytes.get(),
            spans_decoded: self.spans_decoded.get(),
            memory_hits: self.memory_hits.get(),
            disk_hits: self.disk_hits.get(),
            retries: self.retries.get(),
            errors: self.errors.get(),
            image_bytes: self.image_bytes.get(),
        }
    }
}

/// A failed read. The next read tries again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    #[error("no layer {0}")]
    NoLayer(LayerId),
    #[error("layer {layer} has no {size} bytes at byte {at} of its tar")]
    Beyond { layer: Digest, at: Uncompressed, size: usize },
    #[error("cannot fetch span {span} of layer {layer}")]
    Fetch { layer: Digest, span: SpanId, source: Arc<StoreError> },
    #[error("span {span} of layer {layer} did not arrive within {} s", after.as_secs_f32())]
    Deadline { layer: Digest, span: SpanId, after: Duration },
    #[error("cannot fetch a page of the fine document of layer {layer}")]
    Window { layer: Digest, source: Arc<StoreError> },
    #[error("the fine document of layer {layer} cannot be read")]
    Page { layer: Digest, source: FineError },
    /// `why` is what the layer says against the index, or against what the index has for another
    /// layer.
    #[error("an index of this image is wrong, so ociseek stops using it: {why}")]
    Contradicted { why: Arc<str> },
    #[error("layer {layer} cannot be read")]
    Span { layer: Digest, source: SpanError },
    #[error("span {span} of layer {layer} has {bytes} compressed bytes; the limit is {}", exact_size(*limit))]
    TooLarge { layer: Digest, span: SpanId, bytes: u64, limit: u64 },
    #[error("layer {layer} cannot be decoded again for its span {span}")]
    Unpack { layer: Digest, span: SpanId, source: Arc<OpenError> },
    /// The program is ending, or the caches lose their content faster than it can be read.
    #[error("span {span} of layer {layer} was fetched and then lost")]
    Lost { layer: Digest, span: SpanId },
}
