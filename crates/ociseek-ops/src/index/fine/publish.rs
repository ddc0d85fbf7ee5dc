//! Attaches a platform's fine index: documents first, the manifest last.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;

use super::start::{EncodedDocuments, LayerDocument, StartWriter};
use super::{FinePlan, FoundFine};
use crate::index::IndexError;
use crate::index::existing::{Decision, outdone};
use crate::index::existing_manifest::BlobCheck;
use crate::index::model::{ExistingCheck, IndexedFine, ManifestResult};
use crate::index::options::{IndexOptions, Work};
use crate::index::parts::lacks_document;
use crate::index::publish::{NewBlob, NewIndex, Publisher};
use crate::index::supply::{Layers, WantedParts};
use crate::prefetch::MissingPath;
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::fine::EncodedFine;
use ociseek_format::image::fine::{EMPTY_CONFIG, FineIndex, FineRef};
use ociseek_format::image::soci::EncodedIndex;
use ociseek_format::image::{Coverage, Descriptor};
use ociseek_format::progress::ProgressEvent;
use ociseek_store::Source;

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
    pub(in crate::index) async fn publish_fine(
        &self,
        subject: &Descriptor,
        layers: &[Descriptor],
        plan: FinePlan,
    ) -> Result<(IndexedFine, u64), IndexError> {
        let FinePlan { wanted, existing, decision, check, .. } = plan;
        let mut left = Vec::new();
        let outcome = match decision {
            Decision::Done(place) => {
                stays(&existing[place], existing[place].already_there(false, check))
            }
            Decision::Keep(place) => stays(&existing[place], existing[place].kept()),
            Decision::Build { replaces } => {
                let is_left =
                    |layer: &&Descriptor| self.layers.lacks(layer, WantedParts::DOCUMENT).document;
                left = wanted.iter().filter(is_left).cloned().collect();
                self.build_fine(
                    subject,
                    &existing,
                    replaces,
                    made(self.layers, &wanted),
                    !left.is_empty(),
                )
                .await?
            }
            Decision::NotRequested => FineResult::without_index(ManifestResult::NotRequested),
        };
        let FineResult { result, documents, profile, bytes_written } = outcome;
        let covered: BTreeSet<Digest> = documents.iter().map(|document| document.layer).collect();
        let coverage = Coverage::of(layers, |layer| covered.contains(&layer.digest));
        Ok((IndexedFine { result, documents, coverage, profile, left }, bytes_written))
    }

    async fn build_fine(
        &self,
        subject: &Descriptor,
        existing: &[FoundFine],
        mut replaces: Vec<Digest>,
        documents: Vec<LayerDocument>,
        is_partial: bool,
    ) -> Result<FineResult, IndexError> {
        let IndexOptions { prefetch, layer, .. } = self.work.options;
        let tool = &layer.build_tool_identifier;
        let list = prefetch.as_ref();
        let profile = list.map(|list| list.digest());
        if is_partial {
            let covered: BTreeSet<Digest> =
                documents.iter().map(|(layer, _)| layer.digest).collect();
            replaces = outdone(existing, &replaces, &covered);
            let better = existing
                .iter()
                .find(|f| f.is_alike(tool, profile.as_ref()) && covered.is_subset(&f.covered()));
            if let (Some(better), Some(destination)) = (better, self.destination)
                && better.is_whole(destination, BlobCheck::Size).await?
            {
                return Ok(stays(better, better.already_there(true, ExistingCheck::Listed)));
            }
        }
        if documents.is_empty() {
            return Ok(FineResult::without_index(if is_partial {
                ManifestResult::OutOfTime
            } else {
                ManifestResult::NothingToIndex
            }));
        }
        let old = existing.iter().find(|existing| {
            let has_list = existing.content.as_ref().is_ok_and(|index| index.profile.is_some());
            has_list && replaces.contains(&existing.descriptor.digest)
        });
        let writer =
            StartWriter { source: self.source, work: self.work, bytes_read: &self.bytes_read };
        // `_memory` is that of documents that were encoded again, which the budget does not know
        // yet.
        let (documents, _memory, profile) = match (list, old, self.destination) {
            (Some(list), ..) => {
                let (EncodedDocuments { documents, memory }, missing) =
                    writer.with_list(list, documents).await?;
                report_missing(&missing, self.work);
                (documents, Some(memory), profile)
            }
            (None, Some(old), Some(destination)) => {
                let (EncodedDocuments { documents, memory }, is_whole) =
                    writer.with_old(old, destination, documents).await?;
                // Otherwise `--profile` with the same list would conclude that it exists.
                let profile =
                    old.content.as_ref().ok().and_then(|index| index.profile).filter(|_| is_whole);
                (documents, Some(memory), profile)
            }
            (None, ..) => (documents, None, None),
        };
        let index = FineIndex {
            layers: documents.iter().map(|(layer, document)| reference(layer, document)).collect(),
            subject: Some(subject.clone()),
            build_tool: Some(tool.clone()),
            profile,
        };
        let (result, bytes_written) = self
            .attach(subject, NewIndex::new(index.encode(), blobs(&documents)), existing, replaces)
            .await?;
        Ok(FineResult { result, documents: index.layers, profile, bytes_written })
    }
}

/// A fine index that the manifest of a SOCI-enabled image will name.
pub(crate) struct BoundFine {
    pub index: EncodedIndex,
    pub blobs: Vec<NewBlob>,
    /// The bytes of layers that were read to divide their spans.
    pub bytes_read: u64,
    /// For documents that were encoded again, which the budget does not know otherwise.
    _memory: Option<Charge>,
}

/// The fine index of the `wanted` layers of an image, from those that were built. None if none of
/// them has a document.
///
/// # Errors
/// If a document does not fit into memory, or a layer cannot be read again to divide its spans.
pub(crate) async fn bound_fine(
    source: &Source,
    layers: &Layers,
    wanted: &[Descriptor],
    work: Work<'_>,
) -> Result<Option<BoundFine>, IndexError> {
    let mut documents = made(layers, wanted);
    if documents.is_empty() {
        return Ok(None);
    }
    let bytes_read = AtomicU64::new(0);
    let mut charge = None;
    if let Some(list) = &work.options.prefetch {
        let writer = StartWriter { source, work, bytes_read: &bytes_read };
        let (encoded, missing) = writer.with_list(list, documents).await?;
        report_missing(&missing, work);
        documents = encoded.documents;
        charge = Some(encoded.memory);
    }
    let index = FineIndex {
        layers: documents.iter().map(|(layer, document)| reference(layer, document)).collect(),
        subject: None,
        build_tool: Some(work.options.layer.build_tool_identifier.clone()),
        profile: work.options.prefetch.as_ref().map(|list| list.digest()),
    };
    Ok(Some(BoundFine {
        index: index.encode(),
        blobs: blobs(&documents),
        bytes_read: bytes_read.into_inner(),
        _memory: charge,
    }))
}

/// Reports entries of the list that match no file, unless they were already reported for the SOCI
/// index's list.
fn report_missing(missing: &[MissingPath], work: Work<'_>) {
    if !work.options.kinds.has_soci() {
        for missing in missing {
            work.progress.report(ProgressEvent::Warning(missing.to_string()));
        }
    }
}

/// The documents of `wanted` that were made. A layer whose content differs from its type has none.
fn made(layers: &Layers, wanted: &[Descriptor]) -> Vec<LayerDocument> {
    let is_mislabelled = |layer: &Descriptor| {
        layers.get(layer).is_some_and(|built| lacks_document(layer, &built.outcome))
    };
    let labelled = wanted.iter().filter(|layer| !is_mislabelled(layer));
    labelled
        .filter_map(|layer| Some((layer.clone(), Arc::clone(layers.document(layer)?))))
        .collect()
}

/// The blobs of a fine index with these documents.
fn blobs(documents: &[LayerDocument]) -> Vec<NewBlob> {
    let documents = documents.iter().map(|(layer, document)| NewBlob {
        what: "fine document",
        descriptor: reference(layer, document).blob(),
        content: content(document),
    });
    documents.chain([NewBlob::config(EMPTY_CONFIG)]).collect()
}

impl FineResult {
    fn without_index(result: ManifestResult) -> FineResult {
        FineResult { result, documents: Vec::new(), profile: None, bytes_written: 0 }
    }
}

/// An existing index is kept, and nothing was written.
fn stays(existing: &FoundFine, result: ManifestResult) -> FineResult {
    let index = existing.content.as_ref().ok();
    FineResult {
        result,
        documents: index.map_or_else(Vec::new, |index| index.layers.clone()),
        profile: index.and_then(|index| index.profile),
        bytes_written: 0,
    }
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
