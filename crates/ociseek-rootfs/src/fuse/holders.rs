//! The processes that have the FUSE device of a mount as standard input: its server, and a keeper.
//!
//! A mount lives as long as a process has its device open (see `handover`). The server and those
//! who would replace it can be killed at the same time. A keeper does nothing, so that only its own
//! end loses the mount then. Programs that start later find both in `/proc`, and take the device
//! from one of them (pidfd_getfd(2)).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fstat, major, minor};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, geteuid, pidfd_getfd, pidfd_open, pidfd_send_signal,
};

use super::mounts::{FS_TYPE, MountInfo};

/// Major and minor number of `/dev/fuse` (the kernel's `Documentation/admin-guide/devices.txt`).
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// The argument that only servers on a kept device have. Their last argument is the mount point.
const SERVER: &[u8] = b"--kept";
/// The first argument of a keeper. The number of the file system and the mount point follow.
const KEEPER: &str = "device-keeper";

/// How often a keeper looks whether the mount is gone. Waiting for that in poll(2) would wake it
/// with each request.
const LOOK: Duration = Duration::from_secs(60);

/// How long to wait until a process that was killed has ended.
const KILLED: Duration = Duration::from_secs(10);

/// A process that has the device of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHolder {
    /// The process.
    pub pid: Pid,
    /// The mount point.
    pub point: PathBuf,
    /// Whether it serves the mount, or only keeps the device open.
    pub serves: bool,
    /// The number of the file system that is mounted there, if the process knows it.
    file_system: Option<String>,
}

/// A device that was taken from a process, which has it, too.
#[derive(Debug)]
pub struct TakenDevice {
    /// The pidfd of the process.
    pub process: OwnedFd,
    /// The device.
    pub device: OwnedFd,
}

/// The processes of this user that have devices of mounts.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn device_holders() -> io::Result<Vec<DeviceHolder>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        all.extend(pid.and_then(holder));
    }
    Ok(all)
}

impl DeviceHolder {
    /// Whether a server has told the process that started it that the mount is ready. Until then,
    /// its standard output leads there.
    pub fn is_ready(&self) -> bool {
        let output = fs::read_link(format!("/proc/{}/fd/1", self.pid.as_raw_nonzero()));
        output.is_ok_and(|output| output == Path::new("/dev/null"))
    }

    /// Kills the process, and waits until it has ended.
    ///
    /// # Errors
    /// If this process may not do that, or the other one does not end within 10 s.
    pub fn kill(&self) -> io::Result<()> {
        let process = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(()),
            opened => opened?,
        };
        // Another process may have got its number in the meantime.
        if holder(self.pid).as_ref() != Some(self) {
            return Ok(());
        }
        pidfd_send_signal(&process, Signal::KILL)?;
        // Until then, a system call such as umount(2) may go on. pidfd_open(2): it becomes readable
        // then.
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        let most = Timespec::try_from(KILLED).map_err(io::Error::other)?;
        match retry_on_intr(|| poll(&mut ended, Some(&most)))? {
            0 => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("process {} does not end", self.pid),
            )),
            _ => Ok(()),
        }
    }

    /// Takes the device of `mount` from the process. None if it has another one, or is gone.
    ///
    /// # Errors
    /// If the process cannot be accessed.
    pub fn take(&self, mount: &MountInfo) -> io::Result<Option<TakenDevice>> {
        let is_another =
            self.file_system.as_ref().is_some_and(|number| *number != file_system(mount));
        if is_another || self.point != mount.point || mount.fs_type != FS_TYPE {
            return Ok(None);
        }
        let process = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(None),
            opened => opened?,
        };
        // Another process may have got its number in the meantime.
        if holder(self.pid).as_ref() != Some(self) {
            return Ok(None);
        }
        let device = pidfd_getfd(&process, 0, PidfdGetfdFlags::empty())?;
        let is_right = is_fuse(&device)? && !is_over(&device)? && is_of(&device, mount);
        Ok(is_right.then_some(TakenDevice { process, device }))
    }
}

/// The arguments of a process that keeps the device of `mount`, which is its standard input.
pub fn keeper_arguments(mount: &MountInfo) -> [OsString; 3] {
    [KEEPER.into(), file_system(mount).into(), mount.point.clone().into()]
}

/// Whether these are the arguments of a process that keeps a device, without the program's name.
pub fn is_keeper<'a>(mut arguments: impl Iterator<Item = &'a OsStr>) -> bool {
    arguments.next() == Some(OsStr::new(KEEPER))
}

fn file_system(mount: &MountInfo) -> String {
    let (major, minor) = mount.device;
    format!("{major}:{minor}")
}

/// Returns once the mount of `device` is gone.
///
/// # Errors
/// If it is not a FUSE device.
pub fn keep_device(device: &OwnedFd) -> io::Result<()> {
    if !is_fuse(device)? {
        return Err(io::Error::other("standard input is not a FUSE device"));
    }
    while !is_over(device)? {
        sleep(LOOK);
    }
    Ok(())
}

/// Whether the session of a device has ended, or never began: the kernel reports an error then
/// (fs/fuse/dev.c, `fuse_dev_poll`).
fn is_over(device: &OwnedFd) -> io::Result<bool> {
    let mut looked = [PollFd::new(device, PollFlags::empty())];
    poll(&mut looked, Some(&Timespec::default()))?;
    Ok(looked[0].revents().contains(PollFlags::ERR))
}

fn is_fuse(device: &OwnedFd) -> io::Result<bool> {
    let number = fstat(device)?.st_rdev;
    Ok((major(number), minor(number)) == FUSE_DEVICE)
}

/// Whether the kernel says that `device` serves `mount`. Older kernels do not say which
/// mount a device serves.
fn is_of(device: &OwnedFd, mount: &MountInfo) -> bool {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd()));
    let connection = info.as_deref().ok().and_then(connection);
    connection.is_none_or(|connection| mount.device == (0, connection))
}

/// The number of a FUSE connection in a file of `/proc/self/fdinfo`, which is the minor number of
/// the mount's device.
fn connection(info: &str) -> Option<u32> {
    info.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

/// Whether a process is this program, with all its user IDs those of this process, and can run.
/// Others can choose the arguments of a set-user-ID program, give it a device, and stop it.
fn is_ours(dir: &str) -> bool {
    // An upgrade replaces the file of a program that runs.
    let program = |dir: &str| {
        let path = fs::read_link(format!("{dir}/exe")).ok()?.into_os_string().into_encoded_bytes();
        Some(path.strip_suffix(b" (deleted)").unwrap_or(&path).to_vec())
    };
    let status = fs::read_to_string(format!("{dir}/status")).unwrap_or_default();
    program(dir).is_some_and(|path| program("/proc/self") == Some(path))
        && runs_as(&status, &geteuid().as_raw().to_string())
}

/// Whether a file `status` of `/proc` shows a process with no other user ID that is not stopped.
fn runs_as(status: &str, user: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let has_user = |ids: &str| ids.split_whitespace().all(|id| id == user);
    let runs = |state: &str| !state.trim_start().starts_with(['T', 't', 'Z', 'X']);
    field("Uid:").is_some_and(has_user) && field("State:").is_some_and(runs)
}

/// What a process holds according to its arguments, if it is this program, runs as this user and
/// sees the same mounts. A container's root may be the same user, but has mounts of its own.
fn holder(pid: Pid) -> Option<DeviceHolder> {
    let dir = format!("/proc/{}", pid.as_raw_nonzero());
    let arguments = fs::read(format!("{dir}/cmdline")).ok()?;
    // The list ends with a zero.
    let arguments: Vec<&[u8]> = arguments.strip_suffix(&[0])?.split(|byte| *byte == 0).collect();
    let (serves, file_system) = match &arguments[..] {
        [_, first, number, _] if *first == KEEPER.as_bytes() => {
            (false, Some(String::from_utf8_lossy(number).into()))
        }
        all if all.contains(&SERVER) => (true, None),
        _ => return None,
    };
    let mounts = |dir: &str| fs::read_link(format!("{dir}/ns/mnt")).ok();
    let is_ours =
        is_ours(&dir) && mounts(&dir).is_some_and(|theirs| mounts("/proc/self") == Some(theirs));
    let point = PathBuf::from(OsStr::from_bytes(arguments.last().filter(|_| is_ours)?));
    Some(DeviceHolder { pid, point, serves, file_system })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_fuse_devices_are_kept() {
        let file = OwnedFd::from(File::open("/dev/null").unwrap());
        assert!(keep_device(&file).is_err());
    }

    #[test]
    fn only_processes_with_no_other_user_that_run_are_ours() {
        let status =
            |state: &str, ids: &str| format!("Name:\tociseek\nState:\t{state}\nUid:\t{ids}\n");
        assert!(runs_as(&status("S (sleeping)", "0\t0\t0\t0"), "0"));
        assert!(!runs_as(&status("T (stopped)", "0\t0\t0\t0"), "0"));
        // A set-user-ID program that another user started.
        assert!(!runs_as(&status("S (sleeping)", "1000\t0\t0\t0"), "0"));
        assert!(!runs_as("", "0"));
        assert!(is_ours("/proc/self") && !is_ours("/proc/1"));
    }

    #[test]
    fn the_kernel_says_which_mount_a_device_serves() {
        let info = "pos:\t0\nflags:\t02100002\nfuse_connection:\t63\n";
        assert_eq!((connection(info), connection("pos:\t0\n")), (Some(63), None));
    }

    #[test]
    fn a_device_that_was_never_mounted_is_not_kept() {
        let Ok(device) = super::super::open_device() else { return };
        keep_device(&device).unwrap();
    }
}
