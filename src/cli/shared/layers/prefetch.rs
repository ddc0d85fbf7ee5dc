//! The prefetch lists of an index, in JSON and for people.

use std::fmt::Write;

use serde::Serialize;

use crate::cli::shared::json::DigestText;
use crate::cli::shared::size::{counted, human};
use ociseek_format::image::prefetch::{SpanRange, count};
use ociseek_ops::index::{self, PrefetchedLayer};

/// A prefetch list.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Prefetched {
    /// Whether the list was taken over from the previous index.
    carried_over: bool,
    /// The layers with spans on the list.
    layers: Vec<ListedLayer>,
    /// The paths on the list that match no file in a layer with a ztoc.
    missing: Vec<Missing>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ListedLayer {
    /// The digest of the layer.
    layer: DigestText,
    /// The digest of the prefetch artifact.
    artifact: DigestText,
    /// The number of spans.
    spans: u64,
    ranges: Vec<Spans>,
    /// Size of these spans in the layer's blob, in bytes.
    bytes: u64,
}

/// Numbers of spans.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Spans {
    first: u32,
    last: u32,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Missing {
    path: String,
    reason: String,
}

impl Prefetched {
    pub(crate) fn of(prefetched: &index::PrefetchSummary) -> Prefetched {
        let layer = |PrefetchedLayer { layer, artifact, spans, bytes }: &PrefetchedLayer| ListedLayer {
            layer: layer.into(),
            artifact: artifact.into(),
            spans: count(spans),
            ranges: ranges(spans),
            bytes: *bytes,
        };
        let missing = prefetched.missing.iter();
        Prefetched {
            carried_over: prefetched.carried_over,
            layers: prefetched.layers.iter().map(layer).collect(),
            missing: missing.map(|m| Missing { path: m.path.clone(), reason: m.reason.clone() }).collect(),
        }
    }
}

pub(crate) fn ranges(spans: &[SpanRange]) -> Vec<Spans> {
    spans.iter().map(|range| Spans { first: range.start().0, last: range.end().0 }).collect()
}

/// A line about the list, if there is one.
pub(crate) fn line(text: &mut String, prefetched: Option<&index::PrefetchSummary>) {
    let Some(prefetched) = prefetched else { return };
    let layers = prefetched.layers.iter().map(|layer| (&layer.spans[..], layer.bytes));
    let from = if prefetched.carried_over { ", carried over from the previous index" } else { "" };
    let _ = writeln!(text, "  {}{from}", summary(layers));
}

/// A summary of the lists of some layers: their spans and bytes.
pub(crate) fn summary<'a>(layers: impl Iterator<Item = (&'a [SpanRange], u64)>) -> String {
    let sum = |(of, spans, bytes), (list, more): (&[SpanRange], u64)| (of + 1, spans + count(list), bytes + more);
    let (of, spans, bytes) = layers.fold((0, 0, 0), sum);
    let (spans, of) = (counted(spans, "span", "spans"), counted(of, "layer", "layers"));
    format!("prefetch {spans} of {of}, {}", human(bytes))
}
