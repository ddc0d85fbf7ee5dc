//! The ztoc: a layer's table of contents, with the places where decoding can start (format:
//! soci-snapshotter, ztoc/fbs). This file has its contents as Rust types.

mod checkpoints;
mod decode;
mod encode;
mod flatbuffer;

pub use checkpoints::CheckpointsError;
pub use decode::{Head, ZtocError, decode, decode_within, head};
pub(crate) use encode::ZtocParts;
pub use encode::{MAX_ENCODED, encode, encoded_size_bound};
pub use flatbuffer::FlatbufferError;

use crate::codec::WINDOW;
use crate::digest::Digest;
use crate::offset::{Compressed, SpanId, SpanSize, Uncompressed};
use crate::tar::{BLOCK, OwnerName, PaxRecord, PaxText};
use crate::time::Time;

/// The only version of the format.
pub const VERSION: &[u8] = b"0.9";

/// The table of contents of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ztoc {
    /// The version of the ztoc's format, such as `0.9`.
    pub version: Box<[u8]>,
    /// The tool that built the ztoc.
    pub build_tool_identifier: Box<[u8]>,
    /// Size of the blob in bytes.
    pub compressed_size: Compressed,
    /// Where the tar reader stopped, in bytes. Padding after the end of the archive does not count.
    pub uncompressed_size: Uncompressed,
    /// The tar's entries in the tar's order.
    pub files: Vec<FileMetadata>,
    /// Where decoding can start.
    pub checkpoints: Checkpoints,
    /// The SHA-256 of each span's compressed bytes.
    pub span_digests: Vec<Digest>,
}

/// Where decoding can start. There is a checkpoint at the start of each span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checkpoints {
    /// In a gzip blob.
    Gzip {
        /// Minimum number of tar bytes between two checkpoints.
        span_size: SpanSize,
        /// In the order of the blob; the first is its start.
        list: Vec<Checkpoint>,
    },
    /// A plain tar: spans are slices of equal size, and decoding can start anywhere.
    Uncompressed {
        /// The size of a span in bytes. The last span may be shorter.
        span_size: SpanSize,
        /// The size of the tar in bytes.
        size: u64,
    },
}

/// A place in a gzip blob where decoding can start.
#[derive(Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The first byte of the blob without a used bit.
    pub input: Compressed,
    /// The position in the tar where decoding continues.
    pub output: Uncompressed,
    /// How many high bits (0..=7) of the byte before `input` belong to the block that starts here.
    pub bits: u8,
    /// The 32 KiB of output before `output`, oldest first.
    pub window: Box<[u8; WINDOW]>,
}

impl Checkpoint {
    /// The first byte of the blob that a reader needs to decode from here.
    pub fn span_start(&self) -> Compressed {
        Compressed(self.input.0 - u64::from(self.bits != 0))
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Checkpoint { input, output, bits, .. } = self;
        write!(f, "Checkpoint {{ input: {input}, output: {output}, bits: {bits} }}")
    }
}

impl Checkpoints {
    /// Where spans begin.
    pub fn cuts(&self) -> Cuts<'_> {
        match self {
            Checkpoints::Gzip { list, .. } => Cuts::At(list),
            Checkpoints::Uncompressed { span_size, size } => {
                Cuts::Every { span_size: *span_size, size: *size }
            }
        }
    }

    /// The number of spans.
    pub fn spans(&self) -> u64 {
        self.cuts().count()
    }

    /// The least distance between two checkpoints in bytes of the tar, according to the ztoc.
    pub fn span_size(&self) -> SpanSize {
        match self {
            Checkpoints::Gzip { span_size, .. } | Checkpoints::Uncompressed { span_size, .. } => {
                *span_size
            }
        }
    }

    /// Where a span starts, in the blob and in the tar. None past the last span.
    pub fn start(&self, span: SpanId) -> Option<(Compressed, Uncompressed)> {
        self.cuts().start(span)
    }
}

/// Where spans begin.
#[derive(Debug, Clone, Copy)]
pub enum Cuts<'a> {
    /// At the checkpoints of a gzip blob.
    At(&'a [Checkpoint]),
    /// In a tar, at equal distances.
    Every {
        /// The size of a span in bytes.
        span_size: SpanSize,
        /// The size of all spans together, in bytes.
        size: u64,
    },
}

impl Cuts<'_> {
    /// The number of spans.
    pub fn count(&self) -> u64 {
        match self {
            Cuts::At(list) => list.len() as u64,
            Cuts::Every { span_size, size } => size.div_ceil(span_size.get()),
        }
    }

    /// Where a span starts, in the blob and in the tar. None past the last span.
    pub fn start(&self, span: SpanId) -> Option<(Compressed, Uncompressed)> {
        match self {
            Cuts::At(list) => list
                .get(span.0 as usize)
                .map(|checkpoint| (checkpoint.span_start(), checkpoint.output)),
            Cuts::Every { span_size, size } => {
                let start = u64::from(span.0) * span_size.get();
                (start < *size).then_some((Compressed(start), Uncompressed(start)))
            }
        }
    }
}

/// An entry of the layer's tar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileMetadata {
    /// The path as written in the tar.
    pub name: Box<[u8]>,
    /// The type of the entry.
    pub kind: FileKind,
    /// Where the entry's data starts.
    pub offset: Uncompressed,
    /// The size of the content in bytes; 0 unless it is a regular file.
    pub size: u64,
    /// The target of a link as written in the tar.
    pub linkname: Box<[u8]>,
    /// The raw mode field of the tar header.
    pub mode: i64,
    /// The owner's user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The owner's name. May be empty.
    pub uname: OwnerName,
    /// The group's name. May be empty.
    pub gname: OwnerName,
    /// None if the ztoc has no time that RFC 3339 can express.
    pub mtime: Option<Time>,
    /// The major number of a device.
    pub devmajor: i64,
    /// The minor number of a device.
    pub devminor: i64,
    /// All PAX records, sorted by key; the format calls them xattrs.
    pub pax: Box<[PaxRecord]>,
}

impl FileMetadata {
    /// The end of its data, including padding.
    pub(crate) fn data_end(&self) -> Uncompressed {
        Uncompressed((self.offset.0 + self.size).next_multiple_of(BLOCK as u64))
    }

    /// Approximate memory use in bytes.
    pub fn footprint(&self) -> usize {
        let texts = text_footprint(self.name.len()) + text_footprint(self.linkname.len());
        let owner = |name: &OwnerName| short_footprint::<{ OwnerName::SHORT }>(name.len());
        let owners = owner(&self.uname) + owner(&self.gname);
        let records: usize = self.pax.iter().map(record_footprint).sum();
        size_of::<FileMetadata>() + texts + owners + records
    }
}

/// The memory of a PAX record.
fn record_footprint(record: &PaxRecord) -> usize {
    let text = |text: &PaxText| short_footprint::<{ PaxText::SHORT }>(text.len());
    size_of::<PaxRecord>() + text(&record.key) + text(&record.value)
}

/// The heap memory of a text of this many bytes.
pub(crate) fn text_footprint(length: usize) -> usize {
    /// The smallest allocation, and the overhead of each.
    const LEAST: usize = 32;
    const HEAD: usize = 16;
    if length == 0 { 0 } else { LEAST.max(length.saturating_add(HEAD)) }
}

/// The heap memory of a [`ShortText`](crate::tar::ShortText) of this many bytes.
pub(crate) fn short_footprint<const SHORT: usize>(length: usize) -> usize {
    if length <= SHORT {
        0
    } else {
        text_footprint(size_of::<Box<[u8]>>()) + text_footprint(length)
    }
}

/// The entry types that a ztoc can express.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileKind {
    /// A file with content.
    #[default]
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A further name of an earlier file.
    HardLink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
}

impl FileKind {
    const NAMES: [(FileKind, &'static str); 7] = [
        (FileKind::Regular, "reg"),
        (FileKind::Directory, "dir"),
        (FileKind::Symlink, "symlink"),
        (FileKind::HardLink, "hardlink"),
        (FileKind::CharDevice, "char"),
        (FileKind::BlockDevice, "block"),
        (FileKind::Fifo, "fifo"),
    ];

    /// The type's name in a ztoc.
    pub fn name(self) -> &'static str {
        FileKind::NAMES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// The type with this name in a ztoc.
    pub(crate) fn from_name(name: &[u8]) -> Option<FileKind> {
        FileKind::NAMES.iter().find(|(_, known)| known.as_bytes() == name).map(|(kind, _)| *kind)
    }
}

/// What is wrong with the bytes of a file. Entries are given by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentFault {
    /// Two files share bytes.
    Overlap {
        /// The entry that comes first.
        one: usize,
        /// The entry after it.
        other: usize,
    },
    /// The file extends past the end of the tar.
    PastEnd {
        /// Its entry.
        entry: usize,
    },
}

/// Checks that files follow one another within a tar that ends at `end`: each starts at or after
/// the end of the one before it.
///
/// `entries` are numbered. Readers who rely on the order of the tar pass them as they are; who does
/// not sorts them by offset first. Entries without bytes are ignored.
///
/// # Errors
/// For the first file that is not valid.
pub fn check_extents<'a>(
    entries: impl IntoIterator<Item = (usize, &'a FileMetadata)>,
    end: Uncompressed,
) -> Result<(), ExtentFault> {
    let mut previous = 0;
    let mut previous_end = 0;
    for (entry, file) in entries {
        if file.kind != FileKind::Regular || file.size == 0 {
            continue;
        }
        if file.offset.0 < previous_end {
            return Err(ExtentFault::Overlap { one: previous, other: entry });
        }
        (previous, previous_end) = (entry, file.offset.0.saturating_add(file.size));
        if previous_end > end.0 {
            return Err(ExtentFault::PastEnd { entry });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_of_owners_count_in_full() {
        let with = |uname: &[u8]| FileMetadata {
            name: (*b"name").into(),
            kind: FileKind::Regular,
            offset: Uncompressed(0),
            size: 0,
            linkname: Box::default(),
            mode: 0,
            uid: 0,
            gid: 0,
            uname: uname.into(),
            gname: OwnerName::default(),
            mtime: None,
            devmajor: 0,
            devminor: 0,
            pax: Box::default(),
        };
        let without = with(b"").footprint();
        assert_eq!(with(&[b'n'; OwnerName::SHORT]).footprint(), without);
        // The name, and the pointer to it, with what the allocator adds.
        assert_eq!(with(&[b'n'; OwnerName::SHORT + 1]).footprint(), without + 32 + 32);
        assert_eq!(with(&[b'n'; 1000]).footprint(), without + 32 + 1016);
    }

    fn file(offset: u64, size: u64) -> FileMetadata {
        let name = b"file"[..].into();
        let offset = Uncompressed(offset);
        FileMetadata { name, offset, size, ..FileMetadata::default() }
    }

    fn check(files: &[FileMetadata]) -> Result<(), ExtentFault> {
        check_extents(files.iter().enumerate(), Uncompressed(100))
    }

    #[test]
    fn files_may_be_adjacent_and_end_with_the_layer() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[file(0, 40), file(40, 60)]), Ok(()));
        assert_eq!(
            check(&[file(0, 40), file(39, 1)]),
            Err(ExtentFault::Overlap { one: 0, other: 1 })
        );
        assert_eq!(check(&[file(40, 61)]), Err(ExtentFault::PastEnd { entry: 0 }));
        assert_eq!(check(&[file(u64::MAX, 2)]), Err(ExtentFault::PastEnd { entry: 0 }));
    }

    #[test]
    fn entries_without_bytes_are_ignored() {
        let directory = FileMetadata { kind: FileKind::Directory, ..file(0, 500) };
        let files = [file(0, 40), file(10, 0), directory, file(30, 5)];
        assert_eq!(check(&files), Err(ExtentFault::Overlap { one: 0, other: 3 }));
        assert_eq!(check(&files[..3]), Ok(()));
    }
}
