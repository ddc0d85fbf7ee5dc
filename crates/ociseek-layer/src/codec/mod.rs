//! Compressed bytes to plain bytes, and where decoding can resume.
//!
//! [`inflate`] decodes raw deflate and stops at every block border; [`gzip`] frames it (RFC 1952) and tells a [`gzip::Sink`]
//! what comes out and where blocks start; [`stretch`] decodes parts of it by themselves; [`zstd`] decodes RFC 8878; [`sniff`]
//! says what a blob is.

pub mod gzip;
pub mod gzip_header;
pub mod inflate;
pub mod sniff;
pub mod stretch;
pub mod zstd;

/// Deflate's window: no match reaches further back (RFC 1951, section 2), so this much output is all that a decoder needs
/// to resume at a block border.
pub const WINDOW: usize = 32 * 1024;
