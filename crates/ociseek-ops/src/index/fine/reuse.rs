//! Reuses the documents that an image's fine indexes list, instead of reading their layers: for
//! another recorded start, or after a run that had no time for all layers.
//!
//! That is only done if the user trusts everybody who may push to the repository. They are checked
//! as ztocs are (see [`reuse`](crate::index::reuse)): the
//! document as a reader would check it, and some spans of the layer by its proofs and entries. A
//! document that fails is skipped with a warning, and the layer is read. What is not sampled may be
//! wrong, so reused documents are not cached either.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;

use super::FoundFine;
use crate::index::options::{Existing, IndexOptions};
use crate::index::reuse::{NotReusable, in_proportion};
use crate::index::supply::{DocumentOffer, Layers, Supply};
use crate::maker::builds_alike;
use crate::verify::probe_document;
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::fine::{self, Codec, DIVIDED_SPAN_SIZE, EncodedFine, FineLayer, SPAN_SIZE};
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::{Descriptor, LayerKind};
use ociseek_format::progress::{ProgressEvent, causes};
use ociseek_rootfs::layers::{FetchedDocument, fit_document};
use ociseek_store::Source;

/// How many documents are tried for a layer before it is read.
const TRIES: usize = 3;
/// How many bytes of memory a byte of a document takes while it is checked, in addition to its
/// decoded forms: as fetched, and encoded again.
const COST: u64 = 2;
/// How many entries are chosen. The spans that hold their headers are read, and the last span.
const PROBES: u32 = 4;

impl DocumentOffer {
    /// Those of a fine index whose documents may be the ones that `options` would give.
    pub(super) fn of(found: &FoundFine, store: &Source, options: &IndexOptions) -> Option<DocumentOffer> {
        let index = found.content.as_ref().ok()?;
        let is_alike = builds_alike(index.build_tool.as_deref()?, &options.layer.build_tool_identifier);
        is_alike.then(|| DocumentOffer { store: store.clone(), documents: index.layers.clone() })
    }
}

/// Adds documents for the layers of `missing`, where fine indexes have them.
pub(in crate::index) async fn reuse_documents(layers: &mut Layers, missing: Vec<Descriptor>, supply: &Supply<'_>) {
    let options = supply.work.options;
    if !supply.trusts_repository() || options.existing == Existing::Replace || supply.documents.is_empty() {
        return;
    }
    let mut by_layer: BTreeMap<Digest, Vec<(&FineRef, &Source)>> = BTreeMap::new();
    for (document, store) in supply.documents.iter().flat_map(|offer| offer.documents.iter().map(|d| (d, &offer.store)))
    {
        let there = by_layer.entry(document.layer).or_default();
        if there.iter().all(|(known, _)| known.document != document.document) {
            there.push((document, store));
        }
    }
    let reuse = DocumentReuse { supply, seed: RandomState::new().build_hasher().finish() };
    let mut trying = stream::iter(missing)
        .map(|layer| {
            let offered = by_layer.get(&layer.digest).map_or(&[][..], Vec::as_slice);
            reuse.obtain(layer, offered)
        })
        .buffer_unordered(options.jobs.max(1));
    while let Some((layer, found, read)) = options.before_deadline(trying.next()).await.flatten() {
        layers.bytes_compared += read;
        if let Some(document) = found {
            // One that does not fit into memory is built later, when less may be in use.
            let _ = layers.add_document(&layer, Arc::new(document));
        }
    }
}

struct DocumentReuse<'a> {
    supply: &'a Supply<'a>,
    /// Chooses the spans that are compared, so that nobody can predict them.
    seed: u64,
}

impl DocumentReuse<'_> {
    /// The layer, a document for it, if one was found, and how many bytes of the layer were read
    /// for that.
    async fn obtain(
        &self,
        layer: Descriptor,
        offered: &[(&FineRef, &Source)],
    ) -> (Descriptor, Option<EncodedFine>, u64) {
        let mut read = 0;
        for (document, store) in offered.iter().take(TRIES) {
            match self.fetch(document, store, &layer, &mut read).await {
                Ok(found) => return (layer, Some(found), read),
                Err(NotReusable::Other) => {}
                Err(NotReusable::Wrong(why)) => {
                    let name = document.document;
                    let text = format!("fine document {name} of layer {} is not reused: {why}", layer.digest);
                    self.supply.work.progress.report(ProgressEvent::Warning(text));
                }
            }
        }
        (layer, None, read)
    }

    async fn fetch(
        &self,
        document: &FineRef,
        store: &Source,
        layer: &Descriptor,
        read: &mut u64,
    ) -> Result<EncodedFine, NotReusable> {
        if document.size > in_proportion(layer.size, DIVIDED_SPAN_SIZE) {
            return Err(NotReusable::Other);
        }
        let what = || format!("fine document {} of {} bytes", document.document, document.size);
        let charged = store.budget().charge(document.size.saturating_mul(COST), what);
        let mut memory = charged.map_err(|error| wrong(&error))?;
        let bytes = store.blob_bytes(&document.blob(), document.size).await.map_err(|error| wrong(&error))?;
        let head = usize::try_from(document.head_size).unwrap_or(usize::MAX).min(bytes.len());
        let fetched = FetchedDocument { reference: document.clone(), bytes: bytes.slice(..head) };
        let opened = fit_document(layer, &fetched, &mut memory);
        let (spans, _) = opened.map_err(|error| wrong(&error))?;
        let probed = probe_document(self.supply.source, layer, (&spans, bytes.clone()), PROBES, self.seed).await;
        let probed = probed.map_err(|error| wrong(&error))?;
        *read += probed.bytes_read;
        match probed.differences.first() {
            Some(difference) => return Err(NotReusable::Wrong(difference.text.clone())),
            // All of the chosen spans are too large to be read at once.
            None if probed.compared.spans == 0 => return Err(NotReusable::Other),
            None => {}
        }
        drop(spans);
        let is_plain = LayerKind::of(&layer.media_type) == LayerKind::Uncompressed;
        let encode = move || encoded(&bytes, is_plain, memory);
        spawn_blocking(encode).await.map_err(|_| NotReusable::Other)?
    }
}

/// The document as indexing would encode it, without a recorded start. `is_plain` is what the
/// layer's media type says.
///
/// # Errors
/// If indexing would not make it.
fn encoded(bytes: &Bytes, is_plain: bool, mut memory: Charge) -> Result<EncodedFine, NotReusable> {
    let layer = fine::decode(bytes, &mut memory).and_then(FineLayer::undivided).map_err(|error| wrong(&error))?;
    if !is_as_built(&layer) || (is_plain && layer.spans().codec() != Codec::Plain) {
        return Err(NotReusable::Wrong("ociseek would build it differently".to_owned()));
    }
    layer.encode(&[]).map_err(|error| wrong(&error))
}

/// Checks properties that readers do not require but all our documents have.
fn is_as_built(layer: &FineLayer) -> bool {
    let spans = layer.spans();
    let is_far = |pair: &[fine::FineStart]| pair[1].output - pair[0].output > SPAN_SIZE;
    spans.span_size() == SPAN_SIZE
        && (spans.codec() == Codec::Plain || spans.starts().windows(2).all(is_far))
        && layer.entries().iter().all(|file| file.pax.is_sorted_by(|one, next| one.key < next.key))
}

fn wrong(error: &dyn std::error::Error) -> NotReusable {
    NotReusable::Wrong(causes(error))
}
