//! The nodes of a tree.

use std::ops::Range;

use crate::offset::{LayerId, Uncompressed};
use crate::tar::{SparseMap, StoredPart};
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
            NodeKind::File(Extent { layer, offset, .. }) => {
                Some(Extent { layer: *layer, offset: *offset + range.start, size: range.end - range.start })
            }
            NodeKind::Sparse(file) => {
                let parts = || file.map.within(range.clone());
                let start = parts().next().map_or(0, |first| first.stored);
                let end = parts().last().map_or(0, |last| last.stored + (last.file.end - last.file.start));
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
            let (part, rest) = stored.split_at_checked((file.end - file.start) as usize).unwrap_or((stored, &[]));
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
