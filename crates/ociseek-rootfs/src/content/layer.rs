//! The state for reading a layer's content.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use super::inner::Inner;
use super::model::ContentOptions;
use super::pieces::PieceId;
use super::readers::Readers;
use crate::cache::{PIECE, SpanKey};
use crate::layers::OpenLayer;
use ociseek_format::digest::Digest;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_store::Source;

pub(super) struct Layer {
    pub open: OpenLayer,
    pub readers: Mutex<Readers>,
    /// Held while the layer is decoded from its start, so only one task does that.
    pub unpacking: tokio::sync::Mutex<()>,
    /// Held while pages of the layer's fine document are fetched.
    pub paging: tokio::sync::Mutex<()>,
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

/// A span of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SpanOf {
    pub layer: LayerId,
    pub span: SpanId,
}

impl Layer {
    pub(super) fn new(open: OpenLayer, options: &ContentOptions) -> Layer {
        let readers = Mutex::new(Readers::new(open.map(), options.read_ahead));
        let keys = open.spans.each().map(|_| OnceLock::new()).collect();
        let [unpacking, paging] = [(), ()].map(tokio::sync::Mutex::new);
        Layer { open, readers, unpacking, paging, replacement: Default::default(), keys }
    }

    pub(super) fn digest(&self) -> Digest {
        self.open.descriptor.digest
    }

    /// The end of the tar, as far as spans hold it.
    pub(super) fn end(&self) -> u64 {
        self.open.spans.plain_end().0
    }

    pub(super) fn key(&self, span: SpanId) -> SpanKey {
        let key = || SpanKey::of(&self.open.spans, span);
        self.keys.get(span.0 as usize).map_or_else(key, |known| *known.get_or_init(key))
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
        self.inner.cache.has(&self.layer.key(span), self.layer.size(span))
    }

    /// Whether the first and the last piece of a span are in memory.
    pub(super) fn is_in_memory(&self, span: SpanId) -> bool {
        let last = (self.layer.size(span).saturating_sub(1) / PIECE as u64) as u32;
        [0, last].into_iter().all(|piece| self.inner.memory.get(self.piece(span, piece)).is_some())
    }

    /// Whether spans are stored on disk. Not if the blob itself is on disk, uncompressed.
    pub(super) fn keeps_on_disk(&self) -> bool {
        let is_near = !matches!(self.inner.source, Source::Registry(_));
        self.inner.cache.is_enabled() && !(is_near && self.layer.open.map().is_plain())
    }

    /// Whether all spans of a layer that is decoded from its start are stored on disk, including
    /// those that were not requested.
    pub(super) fn keeps_whole(&self) -> bool {
        self.keeps_on_disk() && self.layer.end() <= self.inner.cache.room_for(self.layer.open.descriptor.size)
    }
}
