//! `convert`: writes an image under a new name that names its indexes: a SOCI-enabled image
//! (version 2), with a fine index or without, or one that names only its fine index.
//!
//! Each step completes before the next one begins:
//!
//! 1. `load`: the image's documents, within limits.
//! 2. [`image::enabled`](ociseek_format::image::enabled) chooses the images to index.
//! 3. Their ztocs come from the cache, from the index that the original image names, from images
//!    that the user names, or from the layers, which are only read.
//! 4. [`image::enabled`](ociseek_format::image::enabled) makes the new documents. If they already
//!    exist with all of their blobs, nothing is done.
//! 5. `publish`: blobs first, then manifests, then the image index under its tag. Until the last
//!    request the tag is unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::index::{
    Artifact, BoundFine, Gate, IndexError, IndexOptions, IndexedZtoc, Kinds, LayerOutcome,
    LayerReport, Layers, LayersToBuild, LeftOutReason, OwnImage, PrefetchSummary, RefusedImage,
    RefusedManifest, Supply, WantedParts, Work, assemble, bound_fine, is_fit_for_document,
    is_only_fine, no_document, prefetch_artifacts, shortfalls, ztocs,
};
use crate::resolve::PlatformManifest;
use ociseek_format::budget::Budget;
use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::image::Descriptor;
use ociseek_format::image::coverage::Coverage;
use ociseek_format::image::enabled::{
    EnabledDocuments, IndexTarget, SociIndexParts, is_fine_index, is_soci_index, names_indexes,
    soci_indexes,
};
use ociseek_format::image::fine::parse_bound;
use ociseek_format::progress::{Progress, ProgressEvent, causes};

mod load;
mod model;
mod plan;
mod publish;

pub use model::{
    ConvertDestination, ConvertError, ConvertReport, ConvertStatus, ConvertedImage, Guard,
    MAX_DOCUMENTS, MAX_MANIFESTS, SourceImage,
};
pub use plan::{CompleteImage, ConvertPreview, preview, up_to_date};

use load::ImageDocuments;
use model::ExistingImage;
use plan::{OldIndex, PlannedLayer, choose, old_indexes, plan};
use publish::{NewBlobs, Publication};

/// Converts an image. `options` determines how layers are indexed and which platforms are. Its
/// options for existing indexes are ignored. Its kinds say which indexes the image names.
///
/// People sign the result, so its ztocs come only from what this machine read, from the index that
/// the original image names, or from images that the user names. What the destination's tag or a
/// referrer says is not used, not even its prefetch lists.
///
/// # Errors
/// If the image cannot be read, has an invalid document or a broken layer, has nothing to index, or
/// falls short of the gate ([`IndexError::Refused`]), if the destination refuses it, or if the
/// deadline passes before all layers are indexed. After any error, the destination's tag is
/// unchanged.
pub async fn convert(
    from: &SourceImage,
    to: &ConvertDestination,
    work: Work<'_>,
) -> Result<ConvertReport, ConvertError> {
    convert_built(from, to, None, work).await
}

/// How often a conversion starts again because another writer of the tag was faster.
const OTHER_WRITERS: u32 = 3;

/// Like [`convert`], with layers of the image that were already built.
pub(crate) async fn convert_built(
    from: &SourceImage,
    to: &ConvertDestination,
    mut built: Option<Layers>,
    work: Work<'_>,
) -> Result<ConvertReport, ConvertError> {
    for _ in 0..OTHER_WRITERS {
        match Box::pin(convert_once(from, to, built.take(), work)).await {
            Err(ConvertError::Changed { .. }) if to.guard.is_some() => {}
            result => return result,
        }
    }
    Box::pin(convert_once(from, to, None, work)).await
}

async fn convert_once(
    from: &SourceImage,
    to: &ConvertDestination,
    built: Option<Layers>,
    work: Work<'_>,
) -> Result<ConvertReport, ConvertError> {
    let loaded = load::load(from, work.progress).await?;
    let existing = to.there().await?;
    let with_kinds = keeping_kinds(&loaded, existing.as_ref(), work.options);
    let work = Work { options: with_kinds.as_ref().unwrap_or(work.options), ..work };
    let Work { options, progress, .. } = work;
    let is_within = to.destination.as_ref().is_some_and(|destination| destination.is(&from.source));
    let is_source =
        is_within && existing.as_ref().is_some_and(|existing| existing.digest == loaded.root);
    if with_kinds.is_some() {
        progress.report(ProgressEvent::Warning(
            "the image at the destination names a SOCI index or a fine index that was not asked \
             for, so the new one gets both"
                .to_owned(),
        ));
    }
    let artifacts: Vec<Descriptor> =
        soci_indexes(&loaded.original.index.manifests).cloned().collect();
    let already_enabled = names_indexes(&loaded.original.index.manifests);
    if is_source && !to.replace_tag && !already_enabled {
        return Err(ConvertError::SourceTag { digest: loaded.root });
    }
    to.admit(existing.as_ref(), from, &loaded.root).await?;
    let targets = choose(&loaded, &options.platforms, progress)?;

    let planned = plan(&loaded, &targets, from, options).await?;
    let mut wanted = LayersToBuild::default();
    for planned in planned.iter().flatten() {
        let (layer, left_out) = planned;
        let ztoc = options.kinds.has_soci() && left_out.is_none();
        let parts = WantedParts { ztoc, document: wants_document(planned, options) };
        if !parts.is_nothing() {
            wanted.add(layer, parts);
        }
    }
    let old = loaded.old_indexes(&from.source);
    let known = match (&existing, &to.destination) {
        (Some(existing), Some(destination)) => {
            let indexes = old_indexes(&destination.as_source(), &existing.manifests).await;
            let indexes = indexes.map_err(ConvertError::Destination)?;
            if options.prefetch.is_none() && old.iter().all(|own| own.lists.is_empty()) {
                warn_of_lists(&indexes, progress);
            }
            indexes.into_iter().map(OldIndex::listed).collect()
        }
        _ => Vec::new(),
    };
    let manifests: Vec<PlatformManifest> =
        targets.iter().filter_map(|target| loaded.image(target)).collect();
    let own = OwnImage { manifests: manifests.iter().collect(), artifacts: &artifacts };
    let supply = Supply { source: &from.source, work, known, own };
    let announce = |unread: &[Descriptor]| {
        let bytes = unread.iter().map(|layer| layer.size).sum();
        let platform = String::new();
        progress.report(ProgressEvent::Image {
            manifest: loaded.root,
            platform,
            layers: unread.len(),
            bytes,
        });
    };
    let layers = Box::pin(ztocs(wanted, built, &supply, announce)).await?;

    let EnabledParts { mut indexed, ztocs, prefetch, reports } = parts(
        targets.into_iter().zip(&planned),
        &layers,
        &old,
        options,
        from.source.budget(),
        progress,
    )
    .await?;
    let mut fine = Vec::new();
    if options.kinds.has_fine() {
        for (parts, planned) in indexed.iter_mut().zip(&planned) {
            let bound = fine_of(planned, &layers, from, work).await?;
            parts.fine = bound.as_ref().map(|bound| bound.index.clone());
            fine.extend(bound);
        }
    }
    if options.names_tocs {
        for parts in &mut indexed {
            parts.tocs = tocs(parts);
        }
    }
    if indexed.iter().all(|parts| parts.ztocs.is_empty() && parts.fine.is_none()) {
        return Err(ConvertError::NothingToIndex {
            layers: reports.into_iter().flat_map(|(layers, _)| layers).collect(),
        });
    }
    let mut enabled =
        loaded.original.clone().enable(&indexed, &options.layer.build_tool_identifier);
    let images = report(&loaded, &enabled, &indexed, reports);
    check(&images, &loaded, &indexed, layers.bytes_read, options)?;
    let mut converted = ConvertReport {
        source: loaded.root,
        digest: enabled.digest,
        size: enabled.bytes.len() as u64,
        images,
        outcome: ConvertStatus::AlreadyThere,
        bytes_read: layers.bytes_read + fine.iter().map(|fine| fine.bytes_read).sum::<u64>(),
        bytes_compared: layers.bytes_compared,
        bytes_copied: 0,
        bytes_written: 0,
    };
    let there_before = existing.as_ref().map(|existing| existing.digest);
    let replaces =
        existing.map(|existing| existing.digest).filter(|digest| *digest != enabled.digest);
    if is_source && replaces.is_some() && !to.replace_tag {
        return Err(ConvertError::SourceTag { digest: loaded.root });
    }
    let Some(destination) = to.destination.as_ref().filter(|_| !options.dry_run) else {
        converted.outcome = ConvertStatus::DryRun { replaces };
        return Ok(converted);
    };
    let new_blobs = NewBlobs::new(&ztocs, &prefetch, fine);
    // Reading the layers may have taken a while, so it looks again at what is there.
    let written = loop {
        let publication = Publication {
            loaded: &loaded,
            enabled: &enabled,
            new_blobs: &new_blobs,
            source_is_enabled: already_enabled,
            from,
            to,
            there: there_before,
            options,
            jobs: options.jobs,
            progress,
        };
        match publication.run(destination).await {
            Err(ConvertError::RefusedSubject { digest, source }) => {
                let why = causes(&source);
                progress.report(ProgressEvent::Warning(format!(
                    "the registry refuses {digest}, an artifact with a subject (an attestation, for example), so the \
                     converted image omits it: {why}"
                )));
                enabled = enabled.without(&digest);
                (converted.digest, converted.size) = (enabled.digest, enabled.bytes.len() as u64);
            }
            written => break written?,
        }
    };
    if let Some(written) = written {
        converted.bytes_copied = written.copied;
        converted.bytes_written = written.written;
        converted.outcome = ConvertStatus::Written { replaced: replaces };
    }
    Ok(converted)
}

/// Reports that the prefetch lists of the destination's indexes are not copied.
fn warn_of_lists(old: &[OldIndex], progress: &Arc<dyn Progress>) {
    if old.iter().any(|index| !index.lists.is_empty()) {
        progress.report(ProgressEvent::Warning(
            "the image at the destination has a prefetch list, which is not copied: anyone who may push there can \
             have written it; to have one, name its files with --profile"
                .to_owned(),
        ));
    }
}

/// The options with both kinds of index, if the image at the destination names one that was not
/// asked for: a hook and a CI step with other options would otherwise replace each other's image
/// for ever. The index is made from what this machine reads, as with the option. An index that the
/// source itself names stays as it is.
fn keeping_kinds(
    loaded: &ImageDocuments,
    existing: Option<&ExistingImage>,
    options: &IndexOptions,
) -> Option<IndexOptions> {
    let existing = existing.filter(|existing| existing.digest != loaded.root)?;
    let of_source = &loaded.original.index.manifests;
    let added = || {
        let is_of_source =
            |entry: &Descriptor| of_source.iter().any(|known| known.digest == entry.digest);
        existing.manifests.iter().filter(move |entry| !is_of_source(entry))
    };
    let lacks_fine = !options.kinds.has_fine() && added().any(is_fine_index);
    let lacks_soci = !options.kinds.has_soci() && added().any(is_soci_index);
    (lacks_fine || lacks_soci).then(|| IndexOptions { kinds: Kinds::Both, ..options.clone() })
}

/// Whether a layer gets a fine document, as far as that is known without reading it.
fn wants_document((layer, left_out): &PlannedLayer, options: &IndexOptions) -> bool {
    let is_indexed = left_out.is_none() || is_only_fine(layer, options);
    // A document refers to its layer by SHA-256.
    options.kinds.has_fine() && is_indexed && layer.digest.algorithm() == Algorithm::Sha256
}

/// Whether time ran out before the document of a layer was made.
fn lacks_document(planned: &PlannedLayer, layers: &Layers, options: &IndexOptions) -> bool {
    wants_document(planned, options) && layers.lacks(&planned.0, WantedParts::DOCUMENT).document
}

/// The parts of the SOCI indexes.
#[derive(Default)]
struct EnabledParts<'a> {
    /// One for each image, in order.
    indexed: Vec<SociIndexParts>,
    /// Those of all images.
    ztocs: Vec<IndexedZtoc<'a>>,
    /// Those of all images.
    prefetch: Vec<Artifact>,
    /// For each image, in order, its layers and its prefetch list.
    reports: Vec<(Vec<LayerReport>, Option<PrefetchSummary>)>,
}

/// Makes the parts of the SOCI indexes from the `layers` that were built.
///
/// # Errors
/// If a layer is missing because the deadline passed, or a prefetch list cannot be made.
async fn parts<'a>(
    planned: impl Iterator<Item = (IndexTarget, &'a Vec<PlannedLayer>)>,
    layers: &'a Layers,
    old: &[OldIndex],
    options: &IndexOptions,
    budget: &Budget,
    progress: &Arc<dyn Progress>,
) -> Result<EnabledParts<'a>, ConvertError> {
    let is_left = |layer: &&LayerReport| {
        matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::OutOfTime { .. }))
    };
    let mut parts = EnabledParts::default();
    let mut seen = BTreeSet::new();
    let mut left = BTreeSet::new();
    for (target, planned) in planned {
        let lacking = planned.iter().filter(|planned| lacks_document(planned, layers, options));
        left.extend(lacking.map(|(layer, _)| layer.digest));
        let (report, ztocs) = if options.kinds.has_soci() {
            assemble(planned.iter().map(|(layer, why)| (layer, why)), layers, &mut seen)
        } else {
            (without_document(planned, layers, options), Vec::new())
        };
        let refs = ztocs.iter().map(|ztoc| ztoc.reference(options.layer.span_size)).collect();
        let lists = old.iter().filter(|old| old.is_for(&target)).map(|old| &old.lists[..]);
        // Without a SOCI index, what a list names is only in the fine index.
        let has_soci = options.kinds.has_soci();
        let mut lists = lists.into_iter().filter(|lists| has_soci && !lists.is_empty());
        let lists = lists.next().unwrap_or_default();
        let list = options.prefetch.as_ref().filter(|_| has_soci);
        let (prefetch, summary) = prefetch_artifacts(list, lists, &ztocs, budget, progress).await?;
        let listed = prefetch.iter().map(|artifact| artifact.descriptor.clone()).collect();
        parts.indexed.push(SociIndexParts {
            target,
            ztocs: refs,
            prefetch: listed,
            fine: None,
            tocs: BTreeMap::new(),
        });
        parts.prefetch.extend(prefetch);
        left.extend(report.iter().filter(is_left).map(|layer| layer.descriptor.digest));
        parts.reports.push((report, summary));
        parts.ztocs.extend(ztocs);
    }
    if left.is_empty() { Ok(parts) } else { Err(ConvertError::OutOfTime { left: left.len() }) }
}

/// What each layer is read by, by the digest of the layer: the head of its fine document, or its
/// ztoc. A reader verifies either of them when it opens the layer.
pub(super) fn tocs(parts: &SociIndexParts) -> BTreeMap<Digest, Digest> {
    let mut tocs: BTreeMap<Digest, Digest> =
        parts.ztocs.iter().map(|ztoc| (ztoc.layer, ztoc.ztoc)).collect();
    // The bytes were made here, so they can be parsed.
    let fine = parts.fine.as_ref().and_then(|fine| parse_bound(&fine.bytes).ok());
    tocs.extend(
        fine.into_iter()
            .flat_map(|fine| fine.layers)
            .map(|document| (document.layer, document.head_digest)),
    );
    tocs
}

/// The layers of an image that get no fine document, and why.
fn without_document(
    planned: &[PlannedLayer],
    layers: &Layers,
    options: &IndexOptions,
) -> Vec<LayerReport> {
    let left_out = planned.iter().filter_map(|planned| {
        let (layer, left_out) = planned;
        if !wants_document(planned, options) {
            let why = left_out.clone().filter(|_| !is_fit_for_document(layer, options));
            return Some((layer, why.unwrap_or(LeftOutReason::NotSha256)));
        }
        if lacks_document(planned, layers, options) {
            return Some((layer, LeftOutReason::OutOfTime { stuck: layers.stuck }));
        }
        Some((layer, no_document(layer, &layers.get(layer)?.outcome)?))
    });
    left_out
        .map(|(layer, reason)| LayerReport {
            descriptor: layer.clone(),
            outcome: LayerOutcome::LeftOut(reason),
        })
        .collect()
}

/// The fine index for the layers of an image that can have a document.
async fn fine_of(
    planned: &[PlannedLayer],
    layers: &Layers,
    from: &SourceImage,
    work: Work<'_>,
) -> Result<Option<BoundFine>, ConvertError> {
    let mut seen = BTreeSet::new();
    let wanted = planned.iter().filter(|planned| wants_document(planned, work.options));
    let wanted: Vec<Descriptor> =
        wanted.map(|(layer, _)| layer).filter(|layer| seen.insert(layer.digest)).cloned().collect();
    Ok(bound_fine(&from.source, layers, &wanted, work).await?)
}

/// The result for each image that was to be indexed.
fn report(
    loaded: &ImageDocuments,
    enabled: &EnabledDocuments,
    indexed: &[SociIndexParts],
    reports: Vec<(Vec<LayerReport>, Option<PrefetchSummary>)>,
) -> Vec<ConvertedImage> {
    let mut made = enabled.indexes.iter();
    let mut images = Vec::with_capacity(indexed.len());
    for (SociIndexParts { target, ztocs: refs, fine, .. }, (layers, prefetch)) in
        indexed.iter().zip(reports)
    {
        let new = enabled.manifests.iter().find(|manifest| manifest.entry == target.entry);
        let was = loaded.original.index.manifests.get(target.entry).map(|entry| entry.digest);
        let covered: BTreeSet<Digest> = match fine.as_ref().filter(|_| refs.is_empty()) {
            // The bytes were made here, so they can be parsed.
            Some(fine) => parse_bound(&fine.bytes)
                .map(|fine| fine.layers.iter().map(|document| document.layer).collect())
                .unwrap_or_default(),
            None => refs.iter().map(|ztoc| ztoc.layer).collect(),
        };
        let descriptors = loaded.image(target).map(|image| image.layers).unwrap_or_default();
        images.push(ConvertedImage {
            platform: target.platform.clone(),
            was: was.unwrap_or(loaded.root),
            manifest: new.map_or(loaded.root, |new| new.digest),
            index: if refs.is_empty() {
                None
            } else {
                made.next().map(|made| made.descriptor.clone())
            },
            fine: fine.as_ref().map(|fine| fine.descriptor.clone()),
            coverage: Coverage::of(&descriptors, |layer| covered.contains(&layer.digest)),
            layers,
            prefetch,
        });
    }
    images
}

/// Checks the requirements, for all images before anything is written.
fn check(
    images: &[ConvertedImage],
    loaded: &ImageDocuments,
    indexed: &[SociIndexParts],
    bytes_read: u64,
    options: &IndexOptions,
) -> Result<(), ConvertError> {
    if options.gate == Gate::default() {
        return Ok(());
    }
    let mut manifests = Vec::new();
    for (image, parts) in images.iter().zip(indexed) {
        let Some(original) = loaded.image(&parts.target) else { continue };
        let covered: BTreeSet<Digest> = parts.ztocs.iter().map(|ztoc| ztoc.layer).collect();
        let missing = image.layers.iter().filter_map(|layer| match &layer.outcome {
            LayerOutcome::LeftOut(reason) => Some((&layer.descriptor, reason)),
            LayerOutcome::Indexed(_) | LayerOutcome::Listed { .. } => None,
        });
        manifests.push(RefusedManifest {
            platform: Some(image.platform.to_string()),
            manifest: original.descriptor,
            shortfalls: shortfalls(options, &original.layers, &covered, missing),
            layers: image.layers.clone(),
            stays: None,
            coverage: Coverage::of(&original.layers, |layer| covered.contains(&layer.digest)),
        });
    }
    if manifests.iter().all(|manifest| manifest.shortfalls.is_empty()) {
        Ok(())
    } else {
        Err(IndexError::from(Box::new(RefusedImage { manifests, bytes_read })).into())
    }
}

/// Whether all layers that are not indexed are small.
pub fn are_small(layers: &[LayerReport]) -> bool {
    !layers.is_empty()
        && layers.iter().all(|layer| {
            matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::Small { .. }))
        })
}
