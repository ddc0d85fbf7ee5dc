//! Decoded spans in pieces of [`PIECE`] bytes: how they are kept in memory and on disk.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::rootfs::cache::PIECE;

/// The pieces that hold bytes of `range`, which is counted from the start of the span.
pub(super) fn covering(range: &Range<u64>) -> Range<u32> {
    let number = |at: u64| u32::try_from(at).unwrap_or(u32::MAX);
    number(range.start / PIECE as u64)..number(range.end.div_ceil(PIECE as u64))
}

/// Pieces of one span that lie side by side.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub first: u32,
    pub pieces: Vec<Bytes>,
}

impl Run {
    /// The bytes of `range`, counted from the start of the span, in as many parts as there are pieces; `None` if some are missing.
    pub fn get(&self, range: &Range<u64>) -> Option<Vec<Bytes>> {
        let start = u64::from(self.first) * PIECE as u64;
        let mut parts = Vec::new();
        for number in covering(range) {
            let piece = self.pieces.get(number.checked_sub(self.first)? as usize)?;
            let at = start + u64::from(number - self.first) * PIECE as u64;
            let from = usize::try_from(range.start.saturating_sub(at)).ok()?;
            let to = usize::try_from(range.end - at).ok()?.min(PIECE);
            if from > to || to > piece.len() {
                return None;
            }
            parts.push(piece.slice(from..to));
        }
        Some(parts)
    }
}

/// Cuts a span's bytes into pieces.
pub(super) struct Cutter {
    piece: BytesMut,
    number: u32,
}

impl Cutter {
    pub fn new() -> Cutter {
        Cutter { piece: BytesMut::with_capacity(PIECE), number: 0 }
    }

    /// Hands every piece that is whole by now to `out`, with its number.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut impl FnMut(u32, Bytes)) {
        while !bytes.is_empty() {
            let (taken, rest) = bytes.split_at(bytes.len().min(PIECE - self.piece.len()));
            self.piece.extend_from_slice(taken);
            if self.piece.len() == PIECE {
                self.cut(out);
            }
            bytes = rest;
        }
    }

    /// The span is at its end.
    pub fn finish(mut self, out: &mut impl FnMut(u32, Bytes)) {
        if !self.piece.is_empty() {
            self.cut(out);
        }
    }

    fn cut(&mut self, out: &mut impl FnMut(u32, Bytes)) {
        let piece = std::mem::replace(&mut self.piece, BytesMut::with_capacity(PIECE));
        out(self.number, piece.freeze());
        self.number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_is_found_again() {
        let span: Vec<u8> = (0..3 * PIECE + 100).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
        let mut run = Run { first: 1, pieces: Vec::new() };
        let mut cutter = Cutter::new();
        let mut take = |number, piece| {
            if number >= 1 {
                run.pieces.push(piece);
            }
        };
        for bytes in span.chunks(1000) {
            cutter.push(bytes, &mut take);
        }
        cutter.finish(&mut take);
        let p = PIECE as u64;
        for range in [p..p, p..p + 1, p + 5..2 * p, 2 * p - 1..3 * p + 100, p..3 * p + 100, 3 * p + 99..3 * p + 100] {
            let found = run.get(&range).unwrap().concat();
            assert!(found == span[range.start as usize..range.end as usize], "{range:?}");
        }
        for range in [0..1, p - 1..p + 1, p..3 * p + 101, 4 * p..4 * p + 1] {
            assert!(run.get(&range).is_none(), "{range:?}");
        }
    }
}
