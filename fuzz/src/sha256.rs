//! Compares two SHA-256 at the same time with the sha2 crate.
//!
//! Invariants under test: for all pieces and starting points of the second hash, each result equals
//! that of a single hash.

use ociseek_format::digest::{Algorithm, Hasher};
use sha2::Digest;

/// The first byte says where the second hash starts, and the last ones how the rest is divided.
pub fn both(data: &[u8]) {
    let Some((&lead, data)) = data.split_first() else { return };
    let (before, rest) = data.split_at(usize::from(lead).min(data.len()));
    let mut a = Hasher::new(Algorithm::Sha256);
    let mut b = Hasher::new(Algorithm::Sha256);
    a.update(before);
    for piece in super::pieces(rest) {
        Hasher::update_both(&mut a, &mut b, piece);
    }
    assert_eq!(a.finish().as_bytes(), &sha2::Sha256::digest(data)[..]);
    assert_eq!(b.finish().as_bytes(), &sha2::Sha256::digest(rest)[..]);
}
