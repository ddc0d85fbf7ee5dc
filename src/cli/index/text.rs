//! The output of `ociseek index` for people, and for the next steps of a CI job: outputs, and a
//! summary. The latter are appended to files that the CI system names (`$GITHUB_OUTPUT` and
//! `$GITHUB_STEP_SUMMARY`; a dotenv report in GitLab).

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::json::{Image, Indexing, Manifest};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{CoverageJson, word};
use crate::cli::shared::layers::{
    self, Layer, coverage, heading, large_ztocs, layers, members, reused, why_nothing,
};
use crate::cli::shared::size::{counted, duration, human};
use crate::cli::shared::terminal::{Style, safe};
use ociseek_format::image::fine::FineRef;
use ociseek_ops::index::{
    ExistingCheck, IndexedFine, IndexedImage, IndexedManifest, LayerOutcome, LayerReport,
    LeftOutReason, ManifestResult, OtherIndex,
};
use ociseek_ops::versions::{EnabledReport, EnabledResult, VersionsResult};
use ociseek_store::blob::AttachMethod;

const READERS: &str = "version 1: read by ociseek's own programs, and by soci-snapshotter with \
    soci_v1 enabled or before 0.10";

/// How many other SOCI indexes are named. The rest are counted.
const MOST_OTHERS: usize = 16;

/// The report on an image that was indexed in `seconds`. `target` names the destination, unless it
/// is the image itself.
pub(super) fn report(
    image: &str,
    target: Option<&str>,
    done: &IndexedImage,
    seconds: f64,
    style: Style,
) -> String {
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
        let bytes = human(sum(|d| d.size));
        let start = human(sum(|d| d.start_size));
        let recorded = if made.profile.is_some() { " (recorded)" } else { "" };
        let _ = writeln!(text, "  documents {bytes}, of which startup fetches {start}{recorded}");
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
            let is_same = before.is_some_and(|before| {
                std::mem::discriminant(before) == std::mem::discriminant(how)
            });
            let told = match (how, target) {
                _ if is_same => "attached in the same way".to_owned(),
                (AttachMethod::ReferrersApi, _) => {
                    "attached through the registry's referrers API".to_owned()
                }
                (AttachMethod::TagSchema(tag), _) => {
                    format!(
                        "attached under the fallback tag {tag} (this registry has no referrers API)"
                    )
                }
                (AttachMethod::Layout, Some(target)) => {
                    format!("written as a referrer into {}", safe(target))
                }
                (AttachMethod::Layout, None) => {
                    "written as a referrer into the image's layout".to_owned()
                }
            };
            let _ = writeln!(text, "  {told}");
            for digest in replaced {
                let note =
                    if not_deleted.contains(digest) { " (it could not be deleted)" } else { "" };
                let _ = writeln!(text, "  replaces {digest}{note}");
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
        ManifestResult::NothingToIndex
        | ManifestResult::OutOfTime
        | ManifestResult::NotRequested => {}
    }
    false
}

/// A note about the layers that another run would index.
fn left(text: &mut String, manifest: &IndexedManifest, style: Style) {
    let (layers, bytes) =
        manifest.left().fold((0, 0), |(layers, bytes), layer| (layers + 1, bytes + layer.size));
    let is_stuck = |layer: &LayerReport| {
        matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::OutOfTime { stuck: true }))
    };
    let next = if manifest.layers.iter().any(is_stuck) {
        "no layer was finished in time, so use a longer --timeout"
    } else {
        "run it again to continue"
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
    let others = &manifest.others;
    let note = style.yellow("note:");
    let has_none =
        matches!(manifest.result, ManifestResult::NothingToIndex | ManifestResult::OutOfTime);
    for OtherIndex { digest, tool, listed_first, unusable } in others.iter().take(MOST_OTHERS) {
        let line = match unusable {
            // There is no index of ours to replace it with.
            None if has_none => {
                format!(
                    "SOCI index {digest} by {} exists and was left unchanged",
                    maker(tool.as_deref())
                )
            }
            None => format!(
                "SOCI index {digest} by {} also exists{}: consumers use the first one listed; \
                 --existing replace leaves only ours",
                maker(tool.as_deref()),
                if *listed_first { " and is listed first" } else { "" },
            ),
            Some(why) => {
                let listed = if *listed_first {
                    "listed first among the SOCI indexes"
                } else {
                    "listed as a SOCI index"
                };
                format!("{digest} is {listed} of this image and was left unchanged: {}", safe(why))
            }
        };
        let _ = writeln!(text, "  {note} {line}");
    }
    if let Some(more @ 1..) = others.len().checked_sub(MOST_OTHERS) {
        let _ = writeln!(
            text,
            "  {note} {more} more manifests are listed as SOCI indexes of this image"
        );
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
    let reused = reused(done.manifests.iter().flat_map(|manifest| &manifest.layers));
    let read = human(done.bytes_read);
    format!("read {read}{compared}{written}, in {}{reused}", duration(seconds))
}

/// The paths of the files.
pub(super) struct StepFiles {
    pub outputs: Option<PathBuf>,
    pub summary: Option<PathBuf>,
}

impl StepFiles {
    /// # Errors
    /// If a file cannot be appended to: an image is not indexed before that is known.
    pub(super) fn begin(&self) -> Result<(), CliError> {
        let files = [&self.outputs, &self.summary];
        files.into_iter().flatten().try_for_each(|file| append(file, ""))
    }

    /// # Errors
    /// If appending to a file fails.
    pub(super) fn write(&self, document: &Indexing) -> Result<(), CliError> {
        for (file, text) in
            [(&self.outputs, outputs as fn(&Indexing) -> String), (&self.summary, summary)]
        {
            if let Some(file) = file {
                append(file, &text(document))?;
            }
        }
        Ok(())
    }
}

fn append(file: &Path, text: &str) -> Result<(), CliError> {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(CliError::write(file))
}

/// NAME=VALUE lines. Values are digests, numbers and fixed words, so untrusted text cannot add
/// lines.
fn outputs(document: &Indexing) -> String {
    let manifests = || document.images.iter().flat_map(|image| &image.manifests);
    let indexes: Vec<String> = manifests()
        .filter_map(|m| m.outcome.index.as_ref())
        .map(|i| i.digest.to_string())
        .collect();
    let images =
        document.images.iter().find_map(|image| image.digest).map(|digest| digest.to_string());
    let enabled = || document.images.iter().filter_map(|image| image.enabled.as_ref());
    let of_enabled =
        enabled().flat_map(|enabled| &enabled.manifests).map(|image| image.coverage.percent);
    let coverages = manifests().map(|m| m.coverage.percent).chain(of_enabled);
    // The smallest, because each platform must pass a gate.
    let coverage = coverages.min_by(f64::total_cmp).map(|percent| percent.to_string());
    let enabled = enabled().find_map(|enabled| enabled.digest).map(|digest| digest.to_string());
    let failed = document.images.iter().any(|image| image.error.is_some());
    format!(
        "status={}\nimage_digest={}\nindex_digest={}\nindex_digests={}\ncoverage={}\nenabled_digest={}\n",
        if failed { "failed" } else { "ok" },
        images.unwrap_or_default(),
        indexes.first().map_or("", String::as_str),
        indexes.join(","),
        coverage.unwrap_or_default(),
        enabled.unwrap_or_default(),
    )
}

/// A Markdown table with a line for each platform, followed by the layers that were left out and
/// the failures.
fn summary(document: &Indexing) -> String {
    let mut text =
        "### SOCI index\n\n| image | platform | index | covered | left out |\n|---|---|---|---|---|\n".to_owned();
    for image in &document.images {
        for manifest in &image.manifests {
            let index =
                manifest.outcome.index.as_ref().map(|index| code(&index.digest.to_string()));
            let status = word(manifest.outcome.status);
            let index = index.map_or_else(|| status.clone(), |index| format!("{index} {status}"));
            row(&mut text, image, &platform(manifest), &index, &manifest.coverage);
        }
        // An attached index has the same layers.
        let enabled = image.enabled.iter().filter(|_| image.manifests.is_empty());
        for of_platform in enabled.flat_map(|enabled| &enabled.manifests) {
            row(
                &mut text,
                image,
                &plain(&of_platform.platform),
                "in the SOCI-enabled image",
                &of_platform.coverage,
            );
        }
        if image.manifests.is_empty()
            && image.enabled.as_ref().is_none_or(|enabled| enabled.manifests.is_empty())
        {
            let what = if image.error.is_some() { "failed" } else { "none" };
            let _ = writeln!(text, "| {} | | {what} | | |", code(&image.image));
        }
    }
    let mut notes = String::new();
    for image in &document.images {
        image
            .manifests
            .iter()
            .for_each(|manifest| left_out(&mut notes, &platform(manifest), &manifest.layers));
        if let Some(enabled) = &image.enabled {
            let layers = enabled.manifests.iter().filter(|_| image.manifests.is_empty());
            layers.for_each(|image| left_out(&mut notes, &plain(&image.platform), &image.layers));
            let digest = enabled
                .digest
                .map(|digest| format!(" {}", code(&digest.to_string())))
                .unwrap_or_default();
            let _ = writeln!(
                notes,
                "- SOCI-enabled image {}{digest}: {}",
                code(&enabled.name),
                word(enabled.status)
            );
        }
        if let Some(error) = &image.error {
            let _ = writeln!(notes, "- **{}**: {}", code(&image.image), plain(&error.message));
            let shortfalls =
                image.manifests.iter().flat_map(|m| m.shortfalls.iter().map(move |s| (m, s)));
            for (manifest, shortfall) in shortfalls {
                let _ = writeln!(notes, "  - {}: {}", platform(manifest), plain(&shortfall.text));
            }
            if let Some(hint) = &error.hint {
                let _ = writeln!(notes, "  - {}", plain(hint));
            }
        }
    }
    if !notes.is_empty() {
        text.push('\n');
        text.push_str(&notes);
    }
    text.push('\n');
    text
}

fn row(text: &mut String, image: &Image, platform: &str, index: &str, coverage: &CoverageJson) {
    let left_out = (coverage.of_layers - coverage.layers) as u64;
    let _ = writeln!(
        text,
        "| {} | {platform} | {index} | {} of {}, {} of {} | {} |",
        code(&image.image),
        coverage.shown,
        human(coverage.of_bytes),
        coverage.layers,
        counted(coverage.of_layers as u64, "layer", "layers"),
        if left_out == 0 { String::new() } else { counted(left_out, "layer", "layers") },
    );
}

/// Small layers are not worth mentioning.
fn left_out(text: &mut String, platform: &str, layers: &[Layer]) {
    let reason = |layer: &Layer| {
        layer.reason.as_ref().filter(|reason| reason.code != "too-small").map(|r| plain(&r.text))
    };
    for (layer, reason) in layers.iter().filter_map(|layer| Some((layer, reason(layer)?))) {
        let digest = layer.digest.short();
        let size = human(layer.size);
        let _ =
            writeln!(text, "- {platform}: layer {} ({size}) is left out: {reason}", code(&digest));
    }
}

fn platform(manifest: &Manifest) -> String {
    manifest.platform.as_deref().map_or_else(|| "unknown platform".to_owned(), plain)
}

/// Escapes text from an image or a registry: it can neither become markup nor end a table cell.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in safe(text).chars() {
        match c {
            '<' => plain.push_str("&lt;"),
            '&' => plain.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '!' | '#' | '~' => plain.extend(['\\', c]),
            c => plain.push(c),
        }
    }
    plain
}

/// Formats text as code. Backticks are removed because they cannot be escaped.
fn code(text: &str) -> String {
    format!("`{}`", safe(text).replace('`', "'").replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_in_foreign_text_is_escaped() {
        assert_eq!(
            plain("a|b <img src=x> [x](y) `c`\n## d"),
            "a\\|b &lt;img src=x> \\[x\\](y) \\`c\\`\\n\\#\\# d".replace("\\n", "\\\\n")
        );
        assert_eq!(code("a`b|c"), "`a'b\\|c`");
    }
}
