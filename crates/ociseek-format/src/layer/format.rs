//! The format of a layer's blob.

use crate::codec::sniff::{self, Format};
use crate::tar;

/// Sniffs the format of a blob from its first block, or from the whole blob if it is shorter. The
/// name of a tar's first file may look like the magic number of a compression format, but the
/// checksum of its header shows that it is a tar.
pub fn format(head: &[u8]) -> Format {
    match sniff::format(head) {
        Format::Zstd | Format::Foreign(_) if head.first_chunk().is_some_and(tar::has_valid_checksum) => Format::Plain,
        format => format,
    }
}
