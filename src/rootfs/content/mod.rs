//! The bytes of an image's layers.

mod error;
mod model;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

pub use error::ReadError;
pub use model::{ContentOptions, ContentStats};

use super::cache::SpanCache;
use super::layers::OpenLayer;
use crate::offset::{SpanId, Uncompressed};
use crate::progress::Progress;
use crate::store::Source;

/// Reads from the layers of one image. Cheap to clone.
#[derive(Clone)]
pub struct Content {
    inner: Arc<Inner>,
}

#[allow(dead_code, reason = "on its way")]
struct Inner {
    source: Source,
    layers: Vec<OpenLayer>,
    cache: SpanCache,
    options: ContentOptions,
    progress: Arc<dyn Progress>,
}

impl Content {
    pub fn new(
        source: Source,
        layers: Vec<OpenLayer>,
        cache: SpanCache,
        options: ContentOptions,
        progress: Arc<dyn Progress>,
    ) -> Content {
        Content { inner: Arc::new(Inner { source, layers, cache, options, progress }) }
    }

    /// Exactly `size` bytes of a layer's tar from `at` on. Needs a tokio runtime; may be dropped at any time.
    ///
    /// # Errors
    /// When they cannot be had, or are not what the ztoc says.
    pub async fn read(&self, layer: u32, at: Uncompressed, size: usize) -> Result<Bytes, ReadError> {
        let open = self.inner.layers.get(layer as usize).ok_or(ReadError::NoLayer(layer))?;
        let digest = open.descriptor.digest;
        let end = at.0.checked_add(size as u64).ok_or(ReadError::Beyond { layer: digest, at, size })?;
        let mut bytes = BytesMut::new();
        for span in open.spans.covering(at..Uncompressed(end)) {
            let blob = open.spans.blob_range(SpanId(span));
            let fetched = self.inner.source.blob_range(&open.descriptor, blob.start.0..blob.end.0).await;
            let fetched = fetched.map_err(|e| ReadError::Fetch { layer: digest, span, source: Arc::new(e) })?;
            let mut position = open.spans.plain_range(SpanId(span)).start.0;
            let decoded = open.spans.decode(SpanId(span), &fetched, &mut |piece| {
                let from = at.0.clamp(position, position + piece.len() as u64) - position;
                let to = end.clamp(position, position + piece.len() as u64) - position;
                bytes.extend_from_slice(&piece[from as usize..to as usize]);
                position += piece.len() as u64;
                ControlFlow::Continue(())
            });
            decoded.map_err(|source| ReadError::Span { layer: digest, source })?;
        }
        if bytes.len() == size { Ok(bytes.freeze()) } else { Err(ReadError::Beyond { layer: digest, at, size }) }
    }

    /// The spans that hold bytes of `range` of a layer's tar; none for a layer that is not there.
    pub fn spans(&self, layer: u32, range: Range<Uncompressed>) -> Range<u32> {
        self.inner.layers.get(layer as usize).map_or(0..0, |open| open.spans.covering(range))
    }

    /// Fetches all spans that are in no cache, in order, letting reads go first. Returns when that is done.
    pub async fn prefetch(&self) {}

    /// What was done so far.
    pub fn stats(&self) -> ContentStats {
        ContentStats::default()
    }
}
