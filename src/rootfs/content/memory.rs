//! The pieces that were used last, in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Which piece: of which layer and span.
pub(super) type PieceId = (u32, u32, u32);

/// Keeps pieces up to a number of bytes; those that were not used for longest go.
pub(super) struct Memory {
    max: u64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    bytes: u64,
    /// Counts uses.
    clock: u64,
    pieces: HashMap<PieceId, (u64, Bytes)>,
    /// By the time of their last use.
    order: BTreeMap<u64, PieceId>,
}

impl Memory {
    pub fn new(max: u64) -> Memory {
        Memory { max, kept: Mutex::default() }
    }

    pub fn get(&self, id: PieceId) -> Option<Bytes> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut *kept;
        let (used, piece) = kept.pieces.get_mut(&id)?;
        kept.clock += 1;
        kept.order.remove(used);
        kept.order.insert(kept.clock, id);
        *used = kept.clock;
        Some(piece.clone())
    }

    pub fn put(&self, id: PieceId, piece: Bytes) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut *kept;
        kept.clock += 1;
        kept.bytes += piece.len() as u64;
        kept.order.insert(kept.clock, id);
        if let Some((used, old)) = kept.pieces.insert(id, (kept.clock, piece)) {
            kept.order.remove(&used);
            kept.bytes -= old.len() as u64;
        }
        while kept.bytes > self.max
            && let Some((_, oldest)) = kept.order.pop_first()
        {
            kept.bytes -= kept.pieces.remove(&oldest).map_or(0, |(_, piece)| piece.len() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_used_pieces_go() {
        let memory = Memory::new(30);
        let piece = Bytes::from_static(&[7; 10]);
        for number in 0..3 {
            memory.put((0, 0, number), piece.clone());
        }
        assert!(memory.get((0, 0, 0)).is_some());
        memory.put((0, 0, 2), piece.clone());
        memory.put((1, 0, 0), piece.clone());
        assert!(memory.get((0, 0, 1)).is_none());
        assert!([(0, 0, 0), (0, 0, 2), (1, 0, 0)].into_iter().all(|id| memory.get(id).is_some()));
        memory.put((2, 0, 0), Bytes::from_static(&[7; 31]));
        assert!(memory.get((2, 0, 0)).is_none(), "larger than all of it");
        assert!(Memory::new(0).get((0, 0, 0)).is_none());
    }
}
