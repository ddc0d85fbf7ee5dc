//! Whether the fine document or the ztoc in an image's indexes can belong to a layer. Anyone who
//! may push an index can push any content, so everything that can be checked is checked. Also why a
//! layer cannot be opened.

use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::MAX_COMPRESSED;
use ociseek_format::budget::{Charge, OverBudget};
use ociseek_format::digest::Digest;
use ociseek_format::fine::{
    Codec, FineError, PageId, Windows, decode_head, decode_page, decode_spans,
};
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::{Descriptor, LayerKind};
use ociseek_format::layer::span::{SpanError, SpanTable};
use ociseek_format::layer::{LayerError, LayerMap};
use ociseek_format::offset::{Compressed, SpanId};
use ociseek_format::tar::BLOCK;
use ociseek_format::ztoc::{self, Checkpoints, ExtentFault, ZtocError, check_extents};
use ociseek_store::lock::Hold;
use ociseek_store::{StoreError, read_times};

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("layer {layer} is encrypted")]
    Encrypted { layer: Digest },
    #[error("layer {layer} is compressed with {name} (supported: gzip, zstd, plain tar)")]
    Compression { layer: Digest, name: String },
    #[error("{media_type:?} is not the media type of a layer ({layer})")]
    NotALayer { layer: Digest, media_type: String },
    #[error("cannot fetch layer {layer} (stopped after {read} bytes)")]
    Read { layer: Digest, read: u64, source: StoreError },
    #[error("layer {layer} does not fit into memory")]
    Memory { layer: Digest, source: OverBudget },
    /// `reads` is how many times it was read: what a registry sent is read once more.
    #[error("layer {layer} is broken{}", read_times(*.reads))]
    Broken { layer: Digest, reads: u32, source: LayerError },
    #[error("layer {layer} is broken zstd{}", read_times(*.reads))]
    Zstd { layer: Digest, reads: u32, source: io::Error },
    #[error(
        "layer {layer} cannot be read: its entries or checkpoints exceed the limit for a layer of its size"
    )]
    TooLarge { layer: Digest },
    #[error("layer {layer} cannot be read by its ztoc")]
    Spans { layer: Digest, source: SpanError },
    #[error("layer {layer} was not read completely: ociseek is shutting down")]
    Ending { layer: Digest },
}

impl OpenError {
    /// The layer that cannot be opened.
    pub fn layer(&self) -> Digest {
        match self {
            OpenError::Encrypted { layer }
            | OpenError::Compression { layer, .. }
            | OpenError::NotALayer { layer, .. }
            | OpenError::Read { layer, .. }
            | OpenError::Memory { layer, .. }
            | OpenError::Broken { layer, .. }
            | OpenError::Zstd { layer, .. }
            | OpenError::TooLarge { layer }
            | OpenError::Spans { layer, .. }
            | OpenError::Ending { layer } => *layer,
        }
    }

    /// Whether the bytes of the layer are wrong, which may have been damaged on the way.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            OpenError::Compression { .. }
            | OpenError::Broken { .. }
            | OpenError::Zstd { .. }
            | OpenError::TooLarge { .. }
            | OpenError::Spans { .. } => true,
            OpenError::Encrypted { .. }
            | OpenError::NotALayer { .. }
            | OpenError::Read { .. }
            | OpenError::Memory { .. }
            | OpenError::Ending { .. } => false,
        }
    }

    pub(super) fn of(error: LayerError, layer: Digest, reads: u32) -> OpenError {
        match error {
            LayerError::Memory(source) => OpenError::Memory { layer, source },
            LayerError::Zstd(text) => {
                OpenError::Zstd { layer, reads, source: io::Error::other(text) }
            }
            LayerError::Compression(name) => {
                OpenError::Compression { layer, name: name.to_owned() }
            }
            LayerError::TooLarge => OpenError::TooLarge { layer },
            source => OpenError::Broken { layer, reads, source },
        }
    }
}

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
    /// The pages that were fetched with the head, until they are taken.
    pages: Mutex<Vec<(PageId, Arc<Windows>)>>,
}

impl OpenDocument {
    /// The pages that were fetched with the head. They are in memory only once, so the first caller
    /// gets them.
    pub(crate) fn take_pages(&self) -> Vec<(PageId, Arc<Windows>)> {
        std::mem::take(&mut *self.pages.hold())
    }
}

/// Why a fine document is not used.
#[derive(Debug, thiserror::Error)]
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
    #[error("its recorded startup ends at byte {actual}, but the fine index says {expected}")]
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
    let expected = reference.head_digest;
    let actual = Digest::sha256(head);
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
    memory
        .grow(checks, || format!("what is noted of the spans of {}", layer.digest))
        .map_err(FineError::Memory)?;
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
        return Err(UnfitDocument::Start {
            expected: reference.start_size,
            actual: head.start_size(),
        });
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
    Ok((spans, OpenDocument { blob: reference.blob(), pages: Mutex::new(pages) }))
}

/// Why a ztoc is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnfitZtoc {
    #[error(transparent)]
    Ztoc(#[from] ZtocError),
    #[error(transparent)]
    Spans(#[from] SpanError),
    #[error("unknown format version {0:?} (expected 0.9)")]
    Version(String),
    #[error("it is for a layer of {0} bytes, but this one has {1}")]
    Size(Compressed, u64),
    #[error("its compression is not that of {0}")]
    Compression(String),
    #[error("its span {0} has {1} compressed bytes, more than can be read at once")]
    Span(SpanId, u64),
    #[error("its entry {0} is past the end of the tar")]
    Beyond(usize),
    #[error("its entry {0} overlaps the previous one")]
    Overlap(usize),
    #[error("its entry {0} leaves no room for a tar header after the previous one")]
    Order(usize),
}

/// The map of `layer`, from a ztoc that claims to belong to it.
///
/// Charged to `memory`.
pub(super) fn ztoc_spans(
    layer: &Descriptor,
    bytes: &[u8],
    memory: &mut Charge,
) -> Result<SpanTable<LayerMap>, UnfitZtoc> {
    let ztoc = ztoc::decode_within(bytes, memory)?;
    if *ztoc.version != *ztoc::VERSION {
        return Err(UnfitZtoc::Version(
            String::from_utf8_lossy(&ztoc.version).chars().take(20).collect(),
        ));
    }
    if ztoc.compressed_size != Compressed(layer.size) {
        return Err(UnfitZtoc::Size(ztoc.compressed_size, layer.size));
    }
    let is_gzip = matches!(ztoc.checkpoints, Checkpoints::Gzip { .. });
    match LayerKind::of(&layer.media_type) {
        LayerKind::Gzip if !is_gzip => {
            return Err(UnfitZtoc::Compression(layer.media_type.clone()));
        }
        LayerKind::Zstd => return Err(UnfitZtoc::Compression(layer.media_type.clone())),
        _ => {}
    }
    let spans = SpanTable::new(Arc::new(LayerMap::from(ztoc)))?;
    let files = spans.map().files.all();
    check_extents(files.iter().enumerate(), spans.plain_end()).map_err(|fault| match fault {
        ExtentFault::Overlap { other, .. } => UnfitZtoc::Overlap(other),
        ExtentFault::PastEnd { entry } => UnfitZtoc::Beyond(entry),
    })?;
    // Every entry has its own header, so that each can be compared with it.
    let mut end = 0_u64;
    for (number, file) in files.iter().enumerate() {
        if file.offset.0 < end.saturating_add(BLOCK as u64) {
            return Err(UnfitZtoc::Order(number));
        }
        end = file.offset.0.saturating_add(file.size);
    }
    for span in spans.each() {
        let blob = spans.blob_range(span);
        if blob.end - blob.start > MAX_COMPRESSED {
            return Err(UnfitZtoc::Span(span, blob.end - blob.start));
        }
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::budget::Budget;
    use ociseek_format::digest::ChainState;
    use ociseek_format::fine::{FineLayer, FineSpans, FineStart, SPAN_SIZE, SpanParts};
    use ociseek_format::offset::Uncompressed;

    #[test]
    fn what_a_mount_notes_of_windows_is_charged() {
        const SPANS: u64 = 1000;
        let digest = Digest::sha256(b"layer");
        let size = SPANS * SPAN_SIZE;
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
        let layer =
            FineLayer::new(Vec::new(), FineSpans::new(parts).unwrap(), std::iter::empty()).unwrap();
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
