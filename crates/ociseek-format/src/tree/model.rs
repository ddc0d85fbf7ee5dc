//! The nodes of a tree, how they are kept while layers are applied, and the extended attributes
//! that containerd sets on them and Linux accepts.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::offset::{LayerId, Uncompressed};
use crate::tar::{PaxRecord, SparseMap, StoredPart};
use crate::time::Time;

/// A second in nanoseconds.
pub(super) const SECOND: u64 = 1_000_000_000;

/// The number of a file, link or directory in its [`Tree`](super::Tree). The root is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// An inode. Hard links are several names of one inode.
///
/// Images have tens of thousands of them, and a node has many images in memory, so what few files
/// have is elsewhere in the [`Tree`](super::Tree).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The type, with the data that only this type has.
    pub kind: NodeKind,
    /// Permissions, setuid, setgid and sticky bits: at most 0o7777.
    pub mode: u32,
    /// The owner's user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The number of names of a file; for a directory, 2 plus its subdirectories.
    pub nlink: u32,
    /// The layer with the entry that the attributes come from. None for the root and for
    /// directories without an entry.
    pub origin: Option<LayerId>,
    /// The modification time in nanoseconds since 1970.
    pub(super) mtime: u64,
}

// It decides how much memory a mount takes.
const _: () = assert!(size_of::<Node>() == 64);

impl Node {
    /// The modification time, from 1970 to 2262. It is the epoch for the root and for directories
    /// without an entry.
    pub fn mtime(&self) -> Time {
        Time { seconds: (self.mtime / SECOND) as i64, nanos: (self.mtime % SECOND) as u32 }
    }
}

/// The name and value of an extended attribute.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// The types of inodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeKind {
    /// A directory with its names.
    Directory(Directory),
    /// A regular file with the location of its content.
    File(Extent),
    /// A regular file that the tar stores only in part.
    Sparse(Box<SparseExtent>),
    /// The target of a symbolic link: uninterpreted bytes, followed only in
    /// [`Tree::resolve`](super::Tree::resolve).
    Symlink(Box<[u8]>),
    /// A character device.
    CharDevice {
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
}

/// The location of a directory's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Indexes into the names of the [`Tree`](super::Tree).
    pub(super) names: Range<u32>,
    pub(super) parent: NodeId,
}

/// The location of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The layer of the file.
    pub layer: LayerId,
    /// The offset in the layer's tar.
    pub offset: Uncompressed,
    /// The size in bytes.
    pub size: u64,
}

/// The location of a sparse file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseExtent {
    /// The layer of the file.
    pub layer: LayerId,
    /// The offset of the stored bytes in the layer's tar.
    pub offset: Uncompressed,
    /// The bytes of the file that they are.
    pub map: SparseMap,
}

impl Extent {
    /// The bytes of the tar.
    pub fn range(&self) -> Range<Uncompressed> {
        self.offset..Uncompressed(self.offset.0.saturating_add(self.size))
    }
}

impl NodeKind {
    /// The size of a regular file; 0 for all others.
    pub fn size(&self) -> u64 {
        match self {
            NodeKind::File(extent) => extent.size,
            NodeKind::Sparse(file) => file.map.size(),
            _ => 0,
        }
    }

    /// The bytes of the tar from which [`NodeKind::expand`] makes those of `range`, which is a part
    /// of the file. None if this is not a regular file.
    pub fn stored_in(&self, range: Range<u64>) -> Option<Extent> {
        match self {
            NodeKind::File(Extent { layer, offset, .. }) => Some(Extent {
                layer: *layer,
                offset: *offset + range.start,
                size: range.end - range.start,
            }),
            NodeKind::Sparse(file) => {
                let parts = || file.map.within(range.clone());
                let start = parts().next().map_or(0, |first| first.stored);
                let end = parts()
                    .last()
                    .map_or(0, |last| last.stored + (last.file.end - last.file.start));
                Some(Extent { layer: file.layer, offset: file.offset + start, size: end - start })
            }
            _ => None,
        }
    }

    /// The bytes of `range` of a sparse file, made from what the tar stores of it. None if that is
    /// the same.
    pub fn expand(&self, range: Range<u64>, mut stored: &[u8]) -> Option<Vec<u8>> {
        let NodeKind::Sparse(file) = self else { return None };
        let mut expanded = vec![0; (range.end - range.start) as usize];
        for StoredPart { file, .. } in file.map.within(range.clone()) {
            let (part, rest) =
                stored.split_at_checked((file.end - file.start) as usize).unwrap_or((stored, &[]));
            let at = (file.start - range.start) as usize;
            expanded[at..at + part.len()].copy_from_slice(part);
            stored = rest;
        }
        Some(expanded)
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self, NodeKind::Directory(_))
    }
}

pub(super) struct Inodes<'a> {
    /// Without extended attributes, the targets of symbolic links, and what follows from the names
    /// in a directory: those are set at the end.
    pub nodes: Vec<Node>,
    /// The targets of symbolic links, by inode in ascending order.
    pub targets: Vec<(u32, &'a [u8])>,
    /// The extended attributes, by inode and name.
    pub xattrs: BTreeMap<(u32, &'a [u8]), &'a [u8]>,
}

impl<'a> Inodes<'a> {
    /// Contains only the root.
    pub(super) fn new() -> Inodes<'a> {
        Inodes {
            nodes: vec![created(directory_kind(), 0)],
            targets: Vec::new(),
            xattrs: BTreeMap::new(),
        }
    }

    /// lchown(2): an id of 2^32-1 changes nothing, and files lose their capabilities.
    pub(super) fn set_owner(&mut self, inode: u32, uid: u32, gid: u32) {
        let Some(node) = self.nodes.get_mut(inode as usize) else { return };
        if uid != u32::MAX {
            node.uid = uid;
        }
        if gid != u32::MAX {
            node.gid = gid;
        }
        if !node.kind.is_directory() {
            self.xattrs.remove(&(inode, CAPABILITY));
        }
    }

    /// The target of a symbolic link. None for other files.
    pub(super) fn target(&self, inode: u32) -> Option<&'a [u8]> {
        let at = self.targets.binary_search_by_key(&inode, |(link, _)| *link).ok()?;
        Some(self.targets[at].1)
    }
}

/// A directory whose names are not known yet.
pub(super) fn directory_kind() -> NodeKind {
    NodeKind::Directory(Directory { names: 0..0, parent: NodeId(0) })
}

/// A new file as root would create it, before its attributes are set. It has one path.
pub(super) fn created(kind: NodeKind, gid: u32) -> Node {
    let mode = if matches!(kind, NodeKind::Symlink(_)) { 0o777 } else { 0o755 };
    Node { kind, mode, uid: 0, gid, nlink: 1, origin: None, mtime: 0 }
}

/// The time that containerd would set, in nanoseconds: from the epoch to the last nanosecond that
/// fits into 63 bits (in 2262). Any other time becomes the epoch.
pub(super) fn bounded(time: Option<Time>) -> u64 {
    let nanos = |time: Time| {
        let seconds = u64::try_from(time.seconds).ok()?;
        seconds
            .checked_mul(SECOND)?
            .checked_add(time.nanos.into())
            .filter(|nanos| *nanos <= i64::MAX as u64)
    };
    time.and_then(nanos).unwrap_or_default()
}

/// The numbers of the device that mknod(2) creates: 12 and 20 bits. None if they do not fit into 32
/// bits.
pub(super) fn device(major: i64, minor: i64) -> Option<(u32, u32)> {
    Some((u32::try_from(major).ok()? & 0xfff, u32::try_from(minor).ok()? & 0xf_ffff))
}

/// The prefix of the PAX records that containerd takes as extended attributes. It ignores others,
/// such as `LIBARCHIVE.xattr.`.
const PREFIX: &[u8] = b"SCHILY.xattr.";
/// The maximum length of an attribute's name (Linux: XATTR_NAME_MAX).
const NAME_MAX: usize = 255;
pub(super) const CAPABILITY: &[u8] = b"security.capability";

pub(super) enum XattrRule {
    Set,
    /// containerd continues without it.
    Ignore(&'static str),
    /// containerd fails.
    Refuse(&'static str),
}

/// The name and value of a record for an extended attribute.
pub(super) fn xattr_of(record: &PaxRecord) -> Option<(&[u8], &[u8])> {
    Some((record.key.strip_prefix(PREFIX)?, &record.value))
}

/// The outcome of setxattr(2) as root on a file system that supports attributes. `is_plain` means a
/// regular file or directory.
///
/// One outcome differs: Linux refuses values of more than 64 KiB. They are kept here, because the
/// kernel also refuses to read them.
pub(super) fn judge_xattr(name: &[u8], value: &[u8], is_plain: bool) -> XattrRule {
    let (namespace, rest) = match name.iter().position(|&b| b == b'.') {
        Some(dot) => (&name[..dot], &name[dot + 1..]),
        None => (name, &[][..]),
    };
    if name.starts_with(b"trusted.") {
        return XattrRule::Ignore("is trusted");
    }
    if name.is_empty() || name.len() > NAME_MAX {
        return XattrRule::Refuse("whose name is empty or longer than 255 bytes");
    }
    if name.contains(&0) {
        return XattrRule::Refuse("whose name contains a NUL");
    }
    match namespace {
        b"user" | b"security" if rest.is_empty() && name.ends_with(b".") => {
            XattrRule::Refuse("whose name ends early")
        }
        b"user" if !rest.is_empty() && is_plain => XattrRule::Set,
        b"user" if !rest.is_empty() => XattrRule::Ignore("is for files and directories only"),
        b"security" if name == CAPABILITY && !is_capability(value) => {
            XattrRule::Refuse("whose value is not a capability set")
        }
        b"security" if !rest.is_empty() => XattrRule::Set,
        b"system" if matches!(rest, b"posix_acl_access" | b"posix_acl_default") => XattrRule::Set,
        _ => XattrRule::Ignore("has a namespace unknown to Linux"),
    }
}

/// Whether Linux accepts the value (security/commoncap.c validheader): revision 2, or 3 with a root
/// id. Empty values are not checked.
fn is_capability(value: &[u8]) -> bool {
    matches!((value.len(), value.get(3)), (0, None) | (20, Some(2)) | (24, Some(3)))
}
