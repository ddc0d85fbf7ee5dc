//! Parses tar entries with the semantics of Go's archive/tar (Go 1.26, reader.go), which both
//! builders and consumers of SOCI indexes use. Rules that look odd are Go's.

mod entry;
mod header;
mod numeric;
mod pax;
mod short_text;
mod sparse;
mod sparse_map;
mod walker;

pub use entry::{Entry, Kind, PaxRecord};
pub use header::has_valid_checksum;
pub use short_text::{OwnerName, PaxText, ShortText};
pub use sparse_map::{SparseMap, StoredPart};
pub use walker::{TarError, TarFault, Walker};

/// The unit of a tar stream, in bytes.
pub const BLOCK: usize = 512;

/// The number of padding bytes after `size` bytes of data.
#[inline]
pub fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}
