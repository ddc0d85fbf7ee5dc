//! The mounts in the kernel's list (proc_pid_mountinfo(5)). Reading it accesses no file system, so
//! dead ones do no harm.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

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
    Some(MountInfo { device: (major.parse().ok()?, minor.parse().ok()?), point, fs_type: text()?, source: text()? })
}

/// Decodes `\040` and similar escapes for spaces, tabs, line ends and backslashes.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten().and_then(|digits| {
            digits.iter().try_fold(0u16, |n, d| matches!(d, b'0'..=b'7').then(|| n * 8 + u16::from(d - b'0')))
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
        assert_eq!(at, [(Path::new("/"), "ext4", (254, 0)), (point, FS_TYPE, (0, 52)), (point, "tmpfs", (0, 53))]);
        assert_eq!(mounts[1].source, "oci:x");
    }

    #[test]
    fn invalid_escapes_are_kept() {
        for (escaped, plain) in
            [(&b"a\\12"[..], &b"a\\12"[..]), (b"\\777", b"\\777"), (b"\\", b"\\"), (b"\\011x", b"\tx")]
        {
            assert_eq!(unescape(escaped), plain);
        }
    }
}
