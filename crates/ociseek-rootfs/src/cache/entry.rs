//! The file of an entry: its key, which determines its content; the digest of the head; the head
//! with key, size, and digests of the pieces; the pieces.
//!
//! The digests are BLAKE3, since a start from the cache hashes tens of megabytes while the
//! container needs the processor, and no other program has to know them. Files are opened and read
//! without waiting for a disk; other systems than Linux cannot do that.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use tempfile::NamedTempFile;

use ociseek_format::digest::{Algorithm, Digest, Hasher, hex};
use ociseek_format::layer::span::{HasSpans, SpanTable};
use ociseek_format::offset::SpanId;
use ociseek_format::ztoc::Checkpoint;
#[cfg(target_os = "linux")]
use ociseek_store::entries::OPEN;

/// Must change whenever spans decode differently or the layout of entries changes.
const FORMAT: &[u8] = b"ociseek span 2\n";

/// The digest of everything that determines the decoded bytes of a span: the digest of its
/// compressed bytes, the checkpoint's window and bits, and the number of bytes. The layer is not
/// included. If someone altered a window, their span has another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanKey([u8; 32]);

impl SpanKey {
    /// `span` must be below the table's count.
    pub fn of<T: HasSpans>(table: &SpanTable<T>, span: SpanId) -> SpanKey {
        let plain = table.plain_range(span);
        let size = plain.end - plain.start;
        match table.checkpoint(span) {
            Some(checkpoint) => SpanKey::gzip(&table.digest(span), checkpoint, size),
            // The digest is then not the one of the span's bytes.
            None if table.is_fine() => SpanKey::from(hasher(b"fine", &table.digest(span), size)),
            None => SpanKey::plain(&table.digest(span), size),
        }
    }

    /// The key of `size` bytes that are decoded from `checkpoint`. `digest` is that of the
    /// compressed bytes.
    pub fn gzip(digest: &Digest, checkpoint: &Checkpoint, size: u64) -> SpanKey {
        let mut hasher = hasher(b"gzip", digest, size);
        hasher.update(&[checkpoint.bits]);
        hasher.update(&checkpoint.window[..]);
        SpanKey::from(hasher)
    }

    /// The key of `size` bytes of a plain tar with this digest.
    pub fn plain(digest: &Digest, size: u64) -> SpanKey {
        SpanKey::from(hasher(b"plain", digest, size))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(super) fn hex(&self) -> String {
        hex(&self.0)
    }
}

fn hasher(kind: &[u8], digest: &Digest, size: u64) -> Hasher {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(FORMAT);
    hasher.update(format!("{digest}\n{size}\n").as_bytes());
    hasher.update(kind);
    hasher
}

impl From<Hasher> for SpanKey {
    fn from(hasher: Hasher) -> SpanKey {
        let mut key = [0; 32];
        key.iter_mut().zip(hasher.finish().as_bytes()).for_each(|(to, from)| *to = *from);
        SpanKey(key)
    }
}

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
            (blake3::hash(&piece).as_bytes() == digests.get(at..at + DIGEST)?)
                .then(|| piece.freeze())
        })
        .collect()
}

/// How many bytes of pieces are written together.
const TOGETHER: usize = 4 << 20;

/// Writes an entry, piece by piece.
pub(super) struct EntryWriter {
    file: NamedTempFile,
    layout: EntryLayout,
    /// Everything before the pieces, as far as it is known.
    head: Vec<u8>,
    /// The size of the pieces that are in the file.
    written: u64,
    /// The pieces after those.
    pending: Vec<Bytes>,
    pending_size: usize,
}

impl EntryWriter {
    pub(super) fn new(file: NamedTempFile, key: SpanKey, layout: EntryLayout) -> EntryWriter {
        let mut head = Vec::with_capacity(FIXED + layout.pieces as usize * DIGEST);
        head.resize(DIGEST, 0);
        head.extend_from_slice(key.bytes());
        head.extend_from_slice(&layout.size.to_le_bytes());
        EntryWriter { file, layout, head, written: 0, pending: Vec::new(), pending_size: 0 }
    }

    pub(super) fn write(&mut self, piece: &Bytes) -> io::Result<()> {
        self.head.extend_from_slice(blake3::hash(piece).as_bytes());
        self.pending_size += piece.len();
        self.pending.push(piece.clone());
        if self.pending_size < TOGETHER {
            return Ok(());
        }
        let at = self.layout.start() + self.written;
        write_at(self.file.as_file(), self.pending.iter().map(|piece| &piece[..]).collect(), at)?;
        self.written += self.pending_size as u64;
        self.pending.clear();
        self.pending_size = 0;
        Ok(())
    }

    /// Renames the finished entry to `path`. Returns the size of the file in bytes.
    pub(super) fn finish(mut self, path: &Path) -> io::Result<u64> {
        let size = self.written + self.pending_size as u64;
        if size != self.layout.size || self.head.len() as u64 != self.layout.start() {
            return Err(io::Error::other("a span of another size was written"));
        }
        let (digest, rest) = self.head.split_at_mut(DIGEST);
        digest.copy_from_slice(blake3::hash(rest).as_bytes());
        let pending = self.pending.iter().map(|piece| &piece[..]);
        if self.written == 0 {
            let all = std::iter::once(&self.head[..]).chain(pending).collect();
            write_at(self.file.as_file(), all, 0)?;
        } else {
            let at = self.layout.start() + self.written;
            write_at(self.file.as_file(), pending.collect(), at)?;
            write_at(self.file.as_file(), vec![&self.head], 0)?;
        }
        self.file.persist(path).map_err(|e| e.error)?;
        Ok(self.layout.file_size())
    }
}

/// Writes all parts, one after the other, in as few calls as the system takes.
fn write_at(file: &File, parts: Vec<&[u8]>, mut at: u64) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.into_iter().map(IoSlice::new).collect();
    let mut left = &mut slices[..];
    // Without empty ones, which would end the loop.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match rustix::io::pwritev(file, left, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut left, written);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Opens a file if the system has its directories in memory.
#[cfg(target_os = "linux")]
pub(super) fn open_at_once(path: &Path) -> Option<File> {
    use rustix::fs::{CWD, Mode, ResolveFlags, openat2};
    openat2(CWD, path, OPEN, Mode::empty(), ResolveFlags::CACHED).ok().map(File::from)
}

/// Reads all of `bytes` at an offset of the file, if the system has them in memory.
#[cfg(target_os = "linux")]
pub(super) fn fill_at_once(file: &File, bytes: &mut [u8], at: u64) -> Option<()> {
    use rustix::io::{ReadWriteFlags, preadv2};
    let wanted = bytes.len();
    let read = preadv2(file, &mut [std::io::IoSliceMut::new(bytes)], at, ReadWriteFlags::NOWAIT);
    read.is_ok_and(|read| read == wanted).then_some(())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn open_at_once(_: &Path) -> Option<File> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn fill_at_once(_: &File, _: &mut [u8], _: u64) -> Option<()> {
    None
}
