//! Finds where to divide a span of a zstd blob for a start that reads parts of it.

use std::io;
use std::ops::Range;

use super::{StartLimits, start};
use crate::codec::zstd::{ZstdBlocks, ZstdBorder, ZstdReference, ZstdSink};
use crate::fine::{DIVIDED_SPAN_SIZE, FineSpans, FineStart};
use crate::offset::{Compressed, SpanId, Uncompressed};

/// A window takes about as many bytes of the document. Fewer bytes of the blob are fetched although
/// nobody reads them.
const LEAST: u64 = 16 << 10;

/// Where blocks begin at which `span` is divided: `reads` begins to read there, or ceases to. So a
/// start fetches no window in the middle of what it reads. `chunks` are the bytes of the span, and
/// `blocks` stands before them.
///
/// # Errors
/// If the blocks cannot be read.
pub(in crate::layer) fn cuts(
    spans: &FineSpans,
    span: SpanId,
    mut blocks: ZstdBlocks,
    chunks: &[&[u8]],
    reads: &[Range<Uncompressed>],
) -> io::Result<Vec<Compressed>> {
    let Some(first) = spans.starts().get(span.0 as usize) else { return Ok(Vec::new()) };
    let (limits, size) =
        (StartLimits::inside(spans, span, u64::MAX), chunks.iter().map(|chunk| chunk.len()).sum::<usize>());
    let mut parts = Parts { starts: vec![start(first.input, first.output, 0)], limits };
    chunks.iter().try_for_each(|chunk| blocks.push(chunk, &mut parts))?;
    let end = start(Compressed(first.input.0.saturating_add(size as u64)), spans.plain_range(span).end, 0);
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
        let (from, to) = (start_of(*part).output, start_of(*part + 1).output);
        reads.iter().any(|read| read.start.max(from) < read.end.min(to))
    };
    let pays = |unread: &Range<usize>| start_of(unread.end).input - start_of(unread.start).input >= LEAST;
    let (mut cuts, mut read_end) = (Vec::new(), 0);
    for part in (0..starts.len()).filter(is_read) {
        let unread = std::mem::replace(&mut read_end, part + 1)..part;
        if !unread.is_empty() && pays(&unread) {
            cuts.extend((unread.start > 0).then(|| start_of(unread.start).input));
            cuts.push(start_of(unread.end).input);
        }
    }
    let unread = read_end..starts.len();
    cuts.extend((read_end > 0 && !unread.is_empty() && pays(&unread)).then(|| start_of(unread.start).input));
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let reads: Vec<_> = reads.iter().map(|(from, to)| Uncompressed(*from)..Uncompressed(*to)).collect();
            let expected: Vec<Compressed> = expected.iter().map(|part: &usize| starts[*part].input).collect();
            assert_eq!(choose(&starts, end, &reads), expected, "{reads:?}");
        }
        // Nothing pays for the window of the last part.
        let small = FineStart { input: Compressed(end.input.0 - 1), ..end };
        assert_eq!(choose(&starts, small, &[Uncompressed(1000)..Uncompressed(1500)]), []);
    }
}
