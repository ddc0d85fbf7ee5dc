//! `ociseek backfill`.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use super::args::{BackfillArgs, Format, ProgressStyle};
use super::index::unattended;
use super::progress::Display;
use super::report::{CliError, in_one_line};
use super::size::{counted, duration, human};
use super::source::{Registries, client_config};
use super::terminal::{Stdout, safe};
use super::{caches, json as document};
use crate::hook::backfill::{Options, Outcome, Place, Report, State, run as walk};
use crate::hook::job::{Context, Done};
#[cfg(feature = "nats")]
use crate::hook::queue::Queue;
use crate::ops::index::IndexedImage;
use crate::progress::Progress;
use crate::store::StoreError;
use crate::store::registry::Client;

/// Walks the places; each image gets its line when it is done.
pub async fn run(args: BackfillArgs) -> Result<(), CliError> {
    let started = Instant::now();
    // Warnings only: the lines on standard output are the progress.
    let display = Arc::new(Display::new(ProgressStyle::None, false));
    let progress: Arc<dyn Progress> = display.clone();
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    let jobs = args.jobs.map_or(cpus, usize::from);
    let places = args.places.iter().map(Place::registry);
    let registries = Registries::of(places.chain(args.reuse.reuse_from.iter().map(|image| image.registry.as_str())));
    let client = Client::new(client_config(args.registry, registries, &progress).await?).map_err(StoreError::from)?;
    // What is not used for other images is for the layers of one.
    let index = unattended(args.platform, &args.build, args.min_layer_size, (cpus / jobs).max(1), &args.reuse);
    let state = args.state.as_deref().map(|path| State::open(path, &index)).transpose()?;
    let cache = caches::ztocs(&args.cache, &progress).await;
    let options = Options {
        context: Context {
            client,
            cache,
            options: index,
            max_image_size: None,
            reuse_from: args.reuse.reuse_from,
            progress,
        },
        filters: args.filter,
        since: args.since,
        jobs,
        dry_run: args.dry_run,
        #[cfg(feature = "nats")]
        queue: match &args.queue {
            Some(url) => Some(Queue::connect(url).await?),
            None => None,
        },
    };
    let summary = Mutex::new(Summary::new(args.format));
    walk(&args.places, &options, state, &|report| {
        summary.lock().unwrap_or_else(PoisonError::into_inner).add(&report);
    })
    .await;
    let summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.end(started.elapsed().as_secs_f64())
}

/// What was printed, and what is left to be printed at the end.
struct Summary {
    format: Format,
    stdout: Stdout,
    /// The first time that standard output took nothing.
    lost: Option<std::io::Error>,
    counts: BTreeMap<&'static str, usize>,
    bytes_read: u64,
}

impl Summary {
    fn new(format: Format) -> Summary {
        Summary { format, stdout: Stdout::new(), lost: None, counts: BTreeMap::new(), bytes_read: 0 }
    }

    fn add(&mut self, report: &Report) {
        let code = report.result.as_ref().map_or("failed", Outcome::code);
        *self.counts.entry(code).or_default() += 1;
        let image = report.result.as_ref().ok().and_then(indexed);
        self.bytes_read += image.map_or(0, |image| image.bytes_read);
        let line = match self.format {
            Format::Text => text(code, report, image),
            Format::Json => object(code, report, image).to_string(),
        };
        self.print(&line);
    }

    fn print(&mut self, line: &str) {
        if self.lost.is_none() {
            self.lost = self.stdout.write_whole(format!("{line}\n").as_bytes()).err();
        }
    }

    fn end(mut self, seconds: f64) -> Result<(), CliError> {
        let all: usize = self.counts.values().sum();
        let failed = self.counts.get("failed").copied().unwrap_or_default();
        if self.format == Format::Text {
            let counts: Vec<String> = self.counts.iter().map(|(code, count)| format!("{count} {code}")).collect();
            let images = counted(all as u64, "image", "images");
            let read = human(self.bytes_read);
            let line = match counts.is_empty() {
                true => format!("{images}, in {}", duration(seconds)),
                false => format!("{images}: {}; read {read}, in {}", counts.join(", "), duration(seconds)),
            };
            self.print(&line);
        }
        match (self.lost, failed) {
            (Some(error), _) => Err(CliError::Stdout(error)),
            (None, 0) => Ok(()),
            (None, failed) => Err(CliError::Backfill { failed, all }),
        }
    }
}

fn indexed(outcome: &Outcome) -> Option<&IndexedImage> {
    match outcome {
        Outcome::Done(Done::Indexed(image) | Done::Sparse(image) | Done::AlreadyIndexed(image)) => Some(image),
        _ => None,
    }
}

fn text(code: &str, report: &Report, image: Option<&IndexedImage>) -> String {
    let name = match &report.digest {
        Some(digest) => format!("{}@{digest}", safe(&report.name)),
        None => safe(&report.name),
    };
    let more = match (&report.result, image) {
        (Err(error), _) => format!(": {}", in_one_line(error)),
        (Ok(Outcome::Done(Done::Skipped(skipped))), _) => format!(": {}", safe(&skipped.to_string())),
        (Ok(_), Some(image)) if image.bytes_read > 0 => {
            format!(": read {}, in {}", human(image.bytes_read), duration(report.seconds))
        }
        _ => String::new(),
    };
    format!("{code:<15} {name}{more}")
}

fn object(code: &str, report: &Report, image: Option<&IndexedImage>) -> Value {
    let skipped = match &report.result {
        Ok(Outcome::Done(Done::Skipped(skipped))) => Some(skipped.code()),
        _ => None,
    };
    json!({
        "status": code,
        "image": report.name,
        "digest": report.digest,
        "reason": skipped,
        "error": report.result.as_ref().err().map(|error| in_one_line(error)),
        "left": image.map_or_else(Vec::new, |image| image.left.iter().map(|layer| layer.digest).collect()),
        "bytes_read": image.map_or(0, |image| image.bytes_read),
        "bytes_written": image.map_or(0, |image| image.bytes_written),
        "seconds": document::milliseconds(report.seconds),
    })
}
