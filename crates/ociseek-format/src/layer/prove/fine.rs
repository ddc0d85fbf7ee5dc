//! Compares a fine document with its layer: the proofs of its spans, and what our decoder produces
//! from each span and its sparse window, compared with the layer decoded from start to end. Each
//! span is decoded twice, with different values for the bytes that are left out of its window,
//! which must not matter. It must lead to the next span as it must for a reader
//! ([`decode_to_next`](super::decode_to_next)).

use std::ops::ControlFlow;
use std::sync::Arc;

use super::next::{NextBlock, compare_next, zstd_to_next};
use super::{Difference, Differences};
use crate::codec::WINDOW;
use crate::codec::gzip::{BlockStart, GzipReader, Sink};
use crate::digest::{Algorithm, Digest, Hasher};
use crate::fine::{Codec, FineLayer, FineSpans, SpanWindow, Windows};
use crate::layer::span::{SpanError, SpanFilter, decode_zstd};
use crate::offset::SpanId;

/// The compressed side: takes the blob's bytes.
pub(super) struct FineBlob {
    layer: Arc<FineLayer>,
    /// The number and windows of the group that holds the current span.
    group: Option<(usize, Windows)>,
    current: SpanId,
    open: Option<OpenSpan>,
    /// The number of bytes of the blob so far.
    position: u64,
    /// The digest of each decoded span.
    decoded: Vec<Result<Digest, String>>,
}

/// A span that is being read.
struct OpenSpan {
    proof: Hasher,
    /// The number of bytes of the blob before the span's first block.
    skip: usize,
    window: Option<SpanWindow>,
    decoding: Decoding,
    plain: Hasher,
    /// The last bytes of the blob: no fewer than a lead has.
    tail: Vec<u8>,
}

/// How a span is decoded.
enum Decoding {
    /// It is plain.
    Plain,
    Gzip(Box<[SpanDecoder; 2]>),
    /// At its end, from all of its bytes.
    Zstd(Vec<u8>),
}

/// Decodes a span with one of the two values for the bytes that are left out of its window.
struct SpanDecoder {
    reader: GzipReader,
    error: Option<String>,
    output: OutputHasher,
}

/// Hashes the decoded span, and separately the part of it that can refer to the window.
struct OutputHasher {
    all: Hasher,
    left: u64,
    first: Hasher,
    first_left: u64,
    next: NextBlock,
}

impl Sink for OutputHasher {
    fn output(&mut self, bytes: &[u8]) {
        let take = |left: &mut u64| {
            let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
            *left -= taken as u64;
            &bytes[..taken]
        };
        self.all.update(take(&mut self.left));
        self.first.update(take(&mut self.first_left));
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        self.next.see(at);
    }
}

impl SpanDecoder {
    fn new(at: BlockStart<'_>, before: u8, lead: &[u8], size: u64, next: NextBlock) -> SpanDecoder {
        let hasher = || Hasher::new(Algorithm::Sha256);
        let output = OutputHasher {
            all: hasher(),
            left: size,
            first: hasher(),
            first_left: size.min(WINDOW as u64),
            next,
        };
        let mut decoder =
            SpanDecoder { reader: GzipReader::resume(at, before), error: None, output };
        decoder.push(lead);
        decoder
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error =
                self.reader.push(bytes, &mut self.output).err().map(|error| error.to_string());
        }
    }
}

impl FineBlob {
    pub(super) fn new(layer: Arc<FineLayer>) -> FineBlob {
        FineBlob {
            layer,
            group: None,
            current: SpanId(0),
            open: None,
            position: 0,
            decoded: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, chunk: &[u8], differences: &mut Differences) {
        let start = self.position;
        let end = self.position + chunk.len() as u64;
        self.position = end;
        let layer = Arc::clone(&self.layer);
        while self.current.0 < layer.spans().count() {
            let range = layer.spans().fetch_range(self.current);
            if range.start.0 >= end {
                break;
            }
            let mut open = match self.open.take() {
                Some(open) => open,
                None => self.open(),
            };
            let from = range.start.0.max(start) - start;
            let to = range.end.0.min(end) - start;
            open.take(chunk.get(from as usize..to as usize).unwrap_or_default());
            if range.end.0 > end {
                self.open = Some(open);
                break;
            }
            self.close(open, differences);
        }
    }

    fn open(&mut self) -> OpenSpan {
        let layer = Arc::clone(&self.layer);
        let spans = layer.spans();
        let span = self.current;
        let start = spans.starts()[span.0 as usize];
        let plain = spans.plain_range(span);
        let size = plain.end - plain.start;
        let proof = Hasher::resume(start.state, spans.fetch_range(span).start.0);
        let read = |window: &[u8; WINDOW], before: u8, lead: &[u8]| {
            let at =
                BlockStart { input: start.input, output: start.output, bits: start.bits, window };
            SpanDecoder::new(at, before, lead, size, NextBlock::after(spans, span))
        };
        let mut skip = 0;
        let window = self.window(span);
        let decoding = match &window {
            _ if spans.codec() == Codec::Plain => Decoding::Plain,
            _ if spans.codec() == Codec::Zstd => Decoding::Zstd(Vec::new()),
            Some(window) => {
                let (before, lead) = match window.lead().split_first() {
                    Some((before, rest)) if start.bits != 0 => (*before, rest),
                    _ => (0, window.lead()),
                };
                Decoding::Gzip(Box::new(
                    [0, 0xff].map(|left_out| read(&window.expand(left_out), before, lead)),
                ))
            }
            None => {
                skip = start.input.0 as usize;
                Decoding::Gzip(Box::new([(); 2].map(|()| read(&[0; WINDOW], 0, &[]))))
            }
        };
        let plain = Hasher::new(Algorithm::Sha256);
        OpenSpan { proof, skip, window, decoding, plain, tail: Vec::new() }
    }

    /// The window of a span, if it has one.
    fn window(&mut self, span: SpanId) -> Option<SpanWindow> {
        let layer = &self.layer;
        let number = layer.group_of(span).filter(|_| layer.spans().has_window(span))?;
        if self.group.as_ref().is_none_or(|(known, _)| *known != number) {
            // A group that cannot be decoded was already refused with the document.
            self.group = layer.group(number).ok().map(|windows| (number, windows));
        }
        self.group.as_ref()?.1.get(span).cloned()
    }

    /// Ends the current span.
    fn close(&mut self, open: OpenSpan, differences: &mut Differences) {
        let span = self.current;
        self.current = SpanId(span.0 + 1);
        let is_proven = match self.layer.spans().starts().get(self.current.0 as usize) {
            Some(next) => open.proof.chain_state() == Some(next.state),
            None => open.proof.finish() == self.layer.spans().layer(),
        };
        if !is_proven {
            differences.add(Difference::FineProof { span });
        }
        let next = self.window(self.current);
        let windows = [open.window.as_ref(), next.as_ref()];
        let spans = self.layer.spans();
        let decoded = match open.decoding {
            Decoding::Plain => Ok(open.plain.finish()),
            Decoding::Zstd(bytes) => zstd(spans, span, windows, &bytes),
            Decoding::Gzip(decoders) => gzip(spans, span, windows, *decoders, &open.tail),
        };
        self.decoded.push(decoded);
    }

    /// Ends the blob. `plain` holds the digests of the spans' bytes, from the layer decoded from
    /// start to end.
    pub(super) fn finish(mut self, plain: &[Digest], differences: &mut Differences) {
        if let Some(open) = self.open.take() {
            self.close(open, differences);
        }
        for (number, span) in
            SpanId::each(SpanId(0)..SpanId(self.layer.spans().count())).enumerate()
        {
            let reason = match (self.decoded.get(number), plain.get(number)) {
                (Some(Ok(decoded)), Some(plain)) if decoded == plain => continue,
                (Some(Ok(_)), Some(_)) => "the decoded bytes differ from the layer".to_owned(),
                (Some(Err(reason)), _) => reason.clone(),
                (None, _) | (_, None) => "it is past the end of the layer".to_owned(),
            };
            differences.add(Difference::FineContent { span, reason });
        }
    }
}

/// The digest of what a span of gzip decodes to.
fn gzip(
    spans: &FineSpans,
    span: SpanId,
    windows: [Option<&SpanWindow>; 2],
    [zeros, ones]: [SpanDecoder; 2],
    tail: &[u8],
) -> Result<Digest, String> {
    match (zeros.error, zeros.output.left) {
        // Nobody reads past the wanted bytes, so later errors do not matter.
        (_, 0) if ones.output.first.finish() == zeros.output.first.finish() => {
            compare_next(spans, span, windows, zeros.output.next, tail)
                .map_err(|error| error.to_string())?;
            Ok(zeros.output.all.finish())
        }
        (_, 0) => Err(LEFT_OUT.to_owned()),
        (Some(error), _) => Err(error),
        (None, left) => {
            Err(format!("it decodes to {left} bytes fewer than the fine document says"))
        }
    }
}

const LEFT_OUT: &str = "it refers to bytes of its window that are left out";

/// The digest of what a span of zstd decodes to.
fn zstd(
    spans: &FineSpans,
    span: SpanId,
    windows: [Option<&SpanWindow>; 2],
    blob: &[u8],
) -> Result<Digest, String> {
    let plain = spans.plain_range(span);
    let size = plain.end - plain.start;
    let [zeros, ones] = [0, 0xff].map(|fill| {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let mut take = |bytes: &[u8]| {
            hasher.update(bytes);
            ControlFlow::Continue(())
        };
        if fill == 0 {
            zstd_to_next(spans, span, windows, blob, &mut take)?;
        } else {
            let mut sink = SpanFilter::new(size, &mut take);
            decode_zstd(span, spans, windows[0], fill, blob, size, &mut sink)?;
        }
        Ok::<Digest, SpanError>(hasher.finish())
    });
    let zeros = zeros.map_err(|error| error.to_string())?;
    let ones = ones.map_err(|error| error.to_string())?;
    if zeros == ones { Ok(zeros) } else { Err(LEFT_OUT.to_owned()) }
}

impl OpenSpan {
    fn take(&mut self, bytes: &[u8]) {
        /// The largest size of a lead.
        const TAIL: usize = 64;
        self.proof.update(bytes);
        let new = &bytes[bytes.len().saturating_sub(TAIL)..];
        self.tail.drain(..(self.tail.len() + new.len()).saturating_sub(TAIL));
        self.tail.extend_from_slice(new);
        let (skipped, bytes) = bytes.split_at(self.skip.min(bytes.len()));
        self.skip -= skipped.len();
        match &mut self.decoding {
            Decoding::Plain => self.plain.update(bytes),
            Decoding::Gzip(decoders) => decoders.iter_mut().for_each(|decoder| decoder.push(bytes)),
            Decoding::Zstd(all) => all.extend_from_slice(bytes),
        }
    }
}

/// The uncompressed side: takes the layer decoded from start to end.
pub(super) struct FinePlainCheck {
    layer: Arc<FineLayer>,
    hasher: Hasher,
    position: u64,
    hashes: Vec<Digest>,
}

impl FinePlainCheck {
    pub(super) fn new(layer: Arc<FineLayer>) -> FinePlainCheck {
        FinePlainCheck {
            layer,
            hasher: Hasher::new(Algorithm::Sha256),
            position: 0,
            hashes: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while self.hashes.len() < self.layer.spans().count() as usize {
            let end = self.layer.spans().plain_range(SpanId(self.hashes.len() as u32)).end.0;
            let wanted = usize::try_from(end.saturating_sub(self.position)).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(wanted.min(bytes.len()));
            self.hasher.update(now);
            self.position += now.len() as u64;
            bytes = later;
            if self.position < end {
                return;
            }
            let span = std::mem::replace(&mut self.hasher, Hasher::new(Algorithm::Sha256));
            self.hashes.push(span.finish());
        }
    }

    /// Ends the layer. Returns the digest of each span's bytes, for the spans that the layer
    /// reached.
    pub(super) fn finish(mut self) -> Vec<Digest> {
        self.push(&[]);
        self.hashes
    }
}
