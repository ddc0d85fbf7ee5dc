//! Mount points: those in the kernel's list (proc_pid_mountinfo(5)), which is read without
//! accessing a file system, so that dead ones do no harm; and those that are checked before
//! anything is fetched.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use super::MountError;

/// The type of our mounts in the kernel's list.
pub const FS_TYPE: &str = "fuse.ociseek";

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    /// The major and minor number of the file system's device, which distinguish FUSE sessions.
    pub device: (u32, u32),
    /// The mount point.
    pub point: PathBuf,
    /// The type of the file system, such as `fuse.ociseek`.
    pub fs_type: String,
    /// The source in the kernel's list; for our mounts, the image.
    pub source: String,
}

/// All mounts that this process sees, in the order of mounting.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn mounts() -> io::Result<Vec<MountInfo>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The visible mount at `point`, which must not contain symbolic links: the last one mounted there.
///
/// # Errors
/// As [`mounts`].
pub fn mounted_at(point: &Path) -> io::Result<Option<MountInfo>> {
    Ok(mounts()?.into_iter().rfind(|mount| mount.point == point))
}

fn parse(list: &[u8]) -> Vec<MountInfo> {
    list.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<MountInfo> {
    let mut words = line.split(|byte| *byte == b' ').map(unescape);
    let device = String::from_utf8(words.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let point = PathBuf::from(OsString::from_vec(words.nth(1)?));
    // Any number of optional fields precede the dash.
    words.find(|word| word == b"-")?;
    let mut text = || Some(String::from_utf8_lossy(&words.next()?).into_owned());
    Some(MountInfo {
        device: (major.parse().ok()?, minor.parse().ok()?),
        point,
        fs_type: text()?,
        source: text()?,
    })
}

/// Decodes `\040` and similar escapes for spaces, tabs, line ends and backslashes.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten().and_then(|digits| {
            digits.iter().try_fold(0u16, |n, d| {
                matches!(d, b'0'..=b'7').then(|| n * 8 + u16::from(d - b'0'))
            })
        });
        match octal.and_then(|n| u8::try_from(n).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

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
        Ok(metadata) if metadata.is_dir() => {
            dir.canonicalize().map_err(|source| inspect(dir, source))?
        }
        Ok(_) => return Err(MountError::NotADirectory(dir.to_owned())),
        Err(error) if is_dead(&error) => stale(dir, existing)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::Missing(dir.to_owned()));
        }
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
            super::host::unmount_by_helper(point, lazy)
                .map_err(|text| failed(io::Error::other(text)))
        }
        Err(error) => Err(failed(error)),
    }
}

fn inspect(point: &Path, source: io::Error) -> MountError {
    MountError::Inspect { point: point.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_parsed() {
        let list = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            80 22 0:52 / /tmp/a\\040b\\134c ro,nosuid shared:3 master:1 - fuse.ociseek oci:x ro,user_id=0\n\
            odd\n81 80 0:53 / /tmp/a\\040b\\134c rw - tmpfs none rw\n";
        let mounts = parse(list);
        let at: Vec<(&Path, &str, (u32, u32))> =
            mounts.iter().map(|m| (m.point.as_path(), m.fs_type.as_str(), m.device)).collect();
        let point = Path::new("/tmp/a b\\c");
        assert_eq!(
            at,
            [
                (Path::new("/"), "ext4", (254, 0)),
                (point, FS_TYPE, (0, 52)),
                (point, "tmpfs", (0, 53))
            ]
        );
        assert_eq!(mounts[1].source, "oci:x");
    }

    #[test]
    fn invalid_escapes_are_kept() {
        for (escaped, plain) in [
            (&b"a\\12"[..], &b"a\\12"[..]),
            (b"\\777", b"\\777"),
            (b"\\", b"\\"),
            (b"\\011x", b"\tx"),
        ] {
            assert_eq!(unescape(escaped), plain);
        }
    }
}
