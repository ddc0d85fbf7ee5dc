//! Determines which images to index, which of their layers, and which SOCI indexes exist.

use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::error::ConvertError;
use super::limits::SIDE_BY_SIDE;
use super::load::ImageDocuments;
use super::model::SourceImage;
use crate::damage::Damage;
use crate::index::{IndexOptions, LeftOutReason, left_out_reason};
use ociseek_format::image::enabled::{IndexTarget, is_fine_index, soci_indexes};
use ociseek_format::image::fine::{FineIndex, parse_bound};
use ociseek_format::image::soci::{self, FoundIndex};
use ociseek_format::image::{Descriptor, LayerKind, Platform};
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_store::blob::Target;
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
        return match chosen.missing.is_empty() {
            true => Err(ConvertError::NoImage { digest: loaded.root }),
            false => Err(ConvertError::NoPlatform { wanted: list(&mut chosen.missing.iter()), available }),
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
        let manifest = loaded.original.contents.get(target.entry).and_then(|content| content.image());
        let mut layers = Vec::new();
        for layer in manifest.map(|manifest| manifest.layers()).unwrap_or_default() {
            let mut why = left_out_reason(layer, options);
            // soci indexes foreign gzip layers, and fails if they are stored elsewhere.
            let is_foreign = LayerKind::of(&layer.media_type) == LayerKind::Foreign;
            if is_foreign && LayerKind::is_gzip(&layer.media_type) && layer.size >= options.min_layer_size {
                let exists = from.source.blob_exists(layer).await;
                let failed = |source| ConvertError::Document { what: "layer", digest: layer.digest, source };
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
pub(super) async fn found<'a>(
    store: &Source,
    manifests: &'a [Descriptor],
) -> Result<Vec<(&'a Descriptor, FoundIndex)>, StoreError> {
    // Collected first, because a closure in the stream would prevent the future from being Send.
    let reads: Vec<_> = soci_indexes(manifests)
        .take(MAX_OFFERS)
        .map(|listed| async move { (listed, store.manifest(&Target::Digest(listed.digest)).await) })
        .collect();
    let mut reads = stream::iter(reads).buffered(SIDE_BY_SIDE);
    let mut found = Vec::new();
    while let Some((listed, read)) = reads.next().await {
        match read {
            Ok(document) => found.extend(soci::parse(&document.bytes).ok().map(|index| (listed, index))),
            Err(error) if Damage::of(&error).is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The fine indexes among the entries of an image index. Those that are missing or damaged are
/// ignored.
///
/// # Errors
/// If the store does not send one of them.
pub(super) async fn found_fine(store: &Source, manifests: &[Descriptor]) -> Result<Vec<FineIndex>, StoreError> {
    let mut found = Vec::new();
    for listed in manifests.iter().filter(|listed| is_fine_index(listed)).take(MAX_OFFERS) {
        match store.manifest(&Target::Digest(listed.digest)).await {
            Ok(document) => found.extend(parse_bound(&document.bytes).ok()),
            Err(error) if Damage::of(&error).is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
