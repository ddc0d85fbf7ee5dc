//! Where ztocs come from, and what is known of the layers once they were built.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::{IndexOptions, Origin};
use crate::budget::{Budget, Charge, OverBudget};
use crate::digest::Digest;
use crate::fine::{self, EncodedFine};
use crate::image::Descriptor;
use crate::image::soci::ZtocRef;
use crate::layer::{LayerOptions, Outcome};
use crate::ops::resolve::PlatformManifest;
use crate::store::Source;
use crate::store::cache::{CacheKey, ZtocCache};

/// Where ztocs come from.
pub(in crate::ops) struct Supply<'a> {
    /// Where the layers are.
    pub source: &'a Source,
    pub cache: Option<&'a ZtocCache>,
    /// Indexes of the image itself, whose ztocs are reused before others are looked for.
    pub known: Vec<Offer>,
    pub own: Own<'a>,
}

/// The image whose layers these are.
pub(in crate::ops) struct Own<'a> {
    pub digest: Digest,
    pub manifests: Vec<&'a PlatformManifest>,
    /// What its image index lists beside its images.
    pub artifacts: &'a [Descriptor],
    /// The indexes of version 1 that `source` lists are among those that are known.
    pub is_listed: bool,
}

/// A SOCI index whose ztocs may be reused.
#[derive(Clone)]
pub(in crate::ops) struct Offer {
    /// Where the ztocs are.
    pub store: Source,
    /// What the index names as its maker.
    pub tool: Option<String>,
    pub ztocs: Vec<ZtocRef>,
    /// What is reported of layers whose ztocs come from here.
    pub origin: Origin,
}

/// A layer's blob. What names the same digest with another size is another blob, and one of the two will not be found.
pub(super) type Blob = (Digest, u64);

/// What is known of each layer after building.
pub(in crate::ops) struct Layers {
    by_blob: BTreeMap<Blob, BuiltLayer>,
    pub bytes_read: u64,
    /// Bytes of layers that were compared with ztocs to reuse.
    pub bytes_compared: u64,
    /// Fine documents without a recorded start.
    documents: BTreeMap<Blob, Arc<EncodedFine>>,
    /// Layers were read until the time was up, and none was done.
    pub stuck: bool,
    /// What the ztocs take.
    memory: Charge,
}

pub(in crate::ops) struct BuiltLayer {
    pub outcome: Arc<Outcome>,
    pub origin: Origin,
}

impl Layers {
    /// None yet; their ztocs will be charged to `budget`.
    pub(super) fn new(budget: &Budget) -> Layers {
        let (by_blob, documents, memory) = (BTreeMap::new(), BTreeMap::new(), budget.open());
        Layers { by_blob, documents, bytes_read: 0, bytes_compared: 0, stuck: false, memory }
    }

    /// The same layers for another build, which has read nothing so far.
    pub(super) fn carried_over(self) -> Layers {
        Layers { bytes_read: 0, bytes_compared: 0, stuck: false, ..self }
    }

    pub(crate) fn get(&self, layer: &Descriptor) -> Option<&BuiltLayer> {
        self.by_blob.get(&(layer.digest, layer.size))
    }

    /// The fine document of a layer, without a recorded start.
    pub(super) fn document(&self, layer: &Descriptor) -> Option<&Arc<EncodedFine>> {
        self.documents.get(&(layer.digest, layer.size))
    }

    /// Adds a fine document, once it is charged.
    ///
    /// # Errors
    /// When it does not fit.
    pub(super) fn add_document(&mut self, layer: &Descriptor, document: Arc<EncodedFine>) -> Result<(), OverBudget> {
        let bytes = document.bytes.len() as u64;
        self.memory.grow(bytes, || format!("its fine document of {bytes} bytes"))?;
        self.documents.insert((layer.digest, layer.size), document);
        Ok(())
    }

    /// Adds a layer, once its ztoc is charged.
    ///
    /// # Errors
    /// When it does not fit.
    pub(super) fn add(&mut self, layer: &Descriptor, built: BuiltLayer) -> Result<(), OverBudget> {
        if let Outcome::Ztoc(ztoc) = &*built.outcome {
            let bytes = ztoc.bytes.len() as u64;
            self.memory.grow(bytes, || format!("its ztoc {} of {bytes} bytes", ztoc.digest))?;
        }
        self.by_blob.insert((layer.digest, layer.size), built);
        Ok(())
    }
}

/// The layer's fine document without a recorded start, if the cache has it.
pub(super) async fn cached_document(
    cache: Option<&ZtocCache>,
    layer: &Descriptor,
    budget: &Budget,
) -> Option<Arc<EncodedFine>> {
    let (cache, layer, mut memory) = (cache?.clone(), layer.clone(), budget.open());
    let found = tokio::task::spawn_blocking(move || {
        let document = fine::decode(&cache.get_fine(&layer.digest)?, &mut memory).ok()?;
        let is_its = document.spans().layer() == layer.digest && document.spans().blob_size() == layer.size;
        if is_its { document.encode(&[]).ok() } else { None }
    });
    // A thread that panicked has found nothing.
    found.await.ok().flatten().map(Arc::new)
}

/// Writes a document down.
pub(super) async fn keep_document(cache: Option<&ZtocCache>, layer: &Descriptor, document: &Arc<EncodedFine>) {
    let Some(cache) = cache.cloned() else { return };
    let (layer, document) = (layer.digest, Arc::clone(document));
    let _ = tokio::task::spawn_blocking(move || cache.put_fine(&layer, &document.bytes)).await;
}

/// What the cache knows of a layer under these options.
pub(super) async fn cached(cache: Option<&ZtocCache>, layer: &Descriptor, options: &IndexOptions) -> Option<Outcome> {
    let (cache, layer, options) = (cache?.clone(), layer.clone(), options.layer.clone());
    let found = tokio::task::spawn_blocking(move || {
        cache.get(key(&layer.digest, &options)).filter(|(size, _)| *size == layer.size)
    });
    // A thread that panicked has found nothing.
    found.await.ok().flatten().map(|(_, outcome)| outcome)
}

/// Writes an outcome down. The cache itself warns when it cannot.
pub(super) async fn keep(
    cache: Option<&ZtocCache>,
    layer: &Descriptor,
    options: &IndexOptions,
    outcome: &Arc<Outcome>,
) {
    let Some(cache) = cache.cloned() else { return };
    let (layer, options, outcome) = (layer.clone(), options.layer.clone(), Arc::clone(outcome));
    let kept = tokio::task::spawn_blocking(move || cache.put(key(&layer.digest, &options), layer.size, &outcome));
    let _ = kept.await;
}

fn key<'a>(layer: &'a Digest, options: &'a LayerOptions) -> CacheKey<'a> {
    CacheKey { layer, span_size: options.span_size, build_tool_identifier: &options.build_tool_identifier }
}
