//! One layer as its content is read.

use std::ops::Range;
use std::sync::{Mutex, OnceLock};

use super::ahead::Ahead;
use super::model::ContentOptions;
use crate::offset::{SpanId, Uncompressed};
use crate::rootfs::cache::SpanKey;
use crate::rootfs::layers::OpenLayer;

pub(super) struct Layer {
    pub open: OpenLayer,
    pub ahead: Mutex<Ahead>,
    /// Held by whoever decodes the layer from its start: once is enough for all.
    pub again: tokio::sync::Mutex<()>,
    /// Hashing a checkpoint's window takes longer than looking a span up.
    keys: Box<[OnceLock<SpanKey>]>,
}

impl Layer {
    pub fn new(open: OpenLayer, options: &ContentOptions) -> Layer {
        let ahead = Mutex::new(Ahead::new(open.map(), options.read_ahead));
        let keys = (0..open.spans.count()).map(|_| OnceLock::new()).collect();
        Layer { open, ahead, again: tokio::sync::Mutex::default(), keys }
    }

    /// The bytes of tar that there are.
    pub fn end(&self) -> u64 {
        self.open.spans.plain_end().0
    }

    pub fn key(&self, span: u32) -> SpanKey {
        let key = || SpanKey::of(&self.open.spans, SpanId(span));
        self.keys.get(span as usize).map_or_else(key, |known| *known.get_or_init(key))
    }

    /// Bytes of tar in a span.
    pub fn size(&self, span: u32) -> u64 {
        let plain = self.open.spans.plain_range(SpanId(span));
        plain.end - plain.start
    }

    /// Where a span lies in the blob.
    pub fn blob_range(&self, span: u32) -> Range<u64> {
        let range = self.open.spans.blob_range(SpanId(span));
        range.start.0..range.end.0
    }

    /// The spans that hold bytes of `range`, each with the bytes of it, counted from its start. `range` is within the tar.
    pub fn parts(&self, range: &Range<u64>) -> Vec<(u32, Range<u64>)> {
        let spans = self.open.spans.covering(Uncompressed(range.start)..Uncompressed(range.end));
        let part = |span: SpanId| {
            let plain = self.open.spans.plain_range(span);
            let from = range.start.clamp(plain.start.0, plain.end.0) - plain.start.0;
            let to = range.end.clamp(plain.start.0, plain.end.0) - plain.start.0;
            (span.0, from..to)
        };
        SpanId::each(spans).map(part).filter(|(_, part)| !part.is_empty()).collect()
    }
}
