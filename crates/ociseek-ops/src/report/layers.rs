//! The layers of an image: how each is read, the files in it that are not visible, and its spans.
//! Adjacent spans are grouped if there are many, with the files in them.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use super::FilePlace;
use super::start::Reads;
use crate::doctor::{uncovered_code, uncovered_text, why_not};
use crate::open::RootFs;
use ociseek_format::image::{Descriptor, NotIndexed, config};
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_format::ztoc::FileMetadata;
use ociseek_rootfs::layers::LayerAccess;

/// The approximate number of groups of spans for all layers together.
const GROUPS: u32 = 1_500;
/// The maximum number of groups of a layer, which even a small layer may have.
const MOST_GROUPS: u32 = 200;
const LEAST_GROUPS: u32 = 12;

/// A layer.
#[derive(Debug, Clone)]
pub struct LayerBreakdown {
    /// Counted from 0 at the bottom.
    pub number: LayerId,
    /// Media type, digest and size of the layer's blob.
    pub descriptor: Descriptor,
    /// A lower layer with the same blob, which is shown instead.
    pub same_as: Option<LayerId>,
    /// Whether consumers of the SOCI index can read it lazily.
    pub lazy: Lazy,
    /// The command that created it, if the image's config states it.
    pub created_by: Option<String>,
    /// The size of its tar in bytes.
    pub plain: u64,
    /// The least size of a span in bytes of the tar.
    pub span_size: u64,
    /// The number of spans.
    pub spans: u32,
    /// The number of files with content in the tar.
    pub files: u64,
    /// The files in it that upper layers replace or remove.
    pub shadowed: ShadowedFiles,
    /// The spans that a recorded start needs. None without a record.
    pub read: Option<SpansRead>,
    /// All its spans in groups, in order.
    pub groups: Vec<Group>,
}

/// Whether consumers of the index can read a layer lazily.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lazy {
    /// They can.
    Yes,
    /// They pull it completely.
    No(UncoveredReason),
}

/// Why a layer is pulled completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UncoveredReason {
    /// The index has a ztoc for it that cannot be used.
    BadZtoc,
    /// The index has no ztoc for it. None if that depends on its content, or on the options with
    /// which the index was made.
    NotInIndex(Option<NotIndexed>),
    /// The image has no index. None if one could cover the layer.
    NoIndex(Option<NotIndexed>),
}

/// Files that are not visible, because upper layers replace or remove them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShadowedFiles {
    /// The number of files.
    pub files: u64,
    /// The size of their content in bytes.
    pub bytes: u64,
}

/// Spans that a recorded start needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpansRead {
    /// The number of spans.
    pub spans: u32,
    /// The size in the layer's blob in bytes; for a layer that is decoded as a whole, in its tar.
    pub bytes: u64,
}

impl ShadowedFiles {
    /// The sum of both.
    pub fn and(self, other: ShadowedFiles) -> ShadowedFiles {
        ShadowedFiles {
            files: self.files + other.files,
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

impl UncoveredReason {
    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            UncoveredReason::BadZtoc => "bad-ztoc",
            UncoveredReason::NoIndex(None) => "no-index",
            UncoveredReason::NotInIndex(why) | UncoveredReason::NoIndex(why) => uncovered_code(why),
        }
    }
}

impl fmt::Display for UncoveredReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UncoveredReason::BadZtoc => {
                f.write_str("the index has a ztoc for it that cannot be used")
            }
            UncoveredReason::NoIndex(None) => f.write_str("the image has no SOCI index"),
            UncoveredReason::NotInIndex(why) | UncoveredReason::NoIndex(why) => {
                f.write_str(uncovered_text(*why))
            }
        }
    }
}

/// All layers from the bottom up. `live` are the files of the flattened image, and `same` tells
/// which layers share a blob. Only layers in `shown` have groups.
pub(super) fn layers(
    image: &RootFs,
    live: &[(FilePlace, u64)],
    same: &[LayerId],
    shown: &BTreeSet<LayerId>,
    reads: Option<&Reads>,
) -> Vec<LayerBreakdown> {
    let created_by = created_by(image);
    let bytes: u64 =
        image.layers.iter().map(|layer| layer.descriptor.size).fold(0, u64::saturating_add);
    let opened = (0..).map(LayerId).zip(image.content.layers().zip(&image.layers).zip(same));
    let all = opened.map(|(number, ((open, facts), first))| {
        let table = open.spans();
        let entries = facts.map.entries();
        let files: Vec<&FileMetadata> = entries.with_bytes().collect();
        let is_first = number == *first;
        let read = reads.map(|reads| reads.spans(*first, table)).unwrap_or_default();
        let share =
            u128::from(facts.descriptor.size) * u128::from(GROUPS) / u128::from(bytes.max(1));
        let most = u32::try_from(share).unwrap_or(GROUPS).clamp(LEAST_GROUPS, MOST_GROUPS);
        let range = |span: &SpanId| table.blob_range(*span);
        LayerBreakdown {
            number,
            descriptor: facts.descriptor.clone(),
            same_as: (!is_first).then_some(*first),
            lazy: match facts.how {
                LayerAccess::Index => Lazy::Yes,
                LayerAccess::Fine | LayerAccess::Local | LayerAccess::Whole => {
                    Lazy::No(uncovered(image, &facts.descriptor))
                }
            },
            created_by: created_by
                .get(number.0 as usize)
                .cloned()
                .filter(|command| !command.is_empty()),
            plain: facts.map.tar_end.0,
            span_size: facts.map.span_size(),
            spans: table.count(),
            files: files.len() as u64,
            shadowed: if is_first {
                shadowed(number, &files, live)
            } else {
                ShadowedFiles::default()
            },
            read: reads.map(|_| SpansRead {
                spans: read.len() as u32,
                bytes: read
                    .iter()
                    .map(range)
                    .map(|range| range.end.0.saturating_sub(range.start.0))
                    .sum(),
            }),
            groups: if is_first && shown.contains(&number) {
                groups(table, number, &files, &read, reads, most)
            } else {
                Vec::new()
            },
        }
    });
    all.collect()
}

fn uncovered(image: &RootFs, layer: &Descriptor) -> UncoveredReason {
    match image.index.as_ref().and_then(|index| index.content.as_ref().ok()) {
        None => UncoveredReason::NoIndex(why_not(layer)),
        Some(content) if content.ztocs.contains_key(&layer.digest) => UncoveredReason::BadZtoc,
        Some(_) => UncoveredReason::NotInIndex(why_not(layer)),
    }
}

/// The commands that created the layers. Empty if the config does not state one for each layer.
fn created_by(image: &RootFs) -> Vec<String> {
    let commands = config::created_by(&image.config).unwrap_or_default();
    if commands.len() == image.layers.len() { commands } else { Vec::new() }
}

fn shadowed(layer: LayerId, files: &[&FileMetadata], live: &[(FilePlace, u64)]) -> ShadowedFiles {
    let is_live =
        |offset: u64| live.binary_search_by_key(&(layer, offset), |(place, _)| *place).is_ok();
    let gone = files.iter().filter(|file| !is_live(file.offset.0));
    gone.fold(ShadowedFiles::default(), |sum, file| {
        sum.and(ShadowedFiles { files: 1, bytes: file.size })
    })
}

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
fn groups(
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
        let spans = SpanId(first)..SpanId(end);
        let last = SpanId(end - 1);
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
        let within =
            table.covering(file.offset..Uncompressed(file.offset.0.saturating_add(file.size)));
        if within.is_empty() {
            continue;
        }
        let place: FilePlace = (layer, file.offset.0);
        let candidate =
            (reads.is_some_and(|reads| reads.has(place)), file.size, std::cmp::Reverse(at));
        let within = (within.start.0 / each) as usize..=((within.end.0 - 1) / each) as usize;
        let Some((groups, named)) = groups.get_mut(within.clone()).zip(named.get_mut(within))
        else {
            continue;
        };
        for (group, named) in groups.iter_mut().zip(named) {
            group.files += 1;
            if file.name.len() <= LONGEST {
                add(named, candidate);
            }
        }
    }
    for (group, named) in groups.iter_mut().zip(named) {
        let named =
            named.into_iter().filter_map(|(read, size, at)| Some((read, size, files.get(at.0)?)));
        group.largest = named
            .map(|(read, size, file)| GroupFile { path: file.name.to_vec(), size, read })
            .collect();
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
