//! The allocator of the static program: dlmalloc, and the kernel itself for large blocks.
//!
//! dlmalloc clears every block that must be zero, even one that the kernel has just zeroed. Each
//! thread that answers FUSE requests has a zeroed buffer of 16 MiB, and uses only its first pages.
//! Clearing the buffer would make all of it take memory. Smaller blocks are cleared here, because
//! dlmalloc would keep all other threads from allocating meanwhile.
//!
//! The invariant: the layout of a block alone decides whether it is large, so a block is always
//! freed by the allocator that it came from.

#![allow(unsafe_code, reason = "an allocator has no safe interface")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{copy_nonoverlapping, null_mut, write_bytes};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// The least size of a large block. Smaller blocks, such as those for spans, are allocated again
/// and again, and the kernel would have to zero their pages each time.
pub(crate) const LARGE: usize = 8 << 20;
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
    let mapped = unsafe {
        mmap_anonymous(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    mapped.map_or(null_mut(), |block| block.cast())
}

// SAFETY: Each large block is a separate mapping, and all other blocks are from `A`. Nothing here
// panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WithLargeBlocks<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: The caller meets the requirements of `GlobalAlloc`, which are those of `A`.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: As in `alloc`. The block has that many bytes.
        unsafe {
            let block = self.0.alloc(layout);
            if !block.is_null() {
                write_bytes(block, 0, layout.size());
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: By the invariant, the block is a mapping of this size. The caller does not
            // use it again. Unmapping fails only if the process has too many mappings. Then the
            // block is leaked.
            let _ = unsafe { munmap(block.cast(), layout.size()) };
        } else {
            // SAFETY: As in `alloc`. By the invariant, the block is from `A`.
            unsafe { self.0.dealloc(block, layout) };
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
                let moved =
                    unsafe { mremap(block.cast(), layout.size(), size, MremapFlags::MAYMOVE) };
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
