//! The memory of processes, as `/proc` states it.

/// Reads a field with a number of kB from a file of `/proc/PROCESS` (proc(5)), in bytes. `process`
/// is a number or `self`. Returns `None` if the process is gone, may not be inspected, or has no
/// such field.
pub fn process_memory(process: &str, file: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory() {
        for (file, field) in [("status", "RssAnon"), ("smaps_rollup", "Pss")] {
            assert!(process_memory("self", file, field).unwrap() > 4096, "{field}");
        }
        assert_eq!(process_memory("self", "status", "Rss"), None);
        assert_eq!(process_memory("none", "status", "RssAnon"), None);
    }
}
