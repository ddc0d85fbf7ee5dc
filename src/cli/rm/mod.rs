//! `ociseek rm`.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::progress::WarningProgress;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::source::{Images, home};
use crate::cli::shared::terminal::{Stdout, Style, safe};
use args::RmArgs;
use ociseek_format::progress::Progress;
use ociseek_ops::discover::IndexKind;
use ociseek_ops::remove::{Removal, RemovalOutcome, RemoveOptions, RemovedIndexes, remove};
use ociseek_store::StoreError;

pub(super) mod args;
pub(super) mod json;

pub(super) async fn run(args: RmArgs) -> Result<(), CliError> {
    let progress: Arc<dyn Progress> = Arc::new(WarningProgress);
    let images = Images::new(args.registry, [&args.image], &progress).await?;
    let (source, root) = images.open(&args.image).await?;
    let store = home(&source).ok_or(CliError::Usage("archives are read-only: cannot remove anything from one"))?;
    let options = RemoveOptions { platforms: args.platforms.platform, all: args.all, dry_run: args.dry_run };
    let cleared = remove(&store, &root, &options, &progress).await?;
    let image = args.image.to_string();
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(json::Removal::of(&image, &cleared, args.dry_run)).map_err(CliError::Stdout)?,
        OutputFormat::Text => cleared.iter().map(|one| text(&image, one, stdout.style)).collect(),
    };
    stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)?;
    let all = cleared.iter().map(|one| one.indexes.len()).sum();
    let mut failed: Vec<StoreError> = (cleared.into_iter().flat_map(|one| one.indexes))
        .filter_map(
            |removal| if let RemovalOutcome::Failed { source, .. } = removal.fate { Some(source) } else { None },
        )
        .collect();
    match failed.len() {
        0 => Ok(()),
        count => Err(CliError::NotRemoved { failed: count, all, source: failed.swap_remove(0) }),
    }
}

/// The prefix of the digest, unless the index is a SOCI index.
fn prefix(kind: IndexKind) -> &'static str {
    match kind {
        IndexKind::Soci => "",
        IndexKind::Fine => "fine index ",
    }
}

/// A line for each index, and one for an image that has none.
fn text(image: &str, cleared: &RemovedIndexes, style: Style) -> String {
    let mut text = String::new();
    let of = match &cleared.platform {
        Some(platform) => format!("{} {}", safe(image), safe(&platform.to_string())),
        None => safe(image),
    };
    for removal in &cleared.indexes {
        let Removal { index, kind, tool, fate } = removal;
        let index = format!("{}{index}", prefix(*kind));
        let tool = tool.as_ref().map(|tool| format!(" by {:?}", safe(tool))).unwrap_or_default();
        let _ = match fate {
            RemovalOutcome::Removed => writeln!(text, "{of}: {} {index}{tool}", style.green("removed")),
            RemovalOutcome::WouldRemove => writeln!(text, "{of}: would remove {index}{tool}"),
            RemovalOutcome::OfAnother => writeln!(text, "{of}: kept {index}{tool}: --all removes it too"),
            RemovalOutcome::NotAnIndex(why) => {
                writeln!(text, "{of}: {} {index}: {}", style.yellow("left alone"), safe(&in_one_line(why)))
            }
            RemovalOutcome::Failed { source, unlisted } => {
                let failed = if *unlisted { "unlisted, but could not delete" } else { "could not remove" };
                writeln!(text, "{of}: {} {index}{tool}: {}", style.red(failed), safe(&in_one_line(source)))
            }
        };
    }
    if cleared.indexes.is_empty() {
        let _ = writeln!(text, "{of}: no index (SOCI version 1 or fine) to remove");
    }
    if let Some(version_2) = &cleared.version_2 {
        let note = style.yellow("note:");
        let _ = writeln!(text, "{of}: {note} index {} (version 2) is part of the image and was kept", safe(version_2));
    }
    text
}
