//! The options of `ociseek report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::shared::read_image::ReadArgs;
use ociseek_format::image::ImageName;

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
