//! The fine index of one platform: examines the existing ones and decides what to do. Its documents
//! come from the same reading of the layers as the ztocs.
//!
//! A fine index is complete if it has a document for each layer that can have one, and was built
//! under the same tool name with the same list of files that a start reads. Its manifest states all
//! of that, so nothing else is read to check it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;

use super::IndexError;
use super::existing::{AttachedIndex, CandidateLayer, Decision, check_of, decide_seen, replaced};
use super::existing_manifest::{candidates, decide_examined, find};
use super::model::{ExistingCheck, ExistingManifest};
use super::options::{Existing, IndexOptions, Work};
use super::parts::{lacks_document, may_have_document};
use super::reuse::{NotReusable, in_proportion};
use super::supply::{BuiltDocument, DocumentOffer, Layers, Supply, cached_document};
use crate::discover::{UnusableIndexError, parse_fine, preferred};
use crate::maker::builds_alike;
use crate::verify::probe_document;
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::fine::{self, Codec, DIVIDED_SPAN_SIZE, EncodedFine, FineLayer, SPAN_SIZE};
use ociseek_format::image::fine::{EMPTY_CONFIG, FINE_INDEX, FineIndex, FineRef};
use ociseek_format::image::soci::CONFIG;
use ociseek_format::image::{Descriptor, LayerKind};
use ociseek_format::layer::Outcome;
use ociseek_format::progress::{ProgressEvent, causes};
use ociseek_rootfs::layers::{FetchedDocument, fit_document};
use ociseek_store::{Destination, Source};

mod publish;
mod start;

pub(crate) use publish::{BoundFine, bound_fine};

/// The plan for the fine index of one platform.
pub(super) struct FinePlan {
    /// The layers that may have a document, without duplicates, in the order of the image.
    pub wanted: Vec<Descriptor>,
    /// All layers of the image.
    layers: Vec<Descriptor>,
    /// The manifests that the destination lists as fine indexes, in its order.
    pub found: Vec<FoundFine>,
    pub decision: Decision,
    /// What is known about the content of the index that `decision` leaves as it is.
    check: ExistingCheck,
}

/// A manifest that the destination lists as a fine index of the image.
pub(super) type FoundFine = ExistingManifest<FineIndex>;

impl FoundFine {
    /// Whether it was built under this tool name, with this list if there is one. Without a list,
    /// any list is acceptable.
    fn is_alike(&self, tool: &str, profile: Option<&Digest>) -> bool {
        self.content.as_ref().is_ok_and(|index| {
            let has_list = profile.is_none_or(|profile| index.profile.as_ref() == Some(profile));
            index.build_tool.as_deref() == Some(tool) && has_list
        })
    }

    /// Whether it lists another document than the one that this machine built. That is only known
    /// of documents without a recorded start, since the start changes the bytes.
    fn contradicts(&self, layers: &[CandidateLayer]) -> bool {
        let listed = self
            .content
            .iter()
            .flat_map(|index| &index.layers)
            .filter(|listed| !listed.has_start());
        let mut built = listed.filter_map(|listed| {
            let built = layers.iter().find(|layer| layer.layer == listed.layer)?.built?;
            Some(built == listed.document)
        });
        built.any(|is_built| !is_built)
    }
}

impl FinePlan {
    /// `layers` are those of the image manifest `subject`.
    pub(super) async fn make(
        subject: &Descriptor,
        layers: &[Descriptor],
        destination: Option<&Destination>,
        work: Work<'_>,
    ) -> Result<FinePlan, IndexError> {
        let mut seen = BTreeSet::new();
        let wanted = layers
            .iter()
            .filter(|layer| may_have_document(layer, work.options) && seen.insert(layer.digest));
        let wanted: Vec<Descriptor> = wanted.cloned().collect();
        let found = find(destination, &subject.digest).await?;
        let layers = layers.to_vec();
        let decision = Decision::Build { replaces: Vec::new() };
        let mut plan = FinePlan { wanted, layers, found, decision, check: ExistingCheck::Listed };
        plan.decide(destination, work).await?;
        Ok(plan)
    }

    /// Examines the existing indexes again before anything is attached.
    pub(super) async fn renew(
        &mut self,
        subject: &Descriptor,
        destination: Option<&Destination>,
        work: Work<'_>,
    ) -> Result<(), IndexError> {
        if matches!(self.decision, Decision::Build { .. }) {
            self.found = find(destination, &subject.digest).await?;
            self.decide(destination, work).await?;
        }
        Ok(())
    }

    /// The layers whose document is needed. Empty if there is nothing to build.
    pub(super) fn to_build(&self) -> &[Descriptor] {
        match self.decision {
            Decision::Build { .. } => &self.wanted,
            _ => &[],
        }
    }

    /// The existing fine indexes as sources of documents.
    pub(super) fn offers(
        &self,
        destination: &Destination,
        options: &IndexOptions,
    ) -> Vec<DocumentOffer> {
        let store = destination.as_source();
        self.found.iter().filter_map(|found| DocumentOffer::of(found, &store, options)).collect()
    }

    async fn decide(
        &mut self,
        destination: Option<&Destination>,
        work: Work<'_>,
    ) -> Result<(), IndexError> {
        let options = work.options;
        let mut candidates = candidates(&self.found, self.wanted.iter(), work).await;
        for (candidate, layer) in candidates.iter_mut().zip(&self.wanted) {
            let is_needed = options.existing == Existing::Skip
                && !self.found.is_empty()
                && !candidate.unservable;
            let budget =
                destination.map(|there| there.as_source().budget().clone()).filter(|_| is_needed);
            candidate.built = match budget {
                Some(budget) => cached_document(work.cache, layer, &budget)
                    .await
                    .map(|document| document.digest),
                None => None,
            };
        }
        let all: BTreeSet<Digest> = self.wanted.iter().map(|layer| layer.digest).collect();
        let profile = options.prefetch.as_ref().map(|list| list.digest());
        let tool = &options.layer.build_tool_identifier;
        let read =
            preferred(self.found.iter().map(|found| found.content.as_ref().ok()), &self.layers);
        let decided = |layers: &[CandidateLayer]| {
            let needed = layers.iter().filter(|layer| !layer.unservable).map(|layer| layer.layer);
            let needed: BTreeSet<Digest> = needed.collect();
            let seen = self.found.iter().map(|found| {
                let covered = found.covered();
                let has_all =
                    covered.is_subset(&all) && needed.is_subset(&covered) && !covered.is_empty();
                let is_same =
                    has_all && found.is_alike(tool, profile.as_ref()) && !found.contradicts(layers);
                found.facts(is_same)
            });
            let seen: Vec<_> = seen.collect();
            let disputed = is_disputed(
                self.found.iter().filter_map(|found| found.content.as_ref().ok()),
                tool,
            );
            match (options.existing, read) {
                (Existing::Skip, Some(_)) if disputed => replaced(&seen, tool),
                (Existing::Keep, Some(read)) => Decision::Keep(read),
                // Readers skip the others, which a registry that refuses deletion keeps.
                (Existing::Skip, Some(read)) if seen[read].is_same => Decision::Done(read),
                _ => decide_seen(&seen, options.existing, tool),
            }
        };
        self.decision = decide_examined(&self.found, &candidates, destination, decided).await?;
        if let Decision::Done(place) | Decision::Keep(place) = self.decision {
            let listed = self.found[place].content.iter().flat_map(|content| &content.layers);
            self.check =
                check_of(listed.map(|listed| (listed.layer, listed.document)), &candidates);
        }
        Ok(())
    }
}

/// Whether two fine indexes by this tool and with the same profile list different documents of a
/// layer, so that one of them is wrong. Documents with a recorded start do not count.
fn is_disputed<'a>(found: impl Iterator<Item = &'a FineIndex>, tool: &str) -> bool {
    let ours = found.filter(|index| index.build_tool.as_deref() == Some(tool));
    let mut known = BTreeMap::new();
    let documents =
        ours.flat_map(|index| index.layers.iter().map(|listed| (listed, index.profile)));
    documents.filter(|(listed, _)| !listed.has_start()).any(|(listed, profile)| {
        *known.entry((listed.layer, profile)).or_insert(listed.document) != listed.document
    })
}

impl AttachedIndex for FineIndex {
    const ARTIFACT_TYPE: &str = FINE_INDEX;
    const IS_TYPE_OF_CONFIG: bool = false;

    fn parse(manifest: &[u8], subject: &Digest) -> Result<FineIndex, UnusableIndexError> {
        parse_fine(manifest, subject)
    }

    fn lacks(layer: &Descriptor, outcome: &Outcome) -> bool {
        lacks_document(layer, outcome)
    }

    fn blobs(&self) -> impl Iterator<Item = Descriptor> {
        self.layers.iter().map(FineRef::blob).chain([Descriptor::of(EMPTY_CONFIG, CONFIG)])
    }

    fn covered(&self) -> impl Iterator<Item = Digest> {
        self.layers.iter().map(|document| document.layer)
    }

    fn tool(&self) -> Option<&str> {
        self.build_tool.as_deref()
    }
}

/// How many documents are tried for a layer before it is read.
const TRIES: usize = 3;
/// How many bytes of memory a byte of a document takes while it is checked, in addition to its
/// decoded forms: as fetched, and encoded again.
const COST: u64 = 2;
/// How many entries are chosen. The spans that hold their headers are read, and the last span.
const PROBES: u32 = 4;

impl DocumentOffer {
    /// Those of a fine index whose documents may be the ones that `options` would give.
    pub(super) fn of(
        found: &FoundFine,
        store: &Source,
        options: &IndexOptions,
    ) -> Option<DocumentOffer> {
        let index = found.content.as_ref().ok()?;
        let is_alike =
            builds_alike(index.build_tool.as_deref()?, &options.layer.build_tool_identifier);
        is_alike.then(|| DocumentOffer { store: store.clone(), documents: index.layers.clone() })
    }
}

/// Adds documents for the layers of `missing`, where fine indexes have them.
pub(in crate::index) async fn reuse_documents(
    layers: &mut Layers,
    missing: Vec<Descriptor>,
    supply: &Supply<'_>,
) {
    let options = supply.work.options;
    if !supply.trusts_repository()
        || options.existing == Existing::Replace
        || supply.documents.is_empty()
    {
        return;
    }
    let mut by_layer: BTreeMap<Digest, Vec<(&FineRef, &Source)>> = BTreeMap::new();
    for (document, store) in
        supply.documents.iter().flat_map(|offer| offer.documents.iter().map(|d| (d, &offer.store)))
    {
        let there = by_layer.entry(document.layer).or_default();
        if there.iter().all(|(known, _)| known.document != document.document) {
            there.push((document, store));
        }
    }
    let reuse = DocumentReuse { supply, seed: RandomState::new().build_hasher().finish() };
    let mut trying = stream::iter(missing)
        .map(|layer| {
            let offered = by_layer.get(&layer.digest).map_or(&[][..], Vec::as_slice);
            reuse.obtain(layer, offered)
        })
        .buffer_unordered(options.jobs.max(1));
    while let Some((layer, found, read)) = options.before_deadline(trying.next()).await.flatten() {
        layers.bytes_compared += read;
        if let Some(document) = found {
            // One that does not fit into memory is built later, when less may be in use.
            let _ = layers.add_document(&layer, BuiltDocument::Made(Arc::new(document)));
        }
    }
}

struct DocumentReuse<'a> {
    supply: &'a Supply<'a>,
    /// Chooses the spans that are compared, so that nobody can predict them.
    seed: u64,
}

impl DocumentReuse<'_> {
    /// The layer, a document for it, if one was found, and how many bytes of the layer were read
    /// for that.
    async fn obtain(
        &self,
        layer: Descriptor,
        offered: &[(&FineRef, &Source)],
    ) -> (Descriptor, Option<EncodedFine>, u64) {
        let mut read = 0;
        for (document, store) in offered.iter().take(TRIES) {
            match self.fetch(document, store, &layer, &mut read).await {
                Ok(found) => return (layer, Some(found), read),
                Err(NotReusable::Other) => {}
                Err(NotReusable::Wrong(why)) => {
                    let name = document.document;
                    let text = format!(
                        "fine document {name} of layer {} is not reused: {why}",
                        layer.digest
                    );
                    self.supply.work.progress.report(ProgressEvent::Warning(text));
                }
            }
        }
        (layer, None, read)
    }

    async fn fetch(
        &self,
        document: &FineRef,
        store: &Source,
        layer: &Descriptor,
        read: &mut u64,
    ) -> Result<EncodedFine, NotReusable> {
        if document.size > in_proportion(layer.size, DIVIDED_SPAN_SIZE) {
            return Err(NotReusable::Other);
        }
        let what = || format!("fine document {} of {} bytes", document.document, document.size);
        let charged = store.budget().charge(document.size.saturating_mul(COST), what);
        let mut memory = charged.map_err(|error| wrong(&error))?;
        let bytes = store
            .blob_bytes(&document.blob(), document.size)
            .await
            .map_err(|error| wrong(&error))?;
        let head = usize::try_from(document.head_size).unwrap_or(usize::MAX).min(bytes.len());
        let fetched = FetchedDocument { reference: document.clone(), bytes: bytes.slice(..head) };
        let opened = fit_document(layer, &fetched, &mut memory);
        let (spans, _) = opened.map_err(|error| wrong(&error))?;
        let probed =
            probe_document(self.supply.source, layer, (&spans, bytes.clone()), PROBES, self.seed)
                .await;
        let probed = probed.map_err(|error| wrong(&error))?;
        *read += probed.bytes_read;
        match probed.differences.first() {
            Some(difference) => return Err(NotReusable::Wrong(difference.text.clone())),
            // All of the chosen spans are too large to be read at once.
            None if probed.compared.spans == 0 => return Err(NotReusable::Other),
            None => {}
        }
        drop(spans);
        let is_plain = LayerKind::of(&layer.media_type) == LayerKind::Uncompressed;
        let encode = move || encoded(&bytes, is_plain, memory);
        spawn_blocking(encode).await.map_err(|_| NotReusable::Other)?
    }
}

/// The document as indexing would encode it, without a recorded start. `is_plain` is what the
/// layer's media type says.
///
/// # Errors
/// If indexing would not make it.
fn encoded(bytes: &Bytes, is_plain: bool, mut memory: Charge) -> Result<EncodedFine, NotReusable> {
    let layer = fine::decode(bytes, &mut memory)
        .and_then(FineLayer::undivided)
        .map_err(|error| wrong(&error))?;
    if !is_as_built(&layer) || (is_plain && layer.spans().codec() != Codec::Plain) {
        return Err(NotReusable::Wrong("ociseek would build it differently".to_owned()));
    }
    layer.encode(&[]).map_err(|error| wrong(&error))
}

/// Checks properties that readers do not require but all our documents have.
fn is_as_built(layer: &FineLayer) -> bool {
    let spans = layer.spans();
    let is_far = |pair: &[fine::FineStart]| pair[1].output - pair[0].output > SPAN_SIZE;
    spans.span_size() == SPAN_SIZE
        && (spans.codec() == Codec::Plain || spans.starts().windows(2).all(is_far))
        && layer.entries().iter().all(|file| file.pax.is_sorted_by(|one, next| one.key < next.key))
}

fn wrong(error: &dyn std::error::Error) -> NotReusable {
    NotReusable::Wrong(causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_documents_of_a_layer_contradict_each_other() {
        let index = |tool: &str, layer: &[u8], document: &[u8], start: u64| FineIndex {
            layers: vec![FineRef {
                document: Digest::sha256(document),
                size: 100,
                layer: Digest::sha256(layer),
                head_size: 10,
                head_digest: Digest::sha256(b"head"),
                start_size: 10 + start,
            }],
            subject: None,
            build_tool: Some(tool.to_owned()),
            profile: None,
        };
        let one = index("x", b"layer", b"one", 0);
        for (other, disputed) in [
            (index("x", b"layer", b"one", 0), false),
            (index("x", b"layer", b"two", 0), true),
            (index("y", b"layer", b"two", 0), false),
            (index("x", b"layer", b"two", 5), false),
            (index("x", b"other", b"two", 0), false),
            (
                FineIndex {
                    profile: Some(Digest::sha256(b"reads")),
                    ..index("x", b"layer", b"two", 0)
                },
                false,
            ),
        ] {
            assert_eq!(is_disputed([&one, &other].into_iter(), "x"), disputed, "{other:?}");
        }
    }
}
