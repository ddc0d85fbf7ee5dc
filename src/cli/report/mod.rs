//! `ociseek report`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use tokio::task::spawn_blocking;

use crate::cli::shared::error::CliError;
use crate::cli::shared::progress::Display;
use crate::cli::shared::read_image::{FoundImage, ReadArgs, tell_stats};
use crate::cli::shared::terminal::{Stdout, Style, complain, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::image::ImageName;
use ociseek_ops::report::{FineDocuments, Report};
use ociseek_rootfs::record::{self, RecordedRead};

mod html;
pub(super) mod json;
mod shares;
mod text;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// One HTML page
    Html,
    /// A summary for a terminal
    Text,
    /// The facts on the page
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

  The same as text, on the terminal:
    ociseek report ghcr.io/acme/app:1.4

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

    /// An HTML page, a summary as text, or the facts as JSON (docs/json.md) [default: text on a
    /// terminal, otherwise html]
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, help_heading = "Output")]
    format: Option<ReportFormat>,

    /// Same as --format json
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Same as --format text
    #[arg(long, help_heading = "Output", conflicts_with = "json")]
    text: bool,
}

impl ReportArgs {
    fn format(&self) -> ReportFormat {
        match self.format {
            _ if self.json => ReportFormat::Json,
            _ if self.text => ReportFormat::Text,
            Some(format) => format,
            None if self.output.is_none() && io::stdout().is_terminal() => ReportFormat::Text,
            None => ReportFormat::Html,
        }
    }

    pub(crate) fn wants_json(&self) -> bool {
        self.format() == ReportFormat::Json
    }

    /// The destination of the page. None for standard output.
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        self.output.as_ref().filter(|path| path.as_os_str() != "-")
    }
}

pub(super) async fn run(args: ReportArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let format = args.format();
    let ending = args.file().and_then(|file| file.extension()).and_then(|ending| ending.to_str());
    match (format, ending) {
        (ReportFormat::Html, None) if args.output.is_none() && io::stdout().is_terminal() => {
            return Err(CliError::Usage("a terminal does not show HTML: use --output FILE, or --text"));
        }
        (ReportFormat::Html, Some("pdf")) => {
            return Err(CliError::Usage("the report is an HTML page: name it .html, and print it to PDF in a browser"));
        }
        (ReportFormat::Html, Some("json")) => return Err(CliError::Usage("for JSON, use --json")),
        (ReportFormat::Html, Some("txt")) => return Err(CliError::Usage("for text, use --text")),
        _ => {}
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
    let mut stdout = Stdout::new();
    let text = match format {
        ReportFormat::Json => json::text(&name, &facts)?,
        ReportFormat::Html => html::page(&name, &facts),
        ReportFormat::Text if args.file().is_some() => text::summary(&name, &facts, Style::plain()),
        ReportFormat::Text => text::summary(&name, &facts, stdout.style),
    };
    match args.file() {
        Some(path) => {
            std::fs::write(path, text).map_err(|source| CliError::Write { path: path.clone(), source })?;
            if !verbosity.quiet {
                complain(&format!("wrote {}", safe(&path.display().to_string())));
            }
        }
        None => stdout.print(text)?,
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
