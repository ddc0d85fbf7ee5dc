//! What names a span of an image.

use ociseek_format::offset::{LayerId, SpanId};

/// A span of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SpanOf {
    pub layer: LayerId,
    pub span: SpanId,
}
