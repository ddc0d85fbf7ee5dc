//! Opens an image for reading: its index, its layers, and their tree.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::spawn_blocking;

use super::background::BackgroundTask;
use super::discover::{
    self, DiscoverError, DiscoveredImage, FoundFineRef, FoundIndexRef, MAX_ZTOC, PlatformImage,
    both,
};
pub use super::fine_documents::DocumentFetch;
use super::fine_documents::fetch_document_of;
use super::foresight::{Foreseen, Foresight};
use super::resolve::{self, PlatformChoice, PlatformManifest};
use super::tree_memory::{charge_tree, keep_tree};
use super::trust::{Chosen, IndexChoice, TrustLevel, TrustOfLayers, TrustRules, choose};
use ociseek_format::budget::{Budget, Charge, OverBudget};
use ociseek_format::digest::Digest;
use ociseek_format::image::config::{self, ConfigError};
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::soci::{ZtocRef, prefetch_lists};
use ociseek_format::image::{Descriptor, NotIndexed, Platform};
use ociseek_format::layer::LayerMap;
use ociseek_format::offset::LayerId;
use ociseek_format::progress::{Progress, ProgressEvent, ReadAllReason, SilentProgress, causes};
use ociseek_format::tree::{OpaqueXattr, Tree, TreeError};
use ociseek_rootfs::content::{Content, ContentOptions, ReopenLayer};
use ociseek_rootfs::layers::{self, Caches, LayerAccess, OpenLayer};
use ociseek_store::blob::Target;
use ociseek_store::{Source, StoreError, Traffic, charged};

/// How many connections to open before they are needed: the referrers, the list under the fallback
/// tag and the config are requested at the same time.
const CONNECTIONS: usize = 2;
/// For how many layers with a recorded start the registry is asked, while their documents are
/// fetched, where it redirects to.
const LOCATED: usize = 12;

/// What to open of an image, and how to read it.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// None for this machine's platform, or the only one.
    pub platform: Option<Platform>,
    /// Use this SOCI index instead of the one that a reader would take.
    pub index: Option<Digest>,
    /// Which layers to open.
    pub layers: LayerChoice,
    /// Use only SOCI indexes, and ignore fine indexes.
    pub soci_only: bool,
    /// Whose word is taken for what an index says.
    pub trust: TrustRules,
    /// What to fetch of fine documents.
    pub documents: DocumentFetch,
    /// Options for reading files.
    pub content: ContentOptions,
}

impl OpenOptions {
    /// Which indexes to read.
    pub fn choice(&self) -> IndexChoice<'_> {
        let OpenOptions { index, soci_only, trust, .. } = self;
        IndexChoice { requested: index.as_ref(), rules: trust, soci_only: *soci_only }
    }
}

/// Which layers of an image to open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LayerChoice {
    /// All of them.
    #[default]
    All,
    /// Only this one, counted from 0 at the bottom, as a lower directory of overlayfs with this
    /// mark for opaque directories.
    Only(usize, OpaqueXattr),
    /// This many, from the bottom, as if they were the image.
    Lowest(usize),
}

impl LayerChoice {
    fn range(self, all: usize) -> Range<usize> {
        match self {
            LayerChoice::All => 0..all,
            LayerChoice::Only(wanted, _) => wanted..wanted.saturating_add(1),
            LayerChoice::Lowest(wanted) => 0..wanted,
        }
    }
}

/// An image as a file system.
pub struct RootFs {
    /// The image manifest.
    pub manifest: Descriptor,
    /// Its platform, if known.
    pub platform: Option<Platform>,
    /// The image's config, as JSON.
    pub config: Bytes,
    /// The SOCI index that is used, if any.
    pub index: Option<FoundIndexRef>,
    /// The fine index that a reader takes, if any. With `soci_only`, no layer is read through it.
    pub fine: Option<FoundFineRef>,
    /// The opened layers, from the bottom up.
    pub layers: Vec<LayerFacts>,
    /// The prefetch artifacts of the index, each with the number of its layer.
    pub prefetch: Vec<(LayerId, Descriptor)>,
    /// Its files, without their content.
    pub tree: Arc<Tree>,
    /// The content of the files, fetched on demand.
    pub content: Content,
    /// The store that it is read from.
    pub source: Source,
    /// The traffic for opening it, by its registry's client.
    pub opening: Traffic,
    /// The memory charge for the tree.
    _memory: Charge,
    /// The task that fetches the recorded start, which ends with this.
    _start: Option<BackgroundTask>,
}

ociseek_format::opaque_debug!(RootFs);

impl RootFs {
    /// Whose word the tree is. The layer that the least is known about decides.
    pub fn trust(&self) -> TrustLevel {
        self.layers.iter().map(|layer| layer.trust).min().unwrap_or(TrustLevel::Proven)
    }
}

/// How a layer is read.
#[derive(Debug, Clone)]
pub struct LayerFacts {
    /// The layer, as the image manifest lists it.
    pub descriptor: Descriptor,
    /// The kind of index that it is read with.
    pub how: LayerAccess,
    /// Whose word its map is.
    pub trust: TrustLevel,
    /// Its files and spans.
    pub map: Arc<LayerMap>,
    /// How many bytes of the blob were read to open it.
    pub bytes_read: u64,
}

/// Why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenImageError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error("cannot read the config {digest}")]
    Config { digest: Digest, source: StoreError },
    #[error("the config {digest} is not valid")]
    OddConfig { digest: Digest, source: ConfigError },
    #[error("the config {digest} lists {diff_ids} layers, but the manifest has {layers}")]
    DiffIds { digest: Digest, diff_ids: usize, layers: usize },
    #[error("no layer {wanted}: the image has {layers} layers, counted from 0")]
    NoLayer { wanted: usize, layers: usize },
    #[error(transparent)]
    Layer(#[from] layers::OpenError),
    #[error("the tree of the image's files does not fit into memory")]
    Memory(#[from] OverBudget),
    #[error("the layers do not form a file system")]
    Tree(#[from] TreeError),
    #[error("ociseek is shutting down")]
    Ending,
}

/// Opens the image `root` of `source`. Parts of an index that cannot be used are reported as
/// warnings, and their layers are read without them.
///
/// # Errors
/// If the image or one of its layers cannot be read, or its layers cannot be combined.
pub async fn open(
    source: &Source,
    root: &Target,
    options: &OpenOptions,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<RootFs, OpenImageError> {
    let platform = options.platform.as_ref();
    let source = &source.with_documents_in(&caches.ztocs);
    let _connecting = if options.documents.start { connect(source) } else { Vec::new() };
    let is_usual =
        options.index.is_none() && options.layers == LayerChoice::All && !options.soci_only;
    let foresight = is_usual.then(|| Foresight::start(source, root, platform, caches)).flatten();
    let image = Box::pin(PlatformImage::find(source, root, platform, progress))
        .await
        .map_err(DiscoverError::from)?;
    let opening = Box::pin(async {
        let discovered = image.indexes(source, options.index.as_ref(), progress).await?;
        let Chosen { image: discovered, trust, fine: chosen_fine } =
            choose(source, discovered, options.choice(), &caches.ztocs, &**progress).await?;
        let range = options.layers.range(discovered.layers.len());
        let layers = discovered.layers.len();
        let missing = OpenImageError::NoLayer { wanted: range.end.saturating_sub(1), layers };
        let wanted = discovered.layers.get(range).ok_or(missing)?.to_vec();
        let locating = options.documents.start.then(|| locate(source, &discovered, &wanted));
        let foreseen = match foresight {
            Some(foresight) => foresight.result(&discovered, &wanted, caches).await,
            None => Foreseen::default(),
        };
        let opened = match &foreseen.layers {
            Some(layers) => layers.clone(),
            None => {
                open_layers_of(
                    source,
                    &discovered,
                    &trust,
                    wanted,
                    &options.documents,
                    caches,
                    progress,
                )
                .await?
            }
        };
        Ok((discovered, trust, chosen_fine, opened, foreseen, locating))
    });
    let ((config, stated), (discovered, trust, chosen_fine, opened, mut foreseen, _locating)) =
        Box::pin(both(read_config(source, &image, platform), opening)).await?;
    let opening = source.traffic();
    let facts: Vec<LayerFacts> = opened.iter().map(|layer| facts(layer, &trust)).collect();
    let content = Content::new(
        source.clone(),
        opened,
        caches.spans.clone(),
        options.content.clone(),
        Arc::clone(progress),
    )
    .with_reopen(reopen(source, &discovered, caches));
    let start = options.documents.start.then(|| {
        let content = content.clone();
        BackgroundTask::spawn(async move { content.fetch_start().await })
    });
    let (tree, memory) = match foreseen.tree().await {
        Some(tree) => tree,
        None => flatten(source.budget(), &facts, options.layers).await?,
    };
    let tree = Arc::new(tree);
    if facts.iter().all(|layer| layer.how == LayerAccess::Fine) {
        foreseen.store(&tree, &caches.ztocs);
    }
    for warning in tree.warnings() {
        progress.report(ProgressEvent::Warning(warning.clone()));
    }
    let prefetch = prefetch_artifacts(&discovered, &facts);
    let mut indexes = discovered.indexes;
    let mut fine = discovered.fine;
    Ok(RootFs {
        index: discovered.chosen.map(|chosen| indexes.swap_remove(chosen)),
        fine: chosen_fine.map(|chosen| fine.swap_remove(chosen)),
        prefetch,
        manifest: discovered.manifest,
        platform: stated,
        config,
        layers: facts,
        tree,
        content,
        source: source.clone(),
        opening,
        _memory: memory,
        _start: start,
    })
}

/// Opens connections in the background.
fn connect(source: &Source) -> Vec<BackgroundTask> {
    let connect = |_| {
        let source = source.clone();
        BackgroundTask::spawn(async move { source.connect().await })
    };
    (0..CONNECTIONS).map(connect).collect()
}

/// Opens `layers` of an image, by what its indexes have for them. Reports which of them
/// will be read completely because they have no index, or none that is taken according to `trust`.
///
/// # Errors
/// If one of them cannot be read.
pub async fn open_layers_of(
    source: &Source,
    image: &DiscoveredImage,
    trust: &TrustOfLayers,
    layers: Vec<Descriptor>,
    how: &DocumentFetch,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<OpenLayer>, layers::OpenError> {
    announce(source, image, trust, &layers, caches, progress);
    let document =
        |layer| fetch_document_of(source, image.document_for(&layer), how, caches, progress);
    let ztoc = |layer| fetch_ztoc_of(source, image.ztoc_for(&layer), caches, progress);
    Box::pin(layers::open_layers(source, layers, document, ztoc, caches, progress)).await
}

/// Finds out from where the registry sends the layers that have a recorded start, in the
/// background.
fn locate(source: &Source, image: &DiscoveredImage, layers: &[Descriptor]) -> Vec<BackgroundTask> {
    let has_start =
        |layer: &&Descriptor| image.document_for(&layer.digest).is_some_and(FineRef::has_start);
    let locating = layers.iter().filter(has_start).take(LOCATED).map(|layer| {
        let source = source.clone();
        let layer = layer.clone();
        BackgroundTask::spawn(async move { source.locate(&layer).await })
    });
    locating.collect()
}

/// How to open a layer of the image without its fine document.
pub fn reopen(source: &Source, image: &DiscoveredImage, caches: &Caches) -> ReopenLayer {
    let ztoc = |layer: &Descriptor| Some((layer.digest, image.ztoc_for(&layer.digest)?.clone()));
    let ztocs: HashMap<Digest, ZtocRef> = image.layers.iter().filter_map(ztoc).collect();
    let source = source.clone();
    let ztocs = Arc::new(ztocs);
    let caches = caches.clone();
    Arc::new(move |layer: Descriptor| {
        let source = source.clone();
        let ztocs = Arc::clone(&ztocs);
        let caches = caches.clone();
        Box::pin(async move {
            // The reader reports what matters. Bars would run into what programs print.
            let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
            let ztoc = fetch_ztoc_of(&source, ztocs.get(&layer.digest), &caches, &progress).await?;
            layers::open_layer(&source, &layer, ztoc, &caches, &progress).await
        })
    })
}

/// Reports which of the `layers` of the image will be read completely because they have
/// neither a ztoc nor a fine document.
fn announce(
    source: &Source,
    image: &DiscoveredImage,
    trust: &TrustOfLayers,
    layers: &[Descriptor],
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) {
    let is_indexed = |layer: &&Descriptor| {
        image.ztoc_for(&layer.digest).is_some() || image.document_for(&layer.digest).is_some()
    };
    let without = layers.iter().filter(|layer| !is_indexed(layer));
    let unknown = layers::unknown(without, caches);
    if unknown.is_empty() {
        return;
    }
    let bytes = unknown.iter().map(|layer| layer.size).sum();
    let is_indexable =
        |layer: &&&Descriptor| NotIndexed::of(layer, NotIndexed::MIN_LAYER_SIZE).is_none();
    let indexable = unknown.iter().filter(is_indexable);
    // Archives cannot be written to, so no index can be added.
    let indexable = match source {
        Source::Registry(_) | Source::Layout(_) if image.index().is_none() => {
            indexable.map(|layer| layer.size).sum()
        }
        _ => 0,
    };
    let why = if unknown.iter().any(|layer| trust.left_out.contains(&layer.digest)) {
        ReadAllReason::Untrusted
    } else {
        ReadAllReason::Unindexed { indexable }
    };
    progress.report(ProgressEvent::Reading { layers: unknown.len(), bytes, why });
}

/// The prefetch artifacts of the index that is used.
pub fn prefetch_artifacts(
    image: &DiscoveredImage,
    layers: &[LayerFacts],
) -> Vec<(LayerId, Descriptor)> {
    let Some((_, content)) = image.index() else { return Vec::new() };
    let mut artifacts = prefetch_lists(&content.index.others);
    let indexed = (0..).zip(layers).filter(|(_, layer)| layer.how == LayerAccess::Index);
    indexed
        .filter_map(|(number, layer)| {
            Some((LayerId(number), (*artifacts.remove(&layer.descriptor.digest)?).clone()))
        })
        .collect()
}

/// What is known of a layer that was opened.
pub fn facts(layer: &OpenLayer, trust: &TrustOfLayers) -> LayerFacts {
    let OpenLayer { descriptor, how, bytes_read, .. } = layer;
    let map = Arc::clone(layer.map());
    let trust = trust.of(&descriptor.digest, *how);
    LayerFacts { descriptor: descriptor.clone(), how: *how, trust, map, bytes_read: *bytes_read }
}

async fn flatten(
    budget: &Budget,
    layers: &[LayerFacts],
    choice: LayerChoice,
) -> Result<(Tree, Charge), OpenImageError> {
    let lists: Vec<_> = layers.iter().map(|layer| layer.map.files.all()).collect();
    let memory = charge_tree(budget, lists.iter().map(|files| &files[..]))?;
    drop(lists);
    let maps: Vec<Arc<LayerMap>> = layers.iter().map(|layer| Arc::clone(&layer.map)).collect();
    let flattened = spawn_blocking(move || {
        let entries: Vec<_> = maps.iter().map(|map| map.entries()).collect();
        match (choice, &entries[..]) {
            (LayerChoice::Only(_, opaque), [layer]) => Tree::for_overlay(layer, LayerId(0), opaque),
            _ => Tree::flatten(&entries),
        }
    });
    let tree = flattened.await.map_err(|_| OpenImageError::Ending)??;
    Ok(keep_tree(memory, tree))
}

/// The config, which must list as many layers as the manifest, and the image's platform, which must
/// be `wanted`, if that is given.
pub(crate) async fn read_config(
    source: &Source,
    image: &PlatformImage,
    wanted: Option<&Platform>,
) -> Result<(Bytes, Option<Platform>), OpenImageError> {
    let PlatformManifest { config: descriptor, layers, platform, .. } = &image.manifest;
    let digest = descriptor.digest;
    let layers = layers.len();
    let bytes = resolve::config(source, descriptor).await;
    let bytes = bytes.map_err(|source| OpenImageError::Config { digest, source })?;
    let platform = if image.is_alone {
        resolve::checked(resolve::platform_in(descriptor, &bytes), PlatformChoice::of(wanted))
            .map_err(DiscoverError::from)?
    } else {
        platform.clone()
    };
    let diff_ids = config::diff_ids(&bytes)
        .map_err(|source| OpenImageError::OddConfig { digest, source })?
        .len();
    if diff_ids == layers {
        Ok((bytes, platform))
    } else {
        Err(OpenImageError::DiffIds { digest, diff_ids, layers })
    }
}

/// A ztoc, if there is one and it can be fetched. It is an error if it does not fit into memory,
/// because a map of the layer would take even more.
async fn fetch_ztoc_of(
    source: &Source,
    ztoc: Option<&ZtocRef>,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<Option<Bytes>, layers::OpenError> {
    let Some(ztoc) = ztoc else { return Ok(None) };
    let layer = ztoc.layer;
    match fetch_ztoc(source, ztoc, caches).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(DiscoverError::Ztoc { source: StoreError::Memory(source), .. }) => {
            Err(layers::OpenError::Memory { layer, source })
        }
        Err(error) => {
            let why = causes(&error);
            progress.report(ProgressEvent::Warning(format!(
                "reading layer {layer} without its ztoc: {why}"
            )));
            Ok(None)
        }
    }
}

async fn fetch_ztoc(
    source: &Source,
    ztoc: &ZtocRef,
    caches: &Caches,
) -> Result<Bytes, DiscoverError> {
    let ZtocRef { ztoc: digest, layer, size, .. } = *ztoc;
    let charge =
        source.budget().charge(size.min(MAX_ZTOC), || format!("ztoc {digest} of {size} bytes"));
    let charge =
        charge.map_err(|over| DiscoverError::Ztoc { ztoc: digest, layer, source: over.into() })?;
    let cache = caches.ztocs.clone();
    if let Ok(Some(cached)) = spawn_blocking(move || cache.get_ztoc(&digest)).await {
        return Ok(charged(cached.into(), charge));
    }
    drop(charge);
    let bytes = discover::fetch_ztoc(source, ztoc).await?;
    let cache = caches.ztocs.clone();
    let copy = bytes.clone();
    // The image does not depend on caching, so do not wait for it.
    spawn_blocking(move || cache.put_ztoc(&digest, &copy));
    Ok(bytes)
}
