//! `report`: the content of an image, how much of it can be read lazily, and what a recorded start
//! reads of it.
//!
//! The facts are computed from an opened image without I/O. Their size is limited for any image:
//! adjacent spans are grouped, and only the largest files and layers are listed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use self::start::Reads;
use super::open::RootFs;
use crate::doctor::NoIndex;
use crate::fine_documents::fetch_head;
use ociseek_format::budget::{Budget, Charge, OverBudget};
use ociseek_format::digest::Digest;
use ociseek_format::image::coverage::Coverage;
use ociseek_format::image::{Descriptor, Platform};
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::LayerId;
use ociseek_format::tree::{Extent, NodeId};
use ociseek_rootfs::layers::LayerAccess;
use ociseek_rootfs::record::RecordedRead;

mod layers;
mod sizes;
mod start;

pub use layers::{
    Group, GroupFile, LayerBreakdown, Lazy, ShadowedFiles, SpansRead, UncoveredReason,
};
pub use start::{Fetch, StartError, StartTotals, StartupFetch};

/// How many of the largest files are listed.
const LARGEST: usize = 25;
/// How many layers are shown, the largest ones.
const MAX_LAYERS: usize = 100;
/// The memory for each file of the image while the facts are computed, in bytes.
const FILE: u64 = 48;

/// The facts about an image.
#[derive(Debug, Clone)]
pub struct Report {
    /// Media type, digest and size of the image manifest.
    pub manifest: Descriptor,
    /// None if the image does not state it.
    pub platform: Option<Platform>,
    /// The SOCI index that is used, or whether there could be one.
    pub index: Result<IndexFacts, NoIndex>,
    /// The fine index that `ociseek mount` would take instead, if there is any.
    pub fine: Option<FineReport>,
    /// The coverage by the SOCI index.
    pub coverage: Coverage,
    /// Sums over all layers.
    pub totals: Totals,
    /// The shown layers, from the bottom up.
    pub layers: Vec<LayerBreakdown>,
    /// The number of smaller layers that are not shown.
    pub layers_left_out: usize,
    /// The largest files first.
    pub largest: Vec<LargeFile>,
    /// What a recorded start reads.
    pub start: Option<StartTotals>,
    /// What such a start would fetch: with the actual spans, then with other span sizes.
    pub sizes: Vec<Fetch>,
    /// What it fetches by an index of each kind, whether or not the image has one.
    pub startup: Option<StartupFetch>,
}

/// A SOCI index.
#[derive(Debug, Clone)]
pub struct IndexFacts {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The size of its manifest in bytes, if known.
    pub size: Option<u64>,
    /// 1 or 2.
    pub version: u8,
    /// The tool that it names.
    pub tool: Option<String>,
}

/// Sums over the whole image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The size of the layers' tars in bytes.
    pub plain: u64,
    /// The number of regular files in the flattened image. A file with several names counts once.
    pub files: u64,
    /// The size of their content in bytes.
    pub file_bytes: u64,
    /// The files that are not visible.
    pub shadowed: ShadowedFiles,
}

/// A file of the flattened image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargeFile {
    /// From the root, without a leading slash.
    pub path: Vec<u8>,
    /// The size of its content in bytes.
    pub size: u64,
    /// The layer that holds it.
    pub layer: LayerId,
    /// Whether the recorded start read it. None without a record.
    pub read: Option<bool>,
}

/// The location of a file's bytes: its layer, and the offset in the layer's tar.
type FilePlace = (LayerId, u64);

impl Report {
    /// The facts about an image that was opened through its SOCI index, or through its fine index
    /// if it has no other, with the parts that the recorded `reads` touch. `documents` are those of
    /// its fine index.
    ///
    /// # Errors
    /// If there is not enough memory for them, or the reads belong to another image.
    pub fn of(
        image: &RootFs,
        documents: &FineDocuments,
        reads: Option<&[RecordedRead]>,
        budget: &Budget,
    ) -> Result<Report, ReportError> {
        let files: u64 = image.layers.iter().map(|layer| layer.map.files.len() as u64).sum();
        let _memory = budget.charge(files * FILE, || format!("a report of {files} files"))?;
        let reads = reads.map(|reads| Reads::of(image, reads)).transpose()?;
        let same = same(image);
        let live = live(image, &same);
        let layers = layers::layers(image, &live, &same, &shown(image), reads.as_ref());
        let coverage = Coverage::of(image.layers.iter().map(|layer| &layer.descriptor), |layer| {
            image.layers.iter().any(|opened| {
                opened.descriptor.digest == layer.digest && opened.how == LayerAccess::Index
            })
        });
        let totals = Totals {
            plain: once(&same)
                .filter_map(|layer| image.layers.get(layer.0 as usize))
                .map(|layer| layer.map.tar_end.0)
                .sum(),
            files: live.len() as u64,
            file_bytes: live.iter().map(|(_, size)| size).sum(),
            shadowed: layers
                .iter()
                .map(|layer| layer.shadowed)
                .fold(ShadowedFiles::default(), ShadowedFiles::and),
        };
        let sizes = reads
            .as_ref()
            .map(|reads| sizes::sizes(image, &layers, &same, reads))
            .unwrap_or_default();
        let by_fine =
            reads.as_ref().map(|reads| sizes::by_fine(image, &layers, &same, documents, reads));
        let startup = reads.as_ref().zip(by_fine.as_ref()).map(|(reads, by_fine)| {
            sizes::startup(image, &layers, &same, documents, reads, (sizes.first(), by_fine))
        });
        let largest = largest(image, &same, reads.as_ref());
        let start = reads.map(|reads| reads.start(&sizes));
        let shown = shown(image);
        let layers: Vec<LayerBreakdown> =
            layers.into_iter().filter(|layer| shown.contains(&layer.number)).collect();
        let layers_left_out = image.layers.len() - layers.len();
        Ok(Report {
            manifest: image.manifest.clone(),
            platform: image.platform.clone(),
            index: match &image.index {
                Some(index) => Ok(IndexFacts {
                    digest: index.digest,
                    size: index.size,
                    version: index.version.number(),
                    tool: index
                        .content
                        .as_ref()
                        .ok()
                        .and_then(|content| content.index.build_tool_identifier.clone()),
                }),
                None => {
                    let layers: Vec<Descriptor> =
                        image.layers.iter().map(|layer| layer.descriptor.clone()).collect();
                    Err(NoIndex::of(&layers))
                }
            },
            fine: documents.report(image, by_fine),
            coverage,
            totals,
            layers,
            layers_left_out,
            largest,
            start,
            sizes,
            startup,
        })
    }
}

/// Why the facts cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("the image does not fit into memory")]
    Memory(#[from] OverBudget),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// The places of all files in the flattened image, sorted, with their sizes. If several layers
/// share a blob, the first one counts.
fn live(image: &RootFs, same: &[LayerId]) -> Vec<(FilePlace, u64)> {
    let mut live: Vec<_> =
        files(image).map(|(_, extent)| (place(same, &extent), extent.size)).collect();
    live.sort_unstable();
    live.dedup();
    live
}

fn files(image: &RootFs) -> impl Iterator<Item = (NodeId, Extent)> {
    let nodes = (0..image.tree.len() as u32).map(NodeId);
    nodes.filter_map(|id| {
        let file = &image.tree.get(id)?.kind;
        Some((id, file.stored_in(0..file.size())?))
    })
}

fn place(same: &[LayerId], extent: &Extent) -> FilePlace {
    (same.get(extent.layer.0 as usize).copied().unwrap_or(extent.layer), extent.offset.0)
}

/// For each layer the first one with the same blob, because an image may contain a blob twice but
/// pulls it once.
fn same(image: &RootFs) -> Vec<LayerId> {
    let mut first = BTreeMap::new();
    let layers = (0..).map(LayerId).zip(&image.layers);
    layers.map(|(id, layer)| *first.entry(layer.descriptor.digest).or_insert(id)).collect()
}

/// The layers, without duplicate blobs.
fn once(same: &[LayerId]) -> impl Iterator<Item = LayerId> {
    (0..).map(LayerId).zip(same).filter(|(id, first)| id == *first).map(|(id, _)| id)
}

fn largest(image: &RootFs, same: &[LayerId], reads: Option<&Reads>) -> Vec<LargeFile> {
    let mut largest: Vec<(Reverse<u64>, NodeId, Extent)> = Vec::with_capacity(LARGEST + 1);
    for (id, extent) in files(image) {
        let at = largest
            .partition_point(|(size, other, _)| (*size, *other) < (Reverse(extent.size), id));
        if at < LARGEST {
            largest.insert(at, (Reverse(extent.size), id, extent));
            largest.truncate(LARGEST);
        }
    }
    let file = |(_, id, extent): (_, NodeId, Extent)| LargeFile {
        path: image.tree.path(id),
        size: extent.size,
        layer: extent.layer,
        read: reads.map(|reads| reads.has(place(same, &extent))),
    };
    largest.into_iter().map(file).collect()
}

/// The layers that are shown, the largest ones.
fn shown(image: &RootFs) -> BTreeSet<LayerId> {
    let sizes =
        image.layers.iter().map(|layer| Reverse(layer.descriptor.size)).zip((0..).map(LayerId));
    let mut sizes: Vec<(Reverse<u64>, LayerId)> = sizes.collect();
    sizes.sort_unstable();
    sizes.into_iter().take(MAX_LAYERS).map(|(_, id)| id).collect()
}

/// A fine index.
#[derive(Debug, Clone)]
pub struct FineReport {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The size of its manifest in bytes, if known.
    pub size: Option<u64>,
    /// The tool that built it, if it names one.
    pub tool: Option<String>,
    /// The layers that are read by it.
    pub coverage: Coverage,
    /// The size of the documents of these layers in bytes.
    pub bytes: u64,
    /// How much of that is fetched before a start.
    pub start_bytes: u64,
    /// The digest of the profile that it was built with.
    pub profile: Option<Digest>,
    /// What a recorded start fetches by it. None without a record.
    pub fetch: Option<Fetch>,
}

/// The heads of the documents of an image's fine index.
#[derive(Default)]
pub struct FineDocuments {
    /// The spans of each layer.
    spans: BTreeMap<Digest, SpanTable<LayerMap>>,
    /// Their memory, held until they are dropped.
    _memory: Option<Charge>,
}

ociseek_format::opaque_debug!(FineDocuments);

impl FineDocuments {
    /// Fetches the heads of the fine index that a reader of `image` takes. Layers whose head cannot
    /// be read or used are left out: they are read without it.
    pub async fn of(image: &RootFs) -> FineDocuments {
        let mut documents = FineDocuments::default();
        let Some(content) = image.fine.as_ref().and_then(|index| index.content.as_ref().ok())
        else {
            return documents;
        };
        let mut memory = image.source.budget().open();
        for layer in image.layers.iter().map(|layer| &layer.descriptor) {
            if let Some(document) = content.documents.get(&layer.digest)
                && !documents.spans.contains_key(&layer.digest)
                && let Ok(spans) = fetch_head(&image.source, layer, document, &mut memory).await
            {
                documents.spans.insert(layer.digest, spans);
            }
        }
        documents._memory = Some(memory);
        documents
    }

    /// The facts, and what a start fetches by them.
    fn report(&self, image: &RootFs, fetch: Option<Fetch>) -> Option<FineReport> {
        let index = image.fine.as_ref()?;
        let content = index.content.as_ref().ok()?;
        let used = || {
            content.documents.values().filter(|document| self.spans.contains_key(&document.layer))
        };
        Some(FineReport {
            digest: index.digest,
            size: index.size,
            tool: content.index.build_tool.clone(),
            coverage: Coverage::of(image.layers.iter().map(|layer| &layer.descriptor), |layer| {
                self.spans.contains_key(&layer.digest)
            }),
            bytes: used().map(|document| document.size).fold(0, u64::saturating_add),
            start_bytes: used().map(|document| document.start_size).fold(0, u64::saturating_add),
            profile: content.index.profile,
            fetch,
        })
    }
}
