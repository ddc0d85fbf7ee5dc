//! Decides what to do for an image and for each platform's manifest, before any layer is read.

use std::collections::BTreeSet;

use super::assemble::left_out_reason;
use super::existing::{
    AttachedIndex, CandidateLayer, Decision, DestinationContent, DestinationIndex, RequestedIndex,
    check_of, decide,
};
use super::existing_manifest::{candidates, decide_examined, find};
use super::fine::FinePlan;
use super::model::{ExistingCheck, LeftOutReason};
use super::options::{Gate, Work};
use super::parts::lacks_ztoc;
use super::prefetch::{OldList, old_lists};
use super::supply::{BlobKey, ListedZtocs, OwnImage, Supply, WantedParts};
use super::{IndexError, build};
use crate::discover::{UnusableIndexError, parse_index};
use crate::opened::open_ztoc;
use crate::resolve::PlatformManifest;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::{CONFIG, INDEX_V1, PREFETCH, Version, ZtocRef};
use ociseek_format::layer::Outcome;
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_store::{Destination, Source};

/// The plan for an image.
pub(super) struct Plans {
    /// The plans for each platform's manifest, in the order of the image index.
    pub each: Vec<IndexPlan>,
    /// For each plan, the layers that it is the first to need.
    first: Vec<BTreeSet<BlobKey>>,
    wanted: build::LayersToBuild,
}

impl Plans {
    pub(super) async fn make(
        manifests: Vec<PlatformManifest>,
        destination: Option<&Destination>,
        work: Work<'_>,
    ) -> Result<Plans, IndexError> {
        let mut plans =
            Plans { each: Vec::new(), first: Vec::new(), wanted: build::LayersToBuild::default() };
        for manifest in manifests {
            let plan = IndexPlan::make(manifest, destination, work).await?;
            let ztocs = plan.to_build().filter(|layer| plans.wanted.add(layer, WantedParts::ZTOC));
            let mut first: BTreeSet<BlobKey> =
                ztocs.map(|layer| (layer.digest, layer.size)).collect();
            let documents = plan.fine.iter().flat_map(FinePlan::to_build);
            let documents =
                documents.filter(|layer| plans.wanted.add(layer, WantedParts::DOCUMENT));
            first.extend(documents.map(|layer| (layer.digest, layer.size)));
            plans.first.push(first);
            plans.each.push(plan);
        }
        Ok(plans)
    }

    /// The layers of all platforms, without duplicates.
    pub(super) fn wanted(&mut self) -> build::LayersToBuild {
        std::mem::take(&mut self.wanted)
    }

    /// The sources of ztocs. `artifacts` are the entries of the image's index that are not images.
    pub(super) fn supply<'a>(
        &'a self,
        artifacts: &'a [Descriptor],
        source: &'a Source,
        destination: Option<&Destination>,
        work: Work<'a>,
    ) -> Supply<'a> {
        let offers = destination
            .into_iter()
            .flat_map(|store| self.each.iter().flat_map(|plan| plan.listed(store)));
        let manifests = self.each.iter().map(|plan| &plan.manifest).collect();
        let own = OwnImage { manifests, artifacts };
        Supply { source, work, known: offers.collect(), own }
    }

    /// Reports which of the `unread` layers are read for which platform.
    pub(super) fn announce(&self, unread: &[Descriptor], progress: &dyn Progress) {
        for (plan, first) in self.each.iter().zip(&self.first) {
            let reads = unread.iter().filter(|layer| first.contains(&(layer.digest, layer.size)));
            let (layers, bytes) =
                reads.fold((0, 0), |(count, bytes), layer| (count + 1, bytes + layer.size));
            let platform =
                plan.manifest.platform.as_ref().map_or_else(String::new, ToString::to_string);
            progress.report(ProgressEvent::Image {
                manifest: plan.manifest.descriptor.digest,
                platform,
                layers,
                bytes,
            });
        }
    }
}

pub(super) struct IndexPlan {
    pub manifest: PlatformManifest,
    /// For each layer of the manifest: why it will not be in the index, if that is known without
    /// reading it.
    pub left_out: Vec<Option<LeftOutReason>>,
    /// The manifests that the destination lists as SOCI indexes (version 1), in its order.
    pub(super) existing: Vec<DestinationIndex>,
    pub(super) decision: Decision,
    /// What is known about the content of the index that `decision` leaves as it is.
    pub(super) check: ExistingCheck,
    /// The layers whose ztocs in that index do not open. Only known if there is a gate.
    pub(super) unopened: BTreeSet<Digest>,
    /// The plan for the fine index, if one is requested.
    pub(super) fine: Option<FinePlan>,
}

impl IndexPlan {
    pub(super) async fn make(
        manifest: PlatformManifest,
        destination: Option<&Destination>,
        work: Work<'_>,
    ) -> Result<IndexPlan, IndexError> {
        let options = work.options;
        let left_out: Vec<_> =
            manifest.layers.iter().map(|layer| left_out_reason(layer, options)).collect();
        let mut plan = IndexPlan {
            manifest,
            left_out,
            existing: Vec::new(),
            decision: Decision::NotRequested,
            check: ExistingCheck::Listed,
            unopened: BTreeSet::new(),
            fine: None,
        };
        if options.kinds.has_soci() {
            plan.existing = find(destination, &plan.manifest.descriptor.digest).await?;
            plan.decide(destination, work).await?;
        }
        if options.kinds.has_fine() {
            let subject = &plan.manifest.descriptor;
            plan.fine =
                Some(FinePlan::make(subject, &plan.manifest.layers, destination, work).await?);
        }
        Ok(plan)
    }

    /// Examines the existing indexes again before anything is attached. Another run may have had
    /// more time, and an incomplete index must not be attached next to a complete one.
    pub(super) async fn renew(
        &mut self,
        destination: Option<&Destination>,
        work: Work<'_>,
    ) -> Result<(), IndexError> {
        if matches!(self.decision, Decision::Build { .. }) {
            self.existing = find(destination, &self.manifest.descriptor.digest).await?;
            self.decide(destination, work).await?;
        }
        if let Some(fine) = &mut self.fine {
            fine.renew(&self.manifest.descriptor, destination, work).await?;
        }
        Ok(())
    }

    /// The layers that must be indexed. Empty if there is nothing to build.
    pub(super) fn to_build(&self) -> impl Iterator<Item = &Descriptor> {
        let build = matches!(self.decision, Decision::Build { .. });
        self.servable().filter(move |_| build)
    }

    /// What the existing indexes list.
    pub(super) fn listed(&self, destination: &Destination) -> impl Iterator<Item = ListedZtocs> {
        let store = destination.as_source();
        self.existing.iter().filter_map(|index| index.content.as_ref().ok()).map(move |content| {
            ListedZtocs {
                store: store.clone(),
                tool: content.tool.clone(),
                ztocs: content.ztocs.clone(),
            }
        })
    }

    /// The prefetch lists of the first replaced index that has any.
    pub(super) fn old_lists(&self, destination: Option<&Destination>) -> Vec<OldList> {
        let (Decision::Build { replaces }, Some(destination)) = (&self.decision, destination)
        else {
            return Vec::new();
        };
        let store = destination.as_source();
        let replaced =
            self.existing.iter().filter(|index| replaces.contains(&index.descriptor.digest));
        let lists = replaced.filter_map(|index| index.content.as_ref().ok());
        lists
            .map(|old| old_lists(&store, &old.ztocs, &old.others))
            .find(|lists| !lists.is_empty())
            .unwrap_or_default()
    }

    fn servable(&self) -> impl Iterator<Item = &Descriptor> + Clone {
        self.manifest
            .layers
            .iter()
            .zip(&self.left_out)
            .filter(|(_, left_out)| left_out.is_none())
            .map(|(layer, _)| layer)
    }

    async fn decide(
        &mut self,
        destination: Option<&Destination>,
        work: Work<'_>,
    ) -> Result<(), IndexError> {
        let options = work.options;
        let candidates = candidates(&self.existing, self.servable(), work).await;
        let decided = |layers: &[CandidateLayer]| {
            let tool = &options.layer.build_tool_identifier;
            let span_size = options.layer.span_size;
            let prefetch = options.prefetch.is_some();
            decide(
                &self.existing,
                &RequestedIndex { rule: options.existing, tool, span_size, prefetch, layers },
            )
        };
        self.decision = decide_examined(&self.existing, &candidates, destination, decided).await?;
        let (Decision::Done(place) | Decision::Keep(place), Some(store)) =
            (&self.decision, destination)
        else {
            return Ok(());
        };
        let Some(content) = self.existing.get(*place).and_then(|stays| stays.content.as_ref().ok())
        else {
            return Ok(());
        };
        self.check =
            check_of(content.ztocs.iter().map(|ztoc| (ztoc.layer, ztoc.ztoc)), &candidates);
        if options.gate != Gate::default() && self.check == ExistingCheck::Listed {
            self.unopened = unopened(store, &self.manifest.layers, &content.ztocs).await?;
            if let (Decision::Done(place), false) = (&self.decision, self.unopened.is_empty()) {
                self.decision =
                    Decision::Build { replaces: vec![self.existing[*place].descriptor.digest] };
            }
        }
        Ok(())
    }
}

/// The layers whose ztocs in an index do not open.
async fn unopened(
    destination: &Destination,
    layers: &[Descriptor],
    ztocs: &[ZtocRef],
) -> Result<BTreeSet<Digest>, IndexError> {
    let store = destination.as_source();
    let mut unopened = BTreeSet::new();
    for ztoc in ztocs {
        let Some(layer) = layers.iter().find(|layer| layer.digest == ztoc.layer) else { continue };
        let opened = open_ztoc(&store, layer, ztoc).await;
        let opened = opened.map_err(|source| IndexError::Document {
            what: "ztoc",
            digest: ztoc.ztoc,
            source,
        })?;
        if opened.is_err() {
            unopened.insert(ztoc.layer);
        }
    }
    Ok(unopened)
}

impl AttachedIndex for DestinationContent {
    const ARTIFACT_TYPE: &str = INDEX_V1;
    const IS_TYPE_OF_CONFIG: bool = true;

    fn parse(manifest: &[u8], subject: &Digest) -> Result<DestinationContent, UnusableIndexError> {
        let index = parse_index(manifest, Some(Version::V1), subject)?;
        let usual =
            index.canonical && index.others.iter().all(|other| other.media_type == PREFETCH);
        Ok(DestinationContent {
            tool: index.build_tool_identifier,
            ztocs: index.ztocs,
            others: index.others,
            usual,
        })
    }

    fn lacks(layer: &Descriptor, outcome: &Outcome) -> bool {
        lacks_ztoc(layer, outcome)
    }

    fn blobs(&self) -> impl Iterator<Item = Descriptor> {
        let ztocs = self.ztocs.iter().map(ZtocRef::blob);
        ztocs.chain(self.others.iter().cloned()).chain([Descriptor::of(INDEX_V1, CONFIG)])
    }

    fn covered(&self) -> impl Iterator<Item = Digest> {
        self.ztocs.iter().map(|ztoc| ztoc.layer)
    }

    fn tool(&self) -> Option<&str> {
        self.tool.as_deref()
    }
}
