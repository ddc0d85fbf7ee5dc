//! Where the spans of a layer begin.

use crate::digest::Digest;
use crate::fine::FineHead;
use crate::offset::{Compressed, Uncompressed};
use crate::ztoc::{Cuts, Ztoc};

/// Where spans begin, from either source.
#[derive(Debug, Clone, Copy)]
pub enum SpanBounds<'a> {
    /// From a ztoc or the layer's blob itself.
    Cuts(Cuts<'a>),
    /// From a fine document.
    Fine(&'a FineHead),
}

/// A layer that can be cut into spans: a [`Ztoc`] or a [`LayerMap`](super::LayerMap).
pub trait HasSpans {
    /// Where spans begin.
    fn bounds(&self) -> SpanBounds<'_>;
    /// The digest of each span's bytes. Empty for a fine document.
    fn span_digests(&self) -> &[Digest];
    /// The number of bytes that are cut into spans.
    fn size(&self) -> Compressed;
    /// Where the tar's reader stopped.
    fn tar_end(&self) -> Uncompressed;
}

impl HasSpans for Ztoc {
    fn bounds(&self) -> SpanBounds<'_> {
        SpanBounds::Cuts(self.checkpoints.cuts())
    }

    fn span_digests(&self) -> &[Digest] {
        &self.span_digests
    }

    fn size(&self) -> Compressed {
        self.compressed_size
    }

    fn tar_end(&self) -> Uncompressed {
        self.uncompressed_size
    }
}
