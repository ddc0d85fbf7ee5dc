//! What an image and its indexes are to each consumer, from what was found out about them.

use std::collections::{BTreeMap, BTreeSet};

use super::discover::{Discovered, FoundIndexRef, Via};
use crate::digest::Digest;
use crate::image::Coverage;
use crate::image::consumer::{Defect, Facts, IndexLookup, Verdicts};

/// What is known beyond the documents.
#[derive(Debug, Default)]
pub struct Pieces {
    /// By index: blobs that it names and the store does not have.
    pub lost: BTreeMap<Digest, BTreeSet<Digest>>,
    /// Layers of the image that the store does not have.
    pub layers: BTreeSet<Digest>,
    /// The image's config, if the store does not have it.
    pub config: Option<Digest>,
    /// What is wrong with ztocs of the index that a reader takes, though they are there.
    pub broken: Vec<BrokenZtoc>,
    /// Indexes that refer to the image index instead of the manifest of a platform, where no consumer looks.
    pub on_image_index: Vec<Digest>,
    /// The registry is of a kind that the managed consumers read from. None: the image is in no registry.
    pub in_ecr: Option<bool>,
}

/// A ztoc that cannot be its layer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenZtoc {
    /// The ztoc's blob.
    pub ztoc: Digest,
    /// The layer that the index says it is for.
    pub layer: Digest,
    /// For people.
    pub why: String,
}

/// What each consumer makes of an image, as far as its pieces are known.
pub fn verdicts(image: &Discovered, pieces: &Pieces) -> Verdicts {
    let index = |found: &FoundIndexRef| IndexLookup::Index(found.digest, covered(found, image, pieces));
    let first = |is_there: fn(&Via) -> bool| image.indexes.iter().find(|found| is_there(&found.via)).map(index);
    // An annotation without a value is none (fs/fs.go, findSociIndexDescAnnotation).
    let named = match first(|via| *via == Via::Annotation) {
        None if image.odd_annotation.as_ref().is_some_and(|odd| !odd.is_empty()) => IndexLookup::Unreadable,
        found => found.unwrap_or(IndexLookup::Empty),
    };
    let listed = match first(|via| matches!(via, Via::Api | Via::TagSchema | Via::Layout)) {
        None if image.listing.is_err() => IndexLookup::Unreadable,
        found => found.unwrap_or(IndexLookup::Empty),
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

/// How much of the image an index covers, if a consumer can use it.
fn covered(index: &FoundIndexRef, image: &Discovered, pieces: &Pieces) -> Result<Coverage, Defect> {
    let Ok(content) = &index.content else { return Err(Defect::Unusable) };
    if !content.index.canonical {
        return Err(Defect::NotCanonical);
    }
    if pieces.lost.contains_key(&index.digest) {
        return Err(Defect::Incomplete);
    }
    if !pieces.broken.is_empty() && image.index().is_some_and(|(chosen, _)| chosen.digest == index.digest) {
        return Err(Defect::BrokenZtoc);
    }
    Ok(Coverage::of(&image.layers, |layer| content.ztocs.contains_key(&layer.digest)))
}
