//! Opens an image ahead: while the registry is asked what the image is, the fine documents that it
//! had when it was last opened are read from the cache, and so is the tree of its files. Without
//! that tree, their lists of files are decoded and flattened. The result is used if the registry
//! still has the same.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

use super::discover::DiscoveredImage;
use super::tree_memory::{charge_stored_tree, charge_tree, keep_tree};
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::{Descriptor, Platform};
use ociseek_format::layer::LayerMap;
use ociseek_format::progress::{Progress, SilentProgress};
use ociseek_format::tree::Tree;
use ociseek_rootfs::layers::{Caches, FetchedDocument, FileListUse, OpenLayer, open_document};
use ociseek_store::blob::Target;
use ociseek_store::cache::ZtocCache;
use ociseek_store::{Source, charged};

/// How many documents are decoded at the same time.
const SIDE_BY_SIDE: usize = 16;

/// A layer with the fine document that it is read with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LayerDocument {
    layer: Descriptor,
    document: Digest,
    size: u64,
    head_size: u64,
    head_digest: Digest,
    start_size: u64,
}

impl LayerDocument {
    fn new(layer: &Descriptor, reference: &FineRef) -> LayerDocument {
        let FineRef { document, size, head_size, head_digest, start_size, .. } = *reference;
        LayerDocument { layer: layer.clone(), document, size, head_size, head_digest, start_size }
    }

    fn reference(&self) -> FineRef {
        let LayerDocument { document, size, head_size, head_digest, start_size, .. } = *self;
        FineRef { document, size, layer: self.layer.digest, head_size, head_digest, start_size }
    }
}

/// An image that is opened as it was the last time.
pub(super) struct Foresight {
    name: Digest,
    layers: JoinHandle<Expectation>,
    tree: JoinHandle<Option<(Tree, Charge)>>,
}

/// The layers that the image is expected to have. They are open if all of them could be.
#[derive(Default)]
struct Expectation {
    documents: Vec<LayerDocument>,
    layers: Option<Vec<OpenLayer>>,
    /// Whether the cache had their tree.
    has_tree: bool,
}

/// What the tree of expected layers comes from.
enum TreeSource {
    Stored(Tree, Charge),
    Layers(Vec<Arc<LayerMap>>),
}

/// What was opened ahead, if it is what the registry has.
#[derive(Default)]
pub(super) struct Foreseen {
    pub layers: Option<Vec<OpenLayer>>,
    /// The tree of the layers, which may not be there yet.
    tree: Option<JoinHandle<Option<(Tree, Charge)>>>,
    /// What the cache calls the image's tree, if it does not have that.
    unstored: Option<Digest>,
}

impl Foresight {
    /// Starts to open the image `root` of `source`. Needs a tokio runtime. None if no registry
    /// would be asked.
    pub(super) fn start(
        source: &Source,
        root: &Target,
        platform: Option<&Platform>,
        caches: &Caches,
    ) -> Option<Foresight> {
        let Source::Registry(repository) = source else { return None };
        let platform = platform.map(ToString::to_string).unwrap_or_default();
        let name = format!("{}/{}\n{root}\n{platform}", repository.registry(), repository.name());
        let name = Digest::sha256(name.as_bytes());
        let (sender, tree_source) = oneshot::channel();
        let layers = tokio::spawn(open_all(source.clone(), name, caches.clone(), sender));
        let tree = tokio::spawn(make_tree(source.clone(), tree_source));
        Some(Foresight { name, layers, tree })
    }

    /// What was opened, if the registry says that the image has these `layers`, to be read by what
    /// was found of `image`. Otherwise, this waits for the end, and remembers what it is now.
    pub(super) async fn result(
        self,
        image: &DiscoveredImage,
        layers: &[Descriptor],
        caches: &Caches,
    ) -> Foreseen {
        let document = |layer: &Descriptor| {
            Some(LayerDocument::new(layer, image.document_for(&layer.digest)?))
        };
        let actual: Option<Vec<LayerDocument>> = layers.iter().map(document).collect();
        let actual = actual.filter(|actual| !actual.is_empty());
        let Expectation { documents, layers, has_tree } = self.layers.await.unwrap_or_default();
        let is_foreseen = actual.as_ref() == Some(&documents);
        let layers = layers.filter(|_| is_foreseen);
        let text = actual.and_then(|actual| serde_json::to_vec(&actual).ok());
        let has_tree = has_tree && layers.is_some();
        let unstored = text.as_deref().filter(|_| !has_tree).map(tree_name);
        if layers.is_some() {
            return Foreseen { layers, tree: Some(self.tree), unstored };
        }
        // Nothing of it takes memory any more.
        let _ = self.tree.await;
        if let Some(text) = text.filter(|_| !is_foreseen) {
            let cache = caches.ztocs.clone();
            let name = self.name;
            // The image does not depend on it, so do not wait for it.
            spawn_blocking(move || cache.put_opened(&name, &text));
        }
        Foreseen { layers: None, tree: None, unstored }
    }
}

impl Foreseen {
    /// The tree of the layers. None if it must be made again, which also reports why it cannot be.
    pub(super) async fn tree(&mut self) -> Option<(Tree, Charge)> {
        self.tree.take()?.await.ok().flatten()
    }

    /// Stores the image's `tree` for the next time, unless the cache has it. Does not wait for
    /// that. All layers must have been opened by their documents.
    pub(super) fn store(self, tree: &Arc<Tree>, cache: &ZtocCache) {
        if let Some(name) = self.unstored {
            let tree = Arc::clone(tree);
            let cache = cache.clone();
            spawn_blocking(move || cache.put_tree(&name, &tree));
        }
    }
}

/// What the cache calls the tree of layers with these documents, which are encoded as JSON. The
/// digests of the documents' heads are among them.
fn tree_name(documents: &[u8]) -> Digest {
    Digest::sha256(documents)
}

/// Opens all layers that the image with this digest of its name had, by heads in the cache, while
/// their tree is read.
async fn open_all(
    source: Source,
    name: Digest,
    caches: Caches,
    sender: oneshot::Sender<TreeSource>,
) -> Expectation {
    let cache = caches.ztocs.clone();
    let known = spawn_blocking(move || {
        let text = cache.get_opened(&name)?;
        let documents: Vec<LayerDocument> = serde_json::from_slice(&text).ok()?;
        let tree = tree_name(&text);
        Some((documents, tree, cache.may_have_tree(&tree)))
    });
    let Some((documents, tree, may_have_tree)) = known.await.ok().flatten() else {
        return Expectation::default();
    };
    let mut layers = None;
    let mut stored = None;
    if may_have_tree {
        let cache = caches.ztocs.clone();
        let budget = source.budget().clone();
        let reading = spawn_blocking(move || {
            let tree = cache.get_tree(&tree)?;
            Some((charge_stored_tree(&budget, &tree).ok()?, tree))
        });
        layers = open_each(&source, &documents, FileListUse::Maybe, &caches).await;
        stored = reading.await.ok().flatten();
    }
    let has_tree = stored.is_some();
    if !has_tree {
        // Their lists of files are needed after all.
        drop(layers.take());
        layers = open_each(&source, &documents, FileListUse::Needed, &caches).await;
    }
    if let Some(layers) = &layers {
        let tree_source = match stored {
            Some((charge, tree)) => TreeSource::Stored(tree, charge),
            None => {
                TreeSource::Layers(layers.iter().map(|layer| Arc::clone(layer.map())).collect())
            }
        };
        // Nobody waits for the tree if the registry has another image.
        let _ = sender.send(tree_source);
    }
    Expectation { documents, layers, has_tree }
}

/// Opens the layers with these documents. None if one of them cannot be opened.
async fn open_each(
    source: &Source,
    documents: &[LayerDocument],
    list: FileListUse,
    caches: &Caches,
) -> Option<Vec<OpenLayer>> {
    let open =
        |expected: &LayerDocument| open_one(source.clone(), expected.clone(), list, caches.clone());
    let opening: Vec<_> = documents.iter().map(open).collect();
    let layers: Vec<Option<OpenLayer>> =
        stream::iter(opening).buffered(SIDE_BY_SIDE).collect().await;
    layers.into_iter().collect()
}

/// Opens a layer. None if the cache does not have the head, or it does not fit.
async fn open_one(
    source: Source,
    expected: LayerDocument,
    list: FileListUse,
    caches: Caches,
) -> Option<OpenLayer> {
    let head =
        spawn_blocking(move || caches.ztocs.get_head(&expected.head_digest)).await.ok()??;
    let charge = source
        .budget()
        .charge(head.len() as u64, || format!("the head of {}", expected.document))
        .ok()?;
    let fetched =
        FetchedDocument { reference: expected.reference(), bytes: charged(head.into(), charge) };
    // What does not fit is reported when the registry still has it.
    let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
    open_document(&source, &expected.layer, fetched, list, &progress).await.ok()?
}

/// The stored tree, or that of the layers. None if they do not fit into memory, or cannot be
/// combined.
async fn make_tree(
    source: Source,
    tree_source: oneshot::Receiver<TreeSource>,
) -> Option<(Tree, Charge)> {
    let maps = match tree_source.await.ok()? {
        TreeSource::Stored(tree, charge) => return Some((tree, charge)),
        TreeSource::Layers(maps) => maps,
    };
    let flattened = spawn_blocking(move || {
        let lists: Vec<_> = maps.iter().map(|map| map.files.all()).collect();
        let charge = charge_tree(source.budget(), lists.iter().map(|files| &files[..])).ok()?;
        let entries: Vec<_> = maps.iter().map(|map| map.entries()).collect();
        Tree::flatten(&entries).ok().map(|tree| keep_tree(charge, tree))
    });
    flattened.await.ok().flatten()
}
