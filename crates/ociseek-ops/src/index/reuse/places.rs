//! Finds indexes that may list ztocs of an image's layers: in the image itself, and in images that
//! the user names. Each search ends after a number of requests that does not depend on its results.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ZtocOffer, may_fit};
use crate::discover;
use crate::index::options::{IndexOptions, ReuseSource};
use crate::index::supply::{ListedZtocs, OwnImage, Supply};
use crate::resolve::{PlatformManifest, ResolveError, parse};
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::enabled::soci_indexes;
use ociseek_format::image::select::Child;
use ociseek_format::image::{Descriptor, ImageIndex, Manifest};
use ociseek_format::progress::{ProgressEvent, causes};
use ociseek_store::blob::Target;
use ociseek_store::{Source, StoreError};

/// How many platforms of an image are examined. Those that are being indexed come first.
const PLATFORMS: usize = 16;
/// How many manifests have their indexes read in a search: those with the most bytes of layers in
/// common.
const MOST_LISTED: usize = 8;
/// The fraction of the image's budget for a search.
const PART_OF_BUDGET: u64 = 4;

/// An image of one platform that may have layers in common with the one that is indexed.
struct Image {
    store: Source,
    manifest: PlatformManifest,
    /// The other entries of its image index.
    artifacts: Vec<Descriptor>,
    /// The name in reports.
    name: Arc<str>,
}

pub(super) struct ReuseSearch<'a> {
    supply: &'a Supply<'a>,
    /// The budget for the documents of other images, which do not use the image's own budget.
    budget: Budget,
}

impl<'a> ReuseSearch<'a> {
    pub(super) fn new(supply: &'a Supply<'a>) -> ReuseSearch<'a> {
        ReuseSearch { supply, budget: supply.source.budget().apart(PART_OF_BUDGET) }
    }

    /// The indexes of version 2 that the image itself names.
    pub(super) async fn own(&self, missing: &[Descriptor]) -> Vec<ZtocOffer> {
        let OwnImage { manifests, artifacts } = &self.supply.own;
        let source = self.supply.source;
        let mut offers = Vec::new();
        for manifest in manifests.iter().filter(|manifest| in_common(manifest, missing) > 0) {
            for (index, content) in discover::usable(source, manifest, artifacts, false).await {
                offers.push(offer(source, content, index.to_string().into()));
            }
        }
        offers
    }

    /// The indexes of the images that the user names.
    pub(super) async fn named(&self, missing: &[Descriptor]) -> Vec<ZtocOffer> {
        let mut all = Vec::new();
        for place in self.supply.work.options.reuse.from.iter().filter(|_| !missing.is_empty()) {
            let source = place.source.with_budget(self.budget.clone());
            let place = ReuseSource { source, ..place.clone() };
            let name = Arc::clone(&place.name);
            match images(place, self.supply.work.options).await {
                Ok(images) => all.extend(images),
                Err(error) => {
                    let text = format!("cannot reuse anything from {name}: {}", causes(&error));
                    self.supply.work.progress.report(ProgressEvent::Warning(text));
                }
            }
        }
        self.offers_of(all, missing).await
    }

    /// The indexes of `images`, until each of the `missing` layers is listed in one of them.
    async fn offers_of(&self, mut images: Vec<Image>, missing: &[Descriptor]) -> Vec<ZtocOffer> {
        let mut missing = missing.to_vec();
        let mut offers = Vec::new();
        for _ in 0..MOST_LISTED {
            let shares = images
                .iter()
                .enumerate()
                .map(|(at, image)| (in_common(&image.manifest, &missing), Reverse(at)));
            let Some((1.., Reverse(best))) = shares.max() else { break };
            let Image { store, manifest, artifacts, name } = images.remove(best);
            for (_, content) in discover::usable(&store, &manifest, &artifacts, true).await {
                let offer = offer(&store, content, Arc::clone(&name));
                let ListedZtocs { tool, ztocs, .. } = &offer.listed;
                let fits: BTreeSet<Digest> = (ztocs.iter())
                    .filter(|ztoc| may_fit(tool.as_deref(), ztoc, self.supply.work.options))
                    .map(|ztoc| ztoc.layer)
                    .collect();
                missing.retain(|layer| !fits.contains(&layer.digest));
                offers.push(offer);
            }
        }
        offers
    }
}

fn offer(store: &Source, content: discover::IndexContent, name: Arc<str>) -> ZtocOffer {
    let listed = ListedZtocs {
        store: store.clone(),
        tool: content.index.build_tool_identifier,
        ztocs: content.ztocs.into_values().collect(),
    };
    ZtocOffer { listed, name }
}

/// The size of the `missing` layers that an image has, in bytes.
fn in_common(image: &PlatformManifest, missing: &[Descriptor]) -> u64 {
    let layers: BTreeSet<_> = image.layers.iter().map(|layer| (layer.digest, layer.size)).collect();
    let shared = missing.iter().filter(|layer| layers.contains(&(layer.digest, layer.size)));
    shared.fold(0, |sum, layer| sum.saturating_add(layer.size))
}

/// The images of at most [`PLATFORMS`] platforms for a name.
async fn images(place: ReuseSource, options: &IndexOptions) -> Result<Vec<Image>, ResolveError> {
    let ReuseSource { name, source: store, target } = place;
    let document = store.manifest(&target).await.map_err(ResolveError::Find)?;
    let image = |manifest, artifacts| Image {
        store: store.clone(),
        manifest,
        artifacts,
        name: Arc::clone(&name),
    };
    let index = match parse(&document)? {
        Manifest::Image(manifest) => {
            return Ok(vec![image(PlatformManifest::alone(&document, manifest), Vec::new())]);
        }
        Manifest::Index(index) => index,
    };
    let mut images = Vec::new();
    for child in children(&index, options).into_iter().take(PLATFORMS) {
        let document = match store.manifest(&Target::Digest(child.digest)).await {
            Ok(document) if document.bytes.len() as u64 == child.size => document,
            Ok(_) => continue,
            Err(error) if may_be_missing(&error) => continue,
            Err(error) => return Err(ResolveError::Find(error)),
        };
        // Manifests that are not images have no layers.
        if let Ok(Manifest::Image(content)) = parse(&document) {
            let platform = child.platform.clone();
            let manifest =
                PlatformManifest { platform, ..PlatformManifest::alone(&document, content) };
            images.push(image(manifest, soci_indexes(&index.manifests).cloned().collect()));
        }
    }
    Ok(images)
}

/// An image index may list manifests that were never pushed, which is common for sparse indexes.
fn may_be_missing(error: &StoreError) -> bool {
    error.is_not_found() || matches!(error, StoreError::Local(_))
}

/// The images in an image index, those of requested platforms first.
fn children<'a>(index: &'a ImageIndex, options: &IndexOptions) -> Vec<&'a Descriptor> {
    let is_image = |child: &&Descriptor| matches!(Child::of(child), Child::Image | Child::Unclear);
    let mut children: Vec<&Descriptor> = index.manifests.iter().filter(is_image).collect();
    children.sort_by_key(|child| {
        let platform = child.platform.as_ref();
        !platform.is_some_and(|platform| options.platforms.iter().any(|p| p.matches(platform)))
    });
    children
}
