//! The entries of a tar for a reader who can ask nobody else: what a ztoc cannot state is left out or bent, and noted.

use serde::{Deserialize, Serialize};

use super::consumer::{Unlisted, kind, metadata, shown};
use crate::offset::Uncompressed;
use crate::tar::Entry;
use crate::ztoc::{FileKind, FileMetadata};

/// Where files lie that are there and cannot be read: behind the end of any tar.
pub const UNREADABLE: Uncompressed = Uncompressed(1 << 62);
/// Warnings of one layer; what would be more is counted.
const WARNINGS: usize = 8;

/// What there is to say about entries that a ztoc has no field for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// At most eight.
    pub warnings: Vec<String>,
    /// How many warnings there would be beside them.
    pub more_warnings: u64,
    /// Times outside of the years 0 to 9999: number of the entry, seconds, nanoseconds.
    pub times: Vec<(u32, i64, u32)>,
}

impl Notes {
    pub(super) fn warn(&mut self, text: String) {
        if self.warnings.len() < WARNINGS {
            self.warnings.push(text);
        } else {
            self.more_warnings += 1;
        }
    }
}

/// A tar entry in the form that a ztoc has it, as far as it fits; `None` if the entry is not a file.
pub(super) fn file(entry: Entry, number: usize, notes: &mut Notes) -> Option<FileMetadata> {
    let (kind, is_sparse) = match kind(entry.kind) {
        Ok(kind) => (kind, false),
        Err(Unlisted::GlobalHeader) => return None,
        Err(Unlisted::Sparse) => {
            notes.warn(format!("{} is a sparse file, which cannot be read", shown(&entry.name)));
            (FileKind::Regular, true)
        }
        Err(Unlisted::Other(flag)) => {
            let what = format!("{} is left out: it has the entry type {:?}", shown(&entry.name), char::from(flag));
            notes.warn(what);
            return None;
        }
    };
    let (uid, gid) = (entry.uid as u32, entry.gid as u32);
    if i64::from(uid) != entry.uid || i64::from(gid) != entry.gid {
        // CVE-2024-40635 was such a number that became root in silence.
        let what = format!("belongs to {}:{}; it is shown as {uid}:{gid}", entry.uid, entry.gid);
        notes.warn(format!("{} {what}", shown(&entry.name)));
    }
    if entry.mtime.to_rfc3339().is_none()
        && let Ok(number) = u32::try_from(number)
    {
        notes.times.push((number, entry.mtime.seconds, entry.mtime.nanos));
    }
    let offset = if is_sparse { UNREADABLE } else { entry.data };
    // What other types claim has no data behind it.
    let size = if kind == FileKind::Regular { u64::try_from(entry.size).unwrap_or(0) } else { 0 };
    Some(FileMetadata { offset, size: size.min(UNREADABLE.0 / 2), ..metadata(entry, kind, uid, gid) })
}
