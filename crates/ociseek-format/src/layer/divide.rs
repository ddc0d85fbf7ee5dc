//! Divides a span of a fine document, for a start that reads only parts of it.

use std::ops::{ControlFlow, Range};

use super::fine::{FineGzip, FineMessage, FineZstd, ZstdPlanner, cuts};
use super::span::{SpanError, SpanFilter, SpanSink, decode_fine, decode_zstd, zstd_blocks};
use crate::codec::gzip::{BlockStart, Sink};
use crate::codec::inflate::BackReference;
use crate::digest::Hasher;
use crate::fine::{Codec, FineSpans, FineStart, SpanDivision, SpanWindow};
use crate::offset::{SpanId, Uncompressed};

/// Divides `span` at blocks that are at least [`DIVIDED_SPAN_SIZE`](crate::fine::DIVIDED_SPAN_SIZE)
/// apart. `window` is the one of the span, if it has one, and `blob` has the bytes of its
/// [`fetch_range`](FineSpans::fetch_range). The division is empty if the span has no such block, or
/// the layer is a plain tar.
///
/// Spans of gzip are divided at all such blocks, and those of zstd where `reads`, which are bytes
/// of the tar in any order, begin or end: a window of zstd is as large as some blocks. The same
/// layer and reads always give the same division, and so does reading all of the new spans that
/// `reads` touches.
///
/// # Errors
/// If `blob` is not what the span's proof says, or cannot be decoded.
pub fn divide_span(
    spans: &FineSpans,
    span: SpanId,
    window: Option<&SpanWindow>,
    blob: &[u8],
    reads: &[Range<Uncompressed>],
) -> Result<SpanDivision, SpanError> {
    let Some(whole) = spans.starts().get(span.0 as usize).filter(|_| spans.codec() != Codec::Plain) else {
        return Ok(SpanDivision::default());
    };
    if !spans.proves(span, blob) {
        return Err(SpanError::Proof { span });
    }
    let plain = spans.plain_range(span);
    let size = plain.end - plain.start;
    let messages = if spans.codec() == Codec::Gzip {
        let mut blocks = SpanBlocks { left: size, fine: FineGzip::dividing(spans, span) };
        decode_fine(span, spans, window, blob, size, &mut blocks)?;
        blocks.fine.end();
        blocks.fine.notes()
    } else {
        divide_zstd(spans, span, window, blob, reads)?
    };
    let mut division = SpanDivision::default();
    let first = spans.fetch_range(span).start.0;
    let mut hasher = Hasher::resume(whole.state, first);
    let mut hashed = 0;
    // All of them lie in the blob: the span's own border is before them.
    let at = |offset: u64| (offset.saturating_sub(first) as usize).min(blob.len());
    for message in messages {
        match message {
            FineMessage::Start(start) => {
                hasher.update(&blob[hashed..at(start.border())]);
                hashed = at(start.border());
                let Some(state) = hasher.chain_state() else { break };
                division.starts.push(FineStart { state, ..start });
            }
            FineMessage::Window(window) => {
                // Two starts may precede the window of the first.
                let Some(start) = division.starts.get(division.windows.len()) else { break };
                let border = at(start.border());
                division.windows.push(window.led_by(&blob[at(start.first()).min(border)..border]));
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

/// Finds checkpoints in a span of zstd.
fn divide_zstd(
    spans: &FineSpans,
    span: SpanId,
    window: Option<&SpanWindow>,
    blob: &[u8],
    reads: &[Range<Uncompressed>],
) -> Result<Vec<FineMessage>, SpanError> {
    let failed = |reason: String| SpanError::Zstd { span, reason };
    let chunks = [window.map_or(&[][..], SpanWindow::lead), spans.own(span, blob)];
    let blocks = || zstd_blocks(span, spans, window);
    let cuts = cuts(spans, span, blocks()?, &chunks, reads).map_err(|error| failed(error.to_string()))?;
    if cuts.is_empty() {
        return Ok(Vec::new());
    }
    let plan = ZstdPlanner::dividing(spans, span, blocks()?, cuts).plan(&chunks, true);
    let Some(mut plan) = plan else { return Ok(Vec::new()) };
    plan.check().map_err(|error| failed(error.to_string()))?;
    let fine = FineZstd::dividing(spans, span, window, &mut plan);
    let mut fine = fine.map_err(|error| failed(error.to_string()))?;
    let plain = spans.plain_range(span);
    let mut taken = Ok(());
    let mut take = |bytes: &[u8]| {
        taken = fine.output(bytes);
        if taken.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    decode_zstd(span, spans, window, 0, blob, &mut SpanFilter::new(plain.end - plain.start, &mut take))?;
    taken.and_then(|()| fine.pass()).map_err(|error| failed(error.to_string()))?;
    Ok(fine.notes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::ControlFlow;

    use proptest::prelude::*;

    use super::divide_span;
    use crate::budget::Budget;
    use crate::fine::{self, DIVIDED_SPAN_SIZE, FineLayer, SPAN_SIZE, SpanDivision};
    use crate::layer::fine::tests::gzip;
    use crate::layer::span::{SpanError, SpanTable};
    use crate::layer::{LayerIndexer, LayerMap, LayerOptions};
    use crate::offset::SpanId;

    /// A tar with one file, whose words refer to all distances.
    fn tar(size: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        let mut text: Vec<u8> = (0..4096).map(|_| next() as u8).collect();
        while text.len() < size {
            let (back, length) = (1 + next() % text.len().min(32_000), 3 + next() % 40);
            let from = text.len() - back;
            text.extend_from_within(from..from + length.min(back));
            text.push(next() as u8);
        }
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, "words", &text[..]).unwrap();
        archive.into_inner().unwrap()
    }

    fn document(blob: &[u8]) -> FineLayer {
        let options = LayerOptions { fine: true, ..LayerOptions::default() };
        let mut indexer = LayerIndexer::new(options, None);
        indexer.push(blob).unwrap();
        indexer.finish().unwrap().fine.unwrap()
    }

    fn divide(layer: &FineLayer, blob: &[u8], span: SpanId) -> Result<SpanDivision, SpanError> {
        let range = layer.spans().fetch_range(span);
        let window = layer.window(span).unwrap();
        divide_span(layer.spans(), span, window.as_ref(), &blob[range.start.0 as usize..range.end.0 as usize], &[])
    }

    /// What a span decodes to by the encoded document, with `fill` in place of the bytes that its
    /// window leaves out.
    fn decoded(layer: &FineLayer, blob: &[u8], span: SpanId) -> Vec<u8> {
        let encoded = layer.encode(&[]).unwrap();
        let head = fine::decode_head(
            &encoded.bytes[..encoded.head_size as usize],
            encoded.bytes.len() as u64,
            &mut Budget::new(u64::MAX).open(),
        );
        let table = SpanTable::new(std::sync::Arc::new(LayerMap::from(head.unwrap()))).unwrap();
        let range = table.blob_range(span);
        let mut plain = Vec::new();
        let window = layer.window(span).unwrap();
        let bytes = &blob[range.start.0 as usize..range.end.0 as usize];
        table
            .decode_with(span, window.as_ref(), bytes, &mut |piece| {
                plain.extend_from_slice(piece);
                ControlFlow::Continue(())
            })
            .unwrap();
        plain
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

        #[test]
        fn divided_spans_decode_to_the_same_bytes(
            size in 300_000usize..1_500_000,
            seed in any::<u64>(),
            level in 0u32..=9,
            members in 1usize..4,
            chosen in prop::collection::vec(any::<bool>(), 8),
        ) {
            let tar = tar(size, seed);
            let blob = gzip(&tar, level, members);
            let whole = document(&blob);
            let mut divisions = BTreeMap::new();
            for span in SpanId::each(SpanId(0)..SpanId(whole.spans().count())) {
                if chosen[span.0 as usize % chosen.len()] {
                    divisions.insert(span, divide(&whole, &blob, span).unwrap());
                }
            }
            let divided = whole.clone().divided(&divisions).unwrap();
            let new: usize = divisions.values().map(|division| division.starts.len()).sum();
            prop_assert_eq!(divided.spans().count() as usize, whole.spans().count() as usize + new);
            for span in SpanId::each(SpanId(0)..SpanId(divided.spans().count())) {
                let range = divided.spans().plain_range(span);
                let wanted = &tar[range.start.0 as usize..range.end.0 as usize];
                prop_assert_eq!(&decoded(&divided, &blob, span)[..], wanted);
            }
            // It can be undone, and the bytes are those of the layer as it was indexed.
            let undone = divided.undivided().unwrap();
            prop_assert_eq!(&undone, &whole);
            prop_assert_eq!(undone.encode(&[]).unwrap().bytes, whole.encode(&[]).unwrap().bytes);
        }
    }

    #[test]
    fn spans_are_divided_at_blocks() {
        let blob = gzip(&tar(2_000_000, 5), 6, 1);
        let whole = document(&blob);
        let mut least = u32::MAX;
        for (number, two) in whole.spans().starts().windows(2).enumerate() {
            let division = divide(&whole, &blob, SpanId(number as u32)).unwrap();
            let starts = &division.starts;
            let all: Vec<u64> = std::iter::once(&two[0]).chain(starts).map(|start| start.output.0).collect();
            assert!(all.windows(2).all(|two| two[1] - two[0] > DIVIDED_SPAN_SIZE), "{all:?}");
            assert!(all.last().unwrap() - all[0] <= SPAN_SIZE);
            assert_eq!(starts.len(), division.windows.len());
            least = least.min(starts.len() as u32);
        }
        assert!(least >= 1, "each of these spans has several blocks");
    }

    #[test]
    fn damaged_bytes_are_not_divided() {
        let mut blob = gzip(&tar(600_000, 7), 6, 1);
        let whole = document(&blob);
        blob[100] ^= 1;
        assert_eq!(divide(&whole, &blob, SpanId(0)), Err(SpanError::Proof { span: SpanId(0) }));
    }

    #[test]
    fn plain_tars_are_not_divided() {
        let tar = tar(600_000, 7);
        let whole = document(&tar);
        assert_eq!(divide(&whole, &tar, SpanId(1)), Ok(SpanDivision::default()));
        assert_eq!(whole.clone().undivided().unwrap(), whole);
    }
}
