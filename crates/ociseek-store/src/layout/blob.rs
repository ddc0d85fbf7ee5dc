//! Opens files that may be of any type, and reads documents and ranges of files.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

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

/// A range of a file.
#[derive(Debug, Clone)]
pub(crate) struct FileRange {
    pub file: Arc<File>,
    pub offset: u64,
    pub size: u64,
}

/// The bytes of a blob, exactly as many as its descriptor states. Their digest is not checked.
#[derive(Debug)]
pub struct BlobReader {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl BlobReader {
    pub(crate) fn new(extent: FileRange) -> BlobReader {
        BlobReader { file: extent.file, at: extent.offset, left: extent.size }
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if want == 0 {
            return Ok(0);
        }
        let got = self.file.read_at(&mut buffer[..want], self.at)?;
        if got == 0 {
            // The file was longer when it was opened.
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the file ends {} bytes early", self.left),
            ));
        }
        self.at += got as u64;
        self.left -= got as u64;
        Ok(got)
    }
}

/// The bytes of `range`, relative to the start of `extent` and within it.
pub(crate) fn read_range(extent: &FileRange, range: std::ops::Range<u64>) -> io::Result<Vec<u8>> {
    let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    extent.file.read_exact_at(&mut bytes, extent.offset + range.start)?;
    Ok(bytes)
}
