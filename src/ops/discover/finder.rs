//! Collects the indexes of an image: named by its manifest, listed by the store, or requested by
//! digest.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};

use super::judge::{self, preferred};
use super::{
    DiscoverError, DiscoveredImage, DiscoveryMethod, FoundFineRef, FoundIndexRef, IndexContent, IndexKind, Note,
    Unusable,
};
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::image::enabled::INDEX_DIGEST;
use crate::image::fine::parse as parse_fine_index;
use crate::image::manifest::OCI_MANIFEST;
use crate::image::soci::Version;
use crate::ops::resolve::PlatformManifest;
use crate::store::blob::{Document, Target};
use crate::store::{Source, StoreError};

/// How many indexes of version 1, and how many fine indexes, are read for an image.
const MAX_INDEXES: usize = 32;
/// How many manifests of indexes are read at the same time. Most images have one of each kind.
const SIDE_BY_SIDE: usize = 4;

/// The manifests that a store lists as indexes, without duplicates. Only [`MAX_INDEXES`] of each kind
/// are read; the others come with the reason why not. Of SOCI indexes the first are read, since
/// consumers take the first one; of fine indexes the last, since registries list the newest last.
pub(in crate::ops) fn to_read(listed: Vec<Descriptor>) -> impl Iterator<Item = (Descriptor, Option<Unusable>)> {
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
pub(in crate::ops) async fn usable(
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

pub(super) async fn indexes_of(
    source: &Source,
    root: Digest,
    image: PlatformManifest,
    artifacts: &[Descriptor],
    requested: Option<&Digest>,
) -> Result<DiscoveredImage, DiscoverError> {
    let PlatformManifest { descriptor: manifest, platform, config, layers, annotations } = image;
    let mut finder = Finder::new(source, &manifest, &layers);
    let mut odd_annotation = None;
    match annotations.get(INDEX_DIGEST).map(|named| (named, named.parse())) {
        None => {}
        Some((_, Ok(digest))) => finder.named(digest, artifacts).await,
        Some((named, Err(_))) => odd_annotation = Some(named.chars().take(150).collect()),
    }
    let listing = finder.listed().await;
    if let Some(requested) = requested {
        finder.requested(*requested).await;
    }
    let Finder { mut indexes, mut fine, .. } = finder;
    let mut chosen = indexes.iter().position(|index| index.content.is_ok());
    let readable = fine.iter().map(|found| found.content.as_ref().ok().map(|content| &content.index));
    let mut chosen_fine = preferred(readable, &layers);
    if let Some(&requested) = requested {
        let unusable = |source| DiscoverError::Index { digest: requested, source };
        chosen_fine = fine.iter().position(|index| index.digest == requested);
        if let Some(place) = chosen_fine {
            if fine[place].content.is_err()
                && let Err(source) = fine.swap_remove(place).content
            {
                return Err(unusable(source));
            }
        } else {
            chosen = indexes.iter().position(|index| index.digest == requested);
            if let Some(place) = chosen.filter(|&place| indexes[place].content.is_err())
                && let Err(source) = indexes.swap_remove(place).content
            {
                return Err(unusable(source));
            }
        }
    }
    Ok(DiscoveredImage {
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
        self.read(digest, listed.map(|artifact| artifact.size), Version::V2, DiscoveryMethod::Annotation).await;
        if let (None, Some(FoundIndexRef { content: Ok(content), .. })) = (listed, self.indexes.last_mut()) {
            content.notes.push(Note::NotBeside);
        }
    }

    /// Adds the indexes of version 1 and the fine indexes, which are referrers.
    async fn listed(&mut self) -> Result<DiscoveryMethod, StoreError> {
        let listed = self.source.referrers_of(&self.manifest.digest, &IndexKind::ARTIFACT_TYPES).await?;
        let via = match (self.source, listed.api) {
            (Source::Registry(_), true) => DiscoveryMethod::Api,
            (Source::Registry(_), false) => DiscoveryMethod::TagSchema,
            (Source::Layout(_) | Source::Archive(_), _) => DiscoveryMethod::Layout,
        };
        let source = self.source;
        let fetch = |(descriptor, unread): (Descriptor, Option<Unusable>)| async move {
            let document = match unread {
                None => source.document(&descriptor.digest).await.map_err(Unusable::Fetch),
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
    async fn requested(&mut self, digest: Digest) {
        let found = self.indexes.iter().map(|index| index.digest).chain(self.fine.iter().map(|index| index.digest));
        if found.into_iter().any(|found| found == digest) {
            return;
        }
        match self.source.manifest(&Target::Digest(digest)).await {
            Ok(document) if parse_fine_index(&document.bytes).is_ok() => {
                self.found_fine(digest, None, DiscoveryMethod::Requested, Ok(document));
            }
            document => {
                self.take(digest, None, Version::V1, DiscoveryMethod::Requested, document.map_err(Unusable::Fetch))
            }
        }
    }

    async fn read(&mut self, digest: Digest, size: Option<u64>, version: Version, via: DiscoveryMethod) {
        let document = self.source.document(&digest).await;
        self.take(digest, size, version, via, document.map_err(Unusable::Fetch));
    }

    fn take(
        &mut self,
        digest: Digest,
        size: Option<u64>,
        version: Version,
        via: DiscoveryMethod,
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

    fn found_fine(
        &mut self,
        digest: Digest,
        size: Option<u64>,
        via: DiscoveryMethod,
        document: Result<Document, Unusable>,
    ) {
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
        via: DiscoveryMethod,
    ) -> Result<IndexContent, Unusable> {
        check(document, expected)?;
        // An index that is requested by digest may have either version.
        let version = (via != DiscoveryMethod::Requested).then_some(version);
        judge::judge(&document.bytes, version, self.manifest, self.layers)
    }

    fn found(
        &mut self,
        digest: Digest,
        size: Option<u64>,
        version: Version,
        via: DiscoveryMethod,
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
