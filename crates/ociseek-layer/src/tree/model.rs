//! What the tree says of one file.

use crate::offset::{LayerId, Uncompressed};
use crate::time::Time;

/// The number of a file, link or directory in its [`Tree`](super::Tree); the root is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// One inode. Hard links are several names of one of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What it is, with what only this kind has.
    pub kind: NodeKind,
    /// Permissions, setuid, setgid and sticky: 0o7777 at most.
    pub mode: u32,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// The epoch for the root and for directories that no layer has an entry for.
    pub mtime: Time,
    /// Names of a file; of a directory, 2 and its subdirectories.
    pub nlink: u32,
    /// Sorted by name; each name is there once.
    pub xattrs: Box<[Xattr]>,
    /// Which entry the attributes come from. None for the root and for directories that no layer has an entry for.
    pub origin: Option<Origin>,
}

/// Name and value of an extended attribute.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// The types of inodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeKind {
    /// A directory, with the names in it.
    Directory(Directory),
    /// A file, with where its content lies.
    File(Extent),
    /// A regular file whose bytes cannot be read: a sparse one, as a tar holds it.
    Sparse {
        /// The layer that has it.
        layer: LayerId,
        /// In bytes.
        size: u64,
    },
    /// Where it points to: bytes for the kernel, which are followed nowhere in here but in
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

/// Where a directory's names are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// In [`Tree`](super::Tree)'s list of names.
    pub(super) names: std::ops::Range<u32>,
    pub(super) parent: NodeId,
}

/// Where a file's bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The layer that has them.
    pub layer: LayerId,
    /// In the layer's tar.
    pub offset: Uncompressed,
    /// In bytes.
    pub size: u64,
}

/// An entry of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The layer that has it.
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
