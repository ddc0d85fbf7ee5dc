//! The inputs and results of verification.

use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use super::Problem;
use super::policy::{Policy, Ruling};
use ociseek_format::digest::Digest;
use ociseek_format::image::soci::{Version, ZtocRef};
use ociseek_format::image::{Descriptor, Platform};
use ociseek_format::progress::Progress;
use ociseek_store::Source;
use ociseek_store::cache::ZtocCache;

/// The memory for comparing an entry that must be searched, in bytes.
pub(super) const COMPARED: u64 = 96;

/// Options for verifying an image's indexes.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// The platforms of an image index. Empty for all.
    pub platforms: Vec<Platform>,
    /// Only this index, whether or not it is listed. None for all that are found.
    pub index: Option<Digest>,
    /// How much of the layers is read.
    pub depth: Depth,
    /// How many layers are read at the same time; at least 1.
    pub jobs: usize,
    /// Additional requirements for each index.
    pub policy: Policy,
    /// Remembers the documents that were compared completely with their layer, for readers.
    pub cache: Option<ZtocCache>,
}

/// Verifies everything, as many layers at a time as there are CPUs, without a policy or a cache.
impl Default for VerifyOptions {
    fn default() -> VerifyOptions {
        VerifyOptions {
            platforms: Vec::new(),
            index: None,
            depth: Depth::Full,
            jobs: thread::available_parallelism().map_or(1, NonZero::get),
            policy: Policy::default(),
            cache: None,
        }
    }
}

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Each covered layer once, completely.
    Full,
    /// No complete layer, but this many spans of each covered layer, chosen by `seed`.
    Quick { spans: u32, seed: u64 },
}

/// The result for an image.
#[derive(Debug, Clone)]
pub struct VerifiedImage {
    /// The manifest of each platform, in the order of the image index.
    pub manifests: Vec<VerifiedManifest>,
    /// How many bytes of layers, ztocs and fine documents were read.
    pub bytes_read: u64,
}

impl VerifiedImage {
    /// All faults that were found.
    pub fn differences(&self) -> impl Iterator<Item = &Problem> {
        self.manifests.iter().flat_map(VerifiedManifest::differences)
    }
}

/// The result for a platform of an image.
#[derive(Debug, Clone)]
pub struct VerifiedManifest {
    /// The image manifest of the platform.
    pub manifest: Descriptor,
    /// None if the image does not state it.
    pub platform: Option<Platform>,
    /// The number of layers in the image.
    pub layers: usize,
    /// In the order in which consumers look at them. If empty, only `content` was verified.
    pub indexes: Vec<VerifiedIndex>,
    /// Its fine indexes, in the order of the store.
    pub fine: Vec<VerifiedFine>,
    /// For an archive written by `docker save`: the layers that were compared only with the config.
    pub content: Option<UnindexedLayers>,
    /// Faults of the image itself.
    pub differences: Vec<Problem>,
    /// Facts that are not faults, but may be surprising.
    pub warnings: Vec<String>,
}

impl VerifiedManifest {
    /// All faults that were found.
    pub fn differences(&self) -> impl Iterator<Item = &Problem> {
        let layers = || self.indexes.iter().flat_map(|index| &index.layers);
        let rulings = self.indexes.iter().flat_map(|index| &index.rulings);
        let rulings = rulings.chain(self.fine.iter().flat_map(|index| &index.rulings));
        self.differences
            .iter()
            .chain(self.indexes.iter().flat_map(|index| &index.differences))
            .chain(layers().flat_map(|layer| &layer.differences))
            .chain(self.fine.iter().flat_map(|index| &index.differences))
            .chain(
                self.fine
                    .iter()
                    .flat_map(|index| &index.layers)
                    .flat_map(|layer| &layer.differences),
            )
            .chain(rulings.flat_map(|ruling| &ruling.violations))
    }
}

/// Layers that were read without an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnindexedLayers {
    /// The number of distinct layers.
    pub layers: usize,
    /// The size of their tars in bytes.
    pub bytes: u64,
}

/// The result for an index.
#[derive(Debug, Clone)]
pub struct VerifiedIndex {
    /// The digest of its manifest.
    pub digest: Digest,
    /// Its version.
    pub version: Version,
    /// The tool that built it, if it names one.
    pub tool: Option<String>,
    /// Faults of the index as a document.
    pub differences: Vec<Problem>,
    /// Each layer that it covers, in the order of the image.
    pub layers: Vec<VerifiedLayer>,
    /// The result for each rule of the policy. Empty if the index cannot be used.
    pub rulings: Vec<Ruling>,
}

/// A layer and its ztoc.
#[derive(Debug, Clone)]
pub struct VerifiedLayer {
    /// The layer's blob.
    pub layer: Digest,
    /// The ztoc that the index lists for it.
    pub ztoc: Digest,
    /// The tool identifier in the ztoc. None if it could not be read.
    pub tool: Option<Box<[u8]>>,
    /// How much of it was verified.
    pub compared: ComparedCounts,
    /// Its faults, if any.
    pub differences: Vec<Problem>,
}

/// The result for a fine index.
#[derive(Debug, Clone)]
pub struct VerifiedFine {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The tool that built it, if it names one.
    pub tool: Option<String>,
    /// Faults of the index itself.
    pub differences: Vec<Problem>,
    /// Each layer that it covers, in the order of the image.
    pub layers: Vec<VerifiedDocument>,
    /// The result for each rule of the policy that is about fine indexes. Empty if the index cannot
    /// be used.
    pub rulings: Vec<Ruling>,
}

/// A layer and its fine document.
#[derive(Debug, Clone)]
pub struct VerifiedDocument {
    /// The layer's blob.
    pub layer: Digest,
    /// The document that the fine index lists for it.
    pub document: Digest,
    /// How much of it was verified.
    pub compared: ComparedCounts,
    /// Its faults, if any.
    pub differences: Vec<Problem>,
}

/// How much was compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ComparedCounts {
    /// The number of spans that were compared.
    pub spans: u64,
    /// The number of spans of the layer, according to its ztoc or fine document.
    pub of_spans: u64,
    /// The number of spans that were chosen for a quick check but not read, because they are larger
    /// than [`MAX_SAMPLE`](super::MAX_SAMPLE).
    pub too_large: u64,
    /// The number of tar entries that were compared, of any type.
    pub entries: u64,
    /// The size of the compared tar bytes.
    pub bytes: u64,
}

/// How layers are read and compared.
#[derive(Clone, Copy)]
pub(super) struct VerifyContext<'a> {
    pub source: &'a Source,
    pub depth: Depth,
    /// How many layers are read at a time; at least 1.
    pub side_by_side: usize,
    pub cache: Option<&'a ZtocCache>,
    pub progress: &'a Arc<dyn Progress>,
}

/// A layer, and the ztoc that the index lists for it.
pub(super) struct LayerClaim {
    pub layer: Descriptor,
    pub ztoc: ZtocRef,
    /// The digest of the layer's plain tar according to the image's config.
    pub diff_id: Option<Digest>,
}

/// The result of a job.
#[derive(Default)]
pub(crate) struct LayerCheck {
    pub compared: ComparedCounts,
    pub differences: Vec<Problem>,
    pub bytes_read: u64,
    /// The tool identifier in the ztoc.
    pub tool: Option<Box<[u8]>>,
}
