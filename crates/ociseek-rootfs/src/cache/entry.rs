//! The file of an entry: the digest of the head; the head with key, size, and digests of the
//! pieces; the pieces.
//!
//! The digests are BLAKE3, since a start from the cache hashes tens of megabytes while the
//! container needs the processor, and no other program has to know them.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use tempfile::NamedTempFile;

use super::SpanKey;

/// The size of a piece in bytes. To get one byte, a whole piece must be read and hashed.
pub const PIECE: usize = 64 << 10;
const DIGEST: usize = blake3::OUT_LEN;
/// The size of the fixed part: the head's digest, the key, and the size.
const FIXED: usize = 2 * DIGEST + 8;

/// The positions of the parts in the file of a span.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryLayout {
    size: u64,
    pieces: u32,
}

impl EntryLayout {
    /// None if the span has too many pieces to number them.
    pub(super) fn new(size: u64) -> Option<EntryLayout> {
        Some(EntryLayout { size, pieces: u32::try_from(size.div_ceil(PIECE as u64)).ok()? })
    }

    pub(super) fn pieces(&self) -> u32 {
        self.pieces
    }

    pub(super) fn file_size(&self) -> u64 {
        self.start() + self.size
    }

    /// The position of the first piece.
    fn start(&self) -> u64 {
        (FIXED + self.pieces as usize * DIGEST) as u64
    }

    fn piece(&self, number: u32) -> Range<u64> {
        let from = u64::from(number) * PIECE as u64;
        from..self.size.min(from + PIECE as u64)
    }
}

/// The pieces of an entry whose file has `length` bytes. None if `fill` cannot read the bytes at an
/// offset of the file, or if the file was not written for this key and layout.
pub(super) fn read(
    length: u64,
    key: &SpanKey,
    layout: &EntryLayout,
    pieces: Range<u32>,
    fill: impl Fn(&mut [u8], u64) -> Option<()>,
) -> Option<Vec<Bytes>> {
    if length != layout.file_size() {
        return None;
    }
    let mut head = vec![0; usize::try_from(layout.start()).ok()?];
    fill(&mut head, 0)?;
    let (digest, rest) = head.split_at_checked(DIGEST)?;
    if blake3::hash(rest).as_bytes() != digest || rest.get(..DIGEST)? != key.bytes() {
        return None;
    }
    let digests = head.get(FIXED..)?;
    pieces
        .map(|number| {
            let range = layout.piece(number);
            let mut piece = BytesMut::zeroed(usize::try_from(range.end - range.start).ok()?);
            fill(&mut piece, layout.start() + range.start)?;
            let at = number as usize * DIGEST;
            (blake3::hash(&piece).as_bytes() == digests.get(at..at + DIGEST)?).then(|| piece.freeze())
        })
        .collect()
}

/// Writes an entry, piece by piece.
pub(super) struct EntryWriter {
    file: NamedTempFile,
    layout: EntryLayout,
    /// Everything before the pieces, as far as it is known.
    head: Vec<u8>,
    written: u64,
}

impl EntryWriter {
    pub(super) fn new(file: NamedTempFile, key: SpanKey, layout: EntryLayout) -> EntryWriter {
        let mut head = vec![0; DIGEST];
        head.extend_from_slice(key.bytes());
        head.extend_from_slice(&layout.size.to_le_bytes());
        EntryWriter { file, layout, head, written: 0 }
    }

    pub(super) fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.as_file().write_all_at(piece, self.layout.start() + self.written)?;
        self.head.extend_from_slice(blake3::hash(piece).as_bytes());
        self.written += piece.len() as u64;
        Ok(())
    }

    /// Renames the finished entry to `path`. Returns the size of the file in bytes.
    pub(super) fn finish(mut self, path: &Path) -> io::Result<u64> {
        if self.written != self.layout.size || self.head.len() as u64 != self.layout.start() {
            return Err(io::Error::other("a span of another size was written"));
        }
        let (digest, rest) = self.head.split_at_mut(DIGEST);
        digest.copy_from_slice(blake3::hash(rest).as_bytes());
        self.file.as_file().write_all_at(&self.head, 0)?;
        self.file.persist(path).map_err(|e| e.error)?;
        Ok(self.layout.file_size())
    }
}
