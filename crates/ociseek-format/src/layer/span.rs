//! Reading a layer in spans: which spans hold which bytes, and what a span decodes to.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::map::LayerMap;
use crate::codec::WINDOW;
use crate::codec::gzip::{BlockStart, GzipError, GzipReader, Sink};
use crate::codec::zstd::{ZstdBlocks, ZstdDictionary, ZstdReader, ZstdResumed};
use crate::digest::{Digest, Hasher};
use crate::fine::{Codec, FineSpans, SpanWindow};
pub use crate::layer::map::{HasSpans, SpanBounds};
use crate::offset::{Compressed, SpanId, Uncompressed};
use crate::ztoc::{Checkpoint, Cuts, Ztoc};

/// Compressed bytes decoded before checking whether more output is needed. The output is at most
/// 1,032 times as large.
const STEP: usize = 16 << 10;

/// The spans of a layer, from its ztoc or its [`LayerMap`]. Cheap to clone.
#[derive(Debug)]
pub struct SpanTable<T = Ztoc> {
    layer: Arc<T>,
    count: u32,
}

impl<T> Clone for SpanTable<T> {
    fn clone(&self) -> SpanTable<T> {
        SpanTable { layer: Arc::clone(&self.layer), count: self.count }
    }
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
    #[error(
        "span {0} of the ztoc does not come after the previous one, or is past the end of the layer"
    )]
    Order(SpanId),
    #[error("span {span} has {expected} compressed bytes, but got {found}")]
    Length { span: SpanId, expected: u64, found: u64 },
    #[error("the bytes of span {span} have the digest {actual}, not {expected}")]
    Digest { span: SpanId, expected: Digest, actual: Digest },
    #[error(
        "the bytes of span {span} are not those of the layer: its SHA-256 comes to another state"
    )]
    Proof { span: SpanId },
    #[error("no block starts where span {span} does")]
    NoBlock { span: SpanId },
    #[error("the window of span {span} is not what the span before it decodes to")]
    Window { span: SpanId },
    #[error("a tar header in span {span} contradicts the index: {what}")]
    Header { span: SpanId, what: String },
    #[error("span {span} cannot be decoded without its window")]
    NoWindow { span: SpanId },
    #[error("span {span} cannot be decoded")]
    Gzip {
        span: SpanId,
        #[source]
        source: GzipError,
    },
    #[error("span {span} cannot be decoded: {reason}")]
    Zstd { span: SpanId, reason: String },
    #[error("span {span} decodes to {found} bytes, but the ztoc says {expected}")]
    Short { span: SpanId, expected: u64, found: u64 },
}

impl SpanError {
    /// Whether the layer itself has other content than its index says, although the bytes are the
    /// layer's. Not if a span only cannot be decoded.
    pub fn is_contradiction(&self) -> bool {
        matches!(self, SpanError::Window { .. } | SpanError::Header { .. })
    }
}

impl SpanTable<Ztoc> {
    /// The ztoc that defines the spans.
    pub fn ztoc(&self) -> &Arc<Ztoc> {
        &self.layer
    }
}

impl SpanTable<LayerMap> {
    /// The map that defines the spans.
    pub fn map(&self) -> &Arc<LayerMap> {
        &self.layer
    }
}

impl<T: HasSpans> SpanTable<T> {
    /// # Errors
    /// If the spans are out of order, do not cover the tar from its start, or lack digests.
    pub fn new(layer: Arc<T>) -> Result<SpanTable<T>, SpanError> {
        let digests = layer.span_digests().len();
        let cuts = match layer.bounds() {
            SpanBounds::Cuts(cuts) => cuts,
            // These were checked when the head was decoded.
            SpanBounds::Fine(head) => {
                let count = head.spans().count();
                return Ok(SpanTable { layer, count });
            }
        };
        let spans = cuts.count();
        let count = u32::try_from(spans).ok().filter(|_| digests as u64 == spans);
        let count = count.ok_or(SpanError::Digests { digests, spans })?;
        match cuts {
            Cuts::At(list) => check_order(list, layer.size())?,
            Cuts::Every { size, .. } if Compressed(size) != layer.size() => {
                return Err(SpanError::Order(SpanId(count.saturating_sub(1))));
            }
            Cuts::Every { .. } => {}
        }
        Ok(SpanTable { layer, count })
    }

    /// The number of spans.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// All spans, in order.
    pub fn each(
        &self,
    ) -> impl DoubleEndedIterator<Item = SpanId> + ExactSizeIterator + Clone + use<T> {
        SpanId::each(SpanId(0)..SpanId(self.count))
    }

    /// The spans that hold bytes of `range`. No span holds bytes after the last one.
    pub fn covering(&self, range: Range<Uncompressed>) -> Range<SpanId> {
        if range.is_empty() {
            return SpanId(0)..SpanId(0);
        }
        let cuts = match self.layer.bounds() {
            SpanBounds::Cuts(cuts) => cuts,
            SpanBounds::Fine(head) => return head.spans().covering(range),
        };
        match cuts {
            Cuts::At(list) => {
                let first = list.partition_point(|c| c.output <= range.start).saturating_sub(1);
                let end = list.partition_point(|c| c.output < range.end);
                SpanId(first as u32)..SpanId(end as u32)
            }
            Cuts::Every { span_size, .. } => {
                let number =
                    |span: u64| SpanId(u32::try_from(span).unwrap_or(u32::MAX).min(self.count));
                number(range.start.0 / span_size.get())
                    ..number(range.end.0.div_ceil(span_size.get()))
            }
        }
    }

    /// The bytes of the blob that the span's digest covers. For a layer that is kept unpacked,
    /// these are bytes of its tar; with a fine document, they are the bytes between the span's
    /// borders. `span` must be below [`SpanTable::count`].
    pub fn blob_range(&self, span: SpanId) -> Range<Compressed> {
        let cuts = match self.layer.bounds() {
            SpanBounds::Cuts(cuts) => cuts,
            SpanBounds::Fine(head) => return head.fetch_range(span),
        };
        let end = match cuts {
            Cuts::At(list) => list.get(span.0 as usize + 1).map(|next| next.input),
            Cuts::Every { .. } => self.start(SpanId(span.0 + 1)).map(|(blob, _)| blob),
        };
        let (start, _) = self.start(span).unwrap_or((self.layer.size(), Uncompressed(0)));
        start..end.unwrap_or(self.layer.size())
    }

    /// The bytes of the tar that the span holds. The last span ends where the tar's reader stops,
    /// and may be empty.
    pub fn plain_range(&self, span: SpanId) -> Range<Uncompressed> {
        if let SpanBounds::Fine(head) = self.layer.bounds() {
            return head.spans().plain_range(span);
        }
        let end = self.plain_end();
        let start = self.start(span).map_or(end, |(_, plain)| plain);
        let end = self.start(SpanId(span.0 + 1)).map_or(end, |(_, plain)| plain);
        start..end.max(start)
    }

    /// The end of the tar bytes that spans hold.
    pub fn plain_end(&self) -> Uncompressed {
        match self.layer.bounds() {
            SpanBounds::Cuts(Cuts::At(_)) => self.layer.tar_end(),
            // The bytes after the tar's end can be read as well.
            SpanBounds::Cuts(Cuts::Every { size, .. }) => Uncompressed(size),
            SpanBounds::Fine(head) => head.spans().plain_end(),
        }
    }

    /// The digest that identifies a span: that of its bytes, or its
    /// [identity](crate::fine::FineHead::identity) with a fine document, which has other proofs.
    /// `span` must be below [`SpanTable::count`].
    pub fn digest(&self, span: SpanId) -> Digest {
        match self.layer.bounds() {
            SpanBounds::Cuts(_) => self.layer.span_digests()[span.0 as usize],
            SpanBounds::Fine(head) => head.identity(span),
        }
    }

    /// Whether the spans are those of a fine document.
    pub fn is_fine(&self) -> bool {
        matches!(self.layer.bounds(), SpanBounds::Fine(_))
    }

    /// The checkpoint to decode the span from, if it must be decoded and its window is known.
    pub fn checkpoint(&self, span: SpanId) -> Option<&Checkpoint> {
        match self.layer.bounds() {
            SpanBounds::Cuts(Cuts::At(list)) => list.get(span.0 as usize),
            SpanBounds::Cuts(Cuts::Every { .. }) | SpanBounds::Fine(_) => None,
        }
    }

    fn start(&self, span: SpanId) -> Option<(Compressed, Uncompressed)> {
        match self.layer.bounds() {
            SpanBounds::Cuts(cuts) => cuts.start(span).filter(|_| span.0 < self.count),
            SpanBounds::Fine(_) => None,
        }
    }

    /// Decodes a span. `blob` holds all its compressed bytes, whose digest was verified. `out`
    /// receives exactly the bytes of [`SpanTable::plain_range`], in order and in pieces, and may
    /// stop early. Pieces can precede an error.
    ///
    /// # Errors
    /// If `blob` does not match the ztoc, if it decodes to too few bytes, or if the span needs a
    /// window from a fine document ([`SpanTable::decode_with`]).
    pub fn decode(
        &self,
        span: SpanId,
        blob: &[u8],
        out: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), SpanError> {
        self.decode_with(span, None, blob, out)
    }

    /// Decodes a span with its window from a page of the fine document.
    ///
    /// # Errors
    /// As [`SpanTable::decode`].
    pub fn decode_with(
        &self,
        span: SpanId,
        window: Option<&SpanWindow>,
        blob: &[u8],
        out: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), SpanError> {
        self.prove_one(span, blob)?.decode(window, out)
    }

    /// Checks which spans have their bytes: two at a time, which takes little longer than one. The
    /// spans must be below [`SpanTable::count`].
    ///
    /// # Errors
    /// For each span, if its bytes have another length, digest or proof.
    pub fn prove<'a>(
        &'a self,
        spans: &[(SpanId, &'a [u8])],
    ) -> Vec<Result<ProvenSpan<'a, T>, SpanError>> {
        let mut results = Vec::with_capacity(spans.len());
        for pair in spans.chunks(2) {
            let mut hashers: Vec<_> =
                pair.iter().map(|(span, blob)| self.hasher(*span, blob)).collect();
            match &mut hashers[..] {
                [Ok(first), Ok(second)] => {
                    Hasher::update_pair(first, pair[0].1, second, pair[1].1);
                }
                all => {
                    for (hasher, (_, blob)) in all.iter_mut().zip(pair) {
                        let _ = hasher.as_mut().map(|hasher| hasher.update(blob));
                    }
                }
            }
            results.extend(pair.iter().zip(hashers).map(|((span, blob), hasher)| {
                self.check_hash(*span, hasher?)?;
                Ok(ProvenSpan { table: self, span: *span, blob })
            }));
        }
        results
    }

    /// [`SpanTable::prove`] for one span.
    pub(super) fn prove_one<'a>(
        &'a self,
        span: SpanId,
        blob: &'a [u8],
    ) -> Result<ProvenSpan<'a, T>, SpanError> {
        let mut hasher = self.hasher(span, blob)?;
        hasher.update(blob);
        self.check_hash(span, hasher)?;
        Ok(ProvenSpan { table: self, span, blob })
    }

    /// What a span's bytes are hashed with, if their length is right.
    fn hasher(&self, span: SpanId, blob: &[u8]) -> Result<Hasher, SpanError> {
        let range = self.blob_range(span);
        let expected = range.end - range.start;
        let found = blob.len() as u64;
        if expected != found {
            return Err(SpanError::Length { span, expected, found });
        }
        match self.layer.bounds() {
            SpanBounds::Fine(head) => {
                head.spans().hasher(span, found).ok_or(SpanError::Proof { span })
            }
            SpanBounds::Cuts(_) => Ok(Hasher::new(self.digest(span).algorithm())),
        }
    }

    /// Whether the hash of a span's bytes is the right one.
    fn check_hash(&self, span: SpanId, hasher: Hasher) -> Result<(), SpanError> {
        if let SpanBounds::Fine(head) = self.layer.bounds() {
            let is_proven = head.spans().is_end(span, hasher);
            return if is_proven { Ok(()) } else { Err(SpanError::Proof { span }) };
        }
        let expected = self.digest(span);
        let actual = hasher.finish();
        if actual == expected { Ok(()) } else { Err(SpanError::Digest { span, expected, actual }) }
    }

    /// Where the spans begin.
    pub(super) fn bounds(&self) -> SpanBounds<'_> {
        self.layer.bounds()
    }
}

/// A span of a table with its bytes, which have the right digest or fit its proof.
pub struct ProvenSpan<'a, T = Ztoc> {
    pub(super) table: &'a SpanTable<T>,
    pub(super) span: SpanId,
    pub(super) blob: &'a [u8],
}

impl<T> std::fmt::Debug for ProvenSpan<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ProvenSpan").field(&self.span).finish()
    }
}

impl<T: HasSpans> ProvenSpan<'_, T> {
    /// Decodes it, as [`SpanTable::decode_with`] does.
    ///
    /// # Errors
    /// If the bytes do not match the ztoc, or decode to too few bytes.
    pub fn decode(
        &self,
        window: Option<&SpanWindow>,
        out: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), SpanError> {
        let ProvenSpan { table, span, blob } = *self;
        let plain = table.plain_range(span);
        let size = plain.end - plain.start;
        if let SpanBounds::Fine(head) = table.bounds() {
            let mut filter = SpanFilter::new(size, out);
            return decode_fine(span, head.spans(), window, blob, size, &mut filter);
        }
        match table.checkpoint(span) {
            Some(checkpoint) => {
                decode_checkpoint(span, checkpoint, blob, size, &mut SpanFilter::new(size, out))
            }
            None => {
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
    let disordered = list
        .windows(2)
        .position(|two| two[1].input <= two[0].input || two[1].output <= two[0].output);
    if let Some(at) = disordered {
        return Err(SpanError::Order(SpanId(at as u32 + 1)));
    }
    let outside = list
        .iter()
        .position(|c| c.input > size || (c.bits != 0 && c.input == Compressed(0)) || c.bits > 7);
    outside.map_or(Ok(()), |at| Err(SpanError::Order(SpanId(at as u32))))
}

pub(super) fn decode_checkpoint(
    span: SpanId,
    checkpoint: &Checkpoint,
    blob: &[u8],
    size: u64,
    sink: &mut impl SpanSink,
) -> Result<(), SpanError> {
    let (before, blob) = match blob.split_first() {
        Some((&before, rest)) if checkpoint.bits != 0 => (before, rest),
        _ => (0, blob),
    };
    let Checkpoint { input, output, bits, window } = checkpoint;
    let at = BlockStart { input: *input, output: *output, bits: *bits, window };
    decode_gzip(span, at, before, [blob, &[]], size, sink)
}

/// Decodes a span of a fine document, whose bytes were proven.
pub(super) fn decode_fine(
    span: SpanId,
    spans: &FineSpans,
    window: Option<&SpanWindow>,
    blob: &[u8],
    size: u64,
    sink: &mut impl SpanSink,
) -> Result<(), SpanError> {
    let start = match spans.starts().get(span.0 as usize) {
        Some(start) if spans.codec() == Codec::Gzip => start,
        Some(_) if spans.codec() == Codec::Zstd => {
            let window = (span.0 == 0)
                .then_some(None)
                .or(window.map(Some))
                .ok_or(SpanError::NoWindow { span })?;
            return decode_zstd(span, spans, window, 0, blob, size, sink);
        }
        _ => {
            sink.output(blob);
            return Ok(());
        }
    };
    let input = start.input;
    let output = start.output;
    let bits = start.bits;
    if !spans.has_window(span) {
        let body = blob.get(input.0 as usize..).unwrap_or_default();
        let at = BlockStart { input, output, bits, window: &[0; WINDOW] };
        return decode_gzip(span, at, 0, [body, &[]], size, sink);
    }
    let window = window.ok_or(SpanError::NoWindow { span })?;
    let (before, lead) = match window.lead().split_first() {
        Some((&before, rest)) if bits != 0 => (before, rest),
        _ => (0, window.lead()),
    };
    let at = BlockStart { input, output, bits, window: &window.expand(0) };
    decode_gzip(span, at, before, [lead, blob], size, sink)
}

/// Decodes a span of zstd, up to the block with the last of `wanted` bytes. Bytes that its window
/// leaves out are `fill`.
pub(super) fn decode_zstd(
    span: SpanId,
    spans: &FineSpans,
    window: Option<&SpanWindow>,
    fill: u8,
    blob: &[u8],
    wanted: u64,
    sink: &mut impl SpanSink,
) -> Result<(), SpanError> {
    let failed = |error: io::Error| SpanError::Zstd { span, reason: error.to_string() };
    let lead = window.map_or(&[][..], SpanWindow::lead);
    let state = window.and_then(|window| window.dictionary(fill));
    // The next block may refer to what this window leaves out.
    let pieces = [lead, spans.own(span, blob)];
    let plain = spans.plain_range(span);
    let size = plain.end - plain.start;
    let mut take = |bytes: &[u8]| {
        sink.output(bytes);
        // Nothing after the span's end is wanted.
        if sink.is_over() { Err(io::Error::from(io::ErrorKind::WriteZero)) } else { Ok(()) }
    };
    let pushed = match &state {
        None => {
            let mut reader = ZstdReader::new().map_err(failed)?;
            pieces.into_iter().try_for_each(|piece| reader.push(piece, &mut take))
        }
        Some((state, bytes)) => {
            let dictionary = ZstdDictionary::new(bytes).map_err(failed)?;
            let mut reader = ZstdResumed::new(state, &dictionary, wanted).map_err(failed)?;
            pieces.into_iter().try_for_each(|piece| reader.push(piece, &mut take))
        }
    };
    match pushed {
        _ if sink.is_over() => Ok(()),
        Ok(()) if sink.left() == 0 => Ok(()),
        Ok(()) => Err(SpanError::Short { span, expected: size, found: size - sink.left() }),
        Err(error) => Err(failed(error)),
    }
}

/// Reads the blocks of a span of zstd, which were not pushed yet.
pub(super) fn zstd_blocks(
    span: SpanId,
    spans: &FineSpans,
    window: Option<&SpanWindow>,
) -> Result<ZstdBlocks, SpanError> {
    let start = spans.starts().get(span.0 as usize);
    let (input, output) =
        start.map_or((Compressed(0), Uncompressed(0)), |start| (start.input, start.output));
    match window.and_then(SpanWindow::state) {
        None => Ok(ZstdBlocks::new(input, output)),
        Some(state) => ZstdBlocks::resume(state, input, output).ok_or(SpanError::Zstd {
            span,
            reason: "the state of the zstd decoder is not valid".to_owned(),
        }),
    }
}

/// `before` holds the first bits of the block if they are in the byte before `at.input`. `parts` is
/// what follows.
fn decode_gzip(
    span: SpanId,
    at: BlockStart<'_>,
    before: u8,
    parts: [&[u8]; 2],
    size: u64,
    sink: &mut impl SpanSink,
) -> Result<(), SpanError> {
    let mut reader = GzipReader::resume(at, before);
    for piece in parts.iter().flat_map(|part| part.chunks(STEP)) {
        if sink.is_over() {
            break;
        }
        reader.push(piece, sink).map_err(|source| SpanError::Gzip { span, source })?;
    }
    if sink.is_over() || sink.left() == 0 {
        Ok(())
    } else {
        Err(SpanError::Short { span, expected: size, found: size - sink.left() })
    }
}

/// Receives what a span decodes to, and what is decoded after it.
pub(super) trait SpanSink: Sink {
    /// How many bytes of the span are still to come.
    fn left(&self) -> u64;

    /// Whether it needs nothing more.
    fn is_over(&self) -> bool {
        self.left() == 0
    }
}

/// Passes on only the bytes of one span.
pub(super) struct SpanFilter<'a> {
    left: u64,
    out: &'a mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    is_broken_off: bool,
}

impl<'a> SpanFilter<'a> {
    pub(super) fn new(
        size: u64,
        out: &'a mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> SpanFilter<'a> {
        SpanFilter { left: size, out, is_broken_off: false }
    }

    /// Whether the receiver wants no more.
    pub(super) fn is_broken_off(&self) -> bool {
        self.is_broken_off
    }
}

impl SpanSink for SpanFilter<'_> {
    fn left(&self) -> u64 {
        self.left
    }

    fn is_over(&self) -> bool {
        self.left == 0 || self.is_broken_off
    }
}

impl Sink for SpanFilter<'_> {
    fn output(&mut self, bytes: &[u8]) {
        let taken = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        if taken > 0 && !self.is_broken_off {
            self.left -= taken as u64;
            self.is_broken_off = (self.out)(&bytes[..taken]).is_break();
        }
    }

    fn block_start(&mut self, _at: BlockStart<'_>) {}
}
