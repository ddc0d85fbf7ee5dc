//! The nodes of a tree.

use crate::offset::{LayerId, Uncompressed};
use crate::time::Time;

/// The number of a file, link or directory in its [`Tree`](super::Tree). The root is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// An inode. Hard links are several names of one inode.
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
    /// The modification time. It is the epoch for the root and for directories without an entry.
    pub mtime: Time,
    /// The number of names of a file; for a directory, 2 plus its subdirectories.
    pub nlink: u32,
    /// Sorted by name, without duplicates.
    pub xattrs: Box<[Xattr]>,
    /// The entry that the attributes come from. None for the root and for directories without an
    /// entry.
    pub origin: Option<EntryId>,
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
    /// A sparse file, whose bytes cannot be read because of the way a tar stores them.
    Sparse {
        /// The layer of the file.
        layer: LayerId,
        /// The size in bytes.
        size: u64,
    },
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
    pub(super) names: std::ops::Range<u32>,
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

/// An entry of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryId {
    /// The layer of the entry.
    pub layer: LayerId,
    /// Counted from 0 in the order of the layer's tar.
    pub entry: u32,
}

impl NodeKind {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self, NodeKind::Directory(_))
    }
}
