//! The fine index of one platform: examines the existing ones and decides what to do. Its documents
//! come from the same reading of the layers as the ztocs.
//!
//! A fine index is complete if it has a document for each layer that can have one, and was built
//! under the same tool name with the same list of files that a start reads. Its manifest states all
//! of that, so nothing else is read to check it.

use std::collections::{BTreeMap, BTreeSet};

use super::IndexError;
use super::existing::{AttachedIndex, CandidateLayer, Decision, check_of, decide_seen, replaced};
use super::existing_manifest::{candidates, decide_examined, find};
use super::model::{ExistingCheck, ExistingManifest};
use super::options::{Existing, Work};
use super::parts::{lacks_document, may_have_document};
use super::supply::cached_document;
use crate::discover::{UnusableIndexError, parse_fine, preferred};
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::{EMPTY_CONFIG, FINE_INDEX, FineIndex, FineRef};
use ociseek_format::image::soci::CONFIG;
use ociseek_format::layer::Outcome;
use ociseek_store::Destination;

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
    pub existing: Vec<FoundFine>,
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
        let existing = find(destination, &subject.digest).await?;
        let layers = layers.to_vec();
        let decision = Decision::Build { replaces: Vec::new() };
        let mut plan =
            FinePlan { wanted, layers, existing, decision, check: ExistingCheck::Listed };
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
            self.existing = find(destination, &subject.digest).await?;
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

    async fn decide(
        &mut self,
        destination: Option<&Destination>,
        work: Work<'_>,
    ) -> Result<(), IndexError> {
        let options = work.options;
        let mut candidates = candidates(&self.existing, self.wanted.iter(), work).await;
        for (candidate, layer) in candidates.iter_mut().zip(&self.wanted) {
            let is_needed = options.existing == Existing::Skip
                && !self.existing.is_empty()
                && !candidate.unservable;
            let budget = destination
                .filter(|_| is_needed)
                .map(|destination| destination.as_source().budget().clone());
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
            preferred(self.existing.iter().map(|index| index.content.as_ref().ok()), &self.layers);
        let decided = |layers: &[CandidateLayer]| {
            let needed = layers.iter().filter(|layer| !layer.unservable).map(|layer| layer.layer);
            let needed: BTreeSet<Digest> = needed.collect();
            let seen = self.existing.iter().map(|index| {
                let covered = index.covered();
                let has_all =
                    covered.is_subset(&all) && needed.is_subset(&covered) && !covered.is_empty();
                let is_same =
                    has_all && index.is_alike(tool, profile.as_ref()) && !index.contradicts(layers);
                index.facts(is_same)
            });
            let seen: Vec<_> = seen.collect();
            let disputed = is_disputed(
                self.existing.iter().filter_map(|index| index.content.as_ref().ok()),
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
        self.decision = decide_examined(&self.existing, &candidates, destination, decided).await?;
        if let Decision::Done(place) | Decision::Keep(place) = self.decision {
            let listed = self.existing[place].content.iter().flat_map(|content| &content.layers);
            self.check =
                check_of(listed.map(|listed| (listed.layer, listed.document)), &candidates);
        }
        Ok(())
    }
}

/// Whether two fine indexes by this tool and with the same profile list different documents of a
/// layer, so that one of them is wrong. Documents with a recorded start do not count.
fn is_disputed<'a>(indexes: impl Iterator<Item = &'a FineIndex>, tool: &str) -> bool {
    let ours = indexes.filter(|index| index.build_tool.as_deref() == Some(tool));
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
