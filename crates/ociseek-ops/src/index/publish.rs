//! Publishes the index of one platform: after its layers are known, decides whether it is needed,
//! assembles it, and attaches it, blobs first.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;

use super::IndexError;
use super::assemble::{IndexedZtoc, assemble};
use super::existing::{
    AttachedIndex, Decision, DestinationIndex, disproved, others, outdoes, outdone,
};
use super::existing_manifest::BlobCheck;
use super::model::{
    ExistingCheck, ExistingManifest, IndexedManifest, LayerOutcome, LayerReport, LeftOutReason,
    ManifestResult, OtherIndex, PrefetchSummary,
};
use super::options::{Existing, Gate, IndexOptions, Work};
use super::plan::IndexPlan;
use super::prefetch::{Artifact, OldList, prefetch_artifacts};
use super::supply::Layers;
use crate::damage::Damage;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::coverage::Coverage;
use ociseek_format::image::soci::{CONFIG, EncodedIndex, INDEX_V1, SociIndex, ZTOC, ZtocRef};
use ociseek_format::layer::LayerOptions;
use ociseek_format::progress::ProgressEvent;
use ociseek_store::blob::AttachReport;
use ociseek_store::{Destination, Source, StoreError};

/// Attaches the indexes of an image's platforms, one after the other.
pub(super) struct Publisher<'a> {
    /// The store of the image.
    pub source: &'a Source,
    pub layers: &'a Layers,
    pub destination: Option<&'a Destination>,
    pub work: Work<'a>,
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
    fn without_index(result: ManifestResult) -> PlatformResult {
        PlatformResult {
            result,
            covered: BTreeSet::new(),
            others: Vec::new(),
            prefetch: None,
            bytes_written: 0,
        }
    }

    /// An existing index is kept, and nothing was written.
    fn stays(
        existing: &[DestinationIndex],
        place: usize,
        result: ManifestResult,
    ) -> PlatformResult {
        let stays = &existing[place];
        let others = others(existing, &stays.descriptor.digest, &[]);
        PlatformResult {
            result,
            covered: stays.covered(),
            others,
            prefetch: None,
            bytes_written: 0,
        }
    }
}

impl Publisher<'_> {
    /// Attaches the plan's index, if there is anything to attach. Also returns the number of bytes
    /// written.
    pub(super) async fn publish(
        &mut self,
        plan: IndexPlan,
    ) -> Result<(IndexedManifest, u64), IndexError> {
        let IndexPlan { manifest, left_out, existing, decision, check, .. } = &plan;
        let listed = |place: usize| existing[place].layers(manifest.layers.iter().zip(left_out));
        let (layers, outcome) = match decision {
            Decision::Done(place) => (
                listed(*place),
                PlatformResult::stays(
                    existing,
                    *place,
                    existing[*place].already_there(false, *check),
                ),
            ),
            Decision::Keep(place) => {
                (listed(*place), PlatformResult::stays(existing, *place, existing[*place].kept()))
            }
            Decision::NotRequested => {
                (Vec::new(), PlatformResult::without_index(ManifestResult::NotRequested))
            }
            Decision::Build { replaces } => {
                let (layers, ztocs) =
                    assemble(manifest.layers.iter().zip(left_out), self.layers, &mut self.seen);
                let old = plan.old_lists(self.destination);
                let outcome = self
                    .build(&manifest.descriptor, existing, (replaces, &old), &layers, &ztocs)
                    .await?;
                (layers, outcome)
            }
        };
        let PlatformResult { result, covered, others, prefetch, mut bytes_written } = outcome;
        let coverage = Coverage::of(&manifest.layers, |layer| covered.contains(&layer.digest));
        let platform = manifest.platform.as_ref().map(ToString::to_string);
        let IndexPlan { manifest, fine, .. } = plan;
        let fine = match fine {
            Some(fine) => {
                let (fine, bytes) =
                    self.publish_fine(&manifest.descriptor, &manifest.layers, fine).await?;
                bytes_written += bytes;
                Some(fine)
            }
            None => None,
        };
        let manifest = manifest.descriptor;
        Ok((
            IndexedManifest {
                platform,
                manifest,
                layers,
                result,
                coverage,
                prefetch,
                others,
                fine,
            },
            bytes_written,
        ))
    }

    /// Decides between the existing indexes and an index of `ztocs`, which would replace `replaces`
    /// and carry over the lists of `old`.
    async fn build(
        &self,
        subject: &Descriptor,
        existing: &[DestinationIndex],
        (replaces, old): (&[Digest], &[OldList]),
        layers: &[LayerReport],
        ztocs: &[IndexedZtoc<'_>],
    ) -> Result<PlatformResult, IndexError> {
        let covered: BTreeSet<Digest> = ztocs.iter().map(|ztoc| ztoc.layer.digest).collect();
        let is_left = |layer: &LayerReport| {
            matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::OutOfTime { .. }))
        };
        let is_partial = layers.iter().any(is_left);
        let mut replaces = replaces.to_vec();
        if self.work.options.existing != Existing::Replace {
            replaces = disproved(existing, &replaces, self.layers);
        }
        if is_partial {
            replaces = outdone(existing, &replaces, &covered);
            let LayerOptions { span_size, build_tool_identifier, .. } = &self.work.options.layer;
            let better = outdoes(existing, build_tool_identifier, *span_size, &covered);
            if let (Some(place), Some(destination)) = (better, self.destination)
                && existing[place].is_whole(destination, BlobCheck::Size).await?
            {
                let listed = existing[place].content.iter().flat_map(|content| &content.ztocs);
                let is_built = |z: &ZtocRef| {
                    ztocs.iter().any(|b| b.layer.digest == z.layer && b.digest() == z.ztoc)
                };
                // It may cover layers that this run did not get to.
                let check = if listed.clone().all(is_built) {
                    ExistingCheck::Built
                } else {
                    ExistingCheck::Listed
                };
                return Ok(PlatformResult::stays(
                    existing,
                    place,
                    existing[place].already_there(true, check),
                ));
            }
        }
        if ztocs.is_empty() {
            let result =
                if is_partial { ManifestResult::OutOfTime } else { ManifestResult::NothingToIndex };
            return Ok(PlatformResult {
                result,
                covered,
                others: others(existing, &subject.digest, &[]),
                prefetch: None,
                bytes_written: 0,
            });
        }
        let (index, prefetch) = self.encode(subject, ztocs, old).await?;
        let digest = index.descriptor.digest;
        let mut others = others(existing, &digest, &replaces);
        let (result, bytes_written) = self.attach(subject, index, existing, replaces).await?;
        if let (ManifestResult::Attached { .. }, Some(destination)) = (&result, self.destination) {
            others = listed(destination, &subject.digest, &digest, others).await;
        }
        Ok(PlatformResult { result, covered, others, prefetch, bytes_written })
    }

    /// How closely the blobs of an index that already exists are examined.
    fn blob_check(&self) -> BlobCheck {
        // A gate promises that readers can use them.
        let has_gate = self.work.options.gate != Gate::default();
        if has_gate { BlobCheck::Content } else { BlobCheck::of(self.work.options.existing) }
    }

    /// The index of `ztocs`, and the summary of its prefetch lists for the report.
    async fn encode(
        &self,
        subject: &Descriptor,
        ztocs: &[IndexedZtoc<'_>],
        old: &[OldList],
    ) -> Result<(NewIndex, Option<PrefetchSummary>), IndexError> {
        let IndexOptions { layer, prefetch, .. } = self.work.options;
        let list = prefetch.as_ref();
        let (prefetch, prefetched) =
            prefetch_artifacts(list, old, ztocs, self.source.budget(), self.work.progress).await?;
        let index = SociIndex {
            layers: ztocs.iter().map(|ztoc| ztoc.reference(layer.span_size)).collect(),
            subject: Some(subject.clone()),
            build_tool_identifier: layer.build_tool_identifier.clone(),
            prefetch: prefetch.iter().map(|artifact| artifact.descriptor.clone()).collect(),
        };
        Ok((NewIndex::new(index.encode(), soci_blobs(ztocs, &prefetch, INDEX_V1)), prefetched))
    }

    /// Attaches an index of the manifest `subject` in place of `replaces`. If it is among
    /// `existing`, nothing is written unless that one lacks blobs or others must go. Also returns
    /// the number of bytes written.
    pub(super) async fn attach<C: AttachedIndex>(
        &self,
        subject: &Descriptor,
        index: NewIndex,
        existing: &[ExistingManifest<C>],
        mut replaces: Vec<Digest>,
    ) -> Result<(ManifestResult, u64), IndexError> {
        let digest = index.descriptor.digest;
        replaces.retain(|replaced| *replaced != digest);
        let same = existing.iter().find(|index| index.descriptor.digest == digest);
        let same = same.filter(|_| replaces.is_empty());
        if let (Some(same), Some(destination)) = (same, self.destination)
            && same.is_whole(destination, self.blob_check()).await?
        {
            return Ok((same.already_there(true, ExistingCheck::Built), 0));
        }
        let Some(destination) = self.destination.filter(|_| !self.work.options.dry_run) else {
            return Ok((ManifestResult::DryRun { index: index.descriptor, replaces }, 0));
        };
        let write = if same.is_some() {
            WriteBlob::IfDamaged
        } else {
            WriteBlob::of(self.work.options.existing)
        };
        self.work
            .progress
            .report(ProgressEvent::Attaching { index: digest, blobs: index.blobs.len() });
        let (report, written) = index.push(destination, subject, &replaces, write).await?;
        let AttachReport { attached: how, not_deleted } = report;
        Ok((
            ManifestResult::Attached {
                index: index.descriptor,
                how,
                replaced: replaces,
                not_deleted,
            },
            written,
        ))
    }
}

/// Finds the position of a new index among those of other tools, because registries list referrers
/// in their own order.
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
        let place =
            |digest: &Digest| referrers.descriptors.iter().position(|d| d.digest == *digest);
        if let Some(ours) = place(index) {
            others.iter_mut().for_each(|other| {
                other.listed_first = place(&other.digest).is_some_and(|p| p < ours)
            });
        }
    }
    others
}

/// An index that is not attached, with the blobs that it lists.
pub(super) struct NewIndex {
    pub descriptor: Descriptor,
    manifest: Bytes,
    pub blobs: Vec<NewBlob>,
}

/// A blob of an index, and what it is.
pub(crate) struct NewBlob {
    pub what: &'static str,
    pub descriptor: Descriptor,
    pub content: Bytes,
}

impl NewIndex {
    pub(super) fn new(index: EncodedIndex, blobs: Vec<NewBlob>) -> NewIndex {
        NewIndex { descriptor: index.descriptor, manifest: index.bytes.into(), blobs }
    }

    /// Pushes the blobs, and finally the manifest. Also returns the number of bytes written.
    pub(super) async fn push(
        &self,
        destination: &Destination,
        subject: &Descriptor,
        replaces: &[Digest],
        write: WriteBlob,
    ) -> Result<(AttachReport, u64), IndexError> {
        let mut written = self.push_blobs(destination, write).await?;
        let attached = match self.push_manifest(destination, subject, replaces).await {
            // The registry claimed to have a blob that it does not have, so upload it now.
            Err(error) if error.is_blob_unknown() => {
                written += self.push_blobs(destination, WriteBlob::Always).await?;
                self.push_manifest(destination, subject, replaces).await
            }
            result => result,
        };
        let report = attached
            .map_err(|source| IndexError::Attach { index: self.descriptor.digest, source })?;
        Ok((report, written + self.manifest.len() as u64))
    }

    async fn push_blobs(
        &self,
        destination: &Destination,
        write: WriteBlob,
    ) -> Result<u64, IndexError> {
        let mut written = 0;
        let mut pushed = BTreeSet::new();
        for blob in &self.blobs {
            if pushed.insert(blob.descriptor.digest) {
                written += push_blob(destination, blob, write).await?;
            }
        }
        Ok(written)
    }

    async fn push_manifest(
        &self,
        destination: &Destination,
        subject: &Descriptor,
        replaces: &[Digest],
    ) -> Result<AttachReport, StoreError> {
        destination.attach(&self.descriptor, self.manifest.clone(), subject, replaces).await
    }
}

impl NewBlob {
    /// The config of an index of this type.
    pub(super) fn config(media_type: &str) -> NewBlob {
        NewBlob {
            what: "config",
            descriptor: Descriptor::of(media_type, CONFIG),
            content: Bytes::from_static(CONFIG),
        }
    }
}

/// The blobs of a SOCI index, whose config has the type `config`.
pub(crate) fn soci_blobs(
    ztocs: &[IndexedZtoc<'_>],
    prefetch: &[Artifact],
    config: &str,
) -> Vec<NewBlob> {
    let ztocs = ztocs.iter().map(|ztoc| {
        let content = ztoc.content();
        NewBlob {
            what: "ztoc",
            descriptor: Descriptor::new(ZTOC, ztoc.digest(), content.len() as u64),
            content,
        }
    });
    let prefetch = prefetch.iter().map(|Artifact { descriptor, bytes }| NewBlob {
        what: "prefetch artifact",
        descriptor: descriptor.clone(),
        content: bytes.clone(),
    });
    ztocs.chain(prefetch).chain([NewBlob::config(config)]).collect()
}

/// When a blob is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteBlob {
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
pub(crate) async fn push_blob(
    destination: &Destination,
    blob: &NewBlob,
    write: WriteBlob,
) -> Result<u64, IndexError> {
    let NewBlob { what, descriptor: blob, content } = blob;
    let what = *what;
    let digest = blob.digest;
    let failed = |source| IndexError::Push { what, digest, source };
    let damage = match write {
        WriteBlob::IfDamaged => {
            match BlobCheck::Content.damage(destination, blob).await.map_err(failed)? {
                None => return Ok(0),
                damage => damage,
            }
        }
        WriteBlob::IfMissing | WriteBlob::Always => None,
    };
    let unchecked = write != WriteBlob::IfMissing;
    let pushed = destination.push_blob(blob, content.clone(), unchecked).await.map_err(failed)?;
    // Some registries keep the bytes that they have for a digest.
    if damage == Some(Damage::Damaged)
        && BlobCheck::Content.damage(destination, blob).await.map_err(failed)?.is_some()
    {
        return Err(IndexError::StaysDamaged { what, digest });
    }
    Ok(if pushed { blob.size } else { 0 })
}
