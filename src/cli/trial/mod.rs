//! `ociseek try`: whether an image would start sooner lazily, and by how much. Its options, and the
//! order of the work.

use std::ffi::OsStr;
#[cfg(mounts)]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::cli::shared::args::FormatArgs;
use crate::cli::shared::error::{CliError, DONE, FAILED};
use crate::cli::shared::file::{Replacement, read_input};
use crate::cli::shared::indexing::MAX_LIST;
use crate::cli::shared::parse;
use crate::cli::shared::progress::Display;
use crate::cli::shared::read_image::{FoundImage, ReadArgs, tell_stats};
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{complain, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::{boxed, until};
use answer::{Advice, Link, RunFacts, Startup, TrialAnswer};
use ociseek_format::image::{ImageName, Platform};
#[cfg(mounts)]
use ociseek_ops::container::OciRuntimeError;
use ociseek_ops::open::RootFs;
use ociseek_ops::report::{FineDocuments, Report};
use ociseek_ops::startup_files::{ProgramError, startup_files};
use ociseek_rootfs::record::{self, RecordedRead, Touch, write_line};

mod answer;
mod html;
pub(super) mod json;
#[cfg(mounts)]
mod run;
mod shares;
mod text;

const TRY_LONG_ABOUT: &str = "\
Answers whether a container of the image would start sooner if its image were loaded lazily, and by how much. Nothing \
is written to a registry, and the image needs no index: layers without one are read once and indexed in memory.

The container runs without pulling the image, by runc and FUSE, which needs root. What it reads until it is ready is \
counted for each kind of index. It is ready when it exits; a server is ready with --until-port, --until-output, --for, \
or else when it has printed something and reads no new files for 3 seconds. Ctrl-C ends it too. Nothing is lost: what \
it read until then is counted and recorded. Where no container can run, the program, its libraries and the files that \
its arguments name are counted instead.

Times are calculated, not measured: the bytes on the link, and 10 ms for each request that waits for the one before. \
Unpacking a pulled image takes more time, which is not counted.";

const TRY_AFTER_HELP: &str = "\
Examples:
  ociseek try python:3.13 -- python3 -c 'print(1)'

  A server, and what it reads as a page:
    ociseek try nginx:1.29 --until-port 80 --output report.html

  Record the startup, and put it into an index of the image:
    ociseek try registry.example/app:v1 --record startup.jsonl
    ociseek convert --fine --profile startup.jsonl registry.example/app:v1 \\
      registry.example/app:v1-soci

The page has no scripts and loads nothing, so it can be mailed, archived or attached to a CI run.

A recorded startup has one line {\"ms\", \"path\", \"layer\", \"offset\", \"size\", \"spans\"} for each read that is \
the first of its file or of some of its bytes, as written by mount --record.

JSON: docs/json.md describes each field.

Exit status: the container's, or 0 if it was ready before it ended; also 1 if it did not do what --until-port or \
--until-output asked for, or ociseek itself fails, 2 usage error, 126 if the program is not executable, 127 if the \
image does not have it, 129, 130 or 143 interrupted before the container ran.";

/// Find out how much sooner an image would start lazily
#[derive(Debug, Args)]
#[command(long_about = TRY_LONG_ABOUT, after_long_help = TRY_AFTER_HELP)]
pub(crate) struct TryArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// The container's command, instead of the image's
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<String>,

    /// Also show the times for a link of this speed, such as 100Mbit or 10Gbit
    #[arg(long, value_name = "SPEED", value_parser = parse::link, default_value = "1Gbit")]
    pub link: u64,

    /// Write an HTML page to this file: the answer, the layers, and the files that were read; - is
    /// standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Write the reads of the startup to this file, for --profile of index, convert and try
    #[arg(long, value_name = "FILE", conflicts_with_all = ["profile", "no_run"])]
    pub record: Option<PathBuf>,

    /// Run nothing: use the startup that is recorded in this file
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,

    /// Run nothing: count the program, its libraries and the files that its arguments name
    #[arg(long)]
    pub no_run: bool,

    /// The container is ready after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = parse::duration_of(1, 3600))]
    #[arg(help_heading = "Ready", conflicts_with_all = ["no_run", "profile"])]
    pub for_time: Option<Duration>,

    /// The container is ready when it listens on this TCP port
    #[arg(long, value_name = "PORT", value_parser = parse::number::<u16>(1, 65_535))]
    #[arg(help_heading = "Ready", conflicts_with_all = ["no_run", "profile"])]
    pub until_port: Option<u16>,

    /// The container is ready when it has printed this
    #[arg(long, value_name = "TEXT", help_heading = "Ready", value_parser = parse::not_empty)]
    #[arg(conflicts_with_all = ["no_run", "profile"])]
    pub until_output: Option<String>,

    /// The OCI runtime [default: runc]
    #[arg(long, value_name = "PROGRAM", env = "OCISEEK_RUNTIME", help_heading = "Container")]
    pub runtime: Option<PathBuf>,

    /// Run this instead of the image's entrypoint and command; if empty, run only what follows --
    #[arg(long, value_name = "PROGRAM", help_heading = "Container")]
    pub entrypoint: Option<String>,

    /// Give the container the host's network, instead of only a loopback interface
    #[arg(long, help_heading = "Container")]
    pub host_network: bool,

    #[command(flatten)]
    pub read: ReadArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

impl TryArgs {
    #[cfg(mounts)]
    fn runtime(&self) -> &Path {
        self.runtime.as_deref().unwrap_or(Path::new("runc"))
    }

    fn is_page_on_stdout(&self) -> bool {
        self.output.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    fn entrypoint(&self) -> Option<Vec<String>> {
        let words =
            |program: &String| Vec::from_iter((!program.is_empty()).then(|| program.clone()));
        self.entrypoint.as_ref().map(words)
    }

    fn command(&self) -> Option<Vec<String>> {
        (!self.command.is_empty()).then(|| self.command.clone())
    }
}

/// What a container read, and how that ended.
#[derive(Default)]
struct Ran {
    touches: Vec<Touch>,
    facts: RunFacts,
}

pub(super) async fn run(
    args: TryArgs,
    verbosity: VerbosityArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    check(&args)?;
    CliError::check_command(&args.command)?;
    let profile = profile(&args)?;
    // Detects that the files cannot be written before anything is fetched.
    let record = args.record.as_deref().map(Replacement::new).transpose()?;
    let page = match &args.output {
        Some(path) if !args.is_page_on_stdout() => Some(Replacement::new(path)?),
        _ => None,
    };
    let display = Arc::new(Display::new(verbosity));
    let name = args.image.to_string();
    let opening = boxed(async || {
        let started = Instant::now();
        let located = FoundImage::new(&args.image, &args.read, display.clone()).await?;
        let image = located.open(&args.read, false).await?;
        Ok::<_, CliError>((located, image, started.elapsed()))
    });
    let (located, image, opened_in) = until(interrupted, display.during(&name, opening)).await?;
    let link = Link::measured(&image, opened_in);
    let (image, ran, why_not) = match (&profile, args.no_run) {
        (Some(_), _) | (_, true) => (image, None, None),
        _ => match boxed(|| started(&args, image, &name, verbosity, interrupted)).await? {
            (image, Ok(ran)) => (image, Some(ran), None),
            (image, Err(why)) => (image, None, Some(why)),
        },
    };
    if let Some(record) = record {
        let Some(ran) = &ran else {
            // That the image does not have the program is the better reason.
            match program_files(&args, &image).await {
                Err(ProgramError::NoCommand) => {}
                _ if !is_linux(&image) => {}
                files => drop(files?),
            }
            return Err(CliError::new(format!(
                "no startup was recorded, because no container could run: {}",
                why_not.unwrap_or_default()
            )));
        };
        let mut lines = Vec::new();
        ran.touches
            .iter()
            .try_for_each(|touch| write_line(&mut lines, touch))
            .and_then(|()| record.write(&lines))
            .map_err(|error| record.failed(error))?;
        record.complete()?;
    }
    let reads: Vec<RecordedRead> = match (&ran, &profile) {
        (Some(ran), _) => ran.touches.iter().map(read).collect(),
        (None, Some(reads)) => reads.clone(),
        (None, None) if !is_linux(&image) => Vec::new(),
        (None, None) => match program_files(&args, &image).await {
            Err(ProgramError::NoCommand) => Vec::new(),
            files => files?,
        },
    };
    // The parts of the report are about the SOCI index, if there is one, and take the fine one from
    // its documents.
    let image = if image.fine.is_some() && image.index.is_some() {
        let again = display.during(&name, located.open(&args.read, true));
        // The signal that ended the container is not one for this.
        if interrupted.is_terminated() { again.await? } else { until(interrupted, again).await? }
    } else {
        image
    };
    let documents = FineDocuments::of(&image).await;
    let budget = located.source.budget().clone();
    let facts = spawn_blocking(move || {
        let reads = (!reads.is_empty()).then_some(&reads[..]);
        (Report::of(&image, &documents, reads, &budget), image)
    })
    .await;
    let (facts, image) = facts.map_err(CliError::start)?;
    let why_missing = why_not.is_some();
    let startup = match (&ran, &profile) {
        (Some(ran), _) => Startup::Ran(ran.facts.clone()),
        (None, Some(_)) => Startup::Recorded,
        (None, None) => Startup::Estimated { why: why_not },
    };
    let facts = facts?;
    let status = ran.as_ref().map_or(DONE, |ran| ran.facts.exit_code());
    let answer = TrialAnswer {
        image: &args.image,
        report: &facts,
        startup,
        link,
        cache: if args.read.cache.cache.no_cache { 0 } else { args.read.cache.cache_size.0 },
        other_link: args.link,
        record: args.record.as_deref(),
        touches: ran.as_ref().map(|ran| &ran.touches[..]).unwrap_or_default(),
    };
    let mut stdout = Stdout::new();
    if let Some(page) = page {
        page.write(html::page(&answer).as_bytes()).map_err(|error| page.failed(error))?;
        let path = page.complete()?;
        if !verbosity.quiet {
            complain(&format!("wrote {}", safe(&path.display().to_string())));
        }
    }
    if args.is_page_on_stdout() {
        stdout.print(html::page(&answer))?;
    } else if args.format.is_json() {
        stdout.print(json::text(&answer)?)?;
    } else {
        stdout.tell(&text::screen(&answer, stdout.style))?;
    }
    if args.read.stats {
        tell_stats(&image);
    }
    match status {
        DONE if why_missing && answer.advice() == Advice::Unknown => Err(CliError::exit(FAILED)),
        DONE => Ok(()),
        code => Err(CliError::exit(code)),
    }
}

fn is_linux(image: &RootFs) -> bool {
    image.platform.as_ref().is_none_or(Platform::is_linux)
}

fn read(touch: &Touch) -> RecordedRead {
    RecordedRead { path: touch.path.0.clone(), offset: touch.offset, size: touch.size }
}

fn check(args: &TryArgs) -> Result<(), CliError> {
    let runtime = args.runtime.as_ref().and_then(|runtime| runtime.file_name()?.to_str());
    if let Some("docker" | "podman" | "nerdctl" | "containerd" | "ctr" | "crictl") = runtime {
        return Err(CliError::usage("--runtime is an OCI runtime, such as runc or crun"));
    }
    // As in -o json of other commands, and of other tools.
    let ending = args.output.as_ref().and_then(|file| match file.to_str() {
        Some("json") => Some(OsStr::new("json")),
        _ => file.extension(),
    });
    match ending.and_then(|ending| ending.to_str()) {
        Some("pdf") => Err(CliError::usage(
            "the report is an HTML page: name it .html, and print it to PDF in a browser",
        )),
        Some("json") => Err(CliError::usage("--output writes an HTML page. For JSON, use --json")),
        Some("jsonl") => Err(CliError::usage(
            "--output writes an HTML page. To record the startup, use --record FILE",
        )),
        _ if args.is_page_on_stdout() && args.format.is_json() => {
            Err(CliError::usage("standard output takes the page or the JSON, not both"))
        }
        _ => Ok(()),
    }
}

fn profile(args: &TryArgs) -> Result<Option<Vec<RecordedRead>>, CliError> {
    let Some(path) = &args.profile else { return Ok(None) };
    let text = read_input(path, MAX_LIST)?;
    let reads = record::parse(&text).map_err(|error| {
        CliError::at(path, "not a recorded startup")(error).with_hint(
            "ociseek try IMAGE --record FILE records one, and so does ociseek mount --record",
        )
    })?;
    Ok(Some(reads))
}

/// The files of the program that the container starts.
///
/// # Errors
/// If the image does not have it, or it is not executable.
async fn program_files(args: &TryArgs, image: &RootFs) -> Result<Vec<RecordedRead>, ProgramError> {
    let (entrypoint, command) = (args.entrypoint(), args.command());
    startup_files(image, entrypoint.as_deref(), command.as_deref()).await
}

/// Runs the container, or says why it could not be run.
#[cfg(mounts)]
async fn started(
    args: &TryArgs,
    image: RootFs,
    name: &str,
    verbosity: VerbosityArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(RootFs, Result<Ran, String>), CliError> {
    match run::missing(args.runtime()) {
        // The one that was asked for is another matter than the one that most machines have.
        Some(run::Missing::Runtime(runtime)) if args.runtime.is_some() => {
            Err(OciRuntimeError::Missing(runtime).into())
        }
        Some(why) => Ok((image, Err(why.to_string()))),
        None => run::container(args, image, name, verbosity, interrupted).await,
    }
}

#[cfg(not(mounts))]
async fn started(
    _: &TryArgs,
    image: RootFs,
    _: &str,
    _: VerbosityArgs,
    _: &mut oneshot::Receiver<Interrupt>,
) -> Result<(RootFs, Result<Ran, String>), CliError> {
    Ok((image, Err("this build of ociseek cannot mount images".to_owned())))
}
