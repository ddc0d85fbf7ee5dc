//! `ociseek rm --obsolete`.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;

use crate::cli::rm::RmArgs;
use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{DigestText, Failure, Kind, text as text_of};
use crate::cli::shared::progress::WarningProgress;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::size::counted;
use crate::cli::shared::source::{Images, ListPlace};
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{Style, safe};
use ociseek_format::progress::Progress;
use ociseek_ops::discover::IndexKind;
use ociseek_ops::obsolete::{ObsoleteOptions, ObsoleteReport, Waste, WasteReason, obsolete};
use ociseek_store::StoreError;

pub(super) async fn run(args: RmArgs) -> Result<(), CliError> {
    args.image.check()?;
    let ListPlace::Repository { registry, repository } = &args.image else {
        return Err(CliError::usage(
            "--obsolete expects a repository in a registry, without a tag: REGISTRY/REPOSITORY",
        ));
    };
    let progress: Arc<dyn Progress> = Arc::new(WarningProgress);
    let images = Images::at(args.registry, std::iter::once(registry.as_str()), &progress).await?;
    let repository = images.repository_at(registry, repository)?;
    let options = ObsoleteOptions {
        delete: !args.dry_run,
        all: args.any_tool,
        jobs: usize::from(args.image_jobs.jobs),
    };
    let report = obsolete(&repository, &options, &progress).await?;
    let mut stdout = Stdout::new();
    let name = args.image.to_string();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(Obsolete::of(&name, &report, options.delete))?,
        OutputFormat::Text => text(&name, &report, options.delete, stdout.style),
    };
    stdout.print(text)?;
    let all = report.waste.len() + report.unexamined.len();
    let unexamined = report.unexamined.len();
    let mut failed: Vec<StoreError> =
        report.waste.into_iter().filter_map(|waste| waste.removed.and_then(Result::err)).collect();
    match failed.len() {
        0 if unexamined == 0 => Ok(()),
        0 => Err(CliError::unread(unexamined, report.images + unexamined)),
        count => Err(CliError::not_removed(count, all, failed.swap_remove(0))),
    }
}

fn text(name: &str, report: &ObsoleteReport, delete: bool, style: Style) -> String {
    let mut text = String::new();
    for Waste { subject, digest, kind, tool, why, removed } in &report.waste {
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
    for unexamined in &report.unexamined {
        let _ = writeln!(
            text,
            "{}: {}: {}",
            style.yellow("not looked at"),
            safe(&unexamined.name),
            in_one_line(&unexamined.error)
        );
    }
    let images = counted(report.images as u64, "image manifest", "image manifests");
    let obsolete = report.waste.len();
    let removed = report.waste.iter().filter(|w| matches!(w.removed, Some(Ok(())))).count();
    let result = match (obsolete, delete) {
        (0, _) => "nothing to remove".to_owned(),
        (_, true) => format!("{removed} of {obsolete} removed"),
        (_, false) => format!("{obsolete} to remove; run without --dry-run to remove"),
    };
    let _ = writeln!(text, "{}: {images}, {result}", safe(name));
    text
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Obsolete {
    /// The full name of the repository.
    repository: String,
    /// Whether nothing was removed because of --dry-run.
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

impl Obsolete {
    pub(crate) fn of(name: &str, report: &ObsoleteReport, delete: bool) -> Obsolete {
        let unexamined = report.unexamined.iter();
        Obsolete {
            repository: name.to_owned(),
            dry_run: !delete,
            images: report.images,
            waste: report.waste.iter().map(WasteJson::of).collect(),
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
