//! Ztocs of other options that layers have already: by their checkpoints several threads can decode one layer.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::build::{at_a_time, before};
use super::model::IndexOptions;
use super::plan::Plan;
use super::read::cores;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::image::soci::{ZTOC, ZtocRef};
use crate::store::Destination;
use crate::ztoc::{self, Ztoc};

/// Nothing is fetched for layers that take less than a moment.
const SMALLEST_LAYER: u64 = 32 << 20;
/// Nor what would take longer than it saves: a ztoc is a few hundredths of its layer.
const MOST_OF_LAYER: u64 = 8;
const MOST: u64 = 128 << 20;

/// The ztocs, by layer.
pub(super) type Guides = BTreeMap<Digest, Arc<Ztoc>>;

/// Fetches a ztoc for each layer of `unread` that has one and more than one core for itself. What cannot be had or decoded is passed over.
pub(super) async fn guides(
    plans: &[Plan],
    unread: &[Descriptor],
    destination: Option<&Destination>,
    options: &IndexOptions,
) -> Guides {
    let mut guides = Guides::new();
    let Some(destination) = destination.filter(|_| cores(at_a_time(unread, options)) > 1) else { return guides };
    let known: BTreeMap<Digest, &ZtocRef> = (plans.iter().flat_map(|plan| &plan.found))
        .filter_map(|found| found.content.as_ref().ok())
        .flat_map(|content| &content.ztocs)
        .map(|ztoc| (ztoc.layer, ztoc))
        .collect();
    for layer in unread.iter().filter(|layer| layer.size >= SMALLEST_LAYER) {
        let Some(ztoc) = known.get(&layer.digest) else { continue };
        let blob = Descriptor::new(ZTOC, ztoc.ztoc, ztoc.size);
        let fetching = destination.blob_bytes(&blob, MOST.min(layer.size / MOST_OF_LAYER));
        let Some(Ok(bytes)) = before(options.deadline, fetching).await else { continue };
        if let Ok(ztoc) = ztoc::decode(&bytes) {
            guides.insert(layer.digest, Arc::new(ztoc));
        }
    }
    guides
}
