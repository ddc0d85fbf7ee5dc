//! Where the spans of a layer begin, and what proves their bytes.

use std::ops::Range;

use super::{BLOCK, FineError};
use crate::codec::WINDOW;
use crate::digest::{Algorithm, ChainState, Digest, Hasher};
use crate::offset::{Compressed, SpanId, Uncompressed};

/// How a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Not at all: the blob is the tar, and spans are slices of equal size.
    Plain,
    /// One gzip member, or several in a row.
    Gzip,
}

/// A place where decoding can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FineStart {
    /// The first compressed byte with no bit used yet.
    pub input: Compressed,
    /// Where the plain data go on from here.
    pub output: Uncompressed,
    /// How many high bits (0..=7) of the byte before `input` belong to the block that starts here.
    pub bits: u8,
    /// The state of the blob's SHA-256 at the span's border.
    pub state: ChainState,
}

impl FineStart {
    /// The first byte of the blob that belongs to the span.
    pub(crate) fn first(&self) -> u64 {
        self.input.0 - u64::from(self.bits != 0)
    }

    /// The end of the SHA-256 block that `input` is in, or `input` itself between two blocks: from
    /// here on bytes are fetched for this span, and no more for the one before.
    pub(crate) fn border(&self) -> u64 {
        self.input.0.next_multiple_of(BLOCK)
    }
}

/// The spans of one layer. Their fetched ranges end at borders, which are multiples of 64 bytes; what
/// the next span has before its border, its lead, stands in the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FineSpans {
    layer: Digest,
    codec: Codec,
    blob_size: u64,
    tar_end: Uncompressed,
    span_size: u64,
    starts: Vec<FineStart>,
}

/// What [`FineSpans::new`] makes spans of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanParts {
    /// The layer's digest, a SHA-256.
    pub layer: Digest,
    /// How it is compressed.
    pub codec: Codec,
    /// Bytes of the blob.
    pub blob_size: u64,
    /// Where the tar's reader stopped.
    pub tar_end: Uncompressed,
    /// Bytes of tar between two checkpoints, at least: 32 KiB or more, and a multiple of 64.
    pub span_size: u64,
    /// Where spans begin. The first one's state is ignored: it is before the blob.
    pub starts: Vec<FineStart>,
}

impl FineSpans {
    /// # Errors
    /// If spans are not in order or not within the layer, if two borders are the same, or if they are
    /// not those of a plain tar.
    pub fn new(parts: SpanParts) -> Result<FineSpans, FineError> {
        let SpanParts { layer, codec, blob_size, tar_end, span_size, mut starts } = parts;
        if layer.algorithm() != Algorithm::Sha256 {
            return Err(FineError::Algorithm(layer));
        }
        if span_size < WINDOW as u64 || !span_size.is_multiple_of(BLOCK) {
            return Err(FineError::SpanSize(span_size));
        }
        // Offsets are added to each other.
        let is_past = codec == Codec::Plain && tar_end.0 > blob_size;
        if is_past || blob_size > i64::MAX as u64 || tar_end.0 > i64::MAX as u64 {
            return Err(FineError::Number("sizes"));
        }
        let expected = match codec {
            Codec::Plain => blob_size.div_ceil(span_size).max(1),
            Codec::Gzip => (starts.len() as u64).max(1),
        };
        if starts.len() as u64 != expected {
            return Err(FineError::SpanCount { expected, actual: starts.len() as u64 });
        }
        starts[0].state = ChainState::INITIAL;
        for (number, start) in (0..).zip(&starts) {
            let span = SpanId(number);
            if start.bits > 7 || (start.bits != 0 && start.input.0 == 0) {
                return Err(FineError::SpanBits(span));
            }
            let is_fit = match (codec, starts[..number as usize].last()) {
                (Codec::Plain, _) => {
                    let at = u64::from(number).checked_mul(span_size);
                    start.bits == 0 && at == Some(start.input.0) && at == Some(start.output.0)
                }
                (Codec::Gzip, None) => start.bits == 0 && start.output.0 == 0 && start.input.0 <= blob_size,
                (Codec::Gzip, Some(last)) => {
                    start.input.0 < blob_size
                        && start.border() < blob_size
                        && start.border() > if number == 1 { 0 } else { last.border() }
                        && start.input > last.input
                        && start.output.0 >= last.output.0.saturating_add(WINDOW as u64)
                }
            };
            if !is_fit {
                return Err(FineError::SpanOrder(span));
            }
        }
        Ok(FineSpans { layer, codec, blob_size, tar_end, span_size, starts })
    }

    /// The layer's digest, a SHA-256.
    pub fn layer(&self) -> Digest {
        self.layer
    }

    /// How the layer is compressed.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Bytes of the blob.
    pub fn blob_size(&self) -> u64 {
        self.blob_size
    }

    /// Where the tar's reader stopped.
    pub fn tar_end(&self) -> Uncompressed {
        self.tar_end
    }

    /// Bytes of tar between two checkpoints, at least.
    pub fn span_size(&self) -> u64 {
        self.span_size
    }

    /// Where spans begin; there is at least one.
    pub fn starts(&self) -> &[FineStart] {
        &self.starts
    }

    /// The number of spans.
    pub fn count(&self) -> u32 {
        self.starts.len() as u32
    }

    /// The end of what spans hold: of a plain tar also what lies behind the tar's end.
    pub fn plain_end(&self) -> Uncompressed {
        match self.codec {
            Codec::Plain => Uncompressed(self.blob_size),
            Codec::Gzip => self.tar_end,
        }
    }

    /// The bytes of the tar that a span holds. Those behind the tar's end hold none.
    pub fn plain_range(&self, span: SpanId) -> Range<Uncompressed> {
        let end = self.plain_end();
        let at = |number: usize| self.starts.get(number).map_or(end, |start| start.output.min(end));
        at(span.0 as usize)..at(span.0 as usize + 1)
    }

    /// The bytes of the blob to fetch for a span, from border to border. Those of two spans do not
    /// overlap, and those of neighbours touch. They are empty only if the blob is. `span` is below the count.
    pub fn fetch_range(&self, span: SpanId) -> Range<Compressed> {
        Compressed(self.border(span.0 as usize))..Compressed(self.border(span.0 as usize + 1))
    }

    /// The spans that hold bytes of `range`. What lies behind the last span is in none.
    pub fn covering(&self, range: Range<Uncompressed>) -> Range<SpanId> {
        let range = range.start..range.end.min(self.plain_end());
        if range.is_empty() {
            return SpanId(0)..SpanId(0);
        }
        let first = self.starts.partition_point(|start| start.output <= range.start).saturating_sub(1);
        let end = self.starts.partition_point(|start| start.output < range.end);
        SpanId(first as u32)..SpanId(end as u32)
    }

    /// Whether a page has a window of the span: every one of a gzip blob, but the first.
    pub fn has_window(&self, span: SpanId) -> bool {
        self.codec == Codec::Gzip && span.0 > 0 && span.0 < self.count()
    }

    /// Whether `blob` are the bytes of [`FineSpans::fetch_range`]: hashes them from the state at the
    /// one border to that at the other, or to the layer's digest. `span` is below the count.
    pub fn proves(&self, span: SpanId, blob: &[u8]) -> bool {
        let range = self.fetch_range(span);
        let Some(start) = self.starts.get(span.0 as usize) else { return false };
        if range.end - range.start != blob.len() as u64 {
            return false;
        }
        let mut hasher = Hasher::resume(start.state, range.start.0);
        hasher.update(blob);
        match self.starts.get(span.0 as usize + 1) {
            Some(next) => hasher.chain_state() == Some(next.state),
            None => hasher.finish() == self.layer,
        }
    }

    /// Bytes of the blob that belong to a span and come before its border.
    pub(super) fn lead(&self, span: SpanId) -> usize {
        match self.starts.get(span.0 as usize) {
            Some(start) if span.0 > 0 => (start.border() - start.first()) as usize,
            _ => 0,
        }
    }

    fn border(&self, number: usize) -> u64 {
        match self.starts.get(number) {
            Some(_) if number == 0 => 0,
            Some(start) => start.border(),
            None => self.blob_size,
        }
    }
}
