//! Plain bytes to tar entries, with the semantics of Go's archive/tar (Go 1.26, reader.go): the reader that builders of
//! SOCI indexes and their consumers both stand on. Where a rule looks odd, it is Go's.

mod entry;
mod header;
mod numeric;
mod pax;
mod walker;

pub use entry::{Entry, Kind, PaxRecord};
pub use header::has_valid_checksum;
pub use walker::{TarError, TarFault, Walker};

/// The unit of a tar stream, in bytes.
pub const BLOCK: usize = 512;

/// Bytes of padding behind `size` bytes of data.
#[inline]
pub fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}
