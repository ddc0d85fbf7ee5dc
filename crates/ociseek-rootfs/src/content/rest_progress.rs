//! How far the rest of an image has been fetched, and where reads say what may be read next.

use std::collections::HashSet;
use std::mem::take;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::cache::LayerRoom;
use ociseek_format::offset::LayerId;
use ociseek_store::lock::Hold;

/// The bytes of the tar after a read that count as near it, even if its file is smaller.
const NEAR: u64 = 4 << 20;
/// How many places of reads are remembered.
const PLACES: usize = 1 << 14;

/// How far the rest of an image has been fetched, in bytes of its tars.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestStats {
    /// Those that are in the cache on disk.
    pub bytes: u64,
    /// All of them.
    pub of_bytes: u64,
    /// Those for which the cache is too small.
    pub unfit_bytes: u64,
}

#[derive(Default)]
pub(super) struct RestProgress {
    /// Whether it is being fetched, and notes of reads are of use.
    pub(super) is_active: AtomicBool,
    near: Mutex<ReadPlaces>,
    /// What it takes of the cache, as long as the image may be read.
    rooms: Mutex<Vec<Arc<LayerRoom>>>,
    bytes: AtomicU64,
    of_bytes: AtomicU64,
    unfit_bytes: AtomicU64,
}

/// Where reads missed, the latest last.
#[derive(Default)]
struct ReadPlaces {
    known: HashSet<(LayerId, u64)>,
    ranges: Vec<(LayerId, Range<u64>)>,
}

impl ReadPlaces {
    /// Notes a read at a byte of the tar, in this file.
    fn note(&mut self, layer: LayerId, at: u64, file: Range<u64>) {
        if self.known.len() < PLACES && self.known.insert((layer, file.start / NEAR)) {
            let end = file.end.max(at.saturating_add(NEAR));
            // Programs mostly read on.
            self.ranges.extend([(layer, file.start..at), (layer, at..end)]);
        }
    }
}

impl RestProgress {
    /// None if the rest is not fetched.
    pub(super) fn stats(&self) -> Option<RestStats> {
        let of_bytes = self.of_bytes.load(Ordering::Relaxed);
        (of_bytes > 0).then(|| RestStats {
            bytes: self.bytes.load(Ordering::Relaxed),
            of_bytes,
            unfit_bytes: self.unfit_bytes.load(Ordering::Relaxed),
        })
    }

    /// Learns of a read that must wait, at a byte of the tar in this file.
    pub(super) fn note_read(
        &self,
        layer: LayerId,
        at: u64,
        file: impl FnOnce() -> Option<Range<u64>>,
    ) {
        if self.is_active.load(Ordering::Relaxed) {
            let file = file().unwrap_or(at..at);
            self.near.hold().note(layer, at.max(file.start), file);
        }
    }

    /// Where reads missed since the last call, the latest last.
    pub(super) fn take_near(&self) -> Vec<(LayerId, Range<u64>)> {
        take(&mut self.near.hold().ranges)
    }

    /// Remembers how much of `of_bytes` does not fit.
    pub(super) fn set_unfit(&self, bytes: u64) {
        self.unfit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Begins with these bytes, and keeps what they take of the cache.
    pub(super) fn begin(&self, of_bytes: u64, rooms: Vec<Arc<LayerRoom>>) {
        self.of_bytes.store(of_bytes, Ordering::Relaxed);
        *self.rooms.hold() = rooms;
    }

    /// These bytes are in the cache now.
    pub(super) fn arrived(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
