//! Runs jobs and tells what became of them: the half that a service's own queue and JetStream's have in common.

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
use super::job::{Done, Job, Unit};
use super::log::{self, TARGET, now};
use super::metrics::{Counter, Metrics};
use super::work::{Context, run};
use crate::lock::Hold;
use crate::ops::discover::causes;
use crate::ops::versions::Versions;
use crate::store::registry::{Client, ClientConfig, RegistryError};

/// How often a job is tried.
pub const TRIES: u32 = 3;
/// A client learns tokens and credentials for each repository; a new one, now and then, has
/// forgotten those of long ago.
const JOBS_OF_A_CLIENT: u32 = 500;

/// What became of one try.
pub enum JobOutcome {
    /// There is nothing left to do.
    Done(Done),
    /// Another try may help, after this long.
    Again(Duration),
    /// No other try is worth it, for this reason.
    Dead(String),
}

/// Does jobs with what they have in common, and counts and logs what became of them.
pub struct Runner {
    /// What was counted so far.
    pub metrics: Metrics,
    allow: AllowList,
    context: Context,
    config: ClientConfig,
    uses: Mutex<(Client, u32)>,
    dead_letters: Option<Mutex<File>>,
    retry_wait: Duration,
}

impl Runner {
    /// What is not on the `allow` list is not gone to, whatever `config` says. `context.client` is replaced. A job that
    /// failed is tried again after `retry_wait`, and six times as long after its second try.
    ///
    /// # Errors
    /// When no client can be made of `config`.
    pub fn new(
        mut config: ClientConfig,
        context: impl FnOnce(Client) -> Context,
        allow: AllowList,
        dead_letters: Option<File>,
        retry_wait: Duration,
    ) -> Result<Runner, RegistryError> {
        config.reach = allow.reach();
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
        })
    }

    /// Whether the image of a job is allowed to be indexed.
    pub fn admits(&self, job: &Job) -> bool {
        self.allow.admits(&job.image)
    }

    /// Which versions of an index are made of each image.
    pub fn versions(&self) -> &Versions {
        &self.context.versions
    }

    /// What counts as one job.
    pub fn unit(&self) -> Unit {
        Unit::of(self.versions())
    }

    fn context(&self) -> Context {
        let mut uses = self.uses.hold();
        uses.1 += 1;
        if uses.1 > JOBS_OF_A_CLIENT {
            // Where certificates cannot be read again, those that were are good enough.
            match Client::new(self.config.clone()) {
                Ok(client) => *uses = (client, 1),
                Err(error) => warn!(name: "client", target: TARGET, error = causes(&error)),
            }
        }
        Context { client: uses.0.clone(), ..self.context.clone() }
    }

    /// One try, the `tries`th. What comes of it is logged and counted, unless the job is dead: that
    /// is for [`Runner::give_up`]. A bug that an image brings to light ends its job, not the service.
    pub async fn run(&self, job: &Job, tries: u32) -> JobOutcome {
        let outcome = AssertUnwindSafe(self.work(job, tries)).catch_unwind().await;
        outcome.unwrap_or_else(|_| JobOutcome::Dead("ociseek panicked".to_owned()))
    }

    async fn work(&self, job: &Job, tries: u32) -> JobOutcome {
        if !self.admits(job) {
            // It was accepted by other rules than ours.
            return JobOutcome::Dead("not allowed by --allow".to_owned());
        }
        let (begun, image) = (Instant::now(), job.image.to_string());
        debug!(name: "begun", target: TARGET, image, tries);
        let span = info_span!(target: TARGET, "job", image);
        let result = run(job, &self.context()).instrument(span).await;
        let took = begun.elapsed();
        self.metrics.job(took);
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
            Err(error) if error.is_transient() && tries < TRIES => {
                // By default a registry that restarts is back by the third try.
                let wait = self.retry_wait.saturating_mul(if tries > 1 { 6 } else { 1 });
                self.metrics.count(Counter::Jobs, "retried");
                let again_in = wait.as_secs_f64();
                warn!(name: "retry", target: TARGET, image, tries, again_in, error = causes(&error));
                JobOutcome::Again(wait)
            }
            Err(error) => JobOutcome::Dead(causes(&error)),
        }
    }

    /// Writes down that a job will not be done.
    pub fn give_up(&self, job: &Job, tries: u32, reason: &str) {
        self.metrics.count(Counter::Jobs, "dead");
        let image = job.image.to_string();
        error!(name: "dead-letter", target: TARGET, image, tries, error = reason);
        if let Some(file) = &self.dead_letters {
            let line = json!({"time": now(), "image": image, "job": job, "tries": tries, "error": reason});
            let mut file = file.hold();
            if let Err(error) = writeln!(file, "{line}") {
                error!(name: "dead-letter-file", target: TARGET, error = error.to_string());
            }
        }
    }
}

/// Opens the file of dead letters, to which lines are added.
///
/// # Errors
/// When it cannot be written.
pub fn dead_letters(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}
