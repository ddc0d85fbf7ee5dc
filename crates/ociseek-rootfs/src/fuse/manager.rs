//! The service manager as another keeper of devices: systemd keeps the descriptors that a service
//! sends it, and gives them to the service's next process (`FDSTORE=1` in sd_notify(3), and
//! sd_listen_fds(3)). So mounts outlive a kill of all processes of the server at once, and a client
//! that connects meanwhile waits for the next one. The unit allows it by `FileDescriptorStoreMax=`.

use std::env;
use std::fs;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use nix::unistd::close;
use ociseek_format::digest::Digest;
use ociseek_store::lock::Hold;
use rustix::fs::OFlags;
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_acceptconn, socket_domain};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tracing::warn;

use super::device::serves;
use super::keeper::{HeldMount, LeftMount};
use super::mounts::MountInfo;

/// The descriptor that the first one of the manager has (sd_listen_fds(3)).
const FIRST: RawFd = 3;
/// More than `FileDescriptorStoreMax=` of our units.
const MOST: RawFd = 1 << 14;
/// How long the manager may take to receive a message.
const ANSWER: Duration = Duration::from_secs(5);

/// The name of the server's socket with the manager. No device has it.
const SOCKET: &str = "socket";

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
    set_socket_timeout(&socket, Timeout::Send, Some(ANSWER))?;
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

/// Has the manager keep the device. It does not wait for events of it: each request of the kernel
/// would wake it.
pub(super) fn store(mount: &HeldMount, device: &OwnedFd) {
    let state = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={}", stored_name(mount));
    if let Err(error) = notify_manager(&state, Some(device.as_fd())) {
        warn!(name: "keeper", %error, "the service manager does not keep the device of a mount");
    }
}

/// Has the manager close the device.
pub(super) fn remove(mount: &HeldMount) {
    remove_named(&stored_name(mount));
}

fn remove_named(name: &str) {
    if let Err(error) = notify_manager(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None) {
        warn!(name: "keeper", %error, name, "the service manager does not close a descriptor");
    }
}

/// Has the manager keep the socket that this server listens on, in place of an earlier one.
pub(super) fn store_socket(socket: &OwnedFd) {
    remove_named(SOCKET);
    let state = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={SOCKET}");
    if let Err(error) = notify_manager(&state, Some(socket.as_fd())) {
        warn!(name: "keeper", %error, "the service manager does not keep the socket");
    }
}

/// The socket that the server before this one listened on.
pub(super) fn given_socket() -> Option<OwnedFd> {
    let mut given = all_given().hold();
    let place = given.iter().position(|(name, _)| name == SOCKET)?;
    Some(given.swap_remove(place).1)
}

/// Whether this is a socket of this machine that listens.
pub(super) fn listens(socket: &OwnedFd) -> bool {
    socket_domain(socket) == Ok(AddressFamily::UNIX) && socket_acceptconn(socket) == Ok(true)
}

/// The name of a device with the manager, which allows 255 bytes without `:`. It has what the
/// kernel does not say of the mount, and the minor number of its device, which kernels before 6.16
/// do not say.
fn stored_name(mount: &HeldMount) -> String {
    let tree = mount.tree.map_or_else(String::new, |tree| format!("@{}", tree.hex()));
    format!("{}.{}{tree}", mount.name, mount.device.1)
}

/// What a name of [`stored_name`] has: the mount's name, its minor number, and its tree.
fn parse(name: &str) -> Option<(&str, u32, Option<Digest>)> {
    let (mount, tree) = match name.split_once('@') {
        Some((mount, tree)) => (mount, Some(format!("sha256:{tree}").parse().ok()?)),
        None => (name, None),
    };
    let (mount, minor) = mount.rsplit_once('.')?;
    Some((mount, minor.parse().ok()?, tree))
}

/// The mounts whose devices the manager gave to this process. It closes those of others. The first
/// call has all of them.
pub(super) fn given(mounts: &[MountInfo]) -> Vec<LeftMount> {
    let mut given = all_given().hold();
    let devices = given.extract_if(.., |(name, _)| name != SOCKET);
    let held = devices.filter_map(|(name, device)| {
        let held = held(&name, device, mounts);
        if held.is_none() {
            warn!(name: "keeper", device = name, "the service manager kept a device of no mount");
            remove_named(&name);
        }
        held
    });
    held.collect()
}

/// What the manager gave to this process, with its names, as far as nobody has taken it.
fn all_given() -> &'static Mutex<Vec<(String, OwnedFd)>> {
    static GIVEN: OnceLock<Mutex<Vec<(String, OwnedFd)>>> = OnceLock::new();
    GIVEN.get_or_init(|| {
        let variable = |name: &str| env::var(name).unwrap_or_default();
        // What a child of ours inherits is not for it.
        if variable("LISTEN_PID").parse() != Ok(getpid().as_raw_pid()) {
            return Mutex::default();
        }
        let count = variable("LISTEN_FDS").parse().unwrap_or(0).clamp(0, MOST);
        let taken = take(count).unwrap_or_else(|error| {
            warn!(name: "keeper", %error, "what the service manager kept cannot be taken");
            Vec::new()
        });
        let names = variable("LISTEN_FDNAMES");
        let named = names.split(':').zip(taken).filter_map(|(name, descriptor)| {
            let descriptor = descriptor.inspect_err(|_| remove_named(name)).ok()?;
            Some((name.to_owned(), descriptor))
        });
        Mutex::new(named.collect())
    })
}

/// The mount that a device of this name serves.
fn held(name: &str, device: OwnedFd, mounts: &[MountInfo]) -> Option<LeftMount> {
    let (name, minor, tree) = parse(name)?;
    let mount = mounts.iter().find(|mount| mount.device == (0, minor))?;
    let point = mount.point.clone();
    let held = HeldMount { name: name.to_owned(), point, device: mount.device, tree };
    serves(&device, mount).is_ok_and(|serves| serves).then_some((held, device))
}

/// The descriptors that this process was started with, as ones that its children do not inherit.
fn take(count: RawFd) -> io::Result<Vec<io::Result<OwnedFd>>> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let take = |descriptor| {
        if is_own(descriptor)? {
            return Err(io::Error::other("the manager did not open it"));
        }
        let taken = pidfd_getfd(&this, descriptor, PidfdGetfdFlags::empty());
        close(descriptor)?;
        Ok(taken?)
    };
    Ok((FIRST..FIRST + count).map(take).collect())
}

/// Whether this process has opened a descriptor itself: all of those end at exec(2), and those from
/// the manager do not (proc_pid_fdinfo(5)).
fn is_own(descriptor: RawFd) -> io::Result<bool> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}"))?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    Ok(flags.is_none_or(|flags| flags & OFlags::CLOEXEC.bits() != 0))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
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
    fn what_this_process_opened_is_its_own() {
        let file = File::open("/dev/null").unwrap();
        assert!(is_own(file.as_raw_fd()).unwrap());
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        assert!(!is_own(file.as_raw_fd()).unwrap());
        assert!(is_own(-1).is_err());
    }

    #[test]
    fn a_name_says_what_the_kernel_does_not() {
        for tree in [None, Some(Digest::sha256(b"tree"))] {
            let (name, point) = ("7.xattrs".into(), "/point".into());
            let mount = HeldMount { name, point, device: (0, 63), tree };
            let name = stored_name(&mount);
            assert!(name.len() < 255 && !name.contains(':'), "{name}");
            assert_eq!(parse(&name), Some(("7.xattrs", 63, tree)));
        }
        for other in ["7", "7@tree", "7.63@tree", "7.x"] {
            assert_eq!(parse(other), None);
        }
    }
}
