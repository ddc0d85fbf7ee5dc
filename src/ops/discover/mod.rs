//! Finds the SOCI indexes of an image, parses them, and determines which of them a reader takes.
//!
//! An annotation of the image manifest names the index of version 2, so nobody can add one without
//! changing the image. Those of version 1 are referrers, and consumers take the first that the
//! registry lists (soci-snapshotter, fs/artifact_fetcher.go). This reader does the same, except
//! that it skips those it cannot use. Fine indexes are referrers too, with a separate type, and are
//! in the same list.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::resolve::{self, PlatformChoice, PlatformManifest, ResolveError};
use crate::digest::Digest;
use crate::image::enabled::INDEX_DIGEST;
use crate::image::fine::{FineRef, parse as parse_fine_index};
use crate::image::manifest::{Manifest, OCI_MANIFEST};
use crate::image::soci::{Version, ZTOC, ZtocRef};
use crate::image::{Descriptor, Platform};
pub(crate) use crate::progress::causes;
use crate::progress::{Progress, ProgressEvent};
use crate::store::blob::{Document, Target};
use crate::store::{Source, StoreError};
use crate::ztoc::MAX_ENCODED;

mod fine;
mod judge;

pub use fine::{FineFacts, FineSummary};
pub use judge::{FineContent, IndexContent, IndexKind, Note, Unusable};
pub(super) use judge::{Referring, parse as parse_index, parse_fine, preferred};

/// The size limit of a ztoc that is read, in bytes. A layer with a larger one is read as if it had
/// none.
pub const MAX_ZTOC: u64 = MAX_ENCODED as u64;
/// How many indexes of version 1, and how many fine indexes, are read for an image.
const MAX_INDEXES: usize = 32;

/// How many manifests of indexes are read at the same time. Most images have one of each kind.
const SIDE_BY_SIDE: usize = 4;

/// Why the indexes of an image cannot be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum DiscoverError {
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("SOCI index {digest} cannot be used")]
    Index { digest: Digest, source: Unusable },
    #[error("ztoc {ztoc} of layer {layer} has {size} bytes; the limit is {MAX_ZTOC}")]
    ZtocTooLarge { ztoc: Digest, layer: Digest, size: u64 },
    #[error("cannot read ztoc {ztoc} of layer {layer}")]
    Ztoc { ztoc: Digest, layer: Digest, source: StoreError },
}

/// The image of one platform and its indexes.
#[derive(Debug)]
pub struct Discovered {
    /// The digest of the manifest or image index that the image's name refers to.
    pub root: Digest,
    /// Media type, digest and size of the image manifest.
    pub manifest: Descriptor,
    /// None if the image does not state it.
    pub platform: Option<Platform>,
    /// Media type, digest and size of the image's config.
    pub config: Descriptor,
    /// The result of reading the config. None if it was not read.
    pub config_read: Option<Result<Bytes, StoreError>>,
    /// The layers from the bottom up.
    pub layers: Vec<Descriptor>,
    /// The index of version 2 first, then those of version 1 in the order of the store.
    pub indexes: Vec<FoundIndexRef>,
    /// How the store lists referrers, or why it does not.
    pub listing: Result<Via, StoreError>,
    /// The image manifest's annotation for an index of version 2, if it is not a digest.
    pub odd_annotation: Option<String>,
    /// Which of `indexes` a reader takes.
    pub chosen: Option<usize>,
    /// The fine indexes, in the order of the store.
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
    pub via: Via,
    /// Its content, or why it cannot be used.
    pub content: Result<FineContent, Unusable>,
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
    pub via: Via,
    /// Its content, or why it cannot be used.
    pub content: Result<IndexContent, Unusable>,
}

/// How an index was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// Named by the image manifest's annotation (version 2).
    Annotation,
    /// Listed by the registry's referrers API.
    Api,
    /// Listed under the tag `sha256-…`, for registries without the API.
    TagSchema,
    /// Listed in the layout's index.json.
    Layout,
    /// Not listed, but requested by its digest.
    Asked,
}

impl Via {
    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            Via::Annotation => "annotation",
            Via::Api => "referrers-api",
            Via::TagSchema => "tag-schema",
            Via::Layout => "layout",
            Via::Asked => "asked",
        }
    }
}

impl Discovered {
    /// The index that a reader takes.
    pub fn index(&self) -> Option<(&FoundIndexRef, &IndexContent)> {
        let found = self.indexes.get(self.chosen?)?;
        found.content.as_ref().ok().map(|content| (found, content))
    }

    /// The fine index that a reader takes.
    pub fn fine_index(&self) -> Option<(&FoundFineRef, &FineContent)> {
        let found = self.fine.get(self.chosen_fine?)?;
        found.content.as_ref().ok().map(|content| (found, content))
    }

    /// The document of a layer in the fine index that a reader takes.
    pub fn document_for(&self, layer: &Digest) -> Option<&FineRef> {
        self.fine_index()?.1.documents.get(layer)
    }

    /// The ztoc of a layer in the index that a reader takes.
    pub fn ztoc_for(&self, layer: &Digest) -> Option<&ZtocRef> {
        self.index()?.1.ztocs.get(layer)
    }
}

/// Finds the image `root` of `source` for one platform (None for this machine's, or the only one),
/// and its indexes. With `config`, also reads its config at the same time.
///
/// A reader takes the index that is `asked` for by digest, whether or not it is listed. With a fine
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
    asked: Option<&Digest>,
    config: bool,
    progress: &Arc<dyn Progress>,
) -> Result<Discovered, DiscoverError> {
    let wanted = platform.map_or(PlatformChoice::Host, |platform| PlatformChoice::Each(std::slice::from_ref(platform)));
    let document = source.manifest(root).await.map_err(ResolveError::Find)?;
    // For an image without an image index, only the config states the platform.
    let (image, artifacts, is_alone) = match resolve::parse(&document)? {
        Manifest::Image(image) => (PlatformManifest::alone(&document, image), Vec::new(), true),
        manifest @ Manifest::Index(_) => {
            let mut image = resolve::resolve_document(source, &document, manifest, wanted, progress).await?;
            (image.manifests.swap_remove(0), image.artifacts, false)
        }
    };
    let descriptor = image.config.clone();
    let read = async {
        match config || is_alone {
            true => Some(resolve::config(source, &descriptor).await),
            false => None,
        }
    };
    let (config, found) = tokio::join!(read, indexes_of(source, document.digest, image, &artifacts, asked));
    let told = match &config {
        Some(Ok(bytes)) if is_alone => resolve::checked(resolve::platform_in(&descriptor, bytes), wanted)?,
        _ => None,
    };
    let config_read = match config {
        // The image may be for another platform.
        Some(Err(error)) if is_alone && platform.is_some() => return Err(resolve::unread(&descriptor, error).into()),
        config => config,
    };
    let mut found = found?;
    found.platform = found.platform.or(told);
    found.config_read = config_read;
    warn(&found, progress);
    Ok(found)
}

/// Like [`discover`] for each of the `wanted` platforms, which must not be empty, but without
/// warnings.
///
/// # Errors
/// As [`discover`].
pub async fn discover_all(
    source: &Source,
    root: &Target,
    wanted: PlatformChoice<'_>,
    asked: Option<&Digest>,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<Discovered>, DiscoverError> {
    let image = resolve::resolve(source, root, wanted, progress).await?;
    let mut all = Vec::with_capacity(image.manifests.len());
    for manifest in image.manifests {
        all.push(indexes_of(source, image.digest, manifest, &image.artifacts, asked).await?);
    }
    Ok(all)
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
    let blob = Descriptor::new(ZTOC, digest, size);
    let bytes = source.blob_bytes(&blob, MAX_ZTOC).await;
    bytes.map_err(|source| DiscoverError::Ztoc { ztoc: digest, layer, source })
}

/// The manifests that a store lists as indexes, without duplicates. Only [`MAX_INDEXES`] of each kind
/// are read; the others come with the reason why not. Of SOCI indexes the first are read, since
/// consumers take the first one; of fine indexes the last, since registries list the newest last.
pub(super) fn to_read(listed: Vec<Descriptor>) -> impl Iterator<Item = (Descriptor, Option<Unusable>)> {
    let mut seen = BTreeSet::new();
    let once: Vec<Descriptor> = listed.into_iter().filter(|descriptor| seen.insert(descriptor.digest)).collect();
    let mut soci_before = 0;
    let mut fine_after = once.iter().filter(|found| IndexKind::listed(found) == IndexKind::Fine).count();
    once.into_iter().map(move |found| {
        let is_read = match IndexKind::listed(&found) {
            IndexKind::Soci => {
                soci_before += 1;
                soci_before <= MAX_INDEXES
            }
            IndexKind::Fine => {
                fine_after -= 1;
                fine_after < MAX_INDEXES
            }
        };
        (found, (!is_read).then_some(Unusable::Unread(MAX_INDEXES)))
    })
}

/// The usable indexes of an image, by digest: that of version 2, which its manifest names, and with
/// `listed` those of version 1. Indexes that cannot be fetched are ignored.
pub(super) async fn usable(
    source: &Source,
    image: &PlatformManifest,
    artifacts: &[Descriptor],
    listed: bool,
) -> Vec<(Digest, IndexContent)> {
    let mut finder = Finder::new(source, &image.descriptor, &image.layers);
    if let Some(digest) = image.annotations.get(INDEX_DIGEST).and_then(|named| named.parse().ok()) {
        finder.named(digest, artifacts).await;
    }
    if listed {
        let _ = finder.listed().await;
    }
    finder.indexes.into_iter().filter_map(|found| Some((found.digest, found.content.ok()?))).collect()
}

async fn indexes_of(
    source: &Source,
    root: Digest,
    image: PlatformManifest,
    artifacts: &[Descriptor],
    asked: Option<&Digest>,
) -> Result<Discovered, DiscoverError> {
    let PlatformManifest { descriptor: manifest, platform, config, layers, annotations } = image;
    let mut finder = Finder::new(source, &manifest, &layers);
    let mut odd_annotation = None;
    match annotations.get(INDEX_DIGEST).map(|named| (named, named.parse())) {
        None => {}
        Some((_, Ok(digest))) => finder.named(digest, artifacts).await,
        Some((named, Err(_))) => odd_annotation = Some(named.chars().take(150).collect()),
    }
    let listing = finder.listed().await;
    if let Some(asked) = asked {
        finder.asked(*asked).await;
    }
    let Finder { mut indexes, mut fine, .. } = finder;
    let mut chosen = indexes.iter().position(|index| index.content.is_ok());
    let readable = fine.iter().map(|found| found.content.as_ref().ok().map(|content| &content.index));
    let mut chosen_fine = preferred(readable, &layers);
    if let Some(&asked) = asked {
        let unusable = |source| DiscoverError::Index { digest: asked, source };
        chosen_fine = fine.iter().position(|index| index.digest == asked);
        if let Some(place) = chosen_fine {
            if fine[place].content.is_err()
                && let Err(source) = fine.swap_remove(place).content
            {
                return Err(unusable(source));
            }
        } else {
            chosen = indexes.iter().position(|index| index.digest == asked);
            if let Some(place) = chosen.filter(|&place| indexes[place].content.is_err())
                && let Err(source) = indexes.swap_remove(place).content
            {
                return Err(unusable(source));
            }
        }
    }
    Ok(Discovered {
        root,
        manifest,
        platform,
        config,
        config_read: None,
        layers,
        indexes,
        listing,
        odd_annotation,
        chosen,
        fine,
        chosen_fine,
    })
}

/// Collects the indexes of an image.
struct Finder<'a> {
    source: &'a Source,
    manifest: &'a Descriptor,
    layers: &'a [Descriptor],
    indexes: Vec<FoundIndexRef>,
    fine: Vec<FoundFineRef>,
}

impl<'a> Finder<'a> {
    fn new(source: &'a Source, manifest: &'a Descriptor, layers: &'a [Descriptor]) -> Finder<'a> {
        Finder { source, manifest, layers, indexes: Vec::new(), fine: Vec::new() }
    }

    /// Adds the index of version 2 that the image manifest names.
    async fn named(&mut self, digest: Digest, artifacts: &[Descriptor]) {
        let listed = artifacts.iter().find(|artifact| artifact.digest == digest);
        self.read(digest, listed.map(|artifact| artifact.size), Version::V2, Via::Annotation).await;
        if let (None, Some(FoundIndexRef { content: Ok(content), .. })) = (listed, self.indexes.last_mut()) {
            content.notes.push(Note::NotBeside);
        }
    }

    /// Adds the indexes of version 1 and the fine indexes, which are referrers.
    async fn listed(&mut self) -> Result<Via, StoreError> {
        let listed = self.source.referrers_of(&self.manifest.digest, &IndexKind::ARTIFACT_TYPES).await?;
        let via = match (self.source, listed.api) {
            (Source::Registry(_), true) => Via::Api,
            (Source::Registry(_), false) => Via::TagSchema,
            (Source::Layout(_) | Source::Archive(_), _) => Via::Layout,
        };
        let source = self.source;
        let fetch = |(descriptor, unread): (Descriptor, Option<Unusable>)| async move {
            let document = match unread {
                None => source.manifest(&Target::Digest(descriptor.digest)).await.map_err(Unusable::Fetch),
                Some(why) => Err(why),
            };
            (descriptor, document)
        };
        let mut read = stream::iter(to_read(listed.descriptors)).map(fetch).buffered(SIDE_BY_SIDE);
        while let Some((descriptor, document)) = read.next().await {
            let (digest, size) = (descriptor.digest, Some(descriptor.size));
            match IndexKind::listed(&descriptor) {
                IndexKind::Soci => self.take(digest, size, Version::V1, via, document),
                IndexKind::Fine => self.found_fine(digest, size, via, document),
            }
        }
        Ok(via)
    }

    /// Adds the index with this digest, of any kind, unless it was already found.
    async fn asked(&mut self, digest: Digest) {
        let found = self.indexes.iter().map(|index| index.digest).chain(self.fine.iter().map(|index| index.digest));
        if found.into_iter().any(|found| found == digest) {
            return;
        }
        match self.source.manifest(&Target::Digest(digest)).await {
            Ok(document) if parse_fine_index(&document.bytes).is_ok() => {
                self.found_fine(digest, None, Via::Asked, Ok(document));
            }
            document => self.take(digest, None, Version::V1, Via::Asked, document.map_err(Unusable::Fetch)),
        }
    }

    async fn read(&mut self, digest: Digest, size: Option<u64>, version: Version, via: Via) {
        let document = self.source.manifest(&Target::Digest(digest)).await;
        self.take(digest, size, version, via, document.map_err(Unusable::Fetch));
    }

    fn take(
        &mut self,
        digest: Digest,
        size: Option<u64>,
        version: Version,
        via: Via,
        document: Result<Document, Unusable>,
    ) {
        let (size, content) = match document {
            Ok(document) => {
                let found = document.bytes.len() as u64;
                (Some(size.unwrap_or(found)), self.judge(&document, size, version, via))
            }
            Err(why) => (size, Err(why)),
        };
        self.found(digest, size, version, via, content);
    }

    fn found_fine(&mut self, digest: Digest, size: Option<u64>, via: Via, document: Result<Document, Unusable>) {
        let found = document.as_ref().ok().map(|document| document.bytes.len() as u64);
        let content = document.and_then(|document| {
            check(&document, size)?;
            judge::judge_fine(&document.bytes, self.manifest, self.layers)
        });
        self.fine.push(FoundFineRef { digest, size: size.or(found), via, content });
    }

    fn judge(
        &self,
        document: &Document,
        expected: Option<u64>,
        version: Version,
        via: Via,
    ) -> Result<IndexContent, Unusable> {
        check(document, expected)?;
        // An index that is requested by digest may have either version.
        let version = (via != Via::Asked).then_some(version);
        judge::judge(&document.bytes, version, self.manifest, self.layers)
    }

    fn found(
        &mut self,
        digest: Digest,
        size: Option<u64>,
        version: Version,
        via: Via,
        content: Result<IndexContent, Unusable>,
    ) {
        let version = content.as_ref().map_or(version, |content| content.index.version);
        self.indexes.push(FoundIndexRef { digest, size, version, via, content });
    }
}

/// Whether a manifest has the listed size, and the media type of all indexes.
fn check(document: &Document, expected: Option<u64>) -> Result<(), Unusable> {
    let found = document.bytes.len() as u64;
    if let Some(expected) = expected.filter(|&expected| expected != found) {
        return Err(Unusable::Size { expected, found });
    }
    match document.media_type == OCI_MANIFEST {
        true => Ok(()),
        false => Err(Unusable::MediaType(document.media_type.chars().take(150).collect())),
    }
}

/// Warns about entries that a reader ignores.
fn warn(discovered: &Discovered, progress: &Arc<dyn Progress>) {
    let warn = |text: String| progress.report(ProgressEvent::Warning(text));
    if let Err(error) = &discovered.listing {
        warn(format!("cannot list the SOCI indexes of {}: {}", discovered.manifest.digest, causes(error)));
    }
    if let Some(odd) = &discovered.odd_annotation {
        warn(format!("{} names a SOCI index by {odd:?}, which is not a digest", discovered.manifest.digest));
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
            && !matches!(why, Unusable::Unread(_))
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
