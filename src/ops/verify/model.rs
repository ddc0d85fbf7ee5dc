//! What verifying takes and what it yields.

use std::num::NonZero;
use std::thread;

use super::super::discover::DiscoverError;
use super::policy::{Policy, Ruling};
use crate::budget::OverBudget;
use crate::code::Code;
use crate::digest::Digest;
use crate::image::soci::{Version, ZtocRef};
use crate::image::{Descriptor, Platform};
use crate::store::StoreError;

/// How an image's indexes are proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Which platforms of an image index; empty means all.
    pub platforms: Vec<Platform>,
    /// Only this index, listed or not. None: all that are found.
    pub index: Option<Digest>,
    /// How much of the layers is read.
    pub depth: Depth,
    /// How many layers are read side by side; at least 1.
    pub jobs: usize,
    /// What each index must be beside right.
    pub policy: Policy,
}

/// Everything, one layer for each CPU at a time, without a policy.
impl Default for VerifyOptions {
    fn default() -> VerifyOptions {
        VerifyOptions {
            platforms: Vec::new(),
            index: None,
            depth: Depth::Full,
            jobs: thread::available_parallelism().map_or(1, NonZero::get),
            policy: Policy::default(),
        }
    }
}

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants say what their fields are")]
pub enum Depth {
    /// All layers that an index covers, each once, from front to back.
    Full,
    /// No layer, but of each that is covered this many spans, which `seed` chooses.
    Quick { spans: u32, seed: u64 },
}

/// What was found out about an image.
#[derive(Debug, Clone)]
pub struct Verified {
    /// One for each platform's manifest, in the order of the image index.
    pub manifests: Vec<VerifiedManifest>,
    /// Bytes of layers, ztocs and fine documents that were read.
    pub bytes_read: u64,
}

impl Verified {
    /// Everything that was found wrong.
    pub fn differences(&self) -> impl Iterator<Item = &Problem> {
        self.manifests.iter().flat_map(VerifiedManifest::differences)
    }
}

/// What was found out about one platform of an image.
#[derive(Debug, Clone)]
pub struct VerifiedManifest {
    /// The image manifest of the platform.
    pub manifest: Descriptor,
    /// None if the image does not say.
    pub platform: Option<Platform>,
    /// How many layers the image has.
    pub layers: usize,
    /// In the order in which consumers look at them. Empty: there is nothing to prove but `content`.
    pub indexes: Vec<VerifiedIndex>,
    /// Its fine indexes, in the store's order.
    pub fine: Vec<VerifiedFine>,
    /// What was compared with the config alone, in an archive that `docker save` wrote.
    pub content: Option<UnindexedLayers>,
    /// What is wrong with the image itself.
    pub differences: Vec<Problem>,
    /// What is not wrong, but may come as a surprise.
    pub warnings: Vec<String>,
}

impl VerifiedManifest {
    /// Everything that was found wrong with it.
    pub fn differences(&self) -> impl Iterator<Item = &Problem> {
        let layers = || self.indexes.iter().flat_map(|index| &index.layers);
        let rulings = self.indexes.iter().flat_map(|index| &index.rulings);
        self.differences
            .iter()
            .chain(self.indexes.iter().flat_map(|index| &index.differences))
            .chain(layers().flat_map(|layer| &layer.differences))
            .chain(self.fine.iter().flat_map(|index| &index.differences))
            .chain(self.fine.iter().flat_map(|index| &index.layers).flat_map(|layer| &layer.differences))
            .chain(rulings.flat_map(|ruling| &ruling.violations))
    }
}

/// Layers that were read without an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnindexedLayers {
    /// Distinct ones.
    pub layers: usize,
    /// Of their tars.
    pub bytes: u64,
}

/// What was found out about one index.
#[derive(Debug, Clone)]
pub struct VerifiedIndex {
    /// Its manifest.
    pub digest: Digest,
    /// Which kind it is.
    pub version: Version,
    /// What built it, if it says.
    pub tool: Option<String>,
    /// What is wrong with the index as a document.
    pub differences: Vec<Problem>,
    /// Each layer that it covers, in the image's order.
    pub layers: Vec<VerifiedLayer>,
    /// How it stands to each rule of the policy; empty if it cannot be used.
    pub rulings: Vec<Ruling>,
}

/// A layer and its ztoc.
#[derive(Debug, Clone)]
pub struct VerifiedLayer {
    /// The layer's blob.
    pub layer: Digest,
    /// The ztoc that the index lists for it.
    pub ztoc: Digest,
    /// The tool identifier in the ztoc; None if it could not be read.
    pub tool: Option<Box<[u8]>>,
    /// How much of it was read.
    pub proven: Proven,
    /// What is wrong with it; empty if nothing is.
    pub differences: Vec<Problem>,
}

/// What was found out about one fine index.
#[derive(Debug, Clone)]
pub struct VerifiedFine {
    /// Its manifest.
    pub digest: Digest,
    /// What built it, if it says.
    pub tool: Option<String>,
    /// What is wrong with the index itself.
    pub differences: Vec<Problem>,
    /// Each layer that it covers, in the image's order.
    pub layers: Vec<VerifiedDocument>,
}

/// A layer and its fine document.
#[derive(Debug, Clone)]
pub struct VerifiedDocument {
    /// The layer's blob.
    pub layer: Digest,
    /// The document that the fine index lists for it.
    pub document: Digest,
    /// How much of it was read.
    pub proven: Proven,
    /// What is wrong with it; empty if nothing is.
    pub differences: Vec<Problem>,
}

/// What was compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Proven {
    /// Spans that were compared.
    pub spans: u64,
    /// Spans that the layer has by its ztoc or fine document.
    pub of_spans: u64,
    /// Spans that were chosen for a quick look and not read, since they are larger than
    /// [`MAX_SAMPLE`](super::MAX_SAMPLE).
    pub too_large: u64,
    /// Entries of the tar that were compared, of every type.
    pub entries: u64,
    /// Bytes of the tar.
    pub bytes: u64,
}

/// A layer and the ztoc that is said to be its.
pub(super) struct Job {
    pub layer: Descriptor,
    pub ztoc: ZtocRef,
    /// What the image's config says of the layer's plain tar.
    pub diff_id: Option<Digest>,
}

/// What came of it.
#[derive(Default)]
pub(in crate::ops) struct Done {
    pub proven: Proven,
    pub differences: Vec<Problem>,
    pub bytes_read: u64,
    /// The tool identifier in the ztoc.
    pub tool: Option<Box<[u8]>>,
}

/// Something that is not as the index, the manifest or the config says, or that no consumer would take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// A stable word for programs.
    pub code: Code,
    /// For people, in one line.
    pub text: String,
}

impl Problem {
    pub(super) fn new(code: Code, text: impl Into<String>) -> Problem {
        Problem { code, text: text.into() }
    }
}

/// Why nothing can be said of an image's indexes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum VerifyError {
    #[error(transparent)]
    Discover(Box<DiscoverError>),
    #[error("cannot list the SOCI indexes of {manifest}")]
    Listing { manifest: Digest, source: StoreError },
    #[error("{0} has no SOCI index to verify")]
    NoIndex(Digest),
    #[error("docker save keeps no SOCI index: only the layers can be verified, and only all of them")]
    Saved,
    #[error("cannot read the image's config {digest}")]
    Config { digest: Digest, source: StoreError },
    #[error("cannot read SOCI index {digest}")]
    Index { digest: Digest, source: StoreError },
    #[error("cannot read the signatures of {subject}")]
    Signatures { subject: Digest, source: StoreError },
    #[error("cannot read prefetch list {digest}")]
    Prefetch { digest: Digest, source: StoreError },
    #[error("cannot read layer {layer}")]
    Layer { layer: Digest, source: StoreError },
    #[error("ztoc {ztoc} of layer {layer} does not fit into memory")]
    Memory { ztoc: Digest, layer: Digest, source: OverBudget },
    #[error("cannot read fine document {document}")]
    Document { document: Digest, source: StoreError },
    #[error("fine document {document} of layer {layer} does not fit into memory")]
    DocumentMemory { document: Digest, layer: Digest, source: OverBudget },
    #[error("the thread verifying layer {layer} stopped unexpectedly")]
    Thread { layer: Digest },
}

impl From<DiscoverError> for VerifyError {
    fn from(error: DiscoverError) -> VerifyError {
        VerifyError::Discover(Box::new(error))
    }
}
