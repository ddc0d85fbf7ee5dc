//! Claims on spans: a process that fetches a span claims it, so that other processes wait for it
//! instead of fetching it too.
//!
//! A claim is a lock on one byte of the file `.claims`, at a position that the span's key
//! determines. The kernel releases it when its process ends, however that happens, so nothing is
//! left behind. The locks belong to the open file ("open file description locks"), so two caches on
//! one directory exclude each other even within a process. Clones of a cache share the file, and
//! the set of claimed positions excludes them.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::fs::Access;

use super::SpanKey;
use ociseek_store::entries::open_own;
use ociseek_store::lock::Hold;

/// The file with the locks. It is not an entry, and stays empty.
const FILE: &str = ".claims";

/// The claims of all clones of a cache.
#[derive(Default)]
pub(super) struct Claims(Mutex<ClaimFile>);

/// The open file with the locks, and the positions that are locked in it.
#[derive(Default)]
struct ClaimFile {
    /// None before the first claim, and after an error.
    file: Option<Arc<File>>,
    positions: HashSet<i64>,
}

/// The result of [`super::SpanCache::claim`].
pub(crate) enum ClaimOutcome {
    /// The span is ours to fetch.
    Granted(Claim),
    /// Another process or task has claimed it.
    Taken,
    /// It cannot be claimed here, so it must be fetched without a claim.
    Unavailable,
}

/// A claimed span. Others may claim it after this is dropped.
pub(crate) struct Claim {
    claims: Arc<Claims>,
    file: Arc<File>,
    position: i64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.claims.0.hold();
        let _ = lock::release(&self.file, self.position);
        claimed.positions.remove(&self.position);
    }
}

impl Claims {
    /// Claims a span in the cache at `dir`.
    pub(super) fn claim(self: &Arc<Self>, dir: &Path, key: &SpanKey) -> ClaimOutcome {
        if !lock::EXISTS {
            return ClaimOutcome::Unavailable;
        }
        let position = position(key);
        let mut claimed = self.0.hold();
        if claimed.positions.contains(&position) {
            return ClaimOutcome::Taken;
        }
        let Ok(file) = claimed.file(dir) else { return ClaimOutcome::Unavailable };
        match lock::try_lock(&file, position) {
            Ok(true) => {
                claimed.positions.insert(position);
                ClaimOutcome::Granted(Claim { claims: Arc::clone(self), file, position })
            }
            Ok(false) => ClaimOutcome::Taken,
            Err(_) => ClaimOutcome::Unavailable,
        }
    }
}

impl ClaimFile {
    /// The file, which is opened again if it was deleted: other processes use the new one.
    fn file(&mut self, dir: &Path) -> io::Result<Arc<File>> {
        if let Some(file) = &self.file
            && file.metadata()?.nlink() > 0
        {
            return Ok(Arc::clone(file));
        }
        // Others must not wait for spans that cannot be stored.
        rustix::fs::access(dir, Access::WRITE_OK)?;
        let file = Arc::new(open_own(&dir.join(FILE))?);
        self.file = Some(Arc::clone(&file));
        Ok(file)
    }
}

/// The position that stands for a key. Spans whose positions are equal by chance only wait for each
/// other.
fn position(key: &SpanKey) -> i64 {
    let (first, _) = key.bytes().split_first_chunk().unwrap_or((&[0; 8], &[]));
    // Positions are positive, also the one after the last byte.
    (u64::from_le_bytes(*first) >> 2) as i64
}

/// Locks that belong to the open file. Other systems than Linux have none.
#[cfg(target_os = "linux")]
mod lock {
    use std::fs::File;
    use std::io;

    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;

    pub(super) const EXISTS: bool = true;

    /// Whether the byte at `position` is now locked by us.
    pub(super) fn try_lock(file: &File, position: i64) -> io::Result<bool> {
        match set(file, position, libc::F_WRLCK) {
            Ok(()) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn release(file: &File, position: i64) -> io::Result<()> {
        Ok(set(file, position, libc::F_UNLCK)?)
    }

    fn set(file: &File, position: i64, kind: libc::c_int) -> nix::Result<()> {
        let range = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: position,
            l_len: 1,
            l_pid: 0,
        };
        fcntl(file, FcntlArg::F_OFD_SETLK(&range)).map(drop)
    }
}

#[cfg(not(target_os = "linux"))]
mod lock {
    use std::fs::File;
    use std::io;

    pub(super) const EXISTS: bool = false;

    pub(super) fn try_lock(_: &File, _: i64) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn release(_: &File, _: i64) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::digest::Digest;

    fn key(name: &str) -> SpanKey {
        SpanKey::plain(&Digest::sha256(name.as_bytes()), 1)
    }

    fn granted(outcome: ClaimOutcome) -> Claim {
        match outcome {
            ClaimOutcome::Granted(claim) => claim,
            ClaimOutcome::Taken => panic!("taken"),
            ClaimOutcome::Unavailable => panic!("unavailable"),
        }
    }

    #[test]
    fn a_span_is_claimed_once() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other]: [Arc<Claims>; 2] = Default::default();
        let claim = granted(one.claim(dir.path(), &key("a")));
        for claims in [&one, &other] {
            assert!(matches!(claims.claim(dir.path(), &key("a")), ClaimOutcome::Taken));
        }
        let second = granted(other.claim(dir.path(), &key("b")));
        drop(claim);
        let claim = granted(other.claim(dir.path(), &key("a")));
        assert!(matches!(one.claim(dir.path(), &key("a")), ClaimOutcome::Taken));
        drop((claim, second));
        granted(one.claim(dir.path(), &key("a")));
    }

    #[test]
    fn a_deleted_directory_is_recreated_for_new_claims() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spans");
        let [one, other]: [Arc<Claims>; 2] = Default::default();
        assert!(matches!(one.claim(&path, &key("a")), ClaimOutcome::Unavailable));
        std::fs::create_dir(&path).unwrap();
        let before = granted(one.claim(&path, &key("a")));
        std::fs::remove_dir_all(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let claim = granted(one.claim(&path, &key("b")));
        assert!(matches!(other.claim(&path, &key("b")), ClaimOutcome::Taken));
        drop((before, claim));
        granted(other.claim(&path, &key("b")));
    }

    #[test]
    fn foreign_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::write(&outside, "x").unwrap();
        let path = dir.path().join(FILE);
        let is_unavailable = || {
            matches!(
                Arc::<Claims>::default().claim(dir.path(), &key("a")),
                ClaimOutcome::Unavailable
            )
        };
        std::os::unix::fs::symlink(&outside, &path).unwrap();
        assert!(is_unavailable());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(is_unavailable());
        std::fs::remove_dir(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(is_unavailable());
        assert_eq!(std::fs::read(&outside).unwrap(), b"x");
    }
}
