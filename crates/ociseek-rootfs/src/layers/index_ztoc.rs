//! Checks whether the ztoc in a SOCI index can belong to the layer. Anyone who may push an index
//! can push any ztoc, so everything that can be checked is checked.

use std::sync::Arc;

use super::MAX_COMPRESSED;
use ociseek_format::budget::Charge;
use ociseek_format::image::{Descriptor, LayerKind};
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::{SpanError, SpanTable};
use ociseek_format::offset::{Compressed, SpanId};
use ociseek_format::tar::BLOCK;
use ociseek_format::ztoc::{self, Checkpoints, ExtentFault, ZtocError, check_extents};

/// Why a ztoc is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnfitZtoc {
    #[error(transparent)]
    Ztoc(#[from] ZtocError),
    #[error(transparent)]
    Spans(#[from] SpanError),
    #[error("unknown format version {0:?} (expected 0.9)")]
    Version(String),
    #[error("it is for a layer of {0} bytes, but this one has {1}")]
    Size(Compressed, u64),
    #[error("its compression is not that of {0}")]
    Compression(String),
    #[error("its span {0} has {1} compressed bytes, more than can be read at once")]
    Span(SpanId, u64),
    #[error("its entry {0} is past the end of the tar")]
    Beyond(usize),
    #[error("its entry {0} overlaps the previous one")]
    Overlap(usize),
    #[error("its entry {0} leaves no room for a tar header after the previous one")]
    Order(usize),
}

/// The map of `layer`, from a ztoc that claims to belong to it.
///
/// Charged to `memory`.
pub(super) fn spans(layer: &Descriptor, bytes: &[u8], memory: &mut Charge) -> Result<SpanTable<LayerMap>, UnfitZtoc> {
    let ztoc = ztoc::decode_within(bytes, memory)?;
    if *ztoc.version != *ztoc::VERSION {
        return Err(UnfitZtoc::Version(String::from_utf8_lossy(&ztoc.version).chars().take(20).collect()));
    }
    if ztoc.compressed_size != Compressed(layer.size) {
        return Err(UnfitZtoc::Size(ztoc.compressed_size, layer.size));
    }
    let is_gzip = matches!(ztoc.checkpoints, Checkpoints::Gzip { .. });
    match LayerKind::of(&layer.media_type) {
        LayerKind::Gzip if !is_gzip => return Err(UnfitZtoc::Compression(layer.media_type.clone())),
        LayerKind::Zstd => return Err(UnfitZtoc::Compression(layer.media_type.clone())),
        _ => {}
    }
    let spans = SpanTable::new(Arc::new(LayerMap::from(ztoc)))?;
    let files = spans.map().files.all();
    check_extents(files.iter().enumerate(), spans.plain_end()).map_err(|fault| match fault {
        ExtentFault::Overlap { other, .. } => UnfitZtoc::Overlap(other),
        ExtentFault::PastEnd { entry } => UnfitZtoc::Beyond(entry),
    })?;
    // Every entry has its own header, so that each can be compared with it.
    let mut end = 0_u64;
    for (number, file) in files.iter().enumerate() {
        if file.offset.0 < end.saturating_add(BLOCK as u64) {
            return Err(UnfitZtoc::Order(number));
        }
        end = file.offset.0.saturating_add(file.size);
    }
    for span in spans.each() {
        let blob = spans.blob_range(span);
        if blob.end - blob.start > MAX_COMPRESSED {
            return Err(UnfitZtoc::Span(span, blob.end - blob.start));
        }
    }
    Ok(spans)
}
