//! A process that keeps the FUSE devices of mounts open. The mounts outlive their server then: the
//! kernel's side of a mount lives as long as a process has its device open (see `handover`).
//!
//! The keeper does little else, so that nothing but its own end loses the mounts: it stands in for
//! the server of a store (see `stand_in`). It listens on a socket in the directory of the server
//! that started it. Each message is one JSON document, with at most one descriptor.

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
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::device::{is_fuse, is_over};
use super::stand_in::StandIn;
use ociseek_format::digest::Digest;

/// How often a keeper looks whether mounts are gone, with and without a server. Waiting for that in
/// poll(2) would wake it with each request.
const LOOK: Duration = Duration::from_secs(60);
const LOOK_ALONE: Duration = Duration::from_secs(2);
/// For how long a store has no server until the keeper stands in for it, and how often it looks
/// for requests then.
const PATIENCE: Duration = Duration::from_secs(3);
const STAND_IN: Duration = Duration::from_millis(50);
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
    /// Close the device of this name.
    Release(String),
    /// KeeperAnswer all mounts with their devices, and then the end.
    List,
}

/// What the keeper answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeeperAnswer {
    Kept(HeldMount),
    End,
}

/// Keeps the devices that come on the socket `listener`, which is not listening yet. Returns when
/// there is neither a server nor a mount.
///
/// # Errors
/// If the socket fails.
pub fn keep_devices(listener: &OwnedFd) -> io::Result<()> {
    // The server sees by this call who keeps its devices (unix(7), SO_PEERCRED).
    listen(listener, 4)?;
    let mut kept = BTreeMap::new();
    let mut server: Option<OwnedFd> = None;
    let mut last_served = Instant::now();
    let mut stand_in = None;
    loop {
        let has_store = kept.values().any(|(mount, _): &(HeldMount, _)| mount.tree.is_none());
        let is_alone = server.is_none() && has_store && last_served.elapsed() >= PATIENCE;
        let (wait, connection) = match &server {
            Some(server) => (LOOK, server.as_fd()),
            None if is_alone => (STAND_IN, listener.as_fd()),
            None => (LOOK_ALONE, listener.as_fd()),
        };
        let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
        let mut looked = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(connection, PollFlags::IN),
        ];
        let ready = retry_on_intr(|| poll(&mut looked, Some(&wait)))?;
        let [is_asked, is_told] = [0, 1].map(|at: usize| !looked[at].revents().is_empty());
        if ready == 0 {
            kept.retain(|_, (_, device)| matches!(is_over(device), Ok(false)));
            if kept.is_empty() && server.is_none() {
                return Ok(());
            }
            if is_alone {
                let stores = kept.values().filter(|(mount, _)| mount.tree.is_none());
                let stand_in = stand_in.get_or_insert_with(StandIn::new);
                // An error means that the session is over.
                stores.for_each(|(_, device)| drop(stand_in.answer(device)));
            }
        } else if is_asked {
            // One that comes later takes over.
            server = accepted(listener).or(server);
            stand_in = None;
        } else if is_told
            && let Some(connection) = &server
            && !matches!(serve(connection, &mut kept), Ok(true))
        {
            server = None;
            last_served = Instant::now();
        }
    }
}

/// A connection of this user.
fn accepted(listener: &OwnedFd) -> Option<OwnedFd> {
    let connection = accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    set_socket_timeout(&connection, Timeout::Send, Some(ANSWER)).ok()?;
    let user = socket_peercred(&connection).ok()?.uid;
    (user == geteuid()).then_some(connection)
}

/// Does what the next message asks. Returns whether there was one.
fn serve(
    connection: &OwnedFd,
    kept: &mut BTreeMap<String, (HeldMount, OwnedFd)>,
) -> io::Result<bool> {
    match receive(connection.as_fd())? {
        None => return Ok(false),
        Some((KeeperOrder::Keep(mount), Some(device))) if is_fuse(&device)? => {
            kept.insert(mount.name.clone(), (mount, device));
        }
        Some((KeeperOrder::Keep(_), _)) => {}
        Some((KeeperOrder::Release(name), _)) => {
            kept.remove(&name);
        }
        Some((KeeperOrder::List, _)) => {
            for (mount, device) in kept.values() {
                send(connection.as_fd(), &KeeperAnswer::Kept(mount.clone()), Some(device.as_fd()))?;
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
        let (here, there) = pair();
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
        let (first, descriptor) = receive(there.as_fd()).unwrap().unwrap();
        assert!(
            matches!(first, KeeperOrder::Keep(received) if received == mount)
                && descriptor.is_some()
        );
        assert!(matches!(receive(there.as_fd()).unwrap(), Some((KeeperOrder::List, None))));
        assert!(receive::<KeeperOrder>(there.as_fd()).unwrap().is_none());
    }

    #[test]
    fn only_fuse_devices_are_kept() {
        let (here, there) = pair();
        let mut kept = BTreeMap::new();
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
            assert!(serve(&there, &mut kept).unwrap());
        }
        assert!(kept.is_empty());
        let Ok(device) = super::super::open_device() else { return };
        for order in [KeeperOrder::Keep(mount("device")), KeeperOrder::List] {
            let device = matches!(order, KeeperOrder::Keep(_)).then(|| device.as_fd());
            send(here.as_fd(), &order, device).unwrap();
            assert!(serve(&there, &mut kept).unwrap());
        }
        let answer = receive(here.as_fd()).unwrap().unwrap();
        assert!(matches!(answer, (KeeperAnswer::Kept(kept), Some(_)) if kept == mount("device")));
        assert!(matches!(receive(here.as_fd()).unwrap(), Some((KeeperAnswer::End, None))));
        send(here.as_fd(), &KeeperOrder::Release("device".into()), None).unwrap();
        assert!(serve(&there, &mut kept).unwrap() && kept.is_empty());
    }
}
