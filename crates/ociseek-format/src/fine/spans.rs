//! Where the spans of a layer begin, and the proofs of their bytes.

use std::ops::Range;

use super::{BLOCK, FineError, MAX_ZSTD_SPAN};
use crate::codec::WINDOW;
use crate::digest::{Algorithm, ChainState, Digest, Hasher};
use crate::offset::{Compressed, SpanId, Uncompressed};

/// How a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Not compressed: the blob is the tar, and spans are slices of equal size.
    Plain,
    /// One gzip member, or several in a row.
    Gzip,
    /// One zstd frame, or several in a row.
    Zstd,
}

/// A place where decoding can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FineStart {
    /// The first byte of the blob without a used bit.
    pub input: Compressed,
    /// The position in the tar where decoding continues.
    pub output: Uncompressed,
    /// Of gzip, how many high bits (0..=7) of the byte before `input` belong to the block that
    /// starts here. Of zstd, [`FineStart::DIVIDED`] if the span was made by dividing another.
    pub bits: u8,
    /// The state of the blob's SHA-256 at the span's border.
    pub state: ChainState,
}

impl FineStart {
    /// Marks a span of zstd that was made by dividing another.
    pub const DIVIDED: u8 = 8;

    /// The first byte of the blob that belongs to the span.
    pub(crate) fn first(&self) -> u64 {
        self.input.0 - u64::from((1..=7).contains(&self.bits))
    }

    /// The end of the SHA-256 block that contains `input`, or `input` itself between two blocks.
    /// From here on, bytes are fetched for this span instead of the previous one.
    pub(crate) fn border(&self) -> u64 {
        self.input.0.next_multiple_of(BLOCK)
    }
}

/// The spans of a layer. The ranges fetched for them end at borders, which are multiples of 64
/// bytes. The bytes of a span before its border, its lead, are stored in the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FineSpans {
    layer: Digest,
    codec: Codec,
    blob_size: u64,
    tar_end: Uncompressed,
    span_size: u64,
    starts: Vec<FineStart>,
}

/// The fields of [`FineSpans::new`].
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
    /// The least distance between two checkpoints in bytes of the tar: at least 32 KiB, and a
    /// multiple of 64.
    pub span_size: u64,
    /// Where spans begin. The state of the first one is ignored, because nothing precedes it.
    pub starts: Vec<FineStart>,
}

impl FineSpans {
    /// # Errors
    /// If spans are out of order or outside the layer, if two borders are equal, or if a plain tar
    /// has spans of other sizes.
    pub fn new(parts: SpanParts) -> Result<FineSpans, FineError> {
        let SpanParts { layer, codec, blob_size, tar_end, span_size, mut starts } = parts;
        if layer.algorithm() != Algorithm::Sha256 {
            return Err(FineError::Algorithm(layer));
        }
        if span_size < WINDOW as u64 || !span_size.is_multiple_of(BLOCK) {
            return Err(FineError::SpanSize(span_size));
        }
        // Offsets are added, so they must leave room.
        let is_past = codec == Codec::Plain && tar_end.0 > blob_size;
        if is_past || blob_size > i64::MAX as u64 || tar_end.0 > i64::MAX as u64 {
            return Err(FineError::Number("sizes"));
        }
        let expected = match codec {
            Codec::Plain => blob_size.div_ceil(span_size).max(1),
            Codec::Gzip | Codec::Zstd => (starts.len() as u64).max(1),
        };
        if starts.len() as u64 != expected {
            return Err(FineError::SpanCount { expected, actual: starts.len() as u64 });
        }
        starts[0].state = ChainState::INITIAL;
        for (number, start) in (0..).zip(&starts) {
            let span = SpanId(number);
            let are_valid = match codec {
                Codec::Plain | Codec::Gzip => start.bits <= 7,
                Codec::Zstd => [0, FineStart::DIVIDED].contains(&start.bits),
            };
            if !are_valid || (start.bits != 0 && start.input.0 == 0) {
                return Err(FineError::SpanBits(span));
            }
            let is_fit = match (codec, starts[..number as usize].last()) {
                (Codec::Plain, _) => {
                    let at = u64::from(number).checked_mul(span_size);
                    start.bits == 0 && at == Some(start.input.0) && at == Some(start.output.0)
                }
                (Codec::Gzip, None) => {
                    start.bits == 0 && start.output.0 == 0 && start.input.0 <= blob_size
                }
                (Codec::Zstd, None) => start.bits == 0 && start.output.0 == 0 && start.input.0 == 0,
                (Codec::Gzip | Codec::Zstd, Some(last)) => {
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
        let spans = FineSpans { layer, codec, blob_size, tar_end, span_size, starts };
        let mut all = SpanId::each(SpanId(0)..SpanId(spans.count()));
        match all.find(|span| codec == Codec::Zstd && !spans.fits(*span)) {
            Some(span) => Err(FineError::LongSpan(spans.plain_range(span).start)),
            None => Ok(spans),
        }
    }

    /// Whether a span of zstd is not too large to be kept in memory.
    fn fits(&self, span: SpanId) -> bool {
        // What follows the tar is decoded too, to compare the next span's window.
        let decoded = self.decoded_range(span);
        let blob = self.fetch_range(span);
        decoded.end - decoded.start <= MAX_ZSTD_SPAN && blob.end - blob.start <= 2 * MAX_ZSTD_SPAN
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

    /// The least distance between two checkpoints, in bytes of the tar.
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

    /// The end of the bytes that spans hold. For a plain tar this includes the bytes after the
    /// tar's end.
    pub fn plain_end(&self) -> Uncompressed {
        match self.codec {
            Codec::Plain => Uncompressed(self.blob_size),
            Codec::Gzip | Codec::Zstd => self.tar_end,
        }
    }

    /// The bytes of the tar that a span holds. Empty for spans after the tar's end.
    pub fn plain_range(&self, span: SpanId) -> Range<Uncompressed> {
        let end = self.plain_end();
        let at = |number: usize| self.starts.get(number).map_or(end, |start| start.output.min(end));
        at(span.0 as usize)..at(span.0 as usize + 1)
    }

    /// The bytes that a span's blocks decode to, up to the next span. More than
    /// [`FineSpans::plain_range`] if the tar's reader stopped before the next span.
    pub fn decoded_range(&self, span: SpanId) -> Range<Uncompressed> {
        let plain = self.plain_range(span);
        let at = |number: usize| self.starts.get(number).map(|start| start.output);
        let start = at(span.0 as usize).unwrap_or(plain.start);
        start..at(span.0 as usize + 1).unwrap_or(plain.end).max(start)
    }

    /// The bytes of the blob to fetch for a span, from border to border. Ranges of neighbours
    /// touch, and no two ranges overlap. They are empty only if the blob is. `span` must be below
    /// the count.
    pub fn fetch_range(&self, span: SpanId) -> Range<Compressed> {
        Compressed(self.border(span.0 as usize))..Compressed(self.border(span.0 as usize + 1))
    }

    /// The spans that hold bytes of `range`. No span holds bytes after the last one.
    pub fn covering(&self, range: Range<Uncompressed>) -> Range<SpanId> {
        let range = range.start..range.end.min(self.plain_end());
        if range.is_empty() {
            return SpanId(0)..SpanId(0);
        }
        let first =
            self.starts.partition_point(|start| start.output <= range.start).saturating_sub(1);
        let end = self.starts.partition_point(|start| start.output < range.end);
        SpanId(first as u32)..SpanId(end as u32)
    }

    /// Whether a page holds a window for the span: true for every span of a compressed blob except
    /// the first.
    pub fn has_window(&self, span: SpanId) -> bool {
        self.codec != Codec::Plain && span.0 > 0 && span.0 < self.count()
    }

    /// Whether `blob` has the bytes of [`FineSpans::fetch_range`]: hashes it from the state at the
    /// first border and compares with the state at the second, or with the layer's digest. `span`
    /// must be below the count.
    pub(crate) fn proves(&self, span: SpanId, blob: &[u8]) -> bool {
        let Some(mut hasher) = self.hasher(span, blob.len() as u64) else { return false };
        hasher.update(blob);
        self.is_end(span, hasher)
    }

    /// What a span's bytes are hashed with. None if it does not have `length` bytes.
    pub(crate) fn hasher(&self, span: SpanId, length: u64) -> Option<Hasher> {
        let range = self.fetch_range(span);
        let start = self.starts.get(span.0 as usize)?;
        (range.end - range.start == length).then(|| Hasher::resume(start.state, range.start.0))
    }

    /// Whether a hash after the bytes of a span is what the next one begins with.
    pub(crate) fn is_end(&self, span: SpanId, hasher: Hasher) -> bool {
        match self.starts.get(span.0 as usize + 1) {
            Some(next) => hasher.chain_state() == Some(next.state),
            None => hasher.finish() == self.layer,
        }
    }

    /// The bytes of a span among those that are fetched for it. What follows them, up to the next
    /// border, is the lead of the next span.
    pub(crate) fn own<'a>(&self, span: SpanId, fetched: &'a [u8]) -> &'a [u8] {
        let after =
            self.starts.get(span.0 as usize + 1).map_or(0, |next| next.border() - next.input.0);
        &fetched[..fetched.len().saturating_sub(after as usize)]
    }

    /// The number of bytes of a span before its border.
    pub(crate) fn lead(&self, span: SpanId) -> usize {
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
