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

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn freed_memory_is_returned() {
        const BLOCKS: usize = 64 << 10;
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
