//! Reuses ztocs that SOCI indexes already list, instead of reading their layers.
//!
//! Used are only indexes that the image itself names, and those of images that the user names
//! ([`Reuse`](super::Reuse)). Still, no ztoc is accepted unchecked: its size and its root are
//! compared before anything is decoded, its content is judged like a consumer would, and some of
//! its spans are read from the layer and compared. A ztoc that fails is skipped with a warning, and
//! the layer is read.
//!
//! The bytes of a ztoc depend only on the layer, the tool and the options. So if two indexes list
//! different ones, one of them is wrong, wherever they come from: then the layer is read.
//!
//! Reused ztocs are not cached: the cache serves images of all repositories, but a ztoc that was
//! only partly checked is trusted only in its own repository.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;

use super::model::Origin;
use super::options::{Existing, IndexOptions};
use super::supply::{BuiltLayer, Layers, ListedZtocs, Supply};
use crate::discover::MAX_ZTOC;
use crate::maker::builds_alike;
use crate::verify::probe;
use ociseek_format::budget::Charge;
use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::layer::{BlobForm, BuiltZtoc, LayerOptions, Outcome, are_chosen, servable};
use ociseek_format::offset::SpanSize;
use ociseek_format::progress::{ProgressEvent, causes};
use ociseek_format::ztoc::{self, Checkpoints, MAX_ENCODED, Ztoc};

mod places;

use places::ReuseSearch;

/// How many ztocs are tried for a layer before it is read.
const TRIES: usize = 3;
/// How many bytes of memory a byte of a ztoc takes while it is checked, in addition to its decoded
/// form: as fetched, and encoded again.
const COST: u64 = 2;
/// One span is read for each this many bytes of a layer, ...
const PROBE_EVERY: u64 = 128 << 20;
/// ... but at most this many spans of a layer, plus its last span.
const MOST_PROBES: u64 = 4;

/// Gets ztocs for the layers of `unread` from indexes. The layers that remain in `unread` must be
/// read.
pub(super) async fn reuse(
    layers: &mut Layers,
    unread: Vec<Descriptor>,
    supply: &Supply<'_>,
) -> Vec<Descriptor> {
    let options = supply.work.options;
    if !options.reuse.indexes {
        return unread;
    }
    let seed = RandomState::new().build_hasher().finish();
    let mut context =
        ReuseContext { supply, claims: BTreeMap::new(), disputed: BTreeSet::new(), seed };
    let places = ReuseSearch::new(supply);
    let mut missing = unread;
    // A user who replaces all indexes wants no ztocs from them, but may name other images.
    let replaces_all = options.existing == Existing::Replace;
    // What these indexes say counts against others even if it is not used.
    context.note(&missing, supply.known.iter());
    if !replaces_all {
        let Some(own) = options.before_deadline(places.own(&missing)).await else { return missing };
        missing = context.take(layers, missing, &own).await;
    }
    let Some(named) = options.before_deadline(places.named(&missing)).await else { return missing };
    context.take(layers, missing, &named).await
}

/// An index whose ztocs may be reused.
struct ZtocOffer {
    listed: ListedZtocs,
    /// The name of the image or index in reports.
    name: Arc<str>,
}

/// Takes ztocs from other indexes for the layers of an image.
struct ReuseContext<'a> {
    supply: &'a Supply<'a>,
    /// The ztocs that all indexes so far list, by what determines a ztoc: layer, tool, span size.
    claims: BTreeMap<(Digest, Arc<str>, SpanSize), BTreeSet<Digest>>,
    /// The layers about which they contradict each other.
    disputed: BTreeSet<Digest>,
    /// Chooses the spans that are compared, so that nobody can predict them.
    seed: u64,
}

/// A ztoc for a layer, if one was found, and how many bytes of the layer were read for that.
struct ReuseAttempt {
    layer: Descriptor,
    /// The ztoc, where it comes from, and the ztoc that was fetched there.
    found: Option<(BuiltZtoc, Origin, Digest)>,
    read: u64,
}

impl ReuseContext<'_> {
    /// Notes what `indexes` claim about `missing` layers.
    fn note<'a>(&mut self, missing: &[Descriptor], indexes: impl Iterator<Item = &'a ListedZtocs>) {
        let missing: BTreeSet<Digest> = missing.iter().map(|layer| layer.digest).collect();
        for index in indexes {
            let Some(tool) = index.tool.as_deref().map(Arc::<str>::from) else { continue };
            for ztoc in index.ztocs.iter().filter(|ztoc| missing.contains(&ztoc.layer)) {
                let claim = (ztoc.layer, Arc::clone(&tool), ztoc.span_size);
                self.claims.entry(claim).or_default().insert(ztoc.ztoc);
            }
        }
    }

    /// Whether indexes contradict each other about a layer. Reports it once.
    fn is_disputed(&mut self, layer: &Digest) -> bool {
        let about = self
            .claims
            .range((*layer, Arc::from(""), SpanSize::LEAST)..)
            .take_while(|((about, ..), _)| about == layer);
        let Some((_, ztocs)) = about.into_iter().find(|(_, ztocs)| ztocs.len() > 1) else {
            return false;
        };
        if self.disputed.insert(*layer) {
            self.supply.work.progress.report(ProgressEvent::Warning(format!(
                "layer {layer} is read: indexes by the same tool and options list {} different ztocs of it, and at \
                 most one is right",
                ztocs.len()
            )));
        }
        true
    }

    /// Takes ztocs from `offers`, and returns the layers of `missing` without one, in the same
    /// order.
    async fn take(
        &mut self,
        layers: &mut Layers,
        missing: Vec<Descriptor>,
        offers: &[ZtocOffer],
    ) -> Vec<Descriptor> {
        self.note(&missing, offers.iter().map(|offer| &offer.listed));
        let ztocs = offers
            .iter()
            .flat_map(|offer| offer.listed.ztocs.iter().map(move |ztoc| (ztoc, offer)));
        let mut by_layer: BTreeMap<Digest, Vec<(&ZtocRef, &ZtocOffer)>> = BTreeMap::new();
        for (ztoc, offer) in ztocs.filter(|(ztoc, offer)| {
            may_fit(offer.listed.tool.as_deref(), ztoc, self.supply.work.options)
        }) {
            let known_offers = by_layer.entry(ztoc.layer).or_default();
            if known_offers.iter().all(|(known, _)| known.ztoc != ztoc.ztoc) {
                known_offers.push((ztoc, offer));
            }
        }
        by_layer.retain(|layer, _| missing.iter().any(|missing| missing.digest == *layer));
        by_layer.retain(|layer, _| !self.is_disputed(layer));
        if by_layer.is_empty() {
            return missing;
        }
        let this = &*self;
        let mut attempts = stream::iter(missing)
            .map(|layer| {
                let offered = by_layer.get(&layer.digest).map_or(&[][..], Vec::as_slice);
                this.obtain(layer, offered)
            })
            // In order, because the reading order is already decided.
            .buffered(self.supply.work.options.jobs.max(1));
        let mut unread = Vec::new();
        while let Some(ReuseAttempt { layer, found, read }) =
            this.supply.work.options.before_deadline(attempts.next()).await.flatten()
        {
            layers.bytes_compared += read;
            match found {
                Some((ztoc, origin, from)) => {
                    let built = BuiltLayer {
                        outcome: Arc::new(Outcome::Ztoc(ztoc)),
                        origin,
                        sampled: Some(from),
                    };
                    if layers.add(&layer, built).is_err() {
                        unread.push(layer);
                    }
                }
                None => unread.push(layer),
            }
        }
        unread
    }

    async fn obtain(&self, layer: Descriptor, offered: &[(&ZtocRef, &ZtocOffer)]) -> ReuseAttempt {
        let mut read = 0;
        for (ztoc, offer) in offered.iter().take(TRIES) {
            match self.fetch(ztoc, offer, &layer, &mut read).await {
                Ok(built) => {
                    return ReuseAttempt {
                        layer,
                        found: Some((built, Origin::Reused(offer.name.clone()), ztoc.ztoc)),
                        read,
                    };
                }
                Err(NotReusable::Other) => {}
                Err(NotReusable::Wrong(why)) => {
                    let text = format!(
                        "ztoc {} of layer {} is not reused: {why}",
                        ztoc.ztoc, layer.digest
                    );
                    self.supply.work.progress.report(ProgressEvent::Warning(text));
                }
            }
        }
        ReuseAttempt { layer, found: None, read }
    }

    async fn fetch(
        &self,
        ztoc: &ZtocRef,
        offer: &ZtocOffer,
        layer: &Descriptor,
        read: &mut u64,
    ) -> Result<BuiltZtoc, NotReusable> {
        if ztoc.size > in_proportion(layer.size, ztoc.span_size.get()) {
            return Err(NotReusable::Other);
        }
        let charged = self.supply.source.budget().charge(ztoc.size.saturating_mul(COST), || {
            format!("ztoc {} of {} bytes", ztoc.ztoc, ztoc.size)
        });
        let mut memory = charged.map_err(|error| NotReusable::Wrong(causes(&error)))?;
        let bytes = offer
            .listed
            .store
            .blob_bytes(&ztoc.blob(), MAX_ZTOC)
            .await
            .map_err(|error| NotReusable::Wrong(causes(&error)))?;
        let layer_size = layer.size;
        let options = self.supply.work.options.layer.clone();
        let decode =
            move || decoded(&bytes, layer_size, &options, &mut memory).map(|spans| (spans, memory));
        let (spans, _memory) = spawn_blocking(decode).await.map_err(|_| NotReusable::Other)??;

        let count = 1 + (layer.size / PROBE_EVERY).min(MOST_PROBES - 1);
        let probed = probe(self.supply.source, layer, &spans, count as u32, self.seed).await;
        let probed = probed.map_err(|error| NotReusable::Wrong(causes(&error)))?;
        *read += probed.bytes_read;
        match probed.differences.first() {
            Some(difference) => Err(NotReusable::Wrong(difference.text.clone())),
            // All of the chosen spans are too large to be read at once.
            None if probed.compared.spans == 0 => Err(NotReusable::Other),
            None => spawn_blocking(move || encoded(&spans)).await.map_err(|_| NotReusable::Other),
        }
    }
}

/// The part of a ztoc's size that does not depend on the layer, in bytes.
const SMALL: u64 = 1 << 20;
/// The size of a checkpoint and the digest of its span in a ztoc, in bytes.
const CHECKPOINT: u64 = 33 << 10;
/// The compression ratio up to which the size of a ztoc's checkpoints is reasonable.
const RATIO: u64 = 8;

/// Why a ztoc is not used.
#[derive(Debug, PartialEq, Eq)]
enum NotReusable {
    /// It may be correct, but it is not the one that would be built.
    Other,
    /// It differs from the claims of its index.
    Wrong(String),
}

/// Whether the ztocs of an index by `tool` may be those that `options` would give.
fn may_fit(tool: Option<&str>, ztoc: &ZtocRef, options: &IndexOptions) -> bool {
    tool.is_some_and(|tool| builds_alike(tool, &options.layer.build_tool_identifier))
        && ztoc.span_size == options.layer.span_size
}

/// The largest ztoc, in bytes, that is fetched for a layer of this size with a checkpoint every
/// `distance` bytes: [`SMALL`], half the layer for its entries, and the checkpoints of a layer that
/// was compressed to an eighth. For most layers a ztoc is some hundredths of the layer. A larger
/// one may be correct, but then reading its layer costs little more than fetching the ztoc.
fn in_proportion(layer_size: u64, distance: u64) -> u64 {
    let checkpoints =
        layer_size.saturating_mul(RATIO).div_ceil(distance.max(1)).saturating_mul(CHECKPOINT);
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
fn decoded(
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
        let actual = head.span_size;
        let expected = options.span_size;
        return Err(NotReusable::Wrong(format!(
            "it has spans of {actual} bytes, but its index says {expected}"
        )));
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
fn encoded(spans: &SpanTable) -> BuiltZtoc {
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

    fn decoded(
        bytes: &[u8],
        layer_size: u64,
        options: &LayerOptions,
    ) -> Result<SpanTable, NotReusable> {
        super::decoded(bytes, layer_size, options, &mut Budget::default().open())
    }

    fn options(tool: &str) -> LayerOptions {
        LayerOptions {
            span_size: SpanSize::new(4096).unwrap(),
            build_tool_identifier: tool.into(),
            fine: false,
        }
    }

    /// The ztoc of a layer of 1024 bytes.
    fn built(options: LayerOptions) -> BuiltZtoc {
        let mut indexer = LayerIndexer::new(options, None);
        indexer.push(&[0; 1024]).unwrap();
        let Outcome::Ztoc(built) = indexer.finish().unwrap().outcome else {
            panic!("it has a ztoc")
        };
        built
    }

    #[test]
    fn a_reused_ztoc_is_the_same_whoever_made_it() {
        let ours = built(options(TOOL_IDENTIFIER));
        for tool in [TOOL_IDENTIFIER, "ociseek v0.0.9"] {
            let reused = built(options(tool));
            let table = decoded(&reused.bytes, 1024, &options(TOOL_IDENTIFIER)).unwrap();
            assert_eq!(encoded(&table), ours, "{tool}");
        }
    }

    #[test]
    fn different_ztocs_are_skipped_and_mismatched_ones_are_wrong() {
        let ours = options(TOOL_IDENTIFIER);
        for tool in ["AWS SOCI CLI v0.2", "ociseek v999.0.0"] {
            assert_eq!(
                decoded(&built(options(tool)).bytes, 1024, &ours).err(),
                Some(NotReusable::Other),
                "{tool}"
            );
        }
        let bytes = built(ours.clone()).bytes;
        let is_wrong = |bytes: &[u8], size, options: &LayerOptions| {
            matches!(decoded(bytes, size, options), Err(NotReusable::Wrong(_)))
        };
        assert!(is_wrong(&bytes, 1025, &ours));
        assert!(is_wrong(&bytes[..bytes.len() / 2], 1024, &ours));
        assert!(is_wrong(
            &bytes,
            1024,
            &LayerOptions { span_size: SpanSize::new(8192).unwrap(), ..ours.clone() }
        ));
        let mut sha512 = ztoc::decode(&bytes).unwrap();
        sha512.span_digests[0] = Digest::of(Algorithm::Sha512, b"x");
        assert!(is_wrong(&ztoc::encode(&sha512), 1024, &ours));
    }

    #[test]
    fn pax_records_must_be_sorted() {
        let mut indexer = LayerIndexer::new(options(TOOL_IDENTIFIER), None);
        let mut builder = tar::Builder::new(Vec::new());
        builder
            .append_pax_extensions([
                ("SCHILY.xattr.user.a", &b"1"[..]),
                ("SCHILY.xattr.user.b", b"2"),
            ])
            .unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        builder.append_data(&mut header, "file", &[][..]).unwrap();
        let layer = builder.into_inner().unwrap();
        indexer.push(&layer).unwrap();
        let Outcome::Ztoc(built) = indexer.finish().unwrap().outcome else {
            panic!("it has a ztoc")
        };
        let mut ztoc = ztoc::decode(&built.bytes).unwrap();
        assert!(is_as_built(&ztoc));
        let reversed: Vec<PaxRecord> = ztoc.files[0].pax.iter().rev().cloned().collect();
        assert_eq!(reversed.len(), 2);
        ztoc.files[0].pax = reversed.into();
        assert!(!is_as_built(&ztoc));
    }
}
