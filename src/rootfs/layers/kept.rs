//! Ztocs of our own making in the cache of ztocs. They are never published, so that the tool's name in them is free for what a ztoc has no
//! field for.

use serde::{Deserialize, Serialize};

use super::entries::Notes;
use super::indexer::Indexed;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::layer::{BuiltZtoc, Outcome};
use crate::store::cache::{CacheKey, ZtocCache};
use crate::tar::Time;
use crate::ztoc;

/// Changes whenever a layer is read in another way than before: what was kept then is not found.
const TOOL: &str = "ociseek reader 1";

#[derive(Serialize, Deserialize)]
struct Extra {
    is_whole: bool,
    notes: Notes,
}

/// What is kept of a layer.
pub(super) fn get(cache: &ZtocCache, layer: &Descriptor, span_size: u64) -> Option<Indexed> {
    let (size, outcome) = cache.get(key(&layer.digest, span_size))?;
    let Outcome::Ztoc(built) = outcome else { return None };
    let mut ztoc = ztoc::decode(&built.bytes).ok().filter(|_| size == layer.size)?;
    let Extra { is_whole, notes } = serde_json::from_slice(&ztoc.build_tool_identifier).ok()?;
    for &(number, seconds, nanos) in &notes.times {
        ztoc.files.get_mut(number as usize)?.mtime = Some(Time { seconds, nanos });
    }
    Some(Indexed { ztoc, notes, is_whole })
}

/// Keeps what a layer can be read by.
pub(super) fn put(cache: &ZtocCache, layer: &Descriptor, span_size: u64, indexed: &mut Indexed) {
    let Ok(extra) = serde_json::to_vec(&Extra { is_whole: indexed.is_whole, notes: indexed.notes.clone() }) else {
        return;
    };
    indexed.ztoc.build_tool_identifier = extra.into();
    let bytes = ztoc::encode(&indexed.ztoc);
    let built = BuiltZtoc {
        digest: Digest::sha256(&bytes),
        bytes,
        spans: indexed.ztoc.checkpoints.spans() as u32,
        entries: indexed.ztoc.files.len() as u64,
        uncompressed_size: indexed.ztoc.uncompressed_size.0,
        gzip_members: 0,
    };
    cache.put(key(&layer.digest, span_size), layer.size, &Outcome::Ztoc(built));
}

fn key(layer: &Digest, span_size: u64) -> CacheKey<'_> {
    CacheKey { layer, span_size, build_tool_identifier: TOOL }
}
