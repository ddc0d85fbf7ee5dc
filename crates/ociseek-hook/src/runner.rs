//! Runs jobs and reports their results: the part that a service's own queue and JetStream share.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use serde_json::json;
use tracing::{Instrument, debug, error, info_span, warn};

use super::allow::AllowList;
use super::job::{Job, JobError, JobResult, Unit};
use super::log::{self, TARGET, now};
use super::metrics::{Counter, JOBS, Metrics};
use super::work::{JobContext, run};
use ociseek_format::progress::causes;
use ociseek_ops::versions::Versions;
use ociseek_store::durable::{sync, sync_name};
use ociseek_store::lock::Hold;
use ociseek_store::registry::{Client, ClientConfig, RegistryError};

/// How many times a service tries a job.
pub const TRIES: u32 = 3;
/// A client remembers tokens and credentials for each repository. It is replaced after this many
/// jobs, to forget old ones.
const JOBS_OF_A_CLIENT: u32 = 500;

/// The result of a try.
#[derive(Debug)]
pub enum JobOutcome {
    /// There is nothing left to do.
    Done(JobResult),
    /// A retry may help, after this time.
    Again(Duration),
    /// Retries are useless, for this reason.
    Dead(DeadReason),
}

/// Why a job will not be completed.
#[derive(Debug)]
pub struct DeadReason {
    /// The error with its causes.
    pub error: String,
    /// What the operator can do about it.
    pub hint: Option<String>,
}

impl From<&str> for DeadReason {
    fn from(error: &str) -> DeadReason {
        DeadReason { error: error.to_owned(), hint: None }
    }
}

/// What an operator can do about an error. The program gives it, which knows its own options.
pub type JobHint = fn(&JobError) -> Option<String>;

/// Runs jobs, and counts and logs the results.
pub struct Runner {
    /// The counters so far.
    pub metrics: Metrics,
    allow: AllowList,
    context: JobContext,
    config: ClientConfig,
    uses: Mutex<(Client, u32)>,
    dead_letters: Option<Mutex<File>>,
    retry_wait: Duration,
    hint: JobHint,
}

ociseek_format::opaque_debug!(Runner);

impl Runner {
    /// Hosts that are not on the `allow` list are never contacted, whatever `config` says.
    /// `context.client` is replaced. A failed job is retried after `retry_wait`, and after later
    /// tries when six times as long has passed.
    ///
    /// # Errors
    /// If no client can be created from `config`.
    pub fn new(
        mut config: ClientConfig,
        context: impl FnOnce(Client) -> JobContext,
        allow: AllowList,
        dead_letters: Option<File>,
        retry_wait: Duration,
        hint: JobHint,
    ) -> Result<Runner, RegistryError> {
        config.allowed_addresses = allow.addresses();
        let client = Client::new(config.clone())?;
        let context = context(client.clone());
        Ok(Runner {
            metrics: Metrics::default(),
            allow,
            context,
            config,
            uses: Mutex::new((client, 0)),
            dead_letters: dead_letters.map(Mutex::new),
            retry_wait,
            hint,
        })
    }

    /// Whether the image of a job may be indexed.
    pub fn admits(&self, job: &Job) -> bool {
        self.allow.admits(&job.image)
    }

    /// The versions of the index that are made for each image.
    pub fn versions(&self) -> &Versions {
        &self.context.versions
    }

    /// What counts as one job.
    pub fn unit(&self) -> Unit {
        Unit::of(self.versions())
    }

    fn context(&self) -> JobContext {
        let mut uses = self.uses.hold();
        uses.1 += 1;
        if uses.1 > JOBS_OF_A_CLIENT {
            // If certificates cannot be read again, the earlier ones are used.
            match Client::new(self.config.clone()) {
                Ok(client) => *uses = (client, 1),
                Err(error) => warn!(name: "client", target: TARGET, error = causes(&error)),
            }
        }
        JobContext { client: uses.0.clone(), ..self.context.clone() }
    }

    /// Makes try number `tries` of a job, of at most `most`. Logs and counts the result, except for
    /// dead jobs, which [`Runner::give_up`] handles. A panic that an image causes ends its job, but
    /// not the service.
    pub async fn run(&self, job: &Job, tries: u32, most: u32) -> JobOutcome {
        let outcome = AssertUnwindSafe(self.work(job, tries, most)).catch_unwind().await;
        outcome.unwrap_or_else(|_| JobOutcome::Dead("ociseek panicked".into()))
    }

    async fn work(&self, job: &Job, tries: u32, most: u32) -> JobOutcome {
        if !self.admits(job) {
            // It was accepted under other rules than the current ones.
            return JobOutcome::Dead("not allowed by --allow".into());
        }
        let begun = Instant::now();
        let image = job.image.to_string();
        debug!(name: "begun", target: TARGET, image, tries);
        let span = info_span!(target: TARGET, "job", image);
        let result = run(job, &self.context()).instrument(span).await;
        let took = begun.elapsed();
        self.metrics.took(&JOBS, took);
        match result {
            Ok(done) => {
                self.metrics.count(Counter::Jobs, done.code());
                if let Some(products) = done.products() {
                    self.metrics.add(Counter::LayerBytes, "", products.bytes_read);
                    if let Some(enabled) = &products.enabled {
                        self.metrics.count(Counter::Enabled, enabled.status());
                    }
                }
                log::job(Some(&image), &done, Some(took));
                JobOutcome::Done(done)
            }
            Err(error) if error.is_transient() && tries < most => {
                // With the default wait, a registry that restarts is available by the third try.
                let wait = self.retry_wait.saturating_mul(if tries > 1 { 6 } else { 1 });
                self.metrics.count(Counter::Jobs, "retried");
                let again_in = wait.as_secs_f64();
                let hint = (self.hint)(&error);
                warn!(name: "retry", target: TARGET, image, tries, again_in, error = causes(&error), hint);
                JobOutcome::Again(wait)
            }
            Err(error) => {
                JobOutcome::Dead(DeadReason { error: causes(&error), hint: (self.hint)(&error) })
            }
        }
    }

    /// Records that a job will not be completed.
    pub fn give_up(&self, job: &Job, tries: u32, reason: &DeadReason) {
        self.metrics.count(Counter::Jobs, "dead");
        let image = job.image.to_string();
        if let Some(file) = &self.dead_letters {
            let mut line = json!({"time": now(), "image": image, "job": job, "tries": tries, "error": reason.error});
            if let Some(hint) = &reason.hint {
                line["hint"] = hint.as_str().into();
            }
            // One write, since several processes may append to the file.
            let file = &mut *file.hold();
            if let Err(error) =
                file.write_all(format!("{line}\n").as_bytes()).and_then(|()| sync(file))
            {
                error!(name: "dead-letter-file", target: TARGET, error = error.to_string());
            }
        }
        // Last: a reader of the log finds the job in the file.
        error!(name: "dead-letter", target: TARGET, image, tries, error = reason.error, hint = reason.hint);
    }
}

/// Opens the file of dead letters for appending.
///
/// # Errors
/// If it cannot be written.
pub fn dead_letters(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    sync_name(path)?;
    Ok(file)
}
