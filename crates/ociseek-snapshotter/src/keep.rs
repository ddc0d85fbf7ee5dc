//! The processes that serve mounts, and the FUSE devices through which they can be replaced.
//!
//! Each server has its device as standard input. This process keeps a descriptor of it, so that the
//! mount lives on if the server is killed; the server's lets the mount outlive this process, whose
//! successor takes one from the server again.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{fstat, major, minor};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, geteuid, pidfd_getfd, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Major and minor number of `/dev/fuse` (the kernel's `Documentation/admin-guide/devices.txt`).
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// The first version of Linux that has requests sent again to another server: major, minor.
const CAN_RESEND: (u32, u32) = (6, 9);

/// Whether a server that was killed can be replaced with this kernel.
pub(crate) fn can_replace_servers() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    can_resend(&release)
}

fn can_resend(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    (next(), next()) >= CAN_RESEND
}

/// Waits until the process has ended.
#[allow(unsafe_code, reason = "tokio has no safe call for descriptors that are not its own")]
pub(crate) async fn ended(server: &OwnedFd) -> io::Result<()> {
    // SAFETY: It stays borrowed, and so open, until it is deregistered when this is dropped.
    let server = unsafe { AsyncFd::register_with_interest(server.as_fd(), Interest::READABLE) }?;
    // pidfd_open(2): it becomes readable then.
    server.readable().await.map(|_| ())
}

/// The process that serves the mount at `point`, and its device. None if there is none.
///
/// # Errors
/// If `/proc` or the process cannot be inspected.
pub(crate) fn server_of(point: &Path) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    let Some(pid) = servers()?.remove(point) else { return Ok(None) };
    let server = pidfd_open(pid, PidfdFlags::empty())?;
    // Another process may have got its number in the meantime.
    if served_by(pid).as_deref() != Some(point) {
        return Ok(None);
    }
    let device = pidfd_getfd(&server, 0, PidfdGetfdFlags::empty())?;
    let number = fstat(&device)?.st_rdev;
    Ok(((major(number), minor(number)) == FUSE_DEVICE).then_some((server, device)))
}

/// The processes of this user that serve mounts, by mount point.
///
/// # Errors
/// If `/proc` cannot be listed.
pub(crate) fn servers() -> io::Result<HashMap<PathBuf, Pid>> {
    let mut servers = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else { continue };
        servers.extend(served_by(pid).map(|point| (point, pid)));
    }
    Ok(servers)
}

/// The mount point that a process serves, according to its arguments, if it runs as this user.
fn served_by(pid: Pid) -> Option<PathBuf> {
    let dir = format!("/proc/{}", pid.as_raw_nonzero());
    let arguments = fs::read(format!("{dir}/cmdline")).ok()?;
    let arguments: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
    let is_ours = || fs::metadata(&dir).is_ok_and(|found| found.uid() == geteuid().as_raw());
    if !arguments.contains(&&b"--kept"[..]) || !is_ours() {
        return None;
    }
    // The list ends with a zero.
    arguments.iter().rev().nth(1).map(|point| PathBuf::from(OsStr::from_bytes(point)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        for (release, can) in [
            ("6.9.0", true),
            ("6.18.44-fc", true),
            ("7.0-rc1", true),
            ("6.8.12", false),
            ("5.15.0-113", false),
            ("", false),
        ] {
            assert_eq!(can_resend(release), can, "{release}");
        }
    }
}
