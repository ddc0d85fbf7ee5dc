//! Collects the indexes of an image: named by its manifest, listed by the store, or requested by
//! digest.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};

use super::judge;
use super::{
    DiscoverError, DiscoveredImage, DiscoveryMethod, FoundFineRef, FoundIndexRef, IndexContent,
    IndexKind, Note, UnusableIndexError,
};
use crate::resolve::PlatformManifest;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::enabled::INDEX_DIGEST;
use ociseek_format::image::fine::{bound_index, parse as parse_fine_index};
use ociseek_format::image::manifest::OCI_MANIFEST;
use ociseek_format::image::soci::Version;
use ociseek_store::blob::{Document, Target};
use ociseek_store::{Source, StoreError};

/// How many indexes of version 1, and how many fine indexes, are read for an image.
const MAX_INDEXES: usize = 32;
/// How many manifests of indexes are read at the same time. Most images have one of each kind.
const SIDE_BY_SIDE: usize = 4;

/// The manifests that a store lists as indexes, without duplicates. Only [`MAX_INDEXES`] of each
/// kind are read; the others come with the reason why not. Of SOCI indexes the first are read,
/// since consumers take the first one; of fine indexes the last, since registries list the newest
/// last.
pub(crate) fn to_read(
    listed: Vec<Descriptor>,
) -> impl Iterator<Item = (Descriptor, Option<UnusableIndexError>)> {
    let mut seen = BTreeSet::new();
    let once: Vec<Descriptor> =
        listed.into_iter().filter(|descriptor| seen.insert(descriptor.digest)).collect();
    let mut soci_before = 0;
    let mut fine_after =
        once.iter().filter(|entry| IndexKind::listed(entry) == IndexKind::Fine).count();
    once.into_iter().map(move |entry| {
        let is_read = match IndexKind::listed(&entry) {
            IndexKind::Soci => {
                soci_before += 1;
                soci_before <= MAX_INDEXES
            }
            IndexKind::Fine => {
                fine_after -= 1;
                fine_after < MAX_INDEXES
            }
        };
        (entry, (!is_read).then_some(UnusableIndexError::Unread(MAX_INDEXES)))
    })
}

/// The usable indexes of an image, by digest: that of version 2, which its manifest names, and with
/// `listed` those of version 1. Indexes that cannot be fetched are ignored.
pub(crate) async fn usable(
    source: &Source,
    image: &PlatformManifest,
    artifacts: &[Descriptor],
    listed: bool,
) -> Vec<(Digest, IndexContent)> {
    let finder = Finder { source, manifest: &image.descriptor, layers: &image.layers };
    let named = image.annotations.get(INDEX_DIGEST).and_then(|named| named.parse().ok());
    let listing = async {
        if listed {
            finder.listed().await.map_or_else(|_| Vec::new(), |listed| listed.soci)
        } else {
            Vec::new()
        }
    };
    let (listed, named) = tokio::join!(listing, finder.named(named, artifacts));
    named
        .into_iter()
        .chain(listed)
        .filter_map(|index| Some((index.digest, index.content.ok()?)))
        .collect()
}

pub(super) async fn indexes_of(
    source: &Source,
    root: Digest,
    image: PlatformManifest,
    artifacts: &[Descriptor],
    requested: Option<&Digest>,
) -> Result<DiscoveredImage, DiscoverError> {
    let PlatformManifest { descriptor: manifest, platform, config, layers, annotations } = image;
    let finder = Finder { source, manifest: &manifest, layers: &layers };
    let (named, odd_annotation) =
        match annotations.get(INDEX_DIGEST).map(|named| (named, named.parse())) {
            None => (None, None),
            Some((_, Ok(digest))) => (Some(digest), None),
            Some((named, Err(_))) => (None, Some(named.chars().take(150).collect())),
        };
    let (named_fine, odd_fine) = match bound_index(&annotations) {
        Ok(digest) => (digest, None),
        Err(odd) => (None, Some(odd)),
    };
    let odd_annotation = odd_annotation.or(odd_fine);
    let (listed, named, named_fine) = tokio::join!(
        finder.listed(),
        finder.named(named, artifacts),
        finder.named_fine(named_fine, artifacts)
    );
    let mut indexes = Vec::from_iter(named);
    let mut fine = Vec::from_iter(named_fine);
    let listing = listed.map(|Listed { via, soci, fine: listed }| {
        indexes.extend(soci);
        fine.extend(listed);
        via
    });
    if let Some(&requested) = requested
        && indexes.iter().all(|index| index.digest != requested)
        && fine.iter().all(|index| index.digest != requested)
    {
        match finder.requested(requested).await {
            Found::Soci(index) => indexes.push(index),
            Found::Fine(index) => fine.push(index),
        }
    }
    let mut chosen = indexes.iter().position(|index| index.content.is_ok());
    let mut chosen_fine = super::fine_by_preference(&indexes, &fine, &layers).first().copied();
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
        layers,
        indexes,
        listing,
        odd_annotation,
        chosen,
        fine,
        chosen_fine,
    })
}

/// Finds the indexes of an image.
struct Finder<'a> {
    source: &'a Source,
    manifest: &'a Descriptor,
    layers: &'a [Descriptor],
}

/// An index of either kind.
enum Found {
    Soci(FoundIndexRef),
    Fine(FoundFineRef),
}

/// The indexes of version 1 and the fine indexes, which are referrers, in the order of the store.
struct Listed {
    via: DiscoveryMethod,
    soci: Vec<FoundIndexRef>,
    fine: Vec<FoundFineRef>,
}

impl Finder<'_> {
    /// The index of version 2 that the image manifest names, if it names one.
    async fn named(
        &self,
        digest: Option<Digest>,
        artifacts: &[Descriptor],
    ) -> Option<FoundIndexRef> {
        let digest = digest?;
        let listed = artifacts.iter().find(|artifact| artifact.digest == digest);
        let document = self.source.document(&digest).await.map_err(UnusableIndexError::Fetch);
        let mut index = self.soci(
            digest,
            listed.map(|artifact| artifact.size),
            Version::V2,
            DiscoveryMethod::Annotation,
            document,
        );
        if let (None, Ok(content)) = (listed, &mut index.content) {
            content.notes.push(Note::NotBeside);
        }
        Some(index)
    }

    /// The fine index that the image manifest names, if it names one.
    async fn named_fine(
        &self,
        digest: Option<Digest>,
        artifacts: &[Descriptor],
    ) -> Option<FoundFineRef> {
        let digest = digest?;
        let size = artifacts
            .iter()
            .find(|artifact| artifact.digest == digest)
            .map(|artifact| artifact.size);
        let document = self.source.document(&digest).await.map_err(UnusableIndexError::Fetch);
        Some(self.fine(digest, size, DiscoveryMethod::Annotation, document))
    }

    async fn listed(&self) -> Result<Listed, StoreError> {
        let listed =
            self.source.referrers_of(&self.manifest.digest, &IndexKind::ARTIFACT_TYPES).await?;
        let via = match (self.source, listed.api) {
            (Source::Registry(_), true) => DiscoveryMethod::Api,
            (Source::Registry(_), false) => DiscoveryMethod::TagSchema,
            (Source::Layout(_) | Source::Archive(_), _) => DiscoveryMethod::Layout,
        };
        let source = self.source;
        let fetch = |(descriptor, unread): (Descriptor, Option<UnusableIndexError>)| async move {
            let document = match unread {
                None => {
                    source.document(&descriptor.digest).await.map_err(UnusableIndexError::Fetch)
                }
                Some(why) => Err(why),
            };
            (descriptor, document)
        };
        let mut read = stream::iter(to_read(listed.descriptors)).map(fetch).buffered(SIDE_BY_SIDE);
        let mut soci = Vec::new();
        let mut fine = Vec::new();
        while let Some((descriptor, document)) = read.next().await {
            let digest = descriptor.digest;
            let size = Some(descriptor.size);
            match IndexKind::listed(&descriptor) {
                IndexKind::Soci => soci.push(self.soci(digest, size, Version::V1, via, document)),
                IndexKind::Fine => fine.push(self.fine(digest, size, via, document)),
            }
        }
        Ok(Listed { via, soci, fine })
    }

    /// The index with this digest, of any kind.
    async fn requested(&self, digest: Digest) -> Found {
        match self.source.manifest(&Target::Digest(digest)).await {
            Ok(document) if parse_fine_index(&document.bytes).is_ok() => {
                Found::Fine(self.fine(digest, None, DiscoveryMethod::Requested, Ok(document)))
            }
            document => {
                let document = document.map_err(UnusableIndexError::Fetch);
                Found::Soci(self.soci(
                    digest,
                    None,
                    Version::V1,
                    DiscoveryMethod::Requested,
                    document,
                ))
            }
        }
    }

    fn soci(
        &self,
        digest: Digest,
        size: Option<u64>,
        version: Version,
        via: DiscoveryMethod,
        document: Result<Document, UnusableIndexError>,
    ) -> FoundIndexRef {
        let actual = document.as_ref().ok().map(|document| document.bytes.len() as u64);
        let expected = binding(size, via);
        let content = document.and_then(|document| self.judge(&document, expected, version, via));
        let version = content.as_ref().map_or(version, |content| content.index.version);
        FoundIndexRef { digest, size: expected.or(actual).or(size), version, via, content }
    }

    fn fine(
        &self,
        digest: Digest,
        size: Option<u64>,
        via: DiscoveryMethod,
        document: Result<Document, UnusableIndexError>,
    ) -> FoundFineRef {
        let actual = document.as_ref().ok().map(|document| document.bytes.len() as u64);
        let expected = binding(size, via);
        let content = document.and_then(|document| {
            check(&document, expected)?;
            let is_bound = via == DiscoveryMethod::Annotation;
            judge::judge_fine(&document.bytes, is_bound, self.manifest, self.layers)
        });
        FoundFineRef { digest, size: expected.or(actual).or(size), via, content }
    }

    fn judge(
        &self,
        document: &Document,
        expected: Option<u64>,
        version: Version,
        via: DiscoveryMethod,
    ) -> Result<IndexContent, UnusableIndexError> {
        check(document, expected)?;
        // An index that is requested by digest may have either version.
        let version = (via != DiscoveryMethod::Requested).then_some(version);
        judge::judge(&document.bytes, version, self.manifest, self.layers)
    }
}

/// The size that a manifest must have. What a registry itself states in its list of referrers may
/// be wrong: Harbor counted blobs until version 2.10 (goharbor/harbor#20187), and Google's Artifact
/// Registry was seen with another size (oras-project/oras#1626).
fn binding(size: Option<u64>, via: DiscoveryMethod) -> Option<u64> {
    size.filter(|_| via != DiscoveryMethod::Api)
}

/// Whether a manifest has the listed size, and the media type of all indexes.
fn check(document: &Document, expected: Option<u64>) -> Result<(), UnusableIndexError> {
    let found = document.bytes.len() as u64;
    if let Some(expected) = expected.filter(|&expected| expected != found) {
        return Err(UnusableIndexError::Size { expected, found });
    }
    if document.media_type == OCI_MANIFEST {
        Ok(())
    } else {
        Err(UnusableIndexError::MediaType(document.media_type.chars().take(150).collect()))
    }
}
