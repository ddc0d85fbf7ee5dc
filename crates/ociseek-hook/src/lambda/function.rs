//! Handles the events of a function: which images it may access, how long it may take, and what it
//! returns.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::timeout_at;
use tracing::{Instrument, error, info, info_span};

use super::{Failure, Input, Invocation};
use crate::aws::{Ecr, EcrError, Token};
use crate::enabled::EnableOutcome;
use crate::job::{Job, JobError, JobResult, Products};
use crate::log::{self, TARGET};
use crate::work::{self, JobContext};
use ociseek_format::event::{EventError, Headers, IgnoreReason, PushEvent, Shape, parse};
use ociseek_format::image::Reference;
use ociseek_format::image::ecr::EcrRegistry;
use ociseek_format::progress::{Progress, causes};
use ociseek_ops::index::IndexOptions;
use ociseek_ops::versions::Versions;
use ociseek_store::cache::ZtocCache;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource, RegistryError};

/// The time reserved for attaching finished layers and for the response.
const MARGIN: Duration = Duration::from_secs(30);

/// The settings of a function.
#[derive(Debug)]
pub struct Settings {
    /// The options for indexing.
    pub options: IndexOptions,
    /// The versions of the index that are made.
    pub versions: Versions,
    /// Images whose indexes may have ztocs of layers of any image.
    pub reuse_from: Vec<Reference>,
    /// Accounts whose registries are indexed, in addition to the function's own.
    pub accounts: Vec<String>,
    /// In tests: a `HOST[:PORT]` that replaces every ECR registry.
    pub registry: Option<String>,
    /// The memory limit for the work on an image, in bytes.
    pub max_memory: u64,
    /// Keeps finished layers for the next call, as long as Lambda keeps the function's environment.
    pub cache: Option<ZtocCache>,
}

/// A function that indexes images in Amazon ECR.
pub struct Function {
    settings: Settings,
    ecr: Ecr,
    progress: Arc<dyn Progress>,
    /// Clients by registry, with their tokens.
    clients: Mutex<BTreeMap<EcrRegistry, (Token, Client)>>,
}

ociseek_format::opaque_debug!(Function);

/// Why an image was not indexed.
#[derive(Debug, thiserror::Error)]
enum ImageError {
    #[error("the event cannot be read")]
    Event(#[from] EventError),
    #[error(transparent)]
    Ignored(IgnoreReason),
    #[error("{0} is not an Amazon ECR registry")]
    NotEcr(String),
    #[error("{0} belongs to another account (allow it with OCISEEK_ECR_ACCOUNTS)")]
    Account(String),
    #[error("timed out before the job started")]
    NotBegun,
    #[error("timed out before the index was attached")]
    NotAttached,
    #[error(transparent)]
    Token(#[from] EcrError),
    #[error("cannot create an HTTP client")]
    Client(#[from] RegistryError),
    #[error(transparent)]
    Job(Box<JobError>),
}

impl From<JobError> for ImageError {
    fn from(error: JobError) -> ImageError {
        ImageError::Job(Box::new(error))
    }
}

/// The time limits of an invocation.
#[derive(Debug, Clone, Copy)]
struct Time {
    /// After this, nothing is started or read.
    stop: Instant,
    /// After this, nothing is waited for.
    end: Instant,
}

impl Time {
    /// Reading ends 30 seconds before the deadline, or after two thirds of a shorter time.
    fn of(now: Instant, deadline: Instant) -> Time {
        let margin = MARGIN.min(deadline.saturating_duration_since(now) / 3);
        Time { stop: deadline - margin, end: deadline - margin / 6 }
    }
}

/// The results for all images of an event.
#[derive(Default)]
struct CallOutcome {
    /// A JSON object for each image or other part of the event.
    images: Vec<Value>,
    failed: Vec<String>,
    /// The number of unfinished layers in all images.
    left: usize,
    /// The reason why repeating the call would not help.
    stuck: Option<StuckReason>,
}

/// The log entry for an image, or for another part of an event.
struct Entry {
    image: Option<String>,
    took: Option<Duration>,
    result: EntryResult,
}

enum EntryResult {
    Ignored(String),
    /// `may_pass` tells whether a retry may help. None for an event that cannot be parsed.
    Failed {
        error: String,
        may_pass: Option<bool>,
    },
    Done(Box<JobResult>),
}

impl Entry {
    fn ignored(ignored: &IgnoreReason) -> Entry {
        Entry { image: None, took: None, result: EntryResult::Ignored(ignored.to_string()) }
    }

    fn failed(error: &ImageError) -> Entry {
        let may_pass = match error {
            ImageError::Event(_) => None,
            ImageError::Job(error) => Some(error.is_transient()),
            ImageError::Token(error) => Some(error.is_transient()),
            ImageError::NotBegun | ImageError::NotAttached => Some(true),
            ImageError::Ignored(_)
            | ImageError::NotEcr(_)
            | ImageError::Account(_)
            | ImageError::Client(_) => Some(false),
        };
        Entry {
            image: None,
            took: None,
            result: EntryResult::Failed { error: log_text(error), may_pass },
        }
    }

    fn to_json(&self) -> Value {
        let mut fields = match &self.result {
            EntryResult::Ignored(reason) => json!({"status": "ignored", "reason": reason}),
            EntryResult::Failed { error, may_pass: None } => {
                json!({"status": "failed", "error": error})
            }
            EntryResult::Failed { error, may_pass } => {
                json!({"status": "failed", "error": error, "may_pass": may_pass})
            }
            EntryResult::Done(done) => done_image(done),
        };
        if let Some(image) = &self.image {
            fields["image"] = json!(image);
        }
        if let Some(took) = self.took {
            fields["seconds"] = json!(log::seconds(took));
        }
        fields
    }
}

impl CallOutcome {
    fn add(&mut self, entry: &Entry) {
        let image = entry.image.as_deref();
        let took = entry.took;
        match &entry.result {
            EntryResult::Failed { error, may_pass } => {
                let name = entry.image.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
                self.failed.push(format!("{name}{error}"));
                let seconds = took.map(log::seconds);
                error!(name: "job", target: TARGET, image, result = "failed", error, may_pass, seconds);
            }
            EntryResult::Done(done) => {
                if let Some(products) = done.products() {
                    self.left += left(products);
                    self.stuck = self.stuck.or(StuckReason::of(products));
                }
                log::job(image, done, took);
            }
            EntryResult::Ignored(reason) => {
                info!(name: "job", target: TARGET, result = "ignored", message = reason)
            }
        }
        self.images.push(entry.to_json());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StuckReason {
    /// No layer of an image was finished in time.
    Layer,
    /// An unfinished SOCI-enabled image keeps nothing for the next call.
    Enabled,
}

impl StuckReason {
    fn of(products: &Products) -> Option<StuckReason> {
        match (&products.index, &products.enabled) {
            (Some(index), _) => index.is_stuck().then_some(StuckReason::Layer),
            (None, Some(enabled)) => matches!(enabled.result, EnableOutcome::OutOfTime { .. })
                .then_some(StuckReason::Enabled),
            (None, None) => None,
        }
    }
}

impl Function {
    /// A function that logs in to registries with `ecr`, and reports progress to `progress`.
    pub fn new(settings: Settings, ecr: Ecr, progress: Arc<dyn Progress>) -> Function {
        Function { settings, ecr, progress, clients: Mutex::default() }
    }

    /// Handles an event completely.
    ///
    /// # Errors
    /// The failure to report to Lambda instead of a response. Lambda then repeats asynchronous
    /// calls.
    pub async fn handle(&self, invocation: &Invocation) -> Result<Value, Failure> {
        let time = Time::of(Instant::now(), invocation.deadline);
        let account = invocation.account.as_deref();
        match Input::of(&invocation.body) {
            Input::Batch(messages) => {
                let mut failures = Vec::new();
                for message in messages {
                    let (_, outcome) = self.event(message.body.as_bytes(), account, time).await;
                    if !outcome.failed.is_empty() || outcome.left > 0 {
                        failures.push(json!({"itemIdentifier": message.message_id}));
                    }
                }
                Ok(json!({"batchItemFailures": failures}))
            }
            Input::Event => {
                let (shape, outcome) = self.event(&invocation.body, account, time).await;
                let failure =
                    |error_type, error_message| Err(Failure { error_type, error_message });
                if !outcome.failed.is_empty() {
                    return failure("ImageFailed", outcome.failed.join("; "));
                }
                // A caller that passes an image reads the response. Nobody reads a response to
                // EventBridge's event.
                if outcome.left > 0 && shape != Some(Shape::Direct) {
                    return failure("TimeWasUp", time_was_up(outcome.left, outcome.stuck));
                }
                Ok(json!({"images": outcome.images}))
            }
        }
    }

    async fn event(
        &self,
        body: &[u8],
        account: Option<&str>,
        time: Time,
    ) -> (Option<Shape>, CallOutcome) {
        let mut outcome = CallOutcome::default();
        let events = match parse(&Headers::default(), body) {
            Ok(events) => events,
            Err(error) => {
                outcome.add(&Entry::failed(&ImageError::Event(error)));
                return (None, outcome);
            }
        };
        for ignored in &events.ignored {
            outcome.add(&Entry::ignored(ignored));
        }
        for push in &events.pushes {
            // Events of other registries have no meaning for ECR, whatever host they name.
            if !matches!(events.shape, Shape::Ecr | Shape::Direct) {
                let reason = IgnoreReason::NotAPush(format!("{} event", events.shape));
                outcome.add(&Entry::ignored(&reason));
                continue;
            }
            let begun = Instant::now();
            let name = push
                .image(None)
                .map_or_else(|_| push.repository.clone(), |image| image.to_string());
            let span = info_span!(target: TARGET, "job", image = name);
            let entry = match self.image(push, account, time).instrument(span).await {
                Ok(done) => {
                    Entry { image: None, took: None, result: EntryResult::Done(Box::new(done)) }
                }
                Err(error) => Entry::failed(&error),
            };
            outcome.add(&Entry { image: Some(name), took: Some(begun.elapsed()), ..entry });
        }
        (Some(events.shape), outcome)
    }

    async fn image(
        &self,
        push: &PushEvent,
        account: Option<&str>,
        time: Time,
    ) -> Result<JobResult, ImageError> {
        if Instant::now() >= time.stop {
            return Err(ImageError::NotBegun);
        }
        let named = push.registry.clone().unwrap_or_default();
        let registry = self.registry(&named, account)?;
        let host = self.settings.registry.clone().unwrap_or_else(|| registry.host());
        let image = push.image(Some(&host)).map_err(ImageError::Ignored)?;
        let work = async {
            let client = self.client(&registry, &host).await?;
            let context = JobContext {
                client,
                cache: self.settings.cache.clone(),
                options: IndexOptions {
                    deadline: Some(time.stop),
                    ..self.settings.options.clone()
                },
                versions: self.settings.versions.clone(),
                max_image_size: None,
                reuse_from: self.settings.reuse_from.clone(),
                progress: Arc::clone(&self.progress),
            };
            let job = Job { image };
            Ok(work::run(&job, &context).await?)
        };
        let result =
            timeout_at(time.end.into(), work).await.unwrap_or(Err(ImageError::NotAttached));
        if let Err(ImageError::Job(error)) = &result
            && error.is_unauthorized()
        {
            // The login may have become invalid.
            self.clients.lock().await.remove(&registry);
            self.ecr.forget(&registry).await;
        }
        result
    }

    /// The registry with this host, if this function should index images there.
    fn registry(&self, host: &str, own: Option<&str>) -> Result<EcrRegistry, ImageError> {
        let not_ecr = || ImageError::NotEcr(host.to_owned());
        if self.settings.registry.as_deref() == Some(host) {
            // The replacement for all registries may also be used under its own name. It belongs to
            // no account.
            return EcrRegistry::private(own.unwrap_or("000000000000"), "us-east-1")
                .ok_or_else(not_ecr);
        }
        let registry = EcrRegistry::of_host(host).ok_or_else(not_ecr)?;
        match &registry {
            EcrRegistry::Private { account, .. }
                if own != Some(account.as_str()) && !self.settings.accounts.contains(account) =>
            {
                Err(ImageError::Account(host.to_owned()))
            }
            _ => Ok(registry),
        }
    }

    /// A client that sends the registry's token only to `host`.
    async fn client(&self, registry: &EcrRegistry, host: &str) -> Result<Client, ImageError> {
        let token = self.ecr.token(registry).await?;
        let mut clients = self.clients.lock().await;
        if let Some((shown, client)) = clients.get(registry)
            && *shown == token
        {
            return Ok(client.clone());
        }
        let Token { user, password, .. } = token.clone();
        let credentials = CredentialSource::Only { registry: host.to_owned(), user, password };
        let progress = Arc::clone(&self.progress);
        let max_memory = self.settings.max_memory;
        let config = ClientConfig { credentials, progress, max_memory, ..ClientConfig::default() };
        let client = Client::new(config)?;
        clients.insert(registry.clone(), (token, client.clone()));
        Ok(client)
    }
}

/// The number of layers that were not finished in time.
fn left(products: &Products) -> usize {
    let index = products.index.as_ref().map_or(0, |index| index.left.len());
    let enabled = match products.enabled.as_ref().map(|enabled| &enabled.result) {
        Some(EnableOutcome::OutOfTime { left }) => *left,
        _ => 0,
    };
    index.max(enabled)
}

fn time_was_up(left: usize, stuck: Option<StuckReason>) -> String {
    let next = match stuck {
        None => "the next call continues",
        Some(StuckReason::Layer) => {
            "none was finished: give the function a longer timeout, or more memory, which also means more CPU"
        }
        Some(StuckReason::Enabled) => {
            "a SOCI-enabled image needs all layers, in one call or in several of the same environment: give the \
             function a longer timeout or more memory (which also means more CPU)"
        }
    };
    format!("timed out with {left} layers left; {next}")
}

fn done_image(done: &JobResult) -> Value {
    let mut said = json!({"status": done.code()});
    if let JobResult::Skipped(skipped) = done {
        said["reason"] = json!(skipped.to_string());
    }
    let Some(products) = done.products() else { return said };
    said["digest"] = json!(products.digest);
    let index = products.index.as_ref();
    if let Some(image) = index {
        let indexes = image.manifests.iter().filter_map(|manifest| manifest.result.index());
        said["indexes"] = json!(indexes.collect::<Vec<_>>());
        let fine =
            image.manifests.iter().filter_map(|manifest| manifest.fine.as_ref()?.result.index());
        let fine: Vec<_> = fine.collect();
        if !fine.is_empty() {
            said["fine"] = json!(fine);
        }
        let not_deleted = log::not_deleted(products);
        if !not_deleted.is_empty() {
            said["not_deleted"] = json!(not_deleted);
        }
    }
    if let Some(enabled) = &products.enabled {
        said["enabled"] = enabled.to_json();
    }
    let left =
        index.map_or_else(Vec::new, |image| image.left.iter().map(|layer| layer.digest).collect());
    said["left"] = json!(left);
    said["bytes_read"] = json!(products.bytes_read);
    said["bytes_written"] = json!(products.bytes_written);
    said
}

/// An error and its causes, for the log.
fn log_text(error: &dyn Error) -> String {
    causes(error).chars().filter(|c| !c.is_control()).take(2000).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_progress_does_not_announce_a_continuation() {
        assert!(time_was_up(2, None).ends_with("2 layers left; the next call continues"));
        for stuck in [StuckReason::Layer, StuckReason::Enabled] {
            let said = time_was_up(1, Some(stuck));
            assert!(said.contains("longer timeout") && !said.contains("continues"), "{said}");
            assert_eq!(said.contains("SOCI-enabled image"), stuck == StuckReason::Enabled);
        }
    }

    #[test]
    fn time_is_reserved_for_the_end() {
        let now = Instant::now();
        for (limit, stop, end) in
            [(900_000, 870_000, 895_000), (90_000, 60_000, 85_000), (6000, 4000, 5667), (0, 0, 0)]
        {
            let time = Time::of(now, now + Duration::from_millis(limit));
            assert_eq!(time.stop - now, Duration::from_millis(stop));
            assert_eq!((time.end - now).as_secs_f64().mul_add(1000.0, 0.5) as u64, end);
        }
    }
}
