//! What `ociseek index` prints for people.

use std::fmt::Write;

use super::json::{reason, shortfall_text};
use super::size::{counted, duration, human, rate};
use super::terminal::{Style, safe};
use crate::digest::Digest;
use crate::ops::coverage::Coverage;
use crate::ops::index::{
    IndexedImage, IndexedLayer, IndexedManifest, LayerOutcome, LeftOut, ManifestResult, Origin, OtherIndex, Refused,
    Shortfall,
};
use crate::ops::versions::{Enabled, EnabledResult, Made};
use crate::store::blob::Attached;

const READERS: &str =
    "read by soci-snapshotter with [pull_modes.soci_v1] enable = true, or when it is given this index digest";

/// Other SOCI indexes that are named; the rest are counted.
const MOST_OTHERS: usize = 16;

/// The report on one image that was indexed in `seconds`. `target` says where the index was written, if not to the image.
pub fn report(image: &str, target: Option<&str>, done: &IndexedImage, seconds: f64, style: Style) -> String {
    let mut text = String::new();
    for manifest in &done.manifests {
        heading(&mut text, image, manifest.platform.as_deref(), &manifest.manifest.digest, style);
        layers(&mut text, &manifest.layers, style);
        result(&mut text, target, manifest, style);
        left(&mut text, manifest, style);
        if !matches!(manifest.result, ManifestResult::NothingToIndex | ManifestResult::OutOfTime) {
            coverage(&mut text, &manifest.coverage);
        }
        members(&mut text, &manifest.layers, style);
        others(&mut text, &manifest.others, style);
    }
    let _ = writeln!(text, "{}", style.dim(&totals(done, seconds)));
    text
}

/// The report on an image that falls short of what was asked for.
pub fn refused(image: &str, refused: &Refused, style: Style) -> String {
    let mut text = String::new();
    for manifest in &refused.manifests {
        heading(&mut text, image, manifest.platform.as_deref(), &manifest.manifest.digest, style);
        layers(&mut text, &manifest.layers, style);
        if let Some(index) = manifest.stays {
            let _ = writeln!(text, "  index {index}\n  was there before and stays");
        }
        coverage(&mut text, &manifest.coverage);
        let _ = writeln!(text, "  {} nothing was attached", style.yellow("refused:"));
    }
    text
}

/// What it falls short of, one thing a line.
pub fn shortfalls(refused: &Refused) -> Vec<String> {
    let line = |platform: &Option<String>, shortfall: &Shortfall| {
        safe(&format!("{}: {}", platform.as_deref().unwrap_or("unknown platform"), shortfall_text(shortfall)))
    };
    let manifests = refused.manifests.iter();
    manifests.flat_map(|m| m.shortfalls.iter().map(move |shortfall| line(&m.platform, shortfall))).collect()
}

pub fn heading(text: &mut String, image: &str, platform: Option<&str>, manifest: &Digest, style: Style) {
    let platform = platform.unwrap_or("unknown platform");
    let _ = writeln!(text, "{} {}", style.bold(&safe(image)), style.bold(&safe(platform)));
    let _ = writeln!(text, "  manifest {manifest}");
}

/// What an index covers, where that is not all.
pub fn coverage(text: &mut String, coverage: &Coverage) {
    if coverage.layers < coverage.of_layers {
        let layers = counted(coverage.of_layers as u64, "layer", "layers");
        let (share, bytes) = (coverage.share(), human(coverage.of_bytes));
        let _ = writeln!(text, "  covers {} of {layers}, {share} of {bytes}", coverage.layers);
    }
}

/// Only the digests of indexes, and of the SOCI-enabled image, one a line.
pub fn digests(made: &Made) -> String {
    let mut text = String::new();
    for manifest in made.index.iter().flat_map(|index| &index.manifests) {
        let digest = match &manifest.result {
            ManifestResult::Attached { index, .. }
            | ManifestResult::DryRun { index, .. }
            | ManifestResult::AlreadyThere { index, .. } => index.digest,
            ManifestResult::Kept { index, .. } => *index,
            ManifestResult::NothingToIndex | ManifestResult::OutOfTime => continue,
        };
        let _ = writeln!(text, "{digest}");
    }
    if let Some(Enabled { result: EnabledResult::Converted(done), .. }) = &made.enabled {
        let _ = writeln!(text, "{}", done.digest);
    }
    text
}

/// A line for each layer, in columns.
pub fn layers(text: &mut String, layers: &[IndexedLayer], style: Style) {
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
fn columns(layer: &IndexedLayer) -> Option<[String; 5]> {
    let LayerOutcome::Indexed(facts) = &layer.outcome else { return None };
    let (speed, remark) = match &facts.origin {
        Origin::Read { seconds } => (rate(layer.descriptor.size, *seconds), String::new()),
        Origin::Cache => (String::new(), "from the cache".to_owned()),
        Origin::Destination => (String::new(), "from the index that was there".to_owned()),
        Origin::Reused(from) => (String::new(), format!("reused from {}", safe(from))),
        Origin::Repeated => (String::new(), "the same layer again".to_owned()),
    };
    Some([
        counted(u64::from(facts.spans), "span", "spans"),
        counted(facts.entries, "file", "files"),
        format!("ztoc {}", human(facts.size)),
        speed,
        remark,
    ])
}

/// The index, and how it was attached.
fn result(text: &mut String, target: Option<&str>, manifest: &IndexedManifest, style: Style) {
    let line = |text: &mut String, colour: &str, rest: &str| {
        let _ = writeln!(text, "  {colour} {rest}");
    };
    match &manifest.result {
        ManifestResult::Attached { index, how, replaced, not_deleted } => {
            line(text, &style.green("index"), &style.green(&index.digest.to_string()));
            let how = match (how, target) {
                (Attached::ReferrersApi, _) => "attached by the registry's referrers API".to_owned(),
                (Attached::TagSchema(tag), _) => {
                    format!("attached by the tag schema, as tag {tag} (this registry has no referrers API)")
                }
                (Attached::Layout, Some(target)) => format!("written as a referrer into {}", safe(target)),
                (Attached::Layout, None) => "written as a referrer into the image's layout".to_owned(),
            };
            let _ = writeln!(text, "  {how}");
            for digest in replaced {
                let kept = if not_deleted.contains(digest) { " (it could not be deleted)" } else { "" };
                let _ = writeln!(text, "  replaces {digest}{kept}");
            }
            let _ = writeln!(text, "  {}", style.dim(READERS));
        }
        ManifestResult::DryRun { index, replaces } => {
            line(text, &style.green("index"), &style.green(&index.digest.to_string()));
            let _ = writeln!(text, "  dry run: nothing was written");
            for digest in replaces {
                let _ = writeln!(text, "  would replace {digest}");
            }
        }
        ManifestResult::AlreadyThere { index, built } => {
            line(text, &style.green("index"), &style.green(&index.digest.to_string()));
            let how = if *built {
                "already there: the same index came out, nothing was written"
            } else {
                "already there, of the same options and version: no layer was read"
            };
            let _ = writeln!(text, "  {how}");
        }
        ManifestResult::Kept { index, tool } => {
            line(text, "index", &index.to_string());
            let _ = writeln!(text, "  left as it is; made by {}", maker(tool.as_deref()));
        }
        ManifestResult::NothingToIndex => {
            let _ = writeln!(text, "  {} {}", style.yellow("no index:"), why_nothing(&manifest.layers));
        }
        ManifestResult::OutOfTime => {
            let _ = writeln!(text, "  {} no layer was done in time", style.yellow("no index:"));
        }
    }
}

pub fn why_nothing(layers: &[IndexedLayer]) -> &'static str {
    let small = |layer: &IndexedLayer| matches!(layer.outcome, LayerOutcome::LeftOut(LeftOut::Small { .. }));
    match layers {
        [] => "the image has no layers",
        layers if layers.iter().all(small) => {
            "all layers are small, and pulled whole fast (--min-layer-size 0 takes them too)"
        }
        _ => "none of the layers can be indexed, so there is nothing to attach",
    }
}

/// What another run would do.
fn left(text: &mut String, manifest: &IndexedManifest, style: Style) {
    let (layers, bytes) = manifest.left().fold((0, 0), |(layers, bytes), layer| (layers + 1, bytes + layer.size));
    let is_stuck =
        |layer: &IndexedLayer| matches!(layer.outcome, LayerOutcome::LeftOut(LeftOut::OutOfTime { stuck: true }));
    let next = match manifest.layers.iter().any(is_stuck) {
        true => "give a longer --timeout: in this one no layer was done, so that another run may get no further",
        false => "run it again to go on",
    };
    if layers > 0 {
        let _ = writeln!(
            text,
            "  {} {} of {} left, since the time was up: consumers pull what is left whole; {next}",
            style.yellow("note:"),
            counted(layers, "layer", "layers"),
            human(bytes),
        );
    }
}

/// soci-snapshotter before 0.14 took a gzip blob for one member.
pub fn members(text: &mut String, layers: &[IndexedLayer], style: Style) {
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
            "  {note} {layers} gzip of several members (bgzip, eStargz, ...): soci-snapshotter before 0.14 misreads such layers"
        );
    }
}

fn others(text: &mut String, others: &[OtherIndex], style: Style) {
    let note = style.yellow("note:");
    for OtherIndex { digest, tool, listed_first, unusable } in others.iter().take(MOST_OTHERS) {
        let first = if *listed_first { " and is listed first" } else { "" };
        let line = match unusable {
            None => format!(
                "SOCI index {digest} by {} is there too{first}: consumers take the first that is listed; \
                 --existing replace leaves only ours",
                maker(tool.as_deref()),
            ),
            Some(why) => {
                format!("{digest} is listed as a SOCI index of this image{first}, and left as it is: {}", safe(why))
            }
        };
        let _ = writeln!(text, "  {note} {line}");
    }
    if let Some(more @ 1..) = others.len().checked_sub(MOST_OTHERS) {
        let _ = writeln!(text, "  {note} {more} more manifests are listed as SOCI indexes of this image");
    }
}

fn maker(tool: Option<&str>) -> String {
    tool.map_or_else(|| "an unknown tool".to_owned(), |tool| format!("\"{}\"", safe(tool)))
}

/// What it cost.
fn totals(done: &IndexedImage, seconds: f64) -> String {
    let written = match done.bytes_written {
        0 => String::new(),
        bytes => format!(", wrote {}", human(bytes)),
    };
    let compared = match done.bytes_compared {
        0 => String::new(),
        bytes => format!(", compared {} with what is reused", human(bytes)),
    };
    format!("read {}{compared}{written}, in {}", human(done.bytes_read), duration(seconds))
}
