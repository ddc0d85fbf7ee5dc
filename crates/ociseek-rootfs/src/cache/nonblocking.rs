//! Opens and reads files without waiting for a disk. Other systems than Linux cannot do that.

use std::fs::File;
use std::path::Path;

#[cfg(target_os = "linux")]
use ociseek_store::entries::OPEN;

/// Opens a file if the system has its directories in memory.
#[cfg(target_os = "linux")]
pub(super) fn open(path: &Path) -> Option<File> {
    use rustix::fs::{CWD, Mode, ResolveFlags, openat2};
    openat2(CWD, path, OPEN, Mode::empty(), ResolveFlags::CACHED).ok().map(File::from)
}

/// Reads all of `bytes` at an offset of the file, if the system has them in memory.
#[cfg(target_os = "linux")]
pub(super) fn fill(file: &File, bytes: &mut [u8], at: u64) -> Option<()> {
    use rustix::io::{ReadWriteFlags, preadv2};
    let wanted = bytes.len();
    let read = preadv2(file, &mut [std::io::IoSliceMut::new(bytes)], at, ReadWriteFlags::NOWAIT);
    read.is_ok_and(|read| read == wanted).then_some(())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn open(_: &Path) -> Option<File> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn fill(_: &File, _: &mut [u8], _: u64) -> Option<()> {
    None
}
