//! The recorded start of each document: from the user's list, or from the index that is replaced.

use std::ops::Range;
use std::sync::Arc;

use tokio::task::spawn_blocking;

use super::FoundFine;
use crate::budget::{Budget, Charge};
use crate::digest::Digest;
use crate::fine::{self, EncodedFine, FineError, FineLayer};
use crate::image::Descriptor;
use crate::image::fine::FineRef;
use crate::offset::SpanId;
use crate::ops::discover::causes;
use crate::ops::index::error::IndexError;
use crate::ops::open::charge_tree;
use crate::ops::prefetch::{LayerStarts, Missing, PrefetchList, starts};
use crate::progress::{Progress, ProgressEvent};
use crate::store::Source;

/// A layer with its document.
pub(super) type LayerDocument = (Descriptor, Arc<EncodedFine>);

/// Documents that were encoded again, with the charge for their memory.
pub(super) struct Encoded {
    pub documents: Vec<LayerDocument>,
    pub memory: Charge,
}

/// The documents with the start that `list` specifies, and entries that match no file. `documents`
/// are those of the image's layers, lowest first.
///
/// # Errors
/// If the layers cannot be combined, or a document does not fit into memory.
pub(super) async fn with_list(
    list: &Arc<PrefetchList>,
    documents: Vec<LayerDocument>,
    budget: &Budget,
) -> Result<(Encoded, Vec<Missing>), IndexError> {
    let (list, budget) = (Arc::clone(list), budget.clone());
    blocking(move || {
        let mut memory = budget.open();
        let layers =
            documents.iter().map(|(layer, document)| Ok((layer.digest, decoded(layer, document, &mut memory)?)));
        let layers: Vec<(Digest, Arc<FineLayer>)> = layers.collect::<Result<_, IndexError>>()?;
        let _tree = charge_tree(&budget, layers.iter().map(|(_, layer)| layer.entries()))?;
        let (starts, missing) = starts(&list, &layers)?;
        let mut encoded = Encoded { documents: Vec::with_capacity(documents.len()), memory: budget.open() };
        for ((layer, _), (digest, fine)) in documents.into_iter().zip(&layers) {
            let start = starts.get(digest).map_or(&[][..], Vec::as_slice);
            encoded.push(layer, fine, start)?;
        }
        Ok((encoded, missing))
    })
    .await
}

/// The documents with the start of those in `old`. A start that cannot be carried over is reported.
///
/// # Errors
/// If a document does not fit into memory.
pub(super) async fn with_old(
    old: &FoundFine,
    store: &Source,
    documents: Vec<LayerDocument>,
    progress: &Arc<dyn Progress>,
) -> Result<Encoded, IndexError> {
    let budget = store.budget().clone();
    let mut encoded = Encoded { documents: Vec::with_capacity(documents.len()), memory: budget.open() };
    let Ok(old) = &old.content else {
        encoded.documents = documents;
        return Ok(encoded);
    };
    let mut starts = LayerStarts::new();
    for document in &old.layers {
        match start_of(store, document).await {
            Ok(start) => drop(starts.insert(document.layer, start)),
            Err(why) => {
                let text = format!("the recorded start of layer {} is not carried over: {why}", document.layer);
                progress.report(ProgressEvent::Warning(text));
            }
        }
    }
    blocking(move || {
        for (layer, document) in documents {
            let Some(start) = starts.get(&layer.digest).filter(|start| !start.is_empty()) else {
                encoded.documents.push((layer, document));
                continue;
            };
            let mut memory = budget.open();
            let fine = decoded(&layer, &document, &mut memory)?;
            // The same layer has the same spans.
            encoded.push(layer, &fine, start)?;
        }
        Ok(encoded)
    })
    .await
}

impl Encoded {
    /// Encodes a layer's document with this start.
    fn push(&mut self, layer: Descriptor, fine: &FineLayer, start: &[Range<SpanId>]) -> Result<(), IndexError> {
        let document = fine.encode(start).map_err(|source| unwritten(&layer, source))?;
        let charged =
            self.memory.grow(document.bytes.len() as u64, || format!("the fine document of {}", layer.digest));
        charged.map_err(|source| unwritten(&layer, source.into()))?;
        self.documents.push((layer, Arc::new(document)));
        Ok(())
    }
}

/// The start in a document, which takes reading its head. The error says why that is not possible.
async fn start_of(store: &Source, document: &FineRef) -> Result<Vec<Range<SpanId>>, String> {
    if document.start_size == document.head_size {
        return Ok(Vec::new());
    }
    let mut memory = store.budget().open();
    memory.grow(document.head_size, || format!("the head of {}", document.document)).map_err(|over| causes(&over))?;
    let head = store.blob_range(&document.blob(), 0..document.head_size).await.map_err(|error| causes(&error))?;
    if Digest::sha256(&head) != document.head_digest {
        return Err(format!("the head of {} does not have the digest that its index states", document.document));
    }
    let head = fine::decode_head(&head, document.size, &mut memory).map_err(|error| causes(&error))?;
    Ok(head.start().to_vec())
}

fn decoded(layer: &Descriptor, document: &EncodedFine, memory: &mut Charge) -> Result<Arc<FineLayer>, IndexError> {
    fine::decode(&document.bytes, memory).map(Arc::new).map_err(|source| unwritten(layer, source))
}

fn unwritten(layer: &Descriptor, source: FineError) -> IndexError {
    IndexError::Fine { layer: layer.digest, source }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IndexError> + Send + 'static,
) -> Result<T, IndexError> {
    spawn_blocking(work).await.map_err(|_| IndexError::PrefetchThread)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::ChainState;
    use crate::fine::{Codec, FineSpans, SpanParts};
    use crate::offset::{Compressed, Uncompressed};

    #[test]
    fn documents_that_are_encoded_again_are_charged() {
        let digest = Digest::sha256(&[0; 1024]);
        let parts = SpanParts {
            layer: digest,
            codec: Codec::Plain,
            blob_size: 1024,
            tar_end: Uncompressed(1024),
            span_size: fine::SPAN_SIZE,
            starts: vec![fine::FineStart {
                input: Compressed(0),
                output: Uncompressed(0),
                bits: 0,
                state: ChainState::INITIAL,
            }],
        };
        let fine = FineLayer::new(Vec::new(), FineSpans::new(parts).unwrap(), std::iter::empty()).unwrap();
        let size = fine.encode(&[]).unwrap().bytes.len() as u64;
        let budget = Budget::new(2 * size - 1);
        let mut encoded = Encoded { documents: Vec::new(), memory: budget.open() };
        let layer = Descriptor::new("layer", digest, 1024);
        encoded.push(layer.clone(), &fine, &[]).unwrap();
        assert_eq!(budget.used(), size);
        let refused = encoded.push(layer, &fine, &[]);
        assert!(matches!(refused, Err(IndexError::Fine { source: FineError::Memory(_), .. })), "{refused:?}");
        assert_eq!(encoded.documents.len(), 1);
        drop(encoded);
        assert_eq!(budget.used(), 0);
    }
}
