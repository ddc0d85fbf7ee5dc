//! Replaces a server that was killed: a new process continues on its FUSE device.
//!
//! The kernel's side of a mount lives as long as a descriptor of its device is open anywhere. A
//! process that keeps one can start another server on it: open files stay open, and requests wait
//! meanwhile. The kernel repeats those that the killed server had read and not answered
//! (`FUSE_NOTIFY_RESEND`, Linux 6.9).

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use fuser::{Config, Filesystem, Session, SessionACL};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{DupFlags, dup3};

use super::host::Release;
use super::memory::keep_large_blocks_apart;
use ociseek_format::digest::{Algorithm, Digest, Hasher};
use ociseek_format::tree::{NodeId, Tree};

/// A FUSE device that another process keeps open, too.
#[derive(Debug, Clone)]
pub struct KeptDevice {
    /// The device.
    pub device: Arc<OwnedFd>,
    /// If it is mounted already: what identifies the tree that the kernel knows
    /// ([`tree_identity`]).
    pub mounted: Option<Digest>,
}

/// The first version of Linux that has requests sent again to another server.
const CAN_RESEND: Release = Release(6, 9);

/// Whether a server that was killed can be replaced with this kernel.
pub fn can_take_over() -> bool {
    Release::here() >= CAN_RESEND
}

/// `FUSE_NOTIFY_RESEND`, from the kernel's `include/uapi/linux/fuse.h`.
const NOTIFY_RESEND: u32 = 7;

/// The start of a session, as a kernel would send it: a `fuse_in_header` and a `fuse_init_in`.
///
/// The capabilities are those that our file systems look at and that every kernel with
/// `FUSE_NOTIFY_RESEND` has.
fn init_request() -> Vec<u8> {
    const FUSE_INIT: u32 = 26;
    const FUSE_NO_OPEN_SUPPORT: u32 = 1 << 17;
    const FUSE_NO_OPENDIR_SUPPORT: u32 = 1 << 24;
    const LEN: u32 = 40 + 64;
    let header = [LEN, FUSE_INIT, 1, 0, 0, 0, 0, 0, 0, 0];
    let version = [7, 40];
    let max_readahead = 128 << 10;
    let flags = FUSE_NO_OPEN_SUPPORT | FUSE_NO_OPENDIR_SUPPORT;
    let words = header.into_iter().chain(version).chain([max_readahead, flags]).chain([0; 12]);
    words.flat_map(u32::to_ne_bytes).collect()
}

/// A session on a `device` that another process has initialized.
///
/// # Errors
/// If the kernel cannot send requests again: it is older than 6.9, or the mount is gone.
pub(super) fn take_over<F: Filesystem>(
    filesystem: F,
    device: OwnedFd,
    acl: SessionACL,
    config: Config,
) -> io::Result<Session<F>> {
    keep_large_blocks_apart();
    // fuser begins each session with a handshake, and this device has had one. So the session is
    // made on a socket, and the device replaces it afterwards.
    let (kernel, server) = UnixDatagram::pair()?;
    kernel.send(&init_request())?;
    let session = Session::from_fd(filesystem, server.into(), acl, config)?;
    // The keeper may have been killed while it stood in.
    fcntl_setfl(&device, fcntl_getfl(&device)? - OFlags::NONBLOCK)?;
    exchange(&session, &device)?;
    resend(device)?;
    Ok(session)
}

/// Replaces the session's descriptor by `device`.
#[allow(unsafe_code, reason = "the session does not give away its descriptor")]
fn exchange(session: &Session<impl Filesystem>, device: &OwnedFd) -> io::Result<()> {
    // SAFETY: The session owns the descriptor and keeps it open, and it is never closed here. No
    // other thread uses it before the session is spawned.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(session.as_fd().as_raw_fd()) });
    Ok(dup3(device, &mut place, DupFlags::CLOEXEC)?)
}

/// Has the kernel send the requests again that nobody has answered.
pub(super) fn resend(device: OwnedFd) -> io::Result<()> {
    // A `fuse_out_header`: its length, the kind of notification, and no request that it answers.
    let header = [16, NOTIFY_RESEND, 0, 0];
    let header: Vec<u8> = header.into_iter().flat_map(u32::to_ne_bytes).collect();
    File::from(device).write_all(&header)
}

/// Identifies what the kernel may have cached of a tree: which name has which inode number, and the
/// attributes. Another tree must not continue with the mount of this one.
pub fn tree_identity(tree: &Tree) -> Digest {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    for id in 0..u32::try_from(tree.len()).unwrap_or(u32::MAX) {
        let node = tree.node(NodeId(id));
        let fields =
            [node.mode, node.uid, node.gid, node.nlink, u32::from(node.kind.is_directory())];
        fields.iter().for_each(|field| hasher.update(&field.to_be_bytes()));
        hasher.update(&node.kind.size().to_be_bytes());
        for (name, child) in tree.children(NodeId(id)) {
            hasher.update(&(name.len() as u64).to_be_bytes());
            hasher.update(name);
            hasher.update(&child.0.to_be_bytes());
        }
    }
    hasher.finish()
}
