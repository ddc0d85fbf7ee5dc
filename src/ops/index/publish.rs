//! Publishes the index of one platform: after its layers are known, decides whether it is needed,
//! assembles it, and attaches it, blobs first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;

use super::assemble::{IndexedZtoc, assemble};
use super::error::IndexError;
use super::existing::{Decision, DestinationIndex, others, outdoes, outdone};
use super::existing_manifest::BlobCheck;
use super::model::{
    IndexedManifest, LayerOutcome, LayerReport, LeftOutReason, ManifestResult, OtherIndex, PrefetchSummary,
};
use super::options::{Existing, IndexOptions};
use super::plan::Plan;
use super::prefetch::{Artifact, OldList, prefetch_artifacts};
use super::supply::Layers;
use crate::budget::Budget;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::image::coverage::Coverage;
use crate::image::soci::{CONFIG, EncodedIndex, INDEX_V1, SociIndex, ZTOC};
use crate::layer::LayerOptions;
use crate::ops::verify::Damage;
use crate::progress::{Progress, ProgressEvent};
use crate::store::blob::AttachReport;
use crate::store::{Destination, Source, StoreError};

/// Attaches the indexes of an image's platforms, one after the other.
pub(super) struct Publisher<'a> {
    /// The store of the image.
    pub source: &'a Source,
    pub layers: &'a Layers,
    pub destination: Option<&'a Destination>,
    pub budget: &'a Budget,
    pub options: &'a IndexOptions,
    pub progress: &'a Arc<dyn Progress>,
    /// The layers that were already reported.
    pub seen: BTreeSet<Digest>,
    /// The bytes of layers that were read to divide their spans.
    pub bytes_read: AtomicU64,
}

/// The result for a platform's index.
struct PlatformResult {
    result: ManifestResult,
    /// The layers that the index of `result` covers.
    covered: BTreeSet<Digest>,
    others: Vec<OtherIndex>,
    /// Present if the index was built and has a list.
    prefetch: Option<PrefetchSummary>,
    bytes_written: u64,
}

impl PlatformResult {
    fn none(result: ManifestResult) -> PlatformResult {
        PlatformResult { result, covered: BTreeSet::new(), others: Vec::new(), prefetch: None, bytes_written: 0 }
    }

    /// An existing index is kept, and nothing was written.
    fn stays(
        found: &[DestinationIndex],
        place: usize,
        result: impl FnOnce(&DestinationIndex) -> ManifestResult,
    ) -> PlatformResult {
        let stays = &found[place];
        let others = others(found, &stays.descriptor.digest, &[]);
        PlatformResult { result: result(stays), covered: stays.covered(), others, prefetch: None, bytes_written: 0 }
    }
}

/// An assembled index that is not attached.
struct Assembled<'a> {
    ztocs: &'a [IndexedZtoc<'a>],
    covered: BTreeSet<Digest>,
    prefetch: Vec<Artifact>,
    /// The summary of `prefetch` for the report.
    prefetched: Option<PrefetchSummary>,
    manifest: Bytes,
    descriptor: Descriptor,
}

impl Publisher<'_> {
    /// Attaches the plan's index, if there is anything to attach. Also returns the number of bytes
    /// written.
    pub(super) async fn publish(&mut self, plan: Plan) -> Result<(IndexedManifest, u64), IndexError> {
        let Plan { manifest, left_out, found, decision, .. } = &plan;
        let listed = |place: usize| found[place].layers(manifest.layers.iter().zip(left_out));
        let (layers, outcome) = match decision {
            Decision::Done(place) => (listed(*place), PlatformResult::stays(found, *place, already_there(false))),
            Decision::Keep(place) => (listed(*place), PlatformResult::stays(found, *place, kept)),
            Decision::NotRequested => (Vec::new(), PlatformResult::none(ManifestResult::NotRequested)),
            Decision::Build { replaces } => {
                let (layers, ztocs) = assemble(manifest.layers.iter().zip(left_out), self.layers, &mut self.seen);
                let old = plan.old_lists(self.destination);
                let outcome = self.build(&manifest.descriptor, found, (replaces, &old), &layers, &ztocs).await?;
                (layers, outcome)
            }
        };
        let PlatformResult { result, covered, others, prefetch, mut bytes_written } = outcome;
        let coverage = Coverage::of(&manifest.layers, |layer| covered.contains(&layer.digest));
        let platform = manifest.platform.as_ref().map(ToString::to_string);
        let Plan { manifest, fine, .. } = plan;
        let fine = match fine {
            Some(fine) => {
                let (fine, bytes) = self.publish_fine(&manifest.descriptor, &manifest.layers, fine).await?;
                bytes_written += bytes;
                Some(fine)
            }
            None => None,
        };
        let manifest = manifest.descriptor;
        Ok((IndexedManifest { platform, manifest, layers, result, coverage, prefetch, others, fine }, bytes_written))
    }

    /// Decides between the existing indexes and an index of `ztocs`, which would replace `replaces`
    /// and carry over the lists of `old`.
    async fn build(
        &self,
        subject: &Descriptor,
        found: &[DestinationIndex],
        (replaces, old): (&[Digest], &[OldList]),
        layers: &[LayerReport],
        ztocs: &[IndexedZtoc<'_>],
    ) -> Result<PlatformResult, IndexError> {
        let covered: BTreeSet<Digest> = ztocs.iter().map(|ztoc| ztoc.layer.digest).collect();
        let is_left =
            |layer: &LayerReport| matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::OutOfTime { .. }));
        let is_partial = layers.iter().any(is_left);
        let mut replaces = replaces.to_vec();
        if is_partial {
            replaces = outdone(found, &replaces, &covered);
            let LayerOptions { span_size, build_tool_identifier, .. } = &self.options.layer;
            if let Some(place) = outdoes(found, build_tool_identifier, *span_size, &covered)
                && self.is_whole(&found[place], BlobCheck::Size).await?
            {
                return Ok(PlatformResult::stays(found, place, already_there(true)));
            }
        }
        if ztocs.is_empty() {
            let result = if is_partial { ManifestResult::OutOfTime } else { ManifestResult::NothingToIndex };
            return Ok(PlatformResult {
                result,
                covered,
                others: others(found, &subject.digest, &[]),
                prefetch: None,
                bytes_written: 0,
            });
        }
        let index = self.assemble(subject, ztocs, covered, old).await?;
        replaces.retain(|digest| *digest != index.descriptor.digest);
        let others = others(found, &index.descriptor.digest, &replaces);
        let unwritten = |result, index: Assembled, others| {
            let Assembled { covered, prefetched: prefetch, .. } = index;
            Ok(PlatformResult { result, covered, others, prefetch, bytes_written: 0 })
        };
        let same = found.iter().find(|found| found.descriptor.digest == index.descriptor.digest);
        let same = same.filter(|_| replaces.is_empty());
        if let Some(same) = same
            && self.is_whole(same, BlobCheck::of(self.options.existing)).await?
        {
            return unwritten(already_there(true)(same), index, others);
        }
        match self.destination.filter(|_| !self.options.dry_run) {
            None => {
                let result = ManifestResult::DryRun { index: index.descriptor.clone(), replaces };
                unwritten(result, index, others)
            }
            Some(destination) => {
                let write = if same.is_some() { WriteBlob::IfDamaged } else { WriteBlob::of(self.options.existing) };
                let push = Push { destination, index: &index, subject, write };
                let (report, bytes_written) = self.attach(push, &replaces).await?;
                let AttachReport { attached: how, not_deleted } = report;
                let Assembled { covered, prefetched: prefetch, descriptor: index, .. } = index;
                let others = listed(destination, &subject.digest, &index.digest, others).await;
                let result = ManifestResult::Attached { index, how, replaced: replaces, not_deleted };
                Ok(PlatformResult { result, covered, others, prefetch, bytes_written })
            }
        }
    }

    /// Whether all blobs of an index exist at the destination.
    async fn is_whole(&self, found: &DestinationIndex, check: BlobCheck) -> Result<bool, IndexError> {
        match self.destination {
            Some(destination) => found.is_whole(destination, check).await,
            None => Ok(false),
        }
    }

    async fn assemble<'a>(
        &self,
        subject: &Descriptor,
        ztocs: &'a [IndexedZtoc<'a>],
        covered: BTreeSet<Digest>,
        old: &[OldList],
    ) -> Result<Assembled<'a>, IndexError> {
        let IndexOptions { layer, prefetch, .. } = self.options;
        let list = prefetch.as_ref();
        let (prefetch, prefetched) = prefetch_artifacts(list, old, ztocs, self.budget, self.progress).await?;
        let index = SociIndex {
            layers: ztocs.iter().map(|ztoc| ztoc.reference(layer.span_size)).collect(),
            subject: Some(subject.clone()),
            build_tool_identifier: layer.build_tool_identifier.clone(),
            prefetch: prefetch.iter().map(|artifact| artifact.descriptor.clone()).collect(),
        };
        let EncodedIndex { bytes, descriptor } = index.encode();
        Ok(Assembled { ztocs, covered, prefetch, prefetched, manifest: bytes.into(), descriptor })
    }

    async fn attach(&self, push: Push<'_>, replaces: &[Digest]) -> Result<(AttachReport, u64), IndexError> {
        let blobs = push.index.ztocs.len() + push.index.prefetch.len() + 1;
        self.progress.report(ProgressEvent::Attaching { index: push.index.descriptor.digest, blobs });
        push.run(replaces).await
    }
}

fn already_there(built: bool) -> impl FnOnce(&DestinationIndex) -> ManifestResult {
    move |found| ManifestResult::AlreadyThere { index: found.descriptor.clone(), built }
}

fn kept(found: &DestinationIndex) -> ManifestResult {
    ManifestResult::Kept { index: found.descriptor.clone(), tool: found.tool().map(str::to_owned) }
}

/// Finds the position of a new index among those of other tools, because registries list referrers
/// in an order of their own.
async fn listed(
    destination: &Destination,
    subject: &Digest,
    index: &Digest,
    mut others: Vec<OtherIndex>,
) -> Vec<OtherIndex> {
    if others.is_empty() {
        return others;
    }
    // It was attached: if the list cannot be fetched again, the assumed order is reported.
    if let Ok(referrers) = destination.referrers(subject, INDEX_V1).await {
        let place = |digest: &Digest| referrers.descriptors.iter().position(|d| d.digest == *digest);
        if let Some(ours) = place(index) {
            others.iter_mut().for_each(|other| other.listed_first = place(&other.digest).is_some_and(|p| p < ours));
        }
    }
    others
}

/// The content to push for an index.
struct Push<'a> {
    destination: &'a Destination,
    index: &'a Assembled<'a>,
    subject: &'a Descriptor,
    write: WriteBlob,
}

impl Push<'_> {
    /// Pushes ztocs, config, and finally the manifest. Also returns the number of bytes written.
    async fn run(&self, replaces: &[Digest]) -> Result<(AttachReport, u64), IndexError> {
        let mut written = self.blobs(self.write).await?;
        let attached = match self.attach(replaces).await {
            // The registry claimed to have a blob that it does not have, so upload it now.
            Err(error) if error.is_blob_unknown() => {
                written += self.blobs(WriteBlob::Always).await?;
                self.attach(replaces).await
            }
            result => result,
        };
        let report = attached.map_err(|source| IndexError::Attach { index: self.index.descriptor.digest, source })?;
        Ok((report, written + self.index.manifest.len() as u64))
    }

    async fn blobs(&self, write: WriteBlob) -> Result<u64, IndexError> {
        let mut written = 0;
        let mut pushed = BTreeSet::new();
        for ztoc in self.index.ztocs {
            if pushed.insert(ztoc.digest()) {
                let content = ztoc.content();
                let blob = Descriptor::new(ZTOC, ztoc.digest(), content.len() as u64);
                written += push_blob(self.destination, "ztoc", &blob, content, write).await?;
            }
        }
        for Artifact { descriptor, bytes } in &self.index.prefetch {
            written += push_blob(self.destination, "prefetch artifact", descriptor, bytes.clone(), write).await?;
        }
        let (config, content) = (Descriptor::of(INDEX_V1, CONFIG), Bytes::from_static(CONFIG));
        Ok(written + push_blob(self.destination, "config", &config, content, write).await?)
    }

    async fn attach(&self, replaces: &[Digest]) -> Result<AttachReport, StoreError> {
        self.destination.attach(&self.index.descriptor, self.index.manifest.clone(), self.subject, replaces).await
    }
}

/// When a blob is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) enum WriteBlob {
    /// If the destination does not say that it has it.
    IfMissing,
    /// Also if the destination has other bytes in its place.
    IfDamaged,
    /// In any case, because the destination claimed to have it, and does not.
    Always,
}

impl WriteBlob {
    pub(super) fn of(existing: Existing) -> WriteBlob {
        match BlobCheck::of(existing) {
            BlobCheck::Size => WriteBlob::IfMissing,
            BlobCheck::Content => WriteBlob::IfDamaged,
        }
    }
}

/// Writes a blob, if `write` says so. Returns the number of bytes written.
pub(in crate::ops) async fn push_blob(
    destination: &Destination,
    what: &'static str,
    blob: &Descriptor,
    content: Bytes,
    write: WriteBlob,
) -> Result<u64, IndexError> {
    let digest = blob.digest;
    let failed = |source| IndexError::Push { what, digest, source };
    let damage = match write {
        WriteBlob::IfDamaged => match BlobCheck::Content.damage(destination, blob).await.map_err(failed)? {
            None => return Ok(0),
            damage => damage,
        },
        WriteBlob::IfMissing | WriteBlob::Always => None,
    };
    let pushed = destination.push_blob(blob, content, write != WriteBlob::IfMissing).await.map_err(failed)?;
    // Some registries keep the bytes that they have for a digest.
    if damage == Some(Damage::Damaged) && BlobCheck::Content.damage(destination, blob).await.map_err(failed)?.is_some()
    {
        return Err(IndexError::StaysDamaged { what, digest });
    }
    Ok(if pushed { blob.size } else { 0 })
}
