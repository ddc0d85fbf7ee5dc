//! Watches the processes that serve mounts, and those that keep their devices.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits until the process of a pidfd has ended.
#[allow(unsafe_code, reason = "tokio has no safe call for descriptors that are not its own")]
pub(crate) async fn ended(process: &OwnedFd) -> io::Result<()> {
    // SAFETY: It stays borrowed, and so open, until it is deregistered when this is dropped.
    let process = unsafe { AsyncFd::register_with_interest(process.as_fd(), Interest::READABLE) }?;
    // pidfd_open(2): it becomes readable then.
    process.readable().await.map(|_| ())
}

/// Ends the keeper of a mount.
pub(crate) fn end(keeper: &OwnedFd) {
    // It may have ended by itself.
    let _ = pidfd_send_signal(keeper, Signal::KILL);
}
