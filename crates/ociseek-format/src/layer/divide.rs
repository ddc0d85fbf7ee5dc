//! Divides a span of a fine document, for a start that reads only parts of it.

use super::fine::{FineGzip, FineMessage};
use super::span::{SpanError, SpanSink, decode_fine};
use crate::codec::gzip::{BlockStart, Sink};
use crate::codec::inflate::BackReference;
use crate::digest::Hasher;
use crate::fine::{Codec, FineSpans, FineStart, SpanDivision, SpanWindow};
use crate::offset::{SpanId, Uncompressed};

/// Divides `span` at blocks that are at least [`DIVIDED_SPAN_SIZE`](crate::fine::DIVIDED_SPAN_SIZE)
/// apart. `window` is the one of the span, if it has one, and `blob` has the bytes of its
/// [`fetch_range`](FineSpans::fetch_range). The division is empty if the span has no such block, or
/// the layer is a plain tar. The same layer always gives the same division.
///
/// # Errors
/// If `blob` is not what the span's proof says, or cannot be decoded.
pub fn divide_span(
    spans: &FineSpans,
    span: SpanId,
    window: Option<&SpanWindow>,
    blob: &[u8],
) -> Result<SpanDivision, SpanError> {
    let Some(whole) = spans.starts().get(span.0 as usize).filter(|_| spans.codec() == Codec::Gzip) else {
        return Ok(SpanDivision::default());
    };
    if !spans.proves(span, blob) {
        return Err(SpanError::Proof { span });
    }
    let plain = spans.plain_range(span);
    let size = plain.end - plain.start;
    let mut blocks = SpanBlocks { left: size, fine: FineGzip::dividing(spans, span) };
    decode_fine(span, spans, window, blob, size, &mut blocks)?;
    blocks.fine.end();
    let mut division = SpanDivision::default();
    let first = spans.fetch_range(span).start.0;
    let mut hasher = Hasher::resume(whole.state, first);
    let mut hashed = 0;
    for message in blocks.fine.notes() {
        match message {
            FineMessage::Start(start) => {
                // Both lie in the blob: the span's own border is before them.
                let at = |offset: u64| (offset.saturating_sub(first) as usize).min(blob.len());
                hasher.update(&blob[hashed..at(start.border())]);
                hashed = at(start.border());
                let Some(state) = hasher.chain_state() else { break };
                division.starts.push(FineStart { state, ..start });
            }
            FineMessage::Window(window) => {
                let Some(start) = division.starts.get(division.windows.len()) else { break };
                let lead = (start.first().saturating_sub(first) as usize).min(hashed)..hashed;
                division.windows.push(window.led_by(&blob[lead]));
            }
        }
    }
    Ok(division)
}

/// Finds checkpoints in a span.
struct SpanBlocks {
    left: u64,
    fine: FineGzip,
}

impl Sink for SpanBlocks {
    fn output(&mut self, bytes: &[u8]) {
        self.left = self.left.saturating_sub(bytes.len() as u64);
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        self.fine.block_start(at);
    }

    fn wants_references(&self) -> bool {
        self.fine.wants_references()
    }

    fn references(&mut self, base: Uncompressed, references: &[BackReference]) {
        self.fine.references(base, references);
    }
}

impl SpanSink for SpanBlocks {
    fn left(&self) -> u64 {
        self.left
    }
}

#[cfg(test)]
mod tests;
