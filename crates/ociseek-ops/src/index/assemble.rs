//! Assembles the index of one platform from the ztocs of its layers, and says why the other layers
//! are left out: because of their descriptors, or of what the cache knows of their content.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::model::{LayerOutcome, LayerReport, LeftOutReason, Origin, ZtocFacts};
use super::options::IndexOptions;
use super::parts::mislabelled;
use super::supply::{Layers, cached};
use ociseek_format::digest::Digest;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::image::{Descriptor, LayerKind, NotIndexed};
use ociseek_format::layer::{BuiltZtoc, Outcome};
use ociseek_format::offset::SpanSize;
use ociseek_store::cache::ZtocCache;

/// A ztoc in the index.
pub(crate) struct IndexedZtoc<'a> {
    pub layer: &'a Descriptor,
    built: &'a BuiltZtoc,
    /// The outcome that owns `built`.
    outcome: &'a Arc<Outcome>,
}

impl IndexedZtoc<'_> {
    pub(crate) fn digest(&self) -> Digest {
        self.built.digest
    }

    /// Its entry in the index.
    pub(crate) fn reference(&self, span_size: SpanSize) -> ZtocRef {
        ZtocRef {
            ztoc: self.built.digest,
            size: self.built.bytes.len() as u64,
            layer: self.layer.digest,
            layer_media_type: self.layer.media_type.clone(),
            span_size,
        }
    }

    /// Its bytes without copying, because ztocs take most of the memory.
    pub(crate) fn content(&self) -> Bytes {
        struct ZtocBytes(Arc<Outcome>);
        impl AsRef<[u8]> for ZtocBytes {
            fn as_ref(&self) -> &[u8] {
                match &*self.0 {
                    Outcome::Ztoc(ztoc) => &ztoc.bytes,
                    Outcome::Unservable(_) => &[],
                }
            }
        }
        Bytes::from_owner(ZtocBytes(Arc::clone(self.outcome)))
    }
}

/// The report for each layer, and the ztocs for the index, in the order of the manifest.
pub(crate) fn assemble<'a>(
    planned: impl Iterator<Item = (&'a Descriptor, &'a Option<LeftOutReason>)>,
    layers: &'a Layers,
    seen: &mut BTreeSet<Digest>,
) -> (Vec<LayerReport>, Vec<IndexedZtoc<'a>>) {
    let mut indexed = Vec::new();
    let mut ztocs = Vec::new();
    for (layer, left_out) in planned {
        let outcome = match (left_out, layers.get(layer)) {
            (Some(left_out), _) => LayerOutcome::LeftOut(left_out.clone()),
            // Each layer that is not left out was built, unless time ran out.
            (None, None) => LayerOutcome::LeftOut(LeftOutReason::OutOfTime { stuck: layers.stuck }),
            (None, Some(built)) => match &*built.outcome {
                Outcome::Unservable(verdict) => {
                    LayerOutcome::LeftOut(LeftOutReason::Unservable(verdict.clone()))
                }
                Outcome::Ztoc(ztoc) => match mislabelled(layer, ztoc) {
                    Some(left_out) => LayerOutcome::LeftOut(left_out),
                    None => {
                        ztocs.push(IndexedZtoc { layer, built: ztoc, outcome: &built.outcome });
                        let first = seen.insert(layer.digest);
                        let origin = if first { built.origin.clone() } else { Origin::Repeated };
                        LayerOutcome::Indexed(facts(ztoc, origin))
                    }
                },
            },
        };
        indexed.push(LayerReport { descriptor: layer.clone(), outcome });
    }
    (indexed, ztocs)
}

fn facts(ztoc: &BuiltZtoc, origin: Origin) -> ZtocFacts {
    ZtocFacts {
        digest: ztoc.digest,
        size: ztoc.bytes.len() as u64,
        spans: ztoc.spans,
        entries: ztoc.entries,
        uncompressed_size: ztoc.uncompressed_size,
        gzip_members: ztoc.form.gzip_members(),
        origin,
    }
}

/// Why a layer is not read at all.
pub(crate) fn left_out_reason(layer: &Descriptor, options: &IndexOptions) -> Option<LeftOutReason> {
    let why = NotIndexed::of(layer, options.min_layer_size)?;
    let reason = match why {
        NotIndexed::Small { least } => return Some(LeftOutReason::Small { least }),
        NotIndexed::Kind(LayerKind::Zstd) => {
            "zstd: SOCI consumers support only gzip and uncompressed layers".to_owned()
        }
        NotIndexed::Kind(LayerKind::Foreign) => {
            "a foreign layer, which this store does not provide".to_owned()
        }
        NotIndexed::Kind(LayerKind::Encrypted) => {
            "encrypted: its content cannot be read".to_owned()
        }
        NotIndexed::Kind(_) => format!("not a layer but {:?}", layer.media_type),
    };
    Some(LeftOutReason::Kind { why, reason })
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
