//! Files for the next steps of a CI job: outputs, and a summary for people. Both are appended to
//! files that the CI system names (`$GITHUB_OUTPUT` and `$GITHUB_STEP_SUMMARY`; a dotenv report in
//! GitLab).

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::cli::index::json::{Image, Indexing, Manifest};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{CoverageJson, word};
use crate::cli::shared::layers::Layer;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::safe;

/// The paths of the files.
pub(super) struct StepFiles {
    pub outputs: Option<PathBuf>,
    pub summary: Option<PathBuf>,
}

impl StepFiles {
    /// # Errors
    /// If appending to a file fails.
    pub(super) fn write(&self, document: &Indexing) -> Result<(), CliError> {
        for (file, text) in [(&self.outputs, outputs as fn(&Indexing) -> String), (&self.summary, summary)] {
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
    written.map_err(|source| CliError::Write { path: file.to_owned(), source })
}

/// NAME=VALUE lines. Values are digests, numbers and fixed words, so untrusted text cannot add
/// lines.
fn outputs(document: &Indexing) -> String {
    let manifests = || document.images.iter().flat_map(|image| &image.manifests);
    let indexes: Vec<String> =
        manifests().filter_map(|m| m.outcome.index.as_ref()).map(|i| i.digest.to_string()).collect();
    let images = document.images.iter().find_map(|image| image.digest).map(|digest| digest.to_string());
    let enabled = || document.images.iter().filter_map(|image| image.enabled.as_ref());
    let of_enabled = enabled().flat_map(|enabled| &enabled.manifests).map(|image| image.coverage.percent);
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
            let index = manifest.outcome.index.as_ref().map(|index| code(&index.digest.to_string()));
            let status = word(manifest.outcome.status);
            let index = index.map_or_else(|| status.clone(), |index| format!("{index} {status}"));
            row(&mut text, image, &platform(manifest), &index, &manifest.coverage);
        }
        // An attached index has the same layers.
        let enabled = image.enabled.iter().filter(|_| image.manifests.is_empty());
        for of_platform in enabled.flat_map(|enabled| &enabled.manifests) {
            row(&mut text, image, &plain(&of_platform.platform), "in the SOCI-enabled image", &of_platform.coverage);
        }
        if image.manifests.is_empty() && image.enabled.as_ref().is_none_or(|enabled| enabled.manifests.is_empty()) {
            let what = if image.error.is_some() { "failed" } else { "none" };
            let _ = writeln!(text, "| {} | | {what} | | |", code(&image.image));
        }
    }
    let mut notes = String::new();
    for image in &document.images {
        image.manifests.iter().for_each(|manifest| left_out(&mut notes, &platform(manifest), &manifest.layers));
        if let Some(enabled) = &image.enabled {
            let layers = enabled.manifests.iter().filter(|_| image.manifests.is_empty());
            layers.for_each(|image| left_out(&mut notes, &plain(&image.platform), &image.layers));
            let digest = enabled.digest.map(|digest| format!(" {}", code(&digest.to_string()))).unwrap_or_default();
            let _ = writeln!(notes, "- SOCI-enabled image {}{digest}: {}", code(&enabled.name), word(enabled.status));
        }
        if let Some(error) = &image.error {
            let _ = writeln!(notes, "- **{}**: {}", code(&image.image), plain(&error.message));
            let shortfalls = image.manifests.iter().flat_map(|m| m.shortfalls.iter().map(move |s| (m, s)));
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
    let reason =
        |layer: &Layer| layer.reason.as_ref().filter(|reason| reason.code != "too-small").map(|r| plain(&r.text));
    for (layer, reason) in layers.iter().filter_map(|layer| Some((layer, reason(layer)?))) {
        let (digest, size) = (layer.digest.short(), human(layer.size));
        let _ = writeln!(text, "- {platform}: layer {} ({size}) is left out: {reason}", code(&digest));
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
