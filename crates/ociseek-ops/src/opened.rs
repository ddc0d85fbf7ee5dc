//! Opens what an index lists as a reader would, before anything is decided or deleted because of
//! it. That shows whether it can be right, and not that it is: only reading the layer does.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::spawn_blocking;

use crate::damage::Damage;
use crate::discover::MAX_ZTOC;
use ociseek_format::budget::Charge;
use ociseek_format::fine::{self, FineLayer};
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::layer::servable;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::SpanSize;
use ociseek_format::printable::exact_size;
use ociseek_format::progress::causes;
use ociseek_format::ztoc;
use ociseek_rootfs::layers::{FetchedDocument, fit_document};
use ociseek_store::{Source, StoreError};

/// What was opened, with the charge for its memory.
pub(crate) struct Opened<T> {
    pub content: T,
    _memory: Charge,
}

/// The ztoc of `layer` that an index lists, or why it does not open.
///
/// # Errors
/// If the store gives no answer.
pub(crate) async fn open_ztoc(
    source: &Source,
    layer: &Descriptor,
    listed: &ZtocRef,
) -> Result<Result<Opened<SpanTable>, String>, StoreError> {
    if listed.size > MAX_ZTOC {
        return Ok(Err(format!(
            "ztoc {} has {} bytes; the limit is {}",
            listed.ztoc,
            listed.size,
            exact_size(MAX_ZTOC)
        )));
    }
    let size = layer.size;
    let span_size = listed.span_size;
    opened(source, &listed.blob(), move |bytes, memory| ztoc_of(bytes, size, span_size, memory))
        .await
}

/// The fine document of `layer` that an index lists, or why it does not open.
///
/// # Errors
/// If the store gives no answer.
pub(crate) async fn open_document(
    source: &Source,
    layer: &Descriptor,
    listed: &FineRef,
) -> Result<Result<Opened<FineLayer>, String>, StoreError> {
    let layer = layer.clone();
    let reference = listed.clone();
    let open = move |bytes: &Bytes, memory: &mut Charge| {
        let head = usize::try_from(reference.head_size).unwrap_or(usize::MAX).min(bytes.len());
        let fetched = FetchedDocument { reference, bytes: bytes.slice(..head) };
        fit_document(&layer, &fetched, memory).map_err(|error| causes(&error))?;
        fine::decode(bytes, memory).map_err(|error| causes(&error))
    };
    opened(source, &listed.blob(), open).await
}

async fn opened<T: Send + 'static>(
    source: &Source,
    blob: &Descriptor,
    open: impl FnOnce(&Bytes, &mut Charge) -> Result<T, String> + Send + 'static,
) -> Result<Result<Opened<T>, String>, StoreError> {
    let digest = blob.digest;
    let failed = |why: String| format!("{digest} does not open: {why}");
    let mut memory =
        match source.budget().charge(blob.size, || format!("{digest} of {} bytes", blob.size)) {
            Ok(memory) => memory,
            Err(over) => return Ok(Err(failed(causes(&over)))),
        };
    let bytes = match source.blob_bytes(blob, blob.size).await {
        Ok(bytes) => bytes,
        // Other content from a registry may have been cut on the way.
        Err(error) if source.is_remote() && Damage::of(&error) != Some(Damage::Missing) => {
            return Err(error);
        }
        Err(error) if Damage::of(&error).is_some() => return Ok(Err(failed(causes(&error)))),
        Err(error) => return Err(error),
    };
    let opening = spawn_blocking(move || {
        let content = open(&bytes, &mut memory)?;
        Ok(Opened { content, _memory: memory })
    });
    // A thread that panicked opened nothing.
    Ok(opening.await.unwrap_or_else(|_| Err("it cannot be decoded".to_owned())).map_err(failed))
}

fn ztoc_of(
    bytes: &[u8],
    layer_size: u64,
    span_size: SpanSize,
    memory: &mut Charge,
) -> Result<SpanTable, String> {
    let head = ztoc::head(bytes).map_err(|error| causes(&error))?;
    if head.version != ztoc::VERSION {
        return Err("it has another version of the format".to_owned());
    }
    if head.compressed_size.0 != layer_size {
        return Err(format!(
            "it is for a layer of {} bytes, not of {layer_size}",
            head.compressed_size
        ));
    }
    if head.span_size != span_size {
        return Err(format!(
            "it has spans of {} bytes, but its index says {span_size}",
            head.span_size
        ));
    }
    let ztoc = ztoc::decode_within(bytes, memory).map_err(|error| causes(&error))?;
    servable(&ztoc).map_err(|error| causes(&error))?;
    SpanTable::new(Arc::new(ztoc)).map_err(|error| causes(&error))
}
