//! How content is read, what was done for that, and why a read failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::digest::Digest;
use crate::fine::FineError;
use crate::layer::span::SpanError;
use crate::offset::{LayerId, SpanId, Uncompressed};
use crate::rootfs::layers::OpenError;
use crate::store::StoreError;

/// How layers are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentOptions {
    /// When a read is given up.
    pub deadline: Duration,
    /// Bytes of decoded content that are kept in memory.
    pub memory: u64,
    /// Bytes of a file, at most, that are fetched ahead of someone who reads it from front to back; 0 for none.
    pub read_ahead: u64,
    /// Compressed bytes of a recorded start that may have been fetched and not read: with more, no more is fetched.
    pub unread: u64,
}

impl Default for ContentOptions {
    fn default() -> ContentOptions {
        ContentOptions { deadline: Duration::from_secs(60), memory: 64 << 20, read_ahead: 16 << 20, unread: 64 << 20 }
    }
}

/// What was done since the image was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ContentStats {
    /// Requests for layers or parts of them. Redirects and tokens do not count.
    pub requests: u64,
    /// Bytes of layers, and of the windows to decode them with, that came from the store.
    pub bytes_fetched: u64,
    /// Those of the requests that were for spans of the recorded start alone.
    pub start_requests: u64,
    /// The bytes that those requests brought.
    pub start_bytes: u64,
    /// Spans that were decoded, in whatever way their bytes came.
    pub spans_decoded: u64,
    /// Parts of spans that were served from memory, and from the cache on disk.
    pub memory_hits: u64,
    /// Spans that the cache on disk had.
    pub disk_hits: u64,
    /// Requests that were repeated since they failed or brought wrong bytes.
    pub retries: u64,
    /// Reads that failed.
    pub errors: u64,
    /// The bytes of all layers as the store holds them.
    pub image_bytes: u64,
}

/// What became of the recorded start of the image's fine documents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StartStats {
    /// Spans that were fetched before anybody asked for them.
    pub spans: u64,
    /// Compressed bytes of those spans that nobody has read yet.
    pub unread_bytes: u64,
    /// It was given up: too much was not read, or could not be had.
    pub stopped: bool,
}

/// What bytes are fetched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The recorded start, whoever asks first.
    Start,
    /// Whatever is read beside it.
    Reading,
}

/// [`ContentStats`] while they are counted.
#[derive(Default)]
pub(super) struct Counts {
    /// Second connections that were tried.
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

/// A failed read. It says nothing of the next one: that tries again.
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
    #[error("layer {layer} cannot be read")]
    Span { layer: Digest, source: SpanError },
    #[error("span {span} of layer {layer} has {bytes} compressed bytes; the limit is {limit}")]
    TooLarge { layer: Digest, span: SpanId, bytes: u64, limit: u64 },
    #[error("layer {layer} cannot be decoded again for its span {span}")]
    Unpack { layer: Digest, span: SpanId, source: Arc<OpenError> },
    #[error("a file of layer {layer} cannot be read: sparse files are not expanded")]
    Sparse { layer: Digest },
    /// The program is ending, or the caches lose their content faster than it can be read.
    #[error("span {span} of layer {layer} was fetched and then lost")]
    Lost { layer: Digest, span: SpanId },
}
