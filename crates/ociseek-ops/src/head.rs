//! The head of a fine document, for the commands that say what a fine index is good for.

use ociseek_format::budget::{Charge, OverBudget};
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::FineRef;
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::SpanTable;
use ociseek_rootfs::layers::{FetchedDocument, UnfitDocument, fit_document};
use ociseek_store::{Source, StoreError};

/// Why a layer cannot be read by its fine document.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadError {
    #[error("it cannot be read")]
    Fetch(#[from] StoreError),
    #[error(transparent)]
    Unfit(#[from] UnfitDocument),
    #[error(transparent)]
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
