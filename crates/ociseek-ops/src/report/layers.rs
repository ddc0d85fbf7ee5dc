//! The layers of an image: how each is read, its spans, and the files in it that are not visible.

use std::collections::BTreeSet;
use std::fmt;

use super::FilePlace;
use super::groups::{Group, groups};
use super::start::Reads;
use crate::doctor::{uncovered_code, uncovered_text, why_not};
use crate::open::RootFs;
use ociseek_format::image::{Descriptor, NotIndexed, config};
use ociseek_format::offset::{LayerId, SpanId};
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
    /// Whether consumers of the index can read it lazily.
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
        ShadowedFiles { files: self.files + other.files, bytes: self.bytes.saturating_add(other.bytes) }
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
            UncoveredReason::BadZtoc => f.write_str("the index has a ztoc for it that cannot be used"),
            UncoveredReason::NoIndex(None) => f.write_str("the image has no SOCI index"),
            UncoveredReason::NotInIndex(why) | UncoveredReason::NoIndex(why) => f.write_str(uncovered_text(*why)),
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
    let bytes: u64 = image.layers.iter().map(|layer| layer.descriptor.size).fold(0, u64::saturating_add);
    let opened = (0..).map(LayerId).zip(image.content.layers().zip(&image.layers).zip(same));
    let all = opened.map(|(number, ((open, facts), first))| {
        let table = open.spans();
        let entries = facts.map.entries();
        let files: Vec<&FileMetadata> = entries.with_bytes().collect();
        let is_first = number == *first;
        let read = reads.map(|reads| reads.spans(*first, table)).unwrap_or_default();
        let share = u128::from(facts.descriptor.size) * u128::from(GROUPS) / u128::from(bytes.max(1));
        let most = u32::try_from(share).unwrap_or(GROUPS).clamp(LEAST_GROUPS, MOST_GROUPS);
        let range = |span: &SpanId| table.blob_range(*span);
        LayerBreakdown {
            number,
            descriptor: facts.descriptor.clone(),
            same_as: (!is_first).then_some(*first),
            lazy: match facts.how {
                LayerAccess::Fine | LayerAccess::Index => Lazy::Yes,
                LayerAccess::Local | LayerAccess::Whole => Lazy::No(uncovered(image, &facts.descriptor)),
            },
            created_by: created_by.get(number.0 as usize).cloned().filter(|command| !command.is_empty()),
            plain: facts.map.tar_end.0,
            span_size: facts.map.span_size(),
            spans: table.count(),
            files: files.len() as u64,
            shadowed: if is_first { shadowed(number, &files, live) } else { ShadowedFiles::default() },
            read: reads.map(|_| SpansRead {
                spans: read.len() as u32,
                bytes: read.iter().map(range).map(|range| range.end.0.saturating_sub(range.start.0)).sum(),
            }),
            groups: match is_first && shown.contains(&number) {
                true => groups(table, number, &files, &read, reads, most),
                false => Vec::new(),
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
    let is_live = |offset: u64| live.binary_search_by_key(&(layer, offset), |(place, _)| *place).is_ok();
    let gone = files.iter().filter(|file| !is_live(file.offset.0));
    gone.fold(ShadowedFiles::default(), |sum, file| sum.and(ShadowedFiles { files: 1, bytes: file.size }))
}
