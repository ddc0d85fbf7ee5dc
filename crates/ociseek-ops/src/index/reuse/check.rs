//! Checks whether bytes are the ztoc that would be built for a layer, as far as the ztoc alone can
//! show.

use std::sync::Arc;

use super::super::options::IndexOptions;
use crate::discover::MAX_ZTOC;
use crate::maker::builds_alike;
use ociseek_format::budget::Charge;
use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::layer::{BlobForm, BuiltZtoc, LayerOptions, are_chosen, servable};
use ociseek_format::progress::causes;
use ociseek_format::ztoc::{self, Checkpoints, MAX_ENCODED, Ztoc};

/// The part of a ztoc's size that does not depend on the layer, in bytes.
const SMALL: u64 = 1 << 20;
/// The size of a checkpoint and the digest of its span in a ztoc, in bytes.
const CHECKPOINT: u64 = 33 << 10;
/// The compression ratio up to which the size of a ztoc's checkpoints is reasonable.
const RATIO: u64 = 8;

/// Why a ztoc is not used.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::index) enum NotReusable {
    /// It may be correct, but it is not the one that would be built.
    Other,
    /// It differs from the claims of its index.
    Wrong(String),
}

/// Whether the ztocs of an index by `tool` may be those that `options` would give.
pub(super) fn may_fit(tool: Option<&str>, ztoc: &ZtocRef, options: &IndexOptions) -> bool {
    tool.is_some_and(|tool| builds_alike(tool, &options.layer.build_tool_identifier))
        && ztoc.span_size == options.layer.span_size
}

/// The largest ztoc, in bytes, that is fetched for a layer of this size with a checkpoint every
/// `distance` bytes: [`SMALL`], half the layer for its entries, and the checkpoints of a layer that
/// was compressed to an eighth. For most layers a ztoc is some hundredths of the layer. A larger
/// one may be correct, but then reading its layer costs little more than fetching the ztoc.
pub(in crate::index) fn in_proportion(layer_size: u64, distance: u64) -> u64 {
    let checkpoints = layer_size.saturating_mul(RATIO).div_ceil(distance.max(1)).saturating_mul(CHECKPOINT);
    (layer_size / 2).saturating_add(checkpoints).saturating_add(SMALL).min(MAX_ZTOC)
}

/// Decodes the ztoc of a layer of `layer_size` bytes. The result has the tool name that `options`
/// request, whichever equivalent tool built it. The root is checked before everything else.
///
/// Charged to `memory`.
///
/// # Errors
/// If it is not the ztoc that would be built with `options`, or consumers could not be served from
/// it.
pub(super) fn decoded(
    bytes: &[u8],
    layer_size: u64,
    options: &LayerOptions,
    memory: &mut Charge,
) -> Result<SpanTable, NotReusable> {
    let wrong = |error: &dyn std::error::Error| NotReusable::Wrong(causes(error));
    let head = ztoc::head(bytes).map_err(|error| wrong(&error))?;
    let tool = std::str::from_utf8(head.build_tool_identifier).map_err(|_| NotReusable::Other)?;
    if head.version != ztoc::VERSION || !builds_alike(tool, &options.build_tool_identifier) {
        return Err(NotReusable::Other);
    }
    if head.compressed_size.0 != layer_size {
        return Err(NotReusable::Wrong(format!(
            "it is for a layer of {} bytes, not of {layer_size}",
            head.compressed_size
        )));
    }
    if head.span_size != options.span_size {
        let (found, expected) = (head.span_size, options.span_size);
        return Err(NotReusable::Wrong(format!("it has spans of {found} bytes, but its index says {expected}")));
    }
    let mut ztoc = ztoc::decode_within(bytes, memory).map_err(|error| wrong(&error))?;
    servable(&ztoc).map_err(|error| wrong(&error))?;
    if !is_as_built(&ztoc) {
        return Err(NotReusable::Wrong("ociseek would build it differently".to_owned()));
    }
    ztoc.build_tool_identifier = options.build_tool_identifier.as_bytes().into();
    SpanTable::new(Arc::new(ztoc)).map_err(|error| wrong(&error))
}

/// Checks properties that consumers do not require but all our ztocs have.
fn is_as_built(ztoc: &Ztoc) -> bool {
    let chosen = match &ztoc.checkpoints {
        Checkpoints::Gzip { span_size, list } => are_chosen(list, *span_size),
        Checkpoints::Uncompressed { .. } => true,
    };
    chosen
        && ztoc.span_digests.iter().all(|digest| digest.algorithm() == Algorithm::Sha256)
        && ztoc.files.iter().all(|file| file.pax.is_sorted_by(|one, next| one.key < next.key))
        && ztoc::encoded_size_bound(&ztoc.files, &ztoc.checkpoints) <= MAX_ENCODED
}

/// The ztoc encoded by us.
pub(super) fn encoded(spans: &SpanTable) -> BuiltZtoc {
    let ztoc = spans.ztoc();
    let bytes = ztoc::encode(ztoc);
    BuiltZtoc {
        digest: Digest::sha256(&bytes),
        bytes,
        spans: spans.count(),
        entries: ztoc.files.len() as u64,
        uncompressed_size: ztoc.uncompressed_size.0,
        form: match ztoc.checkpoints {
            Checkpoints::Gzip { .. } => BlobForm::Gzip { members: None },
            Checkpoints::Uncompressed { .. } => BlobForm::Tar,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TOOL_IDENTIFIER;
    use ociseek_format::budget::Budget;
    use ociseek_format::layer::{LayerIndexer, Outcome};
    use ociseek_format::offset::SpanSize;
    use ociseek_format::tar::PaxRecord;

    #[test]
    fn a_ztoc_out_of_proportion_to_its_layer_is_refused() {
        const MIB: u64 = 1 << 20;
        assert_eq!(in_proportion(0, 4 * MIB), SMALL);
        // With tiny spans, a ztoc is larger than the layer, but still correct for the layer's
        // options.
        assert!(in_proportion(100 * MIB, 64 << 10) > 400 * CHECKPOINT);
        let usual = in_proportion(100 * MIB, 4 * MIB);
        assert!((50 * MIB..60 * MIB).contains(&usual), "{usual}");
        assert_eq!(in_proportion(u64::MAX, 1), MAX_ZTOC);
    }

    fn decoded(bytes: &[u8], layer_size: u64, options: &LayerOptions) -> Result<SpanTable, NotReusable> {
        super::decoded(bytes, layer_size, options, &mut Budget::default().open())
    }

    fn options(tool: &str) -> LayerOptions {
        LayerOptions { span_size: SpanSize::new(4096).unwrap(), build_tool_identifier: tool.into(), fine: false }
    }

    /// The ztoc of a layer of 1024 bytes.
    fn built(options: LayerOptions) -> BuiltZtoc {
        let mut indexer = LayerIndexer::new(options, None);
        indexer.push(&[0; 1024]).unwrap();
        let Outcome::Ztoc(built) = indexer.finish().unwrap().outcome else { panic!("it has a ztoc") };
        built
    }

    #[test]
    fn a_reused_ztoc_is_the_same_whoever_made_it() {
        let ours = built(options(TOOL_IDENTIFIER));
        for tool in [TOOL_IDENTIFIER, "ociseek v0.0.9"] {
            let found = built(options(tool));
            let table = decoded(&found.bytes, 1024, &options(TOOL_IDENTIFIER)).unwrap();
            assert_eq!(encoded(&table), ours, "{tool}");
        }
    }

    #[test]
    fn different_ztocs_are_skipped_and_mismatched_ones_are_wrong() {
        let ours = options(TOOL_IDENTIFIER);
        for tool in ["AWS SOCI CLI v0.2", "ociseek v999.0.0"] {
            assert_eq!(decoded(&built(options(tool)).bytes, 1024, &ours).err(), Some(NotReusable::Other), "{tool}");
        }
        let bytes = built(ours.clone()).bytes;
        let is_wrong = |bytes: &[u8], size, options: &LayerOptions| {
            matches!(decoded(bytes, size, options), Err(NotReusable::Wrong(_)))
        };
        assert!(is_wrong(&bytes, 1025, &ours));
        assert!(is_wrong(&bytes[..bytes.len() / 2], 1024, &ours));
        assert!(is_wrong(&bytes, 1024, &LayerOptions { span_size: SpanSize::new(8192).unwrap(), ..ours.clone() }));
        let mut sha512 = ztoc::decode(&bytes).unwrap();
        sha512.span_digests[0] = Digest::of(Algorithm::Sha512, b"x");
        assert!(is_wrong(&ztoc::encode(&sha512), 1024, &ours));
    }

    #[test]
    fn pax_records_must_be_sorted() {
        let mut indexer = LayerIndexer::new(options(TOOL_IDENTIFIER), None);
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_pax_extensions([("SCHILY.xattr.user.a", &b"1"[..]), ("SCHILY.xattr.user.b", b"2")]).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        builder.append_data(&mut header, "file", &[][..]).unwrap();
        let layer = builder.into_inner().unwrap();
        indexer.push(&layer).unwrap();
        let Outcome::Ztoc(built) = indexer.finish().unwrap().outcome else { panic!("it has a ztoc") };
        let mut ztoc = ztoc::decode(&built.bytes).unwrap();
        assert!(is_as_built(&ztoc));
        let reversed: Vec<PaxRecord> = ztoc.files[0].pax.iter().rev().cloned().collect();
        assert_eq!(reversed.len(), 2);
        ztoc.files[0].pax = reversed.into();
        assert!(!is_as_built(&ztoc));
    }
}
