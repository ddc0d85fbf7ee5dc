//! Which parts of an index a layer can have: a ztoc, a fine document.

use super::model::LeftOutReason;
use super::options::IndexOptions;
use ociseek_format::digest::Algorithm;
use ociseek_format::image::{Descriptor, LayerKind, NotIndexed};
use ociseek_format::layer::{BlobForm, BuiltZtoc, Outcome, UnservableCode};

/// Whether the layer can have a fine document, as far as that is known without reading it. Those of
/// zstd can, although consumers of SOCI indexes do not support them.
pub(crate) fn may_have_document(layer: &Descriptor, options: &IndexOptions) -> bool {
    is_fit_for_document(layer, options) && layer.digest.algorithm() == Algorithm::Sha256
}

/// Whether the layer could have a fine document, but for its digest: a document refers to its layer
/// by SHA-256.
pub(crate) fn is_fit_for_document(layer: &Descriptor, options: &IndexOptions) -> bool {
    match NotIndexed::of(layer, options.min_layer_size) {
        None => true,
        Some(NotIndexed::Kind(LayerKind::Zstd)) => layer.size >= options.min_layer_size,
        Some(_) => false,
    }
}

/// Whether the layer is zstd, which can have a fine document but no ztoc.
pub(crate) fn is_only_fine(layer: &Descriptor, options: &IndexOptions) -> bool {
    LayerKind::of(&layer.media_type) == LayerKind::Zstd && may_have_document(layer, options)
}

/// Whether a layer that was read has no ztoc because of its content.
pub(super) fn lacks_ztoc(layer: &Descriptor, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Ztoc(ztoc) => mislabelled(layer, ztoc).is_some(),
        Outcome::Unservable(_) => true,
    }
}

/// Whether a layer that was read has no fine document because of its content.
pub(crate) fn lacks_document(layer: &Descriptor, outcome: &Outcome) -> bool {
    no_document(layer, outcome).is_some()
}

/// Why a layer that was read has no fine document.
pub(crate) fn no_document(layer: &Descriptor, outcome: &Outcome) -> Option<LeftOutReason> {
    let is_zstd = matches!(LayerKind::of(&layer.media_type), LayerKind::Zstd | LayerKind::Unknown);
    match outcome {
        Outcome::Unservable(why) if is_zstd && why.code == UnservableCode::Compression => None,
        // A document says where the tar ends.
        Outcome::Unservable(why) if why.code == UnservableCode::PaddingPastSpan => None,
        Outcome::Unservable(why) => Some(LeftOutReason::Unservable(why.clone())),
        Outcome::Ztoc(ztoc) => mislabelled(layer, ztoc),
    }
}

/// soci reads an OCI layer according to its media type, and builds no ztoc if its content differs
/// from that.
pub(super) fn mislabelled(layer: &Descriptor, ztoc: &BuiltZtoc) -> Option<LeftOutReason> {
    let reason = match (LayerKind::of(&layer.media_type), ztoc.form) {
        (LayerKind::Gzip, BlobForm::Tar) => "its media type says gzip, but it is a plain tar",
        (LayerKind::Uncompressed, BlobForm::Gzip { .. }) => {
            "its media type says plain tar, but it is gzip"
        }
        (LayerKind::Zstd, _) => "its media type says zstd, but it is not",
        _ => return None,
    };
    Some(LeftOutReason::Mislabelled { reason })
}
