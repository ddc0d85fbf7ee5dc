//! Ztocs that SOCI indexes list already: their layers are not read again.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::build::{BuiltLayer, Layers, Offer, Supply, before};
use super::model::{Existing, IndexOptions, Origin};
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::image::soci::{ZTOC, ZtocRef};
use crate::layer::{BuiltZtoc, LayerOptions, Outcome};
use crate::ops::discover::MAX_ZTOC;
use crate::store::Source;
use crate::ztoc::{self, Checkpoints, Head};

/// What a ztoc of any layer may have, in bytes.
const SMALL: u64 = 1 << 20;
/// A checkpoint and the digest of its span in a ztoc, in bytes.
const CHECKPOINT: u64 = 33 << 10;
/// The compression ratio up to which the checkpoints of a layer's ztoc are in proportion to the layer.
const RATIO: u64 = 8;

/// Fetches the ztocs that indexes of the image have for the layers of `unread`; what is left of `unread` must be read.
///
/// What cannot be had, or is not what the layer's ztoc would be by all that it says of itself, is passed over: then the layer is
/// read.
pub(super) async fn reuse(
    layers: &mut Layers,
    unread: Vec<Descriptor>,
    supply: &Supply<'_>,
    options: &IndexOptions,
) -> Vec<Descriptor> {
    let there = usable(&supply.known, options);
    if there.is_empty() {
        return unread;
    }
    let mut fetching = stream::iter(unread)
        .map(async |layer| {
            let built = match there.get(&layer.digest) {
                Some((ztoc, offer)) => {
                    let built = fetch(&offer.store, ztoc, &layer, &options.layer).await;
                    built.map(|built| (built, offer.origin))
                }
                None => None,
            };
            (layer, built)
        })
        // In order, since that of reading is decided.
        .buffered(options.jobs.max(1));
    let mut unread = Vec::new();
    let mut add = |(layer, built): (Descriptor, Option<(BuiltZtoc, Origin)>)| match built {
        Some((ztoc, origin)) => layers.add(&layer, BuiltLayer { outcome: Arc::new(Outcome::Ztoc(ztoc)), origin }),
        None => unread.push(layer),
    };
    while let Some(next) = before(options.deadline, fetching.next()).await.flatten() {
        add(next);
    }
    unread
}

/// The ztocs of the same options, by layer.
fn usable<'a>(offers: &'a [Offer], options: &IndexOptions) -> BTreeMap<Digest, (&'a ZtocRef, &'a Offer)> {
    let tool = Some(options.layer.build_tool_identifier.as_str());
    (offers.iter())
        .filter(|_| options.existing == Existing::Skip)
        .filter(|offer| offer.tool.as_deref() == tool)
        .flat_map(|offer| offer.ztocs.iter().map(move |ztoc| (ztoc, offer)))
        .filter(|(ztoc, _)| ztoc.span_size == options.layer.span_size)
        .map(|(ztoc, offer)| (ztoc.layer, (ztoc, offer)))
        .collect()
}

async fn fetch(store: &Source, ztoc: &ZtocRef, layer: &Descriptor, options: &LayerOptions) -> Option<BuiltZtoc> {
    if ztoc.size > in_proportion(layer.size, options.span_size) {
        return None;
    }
    let blob = Descriptor::new(ZTOC, ztoc.ztoc, ztoc.size);
    let bytes = store.blob_bytes(&blob, MAX_ZTOC).await.ok()?;
    let (digest, layer_size, options) = (ztoc.ztoc, layer.size, options.clone());
    tokio::task::spawn_blocking(move || checked(bytes.into(), digest, layer_size, &options)).await.ok()?
}

/// The largest ztoc, in bytes, that is fetched for a layer of this size: [`SMALL`], half the layer for its entries, and the checkpoints of
/// a layer that was compressed to an eighth. It is some hundredths of the layer for most layers. A larger ztoc may be right, but
/// reading its layer costs little more than fetching it.
fn in_proportion(layer_size: u64, span_size: u64) -> u64 {
    let checkpoints = layer_size.saturating_mul(RATIO).div_ceil(span_size.max(1)).saturating_mul(CHECKPOINT);
    (layer_size / 2).saturating_add(checkpoints).saturating_add(SMALL).min(MAX_ZTOC)
}

/// `bytes`, if they are a ztoc for a layer of this size and these options. Nothing is decoded before its root says so.
fn checked(bytes: Vec<u8>, digest: Digest, layer_size: u64, options: &LayerOptions) -> Option<BuiltZtoc> {
    if !is_for(&ztoc::head(&bytes).ok()?, layer_size, options) {
        return None;
    }
    let ztoc = ztoc::decode(&bytes).ok()?;
    Some(BuiltZtoc {
        spans: u32::try_from(ztoc.checkpoints.spans()).ok()?,
        entries: ztoc.files.len() as u64,
        uncompressed_size: ztoc.uncompressed_size.0,
        // A ztoc does not say how many they are; what is reported of it leaves them open.
        gzip_members: u64::from(matches!(ztoc.checkpoints, Checkpoints::Gzip { .. })),
        bytes,
        digest,
    })
}

fn is_for(head: &Head<'_>, layer_size: u64, options: &LayerOptions) -> bool {
    head.version == ztoc::VERSION
        && head.build_tool_identifier == options.build_tool_identifier.as_bytes()
        && head.compressed_size.0 == layer_size
        && head.span_size == options.span_size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerIndexer;

    #[test]
    fn a_ztoc_is_in_proportion_to_its_layer() {
        const MIB: u64 = 1 << 20;
        assert_eq!(in_proportion(0, 4 * MIB), SMALL);
        // Tiny spans make a ztoc that is larger than the layer, and yet what the layer's options lead to.
        assert!(in_proportion(100 * MIB, 64 << 10) > 400 * CHECKPOINT);
        let usual = in_proportion(100 * MIB, 4 * MIB);
        assert!((50 * MIB..60 * MIB).contains(&usual), "{usual}");
        assert_eq!(in_proportion(u64::MAX, 1), MAX_ZTOC);
    }

    #[test]
    fn only_the_same_ztoc_will_do() {
        let options = LayerOptions { span_size: 4096, build_tool_identifier: "t".into() };
        let mut indexer = LayerIndexer::new(options.clone(), None);
        let tar = [0; 1024];
        indexer.push(&tar).unwrap();
        // An empty tar is a layer, and too small for any doubt about what its ztoc says.
        let Outcome::Ztoc(built) = indexer.finish().unwrap().outcome else { panic!("it has a ztoc") };
        let check = |bytes: &[u8], size, options: &LayerOptions| checked(bytes.to_vec(), built.digest, size, options);

        assert_eq!(check(&built.bytes, 1024, &options).as_ref(), Some(&built));
        assert_eq!(check(&built.bytes, 1025, &options), None);
        assert_eq!(check(&built.bytes[..built.bytes.len() / 2], 1024, &options), None);
        let other = LayerOptions { build_tool_identifier: "u".into(), ..options.clone() };
        assert_eq!(check(&built.bytes, 1024, &other), None);
        assert_eq!(check(&built.bytes, 1024, &LayerOptions { span_size: 8192, ..options }), None);
    }
}
