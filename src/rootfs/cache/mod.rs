//! The local cache of decoded spans.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::progress::Progress;

/// What all entries may take together unless the user says otherwise, in bytes: 4 GiB, a few large images.
pub const DEFAULT_MAX: u64 = 4 << 30;

/// Decoded spans, kept in a directory that any number of processes may share. It never fails: what cannot be read is not
/// there, what cannot be written is not kept, and the first such trouble is reported as a warning.
#[derive(Clone)]
pub struct SpanCache {
    inner: Arc<Inner>,
}

#[allow(dead_code, reason = "on its way")]
struct Inner {
    dir: Option<PathBuf>,
    max: u64,
    progress: Arc<dyn Progress>,
}

impl SpanCache {
    /// A cache of at most `max_bytes` in `dir/spans`, made when it is missing; `None` is a cache that keeps nothing.
    pub fn open(dir: Option<&Path>, max_bytes: u64, progress: Arc<dyn Progress>) -> SpanCache {
        SpanCache { inner: Arc::new(Inner { dir: dir.map(|d| d.join("spans")), max: max_bytes, progress }) }
    }
}
