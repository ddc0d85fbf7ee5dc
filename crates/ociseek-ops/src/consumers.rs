//! What each consumer does with an image and its indexes, from known facts.

use std::collections::{BTreeMap, BTreeSet};

use super::discover::{DiscoveredImage, DiscoveryMethod, FoundIndexRef};
use ociseek_format::digest::Digest;
use ociseek_format::image::Coverage;
use ociseek_format::image::consumer::{Defect, Facts, IndexLookup, Verdicts};

/// Facts beyond the documents.
#[derive(Debug, Default)]
pub struct Pieces {
    /// By index: the blobs that it names but the store does not have.
    pub lost: BTreeMap<Digest, BTreeSet<Digest>>,
    /// Layers of the image that the store does not have.
    pub layers: BTreeSet<Digest>,
    /// The image's config, if the store does not have it.
    pub config: Option<Digest>,
    /// Faulty ztocs in the index that a reader takes. Missing ones are in `lost`.
    pub broken: Vec<BrokenZtoc>,
    /// Documents of the fine index that a reader takes, but cannot read their layers with.
    pub documents: Vec<BrokenDocument>,
    /// Indexes that refer to the image index instead of a platform's manifest. No consumer looks
    /// there.
    pub on_image_index: Vec<Digest>,
    /// Whether the managed consumers read from the image's registry. None if the image is not in a
    /// registry.
    pub in_ecr: Option<bool>,
}

/// A ztoc that cannot belong to its layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenZtoc {
    /// The ztoc's blob.
    pub ztoc: Digest,
    /// The layer according to the index.
    pub layer: Digest,
    /// The reason, for people.
    pub why: String,
    /// What consumers do about it.
    pub effect: Effect,
}

/// A fine document that its layer cannot be read with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenDocument {
    /// The document's blob.
    pub document: Digest,
    /// The layer that the fine index says it is for.
    pub layer: Digest,
    /// For people.
    pub why: String,
}

/// What soci-snapshotter v0.15.0 does about a ztoc that cannot be its layer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It uses no part of the index: it fetches all blobs of an index and checks their digests
    /// first (fs/artifact_fetcher.go, FetchSociArtifacts).
    DropsIndex,
    /// It pulls this layer whole and mounts the others (fs/layer/layer.go, Resolve;
    /// snapshot/snapshot.go, Prepare).
    PullsLayer,
    /// It mounts the layer, and reads fail: what its spans hold does not have their digests
    /// (fs/span-manager).
    FailsReads,
}

/// The verdict of each consumer about an image, as far as the facts are known.
pub fn verdicts(image: &DiscoveredImage, pieces: &Pieces) -> Verdicts {
    let index = |reference: &FoundIndexRef| {
        IndexLookup::Index(reference.digest, covered(reference, image, pieces))
    };
    let first = |is_there: fn(&DiscoveryMethod) -> bool| {
        image.indexes.iter().find(|reference| is_there(&reference.via)).map(index)
    };
    // An annotation without a value counts as missing (fs/fs.go, findSociIndexDescAnnotation).
    let named = match first(|via| *via == DiscoveryMethod::Annotation) {
        None if image.odd_annotation.as_ref().is_some_and(|odd| !odd.is_empty()) => {
            IndexLookup::Unreadable
        }
        lookup => lookup.unwrap_or(IndexLookup::Empty),
    };
    let listed = match first(|via| {
        matches!(via, DiscoveryMethod::Api | DiscoveryMethod::TagSchema | DiscoveryMethod::Layout)
    }) {
        None if image.listing.is_err() => IndexLookup::Unreadable,
        lookup => lookup.unwrap_or(IndexLookup::Empty),
    };
    Verdicts::of(&Facts {
        platform: image.platform.as_ref(),
        layers: &image.layers,
        missing: pieces.config.as_ref().or(pieces.layers.first()).copied(),
        in_ecr: pieces.in_ecr,
        named,
        listed,
    })
}

/// The coverage of the image by an index, if a consumer can use it.
fn covered(
    index: &FoundIndexRef,
    image: &DiscoveredImage,
    pieces: &Pieces,
) -> Result<Coverage, Defect> {
    let Ok(content) = &index.content else { return Err(Defect::Unusable) };
    if !content.index.canonical {
        return Err(Defect::NotCanonical);
    }
    if pieces.lost.contains_key(&index.digest) {
        return Err(Defect::Incomplete);
    }
    let is_chosen = image.index().is_some_and(|(chosen, _)| chosen.digest == index.digest);
    let broken = if is_chosen { &pieces.broken[..] } else { &[] };
    let is_any = |effect| broken.iter().any(|broken| broken.effect == effect);
    if is_any(Effect::DropsIndex) {
        return Err(Defect::BrokenZtoc);
    }
    if is_any(Effect::FailsReads) {
        return Err(Defect::WrongZtoc);
    }
    let pulled: BTreeSet<&Digest> = broken.iter().map(|broken| &broken.layer).collect();
    let is_covered = |layer: &Digest| content.ztocs.contains_key(layer) && !pulled.contains(layer);
    Ok(Coverage::of(&image.layers, |layer| is_covered(&layer.digest)))
}
