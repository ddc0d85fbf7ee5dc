//! A bundle's directory: only root can access it, and only root can replace it. The image's
//! set-user-ID programs have the same rights as this machine's, and a runtime executes
//! `config.json` as root. It is created with its mounts, and removed with all that was not there
//! before.

use std::ffi::{CString, OsStr};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Dir, FlockOperation, Mode, OFlags, flock};
use rustix::mount::{MountFlags, UnmountFlags, mount};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BundleError, CONFIG, IMAGE, MARK, ROOTFS, UPPER, WORK, made};
use crate::TOOL_IDENTIFIER;
use ociseek_format::tree::Tree;
use ociseek_rootfs::fuse::{MountError, mounted_at, take_down, without_following};

/// A bundle's directory, before and after mounting. It is removed when this is dropped.
pub struct Bundle {
    dir: PathBuf,
    made_directory: bool,
    /// Holds the lock.
    _mark: File,
    removed: bool,
}

ociseek_format::opaque_debug!(Bundle);

impl Bundle {
    /// Creates the directory for the image named `image`. Blocks.
    ///
    /// # Errors
    /// If `dir` cannot be created, is not empty, or is accessible to other users, or if the caller
    /// is not root.
    pub fn new(dir: &Path, image: &str) -> Result<Bundle, BundleError> {
        if !rustix::process::geteuid().is_root() {
            return Err(BundleError::NotRoot);
        }
        let (dir, made_directory) = claim(dir)?;
        let mark = BundleMarker {
            tool: TOOL_IDENTIFIER.to_owned(),
            image: image.to_owned(),
            made_directory,
        };
        let file = write_json(&dir.join(MARK), &mark)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| made(&dir.join(MARK))(error.into()))?;
        let bundle = Bundle { dir, made_directory, _mark: file, removed: false };
        for name in [IMAGE, UPPER, WORK, ROOTFS] {
            let path = bundle.dir.join(name);
            DirBuilder::new().mode(0o700).create(&path).map_err(made(&path))?;
        }
        Ok(bundle)
    }

    /// The bundle's folder, which contains its `config.json`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The mount point for the image.
    pub fn image_point(&self) -> PathBuf {
        self.dir.join(IMAGE)
    }

    /// Mounts the overlay on top of the image and writes `config`, which [`plan`](super::plan)
    /// returned. After that a runtime can start. Blocks.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn complete(&self, tree: &Tree, config: &Value) -> Result<(), BundleError> {
        let [lower, upper, work, point] =
            [IMAGE, UPPER, WORK, ROOTFS].map(|name| self.dir.join(name));
        // The attributes of the overlay's root are those of the upper directory.
        let root = tree.node(Tree::ROOT);
        let like_root = || -> io::Result<()> {
            chown(&upper, Some(root.uid), Some(root.gid))?;
            fs::set_permissions(&upper, fs::Permissions::from_mode(root.mode))
        };
        like_root().map_err(made(&upper))?;
        mount_overlay(&lower, &upper, &work, &point)
            .map_err(|source| BundleError::Overlay { point, source })?;
        write_json(&self.dir.join(CONFIG), config).map(|_| ())
    }

    /// Unmounts and removes everything. If a process still runs in the bundle (its number is
    /// returned), it loses its files.
    ///
    /// # Errors
    /// If something cannot be unmounted or removed.
    pub fn remove(mut self) -> Result<Option<u32>, BundleError> {
        self.removed = true;
        self.take_down()
    }

    /// Leaves the directory to the process that unmounted the files.
    pub fn leave(mut self) {
        self.removed = true;
    }

    fn take_down(&self) -> Result<Option<u32>, BundleError> {
        let user = user_of(&self.dir);
        let unmounted = match unmount(&self.dir, UnmountFlags::NOFOLLOW) {
            Err(MountError::Busy(_)) => {
                unmount(&self.dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
            }
            result => result,
        };
        unmounted?;
        clear(&self.dir, self.made_directory)?;
        Ok(user)
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        if !self.removed {
            // Callers that need to know about a failure remove it explicitly.
            let _ = self.take_down();
        }
    }
}

fn write_json(path: &Path, document: &impl Serialize) -> Result<File, BundleError> {
    let write = || -> io::Result<File> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let mut text = serde_json::to_vec_pretty(document)?;
        text.push(b'\n');
        file.write_all(&text)?;
        Ok(file)
    };
    write().map_err(made(path))
}

/// The permission to write for group and others.
const WRITABLE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Creates `dir`, or takes it over if it is empty, and denies access to others. Returns its path
/// without symbolic links, and whether it was created.
///
/// # Errors
/// If it belongs to another user, is not empty, is a symbolic link, or is where other users can
/// replace it.
fn claim(dir: &Path) -> Result<(PathBuf, bool), BundleError> {
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
fn check(dir: &Path) -> Result<(), BundleError> {
    safe_above(dir)?;
    ours(dir, fs::symlink_metadata(dir).map_err(made(dir))?.uid())
}

fn caller() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn ours(dir: &Path, owner: u32) -> Result<(), BundleError> {
    if owner == caller() {
        Ok(())
    } else {
        Err(BundleError::Foreign { dir: dir.to_owned(), owner })
    }
}

/// Users who can write to a directory can rename its entries, except other users' entries in a
/// sticky directory.
fn safe_above(dir: &Path) -> Result<(), BundleError> {
    for above in dir.ancestors().skip(1) {
        let metadata = fs::symlink_metadata(above).map_err(made(above))?;
        let is_trusted = metadata.uid() == 0 || metadata.uid() == caller();
        if !is_trusted || (metadata.mode() & WRITABLE != 0 && metadata.mode() & STICKY == 0) {
            return Err(BundleError::Replaceable { dir: dir.to_owned(), above: above.to_owned() });
        }
    }
    Ok(())
}

/// With these options, changing a file's owner or mode does not copy the file, which would mean
/// fetching it. Only writing does.
const LAZY: &str = ",redirect_dir=on,metacopy=on";

/// Mounts an overlay of `lower` and `upper` on `point`. `work` is overlayfs' own scratch directory
/// next to `upper`.
///
/// # Errors
/// If the kernel refuses. Its log has the reason.
fn mount_overlay(lower: &Path, upper: &Path, work: &Path, point: &Path) -> io::Result<()> {
    let mut data = Vec::new();
    for (option, path) in [("lowerdir=", lower), (",upperdir=", upper), (",workdir=", work)] {
        data.extend_from_slice(option.as_bytes());
        data.extend(escaped(path.as_os_str()));
    }
    let attempt = |data: Vec<u8>| {
        let data = CString::new(data)?;
        mount("ociseek", point, "overlay", MountFlags::empty(), data.as_c_str())
            .map_err(io::Error::from)
    };
    match attempt([&data, LAZY.as_bytes()].concat()) {
        // The kernel may not support these options.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            attempt(data)
        }
        result => result,
    }
}

/// Escapes a path for mount options, where commas end an option and colons end a lower directory.
fn escaped(path: &OsStr) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(path.len());
    for byte in path.as_bytes() {
        if b"\\,:".contains(byte) {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    escaped
}

/// How long the process that serves the mount may take to exit after unmounting. It finishes what
/// it writes to the cache, which takes a while on a busy disk.
const END: Duration = Duration::from_secs(30);

/// The content of `ociseek.json`.
#[derive(Debug, Serialize, Deserialize)]
struct BundleMarker {
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
    check(&dir)?;
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
fn user_of(dir: &Path) -> Option<u32> {
    let rootfs = dir.join(ROOTFS);
    if mounted_at(&rootfs).ok()??.fs_type != "overlay" {
        return None;
    }
    let device = fs::metadata(rootfs).ok()?.dev();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
        fs::metadata(format!("/proc/{pid}/root")).is_ok_and(|root| root.dev() == device)
    })
}

/// Unmounts the overlay first, then the image below it.
fn unmount(dir: &Path, flags: UnmountFlags) -> Result<(), MountError> {
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
fn clear(dir: &Path, made_directory: bool) -> Result<(), BundleError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_in_mount_options() {
        assert_eq!(escaped(OsStr::new("/a,b:c\\d e")), b"/a\\,b\\:c\\\\d e");
    }
}
