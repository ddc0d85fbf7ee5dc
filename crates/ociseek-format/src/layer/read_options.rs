//! Options for reading a layer that gets no index.

use super::slices::KeepSpans;

/// Options for reading a layer locally, without publishing an index.
pub struct ReadOptions {
    /// The least distance between two checkpoints, in bytes of the tar; greater than 0.
    pub span_size: u64,
    /// The size of a span in bytes of the tar, for a layer that can only be decoded from its start.
    pub whole_span_size: u64,
    /// Receives the plain bytes of spans.
    pub keeper: Option<Box<dyn KeepSpans>>,
    /// Whether `keeper` also receives the spans of a plain tar.
    pub keeps_plain: bool,
}

crate::opaque_debug!(ReadOptions);

/// Spans of 2 MiB, or of 4 MiB if the layer can only be decoded from its start, and no keeper.
impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions { span_size: 2 << 20, whole_span_size: 4 << 20, keeper: None, keeps_plain: false }
    }
}
