//! The output for the layers of an indexed image and its prefetch lists, for people and in JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::json::{Coded, DigestText, milliseconds};
use super::size::{ByteSize, counted, human, rate};
use super::terminal::{Style, safe};
use ociseek_format::digest::Digest;
use ociseek_format::image::coverage::Coverage;
use ociseek_format::image::prefetch::{SpanRange, count};
use ociseek_ops::index::{
    self, LayerOutcome, LayerReport, LeftOutReason, Origin, PrefetchedLayer, RefusedImage,
    Shortfall, ZtocFacts,
};

pub(crate) fn heading(
    text: &mut String,
    image: &str,
    platform: Option<&str>,
    manifest: &Digest,
    style: Style,
) {
    let platform = platform.unwrap_or("unknown platform");
    let _ = writeln!(text, "{} {}", style.bold(&safe(image)), style.bold(&safe(platform)));
    let _ = writeln!(text, "  manifest {manifest}");
}

/// A line for each layer, in columns.
pub(crate) fn layers(text: &mut String, layers: &[LayerReport], style: Style) {
    // If an existing index was kept, the layers were not processed.
    if layers.iter().any(|layer| matches!(layer.outcome, LayerOutcome::Listed { .. })) {
        return;
    }
    let rows: Vec<Option<[String; 5]>> = layers.iter().map(columns).collect();
    let width =
        |column: usize| rows.iter().flatten().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 4] = std::array::from_fn(width);
    let folded = folded(layers);
    for (layer, row) in layers.iter().zip(&rows) {
        let size = human(layer.descriptor.size);
        let line = format!("  {}  {size:>10}", layer.descriptor.digest.short());
        match (&layer.outcome, row) {
            (LayerOutcome::LeftOut(left_out), _) => {
                let reason = reason(left_out);
                if !folded.contains_key(&reason) {
                    let line = format!("{line}  left out: {}", safe(&reason));
                    let _ = writeln!(text, "{}", style.dim(&line));
                }
            }
            (_, None) => {}
            (_, Some(row)) => {
                let mut line = line;
                for (cell, width) in row.iter().zip(widths).filter(|(_, width)| *width > 0) {
                    let _ = write!(line, "  {cell:>width$}");
                }
                let _ = writeln!(text, "{}", format!("{line}  {}", row[4]).trim_end());
            }
        }
    }
    for (reason, (layers, size)) in folded {
        let layers = format!("{layers} layers");
        let line = format!("  {layers:<12}  {:>10}  left out: {}", human(size), safe(&reason));
        let _ = writeln!(text, "{}", style.dim(&line));
    }
}

/// As many layers that are left out for one reason have a line each. More have one together.
const LINES: usize = 4;

/// The reasons of such layers, with the number of layers and their size.
fn folded(layers: &[LayerReport]) -> BTreeMap<String, (usize, u64)> {
    let mut reasons = BTreeMap::<String, (usize, u64)>::new();
    for layer in layers {
        if let LayerOutcome::LeftOut(left_out) = &layer.outcome {
            let (layers, size) = reasons.entry(reason(left_out)).or_default();
            *layers += 1;
            *size = size.saturating_add(layer.descriptor.size);
        }
    }
    reasons.retain(|_, (layers, _)| *layers > LINES);
    reasons
}

/// The number of layers that were read before, and not again. Empty without any.
pub(crate) fn reused<'a>(layers: impl Iterator<Item = &'a LayerReport>) -> String {
    let mut all = 0;
    let mut reused = 0;
    for layer in layers {
        let LayerOutcome::Indexed(facts) = &layer.outcome else { continue };
        all += 1;
        reused += usize::from(matches!(facts.origin, Origin::Cache | Origin::Reused(_)));
    }
    if reused == 0 { String::new() } else { format!("; reused {reused} of {all} layers") }
}

/// Spans, files, ztoc size, speed, and a remark.
fn columns(layer: &LayerReport) -> Option<[String; 5]> {
    let LayerOutcome::Indexed(facts) = &layer.outcome else { return None };
    let (speed, remark) = match &facts.origin {
        Origin::Read { seconds } => (rate(layer.descriptor.size, *seconds), String::new()),
        Origin::Cache => (String::new(), "from the cache".to_owned()),
        Origin::Reused(from) => (String::new(), format!("reused from {}", safe(from))),
        Origin::Repeated => (String::new(), "duplicate of another layer".to_owned()),
    };
    Some([
        counted(u64::from(facts.spans), "span", "spans"),
        counted(facts.entries, "file", "files"),
        format!("ztoc {}", human(facts.size)),
        speed,
        remark,
    ])
}

/// The coverage of an index, if it is not complete.
pub(crate) fn coverage(text: &mut String, coverage: &Coverage) {
    if coverage.layers < coverage.of_layers {
        let layers = counted(coverage.of_layers as u64, "layer", "layers");
        let share = coverage.share();
        let bytes = human(coverage.of_bytes);
        let _ = writeln!(text, "  covers {} of {layers}, {share} of {bytes}", coverage.layers);
    }
}

/// soci-snapshotter before 0.14 treats a gzip blob as a single member.
pub(crate) fn members(text: &mut String, layers: &[LayerReport], style: Style) {
    let several = (layers.iter())
        .filter(
            |layer| matches!(&layer.outcome, LayerOutcome::Indexed(facts) if facts.gzip_members.is_some_and(|n| n > 1)),
        )
        .count();
    if several > 0 {
        let note = style.yellow("note:");
        let layers = counted(several as u64, "layer is", "layers are");
        let _ = writeln!(
            text,
            "  {note} {layers} gzip of several members (bgzip, eStargz, ...): soci-snapshotter before 0.14 \
             misreads such layers"
        );
    }
}

/// A ztoc of this part of its layer costs more than it saves: consumers fetch it before they start.
const LARGE_ZTOC: u64 = 5;

/// The window of a checkpoint, which is most of it.
const CHECKPOINT: u64 = 32 << 10;

/// Says which part of such ztocs is large: checkpoints, if the span size was meant in another unit,
/// or the list of files, which no span size makes smaller. Layers that are pulled whole as fast do
/// not count.
pub(crate) fn large_ztocs(text: &mut String, layers: &[LayerReport], style: Style) {
    let large: Vec<&ZtocFacts> = layers
        .iter()
        .filter_map(|layer| match &layer.outcome {
            LayerOutcome::Indexed(facts) => Some((layer.descriptor.size, facts)),
            _ => None,
        })
        .filter(|(layer, facts)| *layer >= 1 << 20 && facts.size > layer / LARGE_ZTOC)
        .map(|(_, facts)| facts)
        .collect();
    if large.is_empty() {
        return;
    }
    let checkpoints_of = |facts: &&ZtocFacts| match facts.gzip_members {
        Some(_) => (u64::from(facts.spans) * CHECKPOINT).min(facts.size),
        None => 0,
    };
    let checkpoints: u64 = large.iter().map(checkpoints_of).sum();
    let files = large.iter().map(|facts| facts.size).sum::<u64>() - checkpoints;
    let advice = if files > checkpoints {
        "no --span-size makes the list smaller, but --kind fine does"
    } else {
        "use a larger --span-size"
    };
    let note = style.yellow("note:");
    let ztocs = counted(large.len() as u64, "ztoc is", "ztocs are each");
    let _ = writeln!(
        text,
        "  {note} {ztocs} larger than a fifth of the layer, and consumers fetch it first: {} of checkpoints, {} of \
         the list of files; {advice}",
        human(checkpoints),
        human(files),
    );
}

pub(crate) fn why_nothing(layers: &[LayerReport]) -> &'static str {
    let small = |layer: &LayerReport| {
        matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::Small { .. }))
    };
    match layers {
        [] => "the image has no layers",
        layers if layers.iter().all(small) => {
            "all layers are small and faster to pull whole (--min-layer-size 0 indexes them anyway)"
        }
        _ => "none of the layers can be indexed, so there is nothing to attach",
    }
}

/// The reason for people, on one line.
pub(crate) fn reason(left_out: &LeftOutReason) -> String {
    match left_out {
        LeftOutReason::Small { least } => format!("smaller than {}", ByteSize(*least)),
        LeftOutReason::Kind { reason, .. } => reason.clone(),
        LeftOutReason::Mislabelled { reason } => (*reason).to_owned(),
        LeftOutReason::NotSha256 => {
            "its digest is not SHA-256, by which a fine index refers to layers".to_owned()
        }
        LeftOutReason::Unservable(verdict) => verdict.reason.clone(),
        LeftOutReason::NotListed => "the existing index has no ztoc for it".to_owned(),
        LeftOutReason::Unopened => {
            "the existing index has a ztoc for it that no reader can open".to_owned()
        }
        LeftOutReason::OutOfTime { stuck: false } => {
            "timed out; run it again to continue".to_owned()
        }
        LeftOutReason::OutOfTime { stuck: true } => {
            "timed out before any layer was done; use a longer --timeout".to_owned()
        }
    }
}

/// An unmet requirement for people, on one line.
pub(crate) fn shortfall_text(shortfall: &Shortfall) -> String {
    match shortfall {
        Shortfall::LeftOut { layer, reason: left_out } => {
            format!("layer {} was left out: {}", layer.digest, reason(left_out))
        }
        Shortfall::Coverage { is, least, min_layer_size } => {
            let missing = human(is.of_bytes - is.bytes);
            let all = human(is.of_bytes);
            let which = match min_layer_size {
                0 => "in layers".to_owned(),
                least => format!("in layers of at least {}", ByteSize(*least)),
            };
            format!("{} of {all} {which} covered, less than {least}: {missing} missing", is.share())
        }
    }
}

/// The report on an image that falls short of the gate.
pub(crate) fn refused(image: &str, refused: &RefusedImage, style: Style) -> String {
    let mut text = String::new();
    for manifest in &refused.manifests {
        heading(&mut text, image, manifest.platform.as_deref(), &manifest.manifest.digest, style);
        layers(&mut text, &manifest.layers, style);
        if let Some(index) = &manifest.stays {
            let _ = writeln!(text, "  index {}\n  existed before and was kept", index.digest);
        }
        coverage(&mut text, &manifest.coverage);
        let _ = writeln!(text, "  {} nothing was written", style.yellow("refused:"));
    }
    text
}

/// All unmet requirements, one per line.
pub(crate) fn shortfalls(refused: &RefusedImage) -> Vec<String> {
    let line = |platform: &Option<String>, shortfall: &Shortfall| {
        safe(&format!(
            "{}: {}",
            platform.as_deref().unwrap_or("unknown platform"),
            shortfall_text(shortfall)
        ))
    };
    let manifests = refused.manifests.iter();
    manifests
        .flat_map(|m| m.shortfalls.iter().map(move |shortfall| line(&m.platform, shortfall)))
        .collect()
}

/// A layer of an indexed image.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Layer {
    pub media_type: String,
    pub digest: DigestText,
    /// Size of the blob in bytes.
    pub size: u64,
    status: Status,
    /// Why it is left out, or null.
    pub reason: Option<Coded>,
    /// Null if it is left out.
    ztoc: Option<Ztoc>,
    /// The source of the ztoc; null if the layer is left out.
    origin: Option<CameBy>,
    /// The image, or the digest of the index, from which the ztoc was reused; present only then.
    #[serde(skip_serializing_if = "Option::is_none")]
    reused_from: Option<String>,
    /// Time to read and index the layer; null if it was not read.
    seconds: Option<f64>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    Indexed,
    LeftOut,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum CameBy {
    /// The layer was read.
    Read,
    /// The ztoc is from this machine's cache.
    Cache,
    /// An existing index has the ztoc, and is kept.
    Destination,
    /// Another image's index had the ztoc, or an index that this image names.
    Reused,
    /// The same layer occurs earlier in the image.
    Repeated,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Ztoc {
    digest: DigestText,
    /// Size in bytes.
    size: u64,
    /// Null if the ztoc was not read because its index already existed, like the next two fields.
    spans: Option<u32>,
    entries: Option<u64>,
    uncompressed_size: Option<u64>,
    /// 0 for a plain tar; null if unknown.
    gzip_members: Option<u64>,
}

impl Layer {
    pub(crate) fn of(report: &LayerReport) -> Layer {
        let layer = |status, reason, ztoc, origin| Layer {
            media_type: report.descriptor.media_type.clone(),
            digest: report.descriptor.digest.into(),
            size: report.descriptor.size,
            status,
            reason,
            ztoc,
            origin,
            reused_from: None,
            seconds: None,
        };
        match &report.outcome {
            LayerOutcome::Indexed(facts) => {
                let ztoc = Ztoc {
                    digest: facts.digest.into(),
                    size: facts.size,
                    spans: Some(facts.spans),
                    entries: Some(facts.entries),
                    uncompressed_size: Some(facts.uncompressed_size),
                    gzip_members: facts.gzip_members,
                };
                let origin = match &facts.origin {
                    Origin::Read { .. } => CameBy::Read,
                    Origin::Cache => CameBy::Cache,
                    Origin::Reused(_) => CameBy::Reused,
                    Origin::Repeated => CameBy::Repeated,
                };
                Layer {
                    reused_from: match &facts.origin {
                        Origin::Reused(from) => Some(from.to_string()),
                        _ => None,
                    },
                    seconds: match facts.origin {
                        Origin::Read { seconds } => Some(milliseconds(seconds)),
                        _ => None,
                    },
                    ..layer(Status::Indexed, None, Some(ztoc), Some(origin))
                }
            }
            LayerOutcome::Listed { ztoc, size } => {
                let ztoc = Ztoc {
                    digest: ztoc.into(),
                    size: *size,
                    spans: None,
                    entries: None,
                    uncompressed_size: None,
                    gzip_members: None,
                };
                layer(Status::Indexed, None, Some(ztoc), Some(CameBy::Destination))
            }
            LayerOutcome::LeftOut(left_out) => {
                let reason = Coded { code: left_out.code(), text: reason(left_out) };
                layer(Status::LeftOut, Some(reason), None, None)
            }
        }
    }
}

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
        let layer =
            |PrefetchedLayer { layer, artifact, spans, bytes }: &PrefetchedLayer| ListedLayer {
                layer: layer.into(),
                artifact: artifact.into(),
                spans: count(spans),
                ranges: span_ranges(spans),
                bytes: *bytes,
            };
        let missing = prefetched.missing.iter();
        Prefetched {
            carried_over: prefetched.carried_over,
            layers: prefetched.layers.iter().map(layer).collect(),
            missing: missing
                .map(|m| Missing { path: m.path.clone(), reason: m.reason.clone() })
                .collect(),
        }
    }
}

pub(crate) fn span_ranges(spans: &[SpanRange]) -> Vec<Spans> {
    spans.iter().map(|range| Spans { first: range.start().0, last: range.end().0 }).collect()
}

/// A line about the list, if there is one.
pub(crate) fn prefetch_line(text: &mut String, prefetched: Option<&index::PrefetchSummary>) {
    let Some(prefetched) = prefetched else { return };
    let layers = prefetched.layers.iter().map(|layer| (&layer.spans[..], layer.bytes));
    let from = if prefetched.carried_over { ", carried over from the previous index" } else { "" };
    let _ = writeln!(text, "  {}{from}", prefetch_summary(layers));
}

/// A summary of the lists of some layers: their spans and bytes.
pub(crate) fn prefetch_summary<'a>(layers: impl Iterator<Item = (&'a [SpanRange], u64)>) -> String {
    let sum = |(of, spans, bytes), (list, more): (&[SpanRange], u64)| {
        (of + 1, spans + count(list), bytes + more)
    };
    let (of, spans, bytes) = layers.fold((0, 0, 0), sum);
    let spans = counted(spans, "span", "spans");
    let of = counted(of, "layer", "layers");
    format!("prefetch {spans} of {of}, {}", human(bytes))
}
