//! The output for the layers of an indexed image and their coverage, for people.

use std::fmt::Write;

use crate::cli::shared::size::{ByteSize, counted, human, rate};
use crate::cli::shared::terminal::{Style, safe};
use ociseek_format::digest::Digest;
use ociseek_format::image::coverage::Coverage;
use ociseek_ops::index::{LayerOutcome, LayerReport, LeftOutReason, Origin, RefusedImage, Shortfall};

pub(crate) fn heading(text: &mut String, image: &str, platform: Option<&str>, manifest: &Digest, style: Style) {
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
    let width = |column: usize| rows.iter().flatten().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 4] = std::array::from_fn(width);
    for (layer, row) in layers.iter().zip(&rows) {
        let digest = layer.descriptor.digest.short();
        let size = human(layer.descriptor.size);
        match (&layer.outcome, row) {
            (LayerOutcome::LeftOut(left_out), _) => {
                let line = format!("  {digest}  {size:>10}  left out: {}", safe(&reason(left_out)));
                let _ = writeln!(text, "{}", style.dim(&line));
            }
            (_, None) => {}
            (_, Some(row)) => {
                let mut line = format!("  {digest}  {size:>10}");
                for (cell, width) in row.iter().zip(widths).filter(|(_, width)| *width > 0) {
                    let _ = write!(line, "  {cell:>width$}");
                }
                let _ = writeln!(text, "{}", format!("{line}  {}", row[4]).trim_end());
            }
        }
    }
}

/// Spans, files, ztoc size, speed, and a remark.
fn columns(layer: &LayerReport) -> Option<[String; 5]> {
    let LayerOutcome::Indexed(facts) = &layer.outcome else { return None };
    let (speed, remark) = match &facts.origin {
        Origin::Read { seconds } => (rate(layer.descriptor.size, *seconds), String::new()),
        Origin::Cache => (String::new(), "from the cache".to_owned()),
        Origin::Destination => (String::new(), "from the existing index".to_owned()),
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
        let (share, bytes) = (coverage.share(), human(coverage.of_bytes));
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

pub(crate) fn why_nothing(layers: &[LayerReport]) -> &'static str {
    let small = |layer: &LayerReport| matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::Small { .. }));
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
        LeftOutReason::Unservable(verdict) => verdict.reason.clone(),
        LeftOutReason::NotListed => "the existing index has no ztoc for it".to_owned(),
        LeftOutReason::OutOfTime { stuck: false } => "timed out; run it again to continue".to_owned(),
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
            let (missing, all) = (human(is.of_bytes - is.bytes), human(is.of_bytes));
            let which = match min_layer_size {
                0 => "in layers".to_owned(),
                least => format!("in layers of at least {}", ByteSize(*least)),
            };
            format!("{} of {all} {which} covered, less than {least}: {missing} missing", is.share())
        }
    }
}

/// All unmet requirements, one per line.
pub(crate) fn shortfalls(refused: &RefusedImage) -> Vec<String> {
    let line = |platform: &Option<String>, shortfall: &Shortfall| {
        safe(&format!("{}: {}", platform.as_deref().unwrap_or("unknown platform"), shortfall_text(shortfall)))
    };
    let manifests = refused.manifests.iter();
    manifests.flat_map(|m| m.shortfalls.iter().map(move |shortfall| line(&m.platform, shortfall))).collect()
}
