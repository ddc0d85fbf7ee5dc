//! Files while layers are applied.

use std::collections::BTreeMap;

use super::model::{EntryId, Extent};
use super::xattrs::CAPABILITY;
use crate::offset::LayerId;
use crate::time::Time;

pub(super) struct Inode<'a> {
    pub content: InodeContent<'a>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Time,
    pub xattrs: BTreeMap<&'a [u8], &'a [u8]>,
    /// The number of paths that lead to it.
    pub links: u32,
    pub origin: Option<EntryId>,
}

pub(super) enum InodeContent<'a> {
    Directory,
    File(Extent),
    Sparse { layer: LayerId, size: u64 },
    Symlink(&'a [u8]),
    CharDevice { major: u32, minor: u32 },
    BlockDevice { major: u32, minor: u32 },
    Fifo,
}

impl<'a> Inode<'a> {
    /// A new file as root would create it, before its attributes are set. It has one path.
    pub(super) fn new(content: InodeContent<'a>, gid: u32) -> Inode<'a> {
        let mode = if matches!(content, InodeContent::Symlink(_)) { 0o777 } else { 0o755 };
        Inode { content, mode, uid: 0, gid, mtime: Time::default(), xattrs: BTreeMap::new(), links: 1, origin: None }
    }

    /// A directory that no layer has an entry for.
    pub(super) fn directory(gid: u32) -> Inode<'a> {
        Inode::new(InodeContent::Directory, gid)
    }

    /// lchown(2): an id of 2^32-1 changes nothing, and files lose their capabilities.
    pub(super) fn set_owner(&mut self, uid: u32, gid: u32) {
        if uid != u32::MAX {
            self.uid = uid;
        }
        if gid != u32::MAX {
            self.gid = gid;
        }
        if !matches!(self.content, InodeContent::Directory) {
            self.xattrs.remove(CAPABILITY);
        }
    }
}

/// The time that containerd would set: from the epoch to the last nanosecond that fits into 63 bits
/// (in 2262). Any other time becomes the epoch.
pub(super) fn bounded(time: Option<Time>) -> Time {
    let last = Time { seconds: i64::MAX / 1_000_000_000, nanos: (i64::MAX % 1_000_000_000) as u32 };
    time.filter(|time| (Time::default()..=last).contains(time)).unwrap_or_default()
}

/// The numbers of the device that mknod(2) creates: 12 and 20 bits. None if they do not fit into 32
/// bits.
pub(super) fn device(major: i64, minor: i64) -> Option<(u32, u32)> {
    Some((u32::try_from(major).ok()? & 0xfff, u32::try_from(minor).ok()? & 0xf_ffff))
}
