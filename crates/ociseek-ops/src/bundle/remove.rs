//! Removes a bundle: all its mounts, and everything in its directory that did not exist before.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};

use super::{BundleError, CONFIG, IMAGE, MARK, ROOTFS, UPPER, WORK, directory};
use ociseek_rootfs::fuse::{MountError, mounted_at, take_down};

/// How long the process that serves the mount may take to exit after unmounting. It finishes what
/// it writes to the cache, which takes a while on a busy disk.
const END: Duration = Duration::from_secs(30);

/// The content of `ociseek.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BundleMarker {
    pub tool: String,
    pub image: String,
    /// Whether the bundle's directory was created with it. If so, it is removed too.
    pub made_directory: bool,
}

/// Removes the bundle in `dir`, whether or not the process that serves it still runs. Changes by
/// the container are lost. Blocks.
///
/// # Errors
/// If it is not a bundle of ours, other users can access its directory, a container still runs in
/// it, or something cannot be unmounted or removed. Calling this again continues where it stopped.
pub fn remove(dir: &Path) -> Result<(), BundleError> {
    let dir = dir.canonicalize().map_err(|_| BundleError::NotABundle(dir.to_owned()))?;
    // First of all, since other users' files may be anything.
    directory::check(&dir)?;
    let mark = read_mark(&dir)?;
    if let Some(pid) = user_of(&dir) {
        return Err(BundleError::InUse { dir, pid });
    }
    unmount(&dir, UnmountFlags::NOFOLLOW)?;
    wait_for_owner(&dir)?;
    clear(&dir, mark.made_directory)
}

fn read_mark(dir: &Path) -> Result<BundleMarker, BundleError> {
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

/// Unmounts the overlay first, then the image below it.
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

/// The process that serves the mount holds a lock until it exits, which it does after unmounting.
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

/// Removes all parts of a bundle. The mark is removed last, so that this can be repeated.
pub(super) fn clear(dir: &Path, made_directory: bool) -> Result<(), BundleError> {
    for name in [UPPER, WORK] {
        gone(&dir.join(name), |path| fs::remove_dir_all(path))?;
    }
    // Never recursively: if something is still mounted there, its files are not ours.
    for name in [ROOTFS, IMAGE] {
        gone(&dir.join(name), |path| fs::remove_dir(path))?;
    }
    for name in [CONFIG, MARK] {
        gone(&dir.join(name), |path| fs::remove_file(path))?;
    }
    if made_directory {
        match fs::remove_dir(dir) {
            // Another process created files in it.
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
