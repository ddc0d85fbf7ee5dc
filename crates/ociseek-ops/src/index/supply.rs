//! The sources of ztocs, and the results for layers that were built.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::Origin;
use super::options::{IndexOptions, Work};
use super::parts::lacks_document;
use crate::resolve::PlatformManifest;
use ociseek_format::budget::{Budget, Charge, OverBudget};
use ociseek_format::digest::Digest;
use ociseek_format::fine::{self, EncodedFine};
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::layer::{LayerOptions, Outcome};
use ociseek_store::Source;
use ociseek_store::cache::{CacheKey, ZtocCache};

/// The sources of ztocs.
pub(crate) struct Supply<'a> {
    /// The store of the layers.
    pub source: &'a Source,
    pub work: Work<'a>,
    /// Indexes that the destination lists. Anyone who may push there can add some, so their ztocs
    /// are not used. What they say counts against others.
    pub known: Vec<ListedZtocs>,
    pub own: OwnImage<'a>,
}

/// The image that the layers belong to.
pub(crate) struct OwnImage<'a> {
    pub manifests: Vec<&'a PlatformManifest>,
    /// The entries of its image index that are not images.
    pub artifacts: &'a [Descriptor],
}

/// The ztocs that a SOCI index lists.
#[derive(Clone)]
pub(crate) struct ListedZtocs {
    /// Their store.
    pub store: Source,
    /// The tool that the index names.
    pub tool: Option<String>,
    pub ztocs: Vec<ZtocRef>,
}

/// A layer's blob. The same digest with another size counts as another blob, one of which does not
/// exist.
pub(super) type BlobKey = (Digest, u64);

pub(super) fn key_of(layer: &Descriptor) -> BlobKey {
    (layer.digest, layer.size)
}

/// What is wanted of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WantedParts {
    pub ztoc: bool,
    /// The fine document.
    pub document: bool,
}

impl WantedParts {
    pub(crate) const ZTOC: WantedParts = WantedParts { ztoc: true, document: false };
    pub(crate) const DOCUMENT: WantedParts = WantedParts { ztoc: false, document: true };

    pub(crate) fn is_nothing(self) -> bool {
        self == WantedParts::default()
    }
}

/// The results for each layer after building.
pub(crate) struct Layers {
    by_blob: BTreeMap<BlobKey, BuiltParts>,
    pub bytes_read: u64,
    /// How many bytes of layers were compared with reused ztocs and fine documents.
    pub bytes_compared: u64,
    /// Whether no layer was finished before time ran out.
    pub stuck: bool,
    /// The memory charge for the ztocs.
    memory: Charge,
}

#[derive(Default)]
struct BuiltParts {
    layer: Option<BuiltLayer>,
    document: BuiltDocument,
}

/// The fine document of a layer, without a recorded start.
#[derive(Default)]
pub(super) enum BuiltDocument {
    /// Nobody looked for it.
    #[default]
    Unknown,
    /// The layer was read, and can have none.
    Impossible,
    Made(Arc<EncodedFine>),
}

pub(crate) struct BuiltLayer {
    pub outcome: Arc<Outcome>,
    pub origin: Origin,
    /// The ztoc that it was taken from, if only some spans of the layer were compared with that.
    /// None if this program read the layer, now or earlier.
    pub sampled: Option<Digest>,
}

impl Layers {
    /// Starts without layers. Their ztocs will be charged to `budget`.
    pub(super) fn new(budget: &Budget) -> Layers {
        Layers {
            by_blob: BTreeMap::new(),
            bytes_read: 0,
            bytes_compared: 0,
            stuck: false,
            memory: budget.open(),
        }
    }

    /// The same layers for another build, with the statistics reset.
    pub(super) fn carried_over(self) -> Layers {
        Layers { bytes_read: 0, bytes_compared: 0, stuck: false, ..self }
    }

    pub(crate) fn get(&self, layer: &Descriptor) -> Option<&BuiltLayer> {
        self.by_blob.get(&key_of(layer))?.layer.as_ref()
    }

    /// What is `wanted` of a layer and still has to be found or made.
    pub(crate) fn lacks(&self, layer: &Descriptor, wanted: WantedParts) -> WantedParts {
        let built = self.get(layer);
        let can_have_document = built.is_none_or(|built| !lacks_document(layer, &built.outcome));
        let known = self.by_blob.get(&key_of(layer)).map(|parts| &parts.document);
        let is_unknown = matches!(known, None | Some(BuiltDocument::Unknown));
        WantedParts {
            ztoc: wanted.ztoc && built.is_none(),
            document: wanted.document && can_have_document && is_unknown,
        }
    }

    /// Whether some layer was not read, and all that is known against `ztoc` is another ztoc of
    /// that layer if only a sample of it was compared.
    pub(super) fn only_sampled_against(&self, ztoc: &ZtocRef) -> bool {
        let parts = self.by_blob.range((ztoc.layer, 0)..=(ztoc.layer, u64::MAX));
        let built = parts.filter_map(|(_, parts)| parts.layer.as_ref());
        let mut sampled = built.filter_map(|built| match (&*built.outcome, built.sampled) {
            (Outcome::Ztoc(new), Some(from)) => Some([new.digest, from]),
            _ => None,
        });
        sampled.any(|same| !same.contains(&ztoc.ztoc))
    }

    /// The fine document of a layer, without a recorded start.
    pub(super) fn document(&self, layer: &Descriptor) -> Option<&Arc<EncodedFine>> {
        match &self.by_blob.get(&key_of(layer))?.document {
            BuiltDocument::Made(document) => Some(document),
            BuiltDocument::Impossible | BuiltDocument::Unknown => None,
        }
    }

    /// Charges and adds a fine document.
    ///
    /// # Errors
    /// If it does not fit into memory.
    pub(super) fn add_document(
        &mut self,
        layer: &Descriptor,
        document: BuiltDocument,
    ) -> Result<(), OverBudget> {
        if let BuiltDocument::Made(document) = &document {
            let bytes = document.bytes.len() as u64;
            self.memory.grow(bytes, || format!("its fine document of {bytes} bytes"))?;
        }
        self.by_blob.entry(key_of(layer)).or_default().document = document;
        Ok(())
    }

    /// Charges the ztoc of a layer and adds the layer.
    ///
    /// # Errors
    /// If it does not fit into memory.
    pub(super) fn add(&mut self, layer: &Descriptor, built: BuiltLayer) -> Result<(), OverBudget> {
        // A layer that is read again for its document has the same ztoc as before.
        let charged = self.get(layer).and_then(|known| match &*known.outcome {
            Outcome::Ztoc(ztoc) => Some(ztoc.digest),
            _ => None,
        });
        if let Outcome::Ztoc(ztoc) = &*built.outcome
            && charged != Some(ztoc.digest)
        {
            let bytes = ztoc.bytes.len() as u64;
            self.memory.grow(bytes, || format!("its ztoc {} of {bytes} bytes", ztoc.digest))?;
        }
        self.by_blob.entry(key_of(layer)).or_default().layer = Some(built);
        Ok(())
    }
}

/// The layer's fine document without a recorded start, if it is cached.
pub(super) async fn cached_document(
    cache: Option<&ZtocCache>,
    layer: &Descriptor,
    budget: &Budget,
) -> Option<Arc<EncodedFine>> {
    let cache = cache?.clone();
    let layer = layer.clone();
    let mut memory = budget.open();
    let cached = tokio::task::spawn_blocking(move || {
        let document = fine::decode(&cache.get_fine(&layer.digest)?, &mut memory).ok()?;
        let is_its =
            document.spans().layer() == layer.digest && document.spans().blob_size() == layer.size;
        if is_its { document.encode(&[]).ok() } else { None }
    });
    // A thread that panicked counts as not found.
    cached.await.ok().flatten().map(Arc::new)
}

/// Caches a document that was made from the layer, and marks it as proven.
pub(super) async fn keep_document(
    cache: Option<&ZtocCache>,
    layer: &Descriptor,
    document: &Arc<EncodedFine>,
) {
    let Some(cache) = cache.cloned() else { return };
    let layer = layer.digest;
    let document = Arc::clone(document);
    let write = tokio::task::spawn_blocking(move || {
        cache.put_proven(&layer, &document.head_digest);
        cache.put_fine(&layer, &document.bytes);
    });
    let _ = write.await;
}

/// The cached outcome of a layer with these options.
pub(crate) async fn cached(
    cache: Option<&ZtocCache>,
    layer: &Descriptor,
    options: &IndexOptions,
) -> Option<Outcome> {
    let (cache, layer, options) = (cache?.clone(), layer.clone(), options.layer.clone());
    let cached = tokio::task::spawn_blocking(move || {
        cache.get(key(&layer.digest, &options)).filter(|(size, _)| *size == layer.size)
    });
    // A thread that panicked counts as not found.
    cached.await.ok().flatten().map(|(_, outcome)| outcome)
}

/// Caches an outcome. The cache itself warns about failures.
pub(super) async fn keep(
    cache: Option<&ZtocCache>,
    layer: &Descriptor,
    options: &IndexOptions,
    outcome: &Arc<Outcome>,
) {
    let Some(cache) = cache.cloned() else { return };
    let (layer, options, outcome) = (layer.clone(), options.layer.clone(), Arc::clone(outcome));
    let write = tokio::task::spawn_blocking(move || {
        cache.put(key(&layer.digest, &options), layer.size, &outcome)
    });
    let _ = write.await;
}

fn key<'a>(layer: &'a Digest, options: &'a LayerOptions) -> CacheKey<'a> {
    CacheKey {
        layer,
        span_size: options.span_size,
        build_tool_identifier: &options.build_tool_identifier,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::layer::BlobForm;
    use ociseek_format::layer::BuiltZtoc;

    #[test]
    fn a_layer_that_is_read_again_for_its_document_is_charged_once() {
        let budget = Budget::new(1000);
        let layer =
            Descriptor::new("application/vnd.oci.image.layer.v1.tar", Digest::sha256(b"layer"), 5);
        let built = |bytes: Vec<u8>| {
            let digest = Digest::sha256(&bytes);
            let ztoc = BuiltZtoc {
                bytes,
                digest,
                spans: 1,
                entries: 0,
                uncompressed_size: 0,
                form: BlobForm::Tar,
            };
            BuiltLayer {
                outcome: Arc::new(Outcome::Ztoc(ztoc)),
                origin: Origin::Cache,
                sampled: None,
            }
        };
        let mut layers = Layers::new(&budget);
        for (bytes, used) in [(vec![1; 600], 600), (vec![1; 600], 600), (vec![2; 300], 900)] {
            assert!(layers.add(&layer, built(bytes)).is_ok());
            assert_eq!(budget.used(), used);
        }
    }
}
