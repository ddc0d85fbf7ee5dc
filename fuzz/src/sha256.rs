//! Two SHA-256 at once, against the sha2 crate.
//!
//! Invariants under test: whatever the pieces, and wherever the second hash began, each is what it would be alone.

use ociseek_layer::digest::{Algorithm, Hasher};
use sha2::Digest;

/// The first byte says where the second hash begins; the last ones, how the rest comes in pieces.
pub fn both(data: &[u8]) {
    let Some((&lead, data)) = data.split_first() else { return };
    let (before, rest) = data.split_at(usize::from(lead).min(data.len()));
    let (mut a, mut b) = (Hasher::new(Algorithm::Sha256), Hasher::new(Algorithm::Sha256));
    a.update(before);
    for piece in super::pieces(rest) {
        Hasher::update_both(&mut a, &mut b, piece);
    }
    assert_eq!(a.finish().as_bytes(), &sha2::Sha256::digest(data)[..]);
    assert_eq!(b.finish().as_bytes(), &sha2::Sha256::digest(rest)[..]);
}
