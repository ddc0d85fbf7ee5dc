//! Backfills images that were pushed before the service ran: walks registries and indexes images
//! without an index.
//!
//! Memory does not grow with the registry: only the digests in current repositories are kept, at
//! most `AHEAD` names are read in advance, and the client forgets old tokens. An interrupted run
//! can be restarted. Images that have an index then cost a few small requests, or one with a state
//! file ([`BackfillState`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures_util::{StreamExt, stream};
use tokio::sync::mpsc::channel;

use crate::job::{Job, JobError, JobResult, Unit};
#[cfg(feature = "nats")]
use crate::nats::{NatsError, NatsQueue};
use crate::skip::SkipReason;
use crate::work::{self, DocumentKind, EnabledPreview, JobContext};
use ociseek_format::digest::Digest;
use ociseek_format::image::allow::Glob;
use ociseek_format::image::config::{self, MAX_CONFIG};
use ociseek_format::image::{Reference, is_registry};
use ociseek_ops::convert::ConvertPreview;
use ociseek_ops::index::{Preview, preview};
use ociseek_ops::resolve::ResolvedImage;
use ociseek_ops::versions::Versions;
use ociseek_store::known::KnownDocuments;
use ociseek_store::lock::Hold;
use ociseek_store::registry::{RegistryError, Repository};
use ociseek_store::{Destination, Source};

mod state;
mod walk;

pub use state::{BackfillState, StateError};
use walk::{WalkItem, walk};

/// How many images may be listed in advance.
const AHEAD: usize = 10_000;

/// A place to walk: a registry with everything it lists, or a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WalkRoot {
    /// A registry, `HOST[:PORT]`.
    Registry(String),
    /// A repository of a registry.
    Repository {
        /// `HOST[:PORT]`.
        registry: String,
        /// The name in the registry.
        repository: String,
    },
}

impl WalkRoot {
    /// The registry, `HOST[:PORT]`.
    pub fn registry(&self) -> &str {
        match self {
            WalkRoot::Registry(registry) | WalkRoot::Repository { registry, .. } => registry,
        }
    }
}

impl std::str::FromStr for WalkRoot {
    type Err = String;

    /// `HOST`, `HOST:PORT`, or a repository as on the command line, without tag and digest. A name
    /// without a slash is a registry if it contains a dot or a port.
    fn from_str(text: &str) -> Result<WalkRoot, String> {
        let like_a_host = text.contains('.') || text.contains(':') || text == "localhost";
        if !text.contains('/') && like_a_host && is_registry(text) {
            return Ok(WalkRoot::Registry(text.to_ascii_lowercase()));
        }
        for scheme in ["https://", "http://", "docker://"] {
            if let Some(rest) = text.strip_prefix(scheme) {
                return Err(format!("write it without {scheme}: {rest}"));
            }
        }
        if text.starts_with("oci:") || text.starts_with("oci-archive:") {
            return Err(
                "backfill works on registries; for a layout or an archive use ociseek convert"
                    .into(),
            );
        }
        if text.contains(['*', '?'])
            && let Some((registry, glob)) = text.split_once('/')
        {
            return Err(format!("patterns are an option: --filter '{glob}' {registry}"));
        }
        let named: Reference = text.parse().map_err(|error| format!("{error}"))?;
        // The default tag of a name without one does not appear in the text.
        if named.digest.is_some() || text.rsplit('/').next().is_some_and(|last| last.contains(':'))
        {
            return Err("expected a registry, or a repository without a tag".into());
        }
        Ok(WalkRoot::Repository { registry: named.registry, repository: named.repository })
    }
}

/// Options for a walk.
#[derive(Debug)]
pub struct Options {
    /// The settings for indexing.
    pub context: JobContext,
    /// Patterns for repositories, one of which must match. Empty for all repositories.
    pub filters: Vec<Glob>,
    /// Images created earlier are skipped, in seconds since 1970. Images without a creation time
    /// are included.
    pub since: Option<i64>,
    /// How many images are processed at the same time; at least 1.
    pub jobs: usize,
    /// Only report what has no index.
    pub dry_run: bool,
    /// Images without an index are put into this queue instead of being indexed here.
    #[cfg(feature = "nats")]
    pub queue: Option<NatsQueue>,
}

impl Options {
    /// All images, one at a time, indexed here.
    pub fn new(context: JobContext) -> Options {
        Options {
            context,
            filters: Vec::new(),
            since: None,
            jobs: 1,
            dry_run: false,
            #[cfg(feature = "nats")]
            queue: None,
        }
    }
}

/// The result for an image or a list.
#[derive(Debug)]
pub struct ImageReport {
    /// The image, or the repository or registry whose list failed.
    pub name: String,
    /// The image's manifest or image index, if it was found.
    pub digest: Option<Digest>,
    /// The result.
    pub result: Result<ImageOutcome, BackfillError>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// The result for an image that could be read.
#[derive(Debug)]
pub enum ImageOutcome {
    /// It was indexed, skipped, or already complete.
    Done(JobResult),
    /// It lacks an index or a SOCI-enabled image, and this is a dry run.
    Pending {
        /// The SOCI-enabled image that would be written, if any.
        enabled: Option<Reference>,
    },
    /// It lacks an index or a SOCI-enabled image, and was put into the queue.
    Queued,
    /// It is complete; nothing is indexed here.
    Complete,
    /// It was created before the requested time.
    Old {
        /// When it was created, in seconds since 1970.
        created: i64,
        /// The requested time, in seconds since 1970.
        since: i64,
    },
    /// The state file lists it as done.
    DoneBefore,
    /// Another tag of the repository names the same image.
    SameAsBefore,
}

impl ImageOutcome {
    /// A stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            ImageOutcome::Done(done) => done.code(),
            ImageOutcome::Pending { .. } => "pending",
            ImageOutcome::Queued => "queued",
            ImageOutcome::Complete => "already-indexed",
            ImageOutcome::Old { .. } => "old",
            ImageOutcome::DoneBefore => "done-before",
            ImageOutcome::SameAsBefore => "same-as-before",
        }
    }
}

/// Why an image was not indexed, or not found.
#[derive(Debug, thiserror::Error)]
pub enum BackfillError {
    #[error("cannot list the repositories")]
    Repositories(#[source] RegistryError),
    #[error("cannot list the tags")]
    Tags(#[source] RegistryError),
    #[error("{0} names in the list are not valid")]
    Names(usize),
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(transparent)]
    State(#[from] StateError),
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Queue(#[from] NatsError),
}

impl BackfillError {
    /// Whether the error is about a list of repositories or tags instead of an image.
    pub fn is_list(&self) -> bool {
        matches!(
            self,
            BackfillError::Repositories(_) | BackfillError::Tags(_) | BackfillError::Names(_)
        )
    }
}

/// Observes a walk.
pub trait Watch: Sync {
    /// Another image was listed.
    fn found(&self);
    /// All images were listed.
    fn listed(&self);
    /// The result for an image or a list.
    fn done(&self, report: ImageReport);
}

/// Walks `places` and indexes images without an index. Lists are read in advance, so that the total
/// is known early.
pub async fn run(
    places: &[WalkRoot],
    options: &Options,
    state: Option<BackfillState>,
    watch: &dyn Watch,
) {
    let state = state.map(Mutex::new);
    let (ahead, found) = channel(AHEAD);
    let listing = async move {
        let mut walk = std::pin::pin!(walk(places, options));
        while let Some(item) = walk.next().await {
            if matches!(item, WalkItem::Image { .. }) {
                watch.found();
            }
            // The receiver exists as long as this task.
            let _ = ahead.send(item).await;
        }
        watch.listed();
    };
    let found = stream::unfold(found, async |mut found| Some((found.recv().await?, found)));
    let work = found.map(|item| async {
        match item {
            WalkItem::Image { image, locks } => {
                let begun = Instant::now();
                let name = image.to_string();
                let (digest, result) = one(Job { image }, options, state.as_ref(), &locks).await;
                watch.done(ImageReport {
                    name,
                    digest,
                    result,
                    seconds: begun.elapsed().as_secs_f64(),
                });
            }
            WalkItem::Failed { name, error } => {
                watch.done(ImageReport { name, digest: None, result: Err(error), seconds: 0.0 });
            }
        }
    });
    tokio::join!(listing, work.buffer_unordered(options.jobs.max(1)).collect::<()>());
}

/// What the tags of a repository share: a lock for each image that they name, and the manifests
/// that were read. Dropped with the last of the tags.
#[derive(Clone, Default)]
struct ImageLocks {
    locks: Arc<Mutex<HashMap<Digest, ImageLock>>>,
    known: KnownDocuments,
}

/// An image that tags of a repository name.
struct NamedImage {
    /// Held while it is being processed.
    lock: tokio::sync::Mutex<()>,
    /// The state file said that it is done before this run came to it.
    done_before: bool,
}

type ImageLock = Arc<NamedImage>;

impl ImageLocks {
    /// The lock of an image, and whether the image is new. Then `done_before` is asked.
    fn lock_of(&self, digest: Digest, done_before: impl FnOnce() -> bool) -> (ImageLock, bool) {
        let mut is_new = false;
        let mut locks = self.locks.hold();
        let lock = locks.entry(digest).or_insert_with(|| {
            is_new = true;
            Arc::new(NamedImage { lock: tokio::sync::Mutex::default(), done_before: done_before() })
        });
        (Arc::clone(lock), is_new)
    }
}

async fn one(
    job: Job,
    options: &Options,
    state: Option<&Mutex<BackfillState>>,
    locks: &ImageLocks,
) -> (Option<Digest>, Result<ImageOutcome, BackfillError>) {
    let context = &options.context;
    if let Some(skipped) = job.skipped_by_name(&context.versions) {
        return (None, Ok(ImageOutcome::Done(JobResult::Skipped(skipped))));
    }
    let repository = match context.client.repository(&job.image.registry, &job.image.repository) {
        Ok(repository) => repository.knowing(&locks.known),
        Err(error) => return (None, Err(JobError::Name(error.into()).into())),
    };
    let source = Source::Registry(repository.clone());
    let digest = match work::digest(&job, &source).await {
        Ok(Some(digest)) => digest,
        Ok(None) => return (None, Ok(ImageOutcome::Done(JobResult::Gone))),
        Err(error) => return (None, Err(error.into())),
    };
    let outcome = by_digest(job.clone(), digest, &source, &repository, options, state, locks).await;
    let (Ok(ImageOutcome::Done(JobResult::Gone)), Some(tag)) = (&outcome, &job.image.tag) else {
        return (Some(digest), outcome);
    };
    match work::shown_digest(tag, digest, &source).await {
        Ok(Some(now)) => {
            (Some(now), by_digest(job, now, &source, &repository, options, state, locks).await)
        }
        Ok(None) => (Some(digest), outcome),
        Err(error) => (Some(digest), Err(error.into())),
    }
}

/// The image that the tag of a job names.
async fn by_digest(
    mut job: Job,
    digest: Digest,
    source: &Source,
    repository: &Repository,
    options: &Options,
    state: Option<&Mutex<BackfillState>>,
    locks: &ImageLocks,
) -> Result<ImageOutcome, BackfillError> {
    let unit = Unit::of(&options.context.versions);
    // The tag may move while the image is being processed.
    job.image.digest = Some(digest);
    let name = job.key(unit);
    let is_done = || state.is_some_and(|state| state.hold().has(&name));
    let (image, is_new) = locks.lock_of(digest, is_done);
    let known = match unit {
        Unit::Image if image.done_before => Some(ImageOutcome::DoneBefore),
        Unit::Image => (!is_new).then_some(ImageOutcome::SameAsBefore),
        Unit::Tag => is_done().then_some(ImageOutcome::DoneBefore),
    };
    if let Some(outcome) = known {
        return Ok(outcome);
    }
    // An image that was read for one tag need not be read again for the next.
    let _locked = image.lock.lock().await;
    let outcome = match passed_over(&job, digest, source, repository.clone(), options).await? {
        Some(outcome) => outcome,
        None => done(&job, options, &locks.known).await?,
    };
    if let (
        Some(state),
        ImageOutcome::Queued
        | ImageOutcome::Complete
        | ImageOutcome::Done(
            JobResult::Indexed(_) | JobResult::AlreadyIndexed(_) | JobResult::Skipped(_),
        ),
    ) = (state, &outcome)
    {
        state.hold().add(&name)?;
    }
    Ok(outcome)
}

async fn done(
    job: &Job,
    options: &Options,
    known: &KnownDocuments,
) -> Result<ImageOutcome, BackfillError> {
    #[cfg(feature = "nats")]
    if let Some(queue) = &options.queue {
        // The job is in the queue now, whether or not it was there before.
        queue.publish(job).await?;
        return Ok(ImageOutcome::Queued);
    }
    Ok(ImageOutcome::Done(work::run_knowing(job, &options.context, known).await?))
}

/// The result that is known before any layer is read. None if there is work to do.
async fn passed_over(
    job: &Job,
    digest: Digest,
    source: &Source,
    repository: Repository,
    options: &Options,
) -> Result<Option<ImageOutcome>, BackfillError> {
    #[cfg(feature = "nats")]
    let look = options.dry_run || options.queue.is_some();
    #[cfg(not(feature = "nats"))]
    let look = options.dry_run;
    if !look && options.since.is_none() {
        return Ok(None);
    }
    let context = &options.context;
    let Some(document) = work::fetch(job, source).await? else {
        return Ok(Some(ImageOutcome::Done(JobResult::Gone)));
    };
    let image = match work::resolved(&document, source, context).await? {
        DocumentKind::Image(image) => image,
        DocumentKind::Skipped(why) => return Ok(Some(ImageOutcome::Done(JobResult::Skipped(why)))),
    };
    if let Some(since) = options.since
        && let Some(created) = newest(source, &image).await
        && created < since
    {
        return Ok(Some(ImageOutcome::Old { created, since }));
    }
    if !look {
        return Ok(None);
    }
    let enabled =
        work::enabled_preview(&job.image, digest, source, repository.clone(), context).await?;
    let index = match &context.versions {
        Versions::V2(_) => None,
        Versions::V1 | Versions::Both(_) => {
            let destination = Destination::Registry(repository);
            let preview = preview(image, &destination, context.work(&context.options)).await;
            Some(preview.map_err(JobError::Index)?)
        }
    };
    Ok(match verdict(index, enabled) {
        ImageOutcome::Pending { .. } if !options.dry_run => None,
        outcome => Some(outcome),
    })
}

/// Combines the results for the index and the SOCI-enabled image, as far as they are requested.
fn verdict(index: Option<Preview>, enabled: Option<EnabledPreview>) -> ImageOutcome {
    let (name, enabled) =
        enabled.map_or((None, None), |enabled| (enabled.name, Some(enabled.preview)));
    let is_pending = matches!(enabled, Some(Ok(ConvertPreview::Pending)));
    if is_pending || matches!(index, Some(Preview::Pending)) {
        return ImageOutcome::Pending { enabled: name.filter(|_| is_pending) };
    }
    if matches!(index, Some(Preview::Complete))
        || matches!(enabled, Some(Ok(ConvertPreview::Complete(_))))
    {
        return ImageOutcome::Complete;
    }
    let skipped = match (index, enabled) {
        (None, Some(Err(why))) => SkipReason::NotEnabled(why),
        (Some(Preview::NothingToIndex(reasons)), _)
        | (_, Some(Ok(ConvertPreview::NothingToIndex(reasons)))) => {
            SkipReason::nothing_to_index(reasons.iter())
        }
        _ => SkipReason::nothing_to_index(std::iter::empty()),
    };
    ImageOutcome::Done(JobResult::Skipped(skipped))
}

/// The creation time of the newest of an image's platforms, in seconds since 1970. None if one of
/// them states none, or its config cannot be read.
async fn newest(source: &Source, image: &ResolvedImage) -> Option<i64> {
    let mut newest = None;
    for manifest in &image.manifests {
        let config = source.blob_bytes(&manifest.config, MAX_CONFIG as u64).await.ok()?;
        let made = config::created(&config).ok().flatten()?;
        newest = newest.max(Some(made.seconds));
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_parsed() {
        let place = |text: &str| text.parse::<WalkRoot>();
        for registry in [
            "ghcr.io",
            "localhost",
            "localhost:5000",
            "127.0.0.1:5000",
            "[::1]:5000",
            "registry:5000",
        ] {
            assert_eq!(place(registry), Ok(WalkRoot::Registry(registry.into())));
        }
        let repository = |registry: &str, repository: &str| {
            Ok(WalkRoot::Repository { registry: registry.into(), repository: repository.into() })
        };
        assert_eq!(place("ghcr.io/a/b"), repository("ghcr.io", "a/b"));
        assert_eq!(place("localhost:5000/a"), repository("localhost:5000", "a"));
        assert_eq!(place("debian"), repository("docker.io", "library/debian"));
        for bad in [
            "",
            "a/b:tag",
            "debian:bookworm",
            "x.y/a:1",
            "x.y/a@sha256:00",
            "http://x",
            "x.y/",
            "../x",
            "A/B",
        ] {
            assert!(place(bad).is_err(), "{bad}: {:?}", place(bad));
        }
    }
}
