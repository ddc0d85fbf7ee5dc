//! What indexing an image takes and what it yields.

use std::fmt;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crate::digest::Digest;
use crate::image::coverage::{Coverage, Share};
use crate::image::fine::FineRef;
use crate::image::prefetch::SpanRange;
use crate::image::{Descriptor, NotIndexed, Platform};
use crate::layer::{LayerOptions, Unservable};
use crate::ops::prefetch::{Missing, PrefetchList};
use crate::ops::resolve::Wanted;
use crate::store::Source;
use crate::store::blob::{Attached, Target};

/// How an image is indexed. More fields may come: begin with the default.
#[derive(Debug, Clone)]
pub struct IndexOptions {
    /// Which platforms of an image index; empty means all.
    pub platforms: Vec<Platform>,
    /// Which kinds of index are made.
    pub kinds: Kinds,
    /// How each layer is indexed.
    pub layer: LayerOptions,
    /// Layers whose blobs have fewer bytes are left out.
    pub min_layer_size: u64,
    /// What is done about indexes that are there.
    pub existing: Existing,
    /// How many layers are read side by side; at least 1.
    pub jobs: usize,
    /// Build and report only: neither the destination nor the cache is written.
    pub dry_run: bool,
    /// When reading layers ends: from then on no layer is begun, and those that are being read are
    /// abandoned. What is done by then is attached, which takes a while longer.
    pub deadline: Option<Instant>,
    /// What the index must reach to be attached.
    pub gate: Gate,
    /// What consumers are told to prefetch, and the recorded start of a fine index. None: an index that is there with
    /// such a list is as good as one without.
    pub prefetch: Option<Arc<PrefetchList>>,
    /// Which ztocs that exist spare reading their layers.
    pub reuse: Reuse,
}

/// All platforms, all layers of 10 MiB or more, one layer for each CPU at a time; what exists is left or reused.
impl Default for IndexOptions {
    fn default() -> IndexOptions {
        IndexOptions {
            platforms: Vec::new(),
            kinds: Kinds::default(),
            layer: LayerOptions::default(),
            min_layer_size: 10 << 20,
            existing: Existing::Skip,
            jobs: thread::available_parallelism().map_or(1, NonZero::get),
            dry_run: false,
            deadline: None,
            gate: Gate::default(),
            prefetch: None,
            reuse: Reuse::default(),
        }
    }
}

/// Which kinds of index are made of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kinds {
    /// A SOCI index.
    #[default]
    Soci,
    /// A SOCI index, and a fine index beside it, from one reading of the layers.
    Both,
    /// A fine index alone.
    Fine,
}

impl Kinds {
    pub(super) fn has_soci(self) -> bool {
        self != Kinds::Fine
    }

    pub(super) fn has_fine(self) -> bool {
        self != Kinds::Soci
    }
}

/// Which ztocs that exist are used instead of reading their layers.
#[derive(Debug, Clone)]
pub struct Reuse {
    /// False: none but those in the cache.
    pub indexes: bool,
    /// Images that the user names: their indexes are looked at first.
    pub from: Vec<Elsewhere>,
    /// Of how many other tags of the image's repository the manifests are looked at.
    pub tags: usize,
    /// The image's own tag, if it has one: tags like it are looked at before others.
    pub tag: Option<String>,
}

impl Reuse {
    /// As many tags as are looked at unless the user says otherwise.
    pub const TAGS: usize = 8;
}

impl Default for Reuse {
    fn default() -> Reuse {
        Reuse { indexes: true, from: Vec::new(), tags: Reuse::TAGS, tag: None }
    }
}

/// An image whose indexes may have ztocs of another image's layers.
#[derive(Clone)]
pub struct Elsewhere {
    /// As the user knows it.
    pub name: Arc<str>,
    /// The store that has it.
    pub source: Source,
    /// What names it there.
    pub target: Target,
}

impl fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl IndexOptions {
    /// How many of `layers` layers are read side by side.
    pub(super) fn side_by_side(&self, layers: usize) -> usize {
        self.jobs.clamp(1, layers.max(1))
    }

    pub(super) fn is_in_time(&self) -> bool {
        self.deadline.is_none_or(|deadline| Instant::now() < deadline)
    }

    /// What `work` gives, unless the deadline passes before.
    pub(super) async fn before_deadline<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match self.deadline {
            None => Some(work.await),
            Some(deadline) => tokio::time::timeout_at(deadline.into(), work).await.ok(),
        }
    }

    /// The platforms, as [`resolve`](crate::ops::resolve::resolve) takes them.
    pub fn wanted(&self) -> Wanted<'_> {
        if self.platforms.is_empty() { Wanted::All } else { Wanted::Each(&self.platforms) }
    }
}

/// What is asked of the index of each platform's manifest. Nothing, by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gate {
    /// No layer may be left out for another reason than its size: not by its media type, nor by its content.
    pub all_servable: bool,
    /// The least share that the index covers of the bytes of all layers that are not smaller than
    /// [`IndexOptions::min_layer_size`]. Layers that cannot be served count, as not covered.
    pub least_coverage: Option<Share>,
}

/// An image of which an index falls short of the [`Gate`]. Nothing was attached for any of its platforms.
#[derive(Debug)]
pub struct Refused {
    /// One for each platform's manifest, in the order of the image index, those that do not fall short too.
    pub manifests: Vec<RefusedManifest>,
    /// Bytes of layer blobs that were read.
    pub bytes_read: u64,
}

/// One platform of an image that falls short of the [`Gate`].
#[derive(Debug)]
pub struct RefusedManifest {
    /// None if the image does not say.
    pub platform: Option<String>,
    /// The image manifest of the platform.
    pub manifest: Descriptor,
    /// Empty if the layers were not looked at, since an index is there.
    pub layers: Vec<LayerReport>,
    /// An index that is there, and is held against the gate. None: one would have been attached.
    pub stays: Option<Digest>,
    /// Of all layers.
    pub coverage: Coverage,
    /// The demands that it does not meet; none if another platform is the reason.
    pub shortfalls: Vec<Shortfall>,
}

/// One demand that is not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shortfall {
    /// A layer is not in the index.
    LeftOut {
        /// The layer, as the image manifest lists it.
        layer: Box<Descriptor>,
        /// Why it is not.
        reason: LeftOut,
    },
    /// The index covers too little.
    Coverage {
        /// Of the layers of at least `min_layer_size` bytes.
        is: Coverage,
        /// What was asked for.
        least: Share,
        /// In bytes; smaller layers do not count.
        min_layer_size: u64,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing was attached: the index does not meet the requirements")
    }
}

impl std::error::Error for Refused {}

/// What to do about SOCI indexes (v1) that the image has already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// One of the same tool version and options is left as it is and nothing is read; an older one of ours is replaced;
    /// another tool's is left where it is.
    Skip,
    /// All of them are replaced, whoever made them. What is listed as one of them and is not stays.
    Replace,
    /// If there is any, nothing is done.
    Keep,
}

/// What became of one image.
#[derive(Debug, Clone)]
pub struct IndexedImage {
    /// The manifest or image index that the image's name stands for.
    pub digest: Digest,
    /// One for each platform's manifest, in the order of the image index.
    pub manifests: Vec<IndexedManifest>,
    /// Bytes of layer blobs that were read.
    pub bytes_read: u64,
    /// Bytes of other layer blobs that were compared with ztocs before these were reused.
    pub bytes_compared: u64,
    /// What was uploaded or written for it; 0 if everything was there already.
    pub bytes_written: u64,
    /// Layers for which the time did not suffice, each once. Another run with the same options goes
    /// on with them, unless this one was [stuck](LeftOut::OutOfTime).
    pub left: Vec<Descriptor>,
}

impl IndexedImage {
    /// No layer was done in the time that was given: another run needs more of it.
    pub fn is_stuck(&self) -> bool {
        let layers = self.manifests.iter().flat_map(|manifest| &manifest.layers);
        let mut outcomes = layers.map(|layer| &layer.outcome);
        outcomes.any(|outcome| matches!(outcome, LayerOutcome::LeftOut(LeftOut::OutOfTime { stuck: true })))
    }
}

/// What became of one platform's manifest.
#[derive(Debug, Clone)]
pub struct IndexedManifest {
    /// As people write it, such as `linux/arm64`; None if the image does not say.
    pub platform: Option<String>,
    /// The image manifest of the platform.
    pub manifest: Descriptor,
    /// One for each of the manifest's layers, in its order. Of an index that stays, as it lists them.
    pub layers: Vec<LayerReport>,
    /// Which index it has now, and how that came.
    pub result: ManifestResult,
    /// By the index of `result`.
    pub coverage: Coverage,
    /// What the index of `result` says to prefetch, if it was built and has a list.
    pub prefetch: Option<Prefetched>,
    /// What else stays listed as a SOCI index (v1) of the manifest beside the result, in the order of the list.
    pub others: Vec<OtherIndex>,
    /// What became of its fine index, if one was asked for.
    pub fine: Option<IndexedFine>,
}

/// What became of the fine index of one platform's manifest.
#[derive(Debug, Clone)]
pub struct IndexedFine {
    /// Which fine index it has now, and how that came.
    pub result: ManifestResult,
    /// The documents of that index, in the image's order.
    pub documents: Vec<FineRef>,
    /// How much of the image has a document.
    pub coverage: Coverage,
    /// What that index says of its recorded start: the digest of the list that it was built with.
    pub profile: Option<Digest>,
    /// Layers for which the time did not suffice.
    pub left: Vec<Descriptor>,
}

impl IndexedManifest {
    /// What became of its SOCI index, and of its fine index if one was asked for.
    pub fn results(&self) -> impl Iterator<Item = &ManifestResult> {
        [&self.result].into_iter().chain(self.fine.as_ref().map(|fine| &fine.result))
    }

    /// The layers for which the time did not suffice.
    pub fn left(&self) -> impl Iterator<Item = &Descriptor> {
        let left = |layer: &&LayerReport| matches!(layer.outcome, LayerOutcome::LeftOut(LeftOut::OutOfTime { .. }));
        let listed = self.layers.iter().filter(left).map(|layer| &layer.descriptor);
        let is_listed = |layer: &Descriptor| self.layers.iter().any(|listed| listed.descriptor.digest == layer.digest);
        // Without a SOCI index, layers are not reported one by one.
        let fine = self.fine.iter().flat_map(|fine| &fine.left).filter(move |layer| !is_listed(layer));
        listed.chain(fine)
    }
}

/// What an index tells consumers to prefetch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefetched {
    /// The layers that are on the list, each once, from the bottom up.
    pub layers: Vec<PrefetchedLayer>,
    /// Paths of the list that stand for nothing.
    pub missing: Vec<Missing>,
    /// The list is that of the index that was there before.
    pub carried_over: bool,
}

/// A layer of which consumers fetch some spans before anybody reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefetchedLayer {
    /// The layer's blob.
    pub layer: Digest,
    /// The prefetch artifact.
    pub artifact: Digest,
    /// [Merged](crate::image::prefetch::merge).
    pub spans: Vec<SpanRange>,
    /// Bytes of the layer's blob that the spans hold.
    pub bytes: u64,
}

/// Which index an image manifest has now, and how that came.
#[derive(Debug, Clone)]
pub enum ManifestResult {
    /// A new index was attached.
    Attached {
        /// The index's manifest.
        index: Descriptor,
        /// By which way it is found.
        how: Attached,
        /// Indexes that it took the place of.
        replaced: Vec<Digest>,
        /// Those of them that the destination would not delete.
        not_deleted: Vec<Digest>,
    },
    /// It was built, and stands for what would have been attached.
    DryRun {
        /// The index's manifest.
        index: Descriptor,
        /// Indexes that it would take the place of.
        replaces: Vec<Digest>,
    },
    /// The very index is there already.
    AlreadyThere {
        /// The index's manifest.
        index: Descriptor,
        /// It was built to find that out.
        built: bool,
    },
    /// An index that was there was left alone, as was asked for or since it is a newer version's.
    Kept {
        /// The index's manifest.
        index: Digest,
        /// What built it, if it says.
        tool: Option<String>,
    },
    /// No layer can be served lazily, so that an index would be empty.
    NothingToIndex,
    /// The time was up, and there is no layer to attach an index for.
    OutOfTime,
    /// No SOCI index was asked for. One that is there was left alone.
    NotAsked,
}

impl ManifestResult {
    /// The index that the manifest has now; after a dry run, that which it would have.
    pub fn index(&self) -> Option<Digest> {
        match self {
            ManifestResult::Attached { index, .. }
            | ManifestResult::DryRun { index, .. }
            | ManifestResult::AlreadyThere { index, .. } => Some(index.digest),
            ManifestResult::Kept { index, .. } => Some(*index),
            ManifestResult::NothingToIndex | ManifestResult::OutOfTime | ManifestResult::NotAsked => None,
        }
    }
}

/// A SOCI index of someone else, or what is listed as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherIndex {
    /// Its manifest.
    pub digest: Digest,
    /// What its maker calls itself; None if it does not say or cannot be read.
    pub tool: Option<String>,
    /// The destination lists it before ours, so that consumers take it.
    pub listed_first: bool,
    /// Why it is not a SOCI index of the image, or was not read. It is left in place whatever was asked for.
    pub unusable: Option<String>,
}

/// What became of one layer.
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
    /// The index that is there has this ztoc for it, of so many bytes. Neither was read.
    Listed {
        /// The ztoc.
        ztoc: Digest,
        /// Bytes of the ztoc.
        size: u64,
    },
    /// It is not, for this reason.
    LeftOut(LeftOut),
}

/// What a layer's ztoc holds, and how it came to be.
#[derive(Debug, Clone, PartialEq)]
pub struct ZtocFacts {
    /// The ztoc.
    pub digest: Digest,
    /// Bytes of the ztoc.
    pub size: u64,
    /// Spans of the layer, each of which can be fetched and decoded alone.
    pub spans: u32,
    /// Entries of the tar, of every type.
    pub entries: u64,
    /// Bytes of the tar, up to where its reader stops.
    pub uncompressed_size: u64,
    /// Members of the gzip stream; 0 for a plain tar. None if that is not known, as with a ztoc that was reused.
    pub gzip_members: Option<u64>,
    /// Where it is from.
    pub origin: Origin,
}

/// How the facts on a layer were come by.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// The blob was read.
    Read {
        /// How long that took.
        seconds: f64,
    },
    /// From the cache.
    Cache,
    /// From an index of the same options that the destination had, which lacked other layers.
    Destination,
    /// From the index of another image, or from one of this image that is not at the destination: the image or index.
    Reused(Arc<str>),
    /// The same blob stands earlier in this image.
    Repeated,
}

/// Why a layer is not in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftOut {
    /// It is smaller than the least size.
    Small {
        /// That size, in bytes.
        least: u64,
    },
    /// By its media type; it was not read.
    Kind {
        /// A stable word for programs.
        code: &'static str,
        /// The same for people.
        reason: String,
    },
    /// By its content.
    Unservable(Unservable),
    /// The time was up before it was read.
    OutOfTime {
        /// All the time went into layers of which none was done, so that another run with as much
        /// time may get no further.
        stuck: bool,
    },
    /// The index that is there has no ztoc for it, and does not say why.
    NotListed,
}

impl LeftOut {
    /// A stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            LeftOut::Small { least } => NotIndexed::Small { least: *least }.code(),
            LeftOut::Kind { code, .. } => code,
            LeftOut::Unservable(verdict) => verdict.code.word(),
            LeftOut::OutOfTime { stuck: false } => "out-of-time",
            LeftOut::OutOfTime { stuck: true } => "needs-more-time",
            LeftOut::NotListed => "not-listed",
        }
    }
}
