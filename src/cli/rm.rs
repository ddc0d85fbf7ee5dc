//! `ociseek rm`.

use std::fmt::Write as _;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use crate::cli::shared::args::{
    FormatArgs, ImageJobsArgs, OutputFormat, PlatformsArgs, RegistryArgs,
};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{
    DigestText, Failure, Kind, Manifest as ManifestRef, text as text_of,
};
use crate::cli::shared::parse;
use crate::cli::shared::progress::WarningProgress;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::source::{Images, ListPlace, home};
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{Style, safe};
use ociseek_format::progress::Progress;
use ociseek_ops::discover::IndexKind;
use ociseek_ops::remove::{Removal, RemovalOutcome, RemoveOptions, RemovedIndexes, remove};
use ociseek_store::StoreError;

const RM_LONG_ABOUT: &str = "\
Removes SOCI indexes (version 1) and fine indexes of an image. The image itself, its tags and its other referrers \
stay as they are.

Only indexes made by ociseek are removed, with --any-tool also those made by others. IMAGE@DIGEST, with the digest \
of an index, removes that index, whichever tool made it. A deleted image can also be named by its digest, to remove \
indexes left behind.

Each index is read before it is deleted: an entry that is not a valid index of the image is kept, with a note. If \
the registry has no referrers API, the index is also removed from the list under the tag sha256-..., which is kept \
even when empty. Their blobs (ztocs, documents) are left to the registry's garbage collection. In a layout \
(oci:DIR), only the entry in index.json is removed.

An index of version 2 is part of its image: to remove it, delete the image's tag.

--obsolete looks through all tags of a repository instead, and removes:

  - indexes made by ociseek, if a later version of ociseek made another of the same kind for the same image and layers
  - those made by ociseek (--any-tool: by any tool) for an image that no longer exists, if they are listed under a \
tag sha256-...: registries with the referrers API do not list indexes of deleted images
  - entries of the lists under the tags sha256-... that point to nothing

Each index is read before it is removed, and its image is checked again right before that, so it is safe to push and \
index images at the same time.";

const RM_AFTER_HELP: &str = "\
Examples:
  ociseek rm --dry-run ghcr.io/acme/app:1.4
  ociseek rm ghcr.io/acme/app:1.4
  ociseek rm --any-tool --platform linux/arm64 ghcr.io/acme/app:1.4
  ociseek rm ghcr.io/acme/app@sha256:6b6c3d79...
  ociseek rm --obsolete --dry-run ghcr.io/acme/app

JSON: docs/json.md describes each field.

Exit status: 0 success (even if there was nothing to remove), 1 an index could not be read or removed, 2 usage error; \
129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Remove the indexes of an image
#[derive(Debug, Args)]
#[command(long_about = RM_LONG_ABOUT, after_long_help = RM_AFTER_HELP)]
pub(crate) struct RmArgs {
    /// The image, or REPOSITORY@DIGEST of one index; with --obsolete, the repository
    #[arg(value_name = "IMAGE")]
    pub image: ListPlace,

    /// Remove the obsolete indexes of all images in a repository
    #[arg(long, conflicts_with = "platform")]
    pub obsolete: bool,

    /// Remove the indexes of any tool, not only those made by ociseek
    #[arg(long)]
    pub any_tool: bool,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// List what would be removed, and remove nothing
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = parse::switch)]
    pub dry_run: bool,

    #[command(flatten)]
    pub image_jobs: ImageJobsArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(super) async fn run(args: RmArgs) -> Result<(), CliError> {
    args.image.check()?;
    let name = args.image.image()?;
    let progress: Arc<dyn Progress> = Arc::new(WarningProgress);
    let images = Images::new(args.registry, [&name], &progress).await?;
    let (source, root) = images.open(&name).await?;
    let store = home(&source)
        .ok_or(CliError::usage("archives are read-only: cannot remove anything from one"))?;
    let options = RemoveOptions {
        platforms: args.platforms.platform,
        all: args.any_tool,
        dry_run: args.dry_run,
    };
    let cleared = remove(&store, &root, &options, &progress).await?;
    let image = name.to_string();
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(RemovalJson::of(&image, &cleared, args.dry_run))?,
        OutputFormat::Text => cleared.iter().map(|one| text(&image, one, stdout.style)).collect(),
    };
    stdout.print(text)?;
    let all = cleared.iter().map(|one| one.indexes.len()).sum();
    let mut failed: Vec<StoreError> = (cleared.into_iter().flat_map(|one| one.indexes))
        .filter_map(|removal| {
            if let RemovalOutcome::Failed { source, .. } = removal.fate {
                Some(source)
            } else {
                None
            }
        })
        .collect();
    match failed.len() {
        0 => Ok(()),
        count => Err(CliError::not_removed(count, all, failed.swap_remove(0))),
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
            RemovalOutcome::Removed => {
                writeln!(text, "{of}: {} {index}{tool}", style.green("removed"))
            }
            RemovalOutcome::WouldRemove => writeln!(text, "{of}: would remove {index}{tool}"),
            RemovalOutcome::OfAnother => {
                writeln!(text, "{of}: kept {index}{tool}: --any-tool removes it too")
            }
            RemovalOutcome::NotAnIndex(why) => {
                writeln!(text, "{of}: {} {index}: {}", style.yellow("left alone"), in_one_line(why))
            }
            RemovalOutcome::Failed { source, unlisted } => {
                let failed =
                    if *unlisted { "unlisted, but could not delete" } else { "could not remove" };
                writeln!(text, "{of}: {} {index}{tool}: {}", style.red(failed), in_one_line(source))
            }
        };
    }
    if cleared.indexes.is_empty() {
        let _ = writeln!(text, "{of}: no index (SOCI version 1 or fine) to remove");
    }
    if let Some(version_2) = &cleared.version_2 {
        let note = style.yellow("note:");
        let _ = writeln!(
            text,
            "{of}: {note} index {} (version 2) is part of the image and was kept",
            safe(version_2)
        );
    }
    text
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Removal"))]
pub(crate) struct RemovalJson {
    /// The full name of IMAGE.
    image: String,
    /// Whether nothing was removed because of --dry-run.
    dry_run: bool,
    /// One object for each platform's manifest.
    manifests: Vec<Manifest>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Manifest {
    /// Null if the image does not state it or does not exist any more.
    platform: Option<String>,
    manifest: ManifestRef,
    /// The index of version 2 that the manifest names, which is never removed; or null.
    version_2: Option<String>,
    indexes: Vec<Index>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Index {
    digest: DigestText,
    kind: Kind,
    /// The tool that made it, or null.
    tool: Option<String>,
    status: Status,
    /// Whether it is still listed.
    listed: bool,
    /// Why it is `not-an-index`, or why removing it failed; otherwise null.
    error: Option<Failure>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    Removed,
    /// It would be removed without --dry-run.
    WouldRemove,
    /// Another tool made it.
    Kept,
    /// It is listed as an index of the image but is not one. It was not touched.
    NotAnIndex,
    Failed,
}

impl RemovalJson {
    pub(crate) fn of(image: &str, cleared: &[RemovedIndexes], dry_run: bool) -> RemovalJson {
        RemovalJson {
            image: image.to_owned(),
            dry_run,
            manifests: cleared.iter().map(Manifest::of).collect(),
        }
    }
}

impl Manifest {
    fn of(cleared: &RemovedIndexes) -> Manifest {
        Manifest {
            platform: cleared.platform.as_ref().map(ToString::to_string),
            manifest: ManifestRef::named(cleared.manifest),
            version_2: cleared.version_2.clone(),
            indexes: cleared.indexes.iter().map(Index::of).collect(),
        }
    }
}

impl Index {
    fn of(removal: &Removal) -> Index {
        let (status, listed, error) = match &removal.fate {
            RemovalOutcome::Removed => (Status::Removed, false, None),
            RemovalOutcome::WouldRemove => (Status::WouldRemove, true, None),
            RemovalOutcome::OfAnother => (Status::Kept, true, None),
            RemovalOutcome::NotAnIndex(why) => (Status::NotAnIndex, true, Some(Failure::of(why))),
            RemovalOutcome::Failed { source, unlisted } => {
                (Status::Failed, !unlisted, Some(Failure::of(source)))
            }
        };
        Index {
            digest: removal.index.into(),
            kind: removal.kind.into(),
            tool: removal.tool.clone(),
            status,
            listed,
            error,
        }
    }
}
