//! The options and statistics of reading content, and its errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;

use crate::layers::{OpenError, OpenLayer};
use ociseek_format::digest::Digest;
use ociseek_format::fine::FineError;
use ociseek_format::image::Descriptor;
use ociseek_format::layer::span::SpanError;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_store::StoreError;

/// Opens a layer without its fine document.
pub type ReopenLayer = Arc<dyn Fn(Descriptor) -> BoxFuture<'static, Result<OpenLayer, OpenError>> + Send + Sync>;

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
    /// Whether it was stopped, because too much was not read or could not be fetched.
    pub stopped: bool,
}

/// The purpose for which bytes are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The recorded start, whether or not a read requests it first.
    Start,
    /// Any other read.
    Read,
}

/// The reason for fetching spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FetchCause {
    /// A read waits for one of them.
    Read,
    /// They may be read later.
    Readahead,
}

/// The counters for [`ContentStats`].
#[derive(Default)]
pub(super) struct Counts {
    /// The number of second connections that were tried.
    pub(super) doubled: Count,
    pub(super) start_requests: Count,
    pub(super) start_bytes: Count,
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
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    pub(super) fn stats(&self) -> ContentStats {
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
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
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
    #[error("an index of this image is wrong, so nothing is read by it any more: {why}")]
    Contradicted { why: Arc<str> },
    #[error("layer {layer} cannot be read")]
    Span { layer: Digest, source: SpanError },
    #[error("span {span} of layer {layer} has {bytes} compressed bytes; the limit is {limit}")]
    TooLarge { layer: Digest, span: SpanId, bytes: u64, limit: u64 },
    #[error("layer {layer} cannot be decoded again for its span {span}")]
    Unpack { layer: Digest, span: SpanId, source: Arc<OpenError> },
    /// The program is ending, or the caches lose their content faster than it can be read.
    #[error("span {span} of layer {layer} was fetched and then lost")]
    Lost { layer: Digest, span: SpanId },
}
