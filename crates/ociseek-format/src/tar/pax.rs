//! PAX extended headers (POSIX pax, "pax Extended Header"), parsed as archive/tar's parsePAX and
//! mergePAX do, and the maps of sparse files, in these headers and in the other three forms of GNU
//! tar (its manual, "Storing Sparse Files", and archive/tar's reader.go).

use std::ops::Range;

use super::header::{decimal, field, pax_time};
use super::{BLOCK, Entry, PaxRecord, SparseMap};

/// The records of one extended header, sorted by key. The last record of a key is used.
pub(super) type Records = Box<[PaxRecord]>;

/// Parses the data of an `x` header. None if Go rejects it.
pub(super) fn parse(mut data: &[u8]) -> Option<Records> {
    let mut records: Vec<(&[u8], &[u8])> = Vec::new();
    // GNU's sparse format 0.0 repeats two keys; Go merges their values into the single record of
    // format 0.1.
    let mut sparse_map: Vec<&[u8]> = Vec::new();
    while !data.is_empty() {
        let (key, value, rest) = record(data)?;
        data = rest;
        match key {
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                let expected: &[u8] = if sparse_map.len().is_multiple_of(2) {
                    b"GNU.sparse.offset"
                } else {
                    b"GNU.sparse.numbytes"
                };
                if key != expected || value.contains(&b',') {
                    return None;
                }
                sparse_map.push(value);
            }
            _ => records.push((key, value)),
        }
    }
    let joined = sparse_map.join(&b","[..]);
    if !sparse_map.is_empty() {
        records.push((b"GNU.sparse.map", &joined));
    }
    // Of records with the same key, the last one comes first and is kept.
    records.reverse();
    records.sort_by_key(|(key, _)| *key);
    records.dedup_by_key(|(key, _)| *key);
    Some(
        records
            .into_iter()
            .map(|(key, value)| PaxRecord { key: key.into(), value: value.into() })
            .collect(),
    )
}

/// One record, `LENGTH KEY=VALUE\n`, where LENGTH counts itself (strconv.go parsePAXRecord).
fn record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().position(|&b| b == b' ')?;
    let length = usize::try_from(decimal(&data[..space])?).ok()?;
    if length < 5 || length > data.len() || length <= space + 1 {
        return None;
    }
    let body = &data[space + 1..length];
    let rest = &data[length..];
    let body = body.strip_suffix(b"\n")?;
    let equals = body.iter().position(|&b| b == b'=')?;
    let key = &body[..equals];
    let value = &body[equals + 1..];
    // NULs are errors where they would end a C string: in keys and in values that are names.
    let must_not_hold_nul = match key {
        b"" => return None,
        b"path" | b"linkpath" | b"uname" | b"gname" => value,
        _ => key,
    };
    if must_not_hold_nul.contains(&0) { None } else { Some((key, value, rest)) }
}

/// Overrides the header block with the records. None if Go rejects them.
pub(super) fn merge(entry: &mut Entry, records: Records) -> Option<()> {
    for PaxRecord { key, value } in &records {
        if value.is_empty() {
            continue; // keeps what the header block says
        }
        match &key[..] {
            b"path" => entry.name = value[..].into(),
            b"linkpath" => entry.linkname = value[..].into(),
            b"uname" => entry.uname = value[..].into(),
            b"gname" => entry.gname = value[..].into(),
            b"uid" => entry.uid = decimal(value)?,
            b"gid" => entry.gid = decimal(value)?,
            b"size" => entry.size = decimal(value)?,
            b"mtime" => entry.mtime = pax_time(value)?,
            b"atime" | b"ctime" => {
                pax_time(value)?;
            }
            _ => {}
        }
    }
    entry.pax = records;
    Some(())
}

/// The value of a key; empty if there is none.
pub(super) fn value_of<'a>(records: &'a [PaxRecord], key: &[u8]) -> &'a [u8] {
    records
        .binary_search_by(|record| record.key[..].cmp(key))
        .map_or(&[][..], |at| &records[at].value[..])
}

/// Whether the records make the entry a GNU sparse file (reader.go readGNUSparsePAXHeaders).
pub(super) fn is_sparse(records: &[PaxRecord]) -> bool {
    match (value_of(records, b"GNU.sparse.major"), value_of(records, b"GNU.sparse.minor")) {
        (b"0", b"0" | b"1") | (b"1", b"0") => true,
        (b"", b"") => !value_of(records, b"GNU.sparse.map").is_empty(),
        _ => false, // a version that Go does not know: a file like any other
    }
}

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
                let count = decimal(get(b"GNU.sparse.numblocks"))?;
                let list = get(b"GNU.sparse.map");
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
        let sparse = match reading {
            Reading::Old { size, parts, .. } => {
                entry.size = size;
                map(size, parts.into_iter().map(Some))?
            }
            Reading::Text { text, needed, .. } => {
                map(entry.size, pairs(text.split(|&byte| byte == b'\n').take(needed).skip(1)))?
            }
            Reading::Complete(map) => map,
        };
        if sparse.stored() != left {
            return None;
        }
        entry.sparse = Some(sparse);
        Some((entry, left))
    }
}

/// The map of these parts. None if one cannot be read or the map is not valid.
fn map(size: i64, parts: impl Iterator<Item = Option<(i64, i64)>>) -> Option<SparseMap> {
    let mut is_readable = true;
    let parts = parts.map_while(|part| {
        let part = part.and_then(|(start, length)| {
            Some((u64::try_from(start).ok()?, u64::try_from(length).ok()?))
        });
        is_readable &= part.is_some();
        part
    });
    SparseMap::new(u64::try_from(size).ok()?, parts).filter(|_| is_readable)
}

/// Pairs of decimal numbers.
fn pairs<'a>(
    mut numbers: impl Iterator<Item = &'a [u8]>,
) -> impl Iterator<Item = Option<(i64, i64)>> {
    std::iter::from_fn(move || {
        let start = numbers.next()?;
        Some(numbers.next().and_then(|length| Some((decimal(start)?, decimal(length)?))))
    })
}

/// Adds the parts that a block of an old sparse file holds, and tells whether another follows.
fn old_parts(
    block: &[u8; BLOCK],
    (at, more): (Range<usize>, usize),
    parts: &mut Vec<(i64, i64)>,
) -> Option<bool> {
    for part in block[at].chunks_exact(OLD_PART).take_while(|part| part[0] != 0) {
        let (start, length) = part.split_at(OLD_PART / 2);
        parts.push((field(start)?, field(length)?));
    }
    Some(block[more] != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records() {
        let parsed = parse(b"12 path=a/b\n7 k==v\n12 path=c d\n").unwrap();
        let parsed: Vec<_> =
            parsed.iter().map(|record| (&record.key[..], &record.value[..])).collect();
        assert_eq!(parsed, [(&b"k"[..], &b"=v"[..]), (b"path", b"c d")]);
    }

    #[test]
    fn records_that_go_refuses_are_refused() {
        for bad in [
            &b"12 path=a/b"[..],  // no newline
            b"11 path=a/b\n",     // one too short: no newline where it should be
            b"13 path=a/b\n",     // longer than the data
            b"12 path:a/b\n",     // no equals sign
            b"4 =\n",             // shorter than any record
            b"5 =v\n",            // no key
            b"path=a/b\n",        // no length
            b" 12 path=a/b\n",    // no length either
            b"-12 path=a/b\n",    // negative
            b"0x0c path=a/b\n",   // not decimal
            b"12 path=a\0b\n",    // NUL in a name
            b"10 k\0ey=v\n",      // NUL in a key
            b"12 path=a/b\n\0\0", // bytes behind the last record
            b"99999999999999999999 path=a/b\n",
            b"26 GNU.sparse.numbytes=1\n",
        ] {
            assert_eq!(parse(bad), None, "{}", bad.escape_ascii());
        }
        assert!(parse(b"+12 path=ab\n").is_some(), "strconv.ParseInt takes a plus sign");
    }
}
