//! Claims on the spans of a cache, with the real file and its locks.

#[path = "../../../../src/rootfs/cache/claims.rs"]
mod claims;
pub mod laws;

pub(super) use claims::Claim;

/// The key of a span.
pub(crate) struct SpanKey([u8; 32]);

impl SpanKey {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}
