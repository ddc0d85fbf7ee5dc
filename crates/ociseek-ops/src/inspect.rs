//! What `doctor` looks at: an image's indexes, without reading any layer.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::consumers::{BrokenZtoc, Effect, Pieces, verdicts};
use super::damage::is_over_budget;
use super::discover::{DiscoverError, DiscoveredImage, discover_all, fetch_ztoc};
use super::prefetch;
use super::resolve::PlatformChoice;
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::image::consumer::Verdicts;
use ociseek_format::image::prefetch::{MAX_PREFETCH, SpanRange, parse};
use ociseek_format::image::soci::{ZtocRef, prefetch_lists};
use ociseek_format::image::{Descriptor, ecr};
use ociseek_format::layer::span::SpanTable;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_format::ztoc::{self, Checkpoints, Ztoc, ZtocError};
use ociseek_store::Source;
use ociseek_store::blob::Target;

/// The image of one platform, its indexes, and the ztocs of the index that a reader takes.
#[derive(Debug)]
pub struct InspectedImage {
    /// The image's documents and indexes.
    pub image: DiscoveredImage,
    /// The layers of the image, in its order.
    pub layers: Vec<InspectedLayer>,
    /// Facts about ztocs and blobs for consumers.
    pub pieces: Pieces,
}

impl InspectedImage {
    /// The verdict of each consumer about the image.
    pub fn verdicts(&self) -> Verdicts {
        verdicts(&self.image, &self.pieces)
    }
}

/// A layer with its data in the index that a reader takes.
#[derive(Debug)]
pub struct InspectedLayer {
    /// Its ztoc, with the facts from it.
    pub ztoc: Option<(ZtocRef, Result<ZtocSummary, ZtocFailure>)>,
    /// Its prefetch list.
    pub prefetch: Option<InspectedList>,
}

/// A layer's prefetch list.
#[derive(Debug, Clone)]
pub struct InspectedList {
    /// The prefetch artifact.
    pub artifact: Descriptor,
    /// The spans, and their size in the layer's blob in bytes, or why they are not known.
    pub spans: Result<(Vec<SpanRange>, u64), String>,
}

/// Facts from a ztoc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZtocSummary {
    /// Whether the layer is gzip. Otherwise it is a plain tar.
    pub is_gzip: bool,
    /// The number of spans.
    pub spans: u64,
    /// The number of tar entries of any type.
    pub entries: u64,
    /// The size of the layer's blob in bytes.
    pub compressed_size: u64,
    /// Size of the tar in bytes, up to where its reader stops.
    pub uncompressed_size: u64,
}

/// Why the facts of a ztoc are not known.
#[derive(Debug, thiserror::Error)]
pub enum ZtocFailure {
    #[error(transparent)]
    Fetch(#[from] DiscoverError),
    #[error("ztoc {ztoc} of layer {layer} cannot be used")]
    Decode { ztoc: Digest, layer: Digest, source: ZtocError },
    /// It may be right.
    #[error(
        "ztoc {ztoc} of layer {layer} was not examined: it needs more memory than is allowed here"
    )]
    Memory { ztoc: Digest, layer: Digest, source: ZtocError },
}

/// Examines the image `root` of `source` for each of the `wanted` platforms.
///
/// # Errors
/// If the image cannot be found or read. A ztoc that cannot be read is reported with its layer.
pub async fn inspect(
    source: &Source,
    root: &Target,
    wanted: PlatformChoice<'_>,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<InspectedImage>, DiscoverError> {
    let mut all = Vec::new();
    let mut known: BTreeMap<(Digest, Option<Digest>), (ZtocSummary, Option<InspectedList>)> =
        BTreeMap::new();
    for image in discover_all(source, root, wanted, None, progress).await? {
        let mut layers = Vec::with_capacity(image.layers.len());
        let lists = image
            .index()
            .map(|(_, content)| prefetch_lists(&content.index.others))
            .unwrap_or_default();
        for layer in &image.layers {
            let Some(reference) = image.ztoc_for(&layer.digest) else {
                layers.push(InspectedLayer { ztoc: None, prefetch: None });
                continue;
            };
            let artifact = lists.get(&layer.digest).copied();
            let key = (reference.ztoc, artifact.map(|artifact| artifact.digest));
            let (facts, prefetch) = match known.get(&key) {
                Some((facts, prefetch)) => (Ok(*facts), prefetch.clone()),
                None => fetch_facts(source, reference, artifact).await,
            };
            if let Ok(facts) = facts {
                known.insert(key, (facts, prefetch.clone()));
            }
            layers.push(InspectedLayer { ztoc: Some((reference.clone(), facts)), prefetch });
        }
        let pieces = pieces(source, &image, &layers, progress);
        all.push(InspectedImage { image, layers, pieces });
    }
    Ok(all)
}

/// Fetches and decodes a ztoc.
async fn read(
    source: &Source,
    reference: &ZtocRef,
    memory: &mut Charge,
) -> Result<Ztoc, ZtocFailure> {
    let bytes = fetch_ztoc(source, reference).await?;
    let ZtocRef { ztoc, layer, .. } = *reference;
    ztoc::decode_within(&bytes, memory).map_err(|source| match source {
        ZtocError::Memory(_) => ZtocFailure::Memory { ztoc, layer, source },
        source => ZtocFailure::Decode { ztoc, layer, source },
    })
}

/// The facts from a ztoc and from the prefetch artifact of its layer.
async fn fetch_facts(
    source: &Source,
    reference: &ZtocRef,
    artifact: Option<&Descriptor>,
) -> (Result<ZtocSummary, ZtocFailure>, Option<InspectedList>) {
    let mut memory = source.budget().open();
    let read = read(source, reference, &mut memory).await;
    let facts = |ztoc: &Ztoc| ZtocSummary {
        is_gzip: matches!(ztoc.checkpoints, Checkpoints::Gzip { .. }),
        spans: ztoc.checkpoints.spans(),
        entries: ztoc.files.len() as u64,
        compressed_size: ztoc.compressed_size.0,
        uncompressed_size: ztoc.uncompressed_size.0,
    };
    let (facts, ztoc) = match read {
        Ok(ztoc) => (Ok(facts(&ztoc)), Some(ztoc)),
        Err(failure) => (Err(failure), None),
    };
    let prefetch = match artifact.cloned() {
        Some(artifact) => {
            Some(InspectedList { spans: listed(source, &artifact, ztoc).await, artifact })
        }
        None => None,
    };
    (facts, prefetch)
}

async fn listed(
    source: &Source,
    artifact: &Descriptor,
    ztoc: Option<Ztoc>,
) -> Result<(Vec<SpanRange>, u64), String> {
    let bytes = source.blob_bytes(artifact, MAX_PREFETCH).await.map_err(|error| causes(&error))?;
    let spans = parse(&bytes).map_err(|error| causes(&error))?;
    let ztoc = ztoc.ok_or_else(|| "the layer's ztoc cannot be used".to_owned())?;
    let table = SpanTable::new(Arc::new(ztoc)).map_err(|error| causes(&error))?;
    let bytes = prefetch::bytes(&table, &spans);
    Ok((spans, bytes))
}

/// The facts from reading the ztocs of the index that a reader takes.
fn pieces(
    source: &Source,
    image: &DiscoveredImage,
    layers: &[InspectedLayer],
    progress: &Arc<dyn Progress>,
) -> Pieces {
    let in_ecr = match source {
        Source::Registry(repository) => Some(ecr::region(repository.registry()).is_some()),
        Source::Layout(_) | Source::Archive(_) => None,
    };
    let mut pieces = Pieces { in_ecr, ..Pieces::default() };
    for (layer, inspected) in image.layers.iter().zip(layers) {
        let Some((reference, facts)) = &inspected.ztoc else { continue };
        let (why, effect) = match facts {
            Ok(facts) if facts.compressed_size == layer.size => continue,
            Ok(facts) => (
                format!(
                    "it is for a layer of {} bytes, and this one has {}",
                    facts.compressed_size, layer.size
                ),
                Effect::FailsReads,
            ),
            Err(ZtocFailure::Fetch(DiscoverError::Ztoc { source, .. }))
                if source.is_not_found() =>
            {
                if let Some((index, _)) = image.index() {
                    pieces.lost.entry(index.digest).or_default().insert(reference.ztoc);
                }
                continue;
            }
            // Other runtimes do not have our limit.
            Err(error) if is_over_budget(error) => {
                progress.report(ProgressEvent::Warning(format!(
                    "the verdicts on other runtimes suppose that this ztoc is right: {}",
                    causes(error)
                )));
                continue;
            }
            Err(error @ ZtocFailure::Fetch(_)) => (causes(error), Effect::DropsIndex),
            Err(error) => (causes(error), Effect::PullsLayer),
        };
        let broken = BrokenZtoc { ztoc: reference.ztoc, layer: layer.digest, why, effect };
        if !pieces.broken.contains(&broken) {
            pieces.broken.push(broken);
        }
    }
    pieces
}
