//! The output of `ociseek index` for people.

use std::fmt::Write;

use crate::cli::shared::layers::{self, coverage, heading, large_ztocs, layers, members, why_nothing};
use crate::cli::shared::size::{counted, duration, human};
use crate::cli::shared::terminal::{Style, safe};
use ociseek_format::image::fine::FineRef;
use ociseek_ops::index::{
    ExistingCheck, IndexedFine, IndexedImage, IndexedManifest, LayerOutcome, LayerReport, LeftOutReason,
    ManifestResult, OtherIndex,
};
use ociseek_ops::versions::{EnabledReport, EnabledResult, VersionsResult};
use ociseek_store::blob::AttachMethod;

const READERS: &str =
    "read by soci-snapshotter with [pull_modes.soci_v1] enable = true, or when given this index digest";

/// How many other SOCI indexes are named. The rest are counted.
const MOST_OTHERS: usize = 16;

/// The report on an image that was indexed in `seconds`. `target` names the destination, unless it
/// is the image itself.
pub(super) fn report(image: &str, target: Option<&str>, done: &IndexedImage, seconds: f64, style: Style) -> String {
    let mut text = String::new();
    let mut attached = None;
    for manifest in &done.manifests {
        heading(&mut text, image, manifest.platform.as_deref(), &manifest.manifest.digest, style);
        layers(&mut text, &manifest.layers, style);
        soci(&mut text, target, manifest, &mut attached, style);
        left(&mut text, manifest, style);
        if manifest.result.index().is_some() {
            coverage(&mut text, &manifest.coverage);
        }
        layers::prefetch_line(&mut text, manifest.prefetch.as_ref());
        members(&mut text, &manifest.layers, style);
        large_ztocs(&mut text, &manifest.layers, style);
        others(&mut text, manifest, style);
        if let Some(made) = &manifest.fine {
            fine(&mut text, target, made, &mut attached, style);
        }
    }
    let _ = writeln!(text, "{}", style.dim(&totals(done, seconds)));
    text
}

/// Only the digests of indexes and of the SOCI-enabled image, one per line.
pub(super) fn digests(made: &VersionsResult) -> String {
    let mut text = String::new();
    for manifest in made.index.iter().flat_map(|index| &index.manifests) {
        let fine = manifest.fine.as_ref().and_then(|fine| fine.result.index());
        for digest in manifest.result.index().into_iter().chain(fine) {
            let _ = writeln!(text, "{digest}");
        }
    }
    if let Some(EnabledReport { result: EnabledResult::Converted(done), .. }) = &made.enabled {
        let _ = writeln!(text, "{}", done.digest);
    }
    text
}

/// The SOCI indexes, and once for all platforms who reads them.
fn soci<'a>(
    text: &mut String,
    target: Option<&str>,
    manifest: &'a IndexedManifest,
    attached: &mut Option<&'a AttachMethod>,
    style: Style,
) {
    let is_new = result(text, "index", target, &manifest.result, attached, style);
    if is_new {
        let _ = writeln!(text, "  {}", style.dim(READERS));
    }
    none(text, "no index:", &manifest.result, why_nothing(&manifest.layers), style);
}

/// Why there is no index, if there is none. `nothing` is why no layer could be in one.
fn none(text: &mut String, word: &str, result: &ManifestResult, nothing: &str, style: Style) {
    let why = match result {
        ManifestResult::NothingToIndex => nothing,
        ManifestResult::OutOfTime => "timed out before any layer was done",
        _ => return,
    };
    let _ = writeln!(text, "  {} {why}", style.yellow(word));
}

/// The fine indexes.
fn fine<'a>(
    text: &mut String,
    target: Option<&str>,
    made: &'a IndexedFine,
    attached: &mut Option<&'a AttachMethod>,
    style: Style,
) {
    result(text, "fine index", target, &made.result, attached, style);
    none(text, "no fine index:", &made.result, "no layer can be indexed", style);
    if made.result.index().is_some() {
        coverage(text, &made.coverage);
        let sum = |part: fn(&FineRef) -> u64| made.documents.iter().map(part).sum();
        let (bytes, start) = (human(sum(|d| d.size)), human(sum(|d| d.start_size)));
        let recorded = if made.profile.is_some() { " (recorded)" } else { "" };
        let _ = writeln!(text, "  documents {bytes}, of which a start fetches {start}{recorded}");
    }
}

/// A line for an index, and how it was attached. Returns whether that differs from the previous
/// index.
fn result<'a>(
    text: &mut String,
    word: &str,
    target: Option<&str>,
    result: &'a ManifestResult,
    attached: &mut Option<&'a AttachMethod>,
    style: Style,
) -> bool {
    let line = |text: &mut String, colour: &str, rest: &str| {
        let _ = writeln!(text, "  {colour} {rest}");
    };
    match result {
        ManifestResult::Attached { index, how, replaced, not_deleted } => {
            line(text, &style.green(word), &style.green(&index.digest.to_string()));
            let before = attached.replace(how);
            let is_same = before.is_some_and(|before| std::mem::discriminant(before) == std::mem::discriminant(how));
            let told = match (how, target) {
                _ if is_same => "attached in the same way".to_owned(),
                (AttachMethod::ReferrersApi, _) => "attached through the registry's referrers API".to_owned(),
                (AttachMethod::TagSchema(tag), _) => {
                    format!("attached under the fallback tag {tag} (this registry has no referrers API)")
                }
                (AttachMethod::Layout, Some(target)) => format!("written as a referrer into {}", safe(target)),
                (AttachMethod::Layout, None) => "written as a referrer into the image's layout".to_owned(),
            };
            let _ = writeln!(text, "  {told}");
            for digest in replaced {
                let kept = if not_deleted.contains(digest) { " (it could not be deleted)" } else { "" };
                let _ = writeln!(text, "  replaces {digest}{kept}");
            }
            return !is_same;
        }
        ManifestResult::DryRun { index, replaces } => {
            line(text, &style.green(word), &style.green(&index.digest.to_string()));
            let _ = writeln!(text, "  dry run: nothing was written");
            for digest in replaces {
                let _ = writeln!(text, "  would replace {digest}");
            }
        }
        ManifestResult::AlreadyThere { index, built, check } => {
            line(text, &style.green(word), &style.green(&index.digest.to_string()));
            let how = match (built, check) {
                (true, _) => "up to date: the index is identical, nothing was written",
                (false, ExistingCheck::Listed) => {
                    "up to date: same options and version; not compared with the layers (ociseek verify does that)"
                }
                (false, ExistingCheck::Cached | ExistingCheck::Built) => {
                    "up to date: same options and version, and the same bytes as in the cache"
                }
            };
            let _ = writeln!(text, "  {how}");
        }
        ManifestResult::Kept { index, tool } => {
            line(text, word, &index.digest.to_string());
            let _ = writeln!(text, "  left unchanged; made by {}", maker(tool.as_deref()));
        }
        ManifestResult::NothingToIndex | ManifestResult::OutOfTime | ManifestResult::NotRequested => {}
    }
    false
}

/// A note about the layers that another run would index.
pub(super) fn left(text: &mut String, manifest: &IndexedManifest, style: Style) {
    let (layers, bytes) = manifest.left().fold((0, 0), |(layers, bytes), layer| (layers + 1, bytes + layer.size));
    let is_stuck =
        |layer: &LayerReport| matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::OutOfTime { stuck: true }));
    let next = match manifest.layers.iter().any(is_stuck) {
        true => "no layer was finished in time, so use a longer --timeout",
        false => "run it again to continue",
    };
    if layers > 0 {
        let _ = writeln!(
            text,
            "  {} timed out with {} left ({}): consumers pull the remaining layers whole; {next}",
            style.yellow("note:"),
            counted(layers, "layer", "layers"),
            human(bytes),
        );
    }
}

fn others(text: &mut String, manifest: &IndexedManifest, style: Style) {
    let (others, note) = (&manifest.others, style.yellow("note:"));
    let has_none = matches!(manifest.result, ManifestResult::NothingToIndex | ManifestResult::OutOfTime);
    for OtherIndex { digest, tool, listed_first, unusable } in others.iter().take(MOST_OTHERS) {
        let line = match unusable {
            // There is no index of ours to replace it with.
            None if has_none => {
                format!("SOCI index {digest} by {} exists and was left unchanged", maker(tool.as_deref()))
            }
            None => format!(
                "SOCI index {digest} by {} also exists{}: consumers use the first one listed; \
                 --existing replace leaves only ours",
                maker(tool.as_deref()),
                if *listed_first { " and is listed first" } else { "" },
            ),
            Some(why) => {
                let listed =
                    if *listed_first { "listed first among the SOCI indexes" } else { "listed as a SOCI index" };
                format!("{digest} is {listed} of this image and was left unchanged: {}", safe(why))
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

/// The totals of bytes and time.
fn totals(done: &IndexedImage, seconds: f64) -> String {
    let written = match done.bytes_written {
        0 => String::new(),
        bytes => format!(", wrote {}", human(bytes)),
    };
    let compared = match done.bytes_compared {
        0 => String::new(),
        bytes => format!(", checked {} of reused ztocs", human(bytes)),
    };
    format!("read {}{compared}{written}, in {}", human(done.bytes_read), duration(seconds))
}
