//! Checks whether the document in an image's fine index can belong to the layer. As with ztocs,
//! anyone who may push an index can push any content, so everything that can be checked is checked.

use std::sync::Arc;

use bytes::Bytes;

use super::MAX_COMPRESSED;
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::fine::{Codec, FineError, PageId, Windows, decode_head, decode_page};
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::{Descriptor, LayerKind};
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::{SpanError, SpanTable};
use ociseek_format::offset::SpanId;

/// The start of a fine document, as fetched: at least the head.
#[derive(Debug, Clone)]
pub struct FetchedDocument {
    /// The entry of the document in the fine index.
    pub reference: FineRef,
    /// The head, and those pages of the recorded start that were fetched with it.
    pub bytes: Bytes,
}

/// A fine document that a layer is read with.
#[derive(Debug)]
pub struct OpenDocument {
    /// The document's blob.
    pub blob: Descriptor,
    /// The pages that were fetched with the head.
    pub pages: Vec<(PageId, Arc<Windows>)>,
}

/// Why a fine document is not used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum UnfitDocument {
    #[error("its head has the digest {actual}, not {expected}")]
    Head { expected: Digest, actual: Digest },
    #[error("it begins with {0} bytes, which is less than its head")]
    Short(usize),
    #[error(transparent)]
    Fine(#[from] FineError),
    #[error(transparent)]
    Spans(#[from] SpanError),
    #[error("it is for layer {0}")]
    Layer(Digest),
    #[error("it is for a layer of {0} bytes, but this one has {1}")]
    Size(u64, u64),
    #[error("its compression is not that of {0}")]
    Compression(String),
    #[error("its recorded start ends at byte {actual}, but the fine index says {expected}")]
    Start { expected: u64, actual: u64 },
    #[error("its span {0} has {1} compressed bytes, more than can be read at once")]
    Span(SpanId, u64),
}

/// The map of `layer`, from a fine document that claims to belong to it. Charged to `memory`.
pub fn open(
    layer: &Descriptor,
    fetched: &FetchedDocument,
    memory: &mut Charge,
) -> Result<(SpanTable<LayerMap>, OpenDocument), UnfitDocument> {
    let FetchedDocument { reference, bytes } = fetched;
    let head = usize::try_from(reference.head_size).ok().and_then(|size| bytes.get(..size));
    let head = head.ok_or(UnfitDocument::Short(bytes.len()))?;
    let (expected, actual) = (reference.head_digest, Digest::sha256(head));
    if expected != actual {
        return Err(UnfitDocument::Head { expected, actual });
    }
    let head = decode_head(head, reference.size, memory)?;
    if head.layer() != layer.digest {
        return Err(UnfitDocument::Layer(head.layer()));
    }
    if head.blob_size() != layer.size {
        return Err(UnfitDocument::Size(head.blob_size(), layer.size));
    }
    let is_other = match LayerKind::of(&layer.media_type) {
        LayerKind::Gzip => head.spans().codec() != Codec::Gzip,
        LayerKind::Zstd => head.spans().codec() != Codec::Zstd,
        _ => false,
    };
    if is_other {
        return Err(UnfitDocument::Compression(layer.media_type.clone()));
    }
    if head.start_size() != reference.start_size {
        return Err(UnfitDocument::Start { expected: reference.start_size, actual: head.start_size() });
    }
    let mut pages = Vec::new();
    for page in head.pages() {
        let range = head.page_range(page);
        let Some(page_bytes) = bytes.get(range.start as usize..range.end as usize) else { break };
        pages.push((page, Arc::new(decode_page(&head, page, page_bytes)?)));
    }
    let spans = SpanTable::new(Arc::new(LayerMap::from(head)))?;
    for span in spans.each() {
        let blob = spans.blob_range(span);
        if blob.end - blob.start > MAX_COMPRESSED {
            return Err(UnfitDocument::Span(span, blob.end - blob.start));
        }
    }
    Ok((spans, OpenDocument { blob: reference.blob(), pages }))
}
