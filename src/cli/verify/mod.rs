//! `ociseek verify`.

use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use crate::cli::shared::args::Format;
use crate::cli::shared::difference;
use crate::cli::shared::progress::Display;
use crate::cli::shared::report::CliError;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::source::Images;
use crate::cli::shared::terminal::{Stdout, Style, safe};
use crate::ops::verify::{Depth, Finding, MAX_SAMPLE, Proven, Verified, VerifiedManifest, VerifyOptions, verify};
use crate::progress::{Event, Progress};
use args::VerifyArgs;

pub mod args;
pub mod json;

pub async fn run(args: VerifyArgs) -> Result<(), CliError> {
    let display = Arc::new(Display::new(args.progress.progress, false));
    let progress: Arc<dyn Progress> = display.clone();
    let images = Images::new(args.registry, [&args.image], &progress).await?;
    // What a standard library without randomness of its own has to offer: keys that the system chose.
    let seed = args.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    let options = VerifyOptions {
        platforms: args.platforms.platform,
        index: args.index,
        depth: if args.quick { Depth::Quick { spans: args.spans, seed } } else { Depth::Full },
        jobs: args.layer_jobs.count(),
    };
    let name = args.image.to_string();
    display.begin(&name);
    let verified = match images.open(&args.image).await {
        Ok((source, root)) => verify(&source, &root, &options, &progress).await.map_err(CliError::from),
        Err(error) => Err(error),
    };
    display.end();
    let verified = verified?;
    for warning in verified.manifests.iter().flat_map(|manifest| &manifest.warnings) {
        progress.report(Event::Warning(warning.clone()));
    }
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        Format::Json => json::document(&name, &verified, options.depth).map_err(|e| CliError::Stdout(e.into()))?,
        Format::Text => text(&name, &verified, options.depth, stdout.style),
    };
    stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)?;
    if verified.differences().next().is_some() { Err(CliError::Differs) } else { Ok(()) }
}

/// A line for each index, and one for each thing that is wrong.
fn text(name: &str, verified: &Verified, depth: Depth, style: Style) -> String {
    let mut text = String::new();
    for manifest in &verified.manifests {
        let platform = manifest.platform.as_ref().map_or_else(|| "unknown platform".to_owned(), ToString::to_string);
        let image = format!("{} {}", style.bold(&safe(name)), style.bold(&safe(&platform)));
        if !manifest.differences.is_empty() {
            let _ = writeln!(text, "{image}: manifest {}", manifest.manifest.digest);
            findings(&mut text, &manifest.differences, style);
        }
        if let Some(content) = manifest.content {
            let verdict = match manifest.differences.len() {
                0 => style.green("right"),
                wrong => style.red(&counted(wrong as u64, "difference", "differences")),
            };
            let layers = counted(content.layers as u64, "layer", "layers");
            let bytes = human(content.bytes);
            let _ = writeln!(
                text,
                "{image}: {layers} against the config: {verdict} ({bytes}); docker save keeps no SOCI index"
            );
        }
        indexes(&mut text, &image, manifest, depth, style);
    }
    text
}

fn indexes(text: &mut String, image: &str, manifest: &VerifiedManifest, depth: Depth, style: Style) {
    for index in &manifest.indexes {
        let wrong = index.differences.len() + index.layers.iter().map(|layer| layer.differences.len()).sum::<usize>();
        let verdict = match wrong {
            0 => style.green("right"),
            wrong => style.red(&counted(wrong as u64, "difference", "differences")),
        };
        let all = index.layers.iter().map(|layer| layer.proven).fold(Proven::default(), |a, b| Proven {
            spans: a.spans + b.spans,
            of_spans: a.of_spans + b.of_spans,
            too_large: a.too_large + b.too_large,
            entries: a.entries + b.entries,
            bytes: a.bytes + b.bytes,
        });
        let what = match depth {
            Depth::Full => format!(
                "{} of {}, {}, {}, {}",
                index.layers.len(),
                counted(manifest.layers as u64, "layer", "layers"),
                counted(all.of_spans, "span", "spans"),
                counted(all.entries, "file", "files"),
                human(all.bytes)
            ),
            Depth::Quick { seed, .. } => format!(
                "{} of {}, {} of {} (--seed {seed})",
                index.layers.len(),
                counted(manifest.layers as u64, "layer", "layers"),
                all.spans,
                counted(all.of_spans, "span", "spans"),
            ),
        };
        let _ = writeln!(text, "{image}: index {}: {verdict} ({what})", index.digest);
        if all.too_large > 0 {
            let _ = writeln!(
                text,
                "  {} {} not read: --quick reads none of more than {}; without it all are",
                style.yellow("note:"),
                counted(all.too_large, "span was", "spans were"),
                human(MAX_SAMPLE)
            );
        }
        findings(text, &index.differences, style);
        for layer in index.layers.iter().filter(|layer| !layer.differences.is_empty()) {
            let _ = writeln!(text, "  layer {} ztoc {}", layer.layer, layer.ztoc);
            findings(text, &layer.differences, style);
        }
    }
}

fn findings(text: &mut String, findings: &[Finding], style: Style) {
    for (code, found) in difference::shown(findings.iter().map(|one| (one.code.word(), one.text.clone()))) {
        let _ = writeln!(text, "    {} {}", style.yellow(&format!("{code}:")), safe(&found));
    }
}
