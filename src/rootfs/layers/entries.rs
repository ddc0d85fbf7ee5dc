//! The entries of a tar for a reader who can ask nobody else: what a ztoc cannot state is left out or bent, and said.

use serde::{Deserialize, Serialize};

use crate::budget::{Charge, OverBudget};
use crate::layer::{LayerError, explain, metadata, shown};
use crate::offset::Uncompressed;
use crate::tar::{Entry, Kind, Walker};
use crate::ztoc::{FileKind, FileMetadata, MAX_ENCODED};

/// Where files lie that are there and cannot be read: behind the end of any tar.
pub(in crate::rootfs) const UNREADABLE: Uncompressed = Uncompressed(1 << 62);
/// How many bytes are kept to say what something looks like that is no tar.
const HEAD: usize = 64;
/// What the entries of the smallest layer may come to, encoded, in bytes; and of another one for each byte of its blob. Names can be a
/// thousand times smaller compressed, and a million empty files take about a tenth of this.
const LEAST_LIMIT: usize = 64 << 20;
const PER_BYTE: usize = 64;
/// Warnings of one layer; what would be more is counted.
const WARNINGS: usize = 8;

/// What there is to say about entries that a ztoc has no field for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notes {
    pub warnings: Vec<String>,
    pub more_warnings: u64,
    /// Times outside of the years 0 to 9999: number of the entry, seconds, nanoseconds.
    pub times: Vec<(u32, i64, u32)>,
}

impl Notes {
    pub fn warn(&mut self, text: String) {
        if self.warnings.len() < WARNINGS {
            self.warnings.push(text);
        } else {
            self.more_warnings += 1;
        }
    }
}

/// Takes the plain bytes of a layer and collects its entries.
pub(super) struct Entries {
    walker: Walker,
    files: Vec<FileMetadata>,
    notes: Notes,
    encoded_size: usize,
    memory: Charge,
    over: Option<OverBudget>,
    head: Vec<u8>,
}

/// The entries come to more than is read of a layer of this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

impl Entries {
    pub fn new(memory: Charge) -> Entries {
        Entries {
            walker: Walker::past_sparse_files(),
            files: Vec::new(),
            notes: Notes::default(),
            encoded_size: 0,
            memory,
            over: None,
            head: Vec::new(),
        }
    }

    /// The next bytes of the tar; so many of the blob were read for them.
    pub fn push(&mut self, bytes: &[u8], blob: u64) -> Result<Result<(), TooMany>, LayerError> {
        if self.head.len() < HEAD {
            self.head.extend(bytes.iter().take(HEAD - self.head.len()));
        }
        let blob = usize::try_from(blob).unwrap_or(usize::MAX);
        let limit = LEAST_LIMIT.saturating_add(blob.saturating_mul(PER_BYTE)).min(MAX_ENCODED);
        let Entries { walker, files, notes, encoded_size, memory, over, head } = self;
        let walked = walker.push(bytes, &mut |entry| {
            if *encoded_size <= limit
                && over.is_none()
                && let Some(file) = file(entry, files.len(), notes)
            {
                *encoded_size += file.encoded_size_bound();
                *over = memory.grow(file.footprint() as u64, || "the list of its files".to_owned()).err();
                files.push(file);
            }
        });
        walked.map_err(|error| explain(error, head))?;
        if let Some(over) = over.take() {
            return Err(over.into());
        }
        Ok(if *encoded_size > limit { Err(TooMany) } else { Ok(()) })
    }

    /// Charges memory for another checkpoint or digest of a span.
    pub fn charge_span(&mut self, bytes: usize) -> Result<(), OverBudget> {
        self.memory.grow(bytes as u64, || "its checkpoints".to_owned())
    }

    /// # Errors
    /// When the tar is cut off.
    pub fn finish(self) -> Result<(Vec<FileMetadata>, Notes, Charge), LayerError> {
        self.walker.finish().map_err(|error| explain(error, &self.head))?;
        Ok((self.files, self.notes, self.memory))
    }
}

/// An entry as a ztoc states it, as far as it can; `None` for one that is no file.
fn file(entry: Entry, number: usize, notes: &mut Notes) -> Option<FileMetadata> {
    let kind = match entry.kind {
        Kind::Regular => FileKind::Regular,
        Kind::HardLink => FileKind::HardLink,
        Kind::Symlink => FileKind::Symlink,
        Kind::CharDevice => FileKind::CharDevice,
        Kind::BlockDevice => FileKind::BlockDevice,
        Kind::Directory => FileKind::Directory,
        Kind::Fifo => FileKind::Fifo,
        Kind::GlobalHeader => return None,
        Kind::Sparse => {
            notes.warn(format!("{} is a sparse file, which cannot be read", shown(&entry.name)));
            FileKind::Regular
        }
        Kind::Other(flag) => {
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
    let offset = if entry.kind == Kind::Sparse { UNREADABLE } else { entry.data };
    // What other types claim has no data behind it.
    let size = if kind == FileKind::Regular { u64::try_from(entry.size).unwrap_or(0) } else { 0 };
    Some(FileMetadata { offset, size: size.min(UNREADABLE.0 / 2), ..metadata(entry, kind, uid, gid) })
}
