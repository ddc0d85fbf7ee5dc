//! The list of a layer's entries, which most readers need only until they have made the tree.
//!
//! An entry takes some 250 bytes, and images have tens of thousands of them. Who reads spans needs
//! only the entries whose headers are in the span. So the list can be packed: groups of entries are
//! encoded as in a fine document, and decoded again when one of them is asked for.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::budget::Budget;
use crate::fine::{StoredEntries, decode_entries, encode_entries};
use crate::offset::Uncompressed;
use crate::ztoc::FileMetadata;

/// How many entries are encoded together. A span of 256 KiB holds some twenty files.
const GROUP: usize = 32;
/// Held while a list is decoded only to be packed.
static LATE: Mutex<()> = Mutex::new(());

/// The entries of a layer in the tar's order.
#[derive(Debug)]
pub struct FileList(RwLock<Stored>);

#[derive(Debug, Clone)]
enum Stored {
    /// As in a fine document.
    Unread {
        entries: Arc<StoredEntries>,
        /// Pack the list as soon as it is read.
        packs: bool,
    },
    Read(ReadFiles),
}

#[derive(Debug, Clone)]
enum ReadFiles {
    Listed(Arc<Vec<FileMetadata>>),
    Packed(Arc<PackedFiles>),
}

#[derive(Debug)]
struct PackedFiles {
    count: usize,
    /// The groups, one after the other.
    bytes: Box<[u8]>,
    groups: Box<[Group]>,
}

#[derive(Debug)]
struct Group {
    /// The offset of its first entry.
    first: Uncompressed,
    /// Where it ends in the bytes of all groups.
    end: usize,
}

/// Neighbouring entries of a layer.
#[derive(Debug, Clone)]
pub struct NearbyFiles {
    /// The number of the first one in the layer.
    pub first: usize,
    /// In the tar's order.
    pub files: Arc<Vec<FileMetadata>>,
}

impl From<Vec<FileMetadata>> for FileList {
    fn from(files: Vec<FileMetadata>) -> FileList {
        FileList(RwLock::new(Stored::Read(ReadFiles::Listed(Arc::new(files)))))
    }
}

impl From<StoredEntries> for FileList {
    /// Entries that are decoded when they are first asked for. If they are not valid, the list is
    /// then empty.
    fn from(entries: StoredEntries) -> FileList {
        FileList(RwLock::new(Stored::Unread { entries: Arc::new(entries), packs: false }))
    }
}

impl FileList {
    fn as_is(&self) -> Stored {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn read(&self) -> ReadFiles {
        let (entries, packs) = match self.as_is() {
            Stored::Read(files) => return files,
            Stored::Unread { entries, packs } => (entries, packs),
        };
        // The memory of a list that is packed was given back, so only one at a time takes it.
        let _turn = packs.then(|| LATE.lock().unwrap_or_else(PoisonError::into_inner));
        // Another task may have decoded them meanwhile.
        if let Stored::Read(files) = self.as_is() {
            return files;
        }
        // Otherwise, the memory was charged with the entries.
        let files = entries.decode(&mut Budget::new(u64::MAX).open()).unwrap_or_default();
        let packed = if packs { PackedFiles::new(&files) } else { None };
        let files = match packed {
            Some(packed) => ReadFiles::Packed(Arc::new(packed)),
            None => ReadFiles::Listed(Arc::new(files)),
        };
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Stored::Read(files) = &*known {
            return files.clone();
        }
        *known = Stored::Read(files.clone());
        files
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        match self.as_is() {
            Stored::Unread { entries, .. } => entries.count(),
            Stored::Read(ReadFiles::Listed(files)) => files.len(),
            Stored::Read(ReadFiles::Packed(packed)) => packed.count,
        }
    }

    /// Whether it is packed.
    pub fn is_packed(&self) -> bool {
        matches!(self.as_is(), Stored::Read(ReadFiles::Packed(_)))
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries. A packed list is decoded each time.
    pub fn all(&self) -> Arc<Vec<FileMetadata>> {
        match self.read() {
            ReadFiles::Listed(files) => files,
            ReadFiles::Packed(packed) => Arc::new(packed.decode(0..packed.groups.len())),
        }
    }

    /// The entries that have headers or bytes in `range` of the tar, the one before the first of
    /// these headers, the one after the range, and maybe more.
    pub fn near(&self, range: &Range<Uncompressed>) -> NearbyFiles {
        match self.read() {
            ReadFiles::Listed(files) => NearbyFiles { first: 0, files },
            ReadFiles::Packed(packed) => {
                let groups = packed.groups_at(range);
                NearbyFiles { first: groups.start * GROUP, files: Arc::new(packed.decode(groups)) }
            }
        }
    }

    /// Packs the list, unless it has an entry that cannot be packed or is not in the order of the
    /// tar. One that was not decoded yet is packed when it is. Returns how many bytes of memory it
    /// takes less than what was charged for it.
    pub fn pack(&self) -> u64 {
        let (packed, less) = match self.as_is() {
            Stored::Unread { entries, packs: false } => {
                let less = entries.count() * size_of::<FileMetadata>();
                (Stored::Unread { entries, packs: true }, less)
            }
            Stored::Read(ReadFiles::Listed(files)) => {
                let Some(packed) = PackedFiles::new(&files) else { return 0 };
                let before: usize = files.iter().map(FileMetadata::footprint).sum();
                let less = before.saturating_sub(packed.footprint());
                (Stored::Read(ReadFiles::Packed(Arc::new(packed))), less)
            }
            Stored::Unread { packs: true, .. } | Stored::Read(ReadFiles::Packed(_)) => return 0,
        };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = packed;
        less as u64
    }
}

impl Clone for FileList {
    fn clone(&self) -> FileList {
        FileList(RwLock::new(self.as_is()))
    }
}

impl PartialEq for FileList {
    fn eq(&self, other: &FileList) -> bool {
        self.all() == other.all()
    }
}

impl Eq for FileList {}

impl PackedFiles {
    fn new(files: &[FileMetadata]) -> Option<PackedFiles> {
        let is_packable = |file: &FileMetadata| file.mtime.is_none_or(|time| time.has_rfc3339());
        // A hostile list may be in another order. Its entries are not found by their offset.
        let is_ordered = files.is_sorted_by(|one, next| one.data_end() <= next.offset);
        if !is_ordered || !files.iter().all(is_packable) {
            return None;
        }
        let mut bytes = Vec::new();
        let mut groups = Vec::with_capacity(files.len().div_ceil(GROUP));
        for group in files.chunks(GROUP) {
            bytes.extend_from_slice(&encode_entries(group));
            groups.push(Group { first: group[0].offset, end: bytes.len() });
        }
        Some(PackedFiles { count: files.len(), bytes: bytes.into(), groups: groups.into() })
    }

    /// Approximate memory use in bytes.
    fn footprint(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.groups)
    }

    /// The groups with the entries near `range`.
    fn groups_at(&self, range: &Range<Uncompressed>) -> Range<usize> {
        // The group before has no entry in the range, since this one begins before it.
        let first =
            self.groups.partition_point(|group| group.first < range.start).saturating_sub(1);
        let end = self.groups.partition_point(|group| group.first <= range.end) + 1;
        first..end.min(self.groups.len())
    }

    fn decode(&self, groups: Range<usize>) -> Vec<FileMetadata> {
        let mut memory = Budget::new(u64::MAX).open();
        let mut files = Vec::new();
        for number in groups {
            let start = number.checked_sub(1).map_or(0, |before| self.groups[before].end);
            let count = GROUP.min(self.count - number * GROUP);
            let bytes = &self.bytes[start..self.groups[number].end];
            let Ok(group) = decode_entries(bytes, count, &mut memory) else {
                unreachable!("what was encoded here is valid")
            };
            files.extend(group);
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::{ChainState, Digest};
    use crate::fine::{Codec, FineLayer, FineSpans, FineStart, SPAN_SIZE, SpanParts, decode_spans};
    use crate::layer::prove::{SpanHeaders, headers_across};
    use crate::layer::{LayerIndexer, LayerOptions, Outcome};
    use crate::offset::Compressed;
    use crate::tar::BLOCK;
    use crate::time::Time;
    use crate::ztoc::{self, FileKind};

    /// Files of 0 to 6 blocks.
    fn files(count: u64) -> Vec<FileMetadata> {
        let mut at = BLOCK as u64;
        let file = |number| {
            let size = number % 7 * BLOCK as u64;
            let file = FileMetadata {
                name: format!("usr/lib/{}/{number}", number / 50).into_bytes().into(),
                kind: FileKind::Regular,
                offset: Uncompressed(at),
                size,
                mode: 0o644,
                uid: number as u32 % 3,
                uname: b"root"[..].into(),
                mtime: (number % 5 > 0)
                    .then_some(Time { seconds: 1_700_000_000 + number as i64, nanos: 5 }),
                ..FileMetadata::default()
            };
            at += size + BLOCK as u64;
            file
        };
        (0..count).map(file).collect()
    }

    fn packed(files: &[FileMetadata]) -> FileList {
        let list = FileList::from(files.to_vec());
        list.pack();
        assert!(list.is_packed());
        list
    }

    #[test]
    fn a_packed_list_has_the_same_entries() {
        for count in [0, 1, 31, 32, 33, 64, 200] {
            let files = files(count);
            let list = packed(&files);
            assert_eq!((list.len(), list.is_empty()), (files.len(), files.is_empty()));
            assert_eq!(*list.all(), files);
            assert_eq!(list, FileList::from(files));
        }
    }

    #[test]
    fn a_packed_entry_takes_a_tenth_of_the_memory() {
        let files = files(10_000);
        let before: usize = files.iter().map(FileMetadata::footprint).sum();
        let ReadFiles::Packed(packed) = packed(&files).read() else { unreachable!() };
        let after = packed.footprint();
        assert!(after * 7 < before, "{after} of {before}");
        assert_eq!(FileList::from(files).pack(), (before - after) as u64);
    }

    #[test]
    fn entries_are_found_by_their_place() {
        let files = files(200);
        let list = packed(&files);
        let end = files.last().unwrap().data_end().0 + 3 * BLOCK as u64;
        let borders = || (0..=end).step_by(5 * BLOCK);
        for start in borders() {
            for end in borders().filter(|end| *end > start) {
                let range = Uncompressed(start)..Uncompressed(end);
                let NearbyFiles { first, files: near } = list.near(&range);
                assert_eq!(near[..], files[first..first + near.len()]);
                let before =
                    files.partition_point(|file| file.offset <= range.start).saturating_sub(1);
                let after = files.partition_point(|file| file.offset <= range.end);
                assert!(first <= before, "{range:?}: entry {before}");
                assert!(
                    after < first + near.len() || first + near.len() == files.len(),
                    "{range:?}: entry {after}"
                );
            }
        }
        assert!(list.near(&(Uncompressed(0)..Uncompressed(BLOCK as u64))).files.len() <= 2 * GROUP);
    }

    #[test]
    fn headers_are_compared_with_a_packed_list_as_with_all_entries() {
        let mut builder = tar::Builder::new(Vec::new());
        for file in files(100) {
            let mut header = tar::Header::new_gnu();
            header.set_size(file.size);
            header.set_mode(0o644);
            header.set_mtime(1_700_000_000);
            let name = "x".repeat(if file.size > 1000 { 10 } else { 150 });
            builder.append_data(&mut header, name, &vec![0; file.size as usize][..]).unwrap();
        }
        let tar = builder.into_inner().unwrap();
        let mut indexer = LayerIndexer::new(LayerOptions::default(), None);
        indexer.push(&tar).unwrap();
        let Outcome::Ztoc(built) = indexer.finish().unwrap().outcome else {
            panic!("it has a ztoc")
        };
        let mut files = ztoc::decode(&built.bytes).unwrap().files;
        // Lies: the first and the last entry of a group, one in its middle, and one more.
        for lie in [31, 32, 50] {
            files[lie].mode += 1;
        }
        files.insert(95, FileMetadata { size: 0, ..files[95].clone() });
        let list = packed(&files);
        let mut told = 0;
        let ends = || (0..=tar.len()).step_by(9 * BLOCK);
        for start in ends() {
            for end in ends().filter(|end| *end > start) {
                let range = Uncompressed(start as u64)..Uncompressed(end as u64);
                let near = list.near(&range);
                let differences = [
                    SpanHeaders::new(&files, &range),
                    SpanHeaders::among(near.first, &near.files, &range),
                ]
                .map(|mut headers| {
                    headers.push(&tar[start..end]);
                    headers.finish().iter().map(ToString::to_string).collect::<Vec<_>>()
                });
                assert_eq!(differences[0], differences[1], "{range:?}");
                told += differences[0].len();
                for at in [range.start, range.end] {
                    assert_eq!(headers_across(&files, at), headers_across(&near.files, at), "{at}");
                }
            }
        }
        assert!(told > 1000, "{told}");
    }

    #[test]
    fn what_cannot_be_packed_stays_as_it_is() {
        let late = Time { seconds: i64::MAX, nanos: 0 };
        for change in [
            (|files: &mut [FileMetadata], late| files[40].mtime = Some(late))
                as fn(&mut [FileMetadata], Time),
            |files, _| files[40].offset = files[20].offset,
            |files, _| files[40].size += 10 * BLOCK as u64,
        ] {
            let mut files = files(50);
            change(&mut files, late);
            let list = FileList::from(files.clone());
            list.pack();
            assert!(!list.is_packed());
            assert_eq!(*list.all(), files);
        }
    }

    #[test]
    fn entries_of_a_document_are_decoded_when_they_are_asked_for() {
        let files = files(100);
        let end = files.last().unwrap().data_end();
        let spans = SpanParts {
            layer: Digest::sha256(b"layer"),
            codec: Codec::Plain,
            blob_size: end.0,
            tar_end: end,
            span_size: SPAN_SIZE,
            starts: vec![FineStart {
                input: Compressed(0),
                output: Uncompressed(0),
                bits: 0,
                state: ChainState::INITIAL,
            }],
        };
        let layer =
            FineLayer::new(files.clone(), FineSpans::new(spans).unwrap(), std::iter::empty())
                .unwrap();
        let encoded = layer.encode(&[]).unwrap();
        let head = &encoded.bytes[..encoded.head_size as usize];
        let list = || {
            let size = encoded.bytes.len() as u64;
            FileList::from(decode_spans(head, size, &mut Budget::new(u64::MAX).open()).unwrap().1)
        };
        let unread = list();
        assert_eq!((unread.len(), unread.is_packed()), (100, false));
        assert_eq!(*unread.all(), files);
        assert!(!unread.is_packed() && unread.pack() > 0);
        assert!(unread.is_packed() && *unread.all() == files);
        let late = list();
        assert_eq!(late.pack(), 100 * size_of::<FileMetadata>() as u64);
        assert!(!late.is_packed(), "not decoded for that");
        assert!(*late.all() == files && late.is_packed(), "packed as soon as it is read");
        assert_eq!(late.pack(), 0);
        assert_eq!(*list().near(&(Uncompressed(0)..end)).files, files);
        assert!(list() == FileList::from(files));
    }
}
