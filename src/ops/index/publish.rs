//! The index of one platform: put together from its layers' ztocs, and attached, blobs first.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::build::{BuiltLayer, Layers};
use super::error::IndexError;
use super::existing::{Decision, others, outdoes, outdone};
use super::gate::covered_by;
use super::model::{
    IndexOptions, IndexedLayer, IndexedManifest, LayerOutcome, LeftOut, ManifestResult, Origin, OtherIndex, ZtocFacts,
};
use super::plan::{Plan, is_whole};
use super::prefetch::{Artifact, prefetch_artifacts};
use crate::budget::Budget;
use crate::digest::Digest;
use crate::image::soci::{CONFIG, EncodedIndex, INDEX_V1, SociIndex, ZTOC, ZtocRef};
use crate::image::{Descriptor, LayerKind};
use crate::layer::{BuiltZtoc, LayerOptions, Outcome};
use crate::ops::coverage::Coverage;
use crate::progress::{Event, Progress};
use crate::store::{AttachReport, Destination, StoreError};

/// Attaches the plan's index, if there is anything to attach. Also gives the bytes that were written.
///
/// `seen` are the layers that were reported already.
pub(super) async fn publish(
    plan: Plan,
    layers: &Layers,
    seen: &mut BTreeSet<Digest>,
    destination: Option<&Destination>,
    budget: &Budget,
    options: &IndexOptions,
    progress: &Arc<dyn Progress>,
) -> Result<(IndexedManifest, u64), IndexError> {
    let Plan { manifest, left_out, found, decision } = &plan;
    let report = |layers, covered: &BTreeSet<Digest>, result, others| IndexedManifest {
        platform: manifest.platform.as_ref().map(ToString::to_string),
        manifest: manifest.descriptor.clone(),
        layers,
        result,
        coverage: Coverage::of(&manifest.layers, |layer| covered.contains(&layer.digest)),
        others,
    };
    let replaces = match decision {
        Decision::Done(place) => {
            let index = found[*place].descriptor.clone();
            let others = others(found, &index.digest, &[]);
            let covered = covered_by(&found[*place]);
            return Ok((report(Vec::new(), &covered, ManifestResult::AlreadyThere { index, built: false }, others), 0));
        }
        Decision::Keep(place) => {
            let kept = &found[*place];
            let index = kept.descriptor.digest;
            let result = ManifestResult::Kept { index, tool: kept.tool().map(str::to_owned) };
            return Ok((report(Vec::new(), &covered_by(kept), result, others(found, &index, &[])), 0));
        }
        Decision::Build { replaces } => replaces,
    };

    let (indexed, ztocs) = assemble(manifest.layers.iter().zip(left_out), layers, seen);
    let covered: BTreeSet<Digest> = ztocs.iter().map(|ztoc| ztoc.layer.digest).collect();
    let is_left = |layer: &IndexedLayer| matches!(layer.outcome, LayerOutcome::LeftOut(LeftOut::OutOfTime { .. }));
    let sparse = indexed.iter().any(is_left);
    let mut replaces = replaces.clone();
    if sparse {
        replaces = outdone(found, &replaces, &covered);
        let LayerOptions { span_size, build_tool_identifier } = &options.layer;
        if let Some(place) = outdoes(found, build_tool_identifier, *span_size, &covered)
            && let Some(destination) = destination
            && is_whole(destination, &found[place]).await?
        {
            let index = found[place].descriptor.clone();
            let (others, covered) = (others(found, &index.digest, &[]), covered_by(&found[place]));
            return Ok((report(indexed, &covered, ManifestResult::AlreadyThere { index, built: true }, others), 0));
        }
    }
    if ztocs.is_empty() {
        let result = if sparse { ManifestResult::OutOfTime } else { ManifestResult::NothingToIndex };
        return Ok((report(indexed, &covered, result, others(found, &manifest.descriptor.digest, &[])), 0));
    }
    let prefetch = prefetch_artifacts(options.prefetch.as_ref(), &ztocs, budget, progress).await?;
    let subject = manifest.descriptor.clone();
    let index = SociIndex {
        layers: ztocs.iter().map(|ztoc| ztoc.reference(options.layer.span_size)).collect(),
        subject: Some(subject.clone()),
        build_tool_identifier: options.layer.build_tool_identifier.clone(),
        prefetch: prefetch.iter().map(|artifact| artifact.descriptor.clone()).collect(),
    };
    let EncodedIndex { bytes, descriptor } = index.encode();

    let replaces: Vec<Digest> = replaces.iter().copied().filter(|digest| *digest != descriptor.digest).collect();
    let others = others(found, &descriptor.digest, &replaces);
    let there = match (found.iter().find(|f| f.descriptor.digest == descriptor.digest), destination) {
        (Some(found), Some(destination)) => is_whole(destination, found).await?,
        _ => false,
    };
    if there && replaces.is_empty() {
        return Ok((
            report(indexed, &covered, ManifestResult::AlreadyThere { index: descriptor, built: true }, others),
            0,
        ));
    }
    let (Some(destination), false) = (destination, options.dry_run) else {
        return Ok((report(indexed, &covered, ManifestResult::DryRun { index: descriptor, replaces }, others), 0));
    };
    progress.report(Event::Attaching { index: descriptor.digest, blobs: ztocs.len() + prefetch.len() + 1 });
    let manifest = bytes.into();
    let push =
        Push { destination, ztocs: &ztocs, prefetch: &prefetch, index: &descriptor, manifest, subject: &subject };
    let (attached, written) = push.run(&replaces).await?;
    let AttachReport { attached: how, not_deleted } = attached;
    let others = listed(destination, &subject.digest, &descriptor.digest, others).await;
    let result = ManifestResult::Attached { index: descriptor, how, replaced: replaces, not_deleted };
    Ok((report(indexed, &covered, result, others), written))
}

/// Looks where a new index came to stand among those of other makers: registries list referrers in an order of their own.
async fn listed(
    destination: &Destination,
    subject: &Digest,
    index: &Digest,
    mut others: Vec<OtherIndex>,
) -> Vec<OtherIndex> {
    if others.is_empty() {
        return others;
    }
    // It is attached by now: if the list cannot be had again, the guess stays.
    if let Ok(referrers) = destination.referrers(subject, INDEX_V1).await {
        let place = |digest: &Digest| referrers.descriptors.iter().position(|d| d.digest == *digest);
        if let Some(ours) = place(index) {
            others.iter_mut().for_each(|other| other.listed_first = place(&other.digest).is_some_and(|p| p < ours));
        }
    }
    others
}

/// A ztoc that stands in the index.
pub(in crate::ops) struct Ztoc<'a> {
    pub layer: &'a Descriptor,
    built: &'a BuiltZtoc,
    /// What holds `built`.
    outcome: &'a Arc<Outcome>,
}

impl Ztoc<'_> {
    pub fn digest(&self) -> Digest {
        self.built.digest
    }

    /// What the index says of it.
    pub fn reference(&self, span_size: u64) -> ZtocRef {
        ZtocRef {
            ztoc: self.built.digest,
            size: self.built.bytes.len() as u64,
            layer: self.layer.digest,
            layer_media_type: self.layer.media_type.clone(),
            span_size,
        }
    }

    /// Its bytes, not copied: ztocs are what takes memory.
    pub fn content(&self) -> Bytes {
        struct Shared(Arc<Outcome>);
        impl AsRef<[u8]> for Shared {
            fn as_ref(&self) -> &[u8] {
                match &*self.0 {
                    Outcome::Ztoc(ztoc) => &ztoc.bytes,
                    Outcome::Unservable(_) => &[],
                }
            }
        }
        Bytes::from_owner(Shared(Arc::clone(self.outcome)))
    }
}

/// The report on each layer, and the ztocs for the index, in the manifest's order.
pub(in crate::ops) fn assemble<'a>(
    planned: impl Iterator<Item = (&'a Descriptor, &'a Option<LeftOut>)>,
    layers: &'a Layers,
    seen: &mut BTreeSet<Digest>,
) -> (Vec<IndexedLayer>, Vec<Ztoc<'a>>) {
    let mut indexed = Vec::new();
    let mut ztocs = Vec::new();
    for (layer, left_out) in planned {
        let outcome = match (left_out, layers.get(layer)) {
            (Some(left_out), _) => LayerOutcome::LeftOut(left_out.clone()),
            // Each layer that was not left out has been built, unless the time was up.
            (None, None) => LayerOutcome::LeftOut(LeftOut::OutOfTime { stuck: layers.stuck }),
            (None, Some(built)) => match &*built.outcome {
                Outcome::Unservable(verdict) => LayerOutcome::LeftOut(LeftOut::Unservable(verdict.clone())),
                Outcome::Ztoc(ztoc) => match mislabelled(layer, ztoc) {
                    Some(left_out) => LayerOutcome::LeftOut(left_out),
                    None => {
                        ztocs.push(Ztoc { layer, built: ztoc, outcome: &built.outcome });
                        let first = seen.insert(layer.digest);
                        let origin = if first { built.origin.clone() } else { Origin::Repeated };
                        LayerOutcome::Indexed(facts(built, ztoc, origin))
                    }
                },
            },
        };
        indexed.push(IndexedLayer { descriptor: layer.clone(), outcome });
    }
    (indexed, ztocs)
}

fn facts(layer: &BuiltLayer, ztoc: &BuiltZtoc, origin: Origin) -> ZtocFacts {
    let reused = matches!(layer.origin, Origin::Destination | Origin::Reused(_));
    let members_known = ztoc.gzip_members == 0 || !reused;
    ZtocFacts {
        digest: ztoc.digest,
        size: ztoc.bytes.len() as u64,
        spans: ztoc.spans,
        entries: ztoc.entries,
        uncompressed_size: ztoc.uncompressed_size,
        gzip_members: members_known.then_some(ztoc.gzip_members),
        origin,
    }
}

/// soci reads an OCI layer as its media type says, and has no ztoc for one that is something else.
pub(super) fn mislabelled(layer: &Descriptor, ztoc: &BuiltZtoc) -> Option<LeftOut> {
    let reason = match (LayerKind::of(&layer.media_type), ztoc.gzip_members) {
        (LayerKind::Gzip, 0) => "its media type says gzip, but it is a plain tar",
        (LayerKind::Uncompressed, 1..) => "its media type says plain tar, but it is gzip",
        _ => return None,
    };
    Some(LeftOut::Kind { code: "mislabelled", reason: reason.to_owned() })
}

/// All that goes to the destination for one index.
struct Push<'a> {
    destination: &'a Destination,
    ztocs: &'a [Ztoc<'a>],
    prefetch: &'a [Artifact],
    index: &'a Descriptor,
    manifest: Bytes,
    subject: &'a Descriptor,
}

impl Push<'_> {
    /// Ztocs, config, and the manifest last. Also gives the bytes that were written.
    async fn run(&self, replaces: &[Digest]) -> Result<(AttachReport, u64), IndexError> {
        let mut written = self.blobs(false).await?;
        let attached = match self.attach(replaces).await {
            // The registry said of a blob that it was there, and it is not: now it gets it.
            Err(error) if error.is_blob_unknown() => {
                written += self.blobs(true).await?;
                self.attach(replaces).await
            }
            result => result,
        };
        let report = attached.map_err(|source| IndexError::Attach { index: self.index.digest, source })?;
        Ok((report, written + self.manifest.len() as u64))
    }

    async fn blobs(&self, unchecked: bool) -> Result<u64, IndexError> {
        let mut written = 0;
        let mut pushed = BTreeSet::new();
        for ztoc in self.ztocs {
            if pushed.insert(ztoc.built.digest) {
                let content = ztoc.content();
                let blob = Descriptor::new(ZTOC, ztoc.built.digest, content.len() as u64);
                written += self.blob("ztoc", &blob, content, unchecked).await?;
            }
        }
        for Artifact { descriptor, bytes } in self.prefetch {
            written += self.blob("prefetch artifact", descriptor, bytes.clone(), unchecked).await?;
        }
        Ok(written
            + self.blob("config", &Descriptor::of(INDEX_V1, CONFIG), Bytes::from_static(CONFIG), unchecked).await?)
    }

    async fn blob(
        &self,
        what: &'static str,
        blob: &Descriptor,
        content: Bytes,
        unchecked: bool,
    ) -> Result<u64, IndexError> {
        let pushed = self.destination.push_blob(blob, content, unchecked).await;
        let failed = |source| IndexError::Push { what, digest: blob.digest, source };
        Ok(if pushed.map_err(failed)? { blob.size } else { 0 })
    }

    async fn attach(&self, replaces: &[Digest]) -> Result<AttachReport, StoreError> {
        self.destination.attach(self.index, self.manifest.clone(), self.subject, replaces).await
    }
}
