//! The tar side of a layer: its entries, or the reason why they cannot be served.

use serde::{Deserialize, Serialize};

use super::consumer::{self, UnlistedEntry, kind, metadata};
use super::map::SparseFile;
use super::model::NoZtoc;
use super::{LayerError, UnservableCode, UnservableReason};
use crate::budget::{Charge, OverBudget};
use crate::codec::sniff::{self, Format};
use crate::offset::{Compressed, Uncompressed};
use crate::path::{WHITEOUT, shown};
use crate::tar::{Entry, SparseMap, TarError, TarFault, Walker};
use crate::ztoc::{FileKind, FileMetadata, MAX_ENCODED};

/// How to treat entries that a ztoc cannot express or that consumers could not serve.
pub(super) enum EntryPolicy {
    /// One such entry makes the layer unservable: nothing is published.
    Strict,
    /// They are skipped or adapted, with a note: the layer is only read locally.
    Lenient(Notes),
}

/// Takes the plain bytes of a layer and collects its entries.
pub(super) struct Contents {
    policy: EntryPolicy,
    walker: Walker,
    /// Plain bytes so far, including those after the end of the tar.
    size: u64,
    files: Vec<FileMetadata>,
    /// The sparse files among them.
    sparse: Vec<SparseFile>,
    /// A lower bound for the size of the entries in an encoded ztoc, in bytes.
    encoded_size: usize,
    /// The limit for `encoded_size`.
    limit: usize,
    verdict: Option<UnservableReason>,
    error: Option<TarError>,
    /// The memory of files and checkpoints.
    memory: Charge,
    over: Option<OverBudget>,
    /// The first bytes, to describe a blob that is not a tar.
    head: Vec<u8>,
}

/// The entries of a complete tar.
pub(super) struct TarListing {
    pub files: Vec<FileMetadata>,
    /// The sparse files among them. Empty if the policy was strict.
    pub sparse: Vec<SparseFile>,
    /// Empty if the policy was strict.
    pub notes: Notes,
    /// Where the tar reader stops.
    pub end: Uncompressed,
    /// All plain bytes.
    pub size: u64,
    /// The memory charged for them.
    pub memory: Charge,
}

/// How many bytes are kept to describe a blob that is not a tar.
const HEAD: usize = 64;
/// The limit for the encoded entries: at least `LEAST_LIMIT` bytes, and `PER_BYTE` bytes for each
/// compressed byte.
const LEAST_LIMIT: usize = 64 << 20;
const PER_BYTE: usize = 64;

impl Contents {
    pub(super) fn new(policy: EntryPolicy, memory: Charge) -> Contents {
        let walker = match policy {
            EntryPolicy::Strict => Walker::new(),
            EntryPolicy::Lenient(_) => Walker::past_sparse_files(),
        };
        Contents {
            policy,
            walker,
            size: 0,
            files: Vec::new(),
            sparse: Vec::new(),
            encoded_size: 0,
            limit: MAX_ENCODED,
            verdict: None,
            error: None,
            memory,
            over: None,
            head: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        if self.head.len() < HEAD {
            self.head.extend(bytes.iter().take(HEAD - self.head.len()));
        }
        if self.is_settled() {
            return;
        }
        let Contents {
            policy,
            walker,
            files,
            sparse,
            encoded_size,
            limit,
            verdict,
            memory,
            over,
            ..
        } = self;
        let walked = walker.push(bytes, &mut |entry| {
            if verdict.is_some() || over.is_some() {
                return;
            }
            let listed = match policy {
                EntryPolicy::Strict => {
                    consumer::file(entry).map(|file| Some(AdaptedEntry { file, sparse: None }))
                }
                EntryPolicy::Lenient(notes) => Ok(adapted(entry, notes)),
            };
            match listed {
                Ok(None) => {}
                Ok(Some(AdaptedEntry { file, sparse: map })) => {
                    // The list of sparse files may have grown to twice its length.
                    let mapped = map.as_ref().map_or(0, |map| 2 * map.footprint());
                    *encoded_size += file.encoded_size_bound() + mapped;
                    let footprint = file.footprint() + mapped;
                    *over =
                        memory.grow(footprint as u64, || "the list of its files".to_owned()).err();
                    if let Some(map) = map {
                        sparse.push(SparseFile { entry: files.len() as u32, map });
                    }
                    files.push(file);
                    if *encoded_size > *limit {
                        let reason =
                            format!("its table of contents would exceed {} MiB", *limit >> 20);
                        *verdict =
                            Some(UnservableReason::new(UnservableCode::ZtocTooLarge, reason));
                    }
                }
                Err(unservable) => *verdict = Some(unservable),
            }
        });
        // Later entries cannot change a verdict; the bytes themselves are still checked by their
        // digests.
        if self.verdict.is_none() {
            self.error = walked.err();
        } else {
            self.drop_files();
        }
        if self.over.is_some() {
            self.drop_files();
        }
    }

    /// Charges memory for another checkpoint.
    pub(super) fn charge_checkpoint(&mut self, bytes: usize) {
        if self.over.is_none() {
            self.over = self.memory.grow(bytes as u64, || "its checkpoints".to_owned()).err();
        }
    }

    fn drop_files(&mut self) {
        (self.files, self.sparse) = (Vec::new(), Vec::new());
        self.memory.shrink_to(0);
    }

    /// Keeps the list of entries in proportion to `blob`, the bytes of the blob read so far,
    /// because names and PAX records can compress by a factor of a thousand. A million empty files
    /// take about a tenth of this limit.
    pub(super) fn permit(&mut self, blob: Compressed) {
        let limit = LEAST_LIMIT
            .saturating_add(usize::try_from(blob.0).unwrap_or(usize::MAX).saturating_mul(PER_BYTE));
        self.limit = limit.min(MAX_ENCODED);
    }

    /// Gives up on the layer for a reason outside the tar.
    pub(super) fn refuse(&mut self, unservable: UnservableReason) {
        self.drop_files();
        self.verdict.get_or_insert(unservable);
    }

    pub(super) fn is_refused(&self) -> bool {
        self.verdict.is_some()
    }

    pub(super) fn is_strict(&self) -> bool {
        matches!(self.policy, EntryPolicy::Strict)
    }

    /// Records a note, if the policy is lenient.
    pub(super) fn note(&mut self, warning: String) {
        if let EntryPolicy::Lenient(notes) = &mut self.policy {
            notes.warn(warning);
        }
    }

    /// Fails as soon as it is clear that this is not a tar, or that it does not fit into memory.
    ///
    /// # Errors
    /// The fault in the bytes, or the memory limit.
    pub(super) fn check(&self) -> Result<(), LayerError> {
        if let Some(over) = &self.over {
            return Err(over.clone().into());
        }
        if self.is_refused() && !self.is_strict() {
            return Err(LayerError::TooLarge);
        }
        self.error.clone().map_or(Ok(()), |error| Err(explain(error, &self.head)))
    }

    fn is_settled(&self) -> bool {
        self.verdict.is_some()
            || self.error.is_some()
            || self.over.is_some()
            || self.walker.is_over()
    }

    /// # Errors
    /// If no consumer could serve the entries, or the tar is truncated or broken.
    pub(super) fn finish(self) -> Result<TarListing, NoZtoc> {
        let Contents { policy, walker, size, files, sparse, memory, head, .. } = match self.verdict
        {
            Some(verdict) => return Err(verdict.into()),
            None => self.check().map(|()| self)?,
        };
        let end = walker.finish().map_err(|error| explain(error, &head))?;
        let notes = match policy {
            EntryPolicy::Strict => Notes::default(),
            EntryPolicy::Lenient(notes) => notes,
        };
        Ok(TarListing { files, sparse, notes, end, size, memory })
    }
}

/// Turns a tar error into a layer error. If the first block is not a tar header, the error says
/// what the bytes look like.
fn explain(error: TarError, head: &[u8]) -> LayerError {
    let at_once = error.offset == Uncompressed(0)
        && matches!(error.fault, TarFault::Checksum | TarFault::CutInHeader);
    let looks_like = match sniff::format(head) {
        _ if !at_once => None,
        Format::Gzip => Some("gzip data inside gzip"),
        Format::Zstd => Some("zstd"),
        Format::Foreign(name) => Some(name),
        Format::Plain => sniff::looks_like(head),
    };
    match looks_like {
        Some(looks_like) => LayerError::NotALayer { looks_like, cause: error },
        None => LayerError::Tar(error),
    }
}

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
    /// The map of a sparse file.
    pub sparse: Option<SparseMap>,
}

/// The whiteout that has the effect of a global header: containerd, moby and containers/storage
/// make the parents of its name, remove what is there or carry out the whiteout that it is, and
/// create nothing. GNU tar names its global headers `$TMPDIR/GlobalHead.PID.N`.
fn whiteout(name: &[u8]) -> Option<Box<[u8]>> {
    let end = name.iter().rposition(|&byte| byte != b'/')? + 1;
    let start = name[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let parent = &name[..start];
    let last = &name[start..end];
    match last {
        b"." | b".." => None,
        _ if last.starts_with(WHITEOUT) => Some(name[..end].into()),
        _ => Some([parent, WHITEOUT, last].concat().into()),
    }
}

/// None if the entry has no effect.
pub(super) fn adapted(entry: Entry, notes: &mut Notes) -> Option<AdaptedEntry> {
    let kind = match kind(entry.kind) {
        Ok(kind) => kind,
        Err(UnlistedEntry::GlobalHeader) => {
            let name = whiteout(&entry.name)?;
            let file = metadata(Entry { name, ..entry }, FileKind::Regular, 0, 0);
            return Some(AdaptedEntry { file: FileMetadata { size: 0, ..file }, sparse: None });
        }
        Err(UnlistedEntry::Sparse) => FileKind::Regular,
        Err(UnlistedEntry::Other(flag)) => {
            let what = format!(
                "skipping {}: it has the entry type {:?}",
                shown(&entry.name),
                char::from(flag)
            );
            notes.warn(what);
            return None;
        }
    };
    let uid = entry.uid as u32;
    let gid = entry.gid as u32;
    if i64::from(uid) != entry.uid || i64::from(gid) != entry.gid {
        // CVE-2024-40635: such a number used to become root without notice.
        let what = format!("belongs to {}:{}; shown as {uid}:{gid}", entry.uid, entry.gid);
        notes.warn(format!("{} {what}", shown(&entry.name)));
    }
    // Only regular files have data; other types may claim any size.
    let size = if kind == FileKind::Regular { u64::try_from(entry.size).unwrap_or(0) } else { 0 };
    // A sparse file may have more bytes than there are positions after its offset.
    let size = size.min((i64::MAX as u64).saturating_sub(entry.data.0));
    let sparse = entry.sparse.clone();
    Some(AdaptedEntry { file: FileMetadata { size, ..metadata(entry, kind, uid, gid) }, sparse })
}
