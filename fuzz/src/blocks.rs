//! The allocator of the static program, above the system's.
//!
//! Invariants under test: zeroed blocks are zero; a block keeps its bytes while its size changes
//! and while other blocks come and go; each has its alignment.

#![allow(unsafe_code, reason = "an allocator has no safe interface")]

use std::alloc::{GlobalAlloc, Layout, System};

use super::allocator::{LARGE, WithLargeBlocks};

const ALLOCATOR: WithLargeBlocks<System> = WithLargeBlocks(System);
/// Around the size of a large block, and of pages.
const SIZES: [usize; 10] =
    [1, 9, 4096, 4097, LARGE - 1, LARGE, LARGE + 1, LARGE + 4096, 2 * LARGE - 1, 2 * LARGE + 3];
const ALIGNS: [usize; 4] = [1, 16, 4096, 8192];
/// How many blocks there are at a time.
const BLOCKS: usize = 6;
/// Each step may move 16 MiB.
const STEPS: usize = 64;

/// A block, and the byte that it has at each of its places.
struct Block {
    at: *mut u8,
    layout: Layout,
    byte: u8,
}

/// The offsets that are read and written in a block: about its ends, and around a large one's size.
fn places(size: usize) -> impl Iterator<Item = usize> {
    [0, 7, 4095, 4096, LARGE - 1, LARGE, size / 2, size - 1]
        .into_iter()
        .filter(move |at| *at < size)
}

impl Block {
    fn new(layout: Layout, byte: u8, zeroed: bool) -> Block {
        // SAFETY: No size is 0.
        let at = unsafe {
            if zeroed { ALLOCATOR.alloc_zeroed(layout) } else { ALLOCATOR.alloc(layout) }
        };
        let block = Block { at, layout, byte };
        block.check_address();
        if zeroed {
            assert!(block.bytes(layout.size()).all(|byte| byte == 0), "{layout:?}");
        }
        block.fill(byte)
    }

    fn check_address(&self) {
        assert!(
            !self.at.is_null() && self.at.addr().is_multiple_of(self.layout.align()),
            "{:?}",
            self.layout
        );
    }

    /// The bytes at the places of the first `size` bytes.
    fn bytes(&self, size: usize) -> impl Iterator<Item = u8> {
        // SAFETY: `size` is at most the block's. `alloc_zeroed` or `fill` wrote these bytes.
        places(size).map(|at| unsafe { *self.at.add(at) })
    }

    fn fill(self, byte: u8) -> Block {
        // SAFETY: The places are within the block.
        places(self.layout.size()).for_each(|at| unsafe { *self.at.add(at) = byte });
        Block { byte, ..self }
    }

    fn check(&self) {
        assert!(self.bytes(self.layout.size()).all(|byte| byte == self.byte), "{:?}", self.layout);
    }

    fn resize(self, size: usize, byte: u8) -> Block {
        // SAFETY: The block has this layout, and `size` is not 0.
        let at = unsafe { ALLOCATOR.realloc(self.at, self.layout, size) };
        let layout = Layout::from_size_align(size, self.layout.align()).expect("it is small");
        let resized = Block { at, layout, byte };
        resized.check_address();
        for place in places(self.layout.size()).filter(|place| *place < size) {
            // SAFETY: The place is in both, and the old block had this byte there.
            assert_eq!(
                unsafe { *at.add(place) },
                self.byte,
                "{place} of {:?} resized to {size}",
                self.layout
            );
        }
        resized.fill(byte)
    }

    fn free(self) {
        self.check();
        // SAFETY: The block has this layout and is not used again.
        unsafe { ALLOCATOR.dealloc(self.at, self.layout) }
    }
}

/// Each step takes two bytes: which block it is about and what happens, and the size and alignment.
pub fn take(data: &[u8]) {
    let mut blocks: [Option<Block>; BLOCKS] = std::array::from_fn(|_| None);
    for (step, pair) in (1..).zip(data.chunks_exact(2).take(STEPS)) {
        let [choice, form] = [pair[0], pair[1]].map(usize::from);
        let size = SIZES[form % SIZES.len()];
        let layout = Layout::from_size_align(size, ALIGNS[form / SIZES.len() % ALIGNS.len()])
            .expect("it is small");
        let slot = &mut blocks[choice % BLOCKS];
        *slot = match (slot.take(), choice / BLOCKS % 3) {
            (None, what) => Some(Block::new(layout, step, what == 0)),
            (Some(block), 0) => {
                block.free();
                None
            }
            (Some(block), _) => Some(block.resize(size, step)),
        };
        blocks.iter().flatten().for_each(Block::check);
    }
    blocks.into_iter().flatten().for_each(Block::free);
}
