//! Which parts of a sparse file a tar stores.

use std::ops::Range;
use std::sync::Arc;

/// Which parts of a file a tar stores. They lie one after the other in the tar; everything else
/// is zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseMap {
    size: u64,
    /// In order, without overlaps. None is empty.
    parts: Arc<[Part]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    start: u64,
    end: u64,
    /// The number of bytes of the parts before it.
    stored: u64,
}

/// A part of a range of a sparse file that the tar stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    /// Its bytes in the file.
    pub file: Range<u64>,
    /// Where they begin in the stored bytes.
    pub stored: u64,
}

impl SparseMap {
    /// A map of a file of `size` bytes, of the offsets and lengths of its parts. None if they are
    /// not in order or not in the file (archive/tar validateSparseEntries).
    pub fn new(size: u64, parts: impl IntoIterator<Item = (u64, u64)>) -> Option<SparseMap> {
        if size > i64::MAX as u64 {
            return None;
        }
        let (mut all, mut after, mut stored) = (Vec::new(), 0, 0);
        for (start, length) in parts {
            let end = start.checked_add(length).filter(|end| start >= after && *end <= size)?;
            after = end;
            if length > 0 {
                all.push(Part { start, end, stored });
                stored += length;
            }
        }
        Some(SparseMap { size, parts: all.into() })
    }

    /// The size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The number of bytes that the tar stores.
    pub fn stored(&self) -> u64 {
        self.parts.last().map_or(0, |last| last.stored + (last.end - last.start))
    }

    /// The offset and length of each part.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.parts.iter().map(|part| (part.start, part.end - part.start))
    }

    /// The parts that have bytes in `range` of the file, cut to it.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = StoredPart> {
        let first = self.parts.partition_point(|part| part.end <= range.start);
        let parts = self.parts[first..].iter().take_while(move |part| part.start < range.end);
        parts.map(move |part| {
            let file = part.start.max(range.start)..part.end.min(range.end);
            StoredPart { stored: part.stored + (file.start - part.start), file }
        })
    }

    /// The memory that the map takes, in bytes.
    pub fn footprint(&self) -> usize {
        size_of::<SparseMap>() + size_of_val(&*self.parts)
    }
}
