//! `ociseek trace`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::Permissions;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::cli::image_fs::bundle::mount_bundle;
use crate::cli::image_fs::json::Figures;
use crate::cli::image_fs::{self, ContainerArgs, LazyArgs, OpenedImage};
use crate::cli::shared::error::{CliError, FAILED};
use crate::cli::shared::json::{DigestText, milliseconds, text as text_of, utf8};
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::size::{counted, duration, human};
use crate::cli::shared::terminal::{Stdout, complain, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::{blocking, boxed, until};
use ociseek_format::image::ImageName;
use ociseek_format::offset::SpanId;
use ociseek_ops::bundle::Bundle;
use ociseek_ops::mount::Record;
use ociseek_ops::open::LayerChoice;
use ociseek_ops::trace::Container;
use ociseek_rootfs::layers::LayerAccess;
use ociseek_rootfs::record::{Touch, write_line};

/// The most reads that a report has.
const MAX_READS: usize = 1_000_000;

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
    #[arg(
        long,
        value_name = "FORMAT",
        env = "OCISEEK_FORMAT",
        value_enum,
        help_heading = "Output"
    )]
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

/// The result of running the container.
struct Run {
    status: ExitStatus,
    took: Duration,
    touches: Vec<Touch>,
}

pub(crate) async fn run(
    args: TraceArgs,
    verbosity: VerbosityArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    let wants_json = args.wants_json();
    let mut output = args.output.as_deref().map(image_fs::create).transpose()?;
    // Dropped last: a directory that contains a mount must not be deleted.
    let mut temporary = tempfile::Builder::new();
    temporary.prefix("ociseek-trace-").permissions(Permissions::from_mode(0o700));
    let temporary = temporary.tempdir().map_err(CliError::Start)?;
    let dir = temporary.path().join("bundle");
    let options = image_fs::run_options(args.container, args.command);
    let name = args.image.to_string();
    let (mut opened, live_bundle) = until(
        interrupted,
        boxed(async || {
            let bundle = blocking(move || Bundle::new(&dir, &name)).await?;
            let prefetch = args.lazy.prefetching();
            let opened =
                image_fs::open_image(&args.image, LayerChoice::All, args.lazy, verbosity, None)
                    .await?;
            let live_bundle =
                mount_bundle(&opened, bundle, &options, Some(Record::Memory(MAX_READS)), prefetch)
                    .await?;
            Ok((opened, live_bundle))
        }),
    )
    .await?;
    let started = Instant::now();
    // The container's standard output must not be mixed with ours.
    let stdout = if output.is_some() { Stdio::inherit() } else { std::io::stderr().into() };
    let ran = until(interrupted, async {
        let ran = async {
            Container::run(&args.runtime, live_bundle.bundle.dir(), &container_name(), stdout)?
                .wait()
                .await
        };
        Ok(ran.await?)
    })
    .await;
    let took = started.elapsed();
    let touches = live_bundle.live.touches();
    let mounted = live_bundle.live.since();
    if let Err(error) = live_bundle.take_down(&opened).await {
        // A directory with a remaining mount must not be deleted.
        let _ = temporary.keep();
        return Err(error);
    }
    opened.write_stats(mounted)?;
    let run = Run { status: ran?, took, touches };
    let format = match args.format {
        _ if wants_json => TraceFormat::Json,
        Some(format) => format,
        None if output.is_none() && std::io::stdout().is_terminal() => TraceFormat::Text,
        None => TraceFormat::Jsonl,
    };
    let needed = Needed::of(&opened, &run.touches);
    let summary = needed.summary(&opened, &run);
    let text = match format {
        TraceFormat::Json => document(&opened, &run, needed)?,
        TraceFormat::Jsonl => lines(&run.touches)?,
        TraceFormat::Text => text(&opened, &run).into_bytes(),
    };
    match (&mut output, args.output) {
        (Some(file), Some(path)) => {
            file.write_all(&text).map_err(|source| CliError::Write { path, source })?
        }
        _ => Stdout::new().print(&text)?,
    }
    if !verbosity.quiet {
        complain(&summary);
    }
    match code(run.status) {
        0 => Ok(()),
        code => Err(CliError::Exit(code)),
    }
}

fn container_name() -> String {
    format!("ociseek-trace-{}", std::process::id())
}

/// The exit status like in a shell.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

impl Needed {
    fn of(opened: &OpenedImage, touches: &[Touch]) -> Needed {
        let files: BTreeSet<&[u8]> = touches.iter().map(|touch| &touch.path.0[..]).collect();
        let spans: BTreeSet<_> = touches
            .iter()
            .flat_map(|touch| touch.spans.iter().map(|span| (touch.layer, *span)))
            .collect();
        let mut needed = Needed { files: files.len() as u64, spans: spans.len() as u64, bytes: 0 };
        let mut seen = BTreeSet::new();
        for layer in
            opened.image.content.layers().filter(|layer| seen.insert(layer.descriptor.digest))
        {
            needed.bytes += match layer.how {
                LayerAccess::Fine | LayerAccess::Index => (spans.iter())
                    .filter(|(digest, _)| *digest == layer.descriptor.digest)
                    .map(|(_, span)| layer.spans().blob_range(*span))
                    .map(|range| range.end - range.start)
                    .sum(),
                LayerAccess::Local | LayerAccess::Whole => layer.descriptor.size,
            };
        }
        needed
    }

    fn summary(&self, opened: &OpenedImage, run: &Run) -> String {
        let stats = opened.image.content.stats();
        let share = self.bytes.saturating_mul(100).checked_div(stats.image_bytes).unwrap_or(0);
        format!(
            "this start reads {} in {}: {} of {} ({share}%); {} fetched now in {}; exit status {} after {}",
            counted(self.files, "file", "files"),
            counted(self.spans, "span", "spans"),
            human(self.bytes),
            human(stats.image_bytes),
            human(stats.bytes_fetched),
            counted(stats.requests, "request", "requests"),
            code(run.status),
            duration(run.took.as_secs_f64()),
        )
    }
}

fn document(opened: &OpenedImage, run: &Run, needed: Needed) -> Result<Vec<u8>, CliError> {
    let trace = Trace {
        figures: Figures::of(opened),
        status: code(run.status),
        seconds: milliseconds(run.took.as_secs_f64()),
        needed,
        touches: run.touches.iter().map(Read::of).collect(),
    };
    Ok(text_of(trace)?.into_bytes())
}

fn lines(touches: &[Touch]) -> Result<Vec<u8>, CliError> {
    let mut text = Vec::new();
    touches.iter().try_for_each(|touch| write_line(&mut text, touch)).map_err(CliError::Stdout)?;
    Ok(text)
}

fn text(opened: &OpenedImage, run: &Run) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", safe(&opened.name));
    let _ = writeln!(text, "{:>10}  {:>10}  {:12}  {:12}  file", "ms", "bytes", "layer", "spans");
    for touch in &run.touches {
        let path = safe(&String::from_utf8_lossy(&touch.path.0));
        let ms = touch.since_mount.as_secs_f64() * 1000.0;
        let layer = touch.layer.short();
        let _ = writeln!(
            text,
            "{ms:>10.1}  {:>10}  {layer:12}  {:12}  {path}",
            touch.size,
            spans(&touch.spans)
        );
    }
    text
}

/// `3-5,9`
fn spans(spans: &[SpanId]) -> String {
    let mut text = String::new();
    let mut rest = spans;
    while let Some((&first, after)) = rest.split_first() {
        let run =
            after.iter().zip(first.0 + 1..).take_while(|(span, next)| span.0 == *next).count();
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match run {
            0 => write!(text, "{comma}{first}"),
            run => write!(text, "{comma}{first}-{}", first.0 + run as u32),
        };
        rest = after.get(run..).unwrap_or_default();
    }
    text
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Trace<'a> {
    #[serde(flatten)]
    pub figures: Figures,
    /// The exit status of the container.
    pub status: u8,
    /// How long the container ran.
    pub seconds: f64,
    /// What a start needs of the image, whatever the caches already had.
    pub needed: Needed,
    /// The first reads of each file, or of some of its bytes.
    pub touches: Vec<Read<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Needed {
    pub files: u64,
    pub spans: u64,
    /// Size in the layers' blobs. A layer that the SOCI index does not cover counts completely,
    /// because it is read before the start.
    pub bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Read<'a> {
    /// Milliseconds since the image was mounted.
    ms: f64,
    /// Path from the root of the image, without a leading slash.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    layer: DigestText,
    /// Offset in the file in bytes.
    offset: u64,
    /// Number of bytes.
    size: u64,
    /// The numbers of the layer's spans that it needed.
    spans: Vec<u32>,
}

impl<'a> Read<'a> {
    pub(crate) fn of(touch: &'a Touch) -> Read<'a> {
        let (path, path_b64) = utf8(&touch.path.0);
        Read {
            ms: touch.milliseconds(),
            path,
            path_b64,
            layer: touch.layer.into(),
            offset: touch.offset,
            size: touch.size,
            spans: touch.spans.iter().map(|span| span.0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_spans_are_printed_as_ranges() {
        for (numbers, text) in
            [(&[][..], ""), (&[7], "7"), (&[3, 4, 5, 9], "3-5,9"), (&[1, 3, 4], "1,3-4")]
        {
            let listed: Vec<SpanId> = numbers.iter().copied().map(SpanId).collect();
            assert_eq!(spans(&listed), text);
        }
    }
}
