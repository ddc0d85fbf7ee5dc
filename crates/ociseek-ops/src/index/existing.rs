//! Decides what to do about existing SOCI indexes. Does no I/O.
//!
//! A consumer takes the first v1 index that the registry lists (soci-snapshotter,
//! fs/artifact_fetcher.go). So a second index next to ours deserves a warning, and an outdated one
//! of ours must be replaced.

use std::collections::BTreeSet;

use super::model::{
    ExistingCheck, ExistingManifest, LayerOutcome, LayerReport, LeftOutReason, ManifestResult,
    OtherIndex,
};
use super::options::Existing;
use super::supply::Layers;
use crate::discover::UnusableIndexError;
use crate::maker;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::layer::Outcome;
use ociseek_format::offset::SpanSize;
use ociseek_format::progress::causes;

/// A manifest that the destination lists as a SOCI index (version 1) of the image.
pub(super) type DestinationIndex = ExistingManifest<DestinationContent>;

/// The content of an index.
#[derive(Debug, Clone)]
pub(super) struct DestinationContent {
    pub tool: Option<String>,
    pub ztocs: Vec<ZtocRef>,
    /// The entries in addition to ztocs; only prefetch artifacts if the index is `usual`.
    pub others: Vec<Descriptor>,
    /// Whether it looks like our indexes: consumers ignore an index whose JSON differs from Go's,
    /// and we add no other entries.
    pub usual: bool,
}

/// A kind of index that is attached to an image, and what such an index says.
pub(super) trait AttachedIndex: Sized {
    /// Destinations list such indexes by it.
    const ARTIFACT_TYPE: &str;
    /// Whether the config has this type, too.
    const IS_TYPE_OF_CONFIG: bool;

    /// Parses the manifest of an index of the image manifest `subject`.
    ///
    /// # Errors
    /// If it is something else.
    fn parse(manifest: &[u8], subject: &Digest) -> Result<Self, UnusableIndexError>;

    /// Whether indexes of this kind do not cover a layer with this outcome.
    fn lacks(layer: &Descriptor, outcome: &Outcome) -> bool;

    /// The blobs that its manifest names.
    fn blobs(&self) -> impl Iterator<Item = Descriptor>;

    /// The layers that it covers.
    fn covered(&self) -> impl Iterator<Item = Digest>;

    /// The tool that built it, if it names one.
    fn tool(&self) -> Option<&str>;
}

impl<C: AttachedIndex> ExistingManifest<C> {
    pub(super) fn covered(&self) -> BTreeSet<Digest> {
        self.content.iter().flat_map(|content| content.covered()).collect()
    }

    pub(super) fn tool(&self) -> Option<&str> {
        self.content.as_ref().ok()?.tool()
    }

    pub(super) fn already_there(&self, built: bool, check: ExistingCheck) -> ManifestResult {
        ManifestResult::AlreadyThere { index: self.descriptor.clone(), built, check }
    }

    pub(super) fn kept(&self) -> ManifestResult {
        ManifestResult::Kept {
            index: self.descriptor.clone(),
            tool: self.tool().map(str::to_owned),
        }
    }

    /// Its facts for the decision. `is_same` says whether exactly this index would be built.
    pub(super) fn facts(&self, is_same: bool) -> ExistingIndex<'_> {
        ExistingIndex {
            digest: self.descriptor.digest,
            usable: self.content.is_ok(),
            tool: self.tool(),
            is_same,
        }
    }
}

/// A layer that an index with the current options would cover, unless its content prevents it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CandidateLayer {
    pub layer: Digest,
    /// Whether it is known that consumers could not be served from its ztoc.
    pub unservable: bool,
    /// The ztoc or fine document that this machine once built from the layer with these options.
    pub built: Option<Digest>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The index at this position equals the one that would be built, if its blobs all exist.
    Done(usize),
    /// The index at this position is kept, and nothing is built.
    Keep(usize),
    /// Build an index that replaces these, unless it is the same.
    Build { replaces: Vec<Digest> },
    /// No index of this kind was requested.
    NotRequested,
}

/// The options that determine the content of an index.
pub(super) struct RequestedIndex<'a> {
    pub rule: Existing,
    pub tool: &'a str,
    pub span_size: SpanSize,
    /// Whether it should have a prefetch list, which is only known after building.
    pub prefetch: bool,
    pub layers: &'a [CandidateLayer],
}

/// An existing index, reduced to the facts that do not depend on its kind.
pub(super) struct ExistingIndex<'a> {
    pub digest: Digest,
    /// Whether it was read, and is an index of the image.
    pub usable: bool,
    pub tool: Option<&'a str>,
    /// Whether the same tool with the same options would build exactly this index.
    pub is_same: bool,
}

pub(super) fn decide(existing: &[DestinationIndex], requested: &RequestedIndex) -> Decision {
    let seen: Vec<_> = existing.iter().map(|f| f.facts(f.matches(requested))).collect();
    decide_seen(&seen, requested.rule, requested.tool)
}

/// Decides what to do about indexes of one kind. `own_name` is the tool name that is used for
/// building.
pub(super) fn decide_seen(existing: &[ExistingIndex], rule: Existing, own_name: &str) -> Decision {
    match rule {
        Existing::Keep => match existing.iter().position(|f| f.usable) {
            Some(first) => Decision::Keep(first),
            None => Decision::Build { replaces: Vec::new() },
        },
        Existing::Replace => Decision::Build {
            replaces: existing.iter().filter(|f| f.usable).map(|f| f.digest).collect(),
        },
        Existing::Skip => {
            let ours = |f: &&ExistingIndex| f.tool.is_some_and(|tool| is_ours(tool, own_name));
            match existing.iter().position(|f| f.is_same) {
                // An outdated index of ours next to it may be listed first, or one that lists
                // another ztoc of some layer: then one of the two is wrong. Building fixes that.
                Some(done) if existing.iter().filter(ours).count() == 1 => Decision::Done(done),
                _ => replaced(existing, own_name),
            }
        }
    }
}

/// The decision to build an index that replaces all of ours.
pub(super) fn replaced(existing: &[ExistingIndex], own_name: &str) -> Decision {
    let ours = existing.iter().filter(|f| f.tool.is_some_and(|tool| is_ours(tool, own_name)));
    Decision::Build { replaces: ours.map(|f| f.digest).collect() }
}

/// Which of `replaces` an index that covers only `layers` may replace, when time ran out before the
/// others were done. An index that covers more is more useful, and stays until the complete one
/// exists.
pub(super) fn outdone<C: AttachedIndex>(
    existing: &[ExistingManifest<C>],
    replaces: &[Digest],
    layers: &BTreeSet<Digest>,
) -> Vec<Digest> {
    let covers_more = |digest: &Digest| {
        existing.iter().any(|f| f.descriptor.digest == *digest && !f.covered().is_subset(layers))
    };
    replaces.iter().copied().filter(|digest| !covers_more(digest)).collect()
}

/// Which of `replaces` may go although some ztocs of the new index were only sampled: an index goes
/// if each of its ztocs is the new one, or the one that the new one was taken from, or if this
/// program read the layer.
pub(super) fn disproved(
    existing: &[DestinationIndex],
    replaces: &[Digest],
    layers: &Layers,
) -> Vec<Digest> {
    let stays = |digest: &Digest| {
        let old = existing.iter().find(|f| f.descriptor.digest == *digest);
        let mut ztocs =
            old.iter().flat_map(|old| old.content.iter().flat_map(|content| &content.ztocs));
        ztocs.any(|ztoc| layers.only_sampled_against(ztoc))
    };
    replaces.iter().copied().filter(|digest| !stays(digest)).collect()
}

/// The position of an index with the same options that covers all of `layers`.
pub(super) fn outdoes(
    existing: &[DestinationIndex],
    tool: &str,
    span_size: SpanSize,
    layers: &BTreeSet<Digest>,
) -> Option<usize> {
    existing.iter().position(|f| {
        let same = |content: &DestinationContent| {
            content.usual
                && content.tool.as_deref() == Some(tool)
                && content.ztocs.iter().all(|ztoc| ztoc.span_size == span_size)
        };
        f.content.as_ref().is_ok_and(same) && layers.is_subset(&f.covered())
    })
}

/// The indexes that remain next to `index` when `replaced` are gone.
pub(super) fn others(
    existing: &[DestinationIndex],
    index: &Digest,
    replaced: &[Digest],
) -> Vec<OtherIndex> {
    // A new index may be listed anywhere. It is only known to be first if it is already listed.
    let ours = existing.iter().position(|f| f.descriptor.digest == *index);
    (existing.iter().enumerate())
        .filter(|(_, f)| f.descriptor.digest != *index && !replaced.contains(&f.descriptor.digest))
        .map(|(place, f)| OtherIndex {
            digest: f.descriptor.digest,
            tool: f.tool().map(str::to_owned),
            listed_first: ours.is_none_or(|ours| place < ours),
            unusable: f.content.as_ref().err().map(|why| causes(why)),
        })
        .collect()
}

impl DestinationIndex {
    /// The image's layers according to this index. Why a layer is missing is only known if an index
    /// with the current options would lack it too.
    pub(super) fn layers<'a>(
        &self,
        layers: impl Iterator<Item = (&'a Descriptor, &'a Option<LeftOutReason>)>,
    ) -> Vec<LayerReport> {
        let ztocs = self.content.as_ref().map_or(&[][..], |content| &content.ztocs);
        let outcome = |layer: &Descriptor, left_out: &Option<LeftOutReason>| match (
            ztocs.iter().find(|ztoc| ztoc.layer == layer.digest),
            left_out,
        ) {
            (Some(ztoc), _) => LayerOutcome::Listed { ztoc: ztoc.ztoc, size: ztoc.size },
            (None, Some(left_out)) => LayerOutcome::LeftOut(left_out.clone()),
            (None, None) => LayerOutcome::LeftOut(LeftOutReason::NotListed),
        };
        layers
            .map(|(layer, left_out)| LayerReport {
                descriptor: layer.clone(),
                outcome: outcome(layer, left_out),
            })
            .collect()
    }

    /// Whether the same tool with the same options would build exactly this index.
    fn matches(&self, requested: &RequestedIndex) -> bool {
        let Ok(content) = &self.content else { return false };
        if content.tool.as_deref() != Some(requested.tool) || !content.usual || requested.prefetch {
            return false;
        }
        let indexed: BTreeSet<Digest> = content.ztocs.iter().map(|z| z.layer).collect();
        let wanted: BTreeSet<Digest> = requested.layers.iter().map(|w| w.layer).collect();
        if content.ztocs.iter().any(|z| z.span_size != requested.span_size)
            || !indexed.is_subset(&wanted)
        {
            return false;
        }
        let is_built = |z: &ZtocRef| match requested.layers.iter().find(|w| w.layer == z.layer) {
            Some(CandidateLayer { built: Some(built), .. }) => *built == z.ztoc,
            _ => true,
        };
        if !content.ztocs.iter().all(is_built) {
            return false;
        }
        // An index does not state why it lacks a layer. The layer may have been too small, its
        // content may prevent a ztoc, or time ran out. Only the second reason would apply again.
        !indexed.is_empty()
            && requested.layers.iter().all(|w| indexed.contains(&w.layer) || w.unservable)
    }
}

/// Whether this version of this program or an earlier one made it, or it has the requested name.
/// Anyone can write a later version into an index, so such an index counts as another tool's.
fn is_ours(tool: &str, own_name: &str) -> bool {
    tool == own_name || maker::is_known(tool)
}

/// What is known about the content of an existing index that lists `listed` for its layers.
pub(super) fn check_of(
    listed: impl Iterator<Item = (Digest, Digest)>,
    layers: &[CandidateLayer],
) -> ExistingCheck {
    let mut listed = listed.peekable();
    let is_empty = listed.peek().is_none();
    let is_built = |(layer, blob): (Digest, Digest)| {
        layers.iter().any(|l| l.layer == layer && l.built == Some(blob))
    };
    if !is_empty && listed.all(is_built) { ExistingCheck::Cached } else { ExistingCheck::Listed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::UnusableIndexError;

    const TOOL: &str = crate::TOOL_IDENTIFIER;
    const SPANS: SpanSize = SpanSize::DEFAULT;
    const OTHER_SPANS: SpanSize = SpanSize::mib::<8>();

    fn layer(n: u8) -> Digest {
        Digest::sha256(&[n])
    }

    fn index(n: u8, tool: Option<&str>, span_size: SpanSize, layers: &[u8]) -> DestinationIndex {
        let ztocs = (layers.iter())
            .map(|&l| ZtocRef {
                ztoc: Digest::sha256(&[l, 9]),
                size: 2,
                layer: layer(l),
                layer_media_type: String::new(),
                span_size,
            })
            .collect();
        DestinationIndex {
            descriptor: Descriptor::of("application/vnd.oci.image.manifest.v1+json", &[n, 0, 0]),
            content: Ok(DestinationContent {
                tool: tool.map(str::to_owned),
                ztocs,
                others: Vec::new(),
                usual: true,
            }),
        }
    }

    fn unusual(mut index: DestinationIndex) -> DestinationIndex {
        index.content.iter_mut().for_each(|content| content.usual = false);
        index
    }

    fn wanted(layers: &[(u8, bool)]) -> Vec<CandidateLayer> {
        layers
            .iter()
            .map(|&(l, unservable)| CandidateLayer { layer: layer(l), unservable, built: None })
            .collect()
    }

    fn decided(rule: Existing, existing: &[DestinationIndex], layers: &[(u8, bool)]) -> Decision {
        decide(
            existing,
            &RequestedIndex {
                rule,
                tool: TOOL,
                span_size: SPANS,
                prefetch: false,
                layers: &wanted(layers),
            },
        )
    }

    fn replaces(existing: &[&DestinationIndex]) -> Decision {
        Decision::Build { replaces: existing.iter().map(|f| f.descriptor.digest).collect() }
    }

    #[test]
    fn without_an_index_one_is_built() {
        for rule in [Existing::Skip, Existing::Replace, Existing::Keep] {
            assert_eq!(decided(rule, &[], &[(1, false)]), replaces(&[]));
        }
    }

    #[test]
    fn an_identical_index_is_left_alone() {
        let same = index(1, Some(TOOL), SPANS, &[1, 2]);
        assert_eq!(decided(Existing::Skip, &[same], &[(1, false), (2, false)]), Decision::Done(0));
    }

    #[test]
    fn our_index_with_other_options_or_of_an_older_version_is_replaced() {
        for old in [
            index(1, Some(TOOL), OTHER_SPANS, &[1]),
            index(1, Some("ociseek v0.0.9"), SPANS, &[1]),
            index(1, Some(TOOL), SPANS, &[1, 7]),
            index(1, Some(TOOL), SPANS, &[]),
            unusual(index(1, Some(TOOL), SPANS, &[1])),
        ] {
            assert_eq!(
                decided(Existing::Skip, std::slice::from_ref(&old), &[(1, false)]),
                replaces(&[&old])
            );
        }
    }

    #[test]
    fn a_version_that_does_not_exist_yet_counts_as_another_tool() {
        for unknown in ["ociseek v999.0.0", "ociseek vNext"] {
            let later = index(1, Some(unknown), SPANS, &[1]);
            let existing = std::slice::from_ref(&later);
            assert_eq!(
                decided(Existing::Skip, existing, &[(1, false)]),
                replaces(&[]),
                "{unknown}"
            );
            assert_eq!(
                decided(Existing::Replace, existing, &[(1, false)]),
                replaces(&[&later]),
                "{unknown}"
            );
            let existing = [later, index(2, Some(TOOL), SPANS, &[1])];
            assert_eq!(
                decided(Existing::Skip, &existing, &[(1, false)]),
                Decision::Done(1),
                "{unknown}"
            );
        }
    }

    #[test]
    fn an_index_that_contradicts_the_cache_or_another_one_is_built_again() {
        let listed = Digest::sha256(&[1, 9]);
        let candidate = |built| [CandidateLayer { layer: layer(1), unservable: false, built }];
        let same = index(1, Some(TOOL), SPANS, &[1]);
        let decided = |existing: &[DestinationIndex], layers: &[CandidateLayer]| {
            let rule = Existing::Skip;
            let tool = TOOL;
            decide(
                existing,
                &RequestedIndex { rule, tool, span_size: SPANS, prefetch: false, layers },
            )
        };
        let existing = std::slice::from_ref(&same);
        for known in [None, Some(listed)] {
            assert_eq!(decided(existing, &candidate(known)), Decision::Done(0));
        }
        assert_eq!(decided(existing, &candidate(Some(layer(7)))), replaces(&[&same]));
        let mut other = index(2, Some(TOOL), SPANS, &[1]);
        other.content.iter_mut().for_each(|content| content.ztocs[0].ztoc = layer(7));
        for existing in [[&same, &other], [&other, &same]] {
            let replaced = replaces(&existing);
            let existing = existing.map(|f| ExistingManifest {
                descriptor: f.descriptor.clone(),
                content: Ok(f.content.as_ref().unwrap().clone()),
            });
            assert_eq!(decided(&existing, &candidate(None)), replaced);
        }

        let listed_of = |blob: Digest| [(layer(1), blob)].into_iter();
        assert_eq!(check_of(listed_of(listed), &candidate(Some(listed))), ExistingCheck::Cached);
        for unknown in [None, Some(layer(7))] {
            assert_eq!(check_of(listed_of(listed), &candidate(unknown)), ExistingCheck::Listed);
        }
        assert_eq!(check_of(std::iter::empty(), &candidate(None)), ExistingCheck::Listed);
    }

    #[test]
    fn an_index_by_another_tool_stays_unless_all_are_replaced() {
        let soci = index(1, Some("AWS SOCI CLI v0.2"), SPANS, &[1]);
        let existing = std::slice::from_ref(&soci);
        assert_eq!(decided(Existing::Skip, existing, &[(1, false)]), replaces(&[]));
        assert_eq!(decided(Existing::Replace, existing, &[(1, false)]), replaces(&[&soci]));
        assert_eq!(decided(Existing::Keep, existing, &[(1, false)]), Decision::Keep(0));

        let existing = [soci, index(3, Some(TOOL), SPANS, &[1])];
        assert_eq!(decided(Existing::Skip, &existing, &[(1, false)]), Decision::Done(1));
        let others = others(&existing, &existing[1].descriptor.digest, &[]);
        assert_eq!(others.len(), 1);
        assert!(others[0].listed_first);
        assert_eq!(others[0].tool.as_deref(), Some("AWS SOCI CLI v0.2"));
    }

    #[test]
    fn manifests_that_do_not_index_the_image_are_never_replaced_or_kept() {
        let stranger =
            |n, why| DestinationIndex { content: Err(why), ..index(n, None, SPANS, &[]) };
        let image = stranger(1, UnusableIndexError::Subject(layer(1)));
        let unread = stranger(2, UnusableIndexError::Unread(32));
        let soci = index(3, Some("AWS SOCI CLI v0.2"), SPANS, &[1]);
        let existing = [image, unread, soci];
        assert_eq!(decided(Existing::Replace, &existing, &[(1, false)]), replaces(&[&existing[2]]));
        assert_eq!(decided(Existing::Keep, &existing, &[(1, false)]), Decision::Keep(2));
        assert_eq!(decided(Existing::Keep, &existing[..2], &[(1, false)]), replaces(&[]));
        assert_eq!(decided(Existing::Skip, &existing, &[(1, false)]), replaces(&[]));
        let others = others(&existing, &layer(9), &[existing[2].descriptor.digest]);
        let why: Vec<_> = others.iter().filter_map(|other| other.unusable.as_deref()).collect();
        assert_eq!(why.len(), 2);
        assert!(why[1].contains("was not read"), "{why:?}");
    }

    #[test]
    fn our_outdated_index_beside_the_current_one_is_removed() {
        let old = index(1, Some("ociseek v0.0.1"), SPANS, &[1]);
        let same = index(2, Some(TOOL), SPANS, &[1]);
        let existing = [old, same];
        assert_eq!(
            decided(Existing::Skip, &existing, &[(1, false)]),
            replaces(&[&existing[0], &existing[1]])
        );
    }

    #[test]
    fn an_index_may_lack_only_unservable_layers() {
        let partly = [index(1, Some(TOOL), SPANS, &[1])];
        // It may have been left out for its size, or because time ran out.
        assert_eq!(
            decided(Existing::Skip, &partly, &[(1, false), (2, false)]),
            replaces(&[&partly[0]])
        );
        // The reason is known.
        assert_eq!(decided(Existing::Skip, &partly, &[(1, false), (2, true)]), Decision::Done(0));
    }

    #[test]
    fn an_index_with_fewer_layers_does_not_replace_one_with_more() {
        let [few, more] = [
            index(1, Some(TOOL), SPANS, &[1]),
            index(2, Some("ociseek v0.0.1"), SPANS, &[1, 2, 3]),
        ];
        let existing = [few, more];
        let all: Vec<Digest> = existing.iter().map(|f| f.descriptor.digest).collect();
        let layers = |layers: &[u8]| layers.iter().map(|&l| layer(l)).collect::<BTreeSet<_>>();
        assert_eq!(outdone(&existing, &all, &layers(&[1, 2])), [all[0]]);
        assert_eq!(outdone(&existing, &all, &layers(&[1, 2, 3])), all);
        assert_eq!(outdone(&existing, &all[..1], &layers(&[2])), []);

        assert_eq!(outdoes(&existing, TOOL, SPANS, &layers(&[1])), Some(0));
        assert_eq!(outdoes(&existing, TOOL, SPANS, &layers(&[1, 2])), None);
        assert_eq!(outdoes(&existing, TOOL, OTHER_SPANS, &layers(&[1])), None);
        let [few, _] = existing;
        assert_eq!(outdoes(&[unusual(few)], TOOL, SPANS, &layers(&[1])), None);
    }
}
