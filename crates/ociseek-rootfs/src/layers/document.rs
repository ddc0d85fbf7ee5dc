//! Checks whether the document in an image's fine index can belong to the layer. As with ztocs,
//! anyone who may push an index can push any content, so everything that can be checked is checked.

use std::sync::Arc;

use bytes::Bytes;

use super::MAX_COMPRESSED;
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::fine::{Codec, FineError, PageId, Windows, decode_head, decode_page, decode_spans};
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::{Descriptor, LayerKind};
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::{SpanError, SpanTable};
use ociseek_format::offset::SpanId;

/// Memory for what a mount notes of a span's window, in bytes.
pub(crate) const WINDOW_CHECK: u64 = 256;

/// The start of a fine document, as fetched: at least the head.
#[derive(Debug, Clone)]
pub struct FetchedDocument {
    /// The entry of the document in the fine index.
    pub reference: FineRef,
    /// The head, and those pages of the recorded start that were fetched with it.
    pub bytes: Bytes,
}

/// Whether the list of files in a document is read when that is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileListUse {
    /// It is read and checked.
    Needed,
    /// It is read when it is first asked for. It was valid when the document was opened before.
    Maybe,
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
    open_for(layer, fetched, FileListUse::Needed, memory)
}

/// Like [`open`], but reads the list of files as `list` says.
pub(super) fn open_for(
    layer: &Descriptor,
    fetched: &FetchedDocument,
    list: FileListUse,
    memory: &mut Charge,
) -> Result<(SpanTable<LayerMap>, OpenDocument), UnfitDocument> {
    let FetchedDocument { reference, bytes } = fetched;
    let head = usize::try_from(reference.head_size).ok().and_then(|size| bytes.get(..size));
    let head = head.ok_or(UnfitDocument::Short(bytes.len()))?;
    let (expected, actual) = (reference.head_digest, Digest::sha256(head));
    if expected != actual {
        return Err(UnfitDocument::Head { expected, actual });
    }
    let (head, entries) = match list {
        FileListUse::Needed => (decode_head(head, reference.size, memory)?, None),
        FileListUse::Maybe => {
            let (head, entries) = decode_spans(head, reference.size, memory)?;
            (head, Some(entries))
        }
    };
    let checks = u64::from(head.spans().count()) * WINDOW_CHECK;
    memory.grow(checks, || format!("what is noted of the spans of {}", layer.digest)).map_err(FineError::Memory)?;
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
    let map = match entries {
        Some(entries) => LayerMap::from((head, entries)),
        None => LayerMap::from(head),
    };
    let spans = SpanTable::new(Arc::new(map))?;
    for span in spans.each() {
        let blob = spans.blob_range(span);
        if blob.end - blob.start > MAX_COMPRESSED {
            return Err(UnfitDocument::Span(span, blob.end - blob.start));
        }
    }
    Ok((spans, OpenDocument { blob: reference.blob(), pages }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::budget::Budget;
    use ociseek_format::digest::ChainState;
    use ociseek_format::fine::{FineLayer, FineSpans, FineStart, SPAN_SIZE, SpanParts};
    use ociseek_format::offset::{Compressed, Uncompressed};

    #[test]
    fn what_a_mount_notes_of_windows_is_charged() {
        const SPANS: u64 = 1000;
        let (digest, size) = (Digest::sha256(b"layer"), SPANS * SPAN_SIZE);
        let start = |number: u64| FineStart {
            input: Compressed(number * SPAN_SIZE),
            output: Uncompressed(number * SPAN_SIZE),
            bits: 0,
            state: ChainState::INITIAL,
        };
        let parts = SpanParts {
            layer: digest,
            codec: Codec::Plain,
            blob_size: size,
            tar_end: Uncompressed(size),
            span_size: SPAN_SIZE,
            starts: (0..SPANS).map(start).collect(),
        };
        let layer = FineLayer::new(Vec::new(), FineSpans::new(parts).unwrap(), std::iter::empty()).unwrap();
        let encoded = layer.encode(&[]).unwrap();
        let reference = FineRef {
            document: encoded.digest,
            size: encoded.bytes.len() as u64,
            layer: digest,
            head_size: encoded.head_size,
            head_digest: encoded.head_digest,
            start_size: encoded.start_size,
        };
        let fetched = FetchedDocument { reference, bytes: encoded.bytes.into() };
        let layer = Descriptor::new("application/vnd.oci.image.layer.v1.tar", digest, size);
        let used = |memory| {
            let budget = Budget::new(memory);
            let mut charge = budget.open();
            open(&layer, &fetched, &mut charge).map(|_| budget.used())
        };
        let used_by_all = used(u64::MAX).unwrap();
        assert!(used_by_all > SPANS * WINDOW_CHECK);
        let refused = used(used_by_all - 1).unwrap_err();
        assert!(matches!(refused, UnfitDocument::Fine(FineError::Memory(_))), "{refused}");
    }
}
