//! The keys of decoded spans.

use ociseek_format::digest::{Algorithm, Digest, Hasher, hex};
use ociseek_format::layer::span::{HasSpans, SpanTable};
use ociseek_format::offset::SpanId;
use ociseek_format::ztoc::Checkpoint;

/// Must change whenever spans decode differently or the layout of entries changes.
const FORMAT: &[u8] = b"ociseek span 2\n";

/// The digest of everything that determines the decoded bytes of a span: the digest of its
/// compressed bytes, the checkpoint's window and bits, and the number of bytes. The layer is not
/// included. If someone altered a window, their span has another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanKey([u8; 32]);

impl SpanKey {
    /// `span` must be below the table's count.
    pub fn of<T: HasSpans>(table: &SpanTable<T>, span: SpanId) -> SpanKey {
        let plain = table.plain_range(span);
        let size = plain.end - plain.start;
        match table.checkpoint(span) {
            Some(checkpoint) => SpanKey::gzip(&table.digest(span), checkpoint, size),
            // The digest is then not the one of the span's bytes.
            None if table.is_fine() => SpanKey::from(hasher(b"fine", &table.digest(span), size)),
            None => SpanKey::plain(&table.digest(span), size),
        }
    }

    /// The key of `size` bytes that are decoded from `checkpoint`. `digest` is that of the
    /// compressed bytes.
    pub fn gzip(digest: &Digest, checkpoint: &Checkpoint, size: u64) -> SpanKey {
        let mut hasher = hasher(b"gzip", digest, size);
        hasher.update(&[checkpoint.bits]);
        hasher.update(&checkpoint.window[..]);
        SpanKey::from(hasher)
    }

    /// The key of `size` bytes of a plain tar with this digest.
    pub fn plain(digest: &Digest, size: u64) -> SpanKey {
        SpanKey::from(hasher(b"plain", digest, size))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(super) fn hex(&self) -> String {
        hex(&self.0)
    }
}

fn hasher(kind: &[u8], digest: &Digest, size: u64) -> Hasher {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(FORMAT);
    hasher.update(format!("{digest}\n{size}\n").as_bytes());
    hasher.update(kind);
    hasher
}

impl From<Hasher> for SpanKey {
    fn from(hasher: Hasher) -> SpanKey {
        let mut key = [0; 32];
        key.iter_mut().zip(hasher.finish().as_bytes()).for_each(|(to, from)| *to = *from);
        SpanKey(key)
    }
}
