//! One entry of a tar, as Go's archive/tar reports it.

use super::sparse_map::SparseMap;
use super::{OwnerName, PaxText};
use crate::offset::Uncompressed;
use crate::time::Time;

/// The fields of Go's tar.Header, and the position of the entry. Numbers have Go's widths; their
/// values are checked elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The path as written in the tar: not cleaned, not checked, in any encoding.
    pub name: Box<[u8]>,
    /// The type of the entry.
    pub kind: Kind,
    /// The target of a link as written in the tar.
    pub linkname: Box<[u8]>,
    /// The size of the data that the header claims, in bytes, even if the type has no data.
    pub size: i64,
    /// The raw field, including type bits.
    pub mode: i64,
    /// The owner's user id.
    pub uid: i64,
    /// The group id.
    pub gid: i64,
    /// The owner's name. May be empty.
    pub uname: OwnerName,
    /// The group's name. May be empty.
    pub gname: OwnerName,
    /// The modification time.
    pub mtime: Time,
    /// The major number of a device.
    pub devmajor: i64,
    /// The minor number of a device.
    pub devminor: i64,
    /// The records of the entry's last PAX header, sorted by key, one per key.
    pub pax: Box<[PaxRecord]>,
    /// The map of a sparse file, unless the walk ends there.
    pub sparse: Option<SparseMap>,
    /// Where the entry's first header block, of any kind, starts.
    pub header: Uncompressed,
    /// Where the entry's data starts, or would start; of a sparse file, the stored data.
    pub data: Uncompressed,
}

/// A record of a PAX extended header.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PaxRecord {
    /// The key, such as `SCHILY.xattr.security.capability`.
    pub key: PaxText,
    /// The value, which may be any bytes.
    pub value: PaxText,
}

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file with content.
    Regular,
    /// A further name of an earlier file.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A PAX global header, which Go reports as an entry. Of its fields, only the name is given.
    GlobalHeader,
    /// A sparse file of any GNU format. The walk ends here, or the entry has a map.
    Sparse,
    /// Any other type flag.
    Other(u8),
}

impl Kind {
    /// Whether Go reads no data for this type regardless of its size (archive/tar
    /// isHeaderOnlyType).
    pub fn is_header_only(self) -> bool {
        use Kind::{BlockDevice, CharDevice, Directory, Fifo, HardLink, Symlink};
        matches!(self, HardLink | Symlink | CharDevice | BlockDevice | Directory | Fifo)
    }

    pub(super) fn from_flag(flag: u8) -> Kind {
        match flag {
            b'0' => Kind::Regular,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::CharDevice,
            b'4' => Kind::BlockDevice,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            b'g' => Kind::GlobalHeader,
            other => Kind::Other(other),
        }
    }
}
