//! The layers of an image: how each is read, by which spans, and what of it counts for nothing.

use std::collections::BTreeSet;
use std::fmt;

use super::Place;
use super::groups::{Group, groups};
use super::start::Reads;
use crate::image::{Descriptor, NotIndexed, config};
use crate::offset::SpanId;
use crate::ops::doctor::{uncovered_code, uncovered_text, why_not};
use crate::ops::open::RootFs;
use crate::rootfs::layers::How;
use crate::ztoc::FileMetadata;

/// How many groups of spans all layers together have, about.
const GROUPS: u32 = 1_500;
/// How many a layer has at most, and how many it may have however small it is.
const MOST_GROUPS: u32 = 200;
const LEAST_GROUPS: u32 = 12;

/// One layer.
#[derive(Debug, Clone)]
pub struct LayerBreakdown {
    /// Counted from 0 at the bottom.
    pub number: usize,
    /// Media type, digest and size of the layer's blob.
    pub descriptor: Descriptor,
    /// The number of the layer below that is the same blob, with which it is shown.
    pub same_as: Option<usize>,
    /// Whether consumers of the index can read it lazily.
    pub lazy: Lazy,
    /// The command that made it, if the image's config says so.
    pub created_by: Option<String>,
    /// Bytes of its tar.
    pub plain: u64,
    /// Bytes of the tar in a span, at least.
    pub span_size: u64,
    /// How many spans it has.
    pub spans: u32,
    /// Files with content, as the tar has them.
    pub files: u64,
    /// Files of it that layers above replace or remove.
    pub shadowed: Shadowed,
    /// What a recorded start needs of it; none without a record.
    pub read: Option<SpansRead>,
    /// All its spans, in groups, from front to back.
    pub groups: Vec<Group>,
}

/// Whether consumers of the index can read a layer lazily.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lazy {
    /// They can.
    Yes,
    /// They pull it whole.
    No(Uncovered),
}

/// Why a layer is pulled whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uncovered {
    /// The index has a ztoc for it that cannot be used.
    BadZtoc,
    /// The index has none. None: by its content, or by its maker's options.
    NotInIndex(Option<NotIndexed>),
    /// The image has no index. None: one could cover it.
    NoIndex(Option<NotIndexed>),
}

/// Files whose bytes nobody sees: layers above replace or remove them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shadowed {
    /// How many.
    pub files: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

/// Spans that a recorded start needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpansRead {
    /// How many.
    pub spans: u32,
    /// Bytes of the layer's blob; of a layer that is decoded whole, of its tar.
    pub bytes: u64,
}

impl Shadowed {
    /// The sums of both.
    pub fn and(self, other: Shadowed) -> Shadowed {
        Shadowed { files: self.files + other.files, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl Uncovered {
    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            Uncovered::BadZtoc => "bad-ztoc",
            Uncovered::NoIndex(None) => "no-index",
            Uncovered::NotInIndex(why) | Uncovered::NoIndex(why) => uncovered_code(why),
        }
    }
}

impl fmt::Display for Uncovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Uncovered::BadZtoc => f.write_str("the index has a ztoc for it that cannot be used"),
            Uncovered::NoIndex(None) => f.write_str("the image has no SOCI index"),
            Uncovered::NotInIndex(why) | Uncovered::NoIndex(why) => f.write_str(uncovered_text(*why)),
        }
    }
}

/// All layers, from the bottom up. `live` are the files of the flattened image; `same` says which
/// layers are one blob. Only those that are `shown` have groups.
pub(super) fn layers(
    image: &RootFs,
    live: &[(Place, u64)],
    same: &[usize],
    shown: &BTreeSet<usize>,
    reads: Option<&Reads>,
) -> Vec<LayerBreakdown> {
    let created_by = created_by(image);
    let bytes: u64 = image.layers.iter().map(|layer| layer.descriptor.size).fold(0, u64::saturating_add);
    let opened = image.content.layers().zip(&image.layers).zip(same).enumerate();
    let all = opened.map(|(number, ((open, facts), first))| {
        let table = open.spans();
        let files: Vec<&FileMetadata> = facts.map.files_with_bytes().collect();
        let is_first = number == *first;
        let read = reads.map(|reads| reads.spans(*first, table)).unwrap_or_default();
        let share = u128::from(facts.descriptor.size) * u128::from(GROUPS) / u128::from(bytes.max(1));
        let most = u32::try_from(share).unwrap_or(GROUPS).clamp(LEAST_GROUPS, MOST_GROUPS);
        let range = |span: &u32| table.blob_range(SpanId(*span));
        LayerBreakdown {
            number,
            descriptor: facts.descriptor.clone(),
            same_as: (!is_first).then_some(*first),
            lazy: match facts.how {
                How::Fine | How::Index => Lazy::Yes,
                How::Local | How::Whole => Lazy::No(uncovered(image, &facts.descriptor)),
            },
            created_by: created_by.get(number).cloned().filter(|command| !command.is_empty()),
            plain: facts.map.tar_end.0,
            span_size: facts.map.span_size(),
            spans: table.count(),
            files: files.len() as u64,
            shadowed: if is_first { shadowed(number as u32, &files, live) } else { Shadowed::default() },
            read: reads.map(|_| SpansRead {
                spans: read.len() as u32,
                bytes: read.iter().map(range).map(|range| range.end.0.saturating_sub(range.start.0)).sum(),
            }),
            groups: match is_first && shown.contains(&number) {
                true => groups(table, number as u32, &files, &read, reads, most),
                false => Vec::new(),
            },
        }
    });
    all.collect()
}

fn uncovered(image: &RootFs, layer: &Descriptor) -> Uncovered {
    match image.index.as_ref().and_then(|index| index.content.as_ref().ok()) {
        None => Uncovered::NoIndex(why_not(layer)),
        Some(content) if content.ztocs.contains_key(&layer.digest) => Uncovered::BadZtoc,
        Some(_) => Uncovered::NotInIndex(why_not(layer)),
    }
}

/// The commands that made the layers; none if the config does not tell for each of them.
fn created_by(image: &RootFs) -> Vec<String> {
    let commands = config::created_by(&image.config).unwrap_or_default();
    if commands.len() == image.layers.len() { commands } else { Vec::new() }
}

fn shadowed(layer: u32, files: &[&FileMetadata], live: &[(Place, u64)]) -> Shadowed {
    let is_live = |offset: u64| live.binary_search_by_key(&(layer, offset), |(place, _)| *place).is_ok();
    let gone = files.iter().filter(|file| !is_live(file.offset.0));
    gone.fold(Shadowed::default(), |sum, file| sum.and(Shadowed { files: 1, bytes: file.size }))
}
