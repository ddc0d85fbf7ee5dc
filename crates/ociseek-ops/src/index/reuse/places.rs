//! Finds indexes that may list ztocs of an image's layers: in the image itself, in images that the
//! user names, and in other tags of the image's repository. Each search ends after a number of
//! requests that does not depend on its results.
//!
//! Which tags name images with the same layers is a guess: registries do not list tags by age, so
//! only the names can be used.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::may_fit;
use crate::discover;
use crate::index::model::Origin;
use crate::index::options::{IndexOptions, ReuseSource};
use crate::index::supply::{OwnImage, Supply, ZtocOffer};
use crate::resolve::{PlatformManifest, ResolveError, parse};
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::enabled::soci_indexes;
use ociseek_format::image::select::Child;
use ociseek_format::image::{DEFAULT_TAG, Descriptor, ImageIndex, Manifest, is_referrers_tag};
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
            for (index, content) in
                discover::usable(source, manifest, artifacts, attached && !is_listed).await
            {
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
                    let text =
                        format!("cannot reuse anything from {}: {}", place.name, causes(&error));
                    self.supply.work.progress.report(ProgressEvent::Warning(text));
                }
            }
        }
        self.offers_of(found, missing).await
    }

    /// The indexes of other tags of the repository. Failures are not reported.
    pub(super) async fn tags(&mut self, missing: &[Descriptor]) -> Vec<ZtocOffer> {
        let bytes = missing.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
        let most = self.supply.work.options.reuse.tags;
        let own = self.supply.work.options.reuse.tag.as_deref();
        let Source::Registry(repository) = self.supply.source else { return Vec::new() };
        if most == 0 || bytes < WORTH_A_SEARCH {
            return Vec::new();
        }
        let names = nearest(own, listed(repository, own).await, most);
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
            let shares = images
                .iter()
                .enumerate()
                .map(|(at, image)| (in_common(&image.manifest, &missing), Reverse(at)));
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
    if let Some(begin) = own.and_then(before).filter(|_| !is_all && !names.is_empty())
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
async fn images(
    place: ReuseSource,
    options: &IndexOptions,
    most: usize,
) -> Result<Vec<Image>, ResolveError> {
    let ReuseSource { name, source: store, target } = place;
    let document = store.manifest(&target).await.map_err(ResolveError::Find)?;
    let image = |manifest, artifacts| Image {
        store: store.clone(),
        manifest,
        artifacts,
        name: Arc::clone(&name),
    };
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
            let manifest =
                PlatformManifest { platform, ..PlatformManifest::alone(&document, found) };
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

/// At most `most` of `names`: `latest`, then those that differ from the image's own tag only in
/// their numbers, nearest first, then those with a common prefix. Leaves out tags of referrers
/// lists, and the image's own.
fn nearest(own: Option<&str>, mut names: Vec<String>, most: usize) -> Vec<String> {
    names.retain(|name| Some(name.as_str()) != own && !is_referrers_tag(name));
    names.sort_by_cached_key(|name| rank(own.unwrap_or_default(), name));
    names.dedup();
    names.truncate(most);
    names
}

/// Where to continue the list of tags if there is more than one page: tags are listed in byte
/// order, so those similar to `own` follow its prefix.
fn before(own: &str) -> Option<&str> {
    // Tags are ASCII. Removing two characters leaves some hundred neighbours, about a page.
    own.len().checked_sub(2).filter(|length| *length > 0).and_then(|length| own.get(..length))
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Text(String),
    Number(u64),
}

/// Smaller ranks are more likely.
type Rank = (u8, Vec<u64>, bool, Reverse<usize>, Reverse<Vec<Part>>);

fn rank(own: &str, name: &str) -> Rank {
    let mine = parts(own);
    let other = parts(name);
    let common = own.bytes().zip(name.bytes()).take_while(|(one, other)| one == other).count();
    let tier = match distances(&mine, &other) {
        // Most repositories keep it on their newest image.
        _ if name == DEFAULT_TAG => 0,
        Some(_) => 1,
        None => 2,
    };
    // Of two tags at the same distance, the older one is more likely to be indexed.
    let newer = tier == 1 && other > mine;
    let distances = distances(&mine, &other).filter(|_| tier == 1).unwrap_or_default();
    (tier, distances, newer, Reverse(common), Reverse(other))
}

/// The distances between the numbers, if nothing else differs.
fn distances(mine: &[Part], other: &[Part]) -> Option<Vec<u64>> {
    let mut distances = Vec::new();
    if mine.len() != other.len() {
        return None;
    }
    for parts in mine.iter().zip(other) {
        match parts {
            (Part::Number(mine), Part::Number(other)) => distances.push(mine.abs_diff(*other)),
            (Part::Text(mine), Part::Text(other)) if mine == other => {}
            _ => return None,
        }
    }
    Some(distances)
}

/// A tag's numbers and the text between them.
fn parts(tag: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = tag;
    while let Some(first) = rest.chars().next() {
        let digits = first.is_ascii_digit();
        let length = rest.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(length);
        parts.push(match part.parse() {
            Ok(number) if digits => Part::Number(number),
            _ => Part::Text(part.to_owned()),
        });
        rest = behind;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(own: Option<&str>, names: &[&str], most: usize) -> Vec<String> {
        nearest(own, names.iter().map(|name| (*name).to_owned()).collect(), most)
    }

    #[test]
    fn versions_are_compared_by_number() {
        let names =
            ["v1.4.2", "latest", "v1.4.10", "v1.4.1", "v1.4.3", "v0.9", "v2.0.0", "v1.3.9", "dev"];
        let nearest = ["latest", "v1.4.1", "v1.4.3", "v1.4.10", "v1.3.9", "v2.0.0", "v0.9", "dev"];
        assert_eq!(found(Some("v1.4.2"), &names, 20), nearest);
        assert_eq!(found(Some("v1.4.2"), &names, 3), nearest[..3]);
        let builds = ["main-99", "main-100", "main-102", "feature-101"];
        assert_eq!(found(Some("main-101"), &builds, 2), ["main-100", "main-102"]);
        assert_eq!(found(Some("1.4-alpine"), &["1.4", "1.3-alpine", "1.3"], 1), ["1.3-alpine"]);
    }

    #[test]
    fn commits_are_grouped_by_prefix() {
        let names = ["sha-1a2b3c4", "main", "sha-0f0f0f0", "pr-7"];
        assert_eq!(found(Some("sha-ffeedd1"), &names, 2), ["sha-1a2b3c4", "sha-0f0f0f0"]);
    }

    #[test]
    fn without_a_tag_the_highest_versions_come_first() {
        assert_eq!(found(None, &["v1.9", "v1.10", "latest"], 2), ["latest", "v1.10"]);
        assert_eq!(found(Some("latest"), &["v1.9", "v1.10", "latest"], 1), ["v1.10"]);
    }

    #[test]
    fn fallback_tags_are_not_images() {
        let hex = "0123456789abcdef".repeat(4);
        let names =
            [format!("sha256-{hex}"), format!("sha256-{hex}.sig"), "v1".into(), "v1".into()];
        assert_eq!(nearest(Some("v2"), names.to_vec(), 9), ["v1"]);
        assert_eq!(found(Some(""), &["99999999999999999999999", "x"], 9).len(), 2);
    }

    #[test]
    fn lists_start_before_tags_with_the_same_prefix() {
        assert_eq!(before("build-1234"), Some("build-12"));
        assert_eq!((before("v1"), before("")), (None, None));
    }
}
