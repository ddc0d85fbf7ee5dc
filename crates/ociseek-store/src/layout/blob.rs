//! Opens files that may be of any type, and reads documents and ranges of files.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use ociseek_format::tar::SparseMap;
use rustix::fs::{Mode, OFlags};

/// Opens a regular file. Refuses a FIFO or device, without waiting for it. Follows symbolic links,
/// because shared blob stores consist of them and all content is checked by digest.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = open_without_waiting(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// Opens a file for reading. Does not block on a FIFO without a writer.
pub(crate) fn open_without_waiting(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// A whole document, up to one byte past `limit`: its parser refuses longer ones.
pub(crate) fn read_bounded(document: impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    document.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Bytes that a file holds: a range of it, or a sparse file whose parts such a range holds.
#[derive(Debug, Clone)]
pub(crate) struct FileRange {
    pub file: Arc<File>,
    pub offset: u64,
    /// With the holes of a sparse file.
    pub size: u64,
    pub sparse: Option<SparseMap>,
}

impl FileRange {
    /// Reads some of the bytes from `at` on.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let room = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..room];
        let Some(map) = &self.sparse else { return self.file.read_at(buffer, self.offset + at) };
        match map.within(at..at + room as u64).next() {
            Some(part) if part.file.start == at => {
                let length = (part.file.end - at) as usize;
                self.file.read_at(&mut buffer[..length], self.offset + part.stored)
            }
            part => {
                let hole = part.map_or(room, |part| (part.file.start - at) as usize);
                buffer[..hole].fill(0);
                Ok(hole)
            }
        }
    }
}

/// The bytes of a blob, exactly as many as its descriptor states. Their digest is not checked.
#[derive(Debug)]
pub struct BlobReader {
    extent: FileRange,
    at: u64,
}

impl BlobReader {
    pub(crate) fn new(extent: FileRange) -> BlobReader {
        BlobReader { extent, at: 0 }
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.extent.size - self.at;
        if left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let got = self.extent.read_at(buffer, self.at)?;
        if got == 0 {
            // The file was longer when it was opened.
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("the file ends {left} bytes early")));
        }
        self.at += got as u64;
        Ok(got)
    }
}

/// The bytes of `range`, relative to the start of `extent` and within it.
pub(crate) fn read_range(extent: &FileRange, range: std::ops::Range<u64>) -> io::Result<Vec<u8>> {
    let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    BlobReader { extent: extent.clone(), at: range.start }.read_exact(&mut bytes)?;
    Ok(bytes)
}
