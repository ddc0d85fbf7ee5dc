//! Walks the headers of a tar file by seeking, to find where each member's data is.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::layout::LayoutError;
use ociseek_format::tar::{BLOCK, Entry, Kind, TarError, Walker};

/// Passes each member of the tar to `found`: its name without a leading `./`, and its entry.
pub(super) fn members(
    path: &Path,
    file: &Arc<File>,
    length: u64,
    mut found: impl FnMut(&[u8], &Entry) -> Result<(), LayoutError>,
) -> Result<(), LayoutError> {
    let mut walker = Walker::past_sparse_files();
    let mut at = 0;
    loop {
        at += walker.skip(length - at);
        let mut block = [0; BLOCK];
        let room = usize::try_from(length - at).unwrap_or(BLOCK).min(BLOCK);
        if room == 0 || walker.is_over() {
            return walker.finish().map(drop).map_err(|error| unsound(path, error));
        }
        let block = &mut block[..room];
        let read = file.read_exact_at(block, at);
        read.map_err(|source| LayoutError::Io { action: "read", path: path.to_owned(), source })?;
        at += room as u64;
        let mut member = None;
        walker.push(block, &mut |entry| member = Some(entry)).map_err(|error| unsound(path, error))?;
        if let Some(entry) = member.filter(|entry| entry.kind != Kind::GlobalHeader) {
            found(entry.name.strip_prefix(b"./").unwrap_or(&entry.name), &entry)?;
        }
    }
}

fn unsound(path: &Path, error: TarError) -> LayoutError {
    LayoutError::Tar { path: path.to_owned(), reason: error.fault.to_string(), offset: error.offset.0 }
}
