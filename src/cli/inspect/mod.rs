//! `ociseek inspect`.

use std::sync::Arc;

use clap::Args;

use crate::cli::shared::args::{FormatArgs, IndexName, OutputFormat, PlatformsArgs, RegistryArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::parse;
use crate::cli::shared::progress::Display;
use crate::cli::shared::source::Images;
use crate::cli::shared::terminal::Stdout;
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::ztoc;
use ociseek_format::image::ImageName;
use ociseek_format::progress::Progress;
use ociseek_ops::inspect::{find_ztoc, inspect};
use text::text;

pub(super) mod json;
mod text;

const INSPECT_LONG_ABOUT: &str = "\
Shows which SOCI indexes and fine indexes an image has and what they contain: the tool that made them, how they were \
found, which layers and how much of the image they cover, the sizes of the ztocs and documents, and how consumers use \
the SOCI indexes.

No layer is read. IMAGE is as for ociseek index, or docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] for an archive \
from docker save.";

const INSPECT_AFTER_HELP: &str = "\
Examples:
  ociseek inspect ghcr.io/acme/app:1.4
  ociseek inspect --format json oci:app | jq '.manifests[].coverage'
  ociseek inspect --ztoc 3f1c22ab oci:app

JSON: docs/json.md describes each field.";

/// Show which indexes an image has and what they contain
#[derive(Debug, Args)]
#[command(long_about = INSPECT_LONG_ABOUT, after_help = INSPECT_AFTER_HELP)]
pub(crate) struct InspectArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// Show the layers through this index, by its digest (then listed or not) or at least six of
    /// its first digits [default: the first usable ones]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<IndexName>,

    /// Show everything in one ztoc: its spans and files
    ///
    /// The ztoc is named by its own digest or by its layer's, or by six or more of the first
    /// digits of one.
    #[arg(long, value_name = "DIGEST", value_parser = parse::start_of_digest)]
    pub ztoc: Option<String>,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(super) async fn run(args: InspectArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let (display, image) = (Arc::new(Display::new(verbosity)), args.image.to_string());
    let progress: Arc<dyn Progress> = display.clone();
    let images = Images::new(args.registry, [&args.image], &progress).await?;
    let (source, root) = display.during(&image, images.open(&args.image)).await?;
    let wanted = args.platforms.wanted();
    let mut stdout = Stdout::new();
    if let Some(named) = &args.ztoc {
        let found = find_ztoc(&source, &root, wanted, named, &progress).await?;
        let (bytes, ztoc) = found.ok_or_else(|| CliError::NoZtoc(named.clone()))?;
        let written = match args.format.get() {
            OutputFormat::Text => ztoc::text::write(&bytes, &ztoc, &mut stdout),
            OutputFormat::Json => ztoc::json::write(&bytes, &ztoc, &mut stdout),
        };
        return written.map_err(CliError::Stdout);
    }
    let index = match &args.index {
        Some(index) => Some(index.digest(&source, &root, wanted, &progress).await?),
        None => None,
    };
    let inspected = inspect(&source, &root, wanted, index.as_ref(), &progress).await?;
    let text = match args.format.get() {
        OutputFormat::Json => text_of(json::Inspection::of(&image, &inspected))?,
        OutputFormat::Text => {
            inspected.iter().map(|one| text(&image, one, stdout.style)).collect::<Vec<_>>().join("\n")
        }
    };
    stdout.print(text)
}
