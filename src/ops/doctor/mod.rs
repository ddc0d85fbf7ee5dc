//! `doctor`: which consumer would use which index of an image, and what keeps the others from it. No layer is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::discover::{DiscoverError, Discovered, causes};
use super::inspect::{Inspected, inspect};
use super::resolve::{ResolveError, Wanted};
use crate::digest::Digest;
use crate::image::soci::{INDEX_V1, ZTOC};
use crate::image::{Descriptor, ecr};
use crate::progress::Progress;
use crate::store::blob::Target;
use crate::store::{Source, StoreError};

mod consumer;
mod finding;

pub use consumer::{Consumer, Reason, Verdict, Verdicts};
pub use finding::{Finding, NoIndex, WhyNot, findings};

/// The image of one platform: who reads it how, and what is wrong.
#[derive(Debug)]
pub struct Diagnosis {
    pub inspected: Inspected,
    /// One for each consumer, in the order of [`Consumer::ALL`].
    pub verdicts: Verdicts,
    /// Problems first.
    pub findings: Vec<Finding>,
}

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
    pub ztoc: Digest,
    pub layer: Digest,
    /// For people.
    pub why: String,
}

/// Why nothing can be said about an image.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error("the store does not say whether it has blob {digest}")]
    Blob { digest: Digest, source: StoreError },
}

/// Looks at the image `root` of `source`, at each of the `wanted` platforms.
///
/// # Errors
/// When the image cannot be found or read, or the store does not say what it has.
pub async fn diagnose(
    source: &Source,
    root: &Target,
    wanted: Wanted<'_>,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<Diagnosis>, DoctorError> {
    let document = source.manifest(root).await.map_err(|error| DiscoverError::from(ResolveError::Find(error)))?;
    // By digest from here on: a tag that moves meanwhile would mix two images.
    let root = Target::Digest(document.digest);
    let mut all = Vec::new();
    for inspected in inspect(source, &root, wanted, None, progress).await? {
        let mut pieces = pieces(source, &document.digest, &inspected.image).await?;
        pieces.broken = broken(&inspected, &pieces);
        let verdicts = Verdicts::of(&inspected.image, &pieces);
        let findings = findings(&inspected, &pieces);
        all.push(Diagnosis { inspected, verdicts, findings });
    }
    Ok(all)
}

async fn pieces(source: &Source, root: &Digest, image: &Discovered) -> Result<Pieces, DoctorError> {
    let mut known = BTreeMap::new();
    let mut pieces = Pieces {
        in_ecr: match source {
            Source::Registry(repository) => Some(ecr::region(repository.registry()).is_some()),
            Source::Layout(_) | Source::Archive(_) => None,
        },
        ..Pieces::default()
    };
    for index in &image.indexes {
        let Ok(content) = &index.content else { continue };
        let ztocs = content.index.ztocs.iter().map(|ztoc| Descriptor::new(ZTOC, ztoc.ztoc, ztoc.size));
        for blob in ztocs.chain(content.index.others.iter().cloned()) {
            if !is_there(source, &blob, &mut known).await? {
                pieces.lost.entry(index.digest).or_default().insert(blob.digest);
            }
        }
    }
    for layer in &image.layers {
        if !is_there(source, layer, &mut known).await? {
            pieces.layers.insert(layer.digest);
        }
    }
    if !is_there(source, &image.config, &mut known).await? {
        pieces.config = Some(image.config.digest);
    }
    // A list that cannot be had was told with that of the manifest.
    if *root != image.manifest.digest
        && let Ok(listed) = source.referrers(root, INDEX_V1).await
    {
        pieces.on_image_index = listed.descriptors.iter().map(|descriptor| descriptor.digest).collect();
    }
    Ok(pieces)
}

/// The ztocs that are there and cannot be used. Those that are gone are told with their index.
fn broken(inspected: &Inspected, pieces: &Pieces) -> Vec<BrokenZtoc> {
    let lost = |ztoc: &Digest| pieces.lost.values().any(|blobs| blobs.contains(ztoc));
    let layers = inspected.image.layers.iter().zip(&inspected.layers);
    let broken = layers.filter_map(|(layer, inspected)| {
        let (reference, facts) = inspected.ztoc.as_ref().filter(|(reference, _)| !lost(&reference.ztoc))?;
        let why = match facts {
            Ok(facts) if facts.compressed_size == layer.size => return None,
            Ok(facts) => {
                format!("it is for a layer of {} bytes, and this one has {}", facts.compressed_size, layer.size)
            }
            Err(error) => causes(error),
        };
        Some(BrokenZtoc { ztoc: reference.ztoc, layer: layer.digest, why })
    });
    let mut all: Vec<BrokenZtoc> = Vec::new();
    for one in broken {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

async fn is_there(source: &Source, blob: &Descriptor, known: &mut BTreeMap<Digest, bool>) -> Result<bool, DoctorError> {
    if let Some(known) = known.get(&blob.digest) {
        return Ok(*known);
    }
    let digest = blob.digest;
    let found = source.blob_exists(blob).await.map_err(|source| DoctorError::Blob { digest, source })?;
    known.insert(digest, found);
    Ok(found)
}
