//! The inputs for writing recorded starts into documents.

use std::sync::atomic::AtomicU64;

use crate::index::options::Work;
use ociseek_store::Source;

/// Writes recorded starts into documents.
pub(super) struct StartWriter<'a> {
    /// The store of the layers.
    pub source: &'a Source,
    /// Its cache knows which documents are proven.
    pub work: Work<'a>,
    /// Grows by the bytes of layers that are read.
    pub bytes_read: &'a AtomicU64,
}
