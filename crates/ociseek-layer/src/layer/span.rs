//! Reading a layer through its ztoc: which spans hold which bytes, and what a span decodes to.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::codec::gzip::{BlockStart, GzipError, GzipReader, Sink};
use crate::digest::{Digest, Hasher};
use crate::offset::{Compressed, SpanId, Uncompressed};
use crate::ztoc::{Checkpoint, Checkpoints, Ztoc};

/// Compressed bytes that are decoded before it is looked whether more are wanted: they make at most 1,032 times as many.
const STEP: usize = 16 << 10;

/// The spans of one layer. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SpanTable {
    ztoc: Arc<Ztoc>,
    count: u32,
}

/// Why spans cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum SpanError {
    #[error("the ztoc has {digests} span digests for {spans} spans")]
    Digests { digests: usize, spans: u64 },
    #[error("the first span of the ztoc begins at byte {0} of the tar, not at its start")]
    Start(Uncompressed),
    #[error("span {0} of the ztoc does not lie behind the one before it, or lies behind the end of the layer")]
    Order(u32),
    #[error("span {span} has {expected} bytes of the layer; {found} were given")]
    Length { span: SpanId, expected: u64, found: u64 },
    #[error("the bytes of span {span} have the digest {actual}, not {expected}")]
    Digest { span: SpanId, expected: Digest, actual: Digest },
    #[error("span {span} cannot be decoded")]
    Gzip {
        span: SpanId,
        #[source]
        source: GzipError,
    },
    #[error("span {span} decodes to {found} bytes where the ztoc claims {expected}")]
    Short { span: SpanId, expected: u64, found: u64 },
}

impl SpanTable {
    /// # Errors
    /// When the ztoc's spans are not in order, do not cover the tar from its start, or lack digests.
    pub fn new(ztoc: Arc<Ztoc>) -> Result<SpanTable, SpanError> {
        let spans = ztoc.checkpoints.spans();
        let count = u32::try_from(spans).ok().filter(|_| ztoc.span_digests.len() as u64 == spans);
        let count = count.ok_or(SpanError::Digests { digests: ztoc.span_digests.len(), spans })?;
        match &ztoc.checkpoints {
            Checkpoints::Gzip { list, .. } => check_order(list, ztoc.compressed_size)?,
            Checkpoints::Uncompressed { size, .. } if Compressed(*size) != ztoc.compressed_size => {
                return Err(SpanError::Order(count.saturating_sub(1)));
            }
            Checkpoints::Uncompressed { .. } => {}
        }
        Ok(SpanTable { ztoc, count })
    }

    /// The ztoc that the spans are from.
    pub fn ztoc(&self) -> &Arc<Ztoc> {
        &self.ztoc
    }

    /// The number of spans.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The spans that hold bytes of `range`. What lies behind the last span is in none.
    pub fn covering(&self, range: Range<Uncompressed>) -> Range<SpanId> {
        if range.is_empty() {
            return SpanId(0)..SpanId(0);
        }
        match &self.ztoc.checkpoints {
            Checkpoints::Gzip { list, .. } => {
                let first = list.partition_point(|c| c.output <= range.start).saturating_sub(1);
                let end = list.partition_point(|c| c.output < range.end);
                SpanId(first as u32)..SpanId(end as u32)
            }
            Checkpoints::Uncompressed { span_size, .. } => {
                let number = |span: u64| SpanId(u32::try_from(span).unwrap_or(u32::MAX).min(self.count));
                number(range.start.0 / span_size)..number(range.end.0.div_ceil(*span_size))
            }
        }
    }

    /// The bytes of the blob that the span's digest covers. `span` is below [`SpanTable::count`].
    pub fn blob_range(&self, span: SpanId) -> Range<Compressed> {
        let end = match &self.ztoc.checkpoints {
            Checkpoints::Gzip { list, .. } => list.get(span.0 as usize + 1).map(|next| next.input),
            Checkpoints::Uncompressed { .. } => self.start(SpanId(span.0 + 1)).map(|(blob, _)| blob),
        };
        let (start, _) = self.start(span).unwrap_or((self.ztoc.compressed_size, Uncompressed(0)));
        start..end.unwrap_or(self.ztoc.compressed_size)
    }

    /// The bytes of the tar that the span holds; the last one ends where the tar's reader stops, and may be empty.
    pub fn plain_range(&self, span: SpanId) -> Range<Uncompressed> {
        let end = match self.ztoc.checkpoints {
            Checkpoints::Gzip { .. } => self.ztoc.uncompressed_size,
            // What lies behind the tar's end is there to be read.
            Checkpoints::Uncompressed { size, .. } => Uncompressed(size),
        };
        let start = self.start(span).map_or(end, |(_, plain)| plain);
        let end = self.start(SpanId(span.0 + 1)).map_or(end, |(_, plain)| plain);
        start..end.max(start)
    }

    /// `span` is below [`SpanTable::count`].
    pub fn digest(&self, span: SpanId) -> &Digest {
        &self.ztoc.span_digests[span.0 as usize]
    }

    fn start(&self, span: SpanId) -> Option<(Compressed, Uncompressed)> {
        self.ztoc.checkpoints.start(span).filter(|_| span.0 < self.count)
    }

    /// Decodes a span of which `blob` are all compressed bytes, after their digest was checked. `out` gets exactly the bytes of
    /// [`SpanTable::plain_range`], in order and in pieces, and may break it off; pieces can come before an error.
    ///
    /// # Errors
    /// When `blob` is not what the ztoc says of it, or decodes to less than that.
    pub fn decode(
        &self,
        span: SpanId,
        blob: &[u8],
        out: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), SpanError> {
        let range = self.blob_range(span);
        let (expected, found) = (range.end - range.start, blob.len() as u64);
        if expected != found {
            return Err(SpanError::Length { span, expected, found });
        }
        let expected = *self.digest(span);
        let mut hasher = Hasher::new(expected.algorithm());
        hasher.update(blob);
        let actual = hasher.finish();
        if actual != expected {
            return Err(SpanError::Digest { span, expected, actual });
        }
        let plain = self.plain_range(span);
        let size = plain.end - plain.start;
        match &self.ztoc.checkpoints {
            Checkpoints::Gzip { list, .. } => {
                let Some(checkpoint) = list.get(span.0 as usize) else { return Ok(()) };
                decode_gzip(span, checkpoint, blob, size, out)
            }
            Checkpoints::Uncompressed { .. } => {
                let _ = out(blob);
                Ok(())
            }
        }
    }
}

fn check_order(list: &[Checkpoint], size: Compressed) -> Result<(), SpanError> {
    if let Some(first) = list.first().filter(|first| first.output != Uncompressed(0)) {
        return Err(SpanError::Start(first.output));
    }
    let disordered = list.windows(2).position(|two| two[1].input <= two[0].input || two[1].output <= two[0].output);
    if let Some(at) = disordered {
        return Err(SpanError::Order(at as u32 + 1));
    }
    let outside = list.iter().position(|c| c.input > size || (c.bits != 0 && c.input == Compressed(0)) || c.bits > 7);
    outside.map_or(Ok(()), |at| Err(SpanError::Order(at as u32)))
}

fn decode_gzip(
    span: SpanId,
    checkpoint: &Checkpoint,
    blob: &[u8],
    size: u64,
    out: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<(), SpanError> {
    let (before, blob) = match blob.split_first() {
        Some((&before, rest)) if checkpoint.bits != 0 => (before, rest),
        _ => (0, blob),
    };
    let Checkpoint { input, output, bits, window } = checkpoint;
    let at = BlockStart { input: *input, output: *output, bits: *bits, window };
    let mut reader = GzipReader::resume(at, before);
    let mut wanted = Wanted { left: size, out, is_broken_off: false };
    for piece in blob.chunks(STEP) {
        if wanted.is_over() {
            break;
        }
        reader.push(piece, &mut wanted).map_err(|source| SpanError::Gzip { span, source })?;
    }
    match wanted.is_over() {
        true => Ok(()),
        false => Err(SpanError::Short { span, expected: size, found: size - wanted.left }),
    }
}

/// Passes on as many bytes as a span has.
struct Wanted<'a> {
    left: u64,
    out: &'a mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    is_broken_off: bool,
}

impl Wanted<'_> {
    fn is_over(&self) -> bool {
        self.left == 0 || self.is_broken_off
    }
}

impl Sink for Wanted<'_> {
    fn output(&mut self, bytes: &[u8]) {
        let taken = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        if taken > 0 && !self.is_broken_off {
            self.left -= taken as u64;
            self.is_broken_off = (self.out)(&bytes[..taken]).is_break();
        }
    }

    fn block_start(&mut self, _at: BlockStart<'_>) {}
}
