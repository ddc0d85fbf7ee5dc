//! `index`: reads an image's layers once, builds the SOCI index of each platform, and attaches it.
//!
//! Each step completes for all platforms of the image before the next one begins:
//!
//! 1. [`resolve`]: finds the manifests of the platforms by the image's name.
//! 2. `existing`: decides what to do about existing indexes.
//! 3. `build`: gets the ztocs of the layers from the cache, from an index that this image names or
//!    one of another image (`reuse`), or by reading layers. Reading uses two threads for each
//!    layer, and more if the layer can be divided by its members or by a ztoc with other options
//!    (see [`parallel`](ociseek_format::layer::parallel)). A broken layer ends the run. After a
//!    deadline, the unfinished layers are left for another run.
//! 4. `check_gate`: checks the requirements.
//! 5. `publish`: writes blobs first, then the index manifest. Until then, only the cache was
//!    written.
//!
//! An index that lacks a layer because time ran out is like any other that lacks it: consumers pull
//! that layer completely. The index cannot state the reason, because its format is soci's. So an
//! index counts as complete only if each missing layer is known to be one that cannot be indexed
//! (see `existing`); otherwise only the missing layers are read again.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use crate::prefetch::PathLookupError;
use crate::resolve::{PlatformManifest, ResolveError, ResolvedImage, resolve};
use ociseek_format::budget::OverBudget;
use ociseek_format::digest::Digest;
use ociseek_format::fine::FineError;
use ociseek_format::image::Descriptor;
use ociseek_format::image::coverage::Coverage;
use ociseek_format::image::enabled::INDEX_DIGEST;
use ociseek_format::layer::LayerError;
use ociseek_format::progress::ProgressEvent;
use ociseek_format::ztoc::ZtocError;
use ociseek_store::blob::Target;
use ociseek_store::{Destination, Source, StoreError, read_times};

mod assemble;
mod build;
mod existing;
mod existing_manifest;
mod fine;
mod model;
mod options;
mod parts;
mod plan;
mod prefetch;
mod publish;
mod reuse;
mod supply;

pub use model::{
    ExistingCheck, IndexedFine, IndexedImage, IndexedManifest, LayerOutcome, LayerReport,
    LeftOutReason, ManifestResult, Origin, OtherIndex, PrefetchSummary, PrefetchedLayer,
    RefusedImage, RefusedManifest, Shortfall, ZtocFacts,
};
pub use options::{Existing, Gate, IndexOptions, Kinds, Reuse, ReuseSource, Work};

pub(crate) use assemble::{IndexedZtoc, assemble, known_outcome, left_out_reason};
pub(crate) use build::{LayersToBuild, ztocs};
pub(crate) use existing_manifest::{BLOBS_SIDE_BY_SIDE, BlobCheck, are_whole, read_at_a_time};
pub(crate) use fine::{BoundFine, bound_fine};
pub(crate) use parts::{is_fit_for_document, is_only_fine, no_document};
pub(crate) use prefetch::{Artifact, OldList, old_lists, prefetch_artifacts};
pub(crate) use publish::{NewBlob, WriteBlob, push_blob, soci_blobs};
pub(crate) use supply::{Layers, ListedZtocs, OwnImage, Supply, WantedParts, cached};

use assemble::unservable;
use existing::Decision;
use fine::FinePlan;
use plan::{IndexPlan, Plans};
use publish::Publisher;

/// Why an image could not be indexed. Nothing was attached, unless [`IndexError::Attach`] says
/// otherwise.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("cannot read {what} {digest}")]
    Document { what: &'static str, digest: Digest, source: StoreError },
    #[error("cannot list the referrers of {subject}")]
    Referrers { subject: Digest, source: StoreError },
    /// `reads` is how many times it was read: what a registry sent is read once more.
    #[error("layer {layer} is broken{}", read_times(*.reads))]
    BrokenLayer { layer: Digest, reads: u32, source: LayerError },
    #[error("layer {layer} does not fit into memory")]
    Memory { layer: Digest, source: OverBudget },
    #[error("the files to prefetch cannot be looked up")]
    PrefetchMemory(#[from] OverBudget),
    #[error("cannot read layer {layer} (stopped after {read} bytes)")]
    ReadLayer { layer: Digest, read: u64, source: StoreError },
    #[error("the thread indexing layer {layer} stopped unexpectedly")]
    LayerThread { layer: Digest },
    /// Readers take only the fine index that such an image names.
    #[error(
        "{image} is SOCI-enabled, and a fine index that is only attached to it would not be used"
    )]
    Enabled { image: Digest },
    /// It could be indexed, but falls short of the gate ([`Gate`]).
    #[error(transparent)]
    Refused(#[from] Box<RefusedImage>),
    #[error(transparent)]
    Prefetch(#[from] PathLookupError),
    #[error("cannot make the fine document of layer {layer}")]
    Fine { layer: Digest, source: FineError },
    #[error("cannot read the spans of layer {layer} that the recorded startup reads")]
    ReadSpans { layer: Digest, source: StoreError },
    #[error("cannot reread the ztoc of layer {layer}")]
    OwnZtoc { layer: Digest, source: ZtocError },
    #[error("the thread looking up the files to prefetch stopped unexpectedly")]
    PrefetchThread,
    #[error("cannot write {what} {digest}")]
    Push { what: &'static str, digest: Digest, source: StoreError },
    #[error(
        "{what} {digest} was written again, but is still damaged there: it must be deleted from the storage first"
    )]
    StaysDamaged { what: &'static str, digest: Digest },
    #[error("cannot attach index {index}")]
    Attach { index: Digest, source: StoreError },
}

impl IndexError {
    fn memory(layer: &Descriptor, source: OverBudget) -> IndexError {
        IndexError::Memory { layer: layer.digest, source }
    }
}

/// The prospect of indexing an image, as far as it is known without reading its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preview {
    /// It lacks an index with these options.
    Pending,
    /// It has everything it can have.
    Complete,
    /// No layer would be indexed, for these reasons.
    NothingToIndex(Vec<LeftOutReason>),
}

/// Examines the indexes attached to an image, and the cached outcomes of its layers.
///
/// # Errors
/// If the attached indexes cannot be looked up.
pub async fn preview(
    image: ResolvedImage,
    destination: &Destination,
    work: Work<'_>,
) -> Result<Preview, IndexError> {
    let mut has_index = false;
    let mut reasons = Vec::new();
    for manifest in image.manifests {
        let plan = IndexPlan::make(manifest, Some(destination), work).await?;
        let mut decisions = vec![&plan.decision];
        decisions.extend(plan.fine.as_ref().map(|fine| &fine.decision));
        decisions.retain(|decision| **decision != Decision::NotRequested);
        has_index |= decisions.iter().all(|decision| !matches!(decision, Decision::Build { .. }));
        for layer in plan.to_build().chain(plan.fine.iter().flat_map(FinePlan::to_build)) {
            match unservable(work.cache, layer, work.options).await {
                Some(reason) => reasons.push(reason),
                None => return Ok(Preview::Pending),
            }
        }
        reasons.extend(plan.left_out.into_iter().flatten());
    }
    Ok(if has_index { Preview::Complete } else { Preview::NothingToIndex(reasons) })
}

/// Indexes the image `root` of `source` and attaches the indexes at `destination`.
///
/// Without a destination (for example in a dry run of an archive), nothing is looked up or written
/// there. The cache, if any, is read, and also written unless this is a dry run.
///
/// # Errors
/// If the image or one of its layers cannot be read, a layer is broken, the index falls short of
/// the gate ([`IndexError::Refused`]), or the destination refuses the index. With several
/// platforms, [`IndexError::Push`] and [`IndexError::Attach`] can occur after some of them got
/// their index. After any other error, nothing was attached.
pub async fn index(
    source: &Source,
    root: &Target,
    destination: Option<&Destination>,
    work: Work<'_>,
) -> Result<IndexedImage, IndexError> {
    let image = resolve(source, root, work.options.wanted(), work.progress).await?;
    // Boxed: in a debug build it takes much of the stack of its caller.
    Ok(Box::pin(index_keeping(source, image, destination, work)).await?.0)
}

/// As [`index`], for an image that was resolved with [`IndexOptions::wanted`]. Also returns the
/// built layers.
pub(crate) async fn index_keeping(
    source: &Source,
    image: ResolvedImage,
    destination: Option<&Destination>,
    work: Work<'_>,
) -> Result<(IndexedImage, Layers), IndexError> {
    let ResolvedImage { digest, manifests, artifacts } = image;
    if let Some(enabled) = manifests.iter().find(|manifest| names_index(manifest)) {
        if work.options.kinds.has_fine() {
            return Err(IndexError::Enabled { image: enabled.descriptor.digest });
        }
        work.progress.report(ProgressEvent::Warning(format!(
            "{} is SOCI-enabled: runtimes take the index that it names, not the one that is attached to it now",
            enabled.descriptor.digest
        )));
    }
    let mut plans = Box::pin(Plans::make(manifests, destination, work)).await?;
    let wanted = plans.wanted();
    let supply = plans.supply(&artifacts, source, destination, work);
    let announce = |unread: &[Descriptor]| plans.announce(unread, &**work.progress);
    let layers = Box::pin(build::ztocs(wanted, None, &supply, announce)).await?;
    check_gate(&plans.each, &layers, work.options).map_err(Box::new)?;

    let mut done = IndexedImage {
        digest,
        manifests: Vec::with_capacity(plans.each.len()),
        bytes_read: layers.bytes_read,
        bytes_compared: layers.bytes_compared,
        bytes_written: 0,
        left: Vec::new(),
    };
    let mut publisher = Publisher {
        source,
        layers: &layers,
        destination,
        work,
        seen: BTreeSet::new(),
        bytes_read: AtomicU64::new(0),
    };
    for mut plan in plans.each {
        if work.options.deadline.is_some() {
            plan.renew(destination, work).await?;
        }
        let (manifest, written) = Box::pin(publisher.publish(plan)).await?;
        done.bytes_written += written;
        for layer in manifest.left() {
            if !done.left.iter().any(|left| left.digest == layer.digest) {
                done.left.push(layer.clone());
            }
        }
        done.manifests.push(manifest);
    }
    done.bytes_read += publisher.bytes_read.into_inner();
    Ok((done, layers))
}

/// Whether the manifest is that of a SOCI-enabled image.
fn names_index(manifest: &PlatformManifest) -> bool {
    manifest.annotations.get(INDEX_DIGEST).is_some_and(|index| !index.is_empty())
}

/// Checks the final indexes against the gate: requirements for builds that depend on the index. An
/// image that falls short is left unchanged on all its platforms.
fn check_gate(
    plans: &[IndexPlan],
    layers: &Layers,
    options: &IndexOptions,
) -> Result<(), RefusedImage> {
    if options.gate == Gate::default() {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    let manifests: Vec<_> =
        plans.iter().map(|plan| judge(plan, layers, options, &mut seen)).collect();
    if manifests.iter().all(|manifest| manifest.shortfalls.is_empty()) {
        Ok(())
    } else {
        Err(RefusedImage { manifests, bytes_read: layers.bytes_read })
    }
}

fn judge(
    plan: &IndexPlan,
    layers: &Layers,
    options: &IndexOptions,
    seen: &mut BTreeSet<Digest>,
) -> RefusedManifest {
    let IndexPlan { manifest, left_out, existing, decision, unopened, .. } = plan;
    let wanted = manifest.layers.iter().zip(left_out);
    let (outcomes, mut covered): (_, BTreeSet<Digest>) = match decision {
        Decision::Build { .. } => {
            let (outcomes, ztocs) = assemble(wanted, layers, seen);
            (outcomes, ztocs.iter().map(|ztoc| ztoc.layer.digest).collect())
        }
        Decision::Done(place) | Decision::Keep(place) => {
            (existing[*place].layers(wanted), existing[*place].covered())
        }
        Decision::NotRequested => (Vec::new(), BTreeSet::new()),
    };
    covered.retain(|layer| !unopened.contains(layer));
    let missing = outcomes.iter().filter_map(|layer| match &layer.outcome {
        LayerOutcome::Listed { .. } if unopened.contains(&layer.descriptor.digest) => {
            Some((&layer.descriptor, &LeftOutReason::Unopened))
        }
        LayerOutcome::LeftOut(reason) => Some((&layer.descriptor, reason)),
        LayerOutcome::Indexed(_) | LayerOutcome::Listed { .. } => None,
    });
    let coverage = Coverage::of(&manifest.layers, |layer| covered.contains(&layer.digest));
    let shortfalls = shortfalls(options, &manifest.layers, &covered, missing);
    let stays = match decision {
        Decision::Build { .. } | Decision::NotRequested => None,
        Decision::Done(place) | Decision::Keep(place) => Some(existing[*place].descriptor.clone()),
    };
    let platform = manifest.platform.as_ref().map(ToString::to_string);
    RefusedManifest {
        platform,
        manifest: manifest.descriptor.clone(),
        layers: outcomes,
        stays,
        coverage,
        shortfalls,
    }
}

/// The requirements of the gate that an index of `layers` does not meet. It covers those in
/// `covered`, and `missing` are the others with their reasons.
pub(crate) fn shortfalls<'a>(
    options: &IndexOptions,
    layers: &[Descriptor],
    covered: &BTreeSet<Digest>,
    missing: impl Iterator<Item = (&'a Descriptor, &'a LeftOutReason)>,
) -> Vec<Shortfall> {
    let Gate { all_servable, least_coverage } = options.gate;
    let min_layer_size = options.min_layer_size;
    let mut shortfalls = Vec::new();
    if all_servable {
        let mut named = BTreeSet::new();
        for (layer, reason) in missing {
            if !matches!(reason, LeftOutReason::Small { .. }) && named.insert(layer.digest) {
                shortfalls.push(Shortfall::LeftOut {
                    layer: Box::new(layer.clone()),
                    reason: reason.clone(),
                });
            }
        }
    }
    // Small layers are left out on purpose.
    let large = layers.iter().filter(|layer| layer.size >= min_layer_size);
    let is = Coverage::of(large, |layer| covered.contains(&layer.digest));
    if let Some(least) = least_coverage.filter(|least| !is.reaches(*least)) {
        shortfalls.push(Shortfall::Coverage { is, least, min_layer_size });
    }
    shortfalls
}
