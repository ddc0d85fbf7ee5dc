//! The fine document of one layer: its list of files and places to start decoding 256 KiB apart,
//! compressed, so that a reader fetches little more than what it reads (format: docs/fine.md).
//!
//! A ztoc has 32 KiB for each checkpoint, which limits how close they can be. A fine document has
//! only those bytes of a window that the span refers to, about 2 KiB compressed, in pages that are
//! fetched when they are needed. [`decode_head`] reads what every reader needs, [`decode_page`] one
//! page, and [`decode`] a whole document. [`FineLayer::encode`] writes one.

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

pub use encode::EncodedFine;
pub use error::FineError;
pub use head::{FineHead, PageId, decode_head};
pub(crate) use layer::Groups;
pub use layer::{FineLayer, decode};
pub use pages::{Windows, decode_page};
pub use spans::{Codec, FineSpans, FineStart, SpanParts};
pub use window::SpanWindow;

/// Bytes of tar between two checkpoints, at least.
pub const SPAN_SIZE: u64 = 256 << 10;
/// The largest head that is written or read, in bytes: stored, and with its frames decoded. A
/// layer with a million files needs about that much.
pub const MAX_HEAD: usize = 64 << 20;
/// Spans whose windows are in one page, at most.
pub(crate) const PAGE_SPANS: usize = 8;
/// The largest page in bytes, stored or decoded: windows of which every other byte is used fit.
pub(crate) const MAX_PAGE: usize = 1 << 20;
/// Borders between spans are multiples of it: the block of SHA-256, in bytes.
pub(crate) const BLOCK: u64 = 64;
