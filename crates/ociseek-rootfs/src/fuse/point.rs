//! Checks mount points before anything is fetched.

use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use super::MountError;
use super::mounts::{FS_TYPE, mounted_at};

/// What to do with an existing ociseek mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingMount {
    /// Keep it and refuse the new mount.
    Refuse,
    /// Unmount it. A mount whose process is gone is unmounted even while it is in use.
    Replace,
}

/// Checks that `dir` can be mounted on, and returns its path without symbolic links.
///
/// # Errors
/// The kind of [`MountError`] for the fault of the mount point.
pub fn prepare(dir: &Path, existing: ExistingMount) -> Result<PathBuf, MountError> {
    let point = match dir.metadata() {
        Ok(metadata) if metadata.is_dir() => dir.canonicalize().map_err(|source| inspect(dir, source))?,
        Ok(_) => return Err(MountError::NotADirectory(dir.to_owned())),
        Err(error) if is_dead(&error) => stale(dir, existing)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MountError::Missing(dir.to_owned())),
        Err(error) => return Err(inspect(dir, error)),
    };
    if let Some(mount) = mounted_at(&point).map_err(|source| inspect(dir, source))?
        && mount.fs_type == FS_TYPE
    {
        if existing == ExistingMount::Refuse {
            return Err(MountError::Occupied { point, source_name: mount.source });
        }
        take_down(&point, UnmountFlags::NOFOLLOW)?;
    }
    let mut entries = point.read_dir().map_err(|source| inspect(dir, source))?;
    match entries.next() {
        None => Ok(point),
        Some(_) => Err(MountError::NotEmpty(dir.to_owned())),
    }
}

/// Whether a path leads to a FUSE mount whose process is gone.
pub(super) fn is_dead(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error())
}

/// Handles a mount whose process is gone: unmounts it if it is ours.
fn stale(dir: &Path, existing: ExistingMount) -> Result<PathBuf, MountError> {
    let point = without_following(dir).map_err(|source| inspect(dir, source))?;
    let mount = mounted_at(&point).map_err(|source| inspect(dir, source))?;
    let ours = mount.is_some_and(|mount| mount.fs_type == FS_TYPE);
    if !ours || existing == ExistingMount::Refuse {
        return Err(MountError::Stale { point, ours });
    }
    take_down(&point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
    match point.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(point),
        Ok(_) => Err(MountError::NotADirectory(point)),
        // There was another mount below it.
        Err(error) if is_dead(&error) => Err(MountError::Stale { point, ours: false }),
        Err(error) => Err(inspect(dir, error)),
    }
}

/// A path without symbolic links, except that the last part is not followed.
pub fn without_following(dir: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(dir)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => absolute.canonicalize(),
    }
}

/// Unmounts, with the help of `fusermount3` if the user is unprivileged.
///
/// # Errors
/// If it stays mounted; [`MountError::Busy`] if it is in use.
pub fn take_down(point: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    let failed = |source: io::Error| MountError::Unmount { point: point.to_owned(), source };
    match unmount(point, flags).map_err(io::Error::from) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
            Err(MountError::Busy(point.to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let lazy = flags.contains(UnmountFlags::DETACH);
            super::helper::unmount(point, lazy).map_err(|text| failed(io::Error::other(text)))
        }
        Err(error) => Err(failed(error)),
    }
}

fn inspect(point: &Path, source: io::Error) -> MountError {
    MountError::Inspect { point: point.to_owned(), source }
}
