//! Opens an image ahead: while the registry is asked what the image is, the fine documents that it
//! had when it was last opened are read from the cache, decoded, and flattened. The result is used
//! if the registry still has the same.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

use super::discover::DiscoveredImage;
use super::tree_memory::charge_tree;
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::{Descriptor, Platform};
use ociseek_format::layer::LayerMap;
use ociseek_format::progress::{Progress, SilentProgress};
use ociseek_format::tree::Tree;
use ociseek_rootfs::layers::{Caches, FetchedDocument, OpenLayer, open_document};
use ociseek_store::blob::Target;
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
}

/// Layers that were opened ahead, and their tree, which may not be there yet.
pub(super) struct Foreseen {
    pub layers: Vec<OpenLayer>,
    tree: JoinHandle<Option<(Tree, Charge)>>,
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
        let (to_flatten, maps) = oneshot::channel();
        let layers = tokio::spawn(open_all(source.clone(), name, caches.clone(), to_flatten));
        let tree = tokio::spawn(flatten(source.clone(), maps));
        Some(Foresight { name, layers, tree })
    }

    /// The opened layers, if the registry says that the image has these `layers`, to be read by
    /// what was `found`. Otherwise, this waits for the end, and remembers what the image is now.
    pub(super) async fn layers_of(
        self,
        found: &DiscoveredImage,
        layers: &[Descriptor],
        caches: &Caches,
    ) -> Option<Foreseen> {
        let document = |layer: &Descriptor| Some(LayerDocument::new(layer, found.document_for(&layer.digest)?));
        let actual: Option<Vec<LayerDocument>> = layers.iter().map(document).collect();
        let Expectation { documents, layers } = self.layers.await.unwrap_or_default();
        let is_foreseen = actual.as_ref() == Some(&documents);
        let tree = self.tree;
        match layers.filter(|_| is_foreseen) {
            Some(layers) => Some(Foreseen { layers, tree }),
            None => {
                // Nothing of it takes memory any more.
                let _ = tree.await;
                let new = actual.filter(|actual| !is_foreseen && !actual.is_empty());
                if let Some(text) = new.and_then(|actual| serde_json::to_vec(&actual).ok()) {
                    let (cache, name) = (caches.ztocs.clone(), self.name);
                    // The image does not depend on it, so do not wait for it.
                    spawn_blocking(move || cache.put_opened(&name, &text));
                }
                None
            }
        }
    }
}

impl Foreseen {
    /// The tree of the layers. None if it must be made again, which also reports why it cannot be.
    pub(super) async fn tree(self) -> Option<(Tree, Charge)> {
        self.tree.await.ok().flatten()
    }
}

/// Opens all layers that the image with this digest of its name had, by heads in the cache.
async fn open_all(
    source: Source,
    name: Digest,
    caches: Caches,
    to_flatten: oneshot::Sender<Vec<Arc<LayerMap>>>,
) -> Expectation {
    let cache = caches.ztocs.clone();
    let known = spawn_blocking(move || serde_json::from_slice(&cache.get_opened(&name)?).ok());
    let documents: Vec<LayerDocument> = known.await.ok().flatten().unwrap_or_default();
    let open = |expected: &LayerDocument| open_one(source.clone(), expected.clone(), caches.clone());
    let opening: Vec<_> = documents.iter().map(open).collect();
    let layers: Vec<Option<OpenLayer>> = stream::iter(opening).buffered(SIDE_BY_SIDE).collect().await;
    let layers: Option<Vec<OpenLayer>> = layers.into_iter().collect();
    if let Some(layers) = &layers {
        // Nobody waits for the tree if the registry has another image.
        let _ = to_flatten.send(layers.iter().map(|layer| Arc::clone(layer.map())).collect());
    }
    Expectation { documents, layers }
}

/// Opens a layer. None if the cache does not have the head, or it does not fit.
async fn open_one(source: Source, expected: LayerDocument, caches: Caches) -> Option<OpenLayer> {
    let head = spawn_blocking(move || caches.ztocs.get_head(&expected.head_digest)).await.ok()??;
    let charge = source.budget().charge(head.len() as u64, || format!("the head of {}", expected.document)).ok()?;
    let fetched = FetchedDocument { reference: expected.reference(), bytes: charged(head.into(), charge) };
    // What does not fit is reported when the registry still has it.
    let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
    open_document(&source, &expected.layer, fetched, &progress).await.ok()?
}

/// Flattens the layers. None if they do not fit into memory, or cannot be combined.
async fn flatten(source: Source, maps: oneshot::Receiver<Vec<Arc<LayerMap>>>) -> Option<(Tree, Charge)> {
    let maps = maps.await.ok()?;
    let flattened = spawn_blocking(move || {
        let lists: Vec<_> = maps.iter().map(|map| map.files.all()).collect();
        let charge = charge_tree(source.budget(), lists.iter().map(|files| &files[..])).ok()?;
        let entries: Vec<_> = maps.iter().map(|map| map.entries()).collect();
        Tree::flatten(&entries).ok().map(|tree| (tree, charge))
    });
    flattened.await.ok().flatten()
}
