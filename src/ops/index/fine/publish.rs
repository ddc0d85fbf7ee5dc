//! Attaches a platform's fine index: documents first, the manifest last.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::start::{EncodedDocuments, LayerDocument};
use super::writer::StartWriter;
use super::{FinePlan, FoundFine};
use crate::digest::Digest;
use crate::fine::EncodedFine;
use crate::image::fine::{EMPTY_CONFIG, FineIndex, FineRef};
use crate::image::soci::{CONFIG, EncodedIndex};
use crate::image::{Coverage, Descriptor};
use crate::layer::Outcome;
use crate::ops::index::error::IndexError;
use crate::ops::index::existing::Decision;
use crate::ops::index::existing_manifest::BlobCheck;
use crate::ops::index::model::{IndexedFine, ManifestResult};
use crate::ops::index::options::IndexOptions;
use crate::ops::index::publish::{Publisher, WriteBlob, push_blob};
use crate::ops::index::reasons::mislabelled;
use crate::progress::ProgressEvent;
use crate::store::Destination;
use crate::store::blob::AttachReport;

/// The result for the fine index of a platform.
struct FineResult {
    result: ManifestResult,
    documents: Vec<FineRef>,
    profile: Option<Digest>,
    bytes_written: u64,
}

impl Publisher<'_> {
    /// Attaches the plan's fine index, if there is anything to attach. `layers` are those of the
    /// image manifest `subject`. Also returns the number of bytes written.
    pub(in crate::ops::index) async fn publish_fine(
        &self,
        subject: &Descriptor,
        layers: &[Descriptor],
        plan: FinePlan,
    ) -> Result<(IndexedFine, u64), IndexError> {
        let FinePlan { wanted, found, decision, .. } = plan;
        let mut left = Vec::new();
        let outcome = match decision {
            Decision::Done(place) => stays(&found[place], already_there(false)),
            Decision::Keep(place) => stays(&found[place], |found| ManifestResult::Kept {
                index: found.descriptor.clone(),
                tool: found.content.as_ref().ok().and_then(|index| index.build_tool.clone()),
            }),
            Decision::Build { replaces } => {
                let is_left =
                    |layer: &&Descriptor| self.layers.get(layer).is_none() && self.layers.document(layer).is_none();
                left = wanted.iter().filter(is_left).cloned().collect();
                self.build_fine(subject, &found, replaces, self.documents(&wanted), !left.is_empty()).await?
            }
            Decision::NotRequested => FineResult::none(ManifestResult::NotRequested),
        };
        let FineResult { result, documents, profile, bytes_written } = outcome;
        let covered: BTreeSet<Digest> = documents.iter().map(|document| document.layer).collect();
        let coverage = Coverage::of(layers, |layer| covered.contains(&layer.digest));
        Ok((IndexedFine { result, documents, coverage, profile, left }, bytes_written))
    }

    /// The documents of `wanted` that were made. A layer whose content differs from its type has
    /// none.
    fn documents(&self, wanted: &[Descriptor]) -> Vec<LayerDocument> {
        let is_mislabelled = |layer: &Descriptor| match self.layers.get(layer).map(|built| &*built.outcome) {
            Some(Outcome::Ztoc(ztoc)) => mislabelled(layer, ztoc).is_some(),
            _ => false,
        };
        let labelled = wanted.iter().filter(|layer| !is_mislabelled(layer));
        labelled.filter_map(|layer| Some((layer.clone(), Arc::clone(self.layers.document(layer)?)))).collect()
    }

    async fn build_fine(
        &self,
        subject: &Descriptor,
        found: &[FoundFine],
        mut replaces: Vec<Digest>,
        documents: Vec<LayerDocument>,
        is_partial: bool,
    ) -> Result<FineResult, IndexError> {
        let IndexOptions { prefetch, layer, .. } = self.options;
        let (tool, list) = (&layer.build_tool_identifier, prefetch.as_ref());
        let profile = list.map(|list| list.digest());
        if is_partial {
            // An index that covers more is more useful than this one, and stays until the complete
            // one exists.
            let covered: BTreeSet<Digest> = documents.iter().map(|(layer, _)| layer.digest).collect();
            let covers_more = |digest: &Digest| {
                found.iter().any(|found| found.descriptor.digest == *digest && !found.covered().is_subset(&covered))
            };
            replaces.retain(|digest| !covers_more(digest));
            let better = found.iter().find(|f| f.is_alike(tool, profile.as_ref()) && covered.is_subset(&f.covered()));
            if let (Some(better), Some(there)) = (better, self.destination)
                && better.is_whole(there, BlobCheck::Size).await?
            {
                return Ok(stays(better, already_there(true)));
            }
        }
        if documents.is_empty() {
            return Ok(FineResult::none(match is_partial {
                true => ManifestResult::OutOfTime,
                false => ManifestResult::NothingToIndex,
            }));
        }
        let old = found.iter().find(|found| {
            let has_list = found.content.as_ref().is_ok_and(|index| index.profile.is_some());
            has_list && replaces.contains(&found.descriptor.digest)
        });
        let writer = StartWriter {
            source: self.source,
            options: self.options,
            progress: self.progress,
            bytes_read: &self.bytes_read,
        };
        // `_memory` is that of documents that were encoded again, which the budget does not know
        // yet.
        let (documents, _memory, profile) = match (list, old, self.destination) {
            (Some(list), ..) => {
                let (EncodedDocuments { documents, memory }, missing) = writer.with_list(list, documents).await?;
                if !self.options.kinds.has_soci() {
                    // Otherwise they were already reported for the SOCI index's list.
                    missing
                        .iter()
                        .for_each(|missing| self.progress.report(ProgressEvent::Warning(missing.to_string())));
                }
                (documents, Some(memory), profile)
            }
            (None, Some(old), Some(there)) => {
                let profile = old.content.as_ref().ok().and_then(|index| index.profile);
                let encoded = writer.with_old(old, there, documents).await?;
                (encoded.documents, Some(encoded.memory), profile)
            }
            (None, ..) => (documents, None, None),
        };
        let index = FineIndex {
            layers: documents.iter().map(|(layer, document)| reference(layer, document)).collect(),
            subject: subject.clone(),
            build_tool: Some(tool.clone()),
            profile,
        };
        let encoded = index.encode();
        replaces.retain(|digest| *digest != encoded.descriptor.digest);
        let same = found.iter().find(|found| found.descriptor.digest == encoded.descriptor.digest);
        let same = same.filter(|_| replaces.is_empty());
        if let (Some(same), Some(there)) = (same, self.destination)
            && same.is_whole(there, BlobCheck::of(self.options.existing)).await?
        {
            return Ok(stays(same, already_there(true)));
        }
        let (result, bytes_written) = match self.destination.filter(|_| !self.options.dry_run) {
            None => (ManifestResult::DryRun { index: encoded.descriptor, replaces }, 0),
            Some(there) => {
                let write = if same.is_some() { WriteBlob::IfDamaged } else { WriteBlob::of(self.options.existing) };
                let push = Push { destination: there, documents: &documents, write };
                self.attach_fine(push, subject, encoded, replaces).await?
            }
        };
        Ok(FineResult { result, documents: index.layers, profile, bytes_written })
    }

    async fn attach_fine(
        &self,
        push: Push<'_>,
        subject: &Descriptor,
        index: EncodedIndex,
        replaces: Vec<Digest>,
    ) -> Result<(ManifestResult, u64), IndexError> {
        let EncodedIndex { bytes, descriptor } = index;
        let manifest = Bytes::from(bytes);
        self.progress.report(ProgressEvent::Attaching { index: descriptor.digest, blobs: push.documents.len() + 1 });
        let mut written = push.blobs(push.write).await?;
        let attach = || push.destination.attach(&descriptor, manifest.clone(), subject, &replaces);
        let attached = match attach().await {
            // The registry claimed to have a blob that it does not have, so upload it now.
            Err(error) if error.is_blob_unknown() => {
                written += push.blobs(WriteBlob::Always).await?;
                attach().await
            }
            result => result,
        };
        let AttachReport { attached: how, not_deleted } =
            attached.map_err(|source| IndexError::Attach { index: descriptor.digest, source })?;
        written += manifest.len() as u64;
        Ok((ManifestResult::Attached { index: descriptor, how, replaced: replaces, not_deleted }, written))
    }
}

impl FineResult {
    fn none(result: ManifestResult) -> FineResult {
        FineResult { result, documents: Vec::new(), profile: None, bytes_written: 0 }
    }
}

/// An existing index is kept, and nothing was written.
fn stays(found: &FoundFine, result: impl FnOnce(&FoundFine) -> ManifestResult) -> FineResult {
    let index = found.content.as_ref().ok();
    FineResult {
        result: result(found),
        documents: index.map_or_else(Vec::new, |index| index.layers.clone()),
        profile: index.and_then(|index| index.profile),
        bytes_written: 0,
    }
}

fn already_there(built: bool) -> impl FnOnce(&FoundFine) -> ManifestResult {
    move |found| ManifestResult::AlreadyThere { index: found.descriptor.clone(), built }
}

fn reference(layer: &Descriptor, document: &EncodedFine) -> FineRef {
    FineRef {
        document: document.digest,
        size: document.bytes.len() as u64,
        layer: layer.digest,
        head_size: document.head_size,
        head_digest: document.head_digest,
        start_size: document.start_size,
    }
}

/// The blobs to push for an index.
struct Push<'a> {
    destination: &'a Destination,
    documents: &'a [LayerDocument],
    write: WriteBlob,
}

impl Push<'_> {
    /// Pushes documents and config. Returns the number of bytes written.
    async fn blobs(&self, write: WriteBlob) -> Result<u64, IndexError> {
        let mut written = 0;
        for (layer, document) in self.documents {
            let blob = reference(layer, document).blob();
            written += push_blob(self.destination, "fine document", &blob, content(document), write).await?;
        }
        let config = Descriptor::of(EMPTY_CONFIG, CONFIG);
        let content = Bytes::from_static(CONFIG);
        Ok(written + push_blob(self.destination, "config", &config, content, write).await?)
    }
}

/// A document's bytes without copying.
fn content(document: &Arc<EncodedFine>) -> Bytes {
    struct DocumentBytes(Arc<EncodedFine>);
    impl AsRef<[u8]> for DocumentBytes {
        fn as_ref(&self) -> &[u8] {
            &self.0.bytes
        }
    }
    Bytes::from_owner(DocumentBytes(Arc::clone(document)))
}
