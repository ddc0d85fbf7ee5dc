//! How much a directory takes on the disk.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

/// The bytes of the blocks below `dir`, and the number of inodes, each hard-linked file once.
pub(crate) fn usage(dir: &Path) -> io::Result<(u64, u64)> {
    let (mut bytes, mut seen, mut waiting) = (0, HashSet::new(), vec![dir.to_owned()]);
    while let Some(path) = waiting.pop() {
        let found = fs::symlink_metadata(&path)?;
        if seen.insert((found.dev(), found.ino())) {
            // stat(2): a block has 512 bytes.
            bytes += found.blocks() * 512;
        }
        if found.is_dir() {
            for entry in fs::read_dir(&path)? {
                waiting.push(entry?.path());
            }
        }
    }
    Ok((bytes, seen.len() as u64))
}
