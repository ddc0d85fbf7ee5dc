//! `ociseek prune`.

use std::fmt::Write as _;
use std::sync::Arc;

use self::json::Pruning;
use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::place::ListPlace;
use crate::cli::shared::progress::WarningProgress;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::size::counted;
use crate::cli::shared::source::Images;
use crate::cli::shared::terminal::{Stdout, Style, safe};
use args::PruneArgs;
use ociseek_format::progress::Progress;
use ociseek_ops::discover::IndexKind;
use ociseek_ops::prune::{PruneOptions, PruneReport, Waste, WasteReason, prune};
use ociseek_store::StoreError;

pub(super) mod args;
pub(super) mod json;

pub(super) async fn run(args: PruneArgs) -> Result<(), CliError> {
    let ListPlace::Repository { registry, repository } = &args.repository else {
        return Err(CliError::Usage("expected a repository in a registry, without a tag"));
    };
    let progress: Arc<dyn Progress> = Arc::new(WarningProgress);
    let images = Images::at(args.registry, std::iter::once(registry.as_str()), &progress).await?;
    let repository = images.repository_at(registry, repository)?;
    let options = PruneOptions { delete: args.delete, all: args.all, jobs: usize::from(args.image_jobs.jobs) };
    let pruned = prune(&repository, &options, &progress).await?;
    let mut stdout = Stdout::new();
    let name = args.repository.to_string();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(Pruning::of(&name, &pruned, args.delete)).map_err(CliError::Stdout)?,
        OutputFormat::Text => text(&name, &pruned, args.delete, stdout.style),
    };
    stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)?;
    let (all, unexamined) = (pruned.waste.len() + pruned.unexamined.len(), pruned.unexamined.len());
    let mut failed: Vec<StoreError> =
        pruned.waste.into_iter().filter_map(|waste| waste.removed.and_then(Result::err)).collect();
    match failed.len() {
        0 if unexamined == 0 => Ok(()),
        0 => Err(CliError::Listed { failed: unexamined, all: pruned.images + unexamined }),
        count => Err(CliError::NotRemoved { failed: count, all, source: failed.swap_remove(0) }),
    }
}

fn text(name: &str, pruned: &PruneReport, delete: bool, style: Style) -> String {
    let mut text = String::new();
    for Waste { subject, digest, kind, tool, why, removed } in &pruned.waste {
        let tool = tool.as_ref().map(|tool| format!(" by {:?}", safe(tool))).unwrap_or_default();
        let what = match kind {
            Some(IndexKind::Soci) => "index",
            Some(IndexKind::Fine) => "fine index",
            None => "entry",
        };
        let why = match why {
            WasteReason::ImageGone => "its image is gone".to_owned(),
            WasteReason::Superseded { by } => format!("{} is newer", by.short()),
            WasteReason::NotThere => "no such manifest".to_owned(),
        };
        let done = match removed {
            None => "would remove".to_owned(),
            Some(Ok(())) => style.green("removed"),
            Some(Err(error)) => style.red(&format!("not removed ({})", safe(&in_one_line(error)))),
        };
        let _ = writeln!(text, "{done}: {what} {digest}{tool} of {}: {why}", subject.short());
    }
    for unexamined in &pruned.unexamined {
        let _ = writeln!(
            text,
            "{}: {}: {}",
            style.yellow("not looked at"),
            safe(&unexamined.name),
            safe(&in_one_line(&unexamined.error))
        );
    }
    let images = counted(pruned.images as u64, "image manifest", "image manifests");
    let (found, removed) =
        (pruned.waste.len(), pruned.waste.iter().filter(|w| matches!(w.removed, Some(Ok(())))).count());
    let result = match (found, delete) {
        (0, _) => "nothing to remove".to_owned(),
        (_, true) => format!("{removed} of {found} removed"),
        (_, false) => format!("{found} to remove; run with --delete to remove"),
    };
    let _ = writeln!(text, "{}: {images}, {result}", safe(name));
    text
}
