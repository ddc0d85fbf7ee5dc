//! Answers for a store whose server was killed and is not back yet, or hangs.
//!
//! podman looks into the directory of a store in each command, also for images that it has pulled.
//! Without an answer, every command would wait. Containers use only files inside of layers: their
//! requests wait for the server. One that hangs may go on at any time: each request is read by one
//! process, and the kernel takes the first answer to it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{getegid, geteuid};

use super::handover::resend;
use super::store::is_of_store;

/// The length of a `fuse_in_header`, from the kernel's `include/uapi/linux/fuse.h`, as are all
/// numbers here.
const HEADER: usize = 40;
/// A server may allow as much in one request (`max_write`), and a smaller buffer is refused.
const LARGEST: usize = (16 << 20) + 4096;
/// How many requests of a store are looked at before other things.
const AT_ONCE: usize = 1024;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const ACCESS: u32 = 34;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const READDIRPLUS: u32 = 44;

/// The inode number of the root.
const ROOT: u64 = 1;
const EIO: i32 = 5;
const ENOMEM: i32 = 12;

/// What answers the requests for a store's own directories.
pub(super) struct StandIn {
    buffer: Vec<u8>,
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
enum Reaction {
    Answer(Vec<u8>),
    Refuse(i32),
    /// It has no answer.
    Drop,
    /// It waits for a server.
    Hold,
}

impl StandIn {
    /// Begins to stand in for the server of these devices.
    pub(super) fn new<'a>(devices: impl Iterator<Item = &'a OwnedFd>) -> StandIn {
        // What the server has read and not answered. An error means that the session is over.
        devices.for_each(|device| drop(device.try_clone().and_then(resend)));
        StandIn { buffer: vec![0; LARGEST] }
    }

    /// Answers what waits now, and returns at once.
    pub(super) fn answer(&mut self, device: &OwnedFd) -> io::Result<()> {
        let mut file = File::from(device.try_clone()?);
        let flags = fcntl_getfl(&file)?;
        // A request can be gone before it is read.
        fcntl_setfl(&file, flags | OFlags::NONBLOCK)?;
        let held = self.answer_all(&mut file);
        fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
        // A process that waits can be killed only as long as nobody has read its request.
        if held? { resend(file.into()) } else { Ok(()) }
    }

    /// Returns whether requests were read that wait for a server.
    fn answer_all(&mut self, device: &mut File) -> io::Result<bool> {
        let mut has_held = false;
        for _ in 0..AT_ONCE {
            let length = match device.read(&mut self.buffer) {
                Ok(length) => length,
                // ENOENT: it was interrupted while it was read.
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::NotFound => continue,
                    io::ErrorKind::WouldBlock => break,
                    _ => return Err(error),
                },
            };
            let Some((unique, reaction)) = reaction(&self.buffer[..length]) else { continue };
            match reaction {
                Reaction::Answer(body) => reply(device, unique, 0, &body),
                Reaction::Refuse(error) => reply(device, unique, error, &[]),
                Reaction::Drop => {}
                Reaction::Hold => has_held = true,
            }
        }
        Ok(has_held)
    }
}

/// Writes a `fuse_out_header` and what follows.
fn reply(device: &mut File, unique: u64, error: i32, body: &[u8]) {
    let length = u32::try_from(16 + body.len()).unwrap_or(16);
    let mut message = Vec::from(length.to_ne_bytes());
    message.extend((-error).to_ne_bytes());
    message.extend(unique.to_ne_bytes());
    message.extend(body);
    // Nobody waits for it any more.
    let _ = device.write(&message);
}

/// The number of a request, and what to do with it.
fn reaction(request: &[u8]) -> Option<(u64, Reaction)> {
    let header = request.get(..HEADER)?;
    let word = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(header.get(at..at + 8)?.try_into().ok()?));
    let (code, unique, node) = (word(4)?, long(8)?, long(16)?);
    let reaction = match code {
        FORGET | BATCH_FORGET | INTERRUPT => Reaction::Drop,
        _ if !is_of_store(node) => Reaction::Hold,
        GETATTR if node == ROOT => Reaction::Answer(root()),
        // A server has a length of names, by which `answering` knows it.
        STATFS => Reaction::Answer(vec![0; 80]),
        OPENDIR => Reaction::Answer(vec![0; 16]),
        READDIR | READDIRPLUS | ACCESS | RELEASE | RELEASEDIR => Reaction::Answer(Vec::new()),
        // With any other error, the kernel would forget what it knows, below containers
        // (fs/fuse/dir.c, fuse_dentry_revalidate).
        LOOKUP => Reaction::Refuse(ENOMEM),
        _ => Reaction::Refuse(EIO),
    };
    Some((unique, reaction))
}

/// The attributes of the root, a `fuse_attr_out` that is valid for no time.
fn root() -> Vec<u8> {
    let mode = 0o040_700;
    let links = 2;
    let block = 4096;
    let long = [0, 0, ROOT, 0, 0, 0, 0, 0];
    let short = [0, 0, 0, mode, links, geteuid().as_raw(), getegid().as_raw(), 0, block, 0];
    let long = long.into_iter().flat_map(u64::to_ne_bytes);
    long.chain(short.into_iter().flat_map(u32::to_ne_bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(code: u32, node: u64) -> Vec<u8> {
        let mut request = vec![0; HEADER];
        request[..4].copy_from_slice(&(HEADER as u32).to_ne_bytes());
        request[4..8].copy_from_slice(&code.to_ne_bytes());
        request[8..16].copy_from_slice(&77_u64.to_ne_bytes());
        request[16..24].copy_from_slice(&node.to_ne_bytes());
        request
    }

    #[test]
    fn only_what_a_container_asks_waits() {
        const READ: u32 = 15;
        const MKNOD: u32 = 8;
        let layer = (7 << 32) | u64::from(u32::MAX);
        let reactions = [
            (LOOKUP, ROOT, Reaction::Refuse(ENOMEM)),
            (LOOKUP, layer, Reaction::Refuse(ENOMEM)),
            (STATFS, ROOT, Reaction::Answer(vec![0; 80])),
            (READDIR, 2, Reaction::Answer(Vec::new())),
            (GETATTR, layer, Reaction::Refuse(EIO)),
            (MKNOD, layer, Reaction::Refuse(EIO)),
            (FORGET, 7 << 32 | 5, Reaction::Drop),
            (LOOKUP, 7 << 32 | 1, Reaction::Hold),
            (READ, 7 << 32 | 5, Reaction::Hold),
        ];
        for (code, node, expected) in reactions {
            assert_eq!(reaction(&request(code, node)), Some((77, expected)), "{code} {node}");
        }
        assert_eq!(reaction(&[0; 39]), None);
        let Some((77, Reaction::Answer(attributes))) = reaction(&request(GETATTR, ROOT)) else {
            panic!("the root has attributes");
        };
        assert_eq!(attributes.len(), 104);
    }
}
