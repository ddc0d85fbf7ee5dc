//! Why bytes of a layer cannot be read.

use std::sync::Arc;
use std::time::Duration;

use crate::digest::Digest;
use crate::layer::span::SpanError;
use crate::offset::Uncompressed;
use crate::rootfs::layers::OpenError;
use crate::store::StoreError;

/// A failed read. It says nothing of the next one: that tries again.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ReadError {
    #[error("there is no layer {0}")]
    NoLayer(u32),
    #[error("layer {layer} has no {size} bytes at byte {at} of its tar")]
    Beyond { layer: Digest, at: Uncompressed, size: usize },
    #[error("span {span} of layer {layer} cannot be fetched")]
    Fetch { layer: Digest, span: u32, source: Arc<StoreError> },
    #[error("span {span} of layer {layer} did not come within {} s", after.as_secs_f32())]
    Deadline { layer: Digest, span: u32, after: Duration },
    #[error("layer {layer} cannot be read")]
    Span { layer: Digest, source: SpanError },
    #[error("span {span} of layer {layer} has {bytes} compressed bytes, more than the {limit} that are read at once")]
    TooLarge { layer: Digest, span: u32, bytes: u64, limit: u64 },
    #[error("layer {layer} cannot be decoded again for its span {span}")]
    Again { layer: Digest, span: u32, source: Arc<OpenError> },
    #[error("a file of layer {layer} cannot be read: sparse files are not expanded")]
    Sparse { layer: Digest },
    /// The program is ending, or the caches lose their content faster than it can be read.
    #[error("span {span} of layer {layer} came and was lost again")]
    Lost { layer: Digest, span: u32 },
}
