//! Ztocs of our own making in the cache of ztocs. They are never published, so that the tool's name in them is free for what a ztoc has no
//! field for.

use serde::{Deserialize, Serialize};

use crate::budget::{Budget, Charge, OverBudget};
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::layer::{BuiltZtoc, LayerMap, Notes, Outcome};
use crate::store::cache::{CacheKey, ZtocCache};
use crate::time::Time;
use crate::ztoc::{self, Ztoc, ZtocError};

/// Changes whenever a layer is read in another way than before: what was kept then is not found.
const TOOL: &str = "ociseek reader 1";

#[derive(Serialize, Deserialize)]
struct Extra {
    is_whole: bool,
    notes: Notes,
}

/// What is kept of a layer, if it fits into memory.
///
/// # Errors
/// When it is there and does not fit.
pub(super) fn get(
    cache: &ZtocCache,
    layer: &Descriptor,
    span_size: u64,
    budget: &Budget,
) -> Result<Option<LayerMap>, OverBudget> {
    let mut memory = budget.open();
    match decoded(cache, layer, span_size, &mut memory) {
        Some(Ok((ztoc, Extra { is_whole, notes }))) => Ok(Some(LayerMap { ztoc, notes, is_whole, memory })),
        Some(Err(over)) => Err(over),
        None => Ok(None),
    }
}

fn decoded(
    cache: &ZtocCache,
    layer: &Descriptor,
    span_size: u64,
    memory: &mut Charge,
) -> Option<Result<(Ztoc, Extra), OverBudget>> {
    let (size, outcome) = cache.get(key(&layer.digest, span_size))?;
    let Outcome::Ztoc(built) = outcome else { return None };
    if size != layer.size {
        return None;
    }
    let mut ztoc = match ztoc::decode_within(&built.bytes, memory) {
        Ok(ztoc) => ztoc,
        Err(ZtocError::Memory(over)) => return Some(Err(over)),
        Err(_) => return None,
    };
    let extra: Extra = serde_json::from_slice(&ztoc.build_tool_identifier).ok()?;
    for &(number, seconds, nanos) in &extra.notes.times {
        ztoc.files.get_mut(number as usize)?.mtime = Some(Time { seconds, nanos });
    }
    Some(Ok((ztoc, extra)))
}

/// Keeps what a layer can be read by.
pub(super) fn put(cache: &ZtocCache, layer: &Descriptor, span_size: u64, map: &mut LayerMap) {
    let Ok(extra) = serde_json::to_vec(&Extra { is_whole: map.is_whole, notes: map.notes.clone() }) else {
        return;
    };
    map.ztoc.build_tool_identifier = extra.into();
    let size = ztoc::encoded_size_bound(&map.ztoc.files, &map.ztoc.checkpoints) as u64;
    // What does not fit beside the layer itself is not kept.
    let Ok(_memory) = map.memory.budget().charge(size, String::new) else { return };
    let bytes = ztoc::encode(&map.ztoc);
    let built = BuiltZtoc {
        digest: Digest::sha256(&bytes),
        bytes,
        spans: map.ztoc.checkpoints.spans() as u32,
        entries: map.ztoc.files.len() as u64,
        uncompressed_size: map.ztoc.uncompressed_size.0,
        gzip_members: 0,
    };
    cache.put(key(&layer.digest, span_size), layer.size, &Outcome::Ztoc(built));
}

fn key(layer: &Digest, span_size: u64) -> CacheKey<'_> {
    CacheKey { layer, span_size, build_tool_identifier: TOOL }
}
