//! What can be typed behind `ociseek trace`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::lazy::args::{ContainerArgs, LazyArgs};
use crate::image::ImageName;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    Text,
    Json,
    Jsonl,
}

const TRACE_LONG_ABOUT: &str = "\
Runs a container of an image that is not there (see ociseek bundle), and tells what it read: the files in the order in which \
they were needed, their spans, and how much of the image a start needs, whatever the cache had of it.

The bundle is made in a temporary directory ($TMPDIR) and taken down again. Needs root and an OCI runtime.";

const TRACE_AFTER_HELP: &str = "\
Without --output the report is standard output, and what the container prints there goes to standard error. With --output the \
container has standard output to itself. A summary goes to standard error.

Examples:
  See what a start reads:
    ociseek trace python:3.13 -- python3 -c 'print(1)'

  Record a start, and have consumers prefetch what it read:
    ociseek trace registry.example/app:v1 > start.jsonl
    ociseek index --prefetch-profile start.jsonl registry.example/app:v1

  For programs:
    ociseek trace --format json --output boot.json redis:7 -- redis-server --version

jsonl: a line {\"ms\", \"path\", \"layer\", \"offset\", \"size\", \"spans\"} for each read that was the first of its file or the \
first to need one of these spans, as mount --record writes them.

json: docs/json.md says what each field means.

Exit status: the container's. 1 also when ociseek itself fails, 2 wrong usage, 130 or 143 interrupted.";

/// Run a container and tell which files and spans it read
#[derive(Debug, Args)]
#[command(long_about = TRACE_LONG_ABOUT, after_help = TRACE_AFTER_HELP)]
pub struct TraceArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// The container's command instead of the image's
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<String>,

    /// Write the report to this file
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// The report: a table for people, one JSON document, or JSON lines that `index --prefetch-profile` takes
    /// [default: text on a terminal, jsonl elsewhere]
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum)]
    pub format: Option<TraceFormat>,

    /// The same as --format json
    #[arg(long)]
    pub json: bool,

    /// The OCI runtime
    #[arg(long, value_name = "PROGRAM", env = "OCISEEK_RUNTIME", default_value = "runc")]
    pub runtime: PathBuf,

    #[command(flatten)]
    pub container: ContainerArgs,

    #[command(flatten)]
    pub lazy: LazyArgs,
}

impl TraceArgs {
    pub fn wants_json(&self) -> bool {
        self.json || self.format == Some(TraceFormat::Json)
    }
}
