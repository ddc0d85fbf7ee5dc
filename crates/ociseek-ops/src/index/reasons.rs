//! Why layers are left out of an index, according to their descriptors, or to what the
//! cache knows of their content.

use super::model::LeftOutReason;
use super::options::IndexOptions;
use super::supply::cached;
use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::image::{Descriptor, LayerKind, NotIndexed};
use ociseek_format::layer::{BlobForm, BuiltZtoc, Outcome, UnservableCode};
use ociseek_store::cache::ZtocCache;

/// Why a layer is not read at all.
pub(crate) fn left_out_reason(layer: &Descriptor, options: &IndexOptions) -> Option<LeftOutReason> {
    let why = NotIndexed::of(layer, options.min_layer_size)?;
    let reason = match why {
        NotIndexed::Small { least } => return Some(LeftOutReason::Small { least }),
        NotIndexed::Kind(LayerKind::Zstd) => {
            "zstd: SOCI consumers support only gzip and uncompressed layers".to_owned()
        }
        NotIndexed::Kind(LayerKind::Foreign) => "a foreign layer, which this store does not provide".to_owned(),
        NotIndexed::Kind(LayerKind::Encrypted) => "encrypted: its content cannot be read".to_owned(),
        NotIndexed::Kind(_) => format!("not a layer but {:?}", layer.media_type),
    };
    Some(LeftOutReason::Kind { why, reason })
}

/// Whether the layer can have a fine document, as far as that is known without reading it. Those of
/// zstd can, although consumers of SOCI indexes do not support them.
pub(crate) fn may_have_document(layer: &Descriptor, options: &IndexOptions) -> bool {
    let is_fit = match NotIndexed::of(layer, options.min_layer_size) {
        None => true,
        Some(NotIndexed::Kind(LayerKind::Zstd)) => layer.size >= options.min_layer_size,
        Some(_) => false,
    };
    // A document refers to its layer by SHA-256.
    is_fit && layer.digest.algorithm() == Algorithm::Sha256
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
    let is_zstd = matches!(LayerKind::of(&layer.media_type), LayerKind::Zstd | LayerKind::Unknown);
    match outcome {
        Outcome::Unservable(why) if is_zstd && why.code == UnservableCode::Compression => false,
        outcome => lacks_ztoc(layer, outcome),
    }
}

/// soci reads an OCI layer according to its media type, and builds no ztoc if its content differs
/// from that.
pub(super) fn mislabelled(layer: &Descriptor, ztoc: &BuiltZtoc) -> Option<LeftOutReason> {
    let reason = match (LayerKind::of(&layer.media_type), ztoc.form) {
        (LayerKind::Gzip, BlobForm::Tar) => "its media type says gzip, but it is a plain tar",
        (LayerKind::Uncompressed, BlobForm::Gzip { .. }) => "its media type says plain tar, but it is gzip",
        (LayerKind::Zstd, _) => "its media type says zstd, but it is not",
        _ => return None,
    };
    Some(LeftOutReason::Mislabelled { reason })
}

/// The ztoc of a layer, or why it cannot be indexed, if its content was read before and the result
/// is cached.
pub(crate) async fn known_outcome(
    cache: Option<&ZtocCache>,
    layer: &Descriptor,
    options: &IndexOptions,
) -> Option<Result<Digest, LeftOutReason>> {
    Some(match cached(cache, layer, options).await? {
        Outcome::Ztoc(ztoc) => mislabelled(layer, &ztoc).map_or(Ok(ztoc.digest), Err),
        Outcome::Unservable(verdict) => Err(LeftOutReason::Unservable(verdict)),
    })
}

/// Why a layer cannot be indexed, if its content was read before and the result is cached.
pub(crate) async fn unservable(
    cache: Option<&ZtocCache>,
    layer: &Descriptor,
    options: &IndexOptions,
) -> Option<LeftOutReason> {
    known_outcome(cache, layer, options).await?.err()
}
