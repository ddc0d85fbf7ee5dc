//! Tar entries for local reading. Entries that a ztoc cannot express are skipped or adapted, with a
//! note.

use serde::{Deserialize, Serialize};

use super::consumer::{UnlistedEntry, kind, metadata};
use super::names::shown;
use crate::tar::Entry;
use crate::ztoc::{FileKind, FileMetadata};

/// The most warnings for a layer. Further ones are only counted.
const WARNINGS: usize = 8;

/// Notes about entries that a ztoc cannot express.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// At most eight.
    pub warnings: Vec<String>,
    /// The number of further warnings.
    pub more_warnings: u64,
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

/// A tar entry in the form of a ztoc's entry, adapted as needed.
pub(super) struct AdaptedEntry {
    pub file: FileMetadata,
    /// The tar does not hold the file's plain bytes.
    pub is_sparse: bool,
}

/// None if the entry is not a file.
pub(super) fn file(entry: Entry, notes: &mut Notes) -> Option<AdaptedEntry> {
    let (kind, is_sparse) = match kind(entry.kind) {
        Ok(kind) => (kind, false),
        Err(UnlistedEntry::GlobalHeader) => return None,
        Err(UnlistedEntry::Sparse) => {
            notes.warn(format!("{} is a sparse file, which cannot be read", shown(&entry.name)));
            (FileKind::Regular, true)
        }
        Err(UnlistedEntry::Other(flag)) => {
            let what = format!("skipping {}: it has the entry type {:?}", shown(&entry.name), char::from(flag));
            notes.warn(what);
            return None;
        }
    };
    let (uid, gid) = (entry.uid as u32, entry.gid as u32);
    if i64::from(uid) != entry.uid || i64::from(gid) != entry.gid {
        // CVE-2024-40635: such a number used to become root without notice.
        let what = format!("belongs to {}:{}; shown as {uid}:{gid}", entry.uid, entry.gid);
        notes.warn(format!("{} {what}", shown(&entry.name)));
    }
    // Only regular files have data; other types may claim any size.
    let size = if kind == FileKind::Regular { u64::try_from(entry.size).unwrap_or(0) } else { 0 };
    // A sparse file may claim more bytes than there are positions after its offset.
    let size = size.min((i64::MAX as u64).saturating_sub(entry.data.0));
    Some(AdaptedEntry { file: FileMetadata { size, ..metadata(entry, kind, uid, gid) }, is_sparse })
}
