//! Existing ztocs of layers with other options. Their checkpoints let several threads decode one
//! layer.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::options::IndexOptions;
use super::supply::ZtocOffer;
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::layer::parallel::Threads;
use ociseek_format::ztoc::{self, Ztoc};
use ociseek_store::Source;

/// Smaller layers are read so quickly that fetching a ztoc does not pay.
const SMALLEST_LAYER: u64 = 32 << 20;
/// A larger ztoc would take longer to fetch than it saves: usually it is a few hundredths of its
/// layer.
const MOST_OF_LAYER: u64 = 8;
const MOST: u64 = 128 << 20;

/// The ztocs by layer.
#[derive(Default)]
pub(super) struct Guides {
    by_layer: BTreeMap<Digest, Arc<Ztoc>>,
    /// The memory charge for the ztocs.
    _memory: Vec<Charge>,
}

impl Guides {
    pub(super) fn get(&self, layer: &Digest) -> Option<&Arc<Ztoc>> {
        self.by_layer.get(layer)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_layer.is_empty()
    }
}

/// Fetches a ztoc for each layer of `unread` that has one and can use more than one core. A ztoc
/// that cannot be fetched or decoded, or does not fit into memory, is ignored.
pub(super) async fn guides(offers: &[ZtocOffer], unread: &[Descriptor], options: &IndexOptions) -> Guides {
    let mut guides = Guides::default();
    if Threads::for_one_of(options.side_by_side(unread.len()), None).cores <= 1 {
        return guides;
    }
    let ztocs = offers.iter().flat_map(|offer| offer.ztocs.iter().map(|ztoc| (ztoc.layer, (ztoc, &offer.store))));
    let known: BTreeMap<Digest, (&ZtocRef, &Source)> = ztocs.collect();
    for layer in unread.iter().filter(|layer| layer.size >= SMALLEST_LAYER) {
        let Some((ztoc, store)) = known.get(&layer.digest) else { continue };
        let blob = ztoc.blob();
        let fetching = store.blob_bytes(&blob, MOST.min(layer.size / MOST_OF_LAYER));
        let Some(Ok(bytes)) = options.before_deadline(fetching).await else { continue };
        let mut memory = store.budget().open();
        if let Ok(ztoc) = ztoc::decode_within(&bytes, &mut memory) {
            guides._memory.push(memory);
            guides.by_layer.insert(layer.digest, Arc::new(ztoc));
        }
    }
    guides
}
