//! Manifests, indexes, configs, SOCI and fine indexes, and prefetch lists, as registries and
//! layouts serve them.
//!
//! Invariants under test: no panic; a document that we accept as an image or an index is one for
//! Go's readers too, with the same layers and manifests, whatever its media type; encoded documents
//! can be parsed again; a SOCI-enabled image lists each of its SOCI indexes, and each of these and
//! its image name each other.

use std::collections::BTreeMap;

use ociseek_format::digest::Digest;
use ociseek_format::image::enabled::{self, EntryContent, Original, SociIndexParts};
use ociseek_format::image::manifest::{self, MAX_DESCRIPTORS, Manifest, OCI_MANIFEST};
use ociseek_format::image::select::PlatformSelector;
use ociseek_format::image::soci::{self, SociIndex, Version, ZtocRef};
use ociseek_format::image::{Descriptor, config, fine, go, prefetch};
use ociseek_format::offset::SpanSize;

/// The number of documents in an input. JSON cannot hold the byte between them, 0.
const DOCUMENTS: usize = 4;
/// How many entries of an image index are converted. The content of each is in memory.
const ENTRIES: usize = 16;

fn digests(descriptors: &[Descriptor]) -> Vec<String> {
    descriptors
        .iter()
        .map(|descriptor| format!("{} {}", descriptor.digest, descriptor.size))
        .collect()
}

/// Parses each document as each kind. Converts the first one, with the others as the manifests that
/// it lists.
pub fn read(data: &[u8]) {
    let documents: Vec<&[u8]> = data.splitn(DOCUMENTS, |byte| *byte == 0).collect();
    documents.iter().for_each(|document| parse(document));
    if let Some(original) = original(documents[0], &documents[1..]) {
        convert(original);
    }
}

fn parse(data: &[u8]) {
    if let Ok(document) = manifest::parse(None, data) {
        let media_type = match &document {
            Manifest::Image(image) => {
                let theirs = go::decode_manifest(data).expect("Go reads an image that we read");
                assert_eq!(digests(&image.layers), digests(theirs.layers()));
                assert!(image.layers.len() <= MAX_DESCRIPTORS);
                let again = go::decode_manifest(&theirs.encode()).expect("Go reads what it wrote");
                assert_eq!(again.encode(), theirs.encode());
                image.media_type
            }
            Manifest::Index(index) => {
                let theirs = go::decode_index(data).expect("Go reads an index that we read");
                assert_eq!(digests(&index.manifests), digests(&theirs.manifests));
                assert!(index.manifests.len() <= MAX_DESCRIPTORS);
                let again = go::decode_index(&theirs.encode()).expect("Go reads what it wrote");
                assert_eq!(again.encode(), theirs.encode());
                let mut selector = PlatformSelector::new(&[]);
                let fetched = selector.index(index, &Default::default()).len();
                let selected = selector.finish();
                let listed =
                    selected.chosen.len() + selected.shadowed.len() + selected.passed_over.len();
                assert!(fetched + listed <= index.manifests.len());
                index.media_type
            }
        };
        let served = manifest::parse(Some(media_type), data).expect("it came as what it is");
        assert_eq!(served, document);
    }
    if let Ok(ranges) = prefetch::parse(data) {
        assert_eq!(prefetch::parse(&prefetch::encode(&ranges)).ok(), Some(ranges));
    }
    if let Ok(index) = soci::parse(data) {
        let written = SociIndex {
            layers: index.ztocs.clone(),
            subject: index.subject.clone().filter(|_| index.version == Version::V1),
            build_tool_identifier: index.build_tool_identifier.unwrap_or_default(),
            prefetch: index.others.clone(),
        };
        let again = soci::parse(&written.encode().bytes).expect("it is our own");
        assert!(again.canonical && again.version == index.version);
        assert_eq!((again.ztocs, again.others), (index.ztocs, index.others));
    }
    if let Ok(index) = fine::parse(data) {
        let encoded = index.encode().bytes;
        let again = fine::parse(&encoded).expect("it is our own");
        assert_eq!((&again.layers, again.encode().bytes), (&index.layers, encoded));
    }
    let _ = (
        config::platform(data),
        config::created(data),
        config::diff_ids(data),
        config::created_by(data),
    );
    let _ = go::decode_platform(data);
}

/// An image before its conversion: a manifest, or an index that lists `manifests` in turn. Its
/// first entry is for Linux unless it states another platform.
fn original(root: &[u8], manifests: &[&[u8]]) -> Option<Original> {
    let platforms = BTreeMap::from([(0, "linux/amd64".parse().expect("it is a platform"))]);
    if let Ok(manifest) = go::decode_manifest(root) {
        return Some(Original {
            platforms,
            ..Original::single(Descriptor::of(OCI_MANIFEST, root), manifest)
        });
    }
    let mut index = go::decode_index(root).ok()?;
    index.manifests.truncate(ENTRIES);
    let contents =
        index.manifests.iter_mut().zip(manifests.iter().cycle()).map(|(entry, manifest)| {
            (entry.digest, entry.size) = (Digest::sha256(manifest), manifest.len() as u64);
            go::decode_manifest(manifest).map_or(EntryContent::Kept, EntryContent::of)
        });
    let contents = contents.collect();
    Some(Original { index, contents, platforms })
}

/// Converts an image, with a ztoc for each layer.
fn convert(original: Original) {
    let ztoc = |layer: &Descriptor| ZtocRef {
        ztoc: Digest::sha256(b"ztoc"),
        size: 7,
        layer: layer.digest,
        layer_media_type: layer.media_type.clone(),
        span_size: SpanSize::DEFAULT,
    };
    let targets = original.targets(&[]).targets.into_iter();
    let indexed = targets.map(|target| {
        let image = original.contents[target.entry].image().expect("targets are images");
        let ztocs = image.layers().iter().map(ztoc).collect();
        SociIndexParts { target, ztocs, prefetch: Vec::new(), fine: None, tocs: Default::default() }
    });
    let indexed: Vec<SociIndexParts> = indexed.collect();
    let converted = original.enable(&indexed, "fuzz");
    assert_eq!(converted.digest, Digest::sha256(&converted.bytes));
    assert_eq!(go::decode_index(&converted.bytes).ok().as_ref(), Some(&converted.index));
    for index in &converted.indexes {
        let platforms = soci::parse(&index.bytes).expect("it is our own");
        assert!(platforms.canonical && platforms.version == Version::V2);
        assert_eq!(
            enabled::soci_indexes(&converted.index.manifests)
                .filter(|entry| **entry == index.descriptor)
                .count(),
            1
        );
        // A manifest that is listed for two platforms names the index of the first one.
        let Some(image) = index.descriptor.annotations.get(enabled::MANIFEST_DIGEST) else {
            continue;
        };
        let image =
            converted.manifests.iter().find(|manifest| manifest.digest.to_string() == *image);
        let image = go::decode_manifest(&image.expect("that is one of the manifests").bytes)
            .expect("Go wrote it");
        assert!(image.annotations.contains_key(enabled::INDEX_DIGEST));
    }
    for manifest in &converted.manifests {
        assert_eq!(manifest.digest, Digest::sha256(&manifest.bytes));
    }
}
