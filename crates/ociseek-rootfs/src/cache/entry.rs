//! What is stored of a span: the digest of the head; the head with the key, which determines the
//! content, the size, and the digests of the pieces; the pieces. A span that is alone in its file
//! has all of that in a row. In a file of several spans, all heads come first.
//!
//! The digests are BLAKE3, since a start from the cache hashes tens of megabytes while the
//! container needs the processor, and no other program has to know them. Files are opened and read
//! without waiting for a disk; other systems than Linux cannot do that.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem;
use std::ops::Range;
use std::path::Path;
use std::thread;

use bytes::{Bytes, BytesMut};
use tempfile::NamedTempFile;

use ociseek_format::digest::{Algorithm, Digest, Hasher};
use ociseek_format::layer::span::{HasSpans, SpanTable};
use ociseek_format::offset::SpanId;
use ociseek_format::ztoc::Checkpoint;
use ociseek_store::disk_watch::DiskAccess;
#[cfg(target_os = "linux")]
use ociseek_store::entries::OPEN;
use ociseek_store::entries::open_own;

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

/// The positions of the parts of a span in its file.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryLayout {
    size: u64,
    pieces: u32,
    head_at: u64,
    pieces_at: u64,
}

impl EntryLayout {
    /// For a span that is alone in its file. None if it has too many pieces to number them.
    pub(super) fn new(size: u64) -> Option<EntryLayout> {
        let pieces = u32::try_from(size.div_ceil(PIECE as u64)).ok()?;
        Some(EntryLayout { size, pieces, head_at: 0, pieces_at: head_size(pieces) })
    }

    /// For the span with this number among those that share a file, if the spans before it have
    /// `offset` bytes together, and the pieces of all begin at `pieces_at`.
    pub(super) fn shared(
        size: u64,
        number: u32,
        offset: u64,
        pieces_at: u64,
    ) -> Option<EntryLayout> {
        let head_at = heads_end(number, offset);
        let pieces_at = pieces_at.checked_add(offset)?;
        Some(EntryLayout { head_at, pieces_at, ..EntryLayout::new(size)? })
    }

    pub(super) fn pieces(&self) -> u32 {
        self.pieces
    }

    /// The size of what is written.
    pub(super) fn stored(&self) -> u64 {
        self.head_size() + self.size
    }

    fn head_size(&self) -> u64 {
        head_size(self.pieces)
    }

    fn head_range(&self) -> Range<u64> {
        self.head_at..self.head_at + self.head_size()
    }

    fn piece(&self, number: u32) -> Range<u64> {
        let from = u64::from(number) * PIECE as u64;
        from..self.size.min(from + PIECE as u64)
    }
}

fn head_size(pieces: u32) -> u64 {
    (FIXED + pieces as usize * DIGEST) as u64
}

/// The end of the heads of the first `number` spans in a file, if these have `size` bytes together:
/// each of them may have one piece more than its size has whole ones.
pub(super) fn heads_end(number: u32, size: u64) -> u64 {
    let number = u64::from(number);
    number * FIXED as u64 + (size / PIECE as u64 + number) * DIGEST as u64
}

/// The head of a span. None if `fill` cannot read the bytes at an offset of the file, or if they
/// were not written for this key and layout.
pub(super) fn head(
    key: &SpanKey,
    layout: &EntryLayout,
    fill: impl Fn(&mut [u8], u64) -> Option<()>,
) -> Option<Vec<u8>> {
    let mut head = vec![0; usize::try_from(layout.head_size()).ok()?];
    fill(&mut head, layout.head_at)?;
    let (digest, rest) = head.split_at_checked(DIGEST)?;
    let is_of_key = blake3::hash(rest).as_bytes() == digest
        && rest.get(..DIGEST)? == key.bytes()
        && rest.get(DIGEST..DIGEST + 8)? == layout.size.to_le_bytes();
    is_of_key.then_some(head)
}

/// Pieces of a span. None in the same cases as [`head`], or if they are damaged.
pub(super) fn read(
    key: &SpanKey,
    layout: &EntryLayout,
    pieces: Range<u32>,
    fill: impl Fn(&mut [u8], u64) -> Option<()>,
) -> Option<Vec<Bytes>> {
    let head = head(key, layout, &fill)?;
    let digests = head.get(FIXED..)?;
    pieces
        .map(|number| {
            let range = layout.piece(number);
            let mut piece = BytesMut::zeroed(usize::try_from(range.end - range.start).ok()?);
            fill(&mut piece, layout.pieces_at + range.start)?;
            let at = number as usize * DIGEST;
            (blake3::hash(&piece).as_bytes() == digests.get(at..at + DIGEST)?)
                .then(|| piece.freeze())
        })
        .collect()
}

/// How many bytes of pieces are written together.
const TOGETHER: u64 = 4 << 20;

/// The file that a span is written to.
pub(super) enum EntryFile {
    /// It is opened with the first write.
    Unopened(Box<dyn FnOnce() -> io::Result<EntryFile> + Send>),
    /// It gets its name when the span is complete.
    Alone(NamedTempFile),
    /// The head is written when the span is complete, over a hole or over another head.
    Shared(SharedFile),
}

impl EntryFile {
    /// Writes all parts, one after the other. Blocks.
    fn write(self, parts: &[Bytes], at: u64) -> io::Result<EntryFile> {
        let mut file = match self {
            EntryFile::Unopened(open) => open()?,
            open => open,
        };
        let end = at + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let slices = parts.iter().map(|part| &part[..]).collect();
        match &mut file {
            EntryFile::Unopened(_) => return Err(io::ErrorKind::InvalidInput.into()),
            EntryFile::Alone(file) => write_at(file.as_file(), slices, at)?,
            EntryFile::Shared(shared) => {
                shared.unfinished.get_or_insert(at..at).end = end;
                write_at(&shared.file, slices, at)?;
            }
        }
        Ok(file)
    }
}

/// A file of several spans.
pub(super) struct SharedFile {
    file: File,
    head: Range<u64>,
    /// What was written of a span that is not complete. It would only take space.
    unfinished: Option<Range<u64>>,
}

impl SharedFile {
    /// For a span with this layout.
    pub(super) fn new(file: File, layout: &EntryLayout) -> SharedFile {
        SharedFile { file, head: layout.head_range(), unfinished: None }
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if let Some(range) = &self.unfinished {
            // Another process may have stored the span meanwhile.
            discard(&self.file, &self.head);
            discard(&self.file, range);
        }
    }
}

/// Removes the head of a damaged span from the file at `path`, so that the span counts as missing.
pub(super) fn forget(path: &Path, layout: &EntryLayout) {
    if let Ok(file) = open_own(path) {
        discard(&file, &layout.head_range());
    }
}

/// Writes a span, piece by piece.
pub(super) struct EntryWriter {
    /// None after it could not be written.
    file: Option<EntryFile>,
    layout: EntryLayout,
    /// Everything before the pieces, as far as it is known.
    head: Vec<u8>,
    /// The size of the pieces that are in the file.
    written: u64,
    /// The pieces after those.
    pending: Vec<Bytes>,
    pending_size: u64,
}

impl EntryWriter {
    pub(super) fn new(file: EntryFile, key: SpanKey, layout: EntryLayout) -> EntryWriter {
        let mut head = Vec::with_capacity(FIXED + layout.pieces as usize * DIGEST);
        head.resize(DIGEST, 0);
        head.extend_from_slice(key.bytes());
        head.extend_from_slice(&layout.size.to_le_bytes());
        let file = Some(file);
        EntryWriter { file, layout, head, written: 0, pending: Vec::new(), pending_size: 0 }
    }

    /// Takes the next piece. `access` is asked for whenever pieces must be written before the span
    /// is complete. The decoder does not wait for a disk that does not answer.
    pub(super) fn write(
        &mut self,
        piece: &Bytes,
        access: impl FnOnce() -> Option<DiskAccess>,
    ) -> io::Result<()> {
        self.head.extend_from_slice(blake3::hash(piece).as_bytes());
        self.pending_size += piece.len() as u64;
        self.pending.push(piece.clone());
        if self.pending_size < TOGETHER {
            return Ok(());
        }
        let file = self.take_file()?;
        let Some(access) = access() else {
            // Removing what is unfinished would wait, too.
            thread::Builder::new().spawn(move || drop(file))?;
            return Err(io::ErrorKind::TimedOut.into());
        };
        let at = self.layout.pieces_at + self.written;
        let parts = mem::take(&mut self.pending);
        self.file = Some(access.in_time(move || file.write(&parts, at))??);
        self.written += mem::take(&mut self.pending_size);
        Ok(())
    }

    fn take_file(&mut self) -> io::Result<EntryFile> {
        self.file.take().ok_or_else(|| io::Error::other("it could not be written before"))
    }

    /// Adds the finished span to the cache: as the file at `path`, if it is alone. Returns the size
    /// of what was written, in bytes. Blocks.
    pub(super) fn finish(mut self, path: &Path) -> io::Result<u64> {
        let size = self.written + self.pending_size;
        let head_size = self.head.len() as u64;
        if size != self.layout.size || head_size != self.layout.head_size() {
            return Err(io::Error::other("a span of another size was written"));
        }
        let (digest, rest) = self.head.split_at_mut(DIGEST);
        digest.copy_from_slice(blake3::hash(rest).as_bytes());
        let mut file = self.take_file()?;
        let head = Bytes::from(self.head);
        let pieces_at = self.layout.pieces_at + self.written;
        if self.written == 0 && self.layout.head_at + head_size == pieces_at {
            self.pending.insert(0, head);
            file = file.write(&self.pending, self.layout.head_at)?;
        } else {
            file = file.write(&self.pending, pieces_at)?;
            if let EntryFile::Shared(shared) = &file {
                write_at(&shared.file, vec![&head], self.layout.head_at)?;
            } else {
                file = file.write(&[head], self.layout.head_at)?;
            }
        }
        match file {
            EntryFile::Unopened(_) => return Err(io::ErrorKind::InvalidInput.into()),
            EntryFile::Alone(file) => file.persist(path).map(drop).map_err(|e| e.error)?,
            EntryFile::Shared(mut file) => file.unfinished = None,
        }
        Ok(self.layout.stored())
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

/// Frees the space of a range of a file, where the file system can.
#[cfg(target_os = "linux")]
fn discard(file: &File, range: &Range<u64>) {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = fallocate(file, flags, range.start, range.end - range.start);
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
fn discard(_: &File, _: &Range<u64>) {}

#[cfg(not(target_os = "linux"))]
pub(super) fn open_at_once(_: &Path) -> Option<File> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn fill_at_once(_: &File, _: &mut [u8], _: u64) -> Option<()> {
    None
}
