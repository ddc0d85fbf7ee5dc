//! The allocator of the static program: dlmalloc, and the kernel itself for large blocks.
//!
//! dlmalloc clears every block that must be zero, even one that the kernel has just zeroed. Each
//! thread that answers FUSE requests has a zeroed buffer of 16 MiB, and uses only its first pages.
//! Clearing the buffer would make all of it take memory.
//!
//! The invariant: the layout of a block alone decides whether it is large, so a block is always
//! freed by the allocator that it came from.

#![allow(unsafe_code, reason = "an allocator has no safe interface")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{copy_nonoverlapping, null_mut};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// The least size of a large block. Smaller blocks, such as those for spans, are allocated again
/// and again, and the kernel would have to zero their pages each time.
const LARGE: usize = 8 << 20;
/// The least alignment of a mapping.
const PAGE: usize = 4096;

/// Allocates small blocks with `A`, and large ones from the kernel.
pub(crate) struct WithLargeBlocks<A>(pub A);

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

/// Maps a large block of zeros. Null if the kernel refuses.
fn map(size: usize) -> *mut u8 {
    // SAFETY: The kernel chooses an address range that is not in use.
    let mapped = unsafe { mmap_anonymous(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), |block| block.cast())
}

// SAFETY: Each large block is a mapping of its own, and all other blocks are from `A`. Nothing here
// panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WithLargeBlocks<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_large(layout) {
            true => map(layout.size()),
            // SAFETY: The caller meets the requirements of `GlobalAlloc`, which are those of `A`.
            false => unsafe { self.0.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_large(layout) {
            true => map(layout.size()),
            // SAFETY: As in `alloc`.
            false => unsafe { self.0.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match is_large(layout) {
            // SAFETY: `map` returned this block with this size, and it is no longer in use.
            // Unmapping fails only if the process has too many mappings. Then the block is leaked.
            true => drop(unsafe { munmap(block.cast(), layout.size()) }),
            // SAFETY: As in `alloc`. By the invariant, the block is from `A`.
            false => unsafe { self.0.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: The caller guarantees that this size and alignment form a valid layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(new)) {
            // SAFETY: As in `dealloc`.
            (false, false) => unsafe { self.0.realloc(block, layout, size) },
            (true, true) => {
                // SAFETY: As in `dealloc`. If this fails, the block is unchanged.
                let moved = unsafe { mremap(block.cast(), layout.size(), size, MremapFlags::MAYMOVE) };
                moved.map_or(null_mut(), |block| block.cast())
            }
            _ => {
                // SAFETY: The caller guarantees that the new size is not zero.
                let moved = unsafe { self.alloc(new) };
                if !moved.is_null() {
                    // SAFETY: Both blocks are at least that long and do not overlap. The caller
                    // does not use the old block again.
                    unsafe {
                        copy_nonoverlapping(block, moved, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                }
                moved
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;

    use super::*;

    /// Sizes around the limit, small and large.
    const SIZES: [usize; 8] = [1, PAGE, LARGE - 1, LARGE, LARGE + 1, LARGE + PAGE, 2 * LARGE - 1, 2 * LARGE + 3];

    /// The offsets that are checked: one in almost every page, and the last byte of the block.
    fn places(size: usize) -> impl Iterator<Item = usize> {
        (0..size).step_by(PAGE - 1).chain([size - 1])
    }

    /// Zeroed blocks are zero, and blocks keep their bytes when their size changes.
    #[test]
    fn blocks_of_all_sizes_keep_their_bytes() {
        let allocator = WithLargeBlocks(System);
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        for align in [1, 64, PAGE, 2 * PAGE] {
            for (from, to) in SIZES.iter().flat_map(|from| SIZES.map(|to| (*from, to))) {
                // SAFETY: No size is 0, each block is used with its own layout, and only
                // initialised bytes within it are read.
                unsafe {
                    let block = allocator.alloc_zeroed(layout(from, align));
                    assert!(places(from).all(|at| *block.add(at) == 0));
                    places(from).for_each(|at| *block.add(at) = at as u8 | 1);
                    let block = allocator.realloc(block, layout(from, align), to);
                    assert!(block.addr().is_multiple_of(align));
                    let mut kept = places(from).filter(|at| *at < to);
                    assert!(kept.all(|at| *block.add(at) == at as u8 | 1), "{from} and {to} bytes");
                    *block.add(to - 1) = 1;
                    allocator.dealloc(block, layout(to, align));
                    let block = allocator.alloc(layout(to, align));
                    places(to).for_each(|at| *block.add(at) = at as u8);
                    assert!(places(to).all(|at| *block.add(at) == at as u8));
                    allocator.dealloc(block, layout(to, align));
                }
            }
        }
    }
}
