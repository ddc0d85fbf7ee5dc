//! Fetches the beginnings of fine documents: their heads, and the pages of recorded starts.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::spawn_blocking;

use ociseek_format::budget::{Charge, OverBudget};
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::FineRef;
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_rootfs::layers::{Caches, FetchedDocument, UnfitDocument, fit_document};
use ociseek_store::{Source, StoreError, charged};

/// The most bytes of a recorded start's pages that are fetched together with a head. The others are
/// fetched on demand.
const MAX_START: u64 = 16 << 20;

/// What is fetched of fine documents when an image is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct DocumentFetch {
    /// Whether to fetch the start recorded in the documents at once, in the background.
    pub start: bool,
}

/// The beginning of a fine document, if there is one and it can be fetched.
pub(crate) async fn fetch_document_of(
    source: &Source,
    reference: Option<&FineRef>,
    how: &DocumentFetch,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Option<FetchedDocument> {
    let reference = reference?;
    match fetch_document(source, reference, how, false, caches).await {
        Ok(bytes) => Some(FetchedDocument { reference: reference.clone(), bytes }),
        Err(error) => {
            let layer = reference.layer;
            let why = causes(&error);
            progress.report(ProgressEvent::Warning(format!(
                "reading layer {layer} without its fine document: {why}"
            )));
            None
        }
    }
}

/// The beginning of a document. If it is fetched `ahead`, it is only needed in the cache, which has
/// it when this returns.
pub(crate) async fn fetch_document(
    source: &Source,
    reference: &FineRef,
    how: &DocumentFetch,
    ahead: bool,
    caches: &Caches,
) -> Result<Bytes, StoreError> {
    let FineRef { document, head_size, head_digest, .. } = *reference;
    let cache = caches.ztocs.clone();
    let takes_start = how.start && !ahead;
    let cached = spawn_blocking(move || {
        let mut cached = cache.get_head(&head_digest)?;
        // Spans in the cache need no windows. Pages that were fetched ahead are for a first start.
        cached.extend(
            takes_start.then(|| cache.take_start(&head_digest)).flatten().unwrap_or_default(),
        );
        Some(cached)
    });
    let cached = cached.await.ok().flatten();
    let length =
        cached.as_ref().map_or(fetched_size(reference, how.start), |cached| cached.len() as u64);
    let charge = source
        .budget()
        .charge(length, || format!("{length} bytes of the fine document {document}"))?;
    if let Some(cached) = cached {
        return Ok(charged(cached.into(), charge));
    }
    let bytes = source.blob_range(&reference.blob(), 0..length).await?;
    let head = bytes.slice(..bytes.len().min(usize::try_from(head_size).unwrap_or(usize::MAX)));
    if Digest::sha256(&head) == head_digest {
        let cache = caches.ztocs.clone();
        let pages = bytes.slice(head.len()..);
        let keeping = spawn_blocking(move || {
            // Before the head, with which they are looked up.
            if ahead && !pages.is_empty() {
                cache.put_start(&head_digest, &pages);
            }
            cache.put_head(&head_digest, &head);
        });
        // Otherwise, nothing depends on caching, so do not wait for it.
        if ahead {
            let _ = keeping.await;
        }
    }
    Ok(charged(bytes, charge))
}

/// How many bytes of a document are fetched at once.
pub(crate) fn fetched_size(reference: &FineRef, start: bool) -> u64 {
    if start && reference.start_size - reference.head_size <= MAX_START {
        reference.start_size
    } else {
        reference.head_size
    }
}

/// Why a layer cannot be read by its fine document.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadError {
    #[error("it cannot be read")]
    Fetch(#[from] StoreError),
    #[error(transparent)]
    Unfit(#[from] UnfitDocument),
    #[error("it does not fit into memory")]
    Memory(#[from] OverBudget),
}

/// The spans of `layer` by its fine document, of which only the head is fetched. `memory` grows by
/// what they take.
///
/// # Errors
/// When the head cannot be read or cannot be the layer's.
pub(super) async fn fetch_head(
    source: &Source,
    layer: &Descriptor,
    document: &FineRef,
    memory: &mut Charge,
) -> Result<SpanTable<LayerMap>, HeadError> {
    let size = document.head_size;
    let _fetched = source.budget().charge(size, || format!("{size} bytes of a fine document"))?;
    let bytes = source.blob_range(&document.blob(), 0..size).await?;
    let fetched = FetchedDocument { reference: document.clone(), bytes };
    let (spans, _) = fit_document(layer, &fetched, memory)?;
    Ok(spans)
}
