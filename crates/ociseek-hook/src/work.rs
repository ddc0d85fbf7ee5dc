//! Processes an image: creates its index, its SOCI-enabled image, or both.
//!
//! Pushes by this process raise events too: for the index, for the tag under which registries
//! without the referrers API list it, and for each manifest of a SOCI-enabled image. Such events
//! must end here, or the work would never end. Manifests that are not images with layers are
//! skipped, at the latest after one request for the manifest. A SOCI-enabled image and its
//! manifests do have layers; they are recognized by the SOCI indexes that they list or name,
//! no matter who created them and which tags they have.
//!
//! An index belongs to a digest, but a SOCI-enabled image follows a tag. If the tag moves during
//! the work, the older image could be written last. So the image is made from what the tag names
//! now, and the tag is checked again after writing.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::enabled::{EnableOutcome, EnabledImage};
use super::job::{Job, JobError, JobResult, Products};
use super::skip::{NotEnabled, SkipReason};
use ociseek_format::digest::Digest;
use ociseek_format::image::enabled::is_enabled;
use ociseek_format::image::{Manifest, ManifestError, Reference};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_ops::convert::{
    CompleteImage, ConvertDestination, ConvertError, ConvertPreview, ConvertStatus, SourceImage,
    preview, up_to_date,
};
use ociseek_ops::index::{
    Existing, ExistingCheck, IndexOptions, IndexedManifest, LayerOutcome, LayerReport,
    ManifestResult, ReuseSource, Work,
};
use ociseek_ops::resolve::{ResolveError, ResolvedImage, parse, resolve_document};
use ociseek_ops::versions::{EnabledResult, MakeRequest, Versions, VersionsResult, make};
use ociseek_store::blob::{Document, Target};
use ociseek_store::cache::ZtocCache;
use ociseek_store::known::KnownDocuments;
use ociseek_store::registry::{Client, Repository};
use ociseek_store::{Destination, Source, StoreError};

/// How many times the work starts again within a try because the tag moved.
const MOVES: usize = 3;

/// The settings that all jobs share.
#[derive(Clone)]
pub struct JobContext {
    /// The client for registries.
    pub client: Client,
    /// The cache of ztocs between jobs, if any.
    pub cache: Option<ZtocCache>,
    /// The options for indexing.
    pub options: IndexOptions,
    /// The versions of the index that are made for each image.
    pub versions: Versions,
    /// The size limit for images, in bytes: those whose layers are larger together, according to
    /// their manifests, are skipped.
    pub max_image_size: Option<u64>,
    /// Images whose indexes may have ztocs of layers of any image.
    pub reuse_from: Vec<Reference>,
    /// Receives progress events.
    pub progress: Arc<dyn Progress>,
}

ociseek_format::opaque_debug!(JobContext);

impl JobContext {
    pub(super) fn work<'a>(&'a self, options: &'a IndexOptions) -> Work<'a> {
        Work { cache: self.cache.as_ref(), options, progress: &self.progress }
    }

    /// The options, with the images that others name for reuse.
    fn options(&self) -> IndexOptions {
        let mut options = self.options.clone();
        for from in &self.reuse_from {
            match self.client.repository(&from.registry, &from.repository) {
                Ok(repository) => options.reuse.from.push(ReuseSource {
                    name: from.to_string().into(),
                    source: Source::Registry(repository),
                    target: Target::of(from),
                }),
                Err(error) => {
                    let why = format!("cannot reuse anything from {from}: {}", causes(&error));
                    self.progress.report(ProgressEvent::Warning(why));
                }
            }
        }
        options
    }
}

/// Indexes the image of a job, unless it already has everything or there is nothing to index.
///
/// # Errors
/// If the image cannot be read, is broken, or cannot get its index. [`JobError::is_transient`]
/// tells whether a retry may help.
pub async fn run(job: &Job, context: &JobContext) -> Result<JobResult, JobError> {
    run_knowing(job, context, &KnownDocuments::default()).await
}

/// Like [`run`]. Manifests that are known are not fetched, and others are added.
pub(super) async fn run_knowing(
    job: &Job,
    context: &JobContext,
    known: &KnownDocuments,
) -> Result<JobResult, JobError> {
    if let Some(skipped) = job.skipped_by_name(&context.versions) {
        return Ok(JobResult::Skipped(skipped));
    }
    let repository = context.client.repository(&job.image.registry, &job.image.repository);
    let whole = repository.map_err(|error| JobError::Name(error.into()))?;
    let repository = whole.knowing(known);
    let source = Source::Registry(repository.clone());
    let Some(document) = fetch(job, &source).await? else { return Ok(JobResult::Gone) };
    match run_document(job, &document, &source, repository, context).await {
        // It was deleted in the meantime, or was broken before. Its manifest shows which.
        Err(error) if error.store().is_some_and(StoreError::is_not_found) => {
            match Source::Registry(whole).manifest(&Target::Digest(document.digest)).await {
                Err(gone) if gone.is_not_found() => Ok(JobResult::Gone),
                _ => Err(error),
            }
        }
        result => result,
    }
}

/// The digest of the image of a job. None if the image does not exist any more.
pub(super) async fn digest(job: &Job, source: &Source) -> Result<Option<Digest>, JobError> {
    let Target::Tag(tag) = job.target() else {
        return Ok(fetch(job, source).await?.map(|document| document.digest));
    };
    match source.tag_digest(&tag).await {
        Ok(digest) => Ok(Some(digest)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(ResolveError::Find(error).into()),
    }
}

/// The digest of what GET shows under a tag that HEAD said to name `digest`, which does not exist.
/// HEAD may be answered from a cache. None if the tag does not exist any more.
///
/// # Errors
/// If GET shows that digest too: the registry does not give its own content by digest.
pub(super) async fn shown_digest(
    tag: &str,
    digest: Digest,
    source: &Source,
) -> Result<Option<Digest>, JobError> {
    match source.manifest(&Target::Tag(tag.to_owned())).await {
        Ok(document) if document.digest != digest => Ok(Some(document.digest)),
        Ok(_) => match source.manifest(&Target::Digest(digest)).await {
            // It was pushed again in the meantime.
            Ok(document) => Ok(Some(document.digest)),
            Err(error) => Err(ResolveError::Find(error).into()),
        },
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(ResolveError::Find(error).into()),
    }
}

/// None if the image does not exist any more.
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
    context: &JobContext,
) -> Result<JobResult, JobError> {
    let image = match resolved(document, source, context).await? {
        DocumentKind::Image(image) => image,
        DocumentKind::Skipped(why) => return Ok(JobResult::Skipped(why)),
    };
    let job_image = JobImage::of(&job.image, source, repository, context);
    let mut products = job_image.make(image, &context.versions).await?;
    job_image.follow(&mut products).await?;
    Ok(job_result(Box::new(products)))
}

/// The prospect of converting an image.
pub(super) struct EnabledPreview {
    /// The name of the SOCI-enabled image with its tag. None if there is no tag for it.
    pub name: Option<Reference>,
    pub preview: Result<ConvertPreview, NotEnabled>,
}

/// The prospect of converting the image of a job. None if no SOCI-enabled image is requested.
pub(super) async fn enabled_preview(
    image: &Reference,
    digest: Digest,
    source: &Source,
    repository: Repository,
    context: &JobContext,
) -> Result<Option<EnabledPreview>, JobError> {
    let tag = match context.versions.tag(image.tag.as_deref(), &digest) {
        Ok(Some(tag)) => tag,
        Ok(None) => return Ok(None),
        Err(why) => return Ok(Some(EnabledPreview { name: None, preview: Err(why.into()) })),
    };
    let job_image = JobImage::of(image, source, repository, context);
    let name = job_image.name(&tag);
    let (from, to) = job_image.conversion(digest, tag);
    let preview = match preview(&from, &to, context.work(&job_image.options)).await {
        Ok(ConvertPreview::Complete(_)) if job_image.options.existing == Existing::Replace => {
            Ok(ConvertPreview::Pending)
        }
        Ok(preview) => Ok(preview),
        // The conversion would update its tag.
        Err(ConvertError::Moved { .. }) => Ok(ConvertPreview::Pending),
        Err(error) => match not_enabled(error) {
            Ok(why) => Err(why),
            Err(source) => return Err(JobError::Enabled { name, source }),
        },
    };
    Ok(Some(EnabledPreview { name: Some(name), preview }))
}

/// The repository of a job's image, and how it is processed.
struct JobImage<'a> {
    image: &'a Reference,
    source: &'a Source,
    destination: Destination,
    options: IndexOptions,
    context: &'a JobContext,
}

impl<'a> JobImage<'a> {
    fn of(
        image: &'a Reference,
        source: &'a Source,
        repository: Repository,
        context: &'a JobContext,
    ) -> JobImage<'a> {
        let destination = Destination::Registry(repository);
        JobImage { image, source, destination, options: context.options(), context }
    }

    /// The name of a SOCI-enabled image with this tag.
    fn name(&self, tag: &str) -> Reference {
        Reference { tag: Some(tag.to_owned()), digest: None, ..self.image.clone() }
    }

    fn from(&self, digest: Digest) -> SourceImage {
        SourceImage { source: self.source.clone(), root: Target::Digest(digest), descriptor: None }
    }

    fn conversion(&self, digest: Digest, tag: String) -> (SourceImage, ConvertDestination) {
        let guard = Some(self.context.versions.guard(self.image.tag.clone()));
        let destination = Some(self.destination.clone());
        (
            self.from(digest),
            ConvertDestination { destination, tag: Some(tag), replace_tag: false, guard },
        )
    }

    /// Creates what `versions` requests for an image, except what already exists.
    async fn make(&self, image: ResolvedImage, versions: &Versions) -> Result<Products, JobError> {
        let mut products = Products {
            digest: image.digest,
            index: None,
            enabled: None,
            bytes_read: 0,
            bytes_written: 0,
        };
        products.enabled = match versions.tag(self.image.tag.as_deref(), &image.digest) {
            Ok(None) => None,
            Ok(Some(tag)) => self.known(image.digest, tag).await,
            Err(why) => {
                Some(EnabledImage { name: None, result: EnableOutcome::Skipped(why.into()) })
            }
        };
        let versions = match (&products.enabled, versions) {
            (None, versions) => versions,
            (Some(_), Versions::V2(_)) => return Ok(products),
            (Some(_), _) => &Versions::V1,
        };
        let subject = MakeRequest {
            from: self.from(image.digest),
            tag: self.image.tag.clone(),
            resolved: Some(image),
            is_unattended: true,
        };
        let work = self.context.work(&self.options);
        let made = Box::pin(make(subject, Some(&self.destination), versions, work)).await?;
        let VersionsResult { index, enabled, failed } = made;
        if let Some(index) = &index {
            products.bytes_read += index.bytes_read;
            products.bytes_written += index.bytes_written;
        }
        if let Some(made) = enabled {
            if let EnabledResult::Converted(converted) = &made.result {
                products.bytes_read += converted.bytes_read;
                products.bytes_written += converted.bytes_written;
            }
            products.enabled = Some(EnabledImage {
                name: Some(self.name(&made.tag)),
                result: enable_outcome(made.result),
            });
        }
        if let (Some(error), Ok(Some(tag))) =
            (failed, versions.tag(self.image.tag.as_deref(), &products.digest))
        {
            let name = self.name(&tag);
            match not_enabled(error) {
                Ok(why) => {
                    products.enabled = Some(EnabledImage {
                        name: Some(name),
                        result: EnableOutcome::Skipped(why),
                    });
                }
                Err(source) => return Err(JobError::Enabled { name, source }),
            }
        }
        products.index = index;
        Ok(products)
    }

    /// The SOCI-enabled image, if it already exists or must not be written. Other faults are found
    /// again when it is made.
    async fn known(&self, digest: Digest, tag: String) -> Option<EnabledImage> {
        if self.options.existing == Existing::Replace {
            return None;
        }
        let name = Some(self.name(&tag));
        let (from, to) = self.conversion(digest, tag);
        match up_to_date(&from, &to, self.context.work(&self.options)).await {
            Ok(known) => {
                known.map(|image| EnabledImage { name, result: EnableOutcome::AlreadyThere(image) })
            }
            Err(error) => not_enabled(error)
                .ok()
                .map(|why| EnabledImage { name, result: EnableOutcome::Skipped(why) }),
        }
    }

    /// Creates the SOCI-enabled image for the image that the tag names now, if that is not the one
    /// that was processed.
    async fn follow(&self, products: &mut Products) -> Result<(), JobError> {
        let Some(template) =
            self.context.versions.template().filter(|template| template.needs_tag())
        else {
            return Ok(());
        };
        let Some(own) = &self.image.tag else { return Ok(()) };
        let mut last = products.digest;
        let mut moves = 0;
        loop {
            let Some(EnabledImage { result, .. }) = &mut products.enabled else { return Ok(()) };
            let moved = matches!(result, EnableOutcome::Skipped(NotEnabled::Moved(_)));
            if !moved && !matches!(result, EnableOutcome::Written { .. }) {
                return Ok(());
            }
            let named = match self.source.tag_digest(own).await {
                Ok(digest) if digest == last && !moved => return Ok(()),
                // HEAD may be wrong.
                Ok(_) => self.source.manifest(&Target::Tag(own.clone())).await,
                Err(error) => Err(error),
            };
            let document = match named {
                Ok(document) if document.digest == last && !moved => return Ok(()),
                Ok(document) => document,
                Err(error) if error.is_not_found() => {
                    if moved {
                        *result = EnableOutcome::Skipped(NotEnabled::Untagged(own.clone()));
                    }
                    return Ok(());
                }
                Err(error) => return Err(ResolveError::Find(error).into()),
            };
            if moves == MOVES {
                return Err(JobError::Restless(own.clone()));
            }
            moves += 1;
            let image = match resolved(&document, self.source, self.context).await? {
                DocumentKind::Image(image) => image,
                DocumentKind::Skipped(why) => {
                    if moved {
                        *result = EnableOutcome::Skipped(NotEnabled::Skipped(Box::new(why)));
                    }
                    return Ok(());
                }
            };
            last = document.digest;
            let made = self.make(image, &Versions::V2(template.clone())).await?;
            products.bytes_read += made.bytes_read;
            products.bytes_written += made.bytes_written;
            products.enabled = made.enabled;
        }
    }
}

/// Why the SOCI-enabled image must not be written, if that is the reason instead of a failure.
fn not_enabled(error: ConvertError) -> Result<NotEnabled, Box<ConvertError>> {
    match error {
        ConvertError::Occupied { digest } => Ok(NotEnabled::Occupied(digest)),
        ConvertError::Moved { tag } => Ok(NotEnabled::Moved(tag)),
        error => Err(Box::new(error)),
    }
}

fn enable_outcome(result: EnabledResult) -> EnableOutcome {
    match result {
        EnabledResult::Converted(converted) => match converted.outcome {
            ConvertStatus::Written { replaced: before }
            | ConvertStatus::DryRun { replaces: before } => {
                EnableOutcome::Written { digest: converted.digest, replaced: before }
            }
            ConvertStatus::AlreadyThere => EnableOutcome::AlreadyThere(CompleteImage {
                digest: converted.digest,
                check: ExistingCheck::Built,
            }),
        },
        EnabledResult::NothingToIndex { layers } => {
            EnableOutcome::NothingToIndex(nothing_to_index(&layers))
        }
        EnabledResult::OutOfTime { left } => EnableOutcome::OutOfTime { left },
    }
}

fn nothing_to_index<'a>(layers: impl IntoIterator<Item = &'a LayerReport>) -> SkipReason {
    SkipReason::nothing_to_index(layers.into_iter().filter_map(|layer| match &layer.outcome {
        LayerOutcome::LeftOut(reason) => Some(reason),
        LayerOutcome::Indexed(_) | LayerOutcome::Listed { .. } => None,
    }))
}

/// The kind of a document for this work.
pub(super) enum DocumentKind {
    Image(ResolvedImage),
    /// There is nothing to do for it.
    Skipped(SkipReason),
}

/// The image in a document, or why there is nothing to do for it.
pub(super) async fn resolved(
    document: &Document,
    source: &Source,
    context: &JobContext,
) -> Result<DocumentKind, JobError> {
    let JobContext { options, max_image_size, progress, .. } = context;
    let manifest = match parse(document) {
        Ok(manifest) => manifest,
        Err(ResolveError::NotAnImage { source: ManifestError::NotAnImage { what }, .. }) => {
            return Ok(DocumentKind::Skipped(SkipReason::NotAnImage(what)));
        }
        Err(error) => return Err(error.into()),
    };
    let subject = match &manifest {
        Manifest::Image(image) => &image.subject,
        Manifest::Index(index) => &index.subject,
    };
    if let Some(subject) = subject {
        return Ok(DocumentKind::Skipped(SkipReason::Subject(subject.digest)));
    }
    if is_enabled(&manifest) {
        return Ok(DocumentKind::Skipped(SkipReason::SociEnabled));
    }
    let image = match resolve_document(source, document, manifest, options.wanted(), progress).await
    {
        Ok(image) => image,
        Err(error @ ResolveError::NoPlatform { .. }) => {
            return Ok(DocumentKind::Skipped(SkipReason::OtherPlatforms(error.to_string())));
        }
        Err(ResolveError::NotAnImage { source: ManifestError::NotAnImage { what }, .. }) => {
            return Ok(DocumentKind::Skipped(SkipReason::NotAnImage(what)));
        }
        Err(error @ ResolveError::NoImage(_)) => {
            return Ok(DocumentKind::Skipped(SkipReason::NotAnImage(format!("no image: {error}"))));
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(limit) = *max_image_size
        && let size = declared_size(&image)
        && size > limit
    {
        return Ok(DocumentKind::Skipped(SkipReason::TooLarge { size, limit }));
    }
    Ok(DocumentKind::Image(image))
}

/// The size of all layers in bytes, without duplicates.
fn declared_size(image: &ResolvedImage) -> u64 {
    let layers = image.manifests.iter().flat_map(|manifest| &manifest.layers);
    let blobs: BTreeSet<_> = layers.map(|layer| (layer.digest, layer.size)).collect();
    blobs.iter().fold(0, |sum, (_, size)| sum.saturating_add(*size))
}

fn job_result(products: Box<Products>) -> JobResult {
    let Products { index, enabled, .. } = &*products;
    let result = enabled.as_ref().map(|enabled| &enabled.result);
    let manifests = index.as_ref().map_or(&[][..], |index| &index.manifests);
    let results = || {
        let each = manifests.iter().flat_map(IndexedManifest::results);
        each.filter(|result| !matches!(result, ManifestResult::NotRequested))
    };
    let is = |wanted: fn(&ManifestResult) -> bool| results().any(wanted);
    let is_left = index.as_ref().is_some_and(|index| !index.left.is_empty());
    if is_left || matches!(result, Some(EnableOutcome::OutOfTime { .. })) {
        JobResult::Sparse(products)
    } else if is(|result| {
        matches!(result, ManifestResult::Attached { .. } | ManifestResult::DryRun { .. })
    }) || matches!(result, Some(EnableOutcome::Written { .. }))
    {
        JobResult::Indexed(products)
    } else if is(|result| !matches!(result, ManifestResult::NothingToIndex))
        || matches!(result, Some(EnableOutcome::AlreadyThere(_)))
    {
        JobResult::AlreadyIndexed(products)
    } else {
        JobResult::Skipped(match result {
            Some(EnableOutcome::NothingToIndex(why)) if index.is_none() => why.clone(),
            Some(EnableOutcome::Skipped(why)) if index.is_none() => {
                SkipReason::NotEnabled(why.clone())
            }
            _ => nothing_to_index(manifests.iter().flat_map(|manifest| &manifest.layers)),
        })
    }
}
