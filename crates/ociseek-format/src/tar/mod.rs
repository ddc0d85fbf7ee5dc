//! Parses tar entries with the semantics of Go's archive/tar (Go 1.26, reader.go), which both
//! builders and consumers of SOCI indexes use. Rules that look odd are Go's. This file defines an
//! entry, and `walker` finds entries.

mod header;
mod pax;
mod walker;

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

pub(crate) use header::has_valid_checksum;
pub use walker::{TarError, TarFault, Walker};

use crate::copy::copy_short;
use crate::offset::Uncompressed;
use crate::time::Time;

/// The unit of a tar stream, in bytes.
pub const BLOCK: usize = 512;

/// The number of padding bytes after `size` bytes of data.
#[inline]
pub fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

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
    pub(crate) fn is_header_only(self) -> bool {
        use Kind::{BlockDevice, CharDevice, Directory, Fifo, HardLink, Symlink};
        matches!(self, HardLink | Symlink | CharDevice | BlockDevice | Directory | Fifo)
    }

    fn from_flag(flag: u8) -> Kind {
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

/// Any bytes. Up to `SHORT` of them take no separate allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct ShortText<const SHORT: usize>(Text<SHORT>);

/// The name of an owner or a group: rarely more than `root` or `systemd-network`. It has the size
/// of one `Box<[u8]>`.
pub type OwnerName = ShortText<14>;

/// The key or the value of a PAX record, most often `mtime` and a time with fractions of a second.
pub type PaxText = ShortText<22>;

#[derive(Clone, PartialEq, Eq)]
enum Text<const SHORT: usize> {
    /// The bytes after the length are 0.
    Short { length: u8, bytes: [u8; SHORT] },
    /// Two allocations, so that the common case is small.
    Long(Box<Box<[u8]>>),
}

impl<const SHORT: usize> ShortText<SHORT> {
    /// The longest text without a separate allocation, in bytes.
    pub const SHORT: usize = SHORT;
}

impl<const SHORT: usize> Default for ShortText<SHORT> {
    fn default() -> Self {
        ShortText(Text::Short { length: 0, bytes: [0; SHORT] })
    }
}

impl<const SHORT: usize> std::ops::Deref for ShortText<SHORT> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Text::Short { length, bytes } => &bytes[..usize::from(*length)],
            Text::Long(bytes) => bytes,
        }
    }
}

impl<const SHORT: usize> From<&[u8]> for ShortText<SHORT> {
    fn from(text: &[u8]) -> Self {
        let mut bytes = [0; SHORT];
        ShortText(match bytes.get_mut(..text.len()) {
            Some(start) => {
                copy_short(start, text);
                Text::Short { length: text.len() as u8, bytes }
            }
            None => Text::Long(Box::new(text.into())),
        })
    }
}

impl<const SHORT: usize, const N: usize> From<[u8; N]> for ShortText<SHORT> {
    fn from(text: [u8; N]) -> Self {
        text[..].into()
    }
}

impl<const SHORT: usize> Ord for ShortText<SHORT> {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(other)
    }
}

impl<const SHORT: usize> PartialOrd for ShortText<SHORT> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const SHORT: usize> std::fmt::Debug for ShortText<SHORT> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

/// Which parts of a file a tar stores. They lie one after the other in the tar; everything else
/// is zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseMap {
    size: u64,
    /// In order, without overlaps. None is empty.
    parts: Arc<[Part]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    start: u64,
    end: u64,
    /// The number of bytes of the parts before it.
    stored: u64,
}

/// A part of a range of a sparse file that the tar stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    /// Its bytes in the file.
    pub file: Range<u64>,
    /// Where they begin in the stored bytes.
    pub stored: u64,
}

impl SparseMap {
    /// A map of a file of `size` bytes, of the offsets and lengths of its parts. None if they are
    /// not in order or not in the file (archive/tar validateSparseEntries).
    pub fn new(size: u64, parts: impl IntoIterator<Item = (u64, u64)>) -> Option<SparseMap> {
        if size > i64::MAX as u64 {
            return None;
        }
        let mut all = Vec::new();
        let mut after = 0;
        let mut stored = 0;
        for (start, length) in parts {
            let end = start.checked_add(length).filter(|end| start >= after && *end <= size)?;
            after = end;
            if length > 0 {
                all.push(Part { start, end, stored });
                stored += length;
            }
        }
        Some(SparseMap { size, parts: all.into() })
    }

    /// The size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The number of bytes that the tar stores.
    pub fn stored(&self) -> u64 {
        self.parts.last().map_or(0, |last| last.stored + (last.end - last.start))
    }

    /// The offset and length of each part.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.parts.iter().map(|part| (part.start, part.end - part.start))
    }

    /// The parts that have bytes in `range` of the file, cut to it.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = StoredPart> {
        let first = self.parts.partition_point(|part| part.end <= range.start);
        let parts = self.parts[first..].iter().take_while(move |part| part.start < range.end);
        parts.map(move |part| {
            let file = part.start.max(range.start)..part.end.min(range.end);
            StoredPart { stored: part.stored + (file.start - part.start), file }
        })
    }

    /// The memory that the map takes, in bytes.
    pub fn footprint(&self) -> usize {
        size_of::<SparseMap>() + size_of_val(&*self.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_texts_round_trip() {
        assert_eq!(size_of::<OwnerName>(), size_of::<Box<[u8]>>());
        assert_eq!(size_of::<PaxText>(), 24);
        round_trip::<{ OwnerName::SHORT }>();
        round_trip::<{ PaxText::SHORT }>();
    }

    fn round_trip<const SHORT: usize>() {
        assert_eq!(ShortText::<SHORT>::default(), b""[..].into());
        for length in 0..40 {
            let bytes = vec![b'n'; length];
            let text = ShortText::<SHORT>::from(&bytes[..]);
            assert_eq!(*text, bytes[..]);
            assert_eq!(matches!(text.0, Text::Short { .. }), length <= SHORT);
            assert_eq!(text, text.clone());
            let longer = ShortText::from(&[&bytes[..], b"\0"].concat()[..]);
            assert_ne!(text, longer);
            assert!(text < longer && longer < [b'o'].into());
        }
    }
}
