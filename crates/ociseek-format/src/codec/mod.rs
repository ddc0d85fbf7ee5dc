//! Decodes compressed bytes and reports where decoding can resume.
//!
//! `inflate` decodes raw deflate and stops at every block boundary; `gzip` handles its framing
//! (RFC 1952) and passes output and block starts to a sink; `stretch` decodes parts of a gzip blob
//! on their own; `zstd` decodes RFC 8878; [`sniff`] detects the format of a blob.

mod block_finder;
pub(crate) mod gzip;
pub(crate) mod gzip_header;
pub(crate) mod inflate;
pub mod sniff;
pub(crate) mod stretch;
mod two_windows;
pub(crate) mod used_bytes;
pub(crate) mod zstd;

pub use gzip::GzipError;
pub(crate) use used_bytes::UsedBytes;
pub use zstd::ZstdReader;

/// Deflate's window: no match reaches further back (RFC 1951, section 2), so a decoder needs only
/// this much output to resume at a block boundary.
pub const WINDOW: usize = 32 * 1024;
