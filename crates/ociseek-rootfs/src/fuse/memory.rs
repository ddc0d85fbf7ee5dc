//! The memory of processes, as `/proc` states it, and returning it to the kernel.

/// Reads a field with a number of kB from a file of `/proc/PROCESS` (proc(5)), in bytes. `process`
/// is a number or `self`. Returns `None` if the process is gone, may not be inspected, or has no
/// such field.
pub fn process_memory(process: &str, file: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns freed memory to the kernel, where the allocator can: glibc keeps it for later, unless it
/// is at the end of its heap.
#[allow(unsafe_code, reason = "no crate has a safe call for malloc_trim(3)")]
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) may be called from any thread, and keeps what is allocated.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Blocks of this size and more come from the kernel and return to it, and as much may be free at
/// the end of a heap, in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: nix::libc::c_int = 8 << 20;

/// Lets large blocks stay untouched until they are used: the FUSE library has a buffer of 16 MiB
/// for each thread that reads requests, of which it uses some pages. glibc would raise the size
/// from which blocks come from the kernel as soon as a large one is freed, and clear buffers in
/// memory that it has already. It then no longer raises the size of what may be free either, which
/// is 128 KiB at first: each span would go to memory that the kernel has to clear again.
#[allow(unsafe_code, reason = "no crate has a safe call for mallopt(3)")]
pub(super) fn keep_large_blocks_apart() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt(3) takes the allocator's lock, and changes where later blocks come from.
    unsafe {
        nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, LARGE);
        nix::libc::mallopt(nix::libc::M_TRIM_THRESHOLD, LARGE);
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// Both measure the memory of this process, so one waits for the other.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    static MEASURING: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn a_large_buffer_takes_no_memory_until_it_is_used() {
        let _turn = MEASURING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        keep_large_blocks_apart();
        let resident = || process_memory("self", "status", "RssAnon").unwrap();
        // Without the call, glibc takes the next ones from its heap, and clears them.
        drop(black_box(vec![1_u8; 31 << 20]));
        let mut between = Vec::new();
        let used: Vec<Vec<u8>> = (0..8)
            .map(|_| {
                let buffer = black_box(vec![1; 16 << 20]);
                between.push(black_box(vec![1_u8; 100]));
                buffer
            })
            .collect();
        drop(used);
        release_freed_memory();
        let before = resident();
        let buffers: Vec<Vec<u8>> = (0..8).map(|_| black_box(vec![0; 16 << 20])).collect();
        // Other tests may allocate meanwhile.
        assert!(resident() < before + (64 << 20), "{} of {before}", resident());
        drop((buffers, between));
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn freed_memory_is_returned() {
        const BLOCKS: usize = 64 << 10;
        let _turn = MEASURING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let resident = || process_memory("self", "status", "RssAnon").unwrap();
        let mut blocks: Vec<Box<[u8]>> = (0..BLOCKS).map(|_| vec![1; 200].into()).collect();
        let last = blocks.pop();
        let before = resident();
        drop(blocks);
        release_freed_memory();
        // Other tests may allocate meanwhile.
        assert!(resident() + (8 << 20) < before, "{} of {before}", resident());
        drop(last);
    }

    #[test]
    fn this_process_has_memory() {
        for (file, field) in [("status", "RssAnon"), ("smaps_rollup", "Pss")] {
            assert!(process_memory("self", file, field).unwrap() > 4096, "{field}");
        }
        assert_eq!(process_memory("self", "status", "Rss"), None);
        assert_eq!(process_memory("none", "status", "RssAnon"), None);
    }
}
