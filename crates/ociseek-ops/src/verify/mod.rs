//! `verify`: verifies an image's SOCI indexes and fine indexes against the image.
//!
//! 1. `documents`: each index as a document, and against the image on which it was found.
//! 2. `sample`: each ztoc in it, as far as the ztoc alone can show.
//! 3. `fine`: each fine document, likewise.
//! 4. Each layer with a ztoc or a fine document: `jobs` reads it completely, and
//!    [`prove`](ociseek_format::layer::prove) compares it with them; `sample` reads some of its spans, as a
//!    consumer would. `jobs` sees to it that a layer with one of each is read once.
//! 5. `policy`: further requirements for an index, such as `signature`.
//!
//! An archive written by `docker save` has no index, but `jobs` reads its layers anyway.
//!
//! A fault is a [`Problem`] and does not end the verification. If something cannot be examined,
//! that is an error, which ends it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::damage::Damage;
use super::discover::{DiscoverError, DiscoveredImage, IndexContent, discover_all};
use super::doctor::NoIndex;
use super::resolve::PlatformChoice;
use ociseek_format::budget::OverBudget;
use ociseek_format::code::Code;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::config::{self, MAX_CONFIG};
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_store::blob::Target;
use ociseek_store::{Source, StoreError};

mod documents;
mod fine;
mod jobs;
mod model;
pub mod policy;
mod sample;
pub mod signature;

pub use model::{
    ComparedCounts, Depth, UnindexedLayers, VerifiedDocument, VerifiedFine, VerifiedImage,
    VerifiedIndex, VerifiedLayer, VerifiedManifest, VerifyOptions,
};
pub use sample::MAX_SAMPLE;
pub(super) use sample::probe;

use documents::PrefetchLists;
use fine::{FineCheck, FineJob};
use jobs::LayerChecks;
use model::{LayerClaim, VerifyContext};
use policy::{JudgedIndex, Policy};
use signature::Signatures;

/// A difference from the index, the manifest or the config, or a fault that no consumer accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// A stable word for programs.
    pub code: Code,
    /// The description for people, on one line.
    pub text: String,
}

impl Problem {
    fn new(code: Code, text: impl Into<String>) -> Problem {
        Problem { code, text: text.into() }
    }
}

/// Why an image's indexes could not be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Discover(Box<DiscoverError>),
    #[error("cannot list the SOCI indexes of {manifest}")]
    Listing { manifest: Digest, source: StoreError },
    #[error("image {0} has neither a SOCI index nor a fine index to verify")]
    NoIndex(Digest, NoIndex),
    #[error(
        "docker save keeps no SOCI index: only the layers can be verified, and only all of them"
    )]
    Saved,
    #[error("cannot read the image's config {digest}")]
    Config { digest: Digest, source: StoreError },
    #[error("cannot read SOCI index {digest}")]
    Index { digest: Digest, source: StoreError },
    #[error("cannot read the signatures of {subject}")]
    Signatures { subject: Digest, source: StoreError },
    #[error("cannot read prefetch list {digest}")]
    Prefetch { digest: Digest, source: StoreError },
    #[error("cannot read layer {layer}")]
    Layer { layer: Digest, source: StoreError },
    #[error("ztoc {ztoc} of layer {layer} does not fit into memory")]
    Memory { ztoc: Digest, layer: Digest, source: OverBudget },
    #[error("cannot read fine document {document}")]
    Document { document: Digest, source: StoreError },
    #[error("fine document {document} of layer {layer} does not fit into memory")]
    DocumentMemory { document: Digest, layer: Digest, source: OverBudget },
    #[error("the thread verifying layer {layer} stopped unexpectedly")]
    Thread { layer: Digest },
}

impl From<DiscoverError> for VerifyError {
    fn from(error: DiscoverError) -> VerifyError {
        VerifyError::Discover(Box::new(error))
    }
}

/// Verifies the indexes of the image `root` of `source`.
///
/// # Errors
/// If something cannot be examined, or no wanted platform has an index.
pub async fn verify(
    source: &Source,
    root: &Target,
    options: &VerifyOptions,
    progress: &Arc<dyn Progress>,
) -> Result<VerifiedImage, VerifyError> {
    let wanted = PlatformChoice::each_or_all(&options.platforms);
    let images = discover_all(source, root, wanted, options.index.as_ref(), progress).await?;
    // A policy requires an index, so a missing index is an error then.
    if options.policy.is_empty() && matches!(source, Source::Archive(archive) if archive.is_saved())
    {
        return match (options.depth, &options.index) {
            (Depth::Full, None) => jobs::verify_saved(source, images, options, progress).await,
            _ => Err(VerifyError::Saved),
        };
    }
    if let Some(first) = images.first().filter(|_| images.iter().all(is_bare)) {
        let manifest = first.manifest.digest;
        let why_not = NoIndex::of(&first.layers);
        return Err(match images.into_iter().find_map(|image| image.listing.err()) {
            Some(source) => VerifyError::Listing { manifest, source },
            None => VerifyError::NoIndex(manifest, why_not),
        });
    }
    let mut plans = Vec::with_capacity(images.len());
    for image in images {
        plans.push(VerifyPlan::make(source, image, options).await?);
    }

    let mut jobs: BTreeMap<(Digest, Digest), LayerClaim> = BTreeMap::new();
    for plan in &plans {
        plan.jobs(&mut jobs);
    }
    let mut fine_jobs: BTreeMap<FineRef, FineJob> = BTreeMap::new();
    for plan in &plans {
        fine_jobs.extend(plan.fine.iter().flat_map(|fine| fine.jobs(&plan.layers, &plan.diff_ids)));
    }
    let jobs = jobs::joined(jobs, fine_jobs);
    announce(
        &plans,
        &jobs.iter().map(|job| job.layer().size).collect::<Vec<u64>>(),
        options,
        progress,
    );
    let side_by_side = options.jobs.max(1);
    let context = VerifyContext {
        source,
        depth: options.depth,
        side_by_side,
        cache: options.cache.as_ref(),
        progress,
    };
    let checked = jobs::run(jobs, context).await?;
    let mut manifests = Vec::with_capacity(plans.len());
    for mut plan in plans {
        let signatures = plan.signatures(source, &options.policy).await?;
        for fine in &mut plan.fine {
            fine.judge(source, &plan.layers, &options.policy).await?;
        }
        manifests.push(plan.finish(&checked, &options.policy, &signatures));
    }
    Ok(VerifiedImage { manifests, bytes_read: checked.bytes_read })
}

/// The plan for the image of one platform.
struct VerifyPlan {
    verified: VerifiedManifest,
    layers: Vec<Descriptor>,
    /// For each layer; fewer if the config lists fewer.
    diff_ids: Vec<Digest>,
    /// For each index in `verified`. None if it cannot be used.
    contents: Vec<Option<IndexContent>>,
    /// For each index: the manifests whose signature covers it.
    signed: Vec<Vec<Digest>>,
    /// For each index in `verified`.
    lists: Vec<PrefetchLists>,
    fine: Vec<FineCheck>,
}

impl VerifyPlan {
    async fn make(
        source: &Source,
        mut image: DiscoveredImage,
        options: &VerifyOptions,
    ) -> Result<VerifyPlan, VerifyError> {
        let manifest = image.manifest.digest;
        image
            .indexes
            .retain(|index| options.index.is_none_or(|requested| index.digest == requested));
        image.fine.retain(|index| options.index.is_none_or(|requested| index.digest == requested));
        let mut warnings = documents::warnings(&image);
        let mut differences = Vec::new();
        if image.indexes.is_empty() {
            let text = format!("{manifest} has no SOCI index");
            match options.policy.is_empty() {
                true if image.fine.is_empty() => warnings.push(text),
                true => {}
                false => differences.push(Problem::new(Code::NoIndex, text)),
            }
        }
        if let Some(odd) = &image.odd_annotation {
            let text = format!("{manifest} names a SOCI index by {odd:?}, which is not a digest");
            differences.push(Problem::new(Code::Annotation, text));
        }
        let (diff_ids, wrong) = diff_ids(source, &image).await?;
        differences.extend(wrong);
        if let Err(source) = image.listing {
            return Err(VerifyError::Listing { manifest, source });
        }
        let mut indexes = Vec::new();
        let mut contents = Vec::new();
        let mut signed = Vec::new();
        let mut all_lists = Vec::new();
        let of_fine: Vec<_> =
            image.fine.iter().map(|index| image.signed_for(index.digest, index.via)).collect();
        let subjects: Vec<_> =
            image.indexes.iter().map(|index| image.signed_for(index.digest, index.via)).collect();
        for (reference, of_index) in image.indexes.into_iter().zip(subjects) {
            signed.push(of_index);
            let digest = reference.digest;
            let version = reference.version;
            let (mut differences, content) = documents::of_index(reference)?;
            let mut lists = PrefetchLists::default();
            if let Some(content) = &content {
                lists = PrefetchLists::read(source, content).await?;
                differences.append(&mut lists.differences);
                warnings.append(&mut lists.warnings);
            }
            all_lists.push(lists);
            let tool =
                content.as_ref().and_then(|content| content.index.build_tool_identifier.clone());
            indexes.push(VerifiedIndex {
                digest,
                version,
                tool,
                differences,
                layers: Vec::new(),
                rulings: Vec::new(),
            });
            contents.push(content);
        }
        let fine = image
            .fine
            .into_iter()
            .zip(of_fine)
            .map(|(reference, signed)| FineCheck::make(reference, signed));
        let fine = fine.collect::<Result<_, _>>()?;
        let verified = VerifiedManifest {
            manifest: image.manifest,
            platform: image.platform,
            layers: image.layers.len(),
            indexes,
            fine: Vec::new(),
            content: None,
            differences,
            warnings,
        };
        Ok(VerifyPlan {
            verified,
            layers: image.layers,
            diff_ids,
            contents,
            signed,
            lists: all_lists,
            fine,
        })
    }

    /// The layers that the index covers, without duplicates, in the order of the image.
    fn covered<'a>(
        &'a self,
        content: &'a IndexContent,
    ) -> impl Iterator<Item = (&'a Descriptor, &'a ZtocRef, Option<Digest>)> {
        let first = |at: usize| {
            self.layers.iter().position(|l| l.digest == self.layers[at].digest) == Some(at)
        };
        (self.layers.iter().enumerate()).filter(move |(at, _)| first(*at)).filter_map(
            |(at, layer)| {
                Some((layer, content.ztocs.get(&layer.digest)?, self.diff_ids.get(at).copied()))
            },
        )
    }

    fn jobs(&self, jobs: &mut BTreeMap<(Digest, Digest), LayerClaim>) {
        for content in self.contents.iter().flatten() {
            for (layer, ztoc, diff_id) in self.covered(content) {
                let job = LayerClaim { layer: layer.clone(), ztoc: ztoc.clone(), diff_id };
                jobs.entry((layer.digest, ztoc.ztoc)).or_insert(job);
            }
        }
    }

    /// The signatures of each usable index. None if the policy requires none.
    async fn signatures(
        &self,
        source: &Source,
        policy: &Policy,
    ) -> Result<Vec<Option<Signatures>>, VerifyError> {
        let mut all = Vec::with_capacity(self.contents.len());
        for (content, signed) in self.contents.iter().zip(&self.signed) {
            let requested = content.is_some() && !policy.trust.is_empty();
            all.push(if requested {
                Some(signature::find(source, signed, &policy.trust).await?)
            } else {
                None
            });
        }
        Ok(all)
    }

    fn finish(
        mut self,
        LayerChecks { ztocs: results, documents, .. }: &LayerChecks,
        policy: &Policy,
        signatures: &[Option<Signatures>],
    ) -> VerifiedManifest {
        let mut all = Vec::new();
        let mut rulings = Vec::new();
        for ((content, signatures), lists) in self.contents.iter().zip(signatures).zip(&self.lists)
        {
            let covered = content.iter().flat_map(|content| self.covered(content));
            let layers = covered.filter_map(|(layer, ztoc, _)| {
                let done = results.get(&(layer.digest, ztoc.ztoc))?;
                let compared = done.compared;
                let tool = done.tool.clone();
                let mut differences = done.differences.clone();
                // The spans of an unusable ztoc are not known.
                if compared.of_spans > 0 {
                    differences.extend(lists.of_layer(&layer.digest, compared.of_spans));
                }
                Some(VerifiedLayer {
                    layer: layer.digest,
                    ztoc: ztoc.ztoc,
                    tool,
                    compared,
                    differences,
                })
            });
            all.push(layers.collect());
            rulings.push(content.as_ref().map_or_else(Vec::new, |content| {
                let judged = JudgedIndex {
                    layers: &self.layers,
                    covered: Some(&content.ztocs),
                    signatures: signatures.as_ref(),
                };
                policy::judge(policy, &judged)
            }));
        }
        for ((index, layers), rulings) in self.verified.indexes.iter_mut().zip(all).zip(rulings) {
            index.layers = layers;
            index.rulings = rulings;
        }
        let layers = &self.layers;
        self.verified.fine =
            self.fine.into_iter().map(|plan| plan.finish(layers, documents)).collect();
        self.verified
    }
}

/// The diff IDs in the image's config, and a finding if they are not valid.
async fn diff_ids(
    source: &Source,
    image: &DiscoveredImage,
) -> Result<(Vec<Digest>, Option<Problem>), VerifyError> {
    let digest = image.config.digest;
    let wrong = |text: String| {
        Ok((Vec::new(), Some(Problem::new(Code::Config, format!("config {digest}: {text}")))))
    };
    let bytes = match source.blob_bytes(&image.config, MAX_CONFIG as u64).await {
        Ok(bytes) => bytes,
        Err(error) if Damage::of(&error).is_some() => return wrong(causes(&error)),
        Err(source) => return Err(VerifyError::Config { digest, source }),
    };
    let diff_ids = match config::diff_ids(&bytes) {
        Ok(diff_ids) => diff_ids,
        Err(error) => return wrong(causes(&error)),
    };
    if diff_ids.len() != image.layers.len() {
        return wrong(format!(
            "it lists {} diff IDs for {} layers",
            diff_ids.len(),
            image.layers.len()
        ));
    }
    Ok((diff_ids, None))
}

/// Whether it has nothing to verify.
fn is_bare(image: &DiscoveredImage) -> bool {
    image.indexes.is_empty() && image.fine.is_empty()
}

/// Reports how much will be read. `sizes` has an entry for each reading of a layer.
fn announce(
    plans: &[VerifyPlan],
    sizes: &[u64],
    options: &VerifyOptions,
    progress: &Arc<dyn Progress>,
) {
    let Some(plan) = plans.first().filter(|_| options.depth == Depth::Full) else { return };
    let platform = plan.verified.platform.as_ref().map_or_else(String::new, ToString::to_string);
    let layers = sizes.len();
    let bytes = sizes.iter().sum();
    progress.report(ProgressEvent::Image {
        manifest: plan.verified.manifest.digest,
        platform,
        layers,
        bytes,
    });
}
