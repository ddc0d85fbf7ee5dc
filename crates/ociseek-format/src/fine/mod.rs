//! The fine document of a layer: its list of files and starting points for decoding, 256 KiB apart,
//! or 64 KiB where a recorded start reads. It is compressed, and a reader fetches little more than
//! it needs (format: docs/contributing/fine-format.md).
//!
//! A ztoc stores 32 KiB for each checkpoint, which limits how close checkpoints can be. A fine
//! document stores only those bytes of a window that the span refers to, about 2 KiB compressed, in
//! pages that are fetched on demand. [`decode_head`] reads the part that every reader needs,
//! [`decode_page`] a page, and [`decode`] a whole document. [`FineLayer::encode`] writes one.

mod division;
mod encode;
mod entries;
mod error;
mod frame;
mod head;
mod layer;
mod pages;
mod spans;
mod varint;
mod window;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

pub use division::SpanDivision;
pub use encode::EncodedFine;
pub(crate) use entries::{decode as decode_entries, encode as encode_entries};
pub use error::FineError;
pub use head::{FineHead, PageId, StoredEntries, decode_head, decode_spans};
pub(crate) use layer::Groups;
pub use layer::{FineLayer, decode};
pub use pages::{Windows, decode_page};
pub use spans::{Codec, FineSpans, FineStart, SpanParts};
pub use window::SpanWindow;

/// The least distance between two checkpoints, in bytes of the tar, except in divided spans.
pub const SPAN_SIZE: u64 = 256 << 10;
/// The least distance between two checkpoints of a divided span, in bytes of the tar.
pub const DIVIDED_SPAN_SIZE: u64 = 64 << 10;
/// The size limit of a head that is written or read, in bytes, both stored and with its frames
/// decoded. A layer with a million files needs about that much.
pub const MAX_HEAD: usize = 64 << 20;
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
