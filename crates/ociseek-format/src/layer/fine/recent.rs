//! The last output of a decoder, which windows are taken from.

use std::collections::VecDeque;
use std::ops::Range;

use crate::budget::{Charge, OverBudget};
use crate::offset::Uncompressed;

/// The size of a block in bytes. All blocks but the last are full.
const BLOCK: usize = 128 << 10;

/// The output from some position to the end. The decoder writes into it, so nothing is copied.
/// Blocks that are no longer needed are reused, the most recent one first, because it is most
/// likely still in the CPU's cache.
pub(super) struct RecentOutput {
    blocks: VecDeque<Box<[u8]>>,
    spare: Vec<Box<[u8]>>,
    /// The position of the first block, and of the end.
    start: Uncompressed,
    end: Uncompressed,
    /// Charged for all blocks.
    memory: Charge,
}

impl RecentOutput {
    /// Holds nothing, up to the position `end`.
    pub(super) fn new(end: Uncompressed, memory: Charge) -> RecentOutput {
        RecentOutput { blocks: VecDeque::new(), spare: Vec::new(), start: end, end, memory }
    }

    /// The position of its first byte.
    pub(super) fn start(&self) -> Uncompressed {
        self.start
    }

    pub(super) fn end(&self) -> Uncompressed {
        self.end
    }

    /// Where the next output goes: at least a byte.
    ///
    /// # Errors
    /// If it does not fit into memory.
    pub(super) fn room(&mut self) -> Result<&mut [u8], OverBudget> {
        let filled = (self.end - self.start) as usize;
        if filled == self.blocks.len() * BLOCK {
            let block = match self.spare.pop() {
                Some(block) => block,
                None => {
                    self.memory.grow(BLOCK as u64, || "the output that its windows are taken from".to_owned())?;
                    vec![0; BLOCK].into()
                }
            };
            self.blocks.push_back(block);
        }
        Ok(self.blocks.back_mut().and_then(|block| block.get_mut(filled % BLOCK..)).unwrap_or_default())
    }

    /// Takes the first `size` bytes of the room, and returns them.
    pub(super) fn take(&mut self, size: usize) -> &[u8] {
        let from = (self.end - self.start) as usize % BLOCK;
        self.end += size as u64;
        self.blocks.back().and_then(|block| block.get(from..from + size)).unwrap_or_default()
    }

    /// Forgets what is before `position`, as far as whole blocks are.
    pub(super) fn forget(&mut self, position: Uncompressed) {
        while self.start.0 + BLOCK as u64 <= position.0.min(self.end.0) {
            self.spare.extend(self.blocks.pop_front());
            self.start += BLOCK as u64;
        }
    }

    /// Frees what is not needed now.
    pub(super) fn shrink(&mut self) {
        self.spare = Vec::new();
        self.memory.shrink_to((self.blocks.len() * BLOCK) as u64);
    }

    /// The bytes of a range in pieces, as far as they are there.
    pub(super) fn bytes(&self, range: Range<Uncompressed>) -> impl Iterator<Item = &[u8]> {
        let within = |at: Uncompressed| at.0.clamp(self.start.0, self.end.0) - self.start.0;
        let (from, end) = (within(range.start) as usize, within(range.end) as usize);
        let blocks =
            self.blocks.iter().enumerate().skip(from / BLOCK).take_while(move |(number, _)| number * BLOCK < end);
        blocks.map(move |(number, block)| {
            let place = |at: usize| at.saturating_sub(number * BLOCK).min(BLOCK);
            block.get(place(from)..place(end)).unwrap_or_default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    #[test]
    fn bytes_are_there_until_they_are_forgotten() {
        let budget = Budget::new(8 * BLOCK as u64);
        let mut recent = RecentOutput::new(Uncompressed(1000), budget.open());
        let all: Vec<u8> = (0..20 * BLOCK).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
        let mut done = 0;
        for size in (0..).map(|number| 1 + number * 7919 % (BLOCK + 5)) {
            let room = recent.room().unwrap();
            let size = size.min(room.len()).min(all.len() - done);
            room[..size].copy_from_slice(&all[done..done + size]);
            assert!(recent.take(size) == &all[done..done + size]);
            done += size;
            let kept = done.saturating_sub(5 * BLOCK);
            recent.forget(Uncompressed(1000 + kept as u64));
            for from in [kept, kept + (done - kept) / 3, done] {
                let (start, end) = (Uncompressed(1000 + from as u64), recent.end());
                assert!(recent.bytes(start..end).collect::<Vec<_>>().concat() == all[from..done]);
            }
            if done == all.len() {
                break;
            }
        }
        // Nothing stands for what was forgotten.
        assert!(recent.bytes(Uncompressed(0)..recent.end() + 1).map(<[u8]>::len).sum::<usize>() <= 6 * BLOCK);
    }

    #[test]
    fn memory_is_charged_until_it_is_freed() {
        let budget = Budget::new(2 * BLOCK as u64);
        let mut recent = RecentOutput::new(Uncompressed(0), budget.open());
        for _ in 0..2 {
            assert_eq!(recent.room().unwrap().len(), BLOCK);
            recent.take(BLOCK);
        }
        assert!(recent.room().is_err());
        recent.forget(recent.end());
        recent.shrink();
        budget.open().grow(2 * BLOCK as u64, || "all of it".to_owned()).unwrap();
    }
}
