//! Reuses ztocs that SOCI indexes already list, instead of reading their layers.
//!
//! Used are only indexes that the image itself names, those of images that the user names, and, if
//! the user trusts everybody who may push to the repository ([`Reuse`](super::Reuse)), those that
//! are attached there. Still, no ztoc is accepted unchecked: its size and its root are compared
//! before anything is decoded, its content is judged like a consumer would, and some of its spans
//! are read from the layer and compared. A ztoc that fails is skipped with a warning, and the layer
//! is read.
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
use super::options::Existing;
use super::supply::{BuiltLayer, Layers, Supply, ZtocOffer};
use crate::discover::MAX_ZTOC;
use crate::verify::probe;
use check::may_fit;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::layer::{BuiltZtoc, Outcome};
use ociseek_format::offset::SpanSize;
use ociseek_format::progress::{ProgressEvent, causes};
use places::ReuseSearch;

mod check;
mod places;
mod tags;

pub(super) use check::{NotReusable, in_proportion};

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
pub(super) async fn reuse(layers: &mut Layers, unread: Vec<Descriptor>, supply: &Supply<'_>) -> Vec<Descriptor> {
    let options = supply.work.options;
    if !options.reuse.indexes {
        return unread;
    }
    let seed = RandomState::new().build_hasher().finish();
    let mut context = ReuseContext { supply, claims: BTreeMap::new(), disputed: BTreeSet::new(), seed };
    let mut places = ReuseSearch::new(supply);
    let mut missing = unread;
    // A user who replaces all indexes wants no ztocs from them, but may name other images.
    let replaces_all = options.existing == Existing::Replace;
    let attached = supply.trusts_repository();
    // What these indexes say counts against others even if it is not used.
    context.note(&missing, &supply.known);
    if !replaces_all {
        if attached {
            missing = context.take(layers, missing, &supply.known).await;
        }
        let Some(own) = options.before_deadline(places.own(&missing, attached)).await else { return missing };
        missing = context.take(layers, missing, &own).await;
    }
    let Some(named) = options.before_deadline(places.named(&missing)).await else { return missing };
    missing = context.take(layers, missing, &named).await;
    if !replaces_all && attached {
        let Some(others) = options.before_deadline(places.tags(&missing)).await else { return missing };
        missing = context.take(layers, missing, &others).await;
    }
    missing
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
    /// Notes what `offers` claim about `missing` layers.
    fn note(&mut self, missing: &[Descriptor], offers: &[ZtocOffer]) {
        let missing: BTreeSet<Digest> = missing.iter().map(|layer| layer.digest).collect();
        for offer in offers {
            let Some(tool) = offer.tool.as_deref().map(Arc::<str>::from) else { continue };
            for ztoc in offer.ztocs.iter().filter(|ztoc| missing.contains(&ztoc.layer)) {
                let claim = (ztoc.layer, Arc::clone(&tool), ztoc.span_size);
                self.claims.entry(claim).or_default().insert(ztoc.ztoc);
            }
        }
    }

    /// Whether indexes contradict each other about a layer. Reports it once.
    fn is_disputed(&mut self, layer: &Digest) -> bool {
        let about =
            self.claims.range((*layer, Arc::from(""), SpanSize::LEAST)..).take_while(|((about, ..), _)| about == layer);
        let Some((_, ztocs)) = about.into_iter().find(|(_, ztocs)| ztocs.len() > 1) else { return false };
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
    async fn take(&mut self, layers: &mut Layers, missing: Vec<Descriptor>, offers: &[ZtocOffer]) -> Vec<Descriptor> {
        self.note(&missing, offers);
        let ztocs = offers.iter().flat_map(|offer| offer.ztocs.iter().map(move |ztoc| (ztoc, offer)));
        let mut by_layer: BTreeMap<Digest, Vec<(&ZtocRef, &ZtocOffer)>> = BTreeMap::new();
        for (ztoc, offer) in
            ztocs.filter(|(ztoc, offer)| may_fit(offer.tool.as_deref(), ztoc, self.supply.work.options))
        {
            let there = by_layer.entry(ztoc.layer).or_default();
            if there.iter().all(|(known, _)| known.ztoc != ztoc.ztoc) {
                there.push((ztoc, offer));
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
                    let built = BuiltLayer { outcome: Arc::new(Outcome::Ztoc(ztoc)), origin, sampled: Some(from) };
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
                    return ReuseAttempt { layer, found: Some((built, offer.origin.clone(), ztoc.ztoc)), read };
                }
                Err(NotReusable::Other) => {}
                Err(NotReusable::Wrong(why)) => {
                    let text = format!("ztoc {} of layer {} is not reused: {why}", ztoc.ztoc, layer.digest);
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
        if ztoc.size > check::in_proportion(layer.size, ztoc.span_size.get()) {
            return Err(NotReusable::Other);
        }
        let what = || format!("ztoc {} of {} bytes", ztoc.ztoc, ztoc.size);
        let charged = self.supply.source.budget().charge(ztoc.size.saturating_mul(COST), what);
        let mut memory = charged.map_err(|error| NotReusable::Wrong(causes(&error)))?;
        let bytes =
            offer.store.blob_bytes(&ztoc.blob(), MAX_ZTOC).await.map_err(|error| NotReusable::Wrong(causes(&error)))?;
        let (layer_size, options) = (layer.size, self.supply.work.options.layer.clone());
        let decode = move || check::decoded(&bytes, layer_size, &options, &mut memory).map(|spans| (spans, memory));
        let (spans, _memory) = spawn_blocking(decode).await.map_err(|_| NotReusable::Other)??;

        let count = 1 + (layer.size / PROBE_EVERY).min(MOST_PROBES - 1);
        let probed = probe(self.supply.source, layer, &spans, count as u32, self.seed).await;
        let probed = probed.map_err(|error| NotReusable::Wrong(causes(&error)))?;
        *read += probed.bytes_read;
        match probed.differences.first() {
            Some(difference) => Err(NotReusable::Wrong(difference.text.clone())),
            // All of the chosen spans are too large to be read at once.
            None if probed.compared.spans == 0 => Err(NotReusable::Other),
            None => spawn_blocking(move || check::encoded(&spans)).await.map_err(|_| NotReusable::Other),
        }
    }
}
