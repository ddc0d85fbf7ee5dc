//! A process that keeps the FUSE devices of mounts open. The mounts outlive their server then: the
//! kernel's side of a mount lives as long as a process has its device open (see `handover`).
//!
//! The keeper does little else, so that nothing but its own end loses the mounts: it stands in for
//! the server of a store (see `stand_in`), and keeps the socket of the snapshotter open between two
//! servers. It listens on a socket in the directory of the server that started it. Each message is
//! one JSON document, with at most one descriptor.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, accept_with, listen, recvmsg, sendmsg,
};
use rustix::process::{geteuid, setsid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::device::{is_fuse, is_over};
use super::look::MountLook;
use super::stand_in::StandIn;
use ociseek_format::digest::Digest;

/// How often a keeper looks whether mounts are gone. Waiting for that in poll(2) would wake it with
/// each request.
const LOOK: Duration = Duration::from_secs(60);
/// The same without a server, or with a store.
const LOOK_SOON: Duration = Duration::from_secs(2);
/// For how long a store has no server, or one that does not answer, until the keeper stands in for
/// it, and how often it looks for requests then.
const PATIENCE: Duration = Duration::from_secs(3);
const SILENCE: Duration = Duration::from_secs(5);
const STAND_IN: Duration = Duration::from_millis(50);
/// For how long connections to a server that has ended wait for the next one.
const SOCKET: Duration = Duration::from_secs(10);
/// How long a server may take to receive an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// The longest message, in bytes.
const MAX_MESSAGE: usize = 64 << 10;

/// A mount whose device is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMount {
    /// Its name among those of the server.
    pub name: String,
    /// The mount point.
    pub point: PathBuf,
    /// The major and minor number of the file system.
    pub device: (u32, u32),
    /// Identifies the files that the kernel knows of it. None if it is a store.
    pub tree: Option<Digest>,
}

/// A mount that an earlier server left, and its device.
pub type LeftMount = (HeldMount, OwnedFd);

/// What a server asks of the keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeeperOrder {
    /// Keep the device that comes with this. It replaces another of the same name.
    Keep(HeldMount),
    /// Keep the socket that comes with this, in place of another.
    KeepSocket,
    /// Close the device of this name.
    Release(String),
    /// Answer all mounts with their devices, the socket, and then the end.
    List,
}

/// What the keeper answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeeperAnswer {
    Kept(HeldMount),
    Socket,
    End,
}

/// What a keeper has.
#[derive(Default)]
struct Kept {
    mounts: BTreeMap<String, (HeldMount, OwnedFd)>,
    /// What the server listens on. Connections wait there for the next server.
    socket: Option<OwnedFd>,
}

impl Kept {
    /// The devices of stores.
    fn stores(&self) -> impl Iterator<Item = (&HeldMount, &OwnedFd)> {
        let mounts = self.mounts.values().map(|(mount, device)| (mount, device));
        mounts.filter(|(mount, _)| mount.tree.is_none())
    }
}

/// Keeps the devices that come on the socket `listener`, which is not listening yet. Returns when
/// there is neither a server nor a mount.
///
/// # Errors
/// If the socket fails.
pub fn keep_devices(listener: &OwnedFd) -> io::Result<()> {
    // Signals for the server are not for the keeper, such as those of a terminal. In the session of
    // the server, one that is stopped would also get SIGHUP when the server ends (POSIX, _exit()).
    // It fails only for who leads a group already.
    let _ = setsid();
    // The server sees by this call who keeps its devices (unix(7), SO_PEERCRED).
    listen(listener, 4)?;
    let mut kept = Kept::default();
    let mut server: Option<OwnedFd> = None;
    let mut last_served = Instant::now();
    let mut looks = BTreeMap::new();
    let mut stand_in = None;
    loop {
        let is_unserved = match &server {
            Some(_) => looks.values().any(|look: &MountLook| look.waits() >= SILENCE),
            None => last_served.elapsed() >= PATIENCE,
        };
        let has_store = kept.stores().next().is_some();
        let stands_in = is_unserved && has_store;
        let wait = match &server {
            _ if stands_in => STAND_IN,
            Some(_) if !has_store => LOOK,
            Some(_) | None => LOOK_SOON,
        };
        let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
        let connection = server.as_ref().unwrap_or(listener);
        let mut looked =
            [PollFd::new(listener, PollFlags::IN), PollFd::new(connection, PollFlags::IN)];
        let ready = retry_on_intr(|| poll(&mut looked, Some(&wait)))?;
        let [is_asked, is_told] = [0, 1].map(|at: usize| !looked[at].revents().is_empty());
        if ready == 0 {
            kept.mounts.retain(|_, (_, device)| matches!(is_over(device), Ok(false)));
            if server.is_none() && last_served.elapsed() >= SOCKET {
                kept.socket = None;
            }
            if kept.mounts.is_empty() && kept.socket.is_none() && server.is_none() {
                return Ok(());
            }
            if server.is_some() {
                look_at(&kept, &mut looks);
            }
            if stands_in {
                let stand_in = stand_in
                    .get_or_insert_with(|| StandIn::new(kept.stores().map(|(_, device)| device)));
                // An error means that the session is over.
                kept.stores().for_each(|(_, device)| drop(stand_in.answer(device)));
            } else {
                stand_in = None;
            }
        } else if is_asked {
            // One that comes later takes over.
            server = accepted(listener).or(server);
            (stand_in, looks) = (None, BTreeMap::new());
        } else if is_told
            && let Some(connection) = &server
            && !matches!(serve(connection, &mut kept), Ok(true))
        {
            (server, looks) = (None, BTreeMap::new());
            last_served = Instant::now();
        }
    }
}

/// Looks whether the server answers the requests for stores.
fn look_at(kept: &Kept, looks: &mut BTreeMap<PathBuf, MountLook>) {
    looks.retain(|point, _| kept.stores().any(|(mount, _)| mount.point == *point));
    for (HeldMount { point, .. }, _) in kept.stores() {
        if !looks.contains_key(point) {
            // If there cannot be another thread, it is started later.
            looks.extend(MountLook::start(point.clone()).map(|look| (point.clone(), look)));
        }
    }
    looks.values().for_each(|look| _ = look.look());
}

/// A connection of this user.
fn accepted(listener: &OwnedFd) -> Option<OwnedFd> {
    let connection = accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    set_socket_timeout(&connection, Timeout::Send, Some(ANSWER)).ok()?;
    let user = socket_peercred(&connection).ok()?.uid;
    (user == geteuid()).then_some(connection)
}

/// Does what the next message asks. Returns whether there was one.
fn serve(connection: &OwnedFd, kept: &mut Kept) -> io::Result<bool> {
    match receive(connection.as_fd())? {
        None => return Ok(false),
        Some((KeeperOrder::Keep(mount), Some(device))) if is_fuse(&device)? => {
            kept.mounts.insert(mount.name.clone(), (mount, device));
        }
        Some((KeeperOrder::Keep(_), _)) => {}
        Some((KeeperOrder::KeepSocket, socket)) => kept.socket = socket,
        Some((KeeperOrder::Release(name), _)) => {
            kept.mounts.remove(&name);
        }
        Some((KeeperOrder::List, _)) => {
            for (mount, device) in kept.mounts.values() {
                send(connection.as_fd(), &KeeperAnswer::Kept(mount.clone()), Some(device.as_fd()))?;
            }
            if let Some(socket) = &kept.socket {
                send(connection.as_fd(), &KeeperAnswer::Socket, Some(socket.as_fd()))?;
            }
            send(connection.as_fd(), &KeeperAnswer::End, None)?;
        }
    }
    Ok(true)
}

/// Sends a message.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_MESSAGE {
        return Err(io::Error::other(format!("a message of {} bytes", bytes.len())));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives a message. None if the other side has ended. One that is not understood is an error.
pub(super) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let (length, descriptor) = received(socket, &mut bytes)?;
    if length == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..length])?, descriptor)))
}

/// The length of a message, and the descriptor that came with it.
pub(super) fn received(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        let mut parts = [IoSliceMut::new(bytes)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?.bytes,
        }
    };
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    Ok((length, descriptor))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::net::{AddressFamily, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn messages_carry_a_document_and_a_descriptor() {
        let (here, far) = pair();
        let mount = HeldMount {
            name: "7".into(),
            point: "/point".into(),
            device: (0, 63),
            tree: Some(Digest::sha256(b"tree")),
        };
        let file = OwnedFd::from(File::open("/dev/null").unwrap());
        send(here.as_fd(), &KeeperOrder::Keep(mount.clone()), Some(file.as_fd())).unwrap();
        send(here.as_fd(), &KeeperOrder::List, None).unwrap();
        drop(here);
        let (first, descriptor) = receive(far.as_fd()).unwrap().unwrap();
        assert!(
            matches!(first, KeeperOrder::Keep(received) if received == mount)
                && descriptor.is_some()
        );
        assert!(matches!(receive(far.as_fd()).unwrap(), Some((KeeperOrder::List, None))));
        assert!(receive::<KeeperOrder>(far.as_fd()).unwrap().is_none());
    }

    #[test]
    fn only_fuse_devices_are_kept() {
        let (here, far) = pair();
        let mut kept = Kept::default();
        let mount = |name: &str| HeldMount {
            name: name.into(),
            point: "/point".into(),
            device: (0, 63),
            tree: None,
        };
        let file = OwnedFd::from(File::open("/dev/null").unwrap());
        send(here.as_fd(), &KeeperOrder::Keep(mount("file")), Some(file.as_fd())).unwrap();
        send(here.as_fd(), &KeeperOrder::Keep(mount("none")), None).unwrap();
        for _ in 0..2 {
            assert!(serve(&far, &mut kept).unwrap());
        }
        assert!(kept.mounts.is_empty());
        let Ok(device) = super::super::open_device() else { return };
        for order in [KeeperOrder::Keep(mount("device")), KeeperOrder::List] {
            let device = matches!(order, KeeperOrder::Keep(_)).then(|| device.as_fd());
            send(here.as_fd(), &order, device).unwrap();
            assert!(serve(&far, &mut kept).unwrap());
        }
        let answer = receive(here.as_fd()).unwrap().unwrap();
        assert!(matches!(answer, (KeeperAnswer::Kept(kept), Some(_)) if kept == mount("device")));
        assert!(matches!(receive(here.as_fd()).unwrap(), Some((KeeperAnswer::End, None))));
        send(here.as_fd(), &KeeperOrder::Release("device".into()), None).unwrap();
        assert!(serve(&far, &mut kept).unwrap() && kept.mounts.is_empty());
    }
}
