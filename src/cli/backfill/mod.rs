//! `ociseek backfill`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clap::Args;

use crate::cli::shared::args::{CacheArgs, ExistingArg, FormatArgs, OutputFormat, RegistryArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::hint::job_hint;
use crate::cli::shared::indexing::{Unattended, UnattendedArgs};
use crate::cli::shared::json::line;
use crate::cli::shared::progress::WarningProgress;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::size::{counted, duration, human};
use crate::cli::shared::source::{Registries, client_config};
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::store_hint::cause_hint;
use crate::cli::shared::terminal::safe;
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::shared::{caches, parse};
use ociseek_format::image::allow::Glob;
use ociseek_format::layer::parallel::cores;
use ociseek_format::progress::Progress;
#[cfg(feature = "nats")]
use ociseek_format::progress::ProgressEvent;
use ociseek_format::time::Time;
use ociseek_hook::backfill::{
    BackfillError, BackfillState, ImageOutcome, ImageReport, Options, WalkRoot, Watch, run as walk,
};
use ociseek_hook::enabled::EnabledImage;
#[cfg(feature = "nats")]
use ociseek_hook::job::Unit;
use ociseek_hook::job::{JobResult, Products};
#[cfg(feature = "nats")]
use ociseek_hook::nats::{ConnectionChange, NatsQueue, QueueUrl};
use ociseek_hook::work::JobContext;
use ociseek_ops::index::IndexOptions;
use ociseek_store::StoreError;
use ociseek_store::lock::Hold;
use ociseek_store::registry::Client;
use output::{Line, Tally};

pub(super) mod output;

const LONG_ABOUT: &str = "\
Walks the repositories and tags of registries and makes what each image lacks: with --kind v2=TAG the SOCI-enabled \
image of each tag, with --kind v1 an attached index, with --kind fine a fine index.

The repositories are listed through the registry's catalog (_catalog); if the registry does not allow that, name the \
repositories instead. Tags of the same image are indexed once, unless each gets a SOCI-enabled image. Non-images (Helm \
charts, signatures, our own indexes) are skipped. An image that already has an index with the same options costs a few \
small requests, so an interrupted run can simply be restarted; with --state it costs one request.";

const AFTER_HELP: &str = "\
Examples:
  Preview:
    ociseek backfill --dry-run --kind 'v2={tag}-soci' registry.corp.example

  One team's images of the last quarter, four at a time, resumable:
    ociseek backfill --kind 'v2={tag}-soci' --filter 'team/**' --since 90d \\
      registry.corp.example --jobs 4 --state backfill.state

  Both versions of the index:
    ociseek backfill --kind 'v1,v2={tag}-soci' registry.corp.example

  One repository, version 1 only:
    ociseek backfill --kind v1 ghcr.io/acme/app

  Distributed to workers (ociseek hook worker --queue ...):
    ociseek backfill --kind 'v2={tag}-soci' --queue nats://queue.corp.example \\
      registry.corp.example

Each line on standard output is an image: its status, name and digest. With --format json each line is an object \
(docs/json.md). A list of repositories or tags that cannot be read also gets a line, with the status failed.

Exit status: 0 success, 1 an image or a list failed, 2 usage error, 129, 130 or 143 \
interrupted.";

/// Index what is already in a registry or repository
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub(crate) struct BackfillArgs {
    /// Registries (HOST[:PORT]) and repositories ([REGISTRY/]REPOSITORY)
    #[arg(value_name = "REGISTRY|REPOSITORY", required = true)]
    pub places: Vec<WalkRoot>,

    /// Only repositories whose name matches this glob: * matches anything but a slash, ** anything;
    /// can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Selection")]
    pub filter: Vec<Glob>,

    /// Only images created since this date, such as 2026-01-31, or within this time, such as 12h or
    /// 30d
    ///
    /// The date comes from the image's config; images without a creation date are included. This
    /// reads one more small blob per image. A duration is counted back from this machine's clock;
    /// the line of an image that is left out shows its creation time and the limit.
    #[arg(long, value_name = "DATE|DURATION", value_parser = parse::since, help_heading = "Selection")]
    #[arg(allow_hyphen_values = true)]
    pub since: Option<i64>,

    #[command(flatten)]
    pub unattended: UnattendedArgs,

    /// What to do with an image that already has a SOCI index
    #[arg(long, value_name = "RULE", env = "OCISEEK_EXISTING", value_enum, default_value_t = ExistingArg::Skip)]
    #[arg(help_heading = "Indexing")]
    pub existing: ExistingArg,

    /// How many images to index in parallel [default: one per CPU]
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", value_parser = parse::number::<u16>(1, 256))]
    #[arg(help_heading = "Execution")]
    pub jobs: Option<u16>,

    /// List the images without an index, and write nothing
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = parse::switch, help_heading = "Execution")]
    pub dry_run: bool,

    /// Record finished images in this file, and skip those it already lists
    #[arg(long, value_name = "FILE", help_heading = "Execution", conflicts_with = "dry_run")]
    pub state: Option<PathBuf>,

    /// Put images without an index into this NATS JetStream work queue, for ociseek hook worker to
    /// index
    ///
    /// Credentials go before the host, as USER:PASSWORD@ or TOKEN@; tls:// is NATS over TLS.
    #[cfg(feature = "nats")]
    #[arg(
        long,
        value_name = "nats://HOST[:PORT][/STREAM]",
        env = "OCISEEK_QUEUE",
        hide_env_values = true
    )]
    #[arg(help_heading = "Execution", conflicts_with_all = ["dry_run", "existing"])]
    pub queue: Option<QueueUrl>,

    #[command(flatten)]
    pub cache: CacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

/// Walks the places and prints a line for each image when it is done.
pub(super) async fn run(args: BackfillArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let started = Instant::now();
    // Progress inside images that are processed at the same time is not shown.
    let progress: Arc<dyn Progress> = Arc::new(WarningProgress);
    let cores = cores();
    let jobs = args.jobs.map_or(cores, usize::from);
    let places = args.places.iter().map(WalkRoot::registry);
    let registries = Registries::of(
        places.chain(args.unattended.reuse.reuse_from.iter().map(|image| image.registry.as_str())),
    );
    let client = Client::new(client_config(args.registry, registries, &progress).await?)
        .map_err(StoreError::from)?;
    let mut unattended = args.unattended;
    if args.dry_run {
        unattended.kinds.or_default();
    }
    // The memory that other images do not use is available for the layers of one.
    let Unattended { index, versions, reuse_from } = unattended.options((cores / jobs).max(1))?;
    let index = IndexOptions { existing: args.existing.into(), ..index };
    let state = args
        .state
        .as_deref()
        .map(|path| BackfillState::open(path, &index, &versions))
        .transpose()?;
    #[cfg(feature = "nats")]
    let unit = Unit::of(&versions);
    let cache = caches::ztocs(&args.cache, &progress).await;
    #[cfg(feature = "nats")]
    let on_change = {
        let progress = Arc::clone(&progress);
        move |change: ConnectionChange| progress.report(ProgressEvent::Warning(change.to_string()))
    };
    let context = JobContext {
        client,
        cache,
        options: index,
        versions,
        max_image_size: None,
        reuse_from,
        progress,
    };
    let has_filter = !args.filter.is_empty();
    let options = Options {
        filters: args.filter,
        since: args.since,
        jobs,
        dry_run: args.dry_run,
        #[cfg(feature = "nats")]
        queue: match &args.queue {
            Some(url) => Some(NatsQueue::connect(url, on_change).await?.with_unit(unit)),
            None => None,
        },
        ..Options::new(context)
    };
    let watcher = Watcher {
        summary: Mutex::new(Summary::new(args.format.get(), has_filter)),
        tally: Tally::new(verbosity),
    };
    walk(&args.places, &options, state, &watcher).await;
    let Watcher { summary, tally } = watcher;
    drop(tally);
    let summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.end(started.elapsed().as_secs_f64())
}

/// Prints the result for each image, and shows the progress of the walk.
struct Watcher {
    summary: Mutex<Summary>,
    tally: Tally,
}

impl Watch for Watcher {
    fn found(&self) {
        self.tally.found();
    }

    fn listed(&self) {
        self.tally.listed();
    }

    fn done(&self, report: ImageReport) {
        let mut summary = self.summary.hold();
        summary.add(&report);
        let bytes = summary.bytes_read;
        drop(summary);
        if !report.result.is_err_and(|error| error.is_list()) {
            self.tally.done(bytes);
        }
    }
}

/// The summary to print at the end.
struct Summary {
    format: OutputFormat,
    stdout: Stdout,
    /// The first error of writing to standard output.
    lost: Option<CliError>,
    /// The number of images by result.
    counts: BTreeMap<&'static str, usize>,
    /// The number of lists that failed.
    lists: usize,
    /// Whether --filter chooses repositories.
    has_filter: bool,
    /// The hint for the first failure that has one.
    hint: Option<String>,
    bytes_read: u64,
}

impl Summary {
    fn new(format: OutputFormat, has_filter: bool) -> Summary {
        let stdout = Stdout::new();
        Summary {
            format,
            stdout,
            lost: None,
            counts: BTreeMap::new(),
            lists: 0,
            has_filter,
            hint: None,
            bytes_read: 0,
        }
    }

    fn add(&mut self, report: &ImageReport) {
        let code = report.result.as_ref().map_or("failed", ImageOutcome::code);
        match &report.result {
            Err(error) if error.is_list() => self.lists += 1,
            _ => *self.counts.entry(code).or_default() += 1,
        }
        self.hint = self.hint.take().or_else(|| report.result.as_ref().err().and_then(hint));
        let products = report.result.as_ref().ok().and_then(products);
        self.bytes_read += products.map_or(0, |products| products.bytes_read);
        let line = match self.format {
            OutputFormat::Text => text(code, report, products),
            OutputFormat::Json => match line(Line::of(code, report, products)) {
                Ok(line) => line,
                Err(error) => {
                    self.lost = self.lost.take().or(Some(error));
                    return;
                }
            },
        };
        self.print(&line);
    }

    fn print(&mut self, line: &str) {
        if self.lost.is_none() {
            self.lost = self.stdout.print(format!("{line}\n")).err();
        }
    }

    fn end(mut self, seconds: f64) -> Result<(), CliError> {
        let all: usize = self.counts.values().sum();
        let failed = self.counts.get("failed").copied().unwrap_or_default();
        if self.format == OutputFormat::Text {
            let counts: Vec<String> =
                self.counts.iter().map(|(code, count)| format!("{count} {code}")).collect();
            let images = counted(all as u64, "image", "images");
            let read = human(self.bytes_read);
            let line = if counts.is_empty() {
                let is_empty = self.lists == 0 && !self.has_filter;
                let why = if is_empty { ": no repository has a tag" } else { "" };
                format!("{images}, in {}{why}", duration(seconds))
            } else {
                format!("{images}: {}; read {read}, in {}", counts.join(", "), duration(seconds))
            };
            self.print(&line);
        }
        if let Some(error) = self.lost {
            return Err(error);
        }
        // A cron job with a mistyped filter would be green for ever.
        if self.has_filter && all == 0 && self.lists == 0 {
            let hint = "* matches within one part of a name, and ** anything, such as 'team/**'; \
                        without --filter, --dry-run lists all";
            return Err(CliError::new("no repository with images matches --filter")
                .with_hint(hint)
                .in_document());
        }
        let lists = self.lists as u64;
        let lists =
            (lists > 0).then(|| format!("{} cannot be read", counted(lists, "list", "lists")));
        let failed = (failed > 0).then(|| format!("{failed} of {all} images failed"));
        match [lists, failed].into_iter().flatten().collect::<Vec<_>>() {
            none if none.is_empty() => Ok(()),
            all => {
                let error = CliError::new(all.join(", ")).in_document();
                Err(if let Some(hint) = self.hint { error.with_hint(hint) } else { error })
            }
        }
    }
}

fn products(outcome: &ImageOutcome) -> Option<&Products> {
    match outcome {
        ImageOutcome::Done(done) => done.products(),
        _ => None,
    }
}

fn text(code: &str, report: &ImageReport, products: Option<&Products>) -> String {
    let name = match &report.digest {
        Some(digest) => format!("{}@{digest}", safe(&report.name)),
        None => safe(&report.name),
    };
    let mut more: Vec<String> = match &report.result {
        Err(error) => vec![in_one_line(error)],
        Ok(ImageOutcome::Done(JobResult::Skipped(skipped))) => vec![safe(&skipped.to_string())],
        Ok(ImageOutcome::Pending { enabled: Some(enabled) }) => vec![safe(&enabled.to_string())],
        Ok(ImageOutcome::Old { created, since }) => {
            vec![format!("created {}, before {}", time(*created), time(*since))]
        }
        Ok(_) => products
            .and_then(|products| products.enabled.as_ref())
            .map(enabled_text)
            .into_iter()
            .collect(),
    };
    if let Some(products) = products.filter(|products| products.bytes_read > 0) {
        more.push(format!("read {}, in {}", human(products.bytes_read), duration(report.seconds)));
    }
    let more = if more.is_empty() { String::new() } else { format!(": {}", more.join("; ")) };
    format!("{code:<15} {name}{more}")
}

/// A time in seconds since 1970, in RFC 3339.
fn time(seconds: i64) -> String {
    let shown = Time { seconds, nanos: 0 }.to_rfc3339();
    shown.unwrap_or_else(|| format!("{seconds} seconds after 1970"))
}

fn enabled_text(enabled: &EnabledImage) -> String {
    let name = enabled.reference().map(|name| name.to_string());
    match (name, enabled.reason()) {
        (Some(name), Some((_, why))) => safe(&format!("no {name}: {why}")),
        (None, Some((_, why))) => safe(&format!("no SOCI-enabled image: {why}")),
        (name, None) => safe(&format!("{} {}", name.unwrap_or_default(), enabled.status())),
    }
}

fn hint(error: &BackfillError) -> Option<String> {
    let own = match error {
        BackfillError::Repositories(error) if matches!(error.status(), Some(403..=405)) => Some(
            "the registry may not allow listing its repositories: name the repositories to index, HOST/REPOSITORY"
                .into(),
        ),
        BackfillError::Job(error) => job_hint(error),
        _ => None,
    };
    own.or_else(|| cause_hint(error))
}
