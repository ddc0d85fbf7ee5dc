//! The prefetch artifact of a SOCI index: spans of one layer that a consumer fetches before the
//! container starts (soci-snapshotter v0.15.0, soci/prefetch.go).

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::json::{self, JsonError};
use crate::offset::SpanId;

/// The size limit of an artifact in bytes: enough for some 20,000 ranges.
pub const MAX_PREFETCH: u64 = 1 << 20;
/// The only existing version.
const VERSION: &str = "1.0";

/// Adjacent spans, from the first to the last.
pub type SpanRange = RangeInclusive<SpanId>;

/// Why a prefetch artifact cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum PrefetchError {
    #[error("the prefetch artifact is not valid")]
    Json(#[from] JsonError),
    #[error("unknown prefetch artifact version {0:?} (expected 1.0)")]
    Version(String),
    #[error("the prefetch artifact lists no spans")]
    Empty,
    #[error("the prefetch artifact lists spans {first} to {last}")]
    Reversed { first: SpanId, last: SpanId },
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: String,
    prefetch_spans: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    start_span: u32,
    end_span: u32,
}

/// Sorts the ranges, and joins overlapping and adjacent ones.
pub fn merge(mut ranges: Vec<SpanRange>) -> Vec<SpanRange> {
    ranges.sort_unstable_by_key(|range| (*range.start(), *range.end()));
    let mut merged: Vec<SpanRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if u64::from(range.start().0) <= u64::from(last.end().0) + 1 => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Encodes the artifact, byte for byte like soci's `MarshalPrefetchArtifact`. `ranges` must be
/// [merged](merge).
pub fn encode(ranges: &[SpanRange]) -> Vec<u8> {
    let entries =
        ranges.iter().map(|range| Entry { start_span: range.start().0, end_span: range.end().0 });
    let document = Document { version: VERSION.to_owned(), prefetch_spans: entries.collect() };
    // Strings and integers cannot fail to encode.
    serde_json::to_vec(&document).unwrap_or_default()
}

/// The number of spans in [merged](merge) ranges.
pub fn count(ranges: &[SpanRange]) -> u64 {
    ranges.iter().map(|range| u64::from(range.end().0 - range.start().0) + 1).sum()
}

/// Parses an artifact. The returned ranges are [merged](merge); they may exceed the layer's last
/// span.
///
/// # Errors
/// If it is not a prefetch artifact, or lists no spans.
pub fn parse(bytes: &[u8]) -> Result<Vec<SpanRange>, PrefetchError> {
    parse_unmerged(bytes).map(merge)
}

/// Parses an artifact. The returned ranges are in the order of the artifact, and may overlap.
///
/// # Errors
/// As [`parse`].
pub fn parse_unmerged(bytes: &[u8]) -> Result<Vec<SpanRange>, PrefetchError> {
    let document: Document =
        json::parse(bytes, MAX_PREFETCH as usize, &["version", "prefetch_spans"])?;
    if document.version != VERSION {
        return Err(PrefetchError::Version(document.version.chars().take(150).collect()));
    }
    let mut ranges = Vec::with_capacity(document.prefetch_spans.len());
    for Entry { start_span, end_span } in document.prefetch_spans {
        let first = SpanId(start_span);
        let last = SpanId(end_span);
        if last < first {
            return Err(PrefetchError::Reversed { first, last });
        }
        ranges.push(first..=last);
    }
    if ranges.is_empty() { Err(PrefetchError::Empty) } else { Ok(ranges) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans<const N: usize>(ranges: [RangeInclusive<u32>; N]) -> Vec<SpanRange> {
        ranges.map(|range| SpanId(*range.start())..=SpanId(*range.end())).into()
    }

    #[test]
    fn ranges_are_merged() {
        for (ranges, merged) in [
            (spans([]), spans([])),
            (spans([3..=4, 1..=2]), spans([1..=4])),
            (spans([1..=9, 2..=3, 11..=11]), spans([1..=9, 11..=11])),
            (spans([0..=u32::MAX, 5..=5]), spans([0..=u32::MAX])),
        ] {
            assert_eq!(merge(ranges), merged);
        }
    }

    #[test]
    fn spans_are_counted() {
        for (ranges, number) in
            [(spans([]), 0), (spans([0..=0, 10..=15]), 7), (spans([0..=u32::MAX]), 1 << 32)]
        {
            assert_eq!(count(&ranges), number);
        }
    }

    #[test]
    fn encoded_lists_match_soci_and_round_trip() {
        let ranges = spans([0..=0, 10..=15]);
        let bytes = encode(&ranges);
        let text = r#"{"version":"1.0","prefetch_spans":[{"start_span":0,"end_span":0},{"start_span":10,"end_span":15}]}"#;
        assert_eq!(String::from_utf8_lossy(&bytes), text);
        assert_eq!(parse(&bytes).unwrap(), ranges);
        // soci may add a priority, which is not used yet.
        let with_priority = text.replace("\"end_span\":0", "\"end_span\":0,\"priority\":3");
        assert_eq!(parse(with_priority.as_bytes()).unwrap(), ranges);
    }

    #[test]
    fn foreign_artifacts_are_validated() {
        let with = |spans: &str| format!(r#"{{"version":"1.0","prefetch_spans":[{spans}]}}"#);
        assert!(matches!(parse(with("").as_bytes()), Err(PrefetchError::Empty)));
        let reversed = with(r#"{"start_span":3,"end_span":2}"#);
        assert!(matches!(
            parse(reversed.as_bytes()),
            Err(PrefetchError::Reversed { first: SpanId(3), last: SpanId(2) })
        ));
        let newer = with(r#"{"start_span":1,"end_span":2}"#).replace("1.0", "2.0");
        assert!(matches!(parse(newer.as_bytes()), Err(PrefetchError::Version(_))));
        for odd in [
            r#"{"start_span":-1,"end_span":2}"#,
            r#"{"start_span":4294967296,"end_span":4294967297}"#,
            r#"{"start_span":1}"#,
            "1",
        ] {
            assert!(matches!(parse(with(odd).as_bytes()), Err(PrefetchError::Json(_))), "{odd}");
        }
        let long = with(&vec![r#"{"start_span":1,"end_span":2}"#; 50_000].join(","));
        assert!(matches!(
            parse(long.as_bytes()),
            Err(PrefetchError::Json(JsonError::TooLarge { .. }))
        ));
    }
}
