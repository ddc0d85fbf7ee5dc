//! A mount's share of the memory that the snapshotter may use for all mounts. What the process
//! needs for other things than content is a part of it.

use std::path::{Path, PathBuf};

use ociseek_rootfs::content::Content;
use ociseek_rootfs::fuse::process_memory;

/// The least and the most memory for content, in bytes.
const CONTENT: (u64, u64) = (1 << 20, 64 << 20);
/// What reads need in addition, in bytes: buffers, the stacks of threads, and what the allocator
/// keeps.
const READING: u64 = 3 << 20;

/// The file with the share of each mount, and how this process follows it.
pub(super) struct MemoryShare {
    path: PathBuf,
    /// What the process needs besides content, in bytes.
    base: u64,
    share: Option<u64>,
}

impl MemoryShare {
    /// Call this when the image is open, and before it is mounted. Blocks.
    pub(super) fn new(path: PathBuf, content: &Content) -> MemoryShare {
        let mut share = MemoryShare { path, base: base(content), share: None };
        share.follow(content);
        share
    }

    /// Measures again what the process needs. Call this when the memory was released that only
    /// opening needs. Blocks.
    pub(super) fn settle(&mut self, content: &Content) {
        (self.base, self.share) = (base(content), None);
    }

    /// Limits the content to what the file says now. Blocks.
    pub(super) fn follow(&mut self, content: &Content) {
        let share = read(&self.path);
        if let Some(bytes) = share.filter(|_| share != self.share) {
            self.share = share;
            content.limit_memory(for_content(bytes, self.base));
        }
    }
}

fn base(content: &Content) -> u64 {
    // What is not from files.
    let anonymous = process_memory("self", "status", "RssAnon").unwrap_or(0);
    anonymous.saturating_sub(content.memory()) + READING
}

fn for_content(share: u64, base: u64) -> u64 {
    share.saturating_sub(base).clamp(CONTENT.0, CONTENT.1)
}

/// The first line is the share, in bytes.
fn read(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.lines().next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_gets_what_the_process_leaves_of_its_share() {
        const MIB: u64 = 1 << 20;
        for (share, base, wanted) in [(17, 10, 7), (512, 10, 64), (10, 10, 1), (5, 10, 1), (75, 10, 64)] {
            assert_eq!(for_content(share * MIB, base * MIB) / MIB, wanted, "{share} {base}");
        }
    }

    #[test]
    fn the_share_is_the_first_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("share");
        for (text, wanted) in [("17\n512\n", Some(17)), ("17", Some(17)), ("", None), ("x\n1\n", None)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path), wanted, "{text:?}");
        }
        assert_eq!(read(&dir.path().join("none")), None);
    }
}
