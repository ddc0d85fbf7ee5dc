//! Which spans are fetched together with a missing one, because the registry is far away.

use super::in_flight::{FetchRole, SpanRequest};
use super::layer::LayerHandle;
use super::model::FetchCause;
use super::pieces::{HANDED_OVER, covering};
use ociseek_format::fine::FineSpans;
use ociseek_format::offset::SpanId;

/// The most compressed bytes that are fetched after a missing span: as many as a span of a SOCI
/// index usually has.
const MOST_AFTER: u64 = 4 << 20;

impl LayerHandle {
    /// The spans after `last` that are fetched with it, up to the next one that is not missing: as
    /// many as arrive while a request waits for its first byte. The spans of a fine index are
    /// small, so a program that needs many would wait for one after the other. An image with a
    /// recorded start does not need this while its reads are within that start. `missed` are the
    /// spans that the read waits for.
    pub(super) fn next_spans(&self, last: SpanId, missed: &[SpanRequest]) -> Vec<SpanRequest> {
        let (inner, layer) = (&self.inner, &self.layer);
        let most = inner.pace.bytes_per_wait().min(MOST_AFTER);
        let Some(head) = layer.open.map().fine() else { return Vec::new() };
        let missed = missed.iter().map(|wanted| self.span(wanted.promise.span()));
        if (inner.has_recorded_start() && !inner.start.note_miss(missed)) || most == 0 {
            return Vec::new();
        }
        following(head.spans(), last, most)
            .take_while(|span| !self.is_in_memory(*span))
            .map_while(|span| match inner.in_flight.join(self.span(span), FetchCause::Readahead) {
                // It may have arrived after we looked and before we joined.
                FetchRole::Fetch(promise, _) if !self.is_in_memory(span) => {
                    Some(SpanRequest { promise, pieces: Some(covering(&(0..layer.size(span)))) })
                }
                FetchRole::Fetch(..) | FetchRole::Wait(_) => None,
            })
            .collect()
    }
}

/// The spans after `missing` with at most `most` bytes of the blob. They also have a limit in bytes
/// of the tar, because all of them may be in memory at once. The spans after the tar's end hold
/// nothing to read, and there may be thousands of them.
fn following(spans: &FineSpans, missing: SpanId, most: u64) -> impl Iterator<Item = SpanId> {
    let blob_end = spans.fetch_range(missing).end + most;
    let plain_end = spans.plain_range(missing).end + HANDED_OVER;
    SpanId::each(SpanId(missing.0 + 1)..SpanId(spans.count())).take_while(move |span| {
        let plain = spans.plain_range(*span);
        spans.fetch_range(*span).end <= blob_end && plain.end <= plain_end && !plain.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::digest::{ChainState, Digest};
    use ociseek_format::fine::{Codec, FineStart, SpanParts};
    use ociseek_format::offset::{Compressed, Uncompressed};

    const COUNT: u64 = 64;
    const BLOB: u64 = 64 << 10;

    /// Spans of [`BLOB`] bytes of the blob and `plain` bytes of the tar, which ends at `tar_end`.
    fn spans(plain: u64, tar_end: u64) -> FineSpans {
        let start = |number: u64| FineStart {
            input: Compressed(number * BLOB),
            output: Uncompressed(number * plain),
            bits: 0,
            state: ChainState::INITIAL,
        };
        let parts = SpanParts {
            layer: Digest::sha256(b""),
            codec: Codec::Gzip,
            blob_size: COUNT * BLOB,
            tar_end: Uncompressed(tar_end),
            span_size: 32 << 10,
            starts: (0..COUNT).map(start).collect(),
        };
        FineSpans::new(parts).unwrap()
    }

    #[test]
    fn following_spans_are_limited_in_bytes_of_the_blob_and_of_the_tar() {
        let numbers = |plain: u64, missing: u32, most: u64| -> Vec<u32> {
            let spans = spans(plain, COUNT * plain);
            following(&spans, SpanId(missing), most).map(|span| span.0).collect()
        };
        let usual = 128 << 10;
        assert_eq!(numbers(usual, 10, 3 * BLOB), [11, 12, 13]);
        assert_eq!(numbers(usual, 10, 3 * BLOB - 1), [11, 12]);
        assert_eq!(numbers(usual, 62, MOST_AFTER), [63]);
        assert_eq!(numbers(usual, 63, MOST_AFTER), [0; 0]);
        // Of files with zeros, few bytes of the blob are many of the tar.
        assert_eq!(numbers(HANDED_OVER / 4, 10, MOST_AFTER), [11, 12, 13, 14]);
        assert_eq!(numbers(HANDED_OVER + 1, 10, MOST_AFTER), [0; 0]);
    }

    #[test]
    fn spans_after_the_end_of_the_tar_do_not_follow() {
        // A few bytes of span 12 belong to the tar.
        let spans = spans(128 << 10, 12 * (128 << 10) + 5);
        let numbers =
            |missing: u32| -> Vec<u32> { following(&spans, SpanId(missing), MOST_AFTER).map(|span| span.0).collect() };
        assert_eq!(numbers(10), [11, 12]);
        assert_eq!(numbers(12), [0; 0]);
        assert_eq!(numbers(20), [0; 0]);
    }
}
