//! What a layer's blob is, whatever its media type says.

use crate::codec::sniff::{self, Format};
use crate::tar;

/// Sniffs the format of a blob from its first block, or from the whole blob if it is shorter. A
/// tar's first file may have a name that looks like a compression's magic number: its header's
/// checksum shows that it is a tar.
pub fn format(head: &[u8]) -> Format {
    match sniff::format(head) {
        Format::Zstd | Format::Foreign(_) if head.first_chunk().is_some_and(tar::has_valid_checksum) => Format::Plain,
        format => format,
    }
}
