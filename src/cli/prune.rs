//! `ociseek prune`.

use std::fmt::Write as _;
use std::sync::Arc;

use clap::Args;
use clap::builder::FalseyValueParser;
use serde::Serialize;

use crate::cli::shared::args::{FormatArgs, ImageJobsArgs, OutputFormat, RegistryArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{DigestText, Failure, Kind, text as text_of};
use crate::cli::shared::progress::WarningProgress;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::size::counted;
use crate::cli::shared::source::{Images, ListPlace};
use crate::cli::shared::terminal::{Stdout, Style, safe};
use ociseek_format::progress::Progress;
use ociseek_ops::discover::IndexKind;
use ociseek_ops::prune::{PruneOptions, PruneReport, Waste, WasteReason, prune};
use ociseek_store::StoreError;

const PRUNE_LONG_ABOUT: &str = "\
Finds obsolete indexes in a repository, and removes them with --delete:

  - SOCI indexes and fine indexes made by ociseek, if a later version of ociseek made another of the same kind for the \
same image and layers
  - those made by ociseek (--any-tool: by any tool) for an image that no longer exists, if they are listed under a \
tag sha256-...: registries with the referrers API do not list indexes of deleted images
  - entries of the lists under the tags sha256-... that point to nothing

Each index is read before it is removed, and its image is checked again right before that, so it is safe to push and \
index images at the same time.";

const PRUNE_AFTER_HELP: &str = "\
Examples:
  ociseek prune ghcr.io/acme/app
  ociseek prune --delete ghcr.io/acme/app

JSON: docs/json.md describes each field.

Exit status: 0 success, 1 something could not be read or removed, 2 usage error; 129, 130 or 143 on SIGHUP, SIGINT or \
SIGTERM.";

/// Remove the obsolete indexes of a repository
#[derive(Debug, Args)]
#[command(long_about = PRUNE_LONG_ABOUT, after_long_help = PRUNE_AFTER_HELP)]
pub(crate) struct PruneArgs {
    /// The repository ([REGISTRY/]REPOSITORY)
    #[arg(value_name = "REPOSITORY")]
    pub repository: ListPlace,

    /// Remove the obsolete indexes [default: only list them]
    #[arg(long)]
    pub delete: bool,

    /// Only list them, even with --delete
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub dry_run: bool,

    /// For deleted images, remove the indexes of any tool, not only those made by ociseek
    #[arg(long, alias = "all")]
    pub any_tool: bool,

    #[command(flatten)]
    pub image_jobs: ImageJobsArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(super) async fn run(args: PruneArgs) -> Result<(), CliError> {
    args.repository.check()?;
    let ListPlace::Repository { registry, repository } = &args.repository else {
        return Err(CliError::Usage(
            "expected a repository in a registry, without a tag: REGISTRY/REPOSITORY",
        ));
    };
    let progress: Arc<dyn Progress> = Arc::new(WarningProgress);
    let images = Images::at(args.registry, std::iter::once(registry.as_str()), &progress).await?;
    let repository = images.repository_at(registry, repository)?;
    let delete = args.delete && !args.dry_run;
    let options =
        PruneOptions { delete, all: args.any_tool, jobs: usize::from(args.image_jobs.jobs) };
    let pruned = prune(&repository, &options, &progress).await?;
    let mut stdout = Stdout::new();
    let name = args.repository.to_string();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(Pruning::of(&name, &pruned, delete))?,
        OutputFormat::Text => text(&name, &pruned, delete, stdout.style),
    };
    stdout.print(text)?;
    let all = pruned.waste.len() + pruned.unexamined.len();
    let unexamined = pruned.unexamined.len();
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
            Some(Err(error)) => style.red(&format!("not removed ({})", in_one_line(error))),
        };
        let _ = writeln!(text, "{done}: {what} {digest}{tool} of {}: {why}", subject.short());
    }
    for unexamined in &pruned.unexamined {
        let _ = writeln!(
            text,
            "{}: {}: {}",
            style.yellow("not looked at"),
            safe(&unexamined.name),
            in_one_line(&unexamined.error)
        );
    }
    let images = counted(pruned.images as u64, "image manifest", "image manifests");
    let found = pruned.waste.len();
    let removed = pruned.waste.iter().filter(|w| matches!(w.removed, Some(Ok(())))).count();
    let result = match (found, delete) {
        (0, _) => "nothing to remove".to_owned(),
        (_, true) => format!("{removed} of {found} removed"),
        (_, false) => format!("{found} to remove; run with --delete to remove"),
    };
    let _ = writeln!(text, "{}: {images}, {result}", safe(name));
    text
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Pruning {
    /// The full name of the repository.
    repository: String,
    /// Whether nothing was removed because --delete is missing.
    dry_run: bool,
    /// Number of image manifests that were examined.
    images: usize,
    /// The obsolete indexes and entries.
    waste: Vec<WasteJson>,
    not_looked_at: Vec<Unseen>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Waste"))]
struct WasteJson {
    digest: DigestText,
    /// Null for an entry whose manifest does not exist.
    kind: Option<Kind>,
    /// The image that the index belongs to.
    subject: DigestText,
    /// The tool that made it, or null.
    tool: Option<String>,
    reason: Reason,
    /// The newer index, if it is superseded.
    newer: Option<DigestText>,
    status: Status,
    error: Option<Failure>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Reason {
    ImageGone,
    Superseded,
    /// The manifest of a list entry does not exist.
    NotThere,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    WouldRemove,
    Removed,
    Failed,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Unseen {
    tag: String,
    error: Failure,
}

impl Pruning {
    pub(crate) fn of(name: &str, pruned: &PruneReport, delete: bool) -> Pruning {
        let unexamined = pruned.unexamined.iter();
        Pruning {
            repository: name.to_owned(),
            dry_run: !delete,
            images: pruned.images,
            waste: pruned.waste.iter().map(WasteJson::of).collect(),
            not_looked_at: unexamined
                .map(|u| Unseen { tag: u.name.clone(), error: Failure::of(&u.error) })
                .collect(),
        }
    }
}

impl WasteJson {
    fn of(waste: &Waste) -> WasteJson {
        let (reason, newer) = match &waste.why {
            WasteReason::ImageGone => (Reason::ImageGone, None),
            WasteReason::Superseded { by } => (Reason::Superseded, Some(by.into())),
            WasteReason::NotThere => (Reason::NotThere, None),
        };
        let (status, error) = match &waste.removed {
            None => (Status::WouldRemove, None),
            Some(Ok(())) => (Status::Removed, None),
            Some(Err(error)) => (Status::Failed, Some(Failure::of(error))),
        };
        WasteJson {
            digest: waste.digest.into(),
            kind: waste.kind.map(Kind::from),
            subject: waste.subject.into(),
            tool: waste.tool.clone(),
            reason,
            newer,
            status,
            error,
        }
    }
}
