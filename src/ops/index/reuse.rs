//! Ztocs that the destination has already: what an earlier run attached before its time was up is not done again.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::build::{BuiltLayer, Layers, before};
use super::existing::Decision;
use super::model::{Existing, IndexOptions, Origin};
use super::plan::Plan;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::image::soci::{ZTOC, ZtocRef};
use crate::layer::{BuiltZtoc, LayerOptions, Outcome};
use crate::store::Destination;
use crate::ztoc::{self, Checkpoints, MAX_ENCODED};

/// Fetches what the indexes that `plans` will replace have for the layers of `unread`; what is left of `unread` must be read.
///
/// Only ztocs of the same tool and span size will do. They are trusted as far as whoever may push an index under our name
/// is: an index that lacks nothing is left as it is without a look at its ztocs, too. What cannot be had, or is not what the
/// layer's ztoc would be by all that it says of itself, is passed over: then the layer is read.
pub(super) async fn reuse(
    plans: &[Plan],
    layers: &mut Layers,
    unread: Vec<Descriptor>,
    destination: Option<&Destination>,
    options: &IndexOptions,
) -> Vec<Descriptor> {
    let there = there(plans, options);
    let Some(destination) = destination.filter(|_| !there.is_empty()) else { return unread };
    let mut fetching = stream::iter(unread)
        .map(async |layer| {
            let built = match there.get(&layer.digest) {
                Some(ztoc) => fetch(destination, ztoc, &layer, &options.layer).await,
                None => None,
            };
            (layer, built)
        })
        // In order, since that of reading is decided.
        .buffered(options.jobs.max(1));
    let mut unread = Vec::new();
    let mut add = |(layer, built): (Descriptor, Option<BuiltZtoc>)| match built {
        Some(ztoc) => {
            let outcome = Arc::new(Outcome::Ztoc(ztoc));
            layers.add(&layer, BuiltLayer { outcome, origin: Origin::Destination });
        }
        None => unread.push(layer),
    };
    while let Some(next) = before(options.deadline, fetching.next()).await.flatten() {
        add(next);
    }
    unread
}

/// The ztocs of the same options, by layer.
fn there<'a>(plans: &'a [Plan], options: &IndexOptions) -> BTreeMap<Digest, &'a ZtocRef> {
    let tool = Some(options.layer.build_tool_identifier.as_str());
    let building = |plan: &&Plan| matches!(plan.decision, Decision::Build { .. });
    (plans.iter())
        .filter(|_| options.existing == Existing::Skip)
        .filter(building)
        .flat_map(|plan| &plan.found)
        .filter(|found| found.tool() == tool)
        .filter_map(|found| found.content.as_ref().ok())
        .flat_map(|content| &content.ztocs)
        .filter(|ztoc| ztoc.span_size == options.layer.span_size)
        .map(|ztoc| (ztoc.layer, ztoc))
        .collect()
}

async fn fetch(
    destination: &Destination,
    ztoc: &ZtocRef,
    layer: &Descriptor,
    options: &LayerOptions,
) -> Option<BuiltZtoc> {
    let blob = Descriptor::new(ZTOC, ztoc.ztoc, ztoc.size);
    let bytes = destination.blob_bytes(&blob, MAX_ENCODED as u64).await.ok()?;
    let (digest, layer_size, options) = (ztoc.ztoc, layer.size, options.clone());
    tokio::task::spawn_blocking(move || checked(bytes.into(), digest, layer_size, &options)).await.ok()?
}

/// `bytes`, if they are a ztoc for a layer of this size and these options.
fn checked(bytes: Vec<u8>, digest: Digest, layer_size: u64, options: &LayerOptions) -> Option<BuiltZtoc> {
    let ztoc = ztoc::decode(&bytes).ok()?;
    let same = *ztoc.version == *ztoc::VERSION
        && *ztoc.build_tool_identifier == *options.build_tool_identifier.as_bytes()
        && ztoc.compressed_size.0 == layer_size
        && ztoc.checkpoints.span_size() == options.span_size;
    same.then_some(BuiltZtoc {
        spans: u32::try_from(ztoc.checkpoints.spans()).ok()?,
        entries: ztoc.files.len() as u64,
        uncompressed_size: ztoc.uncompressed_size.0,
        // A ztoc does not say how many they are; what is reported of it leaves them open.
        gzip_members: u64::from(matches!(ztoc.checkpoints, Checkpoints::Gzip { .. })),
        bytes,
        digest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerIndexer;

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
