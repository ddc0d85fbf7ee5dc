//! The options for indexing an image.

use std::fmt;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crate::prefetch::PrefetchList;
use crate::resolve::PlatformChoice;
use ociseek_format::image::coverage::Share;
use ociseek_format::image::{NotIndexed, Platform};
use ociseek_format::layer::LayerOptions;
use ociseek_format::progress::Progress;
use ociseek_store::Source;
use ociseek_store::blob::Target;
use ociseek_store::cache::ZtocCache;

/// What indexing an image needs in addition to the image and the destination.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// The outcomes of layers, if any are kept. It is also written, unless this is a dry run.
    pub cache: Option<&'a ZtocCache>,
    /// How the image is indexed.
    pub options: &'a IndexOptions,
    /// Receives progress events.
    pub progress: &'a Arc<dyn Progress>,
}

ociseek_format::opaque_debug!(Work<'_>);

/// Options for indexing an image. Fields may be added, so start with the default.
#[derive(Debug, Clone)]
pub struct IndexOptions {
    /// The platforms of an image index. Empty for all.
    pub platforms: Vec<Platform>,
    /// The kinds of index to make.
    pub kinds: Kinds,
    /// Options for each layer.
    pub layer: LayerOptions,
    /// Layers with smaller blobs are left out, in bytes.
    pub min_layer_size: u64,
    /// What to do about existing indexes.
    pub existing: Existing,
    /// How many layers are read at the same time; at least 1.
    pub jobs: usize,
    /// Only build and report: write neither to the destination nor to the cache.
    pub dry_run: bool,
    /// When reading layers ends: no layer is started after that, and those that are being read are
    /// abandoned. The finished ones are then attached, which takes a while longer.
    pub deadline: Option<Instant>,
    /// The requirements that the index must meet to be attached.
    pub gate: Gate,
    /// The files that consumers should prefetch, which are also the recorded start of a fine index.
    /// None if an existing index is acceptable with or without such a list.
    pub prefetch: Option<Arc<PrefetchList>>,
    /// Which existing ztocs replace reading their layers.
    pub reuse: Reuse,
    /// For a SOCI-enabled image: whether each layer names what it is read by, so that podman and
    /// CRI-O find it in a layer store.
    pub names_tocs: bool,
}

/// All platforms, all layers of at least 10 MiB, as many layers at a time as there are CPUs.
/// Existing indexes are kept or reused.
impl Default for IndexOptions {
    fn default() -> IndexOptions {
        IndexOptions {
            platforms: Vec::new(),
            kinds: Kinds::default(),
            layer: LayerOptions::default(),
            min_layer_size: NotIndexed::MIN_LAYER_SIZE,
            existing: Existing::Skip,
            jobs: thread::available_parallelism().map_or(1, NonZero::get),
            dry_run: false,
            deadline: None,
            gate: Gate::default(),
            prefetch: None,
            reuse: Reuse::default(),
            names_tocs: false,
        }
    }
}

impl IndexOptions {
    /// How many of `layers` layers are read at the same time.
    pub(super) fn side_by_side(&self, layers: usize) -> usize {
        self.jobs.clamp(1, layers.max(1))
    }

    pub(super) fn is_in_time(&self) -> bool {
        self.deadline.is_none_or(|deadline| Instant::now() < deadline)
    }

    /// The result of `work`, or None if the deadline passes first.
    pub(super) async fn before_deadline<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match self.deadline {
            None => Some(work.await),
            Some(deadline) => tokio::time::timeout_at(deadline.into(), work).await.ok(),
        }
    }

    /// The platforms in the form for [`resolve`](crate::resolve::resolve).
    pub fn wanted(&self) -> PlatformChoice<'_> {
        PlatformChoice::each_or_all(&self.platforms)
    }
}

/// The kinds of index that are made for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kinds {
    /// A SOCI index.
    #[default]
    Soci,
    /// A SOCI index and a fine index, from a single reading of the layers.
    Both,
    /// Only a fine index. SOCI consumers pull an image that names only that whole.
    Fine,
}

impl Kinds {
    pub(crate) fn has_soci(self) -> bool {
        self != Kinds::Fine
    }

    pub(crate) fn has_fine(self) -> bool {
        self != Kinds::Soci
    }
}

/// What to do about existing SOCI indexes (version 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Keep an index by the same tool version with the same options, without reading anything.
    /// Replace an older one of ours. Do not touch those of other tools.
    Skip,
    /// Replace all of them, whichever tool made them. Listed manifests that are not SOCI indexes
    /// stay.
    Replace,
    /// If there is any, do nothing.
    Keep,
}

/// Requirements for the index of each platform's manifest. None by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gate {
    /// No layer may be left out for its media type or its content, but only for its size.
    pub all_servable: bool,
    /// The minimum share of bytes that the index covers, among the layers of at least
    /// [`IndexOptions::min_layer_size`] bytes. Layers that cannot be served count as not covered.
    pub least_coverage: Option<Share>,
}

/// Which existing ztocs are used instead of reading their layers: those in the cache, those of the
/// index (version 2) that the image itself names, and what the user says here.
///
/// Nobody can add to the first two without changing this machine or the image's digest. Anyone who
/// may push to a repository can attach an index to an image there. Such an index is only sampled
/// before its ztocs are used, so by default it is not used at all.
#[derive(Debug, Clone)]
pub struct Reuse {
    /// False to use only those in the cache.
    pub indexes: bool,
    /// Images named by the user, whose indexes are tried first, attached ones included.
    pub from: Vec<ReuseSource>,
}

impl Default for Reuse {
    fn default() -> Reuse {
        Reuse { indexes: true, from: Vec::new() }
    }
}

/// An image whose indexes may have ztocs of another image's layers.
#[derive(Clone)]
pub struct ReuseSource {
    /// The user's name for it.
    pub name: Arc<str>,
    /// Its store.
    pub source: Source,
    /// Its tag or digest in the store.
    pub target: Target,
}

impl fmt::Debug for ReuseSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
