//! How much a directory takes on the disk.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

/// The bytes of the blocks below `dir`, and the number of inodes, each hard-linked file once.
///
/// A container may remove files meanwhile: they are not counted.
///
/// # Errors
/// If `dir` is missing, or a file or directory that is there cannot be read.
pub(crate) fn usage(dir: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(dir)?;
    let (mut bytes, mut seen, mut waiting) = (0, HashSet::new(), vec![dir.to_owned()]);
    while let Some(path) = waiting.pop() {
        let Some(found) = unless_gone(fs::symlink_metadata(&path))? else { continue };
        if seen.insert((found.dev(), found.ino())) {
            // stat(2): a block has 512 bytes.
            bytes += found.blocks() * 512;
        }
        if found.is_dir()
            && let Some(entries) = unless_gone(fs::read_dir(&path))?
        {
            for entry in entries {
                waiting.extend(unless_gone(entry)?.map(|entry| entry.path()));
            }
        }
    }
    Ok((bytes, seen.len() as u64))
}

/// Returns `None` if the file is gone or is not a directory any more.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn files_are_counted_while_others_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(usage(&dir.path().join("missing")).is_err());
        fs::write(dir.path().join("kept"), [1; 4096]).unwrap();
        let (bytes, inodes) = usage(dir.path()).unwrap();
        assert!(bytes >= 4096 && inodes == 2, "{bytes} bytes, {inodes} inodes");
        let (folder, has_ended) = (dir.path().join("folder"), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    fs::create_dir_all(folder.join("inner")).unwrap();
                    fs::write(folder.join("inner/file"), "").unwrap();
                    fs::remove_dir_all(&folder).unwrap();
                }
            });
            let counted = (0..2000).try_for_each(|_| usage(dir.path()).map(|(_, inodes)| assert!(inodes >= 2)));
            has_ended.store(true, Ordering::Relaxed);
            counted.unwrap();
        });
    }
}
