//! Why layers are left out of an index, according to their descriptors.

use super::model::LeftOutReason;
use super::options::IndexOptions;
use crate::image::{Descriptor, LayerKind, NotIndexed};
use crate::layer::{BlobForm, BuiltZtoc};

/// Why a layer is not read at all.
pub(in crate::ops) fn left_out_reason(layer: &Descriptor, options: &IndexOptions) -> Option<LeftOutReason> {
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
    Some(LeftOutReason::Kind { code: why.code(), reason })
}

/// soci reads an OCI layer according to its media type, and builds no ztoc if its content differs
/// from that.
pub(super) fn mislabelled(layer: &Descriptor, ztoc: &BuiltZtoc) -> Option<LeftOutReason> {
    let reason = match (LayerKind::of(&layer.media_type), ztoc.form) {
        (LayerKind::Gzip, BlobForm::Tar) => "its media type says gzip, but it is a plain tar",
        (LayerKind::Uncompressed, BlobForm::Gzip { .. }) => "its media type says plain tar, but it is gzip",
        _ => return None,
    };
    Some(LeftOutReason::Kind { code: "mislabelled", reason: reason.to_owned() })
}
