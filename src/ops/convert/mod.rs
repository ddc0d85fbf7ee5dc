//! `convert`: writes a SOCI-enabled image (version 2) under a new name.
//!
//! In steps, each of them complete before the next one begins:
//!
//! 1. `load`: the image's documents, within limits.
//! 2. [`image::enabled`](crate::image::enabled) chooses the images to index.
//! 3. Their ztocs come from where `index` has them too: the cache, indexes that list them, or the
//!    layers, which are only read.
//! 4. [`image::enabled`](crate::image::enabled) makes the new documents. If they are the ones that
//!    are there, nothing is done.
//! 5. `publish`: blobs first, then manifests, then the image index under its tag. Until the last
//!    request the tag stays what it was.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::digest::Digest;
use crate::image::enabled::{Enabled, Indexed, Target as Image};
use crate::image::soci::{self, ZtocRef};
use crate::image::{Descriptor, LayerKind, Platform};
use crate::ops::coverage::Coverage;
use crate::ops::index::{
    IndexOptions, IndexedLayer, LayerOutcome, Layers, LeftOut, Offer, Origin, Own, Supply, Wanted, Ztoc, assemble,
    left_out, prefetch_artifacts, ztocs,
};
use crate::ops::resolve::PlatformManifest;
use crate::progress::{Event, Progress};
use crate::store::Source;
use crate::store::blob::Target;
use crate::store::cache::ZtocCache;

mod error;
mod load;
mod model;
mod publish;

pub use error::ConvertError;
pub use load::{MAX_DOCUMENTS, MAX_MANIFESTS};
pub use model::{Converted, ConvertedImage, Destined, Outcome, SourceImage};

use load::Loaded;

/// How many SOCI indexes are read for the ztocs that they list.
const MAX_OFFERS: usize = 64;

/// Converts an image. `options` says how layers are indexed and which platforms are; what it says
/// of indexes that are there is not looked at.
///
/// # Errors
/// When the image cannot be read, has an unsound document or a broken layer, has nothing to index,
/// or the destination does not take it, or when the deadline passes before all layers are indexed.
/// Whatever the error, the destination's tag is what it was.
pub async fn convert(
    from: &SourceImage,
    to: &Destined,
    cache: Option<&ZtocCache>,
    options: &IndexOptions,
    progress: &Arc<dyn Progress>,
) -> Result<Converted, ConvertError> {
    convert_built(from, to, cache, None, options, progress).await
}

/// The same, with what was built already of the image's layers.
pub(in crate::ops) async fn convert_built(
    from: &SourceImage,
    to: &Destined,
    cache: Option<&ZtocCache>,
    built: Option<Layers>,
    options: &IndexOptions,
    progress: &Arc<dyn Progress>,
) -> Result<Converted, ConvertError> {
    let loaded = load::load(from, progress).await?;
    let there = to.there().await?;
    let is_source = there.as_ref().is_some_and(|there| there.digest == loaded.root);
    let already_enabled = soci_indexes(&loaded.original.index.manifests).next().is_some();
    if is_source && !to.replace_tag && !already_enabled {
        return Err(ConvertError::SourceTag { digest: loaded.root });
    }
    let targets = choose(&loaded, &options.platforms, progress)?;

    let planned = plan(&loaded, &targets, from, options).await?;
    let mut wanted = Wanted::default();
    for (layer, _) in planned.iter().flatten().filter(|(_, left_out)| left_out.is_none()) {
        wanted.add(layer);
    }
    let known = match (&there, &to.destination) {
        (Some(there), Some(destination)) => offers(&destination.as_source(), &there.manifests).await,
        _ => Vec::new(),
    };
    let manifests: Vec<PlatformManifest> = targets.iter().filter_map(|target| loaded.image(target)).collect();
    let artifacts: Vec<Descriptor> = soci_indexes(&loaded.original.index.manifests).cloned().collect();
    let own =
        Own { digest: loaded.root, manifests: manifests.iter().collect(), artifacts: &artifacts, is_listed: false };
    let supply = Supply { source: &from.source, cache, known, own };
    let announce = |unread: &[Descriptor]| {
        let bytes = unread.iter().map(|layer| layer.size).sum();
        let platform = String::new();
        progress.report(Event::Image { manifest: loaded.root, platform, layers: unread.len(), bytes });
    };
    let layers = ztocs(wanted, built, &supply, options, announce, progress).await?;

    let mut seen = BTreeSet::new();
    let mut indexed = Vec::with_capacity(targets.len());
    let mut reports = Vec::with_capacity(targets.len());
    let (mut all_ztocs, mut all_prefetch) = (Vec::new(), Vec::new());
    for (target, planned) in targets.iter().zip(&planned) {
        let (report, ztocs) = assemble(planned.iter().map(|(layer, why)| (layer, why)), &layers, &mut seen);
        let refs: Vec<ZtocRef> = ztocs.iter().map(|ztoc| ztoc.reference(options.layer.span_size)).collect();
        let prefetch = prefetch_artifacts(options.prefetch.as_ref(), &ztocs, from.source.budget(), progress).await?;
        let listed = prefetch.iter().map(|artifact| artifact.descriptor.clone()).collect();
        indexed.push(Indexed { target: target.clone(), ztocs: refs, prefetch: listed });
        all_prefetch.extend(prefetch);
        reports.push(report);
        all_ztocs.extend(ztocs);
    }
    let is_left = |l: &&IndexedLayer| matches!(l.outcome, LayerOutcome::LeftOut(LeftOut::OutOfTime { .. }));
    let left = reports.iter().flatten().filter(is_left).count();
    if left > 0 {
        return Err(ConvertError::OutOfTime { left });
    }
    if all_ztocs.is_empty() {
        return Err(ConvertError::NothingToIndex { layers: reports.into_iter().flatten().collect() });
    }
    let Loaded { original, .. } = &loaded;
    let enabled = original.clone().enable(&indexed, &options.layer.build_tool_identifier);
    let images = report(&loaded, &enabled, &indexed, reports);
    let mut converted = Converted {
        source: loaded.root,
        digest: enabled.digest,
        size: enabled.bytes.len() as u64,
        images,
        outcome: Outcome::AlreadyThere,
        bytes_read: layers.bytes_read,
        bytes_compared: layers.bytes_compared,
        bytes_copied: 0,
        bytes_written: 0,
    };
    let replaces = there.map(|there| there.digest).filter(|digest| *digest != enabled.digest);
    if is_source && replaces.is_some() && !to.replace_tag {
        return Err(ConvertError::SourceTag { digest: loaded.root });
    }
    let Some(destination) = to.destination.as_ref().filter(|_| !options.dry_run) else {
        converted.outcome = Outcome::DryRun { replaces };
        return Ok(converted);
    };
    if to.is_there(&enabled.digest).await? {
        return Ok(converted);
    }
    let blobs = BTreeSet::from_iter(all_ztocs.iter().map(Ztoc::digest)).len();
    progress.report(Event::Attaching { index: enabled.digest, blobs });
    let written = publish::publish(
        &loaded,
        &enabled,
        (&all_ztocs, &all_prefetch),
        &from.source,
        destination,
        to,
        options.jobs,
        progress,
    )
    .await?;
    converted.bytes_copied = written.copied;
    converted.bytes_written = written.written;
    converted.outcome = Outcome::Written { replaced: replaces };
    Ok(converted)
}

/// The images to index; at least one.
fn choose(loaded: &Loaded, platforms: &[Platform], progress: &Arc<dyn Progress>) -> Result<Vec<Image>, ConvertError> {
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
        progress.report(Event::Warning(format!(
            "{} is a second manifest for {platform}: only the first one is indexed, as consumers take that one",
            shadowed.digest
        )));
    }
    Ok(chosen.targets)
}

/// A layer, and why it is not to be indexed, as far as that is known without reading it.
type Planned = (Descriptor, Option<LeftOut>);

/// The layers of each target.
async fn plan(
    loaded: &Loaded,
    targets: &[Image],
    from: &SourceImage,
    options: &IndexOptions,
) -> Result<Vec<Vec<Planned>>, ConvertError> {
    let mut planned = Vec::with_capacity(targets.len());
    for target in targets {
        let manifest = loaded.original.contents.get(target.entry).and_then(|content| content.image());
        let mut layers = Vec::new();
        for layer in manifest.map(|manifest| manifest.layers()).unwrap_or_default() {
            let mut why = left_out(layer, options);
            // soci indexes foreign gzip layers, and fails where they are elsewhere.
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

/// The SOCI indexes (v2) among the entries of an image index, as places to take ztocs from. What
/// cannot be read is passed over.
async fn offers(store: &Source, manifests: &[Descriptor]) -> Vec<Offer> {
    let mut offers = Vec::new();
    for listed in soci_indexes(manifests).take(MAX_OFFERS) {
        if let Ok(document) = store.manifest(&Target::Digest(listed.digest)).await {
            offers.extend(offer(store, &document.bytes));
        }
    }
    offers
}

/// What a SOCI index offers, if it is one.
fn offer(store: &Source, manifest: &[u8]) -> Option<Offer> {
    let index = soci::parse(manifest).ok()?;
    let tool = index.build_tool_identifier;
    Some(Offer { store: store.clone(), tool, ztocs: index.ztocs, origin: Origin::Destination })
}

fn soci_indexes(manifests: &[Descriptor]) -> impl Iterator<Item = &Descriptor> {
    crate::image::enabled::listed(manifests)
}

/// What became of each image that was to be indexed.
fn report(
    loaded: &Loaded,
    enabled: &Enabled,
    indexed: &[Indexed],
    reports: Vec<Vec<IndexedLayer>>,
) -> Vec<ConvertedImage> {
    let mut made = enabled.indexes.iter();
    let mut images = Vec::with_capacity(indexed.len());
    for (Indexed { target, ztocs: refs, .. }, layers) in indexed.iter().zip(reports) {
        let new = enabled.manifests.iter().find(|manifest| manifest.entry == target.entry);
        let was = loaded.original.index.manifests.get(target.entry).map(|entry| entry.digest);
        let covered: BTreeSet<Digest> = refs.iter().map(|ztoc| ztoc.layer).collect();
        let descriptors: Vec<Descriptor> = layers.iter().map(|layer| layer.descriptor.clone()).collect();
        images.push(ConvertedImage {
            platform: target.platform.clone(),
            was: was.unwrap_or(loaded.root),
            manifest: new.map_or(loaded.root, |new| new.digest),
            index: if refs.is_empty() { None } else { made.next().map(|made| made.descriptor.clone()) },
            coverage: Coverage::of(&descriptors, |layer| covered.contains(&layer.digest)),
            layers,
        });
    }
    images
}

/// Whether all layers that are left out are small.
pub fn are_small(layers: &[IndexedLayer]) -> bool {
    !layers.is_empty()
        && layers.iter().all(|layer| matches!(layer.outcome, LayerOutcome::LeftOut(LeftOut::Small { .. })))
}
