//! The fine document of a layer: its list of files and starting points for decoding, 256 KiB apart,
//! or 64 KiB where a recorded start reads. It is compressed, and a reader fetches little more than
//! it needs (format: docs/contributing/fine-format.md).
//!
//! A ztoc stores 32 KiB for each checkpoint, which limits how close checkpoints can be. A fine
//! document stores only those bytes of a window that the span refers to, about 2 KiB compressed, in
//! pages that are fetched on demand. [`decode_head`] reads the part that every reader needs,
//! [`decode_page`] a page, and [`decode`] a whole document. [`FineLayer::encode`] writes one.

mod entries;
mod head;
#[cfg(test)]
mod hostile;
mod layer;
mod spans;
#[cfg(test)]
mod tests;
mod window;
mod wire;

pub(crate) use entries::{decode as decode_entries, encode as encode_entries};
pub use head::{FineHead, PageId, StoredEntries, decode_head, decode_spans, list_memory};
pub(crate) use layer::Groups;
pub use layer::{EncodedFine, FineLayer, SpanDivision, decode};
pub use spans::{Codec, FineSpans, FineStart, SpanParts};
pub use window::{SpanWindow, Windows, decode_page};

use crate::budget::OverBudget;
use crate::digest::Digest;
use crate::offset::{SpanId, Uncompressed};

/// The least distance between two checkpoints, in bytes of the tar, except in divided spans.
pub const SPAN_SIZE: u64 = 256 << 10;
/// The least distance between two checkpoints of a divided span, in bytes of the tar.
pub const DIVIDED_SPAN_SIZE: u64 = 64 << 10;
/// The size limit of a head that is written or read, in bytes, both stored and with its frames
/// decoded. A layer with a million files needs about that much.
pub(crate) const MAX_HEAD: usize = 64 << 20;
/// The most bytes of the tar that a span of zstd holds. It takes at most twice as many of the blob.
pub(crate) const MAX_ZSTD_SPAN: u64 = 64 << 20;
/// The size limit of a window of zstd in bytes, as it is encoded.
pub(crate) const MAX_ZSTD_WINDOW: usize = 4 << 20;

impl Codec {
    /// The most spans whose windows share a page. Those of zstd are large.
    pub(crate) const fn page_spans(self) -> usize {
        match self {
            Codec::Plain | Codec::Gzip => 8,
            Codec::Zstd => 1,
        }
    }

    /// The size limit of a page in bytes, stored or decoded. It fits windows of gzip of which every
    /// other byte is used.
    pub(crate) const fn max_page(self) -> usize {
        match self {
            Codec::Plain | Codec::Gzip => 1 << 20,
            Codec::Zstd => MAX_ZSTD_WINDOW + BLOCK as usize,
        }
    }
}
/// The block size of SHA-256 in bytes. Borders between spans are multiples of it.
pub(crate) const BLOCK: u64 = 64;

/// Why bytes are not a usable fine document or part of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum FineError {
    #[error("not a fine document")]
    Magic,
    #[error("the fine document has version {0} (only 1 and 2 are supported)")]
    Version(u8),
    #[error("unknown codec {0} in the fine document (0 is a plain tar, 1 is gzip, 2 is zstd)")]
    Codec(u8),
    #[error("the fine document has version {version}, which is not that of {codec:?} layers")]
    VersionOfCodec { version: u8, codec: Codec },
    #[error("reserved bytes of the fine document's header are not zero")]
    Reserved,
    #[error("the head of the fine document has {actual} bytes, but its header says {expected}")]
    HeadSize { expected: u64, actual: u64 },
    #[error("the head of the fine document is larger than {} MiB", MAX_HEAD >> 20)]
    TooLarge,
    #[error("the fine document has {actual} bytes, but its head says {expected}")]
    DocumentSize { expected: u64, actual: u64 },
    #[error("the fine document does not fit into memory")]
    Memory(#[from] OverBudget),
    #[error("the {0} of the fine document are not one zstd frame that states its size")]
    Frame(&'static str),
    #[error("the {0} of the fine document end too soon")]
    Short(&'static str),
    #[error("bytes follow the {0} of the fine document")]
    Rest(&'static str),
    #[error("a number in the {0} of the fine document is out of range")]
    Number(&'static str),
    #[error("the span size {0} is not a multiple of 64 that is at least 32 KiB")]
    SpanSize(u64),
    #[error("the fine document has {actual} spans, but its layer needs {expected}")]
    SpanCount { expected: u64, actual: u64 },
    #[error(
        "span {0} of the fine document does not come after the previous one, or is past the end of the layer"
    )]
    SpanOrder(SpanId),
    #[error("span {0} of the fine document uses bits that cannot be there")]
    SpanBits(SpanId),
    #[error("the recorded startup names span {0}, which does not exist or comes twice")]
    Start(u64),
    #[error("the fine document has {actual} pages, but its spans need {expected}")]
    PageCount { expected: u64, actual: u64 },
    #[error("page {0} of the fine document is empty or too large")]
    PageSize(PageId),
    #[error("the fine document has no page {0}")]
    NoPage(PageId),
    #[error("page {page} of the fine document has the digest {actual}, not {expected}")]
    PageDigest { page: PageId, expected: Digest, actual: Digest },
    #[error("page {page} of the fine document has no valid window of span {span}")]
    Window { page: PageId, span: SpanId },
    #[error("entry {0} has an unknown type")]
    EntryType(usize),
    #[error("entry {0} has an impossible offset or size")]
    EntryRange(usize),
    #[error("entry {0} overlaps the previous one")]
    EntryOverlap(usize),
    #[error("entry {0} is past the end of the tar")]
    EntryBeyond(usize),
    #[error("entry {0} has an invalid modification time")]
    EntryTime(usize),
    #[error("entry {0} begins with more of the previous name than that has")]
    EntryName(usize),
    #[error("the layer's digest is {0}; fine documents need a SHA-256")]
    Algorithm(Digest),
    #[error("the span at byte {0} of the tar is too long, or refers to too much before it")]
    LongSpan(Uncompressed),
    #[error("zstd cannot compress")]
    Compress,
}
