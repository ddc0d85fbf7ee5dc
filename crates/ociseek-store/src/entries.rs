//! The files of the local caches. Each entry is a file with a name of 64 hex digits, whose content
//! includes its own digest. Any number of processes may share the directory.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};
use tempfile::NamedTempFile;

use crate::durable::without_path;

/// The prefix of files that are being written.
const TEMPORARY: &str = ".tmp-";
/// How entries are opened.
pub const OPEN: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// After this time, a temporary file belongs to no running process. A file that is further in the
/// future than this is from before the clock was set back.
pub(super) const STALE: Duration = Duration::from_secs(60 * 60);
/// An entry that was read this long after it was made is one that is needed again, and counts as
/// used [`BONUS`] later: what containers start from stays when a large model is read once.
const AGAIN: Duration = Duration::from_secs(60);
const BONUS: Duration = Duration::from_secs(24 * 60 * 60);

/// Creates a cache's directory and its missing parents.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    // mkdir(2) waits if the file system is frozen, also for one that is there.
    if dir.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// A file for writing an entry. If the directory was deleted in the meantime, it is created again.
pub fn temporary(dir: &Path) -> io::Result<NamedTempFile> {
    let make = || tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(dir).map_err(without_path);
    match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_dir(dir).and_then(|()| make())
        }
        made => made,
    }
}

/// Opens a regular file of our own user with at most `most` bytes. Refuses everything else, does
/// not follow symbolic links, and does not wait for a FIFO.
pub fn open_entry(path: &Path, most: u64) -> io::Result<(File, u64)> {
    own_entry(File::from(rustix::fs::open(path, OPEN, Mode::empty())?), most)
}

/// An entry's file that was opened with [`OPEN`], if it is what [`open_entry`] accepts.
pub fn own_entry(file: File, most: u64) -> io::Result<(File, u64)> {
    let metadata = file.metadata()?;
    // The digest protects against damage, not against other users who may write here.
    let foreign = metadata.uid() != rustix::process::geteuid().as_raw();
    if !metadata.is_file() || foreign || metadata.len() > most {
        return Err(io::Error::other("not an entry of this cache"));
    }
    Ok((file, metadata.len()))
}

/// Opens a file of our own user for reading and writing, which is created if it does not exist.
/// Refuses the same as [`open_entry`].
pub fn open_own(path: &Path) -> io::Result<File> {
    let flags = OPEN.difference(OFlags::RDONLY).union(OFlags::RDWR).union(OFlags::CREATE);
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(own_entry(File::from(file), u64::MAX)?.0)
}

/// Removes whatever has the name of an entry. If that fails, it is found again next time.
pub fn drop_entry(path: &Path) {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    let _ = if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// The size of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// The number of entries.
    pub entries: u64,
    /// Their size on disk in bytes.
    pub bytes: u64,
}

impl Usage {
    /// The usage of the entries in `dir`. A missing directory is empty.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn of(dir: &Path) -> io::Result<Usage> {
        Ok(entries(dir)?.iter().fold(Usage::default(), Usage::with))
    }

    /// Removes the entries in `dir` and returns what was removed. Other processes may be using
    /// them: an open entry can still be read to its end, and a missing one is created again.
    ///
    /// # Errors
    /// If the directory cannot be read, or an entry cannot be removed.
    pub fn clear(dir: &Path) -> io::Result<Usage> {
        let mut removed = Usage::default();
        for entry in entries(dir)? {
            match fs::remove_file(&entry.path) {
                Ok(()) => removed = removed.with(&entry),
                // Another process removed it first.
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

/// The file of an entry.
struct Entry {
    /// The time of its last use, and a bonus if it was used again. 1970 if the clock has been set
    /// back since: it is not known when, and whatever is read again gets a new time.
    used: SystemTime,
    size: u64,
    path: PathBuf,
}

/// The entries of a cache. Removes abandoned temporary files.
fn entries(dir: &Path) -> io::Result<Vec<Entry>> {
    let now = SystemTime::now();
    let mut entries = Vec::new();
    let files = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(entries),
        files => files?,
    };
    for file in files {
        let file = file?;
        // Another process may have removed it.
        let Ok(metadata) = file.metadata() else { continue };
        let name = file.file_name();
        let used = metadata.modified().unwrap_or(now);
        let name = name.to_string_lossy();
        let (age, is_future) = match now.duration_since(used) {
            Ok(age) => (age, false),
            Err(ahead) => (ahead.duration(), true),
        };
        if name.starts_with(TEMPORARY) && age > STALE {
            let _ = fs::remove_file(file.path());
        } else if metadata.is_file()
            && name.len() == 64
            && name.bytes().all(|b| b.is_ascii_hexdigit())
        {
            let used = if is_future && age > STALE {
                SystemTime::UNIX_EPOCH
            } else {
                // Not all file systems know when a file was made.
                rank(metadata.created().unwrap_or(used), used)
            };
            // Files of several spans have holes.
            let size = metadata.len().min(metadata.blocks().saturating_mul(512));
            entries.push(Entry { used, size, path: file.path() });
        }
    }
    Ok(entries)
}

/// The time by which entries are evicted, of one that was made and last used at these times.
fn rank(made: SystemTime, used: SystemTime) -> SystemTime {
    let is_used_again = used.duration_since(made).is_ok_and(|later| later > AGAIN);
    if is_used_again { used + BONUS } else { used }
}

/// Removes the least recently used entries until they take 9/10 of `max` bytes, if they take more
/// than `max`, and removes abandoned temporary files.
pub fn evict(dir: &Path, max: u64) -> io::Result<Eviction> {
    let mut entries = entries(dir)?;
    let mut total = entries.iter().map(|entry| entry.size).sum();
    let mut evicted = 0;
    if total > max {
        entries.sort_by(|a, b| (a.used, a.size, &a.path).cmp(&(b.used, b.size, &b.path)));
        for entry in entries {
            if total <= max / 10 * 9 {
                break;
            }
            total -= entry.size;
            evicted += u64::from(fs::remove_file(entry.path).is_ok());
        }
    }
    Ok(Eviction { left: total, evicted })
}

/// The result of making room in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction {
    /// The size of those that are left, in bytes.
    pub left: u64,
    /// How many were removed.
    pub evicted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without this, everything that is written after a clock was set back would be evicted at
    /// once.
    #[test]
    fn entries_with_future_times_are_evicted_first() {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let put = |name: &str, time: SystemTime| {
            let path = dir.path().join(name);
            fs::write(&path, [0; 100]).unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let entry = |digit: &str, time| put(&digit.repeat(64), time);
        let older = entry("1", now - Duration::from_secs(10));
        let newer = entry("2", now);
        let future = entry("3", now + YEAR);
        let soon = entry("4", now + Duration::from_secs(10));
        let writing = put(".tmp-1", now);
        let abandoned = put(".tmp-2", now + YEAR);
        let exist = |paths: &[&PathBuf]| paths.iter().map(|path| path.exists()).collect::<Vec<_>>();

        assert_eq!(evict(dir.path(), 350).unwrap(), Eviction { left: 300, evicted: 1 });
        assert_eq!(exist(&[&older, &newer, &future, &soon]), [true, true, false, true]);
        assert_eq!(exist(&[&writing, &abandoned]), [true, false]);
        assert_eq!(evict(dir.path(), 250).unwrap(), Eviction { left: 200, evicted: 1 });
        assert_eq!(exist(&[&older, &newer, &soon]), [false, true, true]);
    }

    #[test]
    fn what_is_read_once_does_not_displace_what_is_needed_again() {
        const HOUR: Duration = Duration::from_secs(60 * 60);
        let start = SystemTime::now();
        let needed_again = rank(start, start + 2 * AGAIN);
        let once = |later| rank(start + later, start + later + AGAIN / 2);
        assert!(needed_again > once(HOUR));
        // It is not kept for ever.
        assert!(needed_again < once(25 * HOUR));
        assert!(rank(start, start + 2 * AGAIN) < rank(start, start + HOUR));
        // The clock was set back since.
        assert_eq!(rank(start + HOUR, start), start);
    }
}
