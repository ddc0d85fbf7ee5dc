//! The writable overlay over an image's files.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::mount::{MountFlags, mount};

/// With these options, changing a file's owner or mode does not copy the file, which would mean
/// fetching it. Only writing does.
const LAZY: &str = ",redirect_dir=on,metacopy=on";

/// Mounts an overlay of `lower` and `upper` on `point`. `work` is overlayfs' own scratch directory
/// next to `upper`.
///
/// # Errors
/// If the kernel refuses. Its log has the reason.
pub(super) fn mount_overlay(lower: &Path, upper: &Path, work: &Path, point: &Path) -> io::Result<()> {
    let mut data = Vec::new();
    for (option, path) in [("lowerdir=", lower), (",upperdir=", upper), (",workdir=", work)] {
        data.extend_from_slice(option.as_bytes());
        data.extend(escaped(path.as_os_str()));
    }
    let attempt = |data: Vec<u8>| {
        let data = CString::new(data)?;
        mount("ociseek", point, "overlay", MountFlags::empty(), data.as_c_str()).map_err(io::Error::from)
    };
    match attempt([&data, LAZY.as_bytes()].concat()) {
        // The kernel may not support these options.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => attempt(data),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_in_mount_options() {
        assert_eq!(escaped(OsStr::new("/a,b:c\\d e")), b"/a\\,b\\:c\\\\d e");
    }
}
