//! The files of the local caches: each entry is one file with a name of 64 hex digits, and its content proves itself. Any number
//! of processes may share their directory.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;

/// How the names of files begin that are being written.
const TEMPORARY: &str = ".tmp-";
/// Temporary files of this age belong to nobody alive.
const STALE: Duration = Duration::from_secs(60 * 60);

/// Makes a cache's directory, and those above it that are missing.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// A file to write an entry to. A directory that was deleted meanwhile is made again.
pub(crate) fn temporary(dir: &Path) -> io::Result<NamedTempFile> {
    let make = || tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(dir);
    match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_dir(dir).and_then(|()| make()),
        made => made,
    }
}

/// Opens a regular file of our own and of at most `most` bytes, and nothing else: no link is followed, no FIFO waited for.
pub(crate) fn open_entry(path: &Path, most: u64) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    // The digest tells damage, not forgery: that takes another user who may write here.
    let foreign = metadata.uid() != rustix::process::geteuid().as_raw();
    if !metadata.is_file() || foreign || metadata.len() > most {
        return Err(io::Error::other("it is no entry of this cache"));
    }
    Ok((file, metadata.len()))
}

/// Removes what is under an entry's name, whatever it is; if that fails it will be met again.
pub(crate) fn drop_entry(path: &Path) {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    let _ = if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// Removes the entries that were not used for longest, down to 9/10 of `max` bytes if they take more than that, and temporary files
/// that nobody will rename. Says what the others take.
pub(crate) fn evict(dir: &Path, max: u64) -> io::Result<u64> {
    let now = SystemTime::now();
    let mut entries = Vec::new();
    let mut total = 0;
    for file in fs::read_dir(dir)? {
        let file = file?;
        // Another process may have removed it meanwhile.
        let Ok(metadata) = file.metadata() else { continue };
        let (name, used) = (file.file_name(), metadata.modified().unwrap_or(now));
        let name = name.to_string_lossy();
        if name.starts_with(TEMPORARY) && now.duration_since(used).is_ok_and(|age| age > STALE) {
            let _ = fs::remove_file(file.path());
        } else if metadata.is_file() && name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()) {
            total += metadata.len();
            entries.push((used, metadata.len(), file.path()));
        }
    }
    if total > max {
        entries.sort();
        for (_, size, path) in entries {
            if total <= max / 10 * 9 {
                break;
            }
            total -= size;
            let _ = fs::remove_file(path);
        }
    }
    Ok(total)
}
