//! `ociseek report`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use tokio::task::spawn_blocking;

use crate::cli::shared::error::CliError;
use crate::cli::shared::progress::Display;
use crate::cli::shared::read_image::{FoundImage, ReadArgs, tell_stats};
use crate::cli::shared::terminal::Stdout;
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::image::ImageName;
use ociseek_ops::report::{FineDocuments, Report};
use ociseek_rootfs::record::{self, RecordedRead};

mod html;
pub(super) mod json;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// One HTML page
    #[value(alias = "text")]
    Html,
    /// The facts on it
    Json,
}

const REPORT_LONG_ABOUT: &str = "\
Draws an image as one HTML page: its layers and their spans with the files in them, how much of it can be read \
lazily, which layers cannot and why, and its largest files. With the profile of a start the page shows what that \
start reads and what it would fetch at other span sizes.

The page has no scripts and loads nothing, so it can be mailed, archived or attached to a CI run. The same image and \
profile give the same bytes. Layers that no index covers are read once, as for ociseek ls.

IMAGE is as for ociseek index, or docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] for an archive from docker save.";

const REPORT_AFTER_HELP: &str = "\
Examples:
  ociseek report ghcr.io/acme/app:1.4 --output report.html

  With what a start reads:
    ociseek trace ghcr.io/acme/app:1.4 > start.jsonl
    ociseek report ghcr.io/acme/app:1.4 --profile start.jsonl --output report.html

  The largest files, for programs:
    ociseek report --json oci:app | jq '.largest[:5]'

JSON: docs/json.md describes each field.";

/// Draw an image's layers, spans and files as an HTML page
#[derive(Debug, Args)]
#[command(long_about = REPORT_LONG_ABOUT, after_long_help = REPORT_AFTER_HELP)]
pub(crate) struct ReportArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Write the page to this file; - is standard output [default: standard output, unless it is a
    /// terminal]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Show what a recorded start reads: the output of ociseek trace or of mount --record
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,

    #[command(flatten)]
    pub read: ReadArgs,

    /// An HTML page, or the facts on it as JSON (docs/json.md)
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = ReportFormat::Html)]
    #[arg(help_heading = "Output")]
    format: ReportFormat,

    /// Same as --format json
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl ReportArgs {
    pub(crate) fn wants_json(&self) -> bool {
        self.json || self.format == ReportFormat::Json
    }

    /// The destination of the page. None for standard output.
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        self.output.as_ref().filter(|path| path.as_os_str() != "-")
    }
}

pub(super) async fn run(args: ReportArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    if args.output.is_none() && !args.wants_json() && io::stdout().is_terminal() {
        return Err(CliError::Usage("a terminal does not show HTML: give --output FILE"));
    }
    let reads = profile(&args)?;
    let display = Arc::new(Display::new(verbosity));
    let opening = async {
        let found = FoundImage::new(&args.image, &args.read, display.clone()).await?;
        let image = found.open(&args.read, true).await?;
        let documents = FineDocuments::of(&image).await;
        Ok::<_, CliError>((found, image, documents))
    };
    let (found, image, documents) = display.during(&args.image.to_string(), opening).await?;
    let budget = found.source.budget().clone();
    let facts = spawn_blocking(move || (Report::of(&image, &documents, reads.as_deref(), &budget), image)).await;
    let (facts, image) = facts.map_err(|error| CliError::Start(error.into()))?;
    let (facts, name) = (facts?, args.image.to_string());
    let text = match args.wants_json() {
        true => json::text(&name, &facts)?,
        false => html::page(&name, &facts),
    };
    match args.file() {
        Some(path) => {
            std::fs::write(path, text).map_err(|source| CliError::Write { path: path.clone(), source })?;
        }
        None => Stdout::new().print(text)?,
    }
    if args.read.stats {
        tell_stats(&image);
    }
    Ok(())
}

fn profile(args: &ReportArgs) -> Result<Option<Vec<RecordedRead>>, CliError> {
    let Some(path) = &args.profile else { return Ok(None) };
    let text = std::fs::read(path).map_err(|source| CliError::Read { path: path.clone(), source })?;
    let reads = record::parse(&text).map_err(|source| CliError::Profile { path: path.clone(), source })?;
    Ok(Some(reads))
}
