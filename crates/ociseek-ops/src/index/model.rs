//! The results of indexing an image.

use std::fmt;
use std::sync::Arc;

use crate::discover::UnusableIndexError;
use crate::prefetch::MissingPath;
use ociseek_format::digest::Digest;
use ociseek_format::image::coverage::{Coverage, Share};
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::prefetch::SpanRange;
use ociseek_format::image::{Descriptor, NotIndexed};
use ociseek_format::layer::UnservableReason;
use ociseek_store::blob::AttachMethod;

/// An image whose index falls short of the [`Gate`](super::Gate). Nothing was attached for any of
/// its platforms.
#[derive(Debug)]
pub struct RefusedImage {
    /// The manifest of each platform, in the order of the image index, including those that do not
    /// fall short.
    pub manifests: Vec<RefusedManifest>,
    /// How many bytes of layer blobs were read.
    pub bytes_read: u64,
}

/// A platform of an image that falls short of the [`Gate`](super::Gate).
#[derive(Debug)]
pub struct RefusedManifest {
    /// None if the image does not state it.
    pub platform: Option<String>,
    /// The image manifest of the platform.
    pub manifest: Descriptor,
    /// Empty if the layers were not examined because an index exists.
    pub layers: Vec<LayerReport>,
    /// The existing index that was checked against the gate. None if a new one would have been
    /// attached.
    pub stays: Option<Descriptor>,
    /// The coverage of all layers.
    pub coverage: Coverage,
    /// The unmet requirements. Empty if another platform falls short.
    pub shortfalls: Vec<Shortfall>,
}

/// An unmet requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shortfall {
    /// A layer is not in the index.
    LeftOut {
        /// The layer, as the image manifest lists it.
        layer: Box<Descriptor>,
        /// The reason.
        reason: LeftOutReason,
    },
    /// The index covers too little.
    Coverage {
        /// The coverage of the layers of at least `min_layer_size` bytes.
        is: Coverage,
        /// The requirement.
        least: Share,
        /// In bytes. Smaller layers do not count.
        min_layer_size: u64,
    },
}

impl fmt::Display for RefusedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing was written: the index does not meet the requirements")
    }
}

impl std::error::Error for RefusedImage {}

/// The result for an image.
#[derive(Debug, Clone)]
pub struct IndexedImage {
    /// The manifest or image index that the image's name stands for.
    pub digest: Digest,
    /// The manifest of each platform, in the order of the image index.
    pub manifests: Vec<IndexedManifest>,
    /// How many bytes of layer blobs were read.
    pub bytes_read: u64,
    /// How many bytes of other layer blobs were compared with ztocs and fine documents before
    /// reusing these.
    pub bytes_compared: u64,
    /// How many bytes were uploaded or written; 0 if everything already existed.
    pub bytes_written: u64,
    /// The layers that were not finished in time, without duplicates. Another run with the same
    /// options continues with them, unless this one was [stuck](LeftOutReason::OutOfTime).
    pub left: Vec<Descriptor>,
}

impl IndexedImage {
    /// Whether no layer was finished in time, so another run needs more time.
    pub fn is_stuck(&self) -> bool {
        let layers = self.manifests.iter().flat_map(|manifest| &manifest.layers);
        let mut outcomes = layers.map(|layer| &layer.outcome);
        outcomes.any(|outcome| {
            matches!(outcome, LayerOutcome::LeftOut(LeftOutReason::OutOfTime { stuck: true }))
        })
    }
}

/// The result for the manifest of one platform.
#[derive(Debug, Clone)]
pub struct IndexedManifest {
    /// In readable form, such as `linux/arm64`. None if the image does not state it.
    pub platform: Option<String>,
    /// The image manifest of the platform.
    pub manifest: Descriptor,
    /// The manifest's layers, in order. For an existing index, according to that index.
    pub layers: Vec<LayerReport>,
    /// The index that it has now, and how it got it.
    pub result: ManifestResult,
    /// The coverage by the index of `result`.
    pub coverage: Coverage,
    /// The prefetch list of the index of `result`, if it was built and has one.
    pub prefetch: Option<PrefetchSummary>,
    /// Other SOCI indexes (version 1) of the manifest that remain listed, in the listed order.
    pub others: Vec<OtherIndex>,
    /// The result for its fine index, if one was requested.
    pub fine: Option<IndexedFine>,
}

/// The result for the fine index of a platform's manifest.
#[derive(Debug, Clone)]
pub struct IndexedFine {
    /// The fine index that it has now, and how it got it.
    pub result: ManifestResult,
    /// The documents of that index, in the image's order.
    pub documents: Vec<FineRef>,
    /// How much of the image has documents.
    pub coverage: Coverage,
    /// The digest of the profile with which that index was built, if any.
    pub profile: Option<Digest>,
    /// The layers that were not finished in time.
    pub left: Vec<Descriptor>,
}

impl IndexedManifest {
    /// The result for its SOCI index, and for its fine index if one was requested.
    pub fn results(&self) -> impl Iterator<Item = &ManifestResult> {
        [&self.result].into_iter().chain(self.fine.as_ref().map(|fine| &fine.result))
    }

    /// The layers that were not finished in time.
    pub fn left(&self) -> impl Iterator<Item = &Descriptor> {
        let left = |layer: &&LayerReport| {
            matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::OutOfTime { .. }))
        };
        let listed = self.layers.iter().filter(left).map(|layer| &layer.descriptor);
        let is_listed = |layer: &Descriptor| {
            self.layers.iter().any(|listed| listed.descriptor.digest == layer.digest)
        };
        // Without a SOCI index, there are no reports for single layers.
        let fine =
            self.fine.iter().flat_map(|fine| &fine.left).filter(move |layer| !is_listed(layer));
        listed.chain(fine)
    }
}

/// The prefetch list of an index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefetchSummary {
    /// The layers on the list, without duplicates, from the bottom up.
    pub layers: Vec<PrefetchedLayer>,
    /// Paths on the list that match no file.
    pub missing: Vec<MissingPath>,
    /// Whether the list was taken over from the previous index.
    pub carried_over: bool,
}

/// A layer with spans that consumers prefetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefetchedLayer {
    /// The layer's blob.
    pub layer: Digest,
    /// The prefetch artifact.
    pub artifact: Digest,
    /// [Merged](ociseek_format::image::prefetch::merge).
    pub spans: Vec<SpanRange>,
    /// The size of the spans in the layer's blob, in bytes.
    pub bytes: u64,
}

/// The index that an image manifest has now, and how it got it.
#[derive(Debug, Clone)]
pub enum ManifestResult {
    /// A new index was attached.
    Attached {
        /// The index's manifest.
        index: Descriptor,
        /// How it is found.
        how: AttachMethod,
        /// The indexes that it replaced.
        replaced: Vec<Digest>,
        /// Those of them that the destination refused to delete.
        not_deleted: Vec<Digest>,
    },
    /// The index was built, but not attached.
    DryRun {
        /// The index's manifest.
        index: Descriptor,
        /// The indexes that it would replace.
        replaces: Vec<Digest>,
    },
    /// Exactly this index already exists.
    AlreadyThere {
        /// The index's manifest.
        index: Descriptor,
        /// Whether it was built to find that out.
        built: bool,
        /// What is known about its content.
        check: ExistingCheck,
    },
    /// An existing index was kept, as requested.
    Kept {
        /// The index's manifest.
        index: Descriptor,
        /// The tool that built it, if it names one.
        tool: Option<String>,
    },
    /// No layer can be served lazily, so an index would be empty.
    NothingToIndex,
    /// Time ran out before there was a layer to attach an index for.
    OutOfTime,
    /// No SOCI index was requested. An existing one was not touched.
    NotRequested,
}

/// What is known about the content of an index that already exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingCheck {
    /// Its manifest fits the image and the options, and its blobs exist. What they say was compared
    /// with nothing.
    Listed,
    /// Its blobs are those that this machine once built from the layers.
    Cached,
    /// Its blobs are those that this run built or took over.
    Built,
}

impl ExistingCheck {
    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            ExistingCheck::Listed => "listed",
            ExistingCheck::Cached => "cached",
            ExistingCheck::Built => "built",
        }
    }
}

impl ManifestResult {
    /// The index that the manifest has now, or would have without the dry run.
    pub fn index(&self) -> Option<Digest> {
        match self {
            ManifestResult::Attached { index, .. }
            | ManifestResult::DryRun { index, .. }
            | ManifestResult::AlreadyThere { index, .. }
            | ManifestResult::Kept { index, .. } => Some(index.digest),
            ManifestResult::NothingToIndex
            | ManifestResult::OutOfTime
            | ManifestResult::NotRequested => None,
        }
    }
}

/// A SOCI index of another tool, or a manifest that is listed as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherIndex {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The tool that built it. None if it names none or cannot be read.
    pub tool: Option<String>,
    /// Whether it is listed before ours, so consumers take it.
    pub listed_first: bool,
    /// Why it is not a SOCI index of the image, or was not read. Such a manifest is never touched.
    pub unusable: Option<String>,
}

/// The result for a layer.
#[derive(Debug, Clone)]
pub struct LayerReport {
    /// The layer, as the image manifest lists it.
    pub descriptor: Descriptor,
    /// Whether it is in the index.
    pub outcome: LayerOutcome,
}

/// Whether a layer is in the index, and why not.
#[derive(Debug, Clone)]
pub enum LayerOutcome {
    /// It is, with this ztoc.
    Indexed(ZtocFacts),
    /// The existing index has this ztoc for it. Neither the layer nor the ztoc was read.
    Listed {
        /// The ztoc.
        ztoc: Digest,
        /// The size of the ztoc in bytes.
        size: u64,
    },
    /// It is not, for this reason.
    LeftOut(LeftOutReason),
}

/// Facts from a layer's ztoc, and its source.
#[derive(Debug, Clone, PartialEq)]
pub struct ZtocFacts {
    /// The ztoc.
    pub digest: Digest,
    /// The size of the ztoc in bytes.
    pub size: u64,
    /// The number of spans, each of which can be fetched and decoded separately.
    pub spans: u32,
    /// The number of tar entries of any type.
    pub entries: u64,
    /// The size of the tar in bytes, up to where its reader stops.
    pub uncompressed_size: u64,
    /// The number of members in the gzip stream; 0 for a plain tar. None if unknown, as with reused
    /// ztocs.
    pub gzip_members: Option<u64>,
    /// The source of the ztoc.
    pub origin: Origin,
}

/// The source of a layer's ztoc.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// The blob was read.
    Read {
        /// How long that took, in seconds.
        seconds: f64,
    },
    /// The cache.
    Cache,
    /// The index of another image, or one that this image names. Holds the name of the image or
    /// index.
    Reused(Arc<str>),
    /// The same blob occurs earlier in this image.
    Repeated,
}

/// Why a layer is not in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftOutReason {
    /// It is smaller than the minimum size.
    Small {
        /// The minimum size in bytes.
        least: u64,
    },
    /// Because of its descriptor. It was not read.
    Kind {
        /// The rule that leaves it out.
        why: NotIndexed,
        /// The reason for people.
        reason: String,
    },
    /// Because its content is not of the kind that its media type says.
    Mislabelled {
        /// The reason for people.
        reason: &'static str,
    },
    /// Because a fine index refers to layers by SHA-256, and its digest is another one.
    NotSha256,
    /// Because of its content.
    Unservable(UnservableReason),
    /// Time ran out before it was read.
    OutOfTime {
        /// Whether no layer was finished although all the time was used. Another run with the same
        /// time limit may make no progress either.
        stuck: bool,
    },
    /// The existing index has no ztoc for it, and does not state the reason.
    NotListed,
    /// The existing index has a ztoc for it that no reader can open.
    Unopened,
}

impl LeftOutReason {
    /// A stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            LeftOutReason::Small { least } => NotIndexed::Small { least: *least }.code(),
            LeftOutReason::Kind { why, .. } => why.code(),
            LeftOutReason::Mislabelled { .. } => "mislabelled",
            LeftOutReason::NotSha256 => "not-sha256",
            LeftOutReason::Unservable(verdict) => verdict.code.word(),
            LeftOutReason::OutOfTime { stuck: false } => "out-of-time",
            LeftOutReason::OutOfTime { stuck: true } => "needs-more-time",
            LeftOutReason::NotListed => "not-listed",
            LeftOutReason::Unopened => "ztoc-malformed",
        }
    }
}

/// What the destination lists as an index of the image; `C` is what an index of that kind says.
#[derive(Debug)]
pub(super) struct ExistingManifest<C> {
    pub descriptor: Descriptor,
    /// An error if it was not read or is not such an index of the image. Anyone who may push can
    /// list any manifest of the repository here, so such a manifest is never replaced: replacing
    /// deletes.
    pub content: Result<C, UnusableIndexError>,
}
