//! `inspect`: what is known of an image's indexes without reading a layer.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::discover::{DiscoverError, Discovered, FoundIndexRef, IndexContent, Via, discover_all, fetch_ztoc};
use super::resolve::Wanted;
use crate::budget::Charge;
use crate::digest::Digest;
use crate::image::LayerKind;
use crate::image::soci::{Version, ZtocRef};
use crate::progress::Progress;
use crate::store::Source;
use crate::store::blob::Target;
use crate::ztoc::{self, Checkpoints, Ztoc, ZtocError};

/// The image of one platform, its indexes, and the ztocs of the one that a reader takes.
#[derive(Debug)]
pub struct Inspected {
    pub image: Discovered,
    /// One for each layer of the image, in its order.
    pub layers: Vec<InspectedLayer>,
    pub consumers: [Consumer; 2],
}

#[derive(Debug)]
pub struct InspectedLayer {
    /// Its ztoc in the index that a reader takes, and what that holds.
    pub ztoc: Option<(ZtocRef, Result<ZtocFacts, ZtocFailure>)>,
}

/// What a ztoc holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZtocFacts {
    pub is_gzip: bool,
    pub spans: u64,
    /// Entries of the tar, of every type.
    pub entries: u64,
    /// Bytes of the layer's blob that it is for.
    pub compressed_size: u64,
    /// Size of the tar in bytes, up to where its reader stops.
    pub uncompressed_size: u64,
}

/// Why nothing is known of a ztoc.
#[derive(Debug, thiserror::Error)]
pub enum ZtocFailure {
    #[error(transparent)]
    Fetch(#[from] DiscoverError),
    #[error("ztoc {ztoc} of layer {layer} cannot be used")]
    Decode { ztoc: Digest, layer: Digest, source: ZtocError },
}

/// What a consumer makes of the image. It pulls what it does not mount lazily.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// By which of its modes.
    pub version: Version,
    /// Layers that it mounts lazily.
    pub layers: usize,
    /// Why none.
    pub reason: Option<&'static str>,
}

/// Looks at the image `root` of `source`, at each of the `wanted` platforms.
///
/// # Errors
/// When the image cannot be found or read. A ztoc that cannot be read is told with its layer.
pub async fn inspect(
    source: &Source,
    root: &Target,
    wanted: Wanted<'_>,
    asked: Option<&Digest>,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<Inspected>, DiscoverError> {
    let mut all = Vec::new();
    let mut known: BTreeMap<Digest, ZtocFacts> = BTreeMap::new();
    for image in discover_all(source, root, wanted, asked, progress).await? {
        let mut layers = Vec::with_capacity(image.layers.len());
        for layer in &image.layers {
            let Some(reference) = image.ztoc_for(&layer.digest) else {
                layers.push(InspectedLayer { ztoc: None });
                continue;
            };
            let facts = match known.get(&reference.ztoc) {
                Some(facts) => Ok(*facts),
                None => fetch_facts(source, reference).await,
            };
            if let Ok(facts) = facts {
                known.insert(reference.ztoc, facts);
            }
            layers.push(InspectedLayer { ztoc: Some((reference.clone(), facts)) });
        }
        let consumers = [Version::V2, Version::V1].map(|version| consumer(&image, version));
        all.push(Inspected { image, layers, consumers });
    }
    Ok(all)
}

/// Finds the one ztoc that `wanted` names among those of all indexes of the image, and reads it.
///
/// `wanted` is the digest of a ztoc or of the layer that it is for, or the first digits of one. None: there is no such ztoc,
/// or more than one.
///
/// # Errors
/// When the image or the ztoc cannot be read.
pub async fn find_ztoc(
    source: &Source,
    root: &Target,
    platforms: Wanted<'_>,
    wanted: &str,
    progress: &Arc<dyn Progress>,
) -> Result<Option<(Bytes, Ztoc)>, ZtocFailure> {
    let images = discover_all(source, root, platforms, None, progress).await?;
    let is_named =
        |digest: &Digest| digest.to_string() == wanted || (wanted.len() >= 6 && digest.hex().starts_with(wanted));
    let mut found: BTreeMap<Digest, &ZtocRef> = BTreeMap::new();
    for content in images.iter().flat_map(|image| &image.indexes).filter_map(|index| index.content.as_ref().ok()) {
        let named = content.index.ztocs.iter().filter(|z| is_named(&z.ztoc) || is_named(&z.layer));
        found.extend(named.map(|z| (z.ztoc, z)));
    }
    let (Some((_, reference)), None) = (found.pop_first(), found.pop_first()) else { return Ok(None) };
    let mut memory = source.budget().open();
    let found = read(source, reference, &mut memory).await?;
    memory.keep();
    Ok(Some(found))
}

/// A ztoc, fetched and decoded.
async fn read(source: &Source, reference: &ZtocRef, memory: &mut Charge) -> Result<(Bytes, Ztoc), ZtocFailure> {
    let bytes = fetch_ztoc(source, reference).await?;
    let ZtocRef { ztoc, layer, .. } = *reference;
    let decoded = ztoc::decode_within(&bytes, memory).map_err(|source| ZtocFailure::Decode { ztoc, layer, source })?;
    Ok((bytes, decoded))
}

async fn fetch_facts(source: &Source, reference: &ZtocRef) -> Result<ZtocFacts, ZtocFailure> {
    let mut memory = source.budget().open();
    let (_, ztoc) = read(source, reference, &mut memory).await?;
    Ok(ZtocFacts {
        is_gzip: matches!(ztoc.checkpoints, Checkpoints::Gzip { .. }),
        spans: ztoc.checkpoints.spans(),
        entries: ztoc.files.len() as u64,
        compressed_size: ztoc.compressed_size.0,
        uncompressed_size: ztoc.uncompressed_size.0,
    })
}

/// soci-snapshotter takes the index of version 2 that the manifest names, or (where that is switched on) the first of
/// version 1 that is listed; it does not look further if it cannot use that one (fs/artifact_fetcher.go).
fn consumer(image: &Discovered, version: Version) -> Consumer {
    let listed = |index: &&FoundIndexRef| match version {
        Version::V1 => matches!(index.via, Via::Api | Via::TagSchema | Via::Layout),
        Version::V2 => index.via == Via::Annotation,
    };
    let nothing = |reason| Consumer { version, layers: 0, reason: Some(reason) };
    match image.indexes.iter().find(listed).map(|index| &index.content) {
        None if version == Version::V2 => nothing("the image manifest names no index of this version"),
        None => nothing("no index of this version is listed"),
        Some(Err(_)) => nothing("it cannot use the first index that it finds"),
        Some(Ok(content)) if !content.index.canonical => {
            nothing("the JSON of the first index that it finds is not Go's")
        }
        Some(Ok(content)) => Consumer { version, layers: lazy(image, content), reason: None },
    }
}

fn lazy(image: &Discovered, content: &IndexContent) -> usize {
    image.layers.iter().filter(|layer| content.ztocs.contains_key(&layer.digest)).count()
}

/// Why a layer has no ztoc, as far as its type tells.
pub fn without_ztoc(media_type: &str) -> &'static str {
    match LayerKind::of(media_type) {
        LayerKind::Zstd => "no ztoc: zstd",
        LayerKind::Foreign => "no ztoc: a foreign layer",
        LayerKind::Encrypted => "no ztoc: encrypted",
        LayerKind::NotALayer => "no ztoc: not a layer",
        LayerKind::Gzip | LayerKind::Uncompressed | LayerKind::Unknown => "no ztoc",
    }
}
