//! A process that keeps the FUSE device of a mount open, for when the mount's server and those who
//! would replace it are killed at the same time.
//!
//! It is this program, but starts before the command line is parsed, so that it takes little
//! memory.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

#[cfg(snapshots)]
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::cli::shared::error::{DONE, FAILED};
use crate::cli::shared::terminal::complain;
use ociseek_rootfs::fuse::{MountInfo, is_keeper, keep_device, keeper_arguments};

/// The pause before a keeper that ended is replaced.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts the process, and returns a pidfd of it. Must be called on a tokio runtime.
#[cfg(snapshots)]
pub(crate) fn start(mount: &MountInfo, device: &OwnedFd) -> io::Result<OwnedFd> {
    let pid = spawn(mount, device)?.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    Ok(pidfd_open(pid.ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?)
}

/// A keeper of one mount, which is replaced when it ends.
pub(crate) struct DeviceKeeper {
    mount: MountInfo,
    device: OwnedFd,
    child: Child,
}

impl DeviceKeeper {
    /// Must be called on a tokio runtime.
    pub(crate) fn start(mount: MountInfo, device: OwnedFd) -> io::Result<DeviceKeeper> {
        let child = spawn(&mount, &device)?;
        Ok(DeviceKeeper { mount, device, child })
    }

    /// Starts another process whenever one has ended, until that fails.
    pub(crate) async fn watch(&mut self) -> io::Error {
        loop {
            if let Err(error) = self.child.wait().await {
                return error;
            }
            sleep(PAUSE).await;
            match spawn(&self.mount, &self.device) {
                Ok(child) => self.child = child,
                Err(error) => return error,
            }
        }
    }

    /// Ends the process.
    pub(crate) async fn end(mut self) {
        // It may have ended by itself.
        let _ = self.child.kill().await;
    }
}

fn spawn(mount: &MountInfo, device: &OwnedFd) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ociseek").args(keeper_arguments(mount)).stdin(device.try_clone()?);
    // Signals for this process are not for the keeper, such as those of a terminal.
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).current_dir("/");
    command.spawn()
}

/// Keeps the device on standard input, if the arguments of this process say so.
pub(crate) fn run(arguments: &[OsString]) -> Option<ExitCode> {
    if !is_keeper(arguments.iter().skip(1).map(OsString::as_os_str)) {
        return None;
    }
    let device = io::stdin().as_fd().try_clone_to_owned();
    Some(match device.and_then(|device| keep_device(&device)) {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => {
            complain(&format!("error: {error}"));
            ExitCode::from(FAILED)
        }
    })
}
