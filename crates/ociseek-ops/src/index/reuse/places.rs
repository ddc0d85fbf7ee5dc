//! Finds indexes that may list ztocs of an image's layers: in the image itself, in images that the
//! user names, and in other tags of the image's repository. Each search ends after a number of
//! requests that does not depend on its results.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::super::model::Origin;
use super::super::options::{IndexOptions, ReuseSource};
use super::super::supply::{OwnImage, Supply, ZtocOffer};
use super::check::may_fit;
use super::tags;
use crate::discover;
use crate::resolve::{PlatformManifest, ResolveError, parse};
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::enabled::soci_indexes;
use ociseek_format::image::select::Child;
use ociseek_format::image::{DEFAULT_TAG, Descriptor, ImageIndex, Manifest};
use ociseek_format::progress::{ProgressEvent, causes};
use ociseek_store::blob::Target;
use ociseek_store::registry::Repository;
use ociseek_store::{Source, StoreError};

/// Tags are only examined for at least this many bytes of layers, because less is read faster.
const WORTH_A_SEARCH: u64 = 1 << 20;
/// How many platforms of an image are examined. Those that are being indexed come first.
const PLATFORMS: usize = 4;
/// How many platforms are examined for an image that the user names.
const PLATFORMS_OF_NAMED: usize = 16;
/// How many manifests have their indexes read in a search: those with the most bytes of layers in
/// common.
const MOST_LISTED: usize = 8;
/// The fraction of the image's budget for a search.
const PART_OF_BUDGET: u64 = 4;
/// How many manifests are fetched at the same time.
const SIDE_BY_SIDE: usize = 4;

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
    /// Manifests of the image's repository whose indexes were examined.
    seen: BTreeSet<Digest>,
    /// The budget for the documents of other images, which do not use the image's own budget.
    budget: Budget,
}

impl<'a> ReuseSearch<'a> {
    pub(super) fn new(supply: &'a Supply<'a>) -> ReuseSearch<'a> {
        let seen = supply.own.manifests.iter().map(|manifest| manifest.descriptor.digest).collect();
        let budget = supply.source.budget().apart(PART_OF_BUDGET);
        ReuseSearch { supply, seen, budget }
    }

    /// The indexes of the image itself that the destination does not list: those of version 2, and
    /// if `attached` those that its source lists if that is another store, and those of platforms
    /// that are not being indexed.
    pub(super) async fn own(&mut self, missing: &[Descriptor], attached: bool) -> Vec<ZtocOffer> {
        let OwnImage { digest, manifests, artifacts, is_listed } = &self.supply.own;
        let mut offers = Vec::new();
        for manifest in manifests.iter().filter(|manifest| in_common(manifest, missing) > 0) {
            let source = self.supply.source;
            for (index, content) in discover::usable(source, manifest, artifacts, attached && !is_listed).await {
                offers.push(offer(source, content, index.to_string().into()));
            }
        }
        if attached && !missing.is_empty() && !self.supply.work.options.platforms.is_empty() {
            let target = Target::Digest(*digest);
            let name: Arc<str> = digest.to_string().into();
            let place = ReuseSource { name, source: self.supply.source.clone(), target };
            let mut images = self.images(place, PLATFORMS).await.unwrap_or_default();
            self.keep_new(&mut images);
            offers.extend(self.offers_of(images, missing).await);
        }
        self.seen.insert(*digest);
        offers
    }

    /// The indexes of the images that the user names.
    pub(super) async fn named(&self, missing: &[Descriptor]) -> Vec<ZtocOffer> {
        let mut found = Vec::new();
        for place in self.supply.work.options.reuse.from.iter().filter(|_| !missing.is_empty()) {
            match self.images(place.clone(), PLATFORMS_OF_NAMED).await {
                Ok(images) => found.extend(images),
                Err(error) => {
                    let text = format!("cannot reuse anything from {}: {}", place.name, causes(&error));
                    self.supply.work.progress.report(ProgressEvent::Warning(text));
                }
            }
        }
        self.offers_of(found, missing).await
    }

    /// The indexes of other tags of the repository. Failures are not reported.
    pub(super) async fn tags(&mut self, missing: &[Descriptor]) -> Vec<ZtocOffer> {
        let bytes = missing.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
        let (most, own) = (self.supply.work.options.reuse.tags, self.supply.work.options.reuse.tag.as_deref());
        let Source::Registry(repository) = self.supply.source else { return Vec::new() };
        if most == 0 || bytes < WORTH_A_SEARCH {
            return Vec::new();
        }
        let names = tags::nearest(own, listed(repository, own).await, most);
        let place = |tag: String| ReuseSource {
            name: format!("{}/{}:{tag}", repository.registry(), repository.name()).into(),
            source: self.supply.source.clone(),
            target: Target::Tag(tag),
        };
        let fetching = stream::iter(names).map(|tag| self.images(place(tag), PLATFORMS));
        let found: Vec<_> = fetching.buffered(SIDE_BY_SIDE).collect().await;
        let mut images = found.into_iter().flatten().flatten().collect();
        self.keep_new(&mut images);
        self.offers_of(images, missing).await
    }

    /// Drops images that were examined before.
    fn keep_new(&mut self, images: &mut Vec<Image>) {
        images.retain(|image| self.seen.insert(image.manifest.descriptor.digest));
    }

    async fn images(&self, place: ReuseSource, most: usize) -> Result<Vec<Image>, ResolveError> {
        let source = place.source.with_budget(self.budget.clone());
        images(ReuseSource { source, ..place }, self.supply.work.options, most).await
    }

    /// The indexes of `images`, until each of the `missing` layers is listed in one of them.
    async fn offers_of(&self, mut images: Vec<Image>, missing: &[Descriptor]) -> Vec<ZtocOffer> {
        let mut missing = missing.to_vec();
        let mut offers = Vec::new();
        for _ in 0..MOST_LISTED {
            let shares =
                images.iter().enumerate().map(|(at, image)| (in_common(&image.manifest, &missing), Reverse(at)));
            let Some((1.., Reverse(best))) = shares.max() else { break };
            let Image { store, manifest, artifacts, name } = images.remove(best);
            for (_, content) in discover::usable(&store, &manifest, &artifacts, true).await {
                let offer = offer(&store, content, Arc::clone(&name));
                let fits: BTreeSet<Digest> = (offer.ztocs.iter())
                    .filter(|ztoc| may_fit(offer.tool.as_deref(), ztoc, self.supply.work.options))
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
    ZtocOffer {
        store: store.clone(),
        tool: content.index.build_tool_identifier,
        ztocs: content.ztocs.into_values().collect(),
        origin: Origin::Reused(name),
    }
}

/// The size of the `missing` layers that an image has, in bytes.
fn in_common(image: &PlatformManifest, missing: &[Descriptor]) -> u64 {
    let there: BTreeSet<_> = image.layers.iter().map(|layer| (layer.digest, layer.size)).collect();
    let shared = missing.iter().filter(|layer| there.contains(&(layer.digest, layer.size)));
    shared.fold(0, |sum, layer| sum.saturating_add(layer.size))
}

/// Names of tags: one page, another page with tags similar to `own` if there are more, and always
/// `latest`.
async fn listed(repository: &Repository, own: Option<&str>) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_all = false;
    if let Ok(mut list) = repository.tags(None).await
        && let Ok(Some(page)) = list.next_page().await
    {
        names = page.names;
        is_all = list.is_over();
    }
    if let Some(begin) = own.and_then(tags::before).filter(|_| !is_all && !names.is_empty())
        && let Ok(mut list) = repository.tags(Some(begin)).await
        && let Ok(Some(page)) = list.next_page().await
    {
        names.extend(page.names);
    }
    if !is_all {
        names.push(DEFAULT_TAG.to_owned());
    }
    names
}

/// The images of at most `most` platforms for a name.
async fn images(place: ReuseSource, options: &IndexOptions, most: usize) -> Result<Vec<Image>, ResolveError> {
    let ReuseSource { name, source: store, target } = place;
    let document = store.manifest(&target).await.map_err(ResolveError::Find)?;
    let image = |manifest, artifacts| Image { store: store.clone(), manifest, artifacts, name: Arc::clone(&name) };
    let index = match parse(&document)? {
        Manifest::Image(found) => {
            return Ok(vec![image(PlatformManifest::alone(&document, found), Vec::new())]);
        }
        Manifest::Index(index) => index,
    };
    let mut images = Vec::new();
    for child in children(&index, options).into_iter().take(most) {
        let document = match store.manifest(&Target::Digest(child.digest)).await {
            Ok(document) if document.bytes.len() as u64 == child.size => document,
            Ok(_) => continue,
            Err(error) if may_be_missing(&error) => continue,
            Err(error) => return Err(ResolveError::Find(error)),
        };
        // Manifests that are not images have no layers.
        if let Ok(Manifest::Image(found)) = parse(&document) {
            let platform = child.platform.clone();
            let manifest = PlatformManifest { platform, ..PlatformManifest::alone(&document, found) };
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
    let asked = |child: &&Descriptor| {
        let is_it = |platform| options.platforms.iter().any(|asked| asked.matches(platform));
        child.platform.as_ref().is_some_and(is_it)
    };
    children.sort_by_key(|child| !asked(child));
    children
}
