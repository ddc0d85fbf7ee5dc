//! Finds the SOCI indexes of an image, parses them, and determines which of them a reader takes.
//!
//! Annotations of the image manifest name the index of version 2 and the bound fine index, so
//! nobody can add one without changing the image. Those of version 1 are referrers, and consumers
//! take the first that the registry lists (soci-snapshotter, fs/artifact_fetcher.go). This reader
//! does the same, except that it skips those it cannot use. Other fine indexes are referrers too,
//! with a separate type, and are in the same list.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::resolve::{self, PlatformChoice, PlatformManifest, ResolveError};
use ociseek_format::digest::Digest;
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::manifest::Manifest;
use ociseek_format::image::soci::{Version, ZtocRef};
use ociseek_format::image::{Coverage, Descriptor, Platform};
use ociseek_format::printable::exact_size;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_format::ztoc::MAX_ENCODED;
use ociseek_store::blob::Target;
use ociseek_store::{Source, StoreError};

mod finder;
mod judge;

pub use judge::{FineContent, IndexContent, IndexKind, Note, UnusableIndexError};

pub(super) use finder::{to_read, usable};
pub(super) use judge::{Referring, parse as parse_index, parse_fine, preferred};

use finder::indexes_of;
use judge::by_preference;

/// The size limit of a ztoc that is read, in bytes. A layer with a larger one is read as if it had
/// none.
pub const MAX_ZTOC: u64 = MAX_ENCODED as u64;

/// Why the indexes of an image cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("SOCI index {digest} cannot be used")]
    Index { digest: Digest, source: UnusableIndexError },
    #[error("ztoc {ztoc} of layer {layer} has {size} bytes; the limit is {}", exact_size(MAX_ZTOC))]
    ZtocTooLarge { ztoc: Digest, layer: Digest, size: u64 },
    #[error("cannot read ztoc {ztoc} of layer {layer}")]
    Ztoc { ztoc: Digest, layer: Digest, source: StoreError },
    #[error("index {digest} breaks the policy: {why}")]
    Policy { digest: Digest, why: String },
    #[error("the digest of no index of the image starts with {start}")]
    NoIndex { start: String },
    #[error("the digests of several indexes start with {start}: {found}")]
    SeveralIndexes { start: String, found: String },
}

/// The image of one platform and its indexes.
#[derive(Debug)]
pub struct DiscoveredImage {
    /// The digest of the manifest or image index that the image's name refers to.
    pub root: Digest,
    /// Media type, digest and size of the image manifest.
    pub manifest: Descriptor,
    /// None if the image does not state it, or states it only in a config that was not read.
    pub platform: Option<Platform>,
    /// Media type, digest and size of the image's config.
    pub config: Descriptor,
    /// The layers from the bottom up.
    pub layers: Vec<Descriptor>,
    /// The index of version 2 first, then those of version 1 in the order of the store.
    pub indexes: Vec<FoundIndexRef>,
    /// How the store lists referrers, or why it does not.
    pub listing: Result<DiscoveryMethod, StoreError>,
    /// The image manifest's annotation for an index of version 2, if it is not a digest.
    pub odd_annotation: Option<String>,
    /// Which of `indexes` a reader takes.
    pub chosen: Option<usize>,
    /// The fine index that the image manifest names first, then the others in the order of the
    /// store.
    pub fine: Vec<FoundFineRef>,
    /// Which of `fine` a reader takes. None if another index was requested.
    pub chosen_fine: Option<usize>,
}

/// A fine index that was found.
#[derive(Debug)]
pub struct FoundFineRef {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The size of its manifest in bytes, if known.
    pub size: Option<u64>,
    /// How it was found.
    pub via: DiscoveryMethod,
    /// Its content, or why it cannot be used.
    pub content: Result<FineContent, UnusableIndexError>,
}

/// A SOCI index that was found.
#[derive(Debug)]
pub struct FoundIndexRef {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The size of its manifest in bytes, if known.
    pub size: Option<u64>,
    /// The version that it must have, according to how it was found.
    pub version: Version,
    /// How it was found.
    pub via: DiscoveryMethod,
    /// Its content, or why it cannot be used.
    pub content: Result<IndexContent, UnusableIndexError>,
}

/// How an index was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveryMethod {
    /// Named by the image manifest's annotation (version 2).
    Annotation,
    /// Listed by the registry's referrers API.
    Api,
    /// Listed under the tag `sha256-…`, for registries without the API.
    TagSchema,
    /// Listed in the layout's index.json.
    Layout,
    /// Not listed, but requested by its digest.
    Requested,
}

impl DiscoveryMethod {
    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            DiscoveryMethod::Annotation => "annotation",
            DiscoveryMethod::Api => "referrers-api",
            DiscoveryMethod::TagSchema => "tag-schema",
            DiscoveryMethod::Layout => "layout",
            DiscoveryMethod::Requested => "asked",
        }
    }
}

impl DiscoveredImage {
    /// The index that a reader takes.
    pub fn index(&self) -> Option<(&FoundIndexRef, &IndexContent)> {
        let index = self.indexes.get(self.chosen?)?;
        index.content.as_ref().ok().map(|content| (index, content))
    }

    /// The fine index that a reader takes.
    pub fn fine_index(&self) -> Option<(&FoundFineRef, &FineContent)> {
        let index = self.fine.get(self.chosen_fine?)?;
        index.content.as_ref().ok().map(|content| (index, content))
    }

    /// The document of a layer in the fine index that a reader takes.
    pub fn document_for(&self, layer: &Digest) -> Option<&FineRef> {
        self.fine_index()?.1.documents.get(layer)
    }

    /// The ztoc of a layer in the index that a reader takes.
    pub fn ztoc_for(&self, layer: &Digest) -> Option<&ZtocRef> {
        self.index()?.1.ztocs.get(layer)
    }

    /// The digest of what a reader takes for a layer: the head of its fine document, or its ztoc.
    pub fn read_by(&self, layer: &Digest) -> Option<Digest> {
        let document = self.document_for(layer).map(|document| document.head_digest);
        document.or_else(|| self.ztoc_for(layer).map(|ztoc| ztoc.ztoc))
    }

    /// Why an index that the image may have was not seen.
    pub(crate) fn unseen(&self) -> Option<&StoreError> {
        let soci = self.indexes.iter().map(|index| index.content.as_ref().err());
        let fine = self.fine.iter().map(|index| index.content.as_ref().err());
        self.listing.as_ref().err().or_else(|| {
            soci.chain(fine).flatten().find_map(|why| match why {
                UnusableIndexError::Fetch(error) if !error.is_not_found() => Some(error),
                _ => None,
            })
        })
    }
}

impl DiscoveredImage {
    /// The fine indexes that a reader may take, the preferred one first. With a `requested` index,
    /// only that one.
    pub(super) fn fine_by_preference(&self, requested: Option<&Digest>) -> Vec<usize> {
        match requested {
            Some(_) => Vec::from_iter(self.chosen_fine),
            None => fine_by_preference(&self.indexes, &self.fine, &self.layers),
        }
    }

    /// The manifests whose signature covers an index that was found this way.
    pub(super) fn signed_for(&self, index: Digest, via: DiscoveryMethod) -> Vec<Digest> {
        let manifest = self.manifest.digest;
        match via {
            // The image manifest names the index, and the image index names the manifest.
            DiscoveryMethod::Annotation if self.root == manifest => vec![index, manifest],
            DiscoveryMethod::Annotation => vec![index, self.root, manifest],
            _ => vec![index],
        }
    }
}

/// The `fine` indexes that a reader may take of an image with these `indexes` and `layers`, the
/// preferred one first. What the image binds is never replaced by what anyone can attach.
fn fine_by_preference(
    indexes: &[FoundIndexRef],
    fine: &[FoundFineRef],
    layers: &[Descriptor],
) -> Vec<usize> {
    let is_bound = |via| via == DiscoveryMethod::Annotation;
    let is_any_bound = indexes.iter().any(|index| is_bound(index.via) && index.content.is_ok())
        || fine.iter().any(|index| is_bound(index.via) && index.content.is_ok());
    let usable = fine.iter().map(|reference| {
        let content =
            reference.content.as_ref().ok().filter(|_| is_bound(reference.via) || !is_any_bound)?;
        Some(&content.index)
    });
    by_preference(usable, layers)
}

/// The manifest of an image for one platform. Neither its config nor its indexes were read.
#[derive(Debug)]
pub struct PlatformImage {
    /// The digest of what the image's name refers to.
    root: Digest,
    /// The manifest of the platform.
    pub manifest: PlatformManifest,
    artifacts: Vec<Descriptor>,
    /// Whether there is no image index. Then only the config states the platform.
    pub(super) is_alone: bool,
}

impl PlatformImage {
    /// Finds the image `root` of `source` for one platform (None for this machine's, or the only
    /// one).
    ///
    /// # Errors
    /// If it cannot be found or read.
    pub async fn find(
        source: &Source,
        root: &Target,
        platform: Option<&Platform>,
        progress: &Arc<dyn Progress>,
    ) -> Result<PlatformImage, ResolveError> {
        let document = source.root(root).await.map_err(ResolveError::Find)?;
        let root = document.digest;
        match resolve::parse(&document)? {
            Manifest::Image(image) => {
                let manifest = PlatformManifest::alone(&document, image);
                Ok(PlatformImage { root, manifest, artifacts: Vec::new(), is_alone: true })
            }
            manifest @ Manifest::Index(_) => {
                let wanted = PlatformChoice::of(platform);
                let mut image =
                    resolve::resolve_document(source, &document, manifest, wanted, progress)
                        .await?;
                let manifest = image.manifests.swap_remove(0);
                let artifacts = image.artifacts;
                Ok(PlatformImage { root, manifest, artifacts, is_alone: false })
            }
        }
    }

    /// Finds its indexes. See [`discover`].
    pub(super) async fn indexes(
        &self,
        source: &Source,
        requested: Option<&Digest>,
        progress: &Arc<dyn Progress>,
    ) -> Result<DiscoveredImage, DiscoverError> {
        let image =
            indexes_of(source, self.root, self.manifest.clone(), &self.artifacts, requested)
                .await?;
        warn(&image, progress);
        Ok(image)
    }
}

/// Finds the image `root` of `source` for one platform (None for this machine's, or the only one),
/// and its indexes.
///
/// A reader takes the index that is `requested` by digest, whether or not it is listed. With a fine
/// index, it also takes the SOCI index that it would take anyway. Warnings report why it does not
/// take other indexes, and what it ignores in the one it takes. An image can be read without
/// indexes, so neither a missing index nor a store that does not list referrers is an error.
///
/// # Errors
/// If the image cannot be found or read, or the requested index cannot be used.
pub async fn discover(
    source: &Source,
    root: &Target,
    platform: Option<&Platform>,
    requested: Option<&Digest>,
    progress: &Arc<dyn Progress>,
) -> Result<DiscoveredImage, DiscoverError> {
    let image = PlatformImage::find(source, root, platform, progress).await?;
    let stated = async {
        // The image may be for another platform.
        if image.is_alone && platform.is_some() {
            Ok(resolve::stated(source, &image.manifest.config, PlatformChoice::of(platform))
                .await?)
        } else {
            Ok(image.manifest.platform.clone())
        }
    };
    let (platform, discovered) = both(stated, image.indexes(source, requested, progress)).await?;
    Ok(DiscoveredImage { platform, ..discovered })
}

/// Both results. An error of `first` ends both at once. One of `second` waits for `first`, so that
/// it does not depend on chance which of two errors is reported.
pub(super) async fn both<A, B, E>(
    first: impl Future<Output = Result<A, E>>,
    second: impl Future<Output = Result<B, E>>,
) -> Result<(A, B), E> {
    let second = async { Ok(second.await) };
    let (second, first) = tokio::try_join!(second, first)?;
    Ok((first, second?))
}

/// Like [`discover`], for each of the `wanted` platforms, but without warnings.
///
/// # Errors
/// As [`discover`].
pub async fn discover_all(
    source: &Source,
    root: &Target,
    wanted: PlatformChoice<'_>,
    requested: Option<&Digest>,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<DiscoveredImage>, DiscoverError> {
    let image = resolve::resolve(source, root, wanted, progress).await?;
    let mut all = Vec::with_capacity(image.manifests.len());
    for manifest in image.manifests {
        all.push(indexes_of(source, image.digest, manifest, &image.artifacts, requested).await?);
    }
    Ok(all)
}

/// The index of the image whose digest has `start` as its first digits. Only indexes that the image
/// names or the store lists are found, and how the index was found decides who vouches for it: a
/// few digits can be forged.
///
/// # Errors
/// Those of [`discover`], or if no index or several indexes have such a digest.
pub async fn index_starting_with(
    start: &str,
    source: &Source,
    root: &Target,
    wanted: PlatformChoice<'_>,
    progress: &Arc<dyn Progress>,
) -> Result<Digest, DiscoverError> {
    let images = discover_all(source, root, wanted, None, progress).await?;
    let indexes = images.iter().flat_map(|image| image.indexes.iter().map(|index| index.digest));
    let fine = images.iter().flat_map(|image| image.fine.iter().map(|index| index.digest));
    let digests: BTreeSet<Digest> =
        indexes.chain(fine).filter(|digest| digest.hex().starts_with(start)).collect();
    let start = start.to_owned();
    match (digests.first(), digests.len()) {
        (Some(digest), 1) => Ok(*digest),
        (None, _) => Err(DiscoverError::NoIndex { start }),
        (Some(_), _) => {
            let found = digests.iter().map(Digest::to_string).collect::<Vec<_>>().join(", ");
            Err(DiscoverError::SeveralIndexes { start, found })
        }
    }
}

/// The bytes of a ztoc, with the size and digest that the index states.
///
/// # Errors
/// If it is too large ([`MAX_ZTOC`]) or cannot be fetched.
pub async fn fetch_ztoc(source: &Source, ztoc: &ZtocRef) -> Result<Bytes, DiscoverError> {
    let ZtocRef { ztoc: digest, layer, size, .. } = *ztoc;
    if size > MAX_ZTOC {
        return Err(DiscoverError::ZtocTooLarge { ztoc: digest, layer, size });
    }
    let bytes = source.blob_bytes(&ztoc.blob(), MAX_ZTOC).await;
    bytes.map_err(|source| DiscoverError::Ztoc { ztoc: digest, layer, source })
}

/// Warns about entries that a reader ignores.
fn warn(discovered: &DiscoveredImage, progress: &Arc<dyn Progress>) {
    let warn = |text: String| progress.report(ProgressEvent::Warning(text));
    if let Err(error) = &discovered.listing {
        warn(format!(
            "cannot list the SOCI indexes of {}: {}",
            discovered.manifest.digest,
            causes(error)
        ));
    }
    if let Some(odd) = &discovered.odd_annotation {
        warn(format!(
            "{} names a SOCI index by {odd:?}, which is not a digest",
            discovered.manifest.digest
        ));
    }
    let before = discovered.chosen.unwrap_or(discovered.indexes.len());
    for index in discovered.indexes.iter().take(before) {
        if let Err(why) = &index.content {
            warn(format!("skipping SOCI index {}: {}", index.digest, causes(why)));
        }
    }
    // One that is listed after the chosen one might have been chosen too.
    for index in &discovered.fine {
        if let Err(why) = &index.content
            && !matches!(why, UnusableIndexError::Unread(_))
        {
            warn(format!("skipping fine index {}: {}", index.digest, causes(why)));
        }
    }
    if let Some((index, content)) = discovered.index() {
        for note in content.notes.iter().filter(|note| note.is_ignored()) {
            warn(format!("SOCI index {}: {note}", index.digest));
        }
    }
}

/// A fine index as shown in lists.
#[derive(Debug, Clone)]
pub struct FineSummary {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The size of its manifest in bytes, if known.
    pub size: Option<u64>,
    /// How it was found.
    pub via: DiscoveryMethod,
    /// Whether a reader takes this one.
    pub chosen: bool,
    /// Its content, or why it cannot be used.
    pub content: Result<FineFacts, String>,
}

/// The content of a fine index.
#[derive(Debug, Clone)]
pub struct FineFacts {
    /// The tool that built it, if it names one.
    pub tool: Option<String>,
    /// How much of the image has documents.
    pub coverage: Coverage,
    /// The size of the documents for the image's layers, in bytes.
    pub bytes: u64,
    /// How many of these bytes a single request for each layer returns: heads, and the pages for a
    /// start.
    pub start_bytes: u64,
    /// The digest of the profile that it was built with, if any.
    pub profile: Option<Digest>,
}

impl DiscoveredImage {
    /// The fine indexes of the image, in order.
    pub fn fine_summaries(&self) -> Vec<FineSummary> {
        let fine = self.fine.iter().enumerate();
        fine.map(|(place, index)| FineSummary {
            digest: index.digest,
            size: index.size,
            via: index.via,
            chosen: self.chosen_fine == Some(place),
            content: self.facts(index),
        })
        .collect()
    }

    fn facts(&self, index: &FoundFineRef) -> Result<FineFacts, String> {
        let content = index.content.as_ref().map_err(|why| causes(why))?;
        let sum = |part: fn(&ociseek_format::image::fine::FineRef) -> u64| {
            content.documents.values().map(part).fold(0, u64::saturating_add)
        };
        Ok(FineFacts {
            tool: content.index.build_tool.clone(),
            coverage: Coverage::of(&self.layers, |layer| {
                content.documents.contains_key(&layer.digest)
            }),
            bytes: sum(|document| document.size),
            start_bytes: sum(|document| document.start_size),
            profile: content.index.profile,
        })
    }
}
