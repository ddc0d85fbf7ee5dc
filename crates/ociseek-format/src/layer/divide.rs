//! Divides a span of a fine document, for a start that reads only parts of it.

use std::io;
use std::ops::{ControlFlow, Range};

use super::fine::{FineGzip, FineMessage, FineZstd, StartLimits, ZstdPlanner, start};
use super::span::{SpanError, SpanFilter, SpanSink, decode_fine, decode_zstd, zstd_blocks};
use crate::codec::gzip::{BlockStart, Sink};
use crate::codec::inflate::BackReference;
use crate::codec::zstd::{ZstdBlocks, ZstdBorder, ZstdReference, ZstdSink};
use crate::digest::Hasher;
use crate::fine::{Codec, DIVIDED_SPAN_SIZE, FineSpans, FineStart, SpanDivision, SpanWindow};
use crate::offset::{Compressed, SpanId, Uncompressed};

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
    let Some(whole) = spans.starts().get(span.0 as usize).filter(|_| spans.codec() != Codec::Plain)
    else {
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
    let cuts =
        cuts(spans, span, blocks()?, &chunks, reads).map_err(|error| failed(error.to_string()))?;
    if cuts.is_empty() {
        return Ok(Vec::new());
    }
    let plan = ZstdPlanner::dividing(spans, span, blocks()?, cuts).plan(&chunks, true);
    let Some(mut plan) = plan else { return Ok(Vec::new()) };
    plan.check().map_err(|error| failed(error.to_string()))?;
    let fine = FineZstd::dividing(spans, span, window, &mut plan);
    let mut fine = fine.map_err(|error| failed(error.to_string()))?;
    let plain = spans.plain_range(span);
    let size = plain.end - plain.start;
    let mut taken = Ok(());
    let mut take = |bytes: &[u8]| {
        taken = fine.output(bytes);
        if taken.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    decode_zstd(span, spans, window, 0, blob, size, &mut SpanFilter::new(size, &mut take))?;
    taken.and_then(|()| fine.pass()).map_err(|error| failed(error.to_string()))?;
    Ok(fine.notes())
}

/// A window takes about as many bytes of the document. Fewer bytes of the blob are fetched although
/// nobody reads them.
const LEAST: u64 = 16 << 10;

/// Where blocks begin at which `span` is divided: `reads` begins to read there, or ceases to. So a
/// start fetches no window in the middle of what it reads. `chunks` are the bytes of the span, and
/// `blocks` stands before them.
///
/// # Errors
/// If the blocks cannot be read.
fn cuts(
    spans: &FineSpans,
    span: SpanId,
    mut blocks: ZstdBlocks,
    chunks: &[&[u8]],
    reads: &[Range<Uncompressed>],
) -> io::Result<Vec<Compressed>> {
    let Some(first) = spans.starts().get(span.0 as usize) else { return Ok(Vec::new()) };
    let limits = StartLimits::inside(spans, span, u64::MAX);
    let size = chunks.iter().map(|chunk| chunk.len()).sum::<usize>();
    let mut parts = Parts { starts: vec![start(first.input, first.output, 0)], limits };
    chunks.iter().try_for_each(|chunk| blocks.push(chunk, &mut parts))?;
    let end = start(
        Compressed(first.input.0.saturating_add(size as u64)),
        spans.plain_range(span).end,
        0,
    );
    Ok(choose(&parts.starts, end, reads))
}

/// The parts that the span could have: at least [`DIVIDED_SPAN_SIZE`] apart.
struct Parts {
    starts: Vec<FineStart>,
    limits: StartLimits,
}

impl ZstdSink for Parts {
    fn block_start(&mut self, at: ZstdBorder<'_>) {
        let next = start(at.input, at.output, 0);
        let follows = |last: &FineStart| {
            next.output - last.output > DIVIDED_SPAN_SIZE
                && next.border() > last.border()
                && next.border() <= self.limits.border
                && next.output.0 <= self.limits.output
        };
        if self.starts.last().is_some_and(follows) {
            self.starts.push(next);
        }
    }

    fn since(&self) -> Option<Uncompressed> {
        None
    }

    fn references(&mut self, _: &[ZstdReference]) {}
}

/// `starts` are those of the parts, and `end` is the end of the last one.
fn choose(starts: &[FineStart], end: FineStart, reads: &[Range<Uncompressed>]) -> Vec<Compressed> {
    let start_of = |part: usize| starts.get(part).unwrap_or(&end);
    let is_read = |part: &usize| {
        let from = start_of(*part).output;
        let to = start_of(*part + 1).output;
        reads.iter().any(|read| read.start.max(from) < read.end.min(to))
    };
    let pays =
        |unread: &Range<usize>| start_of(unread.end).input - start_of(unread.start).input >= LEAST;
    let mut cuts = Vec::new();
    let mut read_end = 0;
    for part in (0..starts.len()).filter(is_read) {
        let unread = std::mem::replace(&mut read_end, part + 1)..part;
        if !unread.is_empty() && pays(&unread) {
            cuts.extend((unread.start > 0).then(|| start_of(unread.start).input));
            cuts.push(start_of(unread.end).input);
        }
    }
    let unread = read_end..starts.len();
    cuts.extend(
        (read_end > 0 && !unread.is_empty() && pays(&unread)).then(|| start_of(unread.start).input),
    );
    cuts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::budget::Budget;
    use crate::fine::{self, FineLayer, SPAN_SIZE};
    use crate::layer::fine::tests::gzip;
    use crate::layer::span::{SpanError, SpanTable};
    use crate::layer::{LayerIndexer, LayerMap, LayerOptions};

    /// A tar with one file, whose words refer to all distances.
    fn tar(size: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        let mut text: Vec<u8> = (0..4096).map(|_| next() as u8).collect();
        while text.len() < size {
            let back = 1 + next() % text.len().min(32_000);
            let length = 3 + next() % 40;
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
        divide_span(
            layer.spans(),
            span,
            window.as_ref(),
            &blob[range.start.0 as usize..range.end.0 as usize],
            &[],
        )
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
            let all: Vec<u64> =
                std::iter::once(&two[0]).chain(starts).map(|start| start.output.0).collect();
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

    #[test]
    fn spans_are_divided_where_reads_begin_and_end() {
        // Parts of 100 bytes of the tar, of which only the third is small in the blob.
        let mut input = 0;
        let mut at = |number: u64| {
            let at = start(Compressed(input), Uncompressed(1000 + 100 * number), 0);
            input += if number == 2 { LEAST - 1 } else { LEAST };
            at
        };
        let starts: Vec<FineStart> = (0..6).map(&mut at).collect();
        let end = at(6);
        for (reads, expected) in [
            (&[][..], &[][..]),
            (&[(0, 9000)], &[]),
            (&[(0, 1000), (1600, 1700), (1200, 1200)], &[]),
            (&[(1000, 1100)], &[1]),
            (&[(0, 1001)], &[1]),
            (&[(1099, 1101)], &[2]),
            (&[(1100, 1101)], &[1, 2]),
            (&[(1500, 1501)], &[5]),
            // In the order of the reads.
            (&[(1500, 1600), (1000, 1100)], &[1, 5]),
            (&[(1300, 1400), (1100, 1200)], &[1, 4]),
            (&[(1000, 1100), (1250, 1260), (1599, 1600)], &[1, 2, 3, 5]),
        ] {
            let reads: Vec<_> =
                reads.iter().map(|(from, to)| Uncompressed(*from)..Uncompressed(*to)).collect();
            let expected: Vec<Compressed> =
                expected.iter().map(|part: &usize| starts[*part].input).collect();
            assert_eq!(choose(&starts, end, &reads), expected, "{reads:?}");
        }
        // Nothing pays for the window of the last part.
        let small = FineStart { input: Compressed(end.input.0 - 1), ..end };
        assert_eq!(choose(&starts, small, &[Uncompressed(1000)..Uncompressed(1500)]), []);
    }
}
