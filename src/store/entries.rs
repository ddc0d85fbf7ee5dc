//! The files of the local caches: each entry is one file with a name of 64 hex digits, and its
//! content proves itself. Any number of processes may share their directory.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};
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

/// Opens a regular file of our own and of at most `most` bytes, and nothing else: no link is
/// followed, no FIFO waited for.
pub(crate) fn open_entry(path: &Path, most: u64) -> io::Result<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    // The digest tells damage, not forgery: that takes another user who may write here.
    let foreign = metadata.uid() != rustix::process::geteuid().as_raw();
    if !metadata.is_file() || foreign || metadata.len() > most {
        return Err(io::Error::other("not an entry of this cache"));
    }
    Ok((file, metadata.len()))
}

/// Removes what is under an entry's name, whatever it is; if that fails it will be met again.
pub(crate) fn drop_entry(path: &Path) {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    let _ = if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// What the entries of a cache take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// How many entries there are.
    pub entries: u64,
    /// What they take on the disk, in bytes.
    pub bytes: u64,
}

impl Usage {
    /// Of the entries in `dir`. A directory that is not there has none.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn of(dir: &Path) -> io::Result<Usage> {
        Ok(entries(dir)?.iter().fold(Usage::default(), Usage::with))
    }

    /// Removes the entries in `dir`, and says what was removed. Other processes may use them
    /// meanwhile: what one of them has open it can read to its end, and what it misses it makes
    /// again.
    ///
    /// # Errors
    /// When the directory cannot be read, or an entry cannot be removed.
    pub fn clear(dir: &Path) -> io::Result<Usage> {
        let mut removed = Usage::default();
        for entry in entries(dir)? {
            match fs::remove_file(&entry.path) {
                Ok(()) => removed = removed.with(&entry),
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    fn with(self, entry: &Entry) -> Usage {
        Usage { entries: self.entries + 1, bytes: self.bytes + entry.size }
    }
}

/// A file that holds an entry.
struct Entry {
    used: SystemTime,
    size: u64,
    path: PathBuf,
}

/// The entries of a cache. Removes temporary files that nobody will rename.
fn entries(dir: &Path) -> io::Result<Vec<Entry>> {
    let now = SystemTime::now();
    let mut entries = Vec::new();
    let files = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(entries),
        files => files?,
    };
    for file in files {
        let file = file?;
        // Another process may have removed it meanwhile.
        let Ok(metadata) = file.metadata() else { continue };
        let (name, used) = (file.file_name(), metadata.modified().unwrap_or(now));
        let name = name.to_string_lossy();
        if name.starts_with(TEMPORARY) && now.duration_since(used).is_ok_and(|age| age > STALE) {
            let _ = fs::remove_file(file.path());
        } else if metadata.is_file() && name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()) {
            entries.push(Entry { used, size: metadata.len(), path: file.path() });
        }
    }
    Ok(entries)
}

/// Removes the entries that were not used for longest, down to 9/10 of `max` bytes if they take
/// more than that, and temporary files that nobody will rename. Says what the others take.
pub(crate) fn evict(dir: &Path, max: u64) -> io::Result<u64> {
    let mut entries = entries(dir)?;
    let mut total = entries.iter().map(|entry| entry.size).sum();
    if total > max {
        entries.sort_by(|a, b| (a.used, a.size, &a.path).cmp(&(b.used, b.size, &b.path)));
        for entry in entries {
            if total <= max / 10 * 9 {
                break;
            }
            total -= entry.size;
            let _ = fs::remove_file(entry.path);
        }
    }
    Ok(total)
}
