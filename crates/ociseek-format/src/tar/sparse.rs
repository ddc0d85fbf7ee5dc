//! Reads the maps of sparse files in the four forms of GNU tar (its manual, "Storing Sparse Files",
//! and archive/tar's reader.go).

use std::ops::Range;

use super::numeric::{decimal, field};
use super::pax::value_of;
use super::sparse_map::SparseMap;
use super::{BLOCK, Entry};

/// The maximum size of the blocks that hold a map (archive/tar maxSpecialFileSize): 1 MiB.
const MAX_MAP: usize = 1 << 20;
/// The parts and the flag that another block follows, in the header of an old sparse file and in
/// the further blocks of its map.
const IN_HEADER: (Range<usize>, usize) = (386..482, 482);
const IN_BLOCK: (Range<usize>, usize) = (0..504, 504);
/// The expanded size in the header of an old sparse file.
const OLD_SIZE: Range<usize> = 483..495;
/// The bytes of a part in these: its offset and its length.
const OLD_PART: usize = 24;

/// A sparse file whose map is being read.
pub(super) struct UnfinishedMap {
    pub entry: Entry,
    /// The bytes of its data that follow.
    pub left: u64,
    /// The bytes of the map's blocks so far.
    read: usize,
    map: Reading,
}

enum Reading {
    /// In the header, which tells whether blocks follow, and in these.
    Old {
        size: i64,
        parts: Vec<(i64, i64)>,
        more: bool,
    },
    /// Text at the start of the data: the number of parts, then offset and length of each, with a
    /// line feed after each number.
    Text {
        text: Vec<u8>,
        lines: usize,
        needed: usize,
    },
    Complete(SparseMap),
}

impl UnfinishedMap {
    /// Reads what the header block of an old sparse file holds of its map. None if Go rejects it.
    pub(super) fn old(entry: Entry, left: u64, block: &[u8; BLOCK]) -> Option<UnfinishedMap> {
        let mut parts = Vec::new();
        let more = old_parts(block, IN_HEADER, &mut parts)?;
        Some(UnfinishedMap {
            entry,
            left,
            read: BLOCK,
            map: Reading::Old { size: field(&block[OLD_SIZE])?, parts, more },
        })
    }

    /// Takes name, size and map from an entry's PAX records. None if Go rejects them.
    pub(super) fn pax(mut entry: Entry, left: u64) -> Option<UnfinishedMap> {
        let get = |key: &[u8]| value_of(&entry.pax, key);
        let name = get(b"GNU.sparse.name");
        let size = match get(b"GNU.sparse.size") {
            b"" => get(b"GNU.sparse.realsize"),
            size => size,
        };
        if entry.kind.is_header_only() {
            return None;
        }
        let size = if size.is_empty() { entry.size } else { decimal(size)? };
        let map = match get(b"GNU.sparse.major") {
            b"1" => Reading::Text { text: Vec::new(), lines: 0, needed: 1 },
            _ => {
                let (count, list) = (decimal(get(b"GNU.sparse.numblocks"))?, get(b"GNU.sparse.map"));
                let numbers = || list.split(|&byte| byte == b',').filter(|_| !list.is_empty());
                if usize::try_from(count).ok()?.checked_mul(2)? != numbers().count() {
                    return None;
                }
                Reading::Complete(map(size, pairs(numbers()))?)
            }
        };
        if !name.is_empty() {
            entry.name = name.into();
        }
        entry.size = size;
        Some(UnfinishedMap { entry, left, read: 0, map })
    }

    /// Whether the map continues in the next block.
    pub(super) fn is_unfinished(&self) -> bool {
        match &self.map {
            Reading::Old { more, .. } => *more,
            Reading::Text { lines, needed, .. } => lines < needed,
            Reading::Complete(_) => false,
        }
    }

    /// Takes the next block of the map. None if Go rejects it.
    pub(super) fn block(&mut self, block: &[u8; BLOCK]) -> Option<()> {
        self.read += BLOCK;
        if self.read > MAX_MAP {
            return None;
        }
        self.entry.data += BLOCK as u64;
        match &mut self.map {
            Reading::Old { parts, more, .. } => *more = old_parts(block, IN_BLOCK, parts)?,
            Reading::Text { text, lines, needed } => {
                self.left = self.left.checked_sub(BLOCK as u64)?;
                text.extend_from_slice(block);
                let was = *lines;
                *lines += block.iter().filter(|&&byte| byte == b'\n').count();
                if was == 0 && *lines > 0 {
                    let count = decimal(text.split(|&byte| byte == b'\n').next()?)?;
                    *needed = usize::try_from(count).ok()?.checked_mul(2)?.checked_add(1)?;
                }
            }
            Reading::Complete(_) => {}
        }
        Some(())
    }

    /// The entry with its map. None if Go rejects the map, or could not read the file by it.
    pub(super) fn finish(self) -> Option<(Entry, u64)> {
        let UnfinishedMap { mut entry, left, map: reading, .. } = self;
        let found = match reading {
            Reading::Old { size, parts, .. } => {
                entry.size = size;
                map(size, parts.into_iter().map(Some))?
            }
            Reading::Text { text, needed, .. } => {
                map(entry.size, pairs(text.split(|&byte| byte == b'\n').take(needed).skip(1)))?
            }
            Reading::Complete(map) => map,
        };
        if found.stored() != left {
            return None;
        }
        entry.sparse = Some(found);
        Some((entry, left))
    }
}

/// The map of these parts. None if one cannot be read or the map is not valid.
fn map(size: i64, parts: impl Iterator<Item = Option<(i64, i64)>>) -> Option<SparseMap> {
    let mut is_readable = true;
    let parts = parts.map_while(|part| {
        let part = part.and_then(|(start, length)| Some((u64::try_from(start).ok()?, u64::try_from(length).ok()?)));
        is_readable &= part.is_some();
        part
    });
    SparseMap::new(u64::try_from(size).ok()?, parts).filter(|_| is_readable)
}

/// Pairs of decimal numbers.
fn pairs<'a>(mut numbers: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = Option<(i64, i64)>> {
    std::iter::from_fn(move || {
        let start = numbers.next()?;
        Some(numbers.next().and_then(|length| Some((decimal(start)?, decimal(length)?))))
    })
}

/// Adds the parts that a block of an old sparse file holds, and tells whether another follows.
fn old_parts(block: &[u8; BLOCK], (at, more): (Range<usize>, usize), parts: &mut Vec<(i64, i64)>) -> Option<bool> {
    for part in block[at].chunks_exact(OLD_PART).take_while(|part| part[0] != 0) {
        let (start, length) = part.split_at(OLD_PART / 2);
        parts.push((field(start)?, field(length)?));
    }
    Some(block[more] != 0)
}
