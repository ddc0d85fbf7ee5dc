//! Claims on the spans of a cache, with the real file and its locks.

#[path = "../../../../crates/ociseek-rootfs/src/cache/claims.rs"]
mod claims;
pub mod laws;

pub(crate) use claims::Claim;

/// The key of a span.
pub(crate) struct SpanKey([u8; 32]);

impl SpanKey {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}
