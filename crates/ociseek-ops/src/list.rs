//! `list`: lists images and their indexes without reading ztocs or layers.
//!
//! Each image costs one request, and each of its platforms one for the manifest, one for the
//! config, one for the list of referrers, and one for each index. Tags of the same image are
//! examined once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::OnceCell;

use super::discover::{DiscoverError, DiscoveredImage, DiscoveryMethod, FineSummary, discover_all};
use super::resolve::PlatformChoice;
use ociseek_format::digest::Digest;
use ociseek_format::image::config::{self, MAX_CONFIG};
use ociseek_format::image::coverage::Coverage;
use ociseek_format::image::soci::Version;
use ociseek_format::image::{Platform, is_referrers_tag};
use ociseek_format::progress::{Progress, causes};
use ociseek_format::time::Time;
use ociseek_store::blob::Target;
use ociseek_store::lock::Hold;
use ociseek_store::registry::Repository;
use ociseek_store::{Source, StoreError};

/// An image to examine.
#[derive(Debug, Clone)]
pub struct NamedTarget {
    /// The name for people: a tag or a digest.
    pub name: String,
    /// Its tag or digest in the store.
    pub target: Target,
}

/// The result for an image.
#[derive(Debug, Clone)]
pub struct ListedImage {
    /// The name for people: a tag or a digest.
    pub name: String,
    /// The digest of its manifest or image index.
    pub digest: Option<Digest>,
    /// Its platforms. Images with the same digest share them.
    pub manifests: Arc<Result<Vec<ListedManifest>, ListError>>,
}

/// The image of one platform.
#[derive(Debug)]
pub struct ListedManifest {
    /// None if the image does not state it.
    pub platform: Option<Platform>,
    /// The digest of its manifest.
    pub manifest: Digest,
    /// The creation time of the image according to its config. Indexes have no creation time.
    pub created: Option<Time>,
    /// Why indexes of version 1 and fine indexes cannot be listed, if that failed.
    pub unlisted: Option<String>,
    /// The index of version 2 first, then those of version 1 in the order of the store.
    pub indexes: Vec<ListedIndex>,
    /// In the order of the store.
    pub fine: Vec<FineSummary>,
}

/// A SOCI index of an image.
#[derive(Debug)]
pub struct ListedIndex {
    /// The digest of its manifest.
    pub digest: Digest,
    /// Its version.
    pub version: Version,
    /// How it was found.
    pub via: DiscoveryMethod,
    /// Whether a reader takes this one.
    pub chosen: bool,
    /// Its content, or why it cannot be used.
    pub content: Result<ListedContent, String>,
}

/// The content of a SOCI index.
#[derive(Debug)]
pub struct ListedContent {
    /// The tool that built it, if it names one.
    pub tool: Option<String>,
    /// The coverage of the image's layers.
    pub coverage: Coverage,
    /// The size of the ztocs that a reader takes, in bytes.
    pub ztoc_bytes: u64,
}

/// Why an image could not be examined.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Find(StoreError),
    #[error(transparent)]
    Discover(DiscoverError),
}

impl ListError {
    /// Whether the tag names a valid document that is not an image: a chart, a signature, an index
    /// of version 1, a build cache.
    pub fn is_not_an_image(&self) -> bool {
        matches!(self, ListError::Discover(DiscoverError::Resolve(error)) if error.is_no_image())
    }
}

/// All tags of a repository, sorted, without those of referrers lists.
///
/// # Errors
/// If the registry does not list them.
pub async fn tags(repository: &Repository) -> Result<Vec<NamedTarget>, StoreError> {
    let mut names = repository.tags(None).await?;
    let mut places = Vec::new();
    while let Some(page) = names.next_page().await? {
        let tags = page.names.into_iter().filter(|tag| !is_referrers_tag(tag));
        places.extend(tags.map(|tag| NamedTarget { target: Target::Tag(tag.clone()), name: tag }));
    }
    places.sort_by(|a, b| a.name.cmp(&b.name));
    // Pages overlap if a tag is written meanwhile.
    places.dedup_by(|a, b| a.name == b.name);
    Ok(places)
}

/// Examines images, `jobs` at a time, each with its own budget. The results are in the order of
/// `places`.
pub fn list<'a>(
    source: &'a Source,
    places: Vec<NamedTarget>,
    jobs: usize,
    progress: &'a Arc<dyn Progress>,
) -> impl Stream<Item = ListedImage> + 'a {
    let known = Arc::new(ListCache::default());
    let look = move |place: NamedTarget| {
        let known = Arc::clone(&known);
        async move {
            let (NamedTarget { name, target }, source) =
                (place, source.with_budget(source.budget().apart(1)));
            let digest = match &target {
                Target::Digest(digest) => *digest,
                Target::Tag(_) => match source.manifest(&target).await {
                    Ok(document) => document.digest,
                    Err(error) => {
                        let manifests = Arc::new(Err(ListError::Find(error)));
                        return ListedImage { name, digest: None, manifests };
                    }
                },
            };
            let cell = known.of(digest);
            let look = || async { Arc::new(manifests(&source, digest, progress).await) };
            let manifests = Arc::clone(cell.get_or_init(look).await);
            ListedImage { name, digest: Some(digest), manifests }
        }
    };
    stream::iter(places).map(look).buffered(jobs)
}

type ListResult = Arc<Result<Vec<ListedManifest>, ListError>>;

/// Results, also those in progress, by the digest of a manifest or image index.
#[derive(Default)]
struct ListCache(Mutex<HashMap<Digest, Arc<OnceCell<ListResult>>>>);

impl ListCache {
    fn of(&self, digest: Digest) -> Arc<OnceCell<ListResult>> {
        Arc::clone(self.0.hold().entry(digest).or_default())
    }
}

async fn manifests(
    source: &Source,
    digest: Digest,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<ListedManifest>, ListError> {
    let images =
        discover_all(source, &Target::Digest(digest), PlatformChoice::All, None, progress).await;
    let mut listed = Vec::new();
    for image in images.map_err(ListError::Discover)? {
        let config = source.blob_bytes(&image.config, MAX_CONFIG as u64).await.ok();
        let created = config.and_then(|config| config::created(&config).ok().flatten());
        listed.push(summary(image, created));
    }
    Ok(listed)
}

fn summary(image: DiscoveredImage, created: Option<Time>) -> ListedManifest {
    let fine = image.fine_summaries();
    let DiscoveredImage { manifest, platform, layers, indexes, listing, chosen, .. } = image;
    let indexes = indexes.into_iter().enumerate().map(|(place, index)| ListedIndex {
        digest: index.digest,
        version: index.version,
        via: index.via,
        chosen: chosen == Some(place),
        content: match index.content {
            Ok(content) => Ok(ListedContent {
                coverage: Coverage::of(&layers, |layer| content.ztocs.contains_key(&layer.digest)),
                ztoc_bytes: content.ztocs.values().map(|ztoc| ztoc.size).sum(),
                tool: content.index.build_tool_identifier,
            }),
            Err(why) => Err(causes(&why)),
        },
    });
    ListedManifest {
        platform,
        manifest: manifest.digest,
        created,
        unlisted: listing.err().map(|error| causes(&error)),
        indexes: indexes.collect(),
        fine,
    }
}
