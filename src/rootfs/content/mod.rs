//! The bytes of an image's layers, by ranges of their tars.
//!
//! A read looks for its spans in memory (`pieces`, of 64 KiB), then in the cache on disk, then it
//! boards their `flights`: of all who want a span, one fetches it (`fetch`), decodes it and fills both
//! caches. A layer without places to start from is decoded from its start (`unpack`). Who
//! reads on gets what comes next before asking (`readers`), `start` brings what a recorded start reads,
//! and `prefetch` the rest. The `windows` of fine documents are fetched as spans need them.
//!
//! Fetches are tasks of their own: a reader that goes away takes nothing from the others. No error
//! is kept: the next read tries again.

mod fetch;
mod flights;
mod inner;
mod layer;
mod model;
mod pieces;
mod prefetch;
mod race;
mod read;
mod readers;
mod recent;
mod start;
mod unpack;
mod windows;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

pub use model::{ContentOptions, ContentStats, ReadError, StartStats};

use super::cache::SpanCache;
use super::layers::OpenLayer;
use crate::image::Descriptor;
use crate::offset::{LayerId, SpanId, Uncompressed};
use crate::progress::Progress;
use crate::store::Source;
use inner::Inner;
use layer::OnLayer;

/// Reads from the layers of one image. Cheap to clone.
#[derive(Clone)]
pub struct Content {
    inner: Arc<Inner>,
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
        Content { inner: Arc::new(Inner::new(source, layers, cache, options, progress)) }
    }

    /// Exactly `size` bytes of a layer's tar from `at` on; `size` should be some MiB at most. Needs
    /// a tokio runtime with time and IO. The future may be dropped at any time.
    ///
    /// # Errors
    /// When they cannot be had within the deadline, or are not what the ztoc says. It is also
    /// reported as a warning, once for each message. A span that has missed the deadline within the
    /// last second is not waited for again.
    pub async fn read(&self, layer: LayerId, at: Uncompressed, size: usize) -> Result<Bytes, ReadError> {
        let read = async { self.on(layer)?.read(at, size).await };
        read.await.inspect_err(|error| self.inner.failed(error))
    }

    /// A read of a sparse file, which fails: a layer has of it what tar made of it.
    ///
    /// # Errors
    /// Always. It is also reported as a warning, once for each layer.
    pub fn read_sparse(&self, layer: LayerId) -> Result<Bytes, ReadError> {
        let read = self.on(layer).and_then(|on| Err(ReadError::Sparse { layer: on.layer.digest() }));
        read.inspect_err(|error| self.inner.failed(error))
    }

    /// The spans that hold bytes of `range` of a layer's tar; none for a layer that is not there.
    pub fn spans(&self, layer: LayerId, range: Range<Uncompressed>) -> Range<SpanId> {
        self.inner.on(layer).map_or(SpanId(0)..SpanId(0), |on| on.layer.open.spans.covering(range))
    }

    /// The layers, lowest first.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &OpenLayer> {
        self.inner.layers.iter().map(|layer| &layer.open)
    }

    /// Fetches the spans that prefetch artifacts list, each for the layer of a number, into the
    /// cache on disk. Without one it ends at once. To stop it, drop it.
    pub async fn prefetch_listed(&self, artifacts: Vec<(LayerId, Descriptor)>) {
        prefetch::artifacts(&self.inner, artifacts).await;
    }

    /// Fetches all spans that the cache on disk lacks, in order, letting reads go first. It ends
    /// when that is done, when the cache is full, or when nothing more can be had; without a cache
    /// on disk, at once. To stop it, drop it.
    pub async fn prefetch(&self) {
        prefetch::prefetch(&self.inner).await;
    }

    /// Fetches what the fine documents record of a start, letting reads go first: into memory as far as
    /// half of it goes, and into the cache on disk. It ends when that is done, when nobody reads what it
    /// fetched, or when nothing more can be had. To stop it, drop it.
    pub async fn fetch_start(&self) {
        start::bring(&self.inner).await;
    }

    /// What became of the recorded start so far.
    pub fn start_stats(&self) -> StartStats {
        self.inner.start.stats()
    }

    /// What was done so far.
    pub fn stats(&self) -> ContentStats {
        self.inner.counts.stats()
    }

    fn on(&self, layer: LayerId) -> Result<OnLayer, ReadError> {
        self.inner.on(layer).ok_or(ReadError::NoLayer(layer))
    }
}
