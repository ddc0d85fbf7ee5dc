//! The part of a cache that is for what is fetched in advance. All images of a process share it, so
//! that none of them displaces what was fetched for another, and a layer of several images counts
//! once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ociseek_format::digest::Digest;
use ociseek_format::offset::SpanId;
use ociseek_store::lock::Hold;

/// Spans of a layer.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpanSet(Vec<u64>);

impl SpanSet {
    fn place(span: SpanId) -> (usize, u64) {
        (span.0 as usize / 64, 1 << (span.0 % 64))
    }

    pub(crate) fn has(&self, span: SpanId) -> bool {
        let (word, bit) = SpanSet::place(span);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Returns whether it is new.
    pub(crate) fn insert(&mut self, span: SpanId) -> bool {
        let (number, bit) = SpanSet::place(span);
        if self.0.len() <= number {
            self.0.resize(number + 1, 0);
        }
        let Some(word) = self.0.get_mut(number) else { return false };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

/// The room that images take.
#[derive(Default)]
pub(super) struct Rooms(Mutex<TakenRoom>);

#[derive(Default)]
struct TakenRoom {
    bytes: u64,
    /// By layer, and by the number of its spans: an index of another kind has others.
    layers: HashMap<(Digest, u32), TakenByLayer>,
}

#[derive(Default)]
struct TakenByLayer {
    images: usize,
    bytes: u64,
    spans: SpanSet,
}

impl Rooms {
    /// How many bytes of `most` are left.
    pub(super) fn left(&self, most: u64) -> u64 {
        most.saturating_sub(self.0.hold().bytes)
    }

    /// The room of a layer with this many spans.
    pub(super) fn of(self: &Arc<Self>, layer: Digest, spans: u32, most: u64) -> LayerRoom {
        let of = (layer, spans);
        self.0.hold().layers.entry(of).or_default().images += 1;
        LayerRoom { rooms: Arc::clone(self), of, most }
    }
}

/// What an image takes for a layer. It is given back when no image with the layer has this.
pub(crate) struct LayerRoom {
    rooms: Arc<Rooms>,
    of: (Digest, u32),
    most: u64,
}

impl LayerRoom {
    /// How many bytes the images with this layer take for it.
    pub(crate) fn bytes(&self) -> u64 {
        self.rooms.0.hold().layers.get(&self.of).map_or(0, |layer| layer.bytes)
    }

    /// Reserves `size` bytes for a span, unless they are reserved already. Returns false if there
    /// is no room.
    pub(crate) fn take(&self, span: SpanId, size: u64) -> bool {
        let mut taken = self.rooms.0.hold();
        let total = taken.bytes.saturating_add(size);
        let Some(layer) = taken.layers.get_mut(&self.of) else { return false };
        if layer.spans.has(span) {
            return true;
        }
        if total > self.most {
            return false;
        }
        layer.spans.insert(span);
        layer.bytes += size;
        taken.bytes = total;
        true
    }
}

impl Drop for LayerRoom {
    fn drop(&mut self) {
        let mut taken = self.rooms.0.hold();
        let Some(layer) = taken.layers.get_mut(&self.of) else { return };
        layer.images -= 1;
        if layer.images == 0 {
            let bytes = layer.bytes;
            taken.layers.remove(&self.of);
            taken.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_of_several_images_counts_once_and_until_the_last_of_them() {
        let rooms = Arc::new(Rooms::default());
        let layer = |name: &[u8]| rooms.of(Digest::sha256(name), 9, 100);
        let (one, same, other) = (layer(b"a"), layer(b"a"), layer(b"b"));
        assert!(one.take(SpanId(0), 60));
        assert!(same.take(SpanId(0), 60) && one.take(SpanId(0), 60));
        assert!(!other.take(SpanId(0), 60) && other.take(SpanId(70), 40));
        assert_eq!((rooms.left(100), same.bytes(), other.bytes()), (0, 60, 40));
        drop(one);
        assert!(!other.take(SpanId(1), 1));
        drop(same);
        assert_eq!(rooms.left(100), 60);
        assert!(other.take(SpanId(1), 60) && !other.take(SpanId(2), 1));
        drop(other);
        assert_eq!(rooms.left(100), 100);
    }
}
