//! A bundle's directory: only root can access it, and only root can replace it. The image's
//! set-user-ID programs have the same rights as this machine's, and a runtime executes
//! `config.json` as root.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, Mode, OFlags};

use super::{BundleError, MARK, made};
use ociseek_rootfs::fuse::without_following;

/// The permission to write for group and others.
const WRITABLE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Creates `dir`, or takes it over if it is empty, and denies access to others. Returns its path
/// without symbolic links, and whether it was created.
///
/// # Errors
/// If it belongs to another user, is not empty, is a symbolic link, or is where other users can
/// replace it.
pub(super) fn claim(dir: &Path) -> Result<(PathBuf, bool), BundleError> {
    let path = without_following(dir).map_err(made(dir))?;
    safe_above(&path)?;
    let is_new = match DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(made(dir)(error)),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let failed = |error: rustix::io::Errno| made(dir)(error.into());
    let open = rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(failed)?;
    ours(&path, rustix::fs::fstat(&open).map_err(failed)?.st_uid)?;
    for entry in Dir::read_from(&open).map_err(failed)? {
        match entry.map_err(failed)?.file_name().to_bytes() {
            b"." | b".." => {}
            _ if path.join(MARK).exists() => return Err(BundleError::Exists(dir.to_owned())),
            _ => return Err(BundleError::NotEmpty(dir.to_owned())),
        }
    }
    rustix::fs::fchmod(&open, Mode::RWXU).map_err(failed)?;
    Ok((path, is_new))
}

/// Checks an existing directory of a bundle. `dir` must be a path without symbolic links.
///
/// # Errors
/// Those of [`claim`].
pub(super) fn check(dir: &Path) -> Result<(), BundleError> {
    safe_above(dir)?;
    ours(dir, fs::symlink_metadata(dir).map_err(made(dir))?.uid())
}

fn caller() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn ours(dir: &Path, owner: u32) -> Result<(), BundleError> {
    if owner == caller() { Ok(()) } else { Err(BundleError::Foreign { dir: dir.to_owned(), owner }) }
}

/// Users who can write to a directory can rename its entries, except other users' entries in a
/// sticky directory.
fn safe_above(dir: &Path) -> Result<(), BundleError> {
    for above in dir.ancestors().skip(1) {
        let found = fs::symlink_metadata(above).map_err(made(above))?;
        let is_trusted = found.uid() == 0 || found.uid() == caller();
        if !is_trusted || (found.mode() & WRITABLE != 0 && found.mode() & STICKY == 0) {
            return Err(BundleError::Replaceable { dir: dir.to_owned(), above: above.to_owned() });
        }
    }
    Ok(())
}
