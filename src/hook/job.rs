//! One image to be indexed, as an event names it, and what becomes of it.
//!
//! An index that is pushed raises an event of its own, and so does the tag under which registries without the referrers API list
//! it. Such an event must end here, or indexing would never end: what is not an image with layers is skipped, at the latest when
//! its manifest has been read, with one request. A SOCI-enabled image has layers, and so has each
//! of the manifests that it is made of: they are known by the SOCI indexes that they list or name,
//! whoever made them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::digest::Digest;
use crate::image::{Manifest, ManifestError, Reference, is_referrers_tag};
use crate::ops::discover::causes;
use crate::ops::index::{
    Elsewhere, IndexError, IndexOptions, IndexedImage, LayerOutcome, LeftOut, ManifestResult, index_resolved,
};
use crate::ops::resolve::{ResolveError, Resolved, parse, resolve_document};
use crate::ops::versions::is_enabled;
use crate::progress::{Event, Progress};
use crate::store::blob::{Document, Target};
use crate::store::cache::ZtocCache;
use crate::store::registry::{Client, Repository};
use crate::store::{Destination, Source, StoreError};

/// An image that is to be indexed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Job {
    pub image: Reference,
}

/// What all jobs have in common.
#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub cache: Option<ZtocCache>,
    pub options: IndexOptions,
    /// Images whose layers have more bytes together, as their manifests say, are left alone.
    pub max_image_size: Option<u64>,
    /// Images whose indexes may have ztocs of any of the images.
    pub reuse_from: Vec<Reference>,
    pub progress: Arc<dyn Progress>,
}

impl Context {
    /// The options for the image of one job.
    fn options(&self, image: &Reference) -> IndexOptions {
        let mut options = self.options.clone();
        options.reuse.tag = image.tag.clone();
        for from in &self.reuse_from {
            match self.client.repository(&from.registry, &from.repository) {
                Ok(repository) => options.reuse.from.push(Elsewhere {
                    name: from.to_string().into(),
                    source: Source::Registry(repository),
                    target: Target::of(from),
                }),
                Err(error) => {
                    let why = format!("nothing is reused from {from}: {}", causes(&error));
                    self.progress.report(Event::Warning(why));
                }
            }
        }
        options
    }
}

/// What became of a job.
#[derive(Debug, Clone)]
pub enum Done {
    /// At least one platform got a new index.
    Indexed(IndexedImage),
    /// The time was up: layers are left, and what was done by then is attached. The same job goes on from there.
    Sparse(IndexedImage),
    /// All platforms have theirs already.
    AlreadyIndexed(IndexedImage),
    Skipped(Skipped),
    /// The image is not there any more.
    Gone,
}

impl Done {
    /// A stable word for logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Done::Indexed(_) => "indexed",
            Done::Sparse(_) => "sparse",
            Done::AlreadyIndexed(_) => "already-indexed",
            Done::Skipped(_) => "skipped",
            Done::Gone => "gone",
        }
    }

    /// The manifest or image index that the job was about, as far as it was found.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            Done::Indexed(image) | Done::Sparse(image) | Done::AlreadyIndexed(image) => Some(image.digest),
            Done::Skipped(Skipped::Subject(digest)) => Some(*digest),
            Done::Skipped(_) | Done::Gone => None,
        }
    }
}

/// Why there is nothing to do for what was pushed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Skipped {
    #[error("{0} is where a registry without the referrers API lists them")]
    ReferrersTag(String),
    #[error("{0} is how images are tagged that carry their SOCI index")]
    SociTag(String),
    #[error("it is {0}")]
    NotAnImage(String),
    #[error("it is attached to {0}")]
    Subject(Digest),
    #[error("it is a SOCI-enabled image, or belongs to one")]
    SociEnabled,
    #[error("its layers have {size} bytes where at most {limit} are read")]
    TooLarge { size: u64, limit: u64 },
    #[error("all of its layers are smaller than {least} bytes")]
    LayersTooSmall { least: u64 },
    /// Why, by the stable words for each reason.
    #[error("none of its layers can be served lazily ({})", .0.join(", "))]
    NotServable(Vec<&'static str>),
}

impl Skipped {
    /// A stable word for logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Skipped::ReferrersTag(_) => "referrers-tag",
            Skipped::SociTag(_) => "soci-tag",
            Skipped::NotAnImage(_) => "not-an-image",
            Skipped::Subject(_) => "has-a-subject",
            Skipped::SociEnabled => "soci-enabled",
            Skipped::TooLarge { .. } => "too-large",
            Skipped::LayersTooSmall { .. } => "layers-too-small",
            Skipped::NotServable(_) => "not-servable",
        }
    }

    /// No layer is in the index, for these reasons. An image that only has small layers is as its
    /// maker wants it; of another one the maker should hear.
    pub(super) fn nothing_to_index<'a>(reasons: impl Iterator<Item = &'a LeftOut>) -> Skipped {
        let (mut codes, mut size) = (BTreeSet::new(), None);
        for reason in reasons {
            codes.insert(reason.code());
            if let LeftOut::Small { least } = reason {
                size = Some(*least);
            }
        }
        match size {
            Some(least) if codes.len() == 1 => Skipped::LayersTooSmall { least },
            _ if codes.is_empty() => Skipped::NotServable(vec!["no-layers"]),
            _ => Skipped::NotServable(codes.into_iter().collect()),
        }
    }
}

/// Why an image could not be indexed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("the image's name cannot be used")]
    Name(#[source] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl From<ResolveError> for JobError {
    fn from(error: ResolveError) -> JobError {
        JobError::Index(error.into())
    }
}

impl JobError {
    /// Trying again may help: the registry was busy or not to be reached. What is wrong with the image, or with our right to
    /// it, stays wrong.
    pub fn may_pass(&self) -> bool {
        self.store().is_some_and(StoreError::may_pass)
    }

    /// The registry did not take our word for who we are.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self.store(), Some(StoreError::Registry(error)) if error.status() == Some(401))
    }

    fn store(&self) -> Option<&StoreError> {
        match self {
            JobError::Name(_) => None,
            JobError::Index(error) => error.store(),
        }
    }
}

impl Job {
    /// What can be told by the name alone; no request is made.
    pub fn skipped_by_name(&self) -> Option<Skipped> {
        let tag = self.image.tag.as_ref()?;
        if is_referrers_tag(tag) {
            return Some(Skipped::ReferrersTag(tag.clone()));
        }
        tag.ends_with("-soci").then(|| Skipped::SociTag(tag.clone()))
    }

    /// The digest where it is known: a tag may have moved since the event.
    pub fn target(&self) -> Target {
        Target::of(&self.image)
    }

    /// Two jobs with the same key are the same work: an index is attached to a digest in a repository.
    pub fn key(&self) -> String {
        format!("{}/{}@{}", self.image.registry, self.image.repository, self.target())
    }
}

/// Indexes the image of a job, unless that is done or there is nothing to index.
///
/// # Errors
/// When the image cannot be read, is broken, or does not get its index. [`JobError::may_pass`] says whether to try again.
pub async fn run(job: &Job, context: &Context) -> Result<Done, JobError> {
    if let Some(skipped) = job.skipped_by_name() {
        return Ok(Done::Skipped(skipped));
    }
    let repository = context.client.repository(&job.image.registry, &job.image.repository);
    let repository = repository.map_err(|error| JobError::Name(error.into()))?;
    let source = Source::Registry(repository.clone());
    let Some(document) = fetch(job, &source).await? else { return Ok(Done::Gone) };
    match run_document(job, &document, &source, repository, context).await {
        // Deleted in the meantime, or broken from the start: its manifest tells.
        Err(error) if error.store().is_some_and(StoreError::is_not_found) => {
            match source.manifest(&Target::Digest(document.digest)).await {
                Err(gone) if gone.is_not_found() => Ok(Done::Gone),
                _ => Err(error),
            }
        }
        result => result,
    }
}

/// `None`: it is not there any more.
pub(super) async fn fetch(job: &Job, source: &Source) -> Result<Option<Document>, JobError> {
    match source.manifest(&job.target()).await {
        Ok(document) => Ok(Some(document)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(ResolveError::Find(error).into()),
    }
}

async fn run_document(
    job: &Job,
    document: &Document,
    source: &Source,
    repository: Repository,
    context: &Context,
) -> Result<Done, JobError> {
    let Context { cache, progress, .. } = context;
    let image = match resolved(document, source, context).await? {
        Ok(image) => image,
        Err(skipped) => return Ok(Done::Skipped(skipped)),
    };
    let destination = Destination::Registry(repository);
    let options = context.options(&job.image);
    let indexed = index_resolved(source, image, Some(&destination), cache.as_ref(), &options, progress).await?;
    Ok(judged(indexed))
}

/// The image that a document is, or why there is nothing to do for it.
pub(super) async fn resolved(
    document: &Document,
    source: &Source,
    context: &Context,
) -> Result<Result<Resolved, Skipped>, JobError> {
    let Context { options, max_image_size, progress, .. } = context;
    let manifest = match parse(document) {
        Ok(manifest) => manifest,
        Err(ResolveError::NotAnImage { source: ManifestError::NotAnImage { what }, .. }) => {
            return Ok(Err(Skipped::NotAnImage(what)));
        }
        Err(error) => return Err(error.into()),
    };
    let subject = match &manifest {
        Manifest::Image(image) => &image.subject,
        Manifest::Index(index) => &index.subject,
    };
    if let Some(subject) = subject {
        return Ok(Err(Skipped::Subject(subject.digest)));
    }
    if is_enabled(&manifest) {
        return Ok(Err(Skipped::SociEnabled));
    }
    let image = match resolve_document(source, document, manifest, options.wanted(), progress).await {
        Ok(image) => image,
        Err(error @ (ResolveError::NoImage(_) | ResolveError::NoPlatform { .. })) => {
            return Ok(Err(Skipped::NotAnImage(error.to_string())));
        }
        Err(ResolveError::NotAnImage { source: ManifestError::NotAnImage { what }, .. }) => {
            return Ok(Err(Skipped::NotAnImage(what)));
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(limit) = *max_image_size
        && let size = declared_size(&image)
        && size > limit
    {
        return Ok(Err(Skipped::TooLarge { size, limit }));
    }
    Ok(Ok(image))
}

/// Bytes of all layers, each blob once.
fn declared_size(image: &Resolved) -> u64 {
    let layers = image.manifests.iter().flat_map(|manifest| &manifest.layers);
    let blobs: BTreeSet<_> = layers.map(|layer| (layer.digest, layer.size)).collect();
    blobs.iter().fold(0, |sum, (_, size)| sum.saturating_add(*size))
}

fn judged(indexed: IndexedImage) -> Done {
    if !indexed.left.is_empty() {
        return Done::Sparse(indexed);
    }
    let is = |wanted: fn(&ManifestResult) -> bool| indexed.manifests.iter().any(|manifest| wanted(&manifest.result));
    if is(|result| matches!(result, ManifestResult::Attached { .. } | ManifestResult::DryRun { .. })) {
        Done::Indexed(indexed)
    } else if is(|result| !matches!(result, ManifestResult::NothingToIndex)) {
        Done::AlreadyIndexed(indexed)
    } else {
        let layers = indexed.manifests.iter().flat_map(|manifest| &manifest.layers);
        Done::Skipped(Skipped::nothing_to_index(layers.filter_map(|layer| match &layer.outcome {
            LayerOutcome::LeftOut(reason) => Some(reason),
            LayerOutcome::Indexed(_) => None,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(image: &str) -> Job {
        Job { image: image.parse().unwrap() }
    }

    #[test]
    fn names_that_need_no_request() {
        let hex = "0123456789abcdef".repeat(4);
        for (tag, code) in [
            (format!("sha256-{hex}"), Some("referrers-tag")),
            (format!("sha512-{hex}"), Some("referrers-tag")),
            (format!("sha256-{hex}.sig"), Some("referrers-tag")),
            (format!("sha256-{hex}0"), None),
            (format!("sha256-{}", &hex[1..]), None),
            ("sha256-x".into(), None),
            ("v1-soci".into(), Some("soci-tag")),
            ("soci".into(), None),
            ("v1".into(), None),
        ] {
            let skipped = job(&format!("r.example/a:{tag}")).skipped_by_name();
            assert_eq!(skipped.map(|skipped| skipped.code()), code, "{tag}");
        }
    }

    #[test]
    fn the_digest_is_what_makes_a_job() {
        let digest = Digest::sha256(b"{}");
        let [one, two] = ["1", "2"].map(|tag| job(&format!("r.example/a:{tag}@{digest}")));
        assert_eq!(one.key(), two.key());
        assert_eq!(one.target(), Target::Digest(digest));
        let [one, two] = ["1", "2"].map(|tag| job(&format!("r.example/a:{tag}")));
        assert_ne!(one.key(), two.key());
        assert_ne!(one.key(), job("r.example/b:1").key());
    }

    #[test]
    fn why_nothing_is_indexed() {
        let small = LeftOut::Small { least: 10 };
        let zstd = LeftOut::Kind { code: "zstd", reason: String::new() };
        let skipped = |reasons: &[&LeftOut]| Skipped::nothing_to_index(reasons.iter().copied());
        assert_eq!(skipped(&[&small, &small]), Skipped::LayersTooSmall { least: 10 });
        assert_eq!(skipped(&[&zstd, &small, &zstd]), Skipped::NotServable(vec!["too-small", "zstd"]));
        assert_eq!(skipped(&[&zstd]).to_string(), "none of its layers can be served lazily (zstd)");
        assert_eq!(skipped(&[]).to_string(), "none of its layers can be served lazily (no-layers)");
    }
}
