//! FUSE devices: the descriptors through which mounts are served.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fstat, major, minor};

use super::mounts::{FS_TYPE, MountInfo};

/// Major and minor number of `/dev/fuse` (the kernel's `Documentation/admin-guide/devices.txt`).
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// A new FUSE device, which can be mounted once.
///
/// # Errors
/// If the kernel has no FUSE, or the user may not use it.
pub fn open_device() -> io::Result<OwnedFd> {
    File::options().read(true).write(true).open("/dev/fuse").map(OwnedFd::from)
}

/// Whether `device` serves `mount`, as far as the kernel says it: older kernels do not say which
/// mount a device serves.
pub(super) fn serves(device: &OwnedFd, mount: &MountInfo) -> io::Result<bool> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd()))?;
    let is_of = connection(&info).is_none_or(|connection| mount.device == (0, connection));
    Ok(mount.fs_type == FS_TYPE && is_of && is_fuse(device)? && !is_over(device)?)
}

/// The number of a FUSE connection in a file of `/proc/self/fdinfo`, which is the minor number of
/// the mount's device.
fn connection(info: &str) -> Option<u32> {
    info.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

/// Whether the session of a device has ended, or never began: the kernel reports an error then
/// (fs/fuse/dev.c, `fuse_dev_poll`).
pub(super) fn is_over(device: &OwnedFd) -> io::Result<bool> {
    let mut looked = [PollFd::new(device, PollFlags::empty())];
    poll(&mut looked, Some(&Timespec::default()))?;
    Ok(looked[0].revents().contains(PollFlags::ERR))
}

pub(super) fn is_fuse(device: &OwnedFd) -> io::Result<bool> {
    let number = fstat(device)?.st_rdev;
    Ok((major(number), minor(number)) == FUSE_DEVICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_which_mount_a_device_serves() {
        let info = "pos:\t0\nflags:\t02100002\nfuse_connection:\t63\n";
        assert_eq!((connection(info), connection("pos:\t0\n")), (Some(63), None));
    }

    #[test]
    fn what_was_never_mounted_serves_nothing() {
        let mount = MountInfo {
            device: (0, 63),
            point: "/point".into(),
            fs_type: FS_TYPE.to_owned(),
            source: String::new(),
        };
        let file = OwnedFd::from(File::open("/dev/null").unwrap());
        assert!(!serves(&file, &mount).unwrap());
        let Ok(device) = open_device() else { return };
        assert!(is_fuse(&device).unwrap() && !serves(&device, &mount).unwrap());
    }
}
