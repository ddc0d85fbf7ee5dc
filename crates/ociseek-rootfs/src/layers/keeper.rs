//! Puts plain bytes into the span cache.

use crate::cache::{SpanCache, SpanKey};
use ociseek_format::digest::Digest;
use ociseek_format::layer::KeepSpans;
use ociseek_format::ztoc::Checkpoint;

/// Adds spans of a layer to the cache while there is room for them.
pub(super) struct CacheKeeper {
    cache: SpanCache,
    room: u64,
}

impl CacheKeeper {
    /// For a layer whose blob has `compressed` bytes.
    pub(super) fn new(cache: &SpanCache, compressed: u64) -> CacheKeeper {
        CacheKeeper { cache: cache.clone(), room: cache.room_for(compressed) }
    }
}

impl KeepSpans for CacheKeeper {
    fn keep(&mut self, digest: &Digest, checkpoint: Option<&Checkpoint>, plain: &[u8]) -> bool {
        let size = plain.len() as u64;
        let key = match checkpoint {
            Some(checkpoint) => SpanKey::gzip(digest, checkpoint, size),
            None => SpanKey::plain(digest, size),
        };
        if self.cache.has(&key, size) {
            return true;
        }
        match self.room.checked_sub(size) {
            Some(room) => {
                self.room = room;
                self.cache.put(&key, plain)
            }
            None => false,
        }
    }
}
