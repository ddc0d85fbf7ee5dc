//! The inputs for writing recorded starts into documents.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::index::options::IndexOptions;
use ociseek_format::progress::Progress;
use ociseek_store::Source;
use ociseek_store::cache::ZtocCache;

/// Writes recorded starts into documents.
pub(super) struct StartWriter<'a> {
    /// The store of the layers.
    pub source: &'a Source,
    /// Knows which documents are proven.
    pub cache: Option<&'a ZtocCache>,
    pub options: &'a IndexOptions,
    pub progress: &'a Arc<dyn Progress>,
    /// Grows by the bytes of layers that are read.
    pub bytes_read: &'a AtomicU64,
}
