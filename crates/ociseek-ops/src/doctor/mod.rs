//! `doctor`: determines which consumer would use which index of an image, and why others would not.
//! Reads no layers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::cache_fit::LargerThanCache;
use super::consumers::{BrokenDocument, Pieces};
use super::damage::is_over_budget;
use super::discover::{DiscoverError, DiscoveredImage};
use super::fine_documents::fetch_head;
use super::inspect::{InspectedImage, inspect};
use super::resolve::{PlatformChoice, ResolveError};
use ociseek_format::digest::Digest;
use ociseek_format::image::soci::{INDEX_V1, ZtocRef};
use ociseek_format::image::{Coverage, Descriptor};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_store::blob::Target;
use ociseek_store::{Source, StoreError};

mod door;
mod finding;

pub use door::{Door, DoorVerdict};
pub use finding::{Finding, NoIndex, findings, uncovered_code, uncovered_text, why_not};

/// The image of one platform, with the findings about it.
#[derive(Debug)]
pub struct Diagnosis {
    /// The image with its indexes and ztocs.
    pub inspected: InspectedImage,
    /// Problems first.
    pub findings: Vec<Finding>,
    /// The least size of all layers unpacked, in bytes: layers without a usable document or ztoc
    /// count as they are stored.
    pub unpacked: u64,
}

/// How ociseek's own readers use an image's fine index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FineUse {
    /// The digest of its manifest.
    pub index: Digest,
    /// The layers that are read by it.
    pub coverage: Coverage,
    /// Bytes of its documents that are fetched before a start.
    pub start_bytes: u64,
    /// Whether it was built with a recorded start.
    pub is_recorded: bool,
}

impl Diagnosis {
    /// Whether anyone starts the image lazily: a consumer of SOCI indexes, or ociseek itself.
    pub fn is_lazy(&self) -> bool {
        self.inspected.verdicts().any_lazy() || self.doors().any(|(_, verdict)| verdict.is_ok())
    }

    /// Adds what a cache of this size, in bytes, means for an image that ociseek reads lazily. What
    /// startup reads is not known here.
    pub fn compare_with_cache(&mut self, cache: u64) {
        if self.doors().any(|(_, verdict)| verdict.is_ok()) {
            let larger = LargerThanCache::of(None, self.unpacked, cache);
            self.findings.extend(larger.map(Finding::LargerThanCache));
        }
    }

    /// What each of ociseek's own ways to start containers does with the image.
    pub fn doors(&self) -> impl Iterator<Item = (Door, DoorVerdict)> + '_ {
        Door::ALL.iter().map(|&door| (door, door.judge(&self.inspected)))
    }

    /// How the image's fine index is used. None if it has no usable one.
    pub fn by_fine(&self) -> Option<FineUse> {
        let (index, content) = self.inspected.image.fine_index()?;
        let broken: BTreeSet<&Digest> =
            self.inspected.pieces.documents.iter().map(|broken| &broken.layer).collect();
        let sound =
            || content.documents.values().filter(|document| !broken.contains(&document.layer));
        Some(FineUse {
            index: index.digest,
            coverage: Coverage::of(&self.inspected.image.layers, |layer| {
                content.documents.contains_key(&layer.digest) && !broken.contains(&layer.digest)
            }),
            start_bytes: sound().map(|document| document.start_size).fold(0, u64::saturating_add),
            is_recorded: content.index.profile.is_some(),
        })
    }
}

/// Why an image could not be diagnosed.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error("cannot check whether blob {digest} exists")]
    Blob { digest: Digest, source: StoreError },
}

/// Examines the image `root` of `source` for each of the `wanted` platforms.
///
/// # Errors
/// If the image cannot be found or read, or the store cannot be queried.
pub async fn diagnose(
    source: &Source,
    root: &Target,
    wanted: PlatformChoice<'_>,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<Diagnosis>, DoctorError> {
    let document = source
        .manifest(root)
        .await
        .map_err(|error| DiscoverError::from(ResolveError::Find(error)))?;
    // Use the digest from here on: if the tag moves, two images would be mixed.
    let root = Target::Digest(document.digest);
    let mut all = Vec::new();
    for mut inspected in inspect(source, &root, wanted, progress).await? {
        look_for_pieces(source, &document.digest, &inspected.image, &mut inspected.pieces).await?;
        let (documents, plain) = read_heads(source, &inspected.image, progress).await;
        inspected.pieces.documents = documents;
        let unpacked = unpacked(&inspected, plain);
        let findings = findings(&inspected);
        all.push(Diagnosis { inspected, findings, unpacked });
    }
    Ok(all)
}

async fn look_for_pieces(
    source: &Source,
    root: &Digest,
    image: &DiscoveredImage,
    pieces: &mut Pieces,
) -> Result<(), DoctorError> {
    let mut known = BTreeMap::new();
    for index in &image.indexes {
        let Ok(content) = &index.content else { continue };
        let ztocs = content.index.ztocs.iter().map(ZtocRef::blob);
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
    // A list that failed was already reported with the manifest's list.
    if *root != image.manifest.digest
        && let Ok(listed) = source.referrers(root, INDEX_V1).await
    {
        pieces.on_image_index =
            listed.descriptors.iter().map(|descriptor| descriptor.digest).collect();
    }
    // Missing blobs are reported with their index.
    let lost: BTreeSet<&Digest> = pieces.lost.values().flatten().collect();
    pieces.broken.retain(|broken| !lost.contains(&broken.ztoc));
    Ok(())
}

/// The documents of the fine index that a reader takes by which it cannot read their layers, as far
/// as the heads tell, and the unpacked sizes of the other layers that it covers.
async fn read_heads(
    source: &Source,
    image: &DiscoveredImage,
    progress: &Arc<dyn Progress>,
) -> (Vec<BrokenDocument>, BTreeMap<Digest, u64>) {
    let mut seen = BTreeSet::new();
    let mut broken = Vec::new();
    let mut plain = BTreeMap::new();
    for layer in &image.layers {
        let Some(document) =
            image.document_for(&layer.digest).filter(|_| seen.insert(layer.digest))
        else {
            continue;
        };
        let fetched = fetch_head(source, layer, document, &mut source.budget().open()).await;
        let error = match fetched {
            Ok(spans) => {
                plain.insert(layer.digest, spans.plain_end().0);
                continue;
            }
            Err(error) => error,
        };
        let (document, layer, why) = (document.document, layer.digest, causes(&error));
        if is_over_budget(&error) {
            progress.report(ProgressEvent::Warning(format!(
                "fine document {document} of layer {layer} was not examined: {why}"
            )));
        } else {
            broken.push(BrokenDocument { document, layer, why });
        }
    }
    (broken, plain)
}

/// The least size of all layers unpacked. `known` are the sizes of some.
fn unpacked(inspected: &InspectedImage, mut known: BTreeMap<Digest, u64>) -> u64 {
    for (layer, by_index) in inspected.image.layers.iter().zip(&inspected.layers) {
        let by_ztoc = match &by_index.ztoc {
            Some((_, Ok(facts))) if facts.compressed_size == layer.size => facts.uncompressed_size,
            _ => layer.size,
        };
        known.entry(layer.digest).or_insert(by_ztoc);
    }
    known.into_values().fold(0, u64::saturating_add)
}

async fn is_there(
    source: &Source,
    blob: &Descriptor,
    known: &mut BTreeMap<Digest, bool>,
) -> Result<bool, DoctorError> {
    if let Some(known) = known.get(&blob.digest) {
        return Ok(*known);
    }
    let digest = blob.digest;
    let exists =
        source.blob_exists(blob).await.map_err(|source| DoctorError::Blob { digest, source })?;
    known.insert(digest, exists);
    Ok(exists)
}
