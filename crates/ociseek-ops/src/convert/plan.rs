//! Determines which images to index, which of their layers, and which SOCI indexes exist. Predicts
//! the result, as far as possible without reading layers or fetching ztocs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::load::{ImageDocuments, load};
use super::model::{ConvertDestination, ConvertError, ExistingImage, SIDE_BY_SIDE, SourceImage};
use super::{keeping_kinds, tocs, wants_document};
use crate::damage::Damage;
use crate::index::{
    BlobCheck, ExistingCheck, IndexOptions, LeftOutReason, ListedZtocs, OldList, Work, are_whole,
    cached, known_outcome, left_out_reason, no_document, old_lists,
};
use crate::trust::proven;
use ociseek_format::digest::Digest;
use ociseek_format::image::enabled::{IndexTarget, SociIndexParts, is_fine_index, soci_indexes};
use ociseek_format::image::fine::{FineIndex, FineRef, parse_bound};
use ociseek_format::image::soci::{self, CONFIG, FoundIndex, INDEX_V2, PREFETCH, ZtocRef};
use ociseek_format::image::{Descriptor, LayerKind, Platform};
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_store::blob::Target;
use ociseek_store::cache::ZtocCache;
use ociseek_store::{Source, StoreError};

/// How many SOCI indexes are read to find ztocs.
const MAX_OFFERS: usize = 64;

/// The images to index; at least one.
pub(super) fn choose(
    loaded: &ImageDocuments,
    platforms: &[Platform],
    progress: &Arc<dyn Progress>,
) -> Result<Vec<IndexTarget>, ConvertError> {
    let chosen = loaded.original.targets(platforms);
    let entries = &loaded.original.index.manifests;
    if !chosen.missing.is_empty() || chosen.targets.is_empty() {
        let list = |platforms: &mut dyn Iterator<Item = &Platform>| {
            platforms.map(Platform::to_string).collect::<Vec<_>>().join(", ")
        };
        let available = list(&mut entries.iter().filter_map(|entry| entry.platform.as_ref()));
        return if chosen.missing.is_empty() {
            Err(ConvertError::NoImage { digest: loaded.root })
        } else {
            Err(ConvertError::NoPlatform { wanted: list(&mut chosen.missing.iter()), available })
        };
    }
    for shadowed in chosen.shadowed.iter().filter_map(|entry| entries.get(*entry)) {
        let platform = shadowed.platform.as_ref().map(Platform::to_string).unwrap_or_default();
        progress.report(ProgressEvent::Warning(format!(
            "{} is a second manifest for {platform}: only the first is indexed, since consumers use that one",
            shadowed.digest
        )));
    }
    Ok(chosen.targets)
}

/// A layer, and why it will not be indexed, if that is known without reading it.
pub(super) type PlannedLayer = (Descriptor, Option<LeftOutReason>);

/// The layers of each target.
pub(super) async fn plan(
    loaded: &ImageDocuments,
    targets: &[IndexTarget],
    from: &SourceImage,
    options: &IndexOptions,
) -> Result<Vec<Vec<PlannedLayer>>, ConvertError> {
    let mut planned = Vec::with_capacity(targets.len());
    for target in targets {
        let manifest =
            loaded.original.contents.get(target.entry).and_then(|content| content.image());
        let mut layers = Vec::new();
        for layer in manifest.map(|manifest| manifest.layers()).unwrap_or_default() {
            let mut why = left_out_reason(layer, options);
            // soci indexes foreign gzip layers, and fails if they are stored elsewhere.
            let is_foreign = LayerKind::of(&layer.media_type) == LayerKind::Foreign;
            if is_foreign
                && LayerKind::is_gzip(&layer.media_type)
                && layer.size >= options.min_layer_size
            {
                let exists = from.source.blob_exists(layer).await;
                let failed =
                    |source| ConvertError::Document { what: "layer", digest: layer.digest, source };
                why = why.filter(|_| !matches!(exists, Ok(true)));
                exists.map_err(failed)?;
            }
            layers.push((layer.clone(), why));
        }
        planned.push(layers);
    }
    Ok(planned)
}

/// The SOCI indexes (version 2) among the entries of an image index, each with its entry. Those
/// that are missing or damaged are ignored.
///
/// # Errors
/// If the store does not send one of them. Replacing it would lose its prefetch list.
async fn listed_soci<'a>(
    store: &Source,
    manifests: &'a [Descriptor],
) -> Result<Vec<(&'a Descriptor, FoundIndex)>, StoreError> {
    // Collected first, because a closure in the stream would prevent the future from being Send.
    let reads: Vec<_> = soci_indexes(manifests)
        .take(MAX_OFFERS)
        .map(|listed| async move { (listed, store.manifest(&Target::Digest(listed.digest)).await) })
        .collect();
    let mut reads = stream::iter(reads).buffered(SIDE_BY_SIDE);
    let mut indexes = Vec::new();
    while let Some((listed, read)) = reads.next().await {
        match read {
            Ok(document) => {
                indexes.extend(soci::parse(&document.bytes).ok().map(|index| (listed, index)))
            }
            Err(error) if Damage::of(&error).is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(indexes)
}

/// The fine indexes among the entries of an image index. Those that are missing or damaged are
/// ignored.
///
/// # Errors
/// If the store does not send one of them.
async fn listed_fine(
    store: &Source,
    manifests: &[Descriptor],
) -> Result<Vec<FineIndex>, StoreError> {
    let mut indexes = Vec::new();
    for listed in manifests.iter().filter(|listed| is_fine_index(listed)).take(MAX_OFFERS) {
        match store.manifest(&Target::Digest(listed.digest)).await {
            Ok(document) => indexes.extend(parse_bound(&document.bytes).ok()),
            Err(error) if Damage::of(&error).is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(indexes)
}

/// A SOCI index (version 2) in an image index.
pub(super) struct OldIndex {
    store: Source,
    platform: Option<Platform>,
    tool: Option<String>,
    ztocs: Vec<ZtocRef>,
    pub lists: Vec<OldList>,
}

impl OldIndex {
    fn of(store: &Source, listed: &Descriptor, index: FoundIndex) -> OldIndex {
        let lists = old_lists(store, &index.ztocs, &index.others);
        let platform = listed.platform.clone();
        let tool = index.build_tool_identifier;
        OldIndex { store: store.clone(), platform, tool, ztocs: index.ztocs, lists }
    }

    pub(super) fn is_for(&self, target: &IndexTarget) -> bool {
        self.platform.as_ref().is_some_and(|platform| platform.matches(&target.platform))
    }

    pub(super) fn listed(self) -> ListedZtocs {
        let OldIndex { store, tool, ztocs, .. } = self;
        ListedZtocs { store, tool, ztocs }
    }
}

/// The SOCI indexes among the entries of an image index.
///
/// # Errors
/// As [`listed_soci`].
pub(super) async fn old_indexes(
    store: &Source,
    manifests: &[Descriptor],
) -> Result<Vec<OldIndex>, StoreError> {
    let indexes = listed_soci(store, manifests).await?.into_iter();
    Ok(indexes.map(|(listed, index)| OldIndex::of(store, listed, index)).collect())
}

impl ImageDocuments {
    /// The SOCI indexes of the original image.
    pub(super) fn old_indexes(&self, store: &Source) -> Vec<OldIndex> {
        let listed = soci_indexes(&self.original.index.manifests);
        let index = |listed: &Descriptor| soci::parse(self.unchanged.get(&listed.digest)?).ok();
        listed.filter_map(|listed| Some(OldIndex::of(store, listed, index(listed)?))).collect()
    }
}

/// Whether an image already has its SOCI-enabled image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConvertPreview {
    /// The SOCI-enabled image does not exist, is a different one, or lacks blobs of its SOCI
    /// indexes.
    Pending,
    /// Exactly this image exists, with the blobs of its SOCI indexes.
    Complete(CompleteImage),
    /// No layer can be indexed, for these reasons.
    NothingToIndex(Vec<LeftOutReason>),
}

/// A SOCI-enabled image that already exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompleteImage {
    /// The digest of its image index.
    pub digest: Digest,
    /// What its ztocs and fine documents were compared with.
    pub check: ExistingCheck,
}

/// Examines the content of the destination's name. What the ztocs there say is compared with
/// nothing but the cache.
///
/// An image whose SOCI indexes list prefetch artifacts counts as complete if `options` requests no
/// prefetch list.
///
/// # Errors
/// If the image cannot be read, has nothing that could be converted, or the guard forbids writing
/// it.
pub async fn preview(
    from: &SourceImage,
    to: &ConvertDestination,
    work: Work<'_>,
) -> Result<ConvertPreview, ConvertError> {
    let existing = to.there().await?;
    compare(from, to, existing, work).await
}

/// The SOCI-enabled image, if the destination's name already refers to it and the blobs of its SOCI
/// indexes exist. If the name is free, this takes a single request.
///
/// # Errors
/// As [`preview`].
pub async fn up_to_date(
    from: &SourceImage,
    to: &ConvertDestination,
    work: Work<'_>,
) -> Result<Option<CompleteImage>, ConvertError> {
    let Some(existing) = to.there().await? else { return Ok(None) };
    match compare(from, to, Some(existing), work).await? {
        ConvertPreview::Complete(image) => Ok(Some(image)),
        ConvertPreview::Pending | ConvertPreview::NothingToIndex(_) => Ok(None),
    }
}

async fn compare(
    from: &SourceImage,
    to: &ConvertDestination,
    existing: Option<ExistingImage>,
    work: Work<'_>,
) -> Result<ConvertPreview, ConvertError> {
    let Work { cache, progress, .. } = work;
    let loaded = load(from, progress).await?;
    let with_kinds = keeping_kinds(&loaded, existing.as_ref(), work.options);
    let options = with_kinds.as_ref().unwrap_or(work.options);
    to.admit(existing.as_ref(), from, &loaded.root).await?;
    let targets = choose(&loaded, &options.platforms, progress)?;
    let planned = plan(&loaded, &targets, from, options).await?;
    let known = match (&existing, &to.destination) {
        (Some(existing), Some(destination)) => {
            listed_soci(&destination.as_source(), &existing.manifests)
                .await
                .map_err(ConvertError::Destination)?
        }
        _ => Vec::new(),
    };
    let known: Vec<FoundIndex> = known.into_iter().map(|(_, index)| index).collect();
    let known_fine = match (&existing, &to.destination) {
        (Some(existing), Some(destination)) if options.kinds.has_fine() => {
            let indexes = listed_fine(&destination.as_source(), &existing.manifests).await;
            indexes.map_err(ConvertError::Destination)?
        }
        _ => Vec::new(),
    };
    let mut indexed = Vec::with_capacity(targets.len());
    let mut reasons = Vec::new();
    let mut fine_documents = Vec::new();
    for (target, layers) in targets.into_iter().zip(planned) {
        let mut ztocs = Vec::new();
        let mut documents = BTreeSet::new();
        for planned in layers {
            if wants_document(&planned, options) {
                let outcome = cached(cache, &planned.0, options).await;
                match outcome.and_then(|outcome| no_document(&planned.0, &outcome)) {
                    None => drop(documents.insert(planned.0.digest)),
                    // Otherwise it is the reason why it has no ztoc.
                    Some(why) if !options.kinds.has_soci() => reasons.push(why),
                    Some(_) => {}
                }
            }
            let (layer, why) = planned;
            match why {
                Some(why) => reasons.push(why),
                None if !options.kinds.has_soci() => {}
                None => match (
                    ztoc(&known, &layer, options),
                    known_outcome(cache, &layer, options).await,
                ) {
                    // This machine built another one, so what is there is wrong.
                    (Some(ztoc), Some(Ok(built))) if built != ztoc.ztoc => {
                        return Ok(ConvertPreview::Pending);
                    }
                    (Some(ztoc), _) => ztocs.push(ztoc),
                    (None, Some(Err(why))) => reasons.push(why),
                    (None, _) => return Ok(ConvertPreview::Pending),
                },
            }
        }
        let fine = if documents.is_empty() {
            None
        } else {
            match fine_for(&known_fine, &documents, options) {
                Some(fine) => Some(fine.clone()),
                None => return Ok(ConvertPreview::Pending),
            }
        };
        let prefetch =
            if options.prefetch.is_none() { prefetch(&known, &ztocs) } else { Vec::new() };
        fine_documents.extend(fine.iter().flat_map(|fine| fine.layers.clone()));
        let fine = fine.map(|fine| fine.encode());
        let mut parts = SociIndexParts { target, ztocs, prefetch, fine, tocs: BTreeMap::new() };
        if options.names_tocs {
            parts.tocs = tocs(&parts);
        }
        indexed.push(parts);
    }
    if indexed.iter().all(|indexed| indexed.ztocs.is_empty() && indexed.fine.is_none()) {
        return Ok(ConvertPreview::NothingToIndex(reasons));
    }
    let enabled = loaded.original.enable(&indexed, &options.layer.build_tool_identifier);
    let is_there = existing.is_some_and(|existing| existing.digest == enabled.digest);
    let Some(destination) = to.destination.as_ref().filter(|_| is_there) else {
        return Ok(ConvertPreview::Pending);
    };
    // A registry's garbage collection may have deleted blobs. Then the image is written again.
    Ok(
        if are_whole(
            destination,
            blobs(&indexed).chain(fine_documents.iter().map(FineRef::blob)),
            BlobCheck::Size,
        )
        .await?
        {
            let check = check_of(&indexed, &fine_documents, cache).await;
            ConvertPreview::Complete(CompleteImage { digest: enabled.digest, check })
        } else {
            ConvertPreview::Pending
        },
    )
}

/// The fine index with a document for each of the `wanted` layers, for the requested options.
fn fine_for<'a>(
    known: &'a [FineIndex],
    wanted: &BTreeSet<Digest>,
    options: &IndexOptions,
) -> Option<&'a FineIndex> {
    let profile = options.prefetch.as_ref().map(|list| list.digest());
    known.iter().find(|fine| {
        fine.build_tool.as_deref() == Some(&options.layer.build_tool_identifier)
            && fine.profile == profile
            && fine.layers.iter().map(|document| document.layer).collect::<BTreeSet<_>>() == *wanted
    })
}

/// What is known about the content of a SOCI-enabled image with these SOCI indexes and fine
/// documents. Anyone who may push to the destination can have written its prefetch lists.
async fn check_of(
    indexed: &[SociIndexParts],
    fine: &[FineRef],
    cache: Option<&ZtocCache>,
) -> ExistingCheck {
    let Some(cache) = cache.filter(|_| indexed.iter().all(|index| index.prefetch.is_empty()))
    else {
        return ExistingCheck::Listed;
    };
    let ztocs =
        indexed.iter().flat_map(|index| index.ztocs.iter().map(|ztoc| (ztoc.layer, ztoc.ztoc)));
    let documents = ztocs.chain(fine.iter().map(|fine| (fine.layer, fine.head_digest)));
    let documents: Vec<(Digest, Digest)> = documents.collect();
    let count = documents.len();
    if proven(cache, documents).await.len() == count {
        ExistingCheck::Cached
    } else {
        ExistingCheck::Listed
    }
}

/// The blobs of the SOCI indexes.
fn blobs(indexed: &[SociIndexParts]) -> impl Iterator<Item = Descriptor> {
    let ztocs = indexed.iter().flat_map(|index| index.ztocs.iter().map(ZtocRef::blob));
    let prefetch = indexed.iter().flat_map(|index| index.prefetch.iter().cloned());
    ztocs.chain(prefetch).chain([Descriptor::of(INDEX_V2, CONFIG)])
}

/// The ztoc of a layer for the requested options.
fn ztoc(known: &[FoundIndex], layer: &Descriptor, options: &IndexOptions) -> Option<ZtocRef> {
    let mut ztocs = known.iter().flat_map(|index| &index.ztocs);
    ztocs
        .find(|ztoc| ztoc.layer == layer.digest && ztoc.span_size == options.layer.span_size)
        .cloned()
}

/// The prefetch artifacts of the index with exactly these ztocs.
fn prefetch(known: &[FoundIndex], ztocs: &[ZtocRef]) -> Vec<Descriptor> {
    let index = known.iter().find(|index| index.ztocs == ztocs);
    let artifacts = index.into_iter().flat_map(|index| &index.others);
    artifacts.filter(|artifact| artifact.media_type == PREFETCH).cloned().collect()
}
