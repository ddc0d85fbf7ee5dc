//! Taking a bundle down: no mount is left, and of the directory only what was there before.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};

use super::{BundleError, CONFIG, IMAGE, MARK, ROOTFS, UPPER, WORK, directory};
use crate::rootfs::fuse::{MountError, mounted_at, take_down};

/// How long the process behind the mount may take to end once its mount is gone.
const END: Duration = Duration::from_secs(10);

/// What `ociseek.json` holds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Mark {
    pub tool: String,
    pub image: String,
    /// The bundle's directory was made with it, and goes with it.
    pub made_directory: bool,
}

/// Takes down the bundle in `dir`, whether the process behind it lives or not. What the container
/// wrote is lost. It blocks.
///
/// # Errors
/// When there is no bundle of ours, other users can reach its directory, a container still runs in
/// it, or something cannot be unmounted or removed; trying again goes on where it ended.
pub fn remove(dir: &Path) -> Result<(), BundleError> {
    let dir = dir.canonicalize().map_err(|_| BundleError::NotABundle(dir.to_owned()))?;
    let mark = read_mark(&dir)?;
    directory::check(&dir)?;
    if let Some(pid) = user_of(&dir) {
        return Err(BundleError::InUse { dir, pid });
    }
    unmount(&dir, UnmountFlags::NOFOLLOW)?;
    wait_for_owner(&dir)?;
    clear(&dir, mark.made_directory)
}

fn read_mark(dir: &Path) -> Result<Mark, BundleError> {
    let bytes = fs::read(dir.join(MARK)).map_err(|_| BundleError::NotABundle(dir.to_owned()))?;
    serde_json::from_slice(&bytes).map_err(|_| BundleError::NotABundle(dir.to_owned()))
}

/// A process whose root is the bundle's overlay.
pub(super) fn user_of(dir: &Path) -> Option<u32> {
    let rootfs = dir.join(ROOTFS);
    if mounted_at(&rootfs).ok()??.fs_type != "overlay" {
        return None;
    }
    let device = fs::metadata(rootfs).ok()?.dev();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .find(|pid| fs::metadata(format!("/proc/{pid}/root")).is_ok_and(|root| root.dev() == device))
}

/// The overlay first, then what is below it.
pub(super) fn unmount(dir: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    for name in [ROOTFS, IMAGE] {
        let point = dir.join(name);
        let inspect = |source| MountError::Inspect { point: point.clone(), source };
        while mounted_at(&point).map_err(inspect)?.is_some() {
            take_down(&point, flags)?;
        }
    }
    Ok(())
}

/// The process behind the mount holds a lock for as long as it lives, and it ends with its mount.
fn wait_for_owner(dir: &Path) -> Result<(), BundleError> {
    let Ok(mark) = File::open(dir.join(MARK)) else { return Ok(()) };
    let begun = Instant::now();
    while flock(&mark, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() > END {
            return Err(BundleError::Held(dir.to_owned()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Removes all that a bundle is made of; the mark last, so that this can be repeated.
pub(super) fn clear(dir: &Path, made_directory: bool) -> Result<(), BundleError> {
    for name in [UPPER, WORK] {
        gone(&dir.join(name), |path| fs::remove_dir_all(path))?;
    }
    // Never recursively: should something be mounted there after all, it is none of our files.
    for name in [ROOTFS, IMAGE] {
        gone(&dir.join(name), |path| fs::remove_dir(path))?;
    }
    for name in [CONFIG, MARK] {
        gone(&dir.join(name), |path| fs::remove_file(path))?;
    }
    if made_directory {
        match fs::remove_dir(dir) {
            // Someone put something into it.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            result => gone(dir, |_| result)?,
        }
    }
    Ok(())
}

fn gone(path: &Path, removal: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), BundleError> {
    match removal(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(BundleError::Remove { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
