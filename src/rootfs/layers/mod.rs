//! Opening layers: finding or making what their tars can be read by.

use std::sync::Arc;

use bytes::Bytes;

use crate::digest::Digest;
use crate::image::Descriptor;
use crate::layer::span::{SpanError, SpanTable};
use crate::layer::{LayerError, LayerIndexer, LayerOptions, Outcome};
use crate::progress::Progress;
use crate::rootfs::cache::SpanCache;
use crate::store::cache::ZtocCache;
use crate::store::{Source, StoreError};
use crate::ztoc::{self, Ztoc};

/// By what a layer is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The ztoc of the image's SOCI index.
    Index,
    /// A ztoc that was made here, now or earlier.
    Local,
    /// No place in the blob can be decoded alone: it was decoded from front to back, and its tar is cached.
    Whole,
}

/// A layer that can be read.
#[derive(Debug, Clone)]
pub struct OpenLayer {
    pub descriptor: Descriptor,
    /// The entries. For [`How::Whole`], of the plain tar: its spans are slices of that.
    pub ztoc: Arc<Ztoc>,
    pub how: How,
    /// Bytes of the blob that were read to open it.
    pub bytes_read: u64,
    pub(in crate::rootfs) spans: SpanTable,
}

/// Where opened layers leave what the next one who opens them can use.
#[derive(Clone)]
pub struct Caches {
    pub ztocs: ZtocCache,
    pub spans: SpanCache,
}

/// Why a layer cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("layer {layer} is encrypted")]
    Encrypted { layer: Digest },
    #[error("layer {layer} is compressed with {name}: gzip, zstd and plain tars are read")]
    Compression { layer: Digest, name: &'static str },
    #[error("{media_type:?} ({layer}) is not the media type of a layer")]
    NotALayer { layer: Digest, media_type: String },
    #[error("layer {layer} cannot be fetched (from byte {read} on)")]
    Read { layer: Digest, read: u64, source: StoreError },
    #[error("layer {layer} is broken")]
    Broken { layer: Digest, source: LayerError },
    #[error("layer {layer} cannot be read by its index")]
    Spans { layer: Digest, source: SpanError },
    #[error("layer {layer} was not decoded to its end: the program is ending")]
    Ending { layer: Digest },
}

/// Opens a layer: by `ztoc`, the encoded ztoc from the image's index, if there is one that fits; else by the cache of ztocs; else
/// the layer is read once, from front to back, and the caches keep what was learned.
///
/// # Errors
/// When the layer cannot be fetched, is broken, or is compressed in a way that is not read.
pub async fn open_layer(
    source: &Source,
    layer: &Descriptor,
    ztoc: Option<Bytes>,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<OpenLayer, OpenError> {
    let _ = (caches, progress);
    let digest = layer.digest;
    let decoded = ztoc.and_then(|bytes| ztoc::decode(&bytes).ok());
    let (ztoc, how) = match decoded {
        Some(ztoc) => (ztoc, How::Index),
        None => {
            let options = LayerOptions { span_size: 1 << 20, build_tool_identifier: "ociseek".into() };
            let mut indexer = LayerIndexer::new(options, Some((digest, layer.size)));
            let mut blob =
                source.blob(layer).await.map_err(|source| OpenError::Read { layer: digest, read: 0, source })?;
            while let Some(chunk) =
                blob.next().await.map_err(|source| OpenError::Read { layer: digest, read: 0, source })?
            {
                indexer.push(&chunk).map_err(|source| OpenError::Broken { layer: digest, source })?;
            }
            let indexed = indexer.finish().map_err(|source| OpenError::Broken { layer: digest, source })?;
            let Outcome::Ztoc(built) = indexed.outcome else { return Err(OpenError::Ending { layer: digest }) };
            (ztoc::decode(&built.bytes).map_err(|_| OpenError::Ending { layer: digest })?, How::Local)
        }
    };
    let spans = SpanTable::new(Arc::new(ztoc)).map_err(|source| OpenError::Spans { layer: digest, source })?;
    Ok(OpenLayer { descriptor: layer.clone(), ztoc: Arc::clone(spans.ztoc()), how, bytes_read: 0, spans })
}

/// Opens the layers of an image, some side by side. Each is a layer and its ztoc from the image's index.
///
/// # Errors
/// Those of [`open_layer`]; the first one ends it.
pub async fn open_layers(
    source: &Source,
    layers: Vec<(Descriptor, Option<Bytes>)>,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<OpenLayer>, OpenError> {
    let mut opened = Vec::new();
    for (layer, ztoc) in layers {
        opened.push(open_layer(source, &layer, ztoc, caches, progress).await?);
    }
    Ok(opened)
}
