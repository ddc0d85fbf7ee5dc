//! The service manager as another keeper of devices: systemd keeps the descriptors that a service
//! sends it, and gives them to the service's next process (`FDSTORE=1` in sd_notify(3), and
//! sd_listen_fds(3)). So mounts outlive a kill of all processes of the server at once. The unit
//! allows it by `FileDescriptorStoreMax=`.

use std::env;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::close;
use ociseek_format::digest::Digest;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tracing::warn;

use super::device::mount_of;
use super::keeper::{HeldMount, LeftMount};
use super::mounts::MountInfo;

/// The descriptor that the first one of the manager has (sd_listen_fds(3)).
const FIRST: RawFd = 3;
/// More than `FileDescriptorStoreMax=` of our units.
const MOST: RawFd = 1 << 14;

/// Tells the service manager something, if there is one: `NOTIFY_SOCKET` names its socket.
///
/// # Errors
/// If the socket does not take the message.
pub fn notify_manager(state: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    send(name.as_bytes(), state, descriptor)
}

/// `@` begins the name of an abstract socket.
fn send(name: &[u8], state: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(name)?,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [IoSlice::new(state.as_bytes())];
    retry_on_intr(|| sendmsg_addr(&socket, &address, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Has the manager keep the device.
pub(super) fn store(mount: &HeldMount, device: &OwnedFd) {
    let state = format!("FDSTORE=1\nFDNAME={}", stored_name(mount));
    if let Err(error) = notify_manager(&state, Some(device.as_fd())) {
        warn!(name: "keeper", %error, "the service manager does not keep the device of a mount");
    }
}

/// Has the manager close the device. It closes those of mounts that are gone by itself.
pub(super) fn remove(mount: &HeldMount) {
    let _ = notify_manager(&format!("FDSTOREREMOVE=1\nFDNAME={}", stored_name(mount)), None);
}

/// The name of a device with the manager, which allows 255 bytes without `:`. It has what the
/// kernel does not say of the mount.
fn stored_name(mount: &HeldMount) -> String {
    let tree = mount.tree.map_or_else(String::new, |tree| format!("@{}", tree.hex()));
    format!("{}{tree}", mount.name)
}

/// The name and the tree in a name of [`stored_name`].
fn parse(name: &str) -> Option<(String, Option<Digest>)> {
    match name.split_once('@') {
        Some((name, tree)) => Some((name.to_owned(), Some(format!("sha256:{tree}").parse().ok()?))),
        None => Some((name.to_owned(), None)),
    }
}

/// The mounts whose devices the manager gave to this process. Those of mounts that are gone are
/// closed. The first call has all of them.
pub(super) fn given(mounts: &[MountInfo]) -> Vec<LeftMount> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name: &str| env::var(name).unwrap_or_default();
    // What a child of ours inherits is not for it.
    if variable("LISTEN_PID").parse() != Ok(getpid().as_raw_pid())
        || IS_TAKEN.swap(true, Ordering::Relaxed)
    {
        return Vec::new();
    }
    let count = variable("LISTEN_FDS").parse().unwrap_or(0).clamp(0, MOST);
    let taken = (FIRST..FIRST + count).map(take);
    let names = variable("LISTEN_FDNAMES");
    // One that cannot be taken must not move the names of the others.
    let named = names.split(':').zip(taken.collect::<Vec<_>>());
    named
        .filter_map(|(name, device)| {
            let (name, tree) = parse(name)?;
            let device = device.ok()?;
            let MountInfo { point, device: number, .. } = mount_of(&device, mounts).ok()??;
            let held = HeldMount { name, point: point.clone(), device: *number, tree };
            Some((held, device))
        })
        .collect()
}

/// A descriptor that this process was started with, as one that its children do not inherit.
fn take(descriptor: RawFd) -> io::Result<OwnedFd> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let taken = pidfd_getfd(this, descriptor, PidfdGetfdFlags::empty());
    // It is nobody else's: the manager has opened it for this process.
    close(descriptor)?;
    Ok(taken?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::super::keeper::received;
    use super::*;

    #[test]
    fn the_manager_is_told_on_a_path_and_on_an_abstract_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("ociseek-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let file = OwnedFd::from(File::open("/dev/null").unwrap());
        for (manager, socket) in [
            (UnixDatagram::bind(&path).unwrap(), path.display().to_string()),
            (UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}")),
        ] {
            for descriptor in [None, Some(file.as_fd())] {
                send(socket.as_bytes(), "READY=1", descriptor).unwrap();
                let mut told = [0; 64];
                let (length, sent) = received(manager.as_fd(), &mut told).unwrap();
                assert_eq!(&told[..length], b"READY=1");
                assert_eq!(sent.is_some(), descriptor.is_some());
            }
        }
        assert!(send(b"/nowhere/notify", "READY=1", None).is_err());
    }

    #[test]
    fn a_name_says_what_the_kernel_does_not() {
        for tree in [None, Some(Digest::sha256(b"tree"))] {
            let mount =
                HeldMount { name: "7".into(), point: "/point".into(), device: (0, 63), tree };
            let name = stored_name(&mount);
            assert!(name.len() < 255 && !name.contains(':'), "{name}");
            assert_eq!(parse(&name), Some(("7".to_owned(), tree)));
        }
        assert_eq!(parse("7@tree"), None);
    }
}
