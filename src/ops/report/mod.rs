//! `report`: what an image is made of, how much of it can be read lazily, and what a recorded start reads of it.
//!
//! The facts are made from an opened image without any I/O. Their size is bounded, whatever the
//! image has: adjacent spans are grouped, and of files and layers only the largest are listed.

mod groups;
mod layers;
mod sizes;
mod start;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

pub use groups::{Group, GroupFile};
pub use layers::{LayerBreakdown, Lazy, Shadowed, SpansRead, Uncovered};
pub use sizes::Fetch;
pub use start::{Start, StartError};

use self::start::Reads;
use super::open::RootFs;
use crate::budget::{Budget, OverBudget};
use crate::digest::Digest;
use crate::image::coverage::Coverage;
use crate::image::{Descriptor, Platform};
use crate::rootfs::layers::How;
use crate::rootfs::record::RecordedRead;
use crate::tree::{Extent, NodeId, NodeKind};

/// How many of the largest files are listed.
const LARGEST: usize = 25;
/// How many layers are shown, the largest ones.
const MAX_LAYERS: usize = 100;
/// Memory that the facts take for each file of the image while they are made, in bytes.
const FILE: u64 = 48;

/// What an image is made of.
#[derive(Debug, Clone)]
pub struct Report {
    /// Media type, digest and size of the image manifest.
    pub manifest: Descriptor,
    /// None if the image does not say.
    pub platform: Option<Platform>,
    /// The SOCI index that is used, if there is any.
    pub index: Option<IndexFacts>,
    /// What the index covers.
    pub coverage: Coverage,
    /// Sums over all layers.
    pub totals: Totals,
    /// From the bottom up.
    pub layers: Vec<LayerBreakdown>,
    /// How many layers are not among them: smaller than those that are.
    pub layers_left_out: usize,
    /// The largest first.
    pub largest: Vec<LargeFile>,
    /// What a recorded start reads.
    pub start: Option<Start>,
    /// What such a start would fetch: with the spans as they are, then at other span sizes.
    pub sizes: Vec<Fetch>,
}

/// A SOCI index.
#[derive(Debug, Clone)]
pub struct IndexFacts {
    /// The digest of its manifest.
    pub digest: Digest,
    /// Bytes of its manifest; None if nobody says.
    pub size: Option<u64>,
    /// 1 or 2.
    pub version: u8,
    /// What its maker calls itself.
    pub tool: Option<String>,
}

/// Sums over the whole image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of the layers' tars.
    pub plain: u64,
    /// Regular files of the flattened image, a file of several names once.
    pub files: u64,
    /// Bytes that they hold.
    pub file_bytes: u64,
    /// What layers hold for nothing.
    pub shadowed: Shadowed,
}

/// A file of the flattened image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargeFile {
    /// From the root, without a slash in front.
    pub path: Vec<u8>,
    /// Bytes of its content.
    pub size: u64,
    /// The number of its layer, counted from 0 at the bottom.
    pub layer: u32,
    /// The recorded start read of it; None without a record.
    pub read: Option<bool>,
}

/// Where a file's bytes lie: the number of its layer, and the place in its tar.
type Place = (u32, u64);

impl Report {
    /// The facts of an image, and what the recorded `reads` touch of it.
    ///
    /// # Errors
    /// When there is not enough memory for it, or the reads are of another image.
    pub fn of(image: &RootFs, reads: Option<&[RecordedRead]>, budget: &Budget) -> Result<Report, ReportError> {
        let files: u64 = image.layers.iter().map(|layer| layer.map.files.len() as u64).sum();
        let _memory = budget.charge(files * FILE, || format!("a report of {files} files"))?;
        let reads = reads.map(|reads| Reads::of(image, reads)).transpose()?;
        let same = same(image);
        let live = live(image, &same);
        let layers = layers::layers(image, &live, &same, &shown(image), reads.as_ref());
        let coverage = Coverage::of(image.layers.iter().map(|layer| &layer.descriptor), |layer| {
            image.layers.iter().any(|opened| opened.descriptor.digest == layer.digest && opened.how == How::Index)
        });
        let totals = Totals {
            plain: once(&same).filter_map(|n| image.layers.get(n)).map(|layer| layer.map.tar_end.0).sum(),
            files: live.len() as u64,
            file_bytes: live.iter().map(|(_, size)| size).sum(),
            shadowed: layers.iter().map(|layer| layer.shadowed).fold(Shadowed::default(), Shadowed::and),
        };
        let sizes = reads.as_ref().map(|reads| sizes::sizes(image, &layers, &same, reads)).unwrap_or_default();
        let largest = largest(image, &same, reads.as_ref());
        let start = reads.map(|reads| reads.start(&sizes));
        let shown = shown(image);
        let layers: Vec<LayerBreakdown> = layers.into_iter().filter(|layer| shown.contains(&layer.number)).collect();
        let layers_left_out = image.layers.len() - layers.len();
        Ok(Report {
            manifest: image.manifest.clone(),
            platform: image.platform.clone(),
            index: image.index.as_ref().map(|index| IndexFacts {
                digest: index.digest,
                size: index.size,
                version: index.version.number(),
                tool: index.content.as_ref().ok().and_then(|content| content.index.build_tool_identifier.clone()),
            }),
            coverage,
            totals,
            layers,
            layers_left_out,
            largest,
            start,
            sizes,
        })
    }
}

/// Why there are no facts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ReportError {
    #[error("the image does not fit into memory")]
    Memory(#[from] OverBudget),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// The places of all files of the flattened image, sorted, and their sizes. A blob that is several
/// layers counts as the first.
fn live(image: &RootFs, same: &[usize]) -> Vec<(Place, u64)> {
    let mut live: Vec<_> = files(image).map(|(_, extent)| (place(same, &extent), extent.size)).collect();
    live.sort_unstable();
    live.dedup();
    live
}

fn files(image: &RootFs) -> impl Iterator<Item = (NodeId, Extent)> {
    let nodes = (0..image.tree.len() as u32).map(NodeId);
    nodes.filter_map(|id| match &image.tree.get(id)?.kind {
        NodeKind::File(extent) => Some((id, *extent)),
        _ => None,
    })
}

fn place(same: &[usize], extent: &Extent) -> Place {
    (same.get(extent.layer.0 as usize).map_or(extent.layer.0, |first| *first as u32), extent.offset.0)
}

/// For each layer the number of the first that is the same blob: an image may have a blob twice, and pulls it once.
fn same(image: &RootFs) -> Vec<usize> {
    let mut first = BTreeMap::new();
    let layers = image.layers.iter().enumerate();
    layers.map(|(number, layer)| *first.entry(layer.descriptor.digest).or_insert(number)).collect()
}

/// The numbers of the layers, each blob once.
fn once(same: &[usize]) -> impl Iterator<Item = usize> {
    same.iter().enumerate().filter(|(number, first)| number == *first).map(|(number, _)| number)
}

fn largest(image: &RootFs, same: &[usize], reads: Option<&Reads>) -> Vec<LargeFile> {
    let mut largest: Vec<(Reverse<u64>, NodeId, Extent)> = Vec::with_capacity(LARGEST + 1);
    for (id, extent) in files(image) {
        let at = largest.partition_point(|(size, other, _)| (*size, *other) < (Reverse(extent.size), id));
        if at < LARGEST {
            largest.insert(at, (Reverse(extent.size), id, extent));
            largest.truncate(LARGEST);
        }
    }
    let file = |(_, id, extent): (_, NodeId, Extent)| LargeFile {
        path: image.tree.path(id),
        size: extent.size,
        layer: extent.layer.0,
        read: reads.map(|reads| reads.has(place(same, &extent))),
    };
    largest.into_iter().map(file).collect()
}

/// The numbers of the layers that are shown: the largest.
fn shown(image: &RootFs) -> BTreeSet<usize> {
    let sizes = image.layers.iter().map(|layer| Reverse(layer.descriptor.size)).zip(0..);
    let mut sizes: Vec<(Reverse<u64>, usize)> = sizes.collect();
    sizes.sort_unstable();
    sizes.into_iter().take(MAX_LAYERS).map(|(_, number)| number).collect()
}
