//! The allocator of the static program: dlmalloc, and the kernel itself for large blocks.
//!
//! dlmalloc clears a block that must be zero, although fresh memory of the kernel is. Each thread
//! that answers the kernel's FUSE requests has such a block of 16 MiB, of which it uses the first
//! pages: cleared, it would take all of that.
//!
//! The invariant: whether a block is large depends on its layout alone, so that a block is freed
//! by what allocated it.

#![allow(unsafe_code, reason = "an allocator has no safe interface")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{copy_nonoverlapping, null_mut};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// The least size of a large block. Smaller ones are used again and again, such as those for spans;
/// the kernel would clear each of their pages each time.
const LARGE: usize = 8 << 20;
/// The alignment of what the kernel maps.
const PAGE: usize = 4096;

/// `A` for small blocks, and the kernel for large ones.
pub(crate) struct WithLargeBlocks<A>(pub A);

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

/// A large block of zeros, or null.
fn map(size: usize) -> *mut u8 {
    // SAFETY: The kernel chooses an address that nothing else uses.
    let mapped = unsafe { mmap_anonymous(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), |block| block.cast())
}

// SAFETY: Large blocks are mappings of their own, others are `A`'s. Nothing here panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WithLargeBlocks<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_large(layout) {
            true => map(layout.size()),
            // SAFETY: The caller's promises are those that `A` asks for.
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
            // SAFETY: `map` made a block of this size here, which nobody uses any more. That fails
            // only if there are too many mappings; then the block stays.
            true => drop(unsafe { munmap(block.cast(), layout.size()) }),
            // SAFETY: As in `alloc`; `A` allocated it, by the invariant.
            false => unsafe { self.0.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: The caller promises that this size with this alignment is a layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(new)) {
            // SAFETY: As in `dealloc`.
            (false, false) => unsafe { self.0.realloc(block, layout, size) },
            (true, true) => {
                // SAFETY: As in `dealloc`. If it fails, the block stays as it is.
                let moved = unsafe { mremap(block.cast(), layout.size(), size, MremapFlags::MAYMOVE) };
                moved.map_or(null_mut(), |block| block.cast())
            }
            _ => {
                // SAFETY: `new` is not empty, as the caller promises.
                let moved = unsafe { self.alloc(new) };
                if !moved.is_null() {
                    // SAFETY: Both blocks have that many bytes, and they are different ones. The
                    // old one is no longer used.
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
    const SIZES: [usize; 8] = [1, 4096, LARGE - 1, LARGE, LARGE + 1, LARGE + PAGE, 2 * LARGE - 1, 2 * LARGE + 3];

    /// The places of a block that are looked at: each page at another offset, and the last byte.
    fn places(size: usize) -> impl Iterator<Item = usize> {
        (0..size).step_by(PAGE - 1).chain([size - 1])
    }

    /// Blocks keep their bytes whatever size they get, as vectors do, and new ones are zero.
    #[test]
    fn blocks_of_all_sizes_keep_their_bytes() {
        let allocator = WithLargeBlocks(System);
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        for align in [1, 64, PAGE, 2 * PAGE] {
            for (from, to) in SIZES.iter().flat_map(|from| SIZES.map(|to| (*from, to))) {
                // SAFETY: The sizes are not 0, each layout is that of the block, and the places are
                // within it and initialised.
                unsafe {
                    let block = allocator.alloc_zeroed(layout(from, align));
                    assert!(places(from).all(|at| *block.add(at) == 0));
                    places(from).for_each(|at| *block.add(at) = at as u8 | 1);
                    let block = allocator.realloc(block, layout(from, align), to);
                    assert!(block.addr().is_multiple_of(align));
                    let kept = places(from).filter(|at| *at < to);
                    assert!(kept.into_iter().all(|at| *block.add(at) == at as u8 | 1), "{from} and {to} bytes");
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
