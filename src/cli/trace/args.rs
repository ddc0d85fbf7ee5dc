//! The options of `ociseek trace`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::lazy::args::{ContainerArgs, LazyArgs};
use ociseek_format::image::ImageName;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    Text,
    Json,
    Jsonl,
}

const TRACE_LONG_ABOUT: &str = "\
Runs a container without pulling its image (see ociseek bundle) and reports what it read: the files in the order they \
were needed, their spans, and how much of the image a start needs, regardless of the cache.

The bundle is created in a temporary directory ($TMPDIR) and removed afterwards. Requires root and an OCI runtime.";

const TRACE_AFTER_HELP: &str = "\
Without --output, the report goes to standard output, and the container's own standard output to standard error. With \
--output, the container keeps standard output. A summary goes to standard error.

Examples:
  See what a start reads:
    ociseek trace python:3.13 -- python3 -c 'print(1)'

  Record a start, then have consumers prefetch what it read:
    ociseek trace registry.example/app:v1 > start.jsonl
    ociseek index --profile start.jsonl registry.example/app:v1

  In scripts:
    ociseek trace --format json --output boot.json redis:7 -- redis-server --version

jsonl: one line {\"ms\", \"path\", \"layer\", \"offset\", \"size\", \"spans\"} for each read that is the first of \
its file or of some of its bytes, as written by mount --record.

json: docs/json.md describes each field.

Exit status: the container's; also 1 if ociseek itself fails, 2 usage error, 129, 130 or 143 interrupted.";

/// Run a container and report which files and spans it read
#[derive(Debug, Args)]
#[command(long_about = TRACE_LONG_ABOUT, after_long_help = TRACE_AFTER_HELP)]
pub(crate) struct TraceArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// The container's command, instead of the image's
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<String>,

    /// Write the report to this file
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// The OCI runtime
    #[arg(long, value_name = "PROGRAM", env = "OCISEEK_RUNTIME", default_value = "runc")]
    pub runtime: PathBuf,

    #[command(flatten)]
    pub container: ContainerArgs,

    #[command(flatten)]
    pub lazy: LazyArgs,

    /// Report format: a text table, one JSON document, or JSON lines for `index --profile`
    /// [default: text on a terminal, jsonl elsewhere]
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, help_heading = "Output")]
    pub format: Option<TraceFormat>,

    /// Same as --format json
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

impl TraceArgs {
    pub(crate) fn wants_json(&self) -> bool {
        self.json || self.format == Some(TraceFormat::Json)
    }
}
