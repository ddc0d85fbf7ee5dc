//! Groups the spans of a layer, adjacent ones together if there are many, and finds the files in
//! them.

use std::ops::Range;

use super::FilePlace;
use super::start::Reads;
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_format::ztoc::FileMetadata;

/// How many files of a group are named.
const NAMED: usize = 6;
/// The longest name that is listed, in bytes: the kernel's limit for a path. Files with longer ones
/// are only counted.
const LONGEST: usize = 4096;

/// Adjacent spans of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its spans, at least one.
    pub spans: Range<SpanId>,
    /// The size in the layer's blob in bytes; for a layer that is decoded as a whole, in its tar.
    pub bytes: u64,
    /// The size in the tar in bytes.
    pub plain: u64,
    /// How many of the spans a recorded start needs. None without a record.
    pub read: u32,
    /// The number of files with at least one byte in the group.
    pub files: u64,
    /// The largest of these files; those that a recorded start read come first.
    pub largest: Vec<GroupFile>,
}

/// A file with content in a group of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFile {
    /// As written in the tar.
    pub path: Vec<u8>,
    /// The size of its content in bytes.
    pub size: u64,
    /// Whether a recorded start read it.
    pub read: bool,
}

/// A file that may be named: read, size, number in the list of files.
type Candidate = (bool, u64, std::cmp::Reverse<usize>);

/// At most `most` groups of the spans of `layer`. `read` are the spans that a start needs, sorted.
pub(super) fn groups(
    table: &SpanTable<LayerMap>,
    layer: LayerId,
    files: &[&FileMetadata],
    read: &[SpanId],
    reads: Option<&Reads>,
    most: u32,
) -> Vec<Group> {
    let count = table.count();
    let each = count.div_ceil(most.max(1)).max(1);
    let mut groups: Vec<Group> = Vec::with_capacity(count.div_ceil(each) as usize);
    let before = |end: SpanId| read.partition_point(|span| *span < end);
    let mut first = 0;
    while first < count {
        let end = first.saturating_add(each).min(count);
        let (spans, last) = (SpanId(first)..SpanId(end), SpanId(end - 1));
        let blob = table.blob_range(spans.start).start.0..table.blob_range(last).end.0;
        let plain = table.plain_range(spans.start).start.0..table.plain_range(last).end.0;
        groups.push(Group {
            bytes: blob.end.saturating_sub(blob.start),
            plain: plain.end.saturating_sub(plain.start),
            read: (before(spans.end) - before(spans.start)) as u32,
            files: 0,
            largest: Vec::new(),
            spans,
        });
        first = end;
    }
    let mut named: Vec<Vec<Candidate>> = vec![Vec::new(); groups.len()];
    for (at, file) in files.iter().enumerate() {
        let within = table.covering(file.offset..Uncompressed(file.offset.0.saturating_add(file.size)));
        if within.is_empty() {
            continue;
        }
        let place: FilePlace = (layer, file.offset.0);
        let candidate = (reads.is_some_and(|reads| reads.has(place)), file.size, std::cmp::Reverse(at));
        let within = (within.start.0 / each) as usize..=((within.end.0 - 1) / each) as usize;
        let Some((groups, named)) = groups.get_mut(within.clone()).zip(named.get_mut(within)) else { continue };
        for (group, named) in groups.iter_mut().zip(named) {
            group.files += 1;
            if file.name.len() <= LONGEST {
                add(named, candidate);
            }
        }
    }
    for (group, named) in groups.iter_mut().zip(named) {
        let named = named.into_iter().filter_map(|(read, size, at)| Some((read, size, files.get(at.0)?)));
        group.largest = named.map(|(read, size, file)| GroupFile { path: file.name.to_vec(), size, read }).collect();
    }
    groups
}

/// Keeps only the greatest few, the greatest first.
fn add(named: &mut Vec<Candidate>, candidate: Candidate) {
    let place = named.partition_point(|other| *other > candidate);
    if place < NAMED {
        named.insert(place, candidate);
        named.truncate(NAMED);
    }
}
