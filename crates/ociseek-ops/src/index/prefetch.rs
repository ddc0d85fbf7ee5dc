//! The prefetch artifacts of an index: the spans that hold the files on the user's list, or the
//! lists of the index that it replaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::spawn_blocking;

use super::IndexError;
use super::assemble::IndexedZtoc;
use super::model::{PrefetchSummary, PrefetchedLayer};
use crate::damage::Damage;
use crate::discover::MAX_ZTOC;
use crate::prefetch::{self, PrefetchList, PrefetchSpans, resolve};
use crate::tree_memory::charge_tree;
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::prefetch::{MAX_PREFETCH, SpanRange, encode, parse};
use ociseek_format::image::soci::{LAYER_DIGEST, PREFETCH, ZTOC, ZtocRef, prefetch_lists};
use ociseek_format::layer::span::SpanTable;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_format::ztoc;
use ociseek_store::{Source, StoreError};

/// A prefetch artifact, and its descriptor in the index.
pub(crate) struct Artifact {
    pub descriptor: Descriptor,
    pub bytes: Bytes,
}

/// The prefetch list of a layer in an index that is replaced.
#[derive(Clone)]
pub(crate) struct OldList {
    store: Source,
    /// The ztoc whose spans it refers to.
    ztoc: ZtocRef,
    artifact: Descriptor,
}

/// The prefetch lists of an index, from its ztocs and its other entries.
pub(crate) fn old_lists(store: &Source, ztocs: &[ZtocRef], others: &[Descriptor]) -> Vec<OldList> {
    let lists = prefetch_lists(others).into_iter();
    lists
        .filter_map(|(layer, artifact)| {
            let ztoc = ztocs.iter().find(|ztoc| ztoc.layer == layer)?.clone();
            Some(OldList { store: store.clone(), ztoc, artifact: artifact.clone() })
        })
        .collect()
}

/// The artifacts for the layers of `ztocs`, which must be in the order of the manifest, with a
/// summary for the report: from `list`, or without one from `old`. Paths that match no file, and
/// old lists that cannot be carried over, are reported.
///
/// # Errors
/// If the layers cannot be combined to look up paths, a ztoc does not fit into memory, or the store
/// does not send an old list.
pub(crate) async fn prefetch_artifacts(
    list: Option<&Arc<PrefetchList>>,
    old: &[OldList],
    ztocs: &[IndexedZtoc<'_>],
    budget: &Budget,
    progress: &Arc<dyn Progress>,
) -> Result<(Vec<Artifact>, Option<PrefetchSummary>), IndexError> {
    let (resolved, carried_over) = match list {
        Some(list) => (looked_up(list, ztocs, budget).await?, false),
        None if old.is_empty() => return Ok((Vec::new(), None)),
        None => (carried(old, ztocs, budget, progress).await?, true),
    };
    let PrefetchSpans { spans, bytes, missing } = resolved;
    missing.iter().for_each(|missing| progress.report(ProgressEvent::Warning(missing.to_string())));
    let mut artifacts = Vec::new();
    let mut layers = Vec::new();
    let mut seen = BTreeSet::new();
    for ((ztoc, spans), bytes) in
        ztocs.iter().zip(spans).zip(bytes).filter(|((_, spans), _)| !spans.is_empty())
    {
        let layer = ztoc.layer.digest;
        let artifact = artifact(layer, encode(&spans).into());
        if seen.insert(layer) {
            layers.push(PrefetchedLayer {
                layer,
                artifact: artifact.descriptor.digest,
                spans,
                bytes,
            });
        }
        artifacts.push(artifact);
    }
    let summary = PrefetchSummary { layers, missing, carried_over };
    let is_nothing = summary.carried_over && summary.layers.is_empty();
    Ok((artifacts, (!is_nothing).then_some(summary)))
}

/// Resolves a list in these layers.
async fn looked_up(
    list: &Arc<PrefetchList>,
    ztocs: &[IndexedZtoc<'_>],
    budget: &Budget,
) -> Result<PrefetchSpans, IndexError> {
    let list = Arc::clone(list);
    let encoded: Vec<(Digest, Digest, Bytes)> =
        ztocs.iter().map(|ztoc| (ztoc.layer.digest, ztoc.digest(), ztoc.content())).collect();
    let mut charge = budget.open();
    let resolved = spawn_blocking(move || {
        let mut decoded = BTreeMap::new();
        let mut layers = Vec::with_capacity(encoded.len());
        for (layer, digest, bytes) in encoded {
            let ztoc = match decoded.get(&digest) {
                Some(ztoc) => Arc::clone(ztoc),
                None => {
                    let decoded = ztoc::decode_within(&bytes, &mut charge);
                    Arc::new(decoded.map_err(|source| IndexError::OwnZtoc { layer, source })?)
                }
            };
            decoded.insert(digest, Arc::clone(&ztoc));
            layers.push((layer, ztoc));
        }
        let _tree = charge_tree(charge.budget(), layers.iter().map(|(_, ztoc)| &ztoc.files[..]))?;
        resolve(&list, &layers).map_err(IndexError::from)
    });
    resolved.await.map_err(|_| IndexError::PrefetchThread)?
}

/// Why a prefetch list or a recorded start of an index that is replaced is not carried over.
pub(super) enum NotCarriedOver {
    /// It is missing, damaged or invalid, so no later run could read it either.
    Lost(String),
    /// It could not be read this time. Replacing the index would lose it.
    Unread(Box<IndexError>),
}

impl NotCarriedOver {
    pub(super) fn lost(error: &dyn std::error::Error) -> NotCarriedOver {
        NotCarriedOver::Lost(causes(error))
    }

    /// Judges the error of reading a blob of the index.
    pub(super) fn of(what: &'static str, digest: Digest, source: StoreError) -> NotCarriedOver {
        let is_final = matches!(source, StoreError::Memory(_) | StoreError::Range { .. });
        if is_final || Damage::of(&source).is_some() {
            NotCarriedOver::lost(&source)
        } else {
            NotCarriedOver::Unread(Box::new(IndexError::Document { what, digest, source }))
        }
    }

    /// Reports that the `what` of a layer is lost.
    ///
    /// # Errors
    /// If it was not read.
    pub(super) fn report(
        self,
        what: &str,
        layer: Digest,
        progress: &Arc<dyn Progress>,
    ) -> Result<(), IndexError> {
        match self {
            NotCarriedOver::Lost(why) => {
                let text = format!("the {what} of layer {layer} is not carried over: {why}");
                progress.report(ProgressEvent::Warning(text));
                Ok(())
            }
            NotCarriedOver::Unread(error) => Err(*error),
        }
    }
}

/// Carries over the lists of an older index to the spans of the new ztocs.
async fn carried(
    old: &[OldList],
    ztocs: &[IndexedZtoc<'_>],
    budget: &Budget,
    progress: &Arc<dyn Progress>,
) -> Result<PrefetchSpans, IndexError> {
    let mut resolved = PrefetchSpans::default();
    let mut known: BTreeMap<Digest, (Vec<SpanRange>, u64)> = BTreeMap::new();
    for ztoc in ztocs {
        let layer = ztoc.layer.digest;
        let (spans, bytes) =
            match (known.get(&layer), old.iter().find(|list| list.ztoc.layer == layer)) {
                (Some(known), _) => known.clone(),
                (None, None) => Default::default(),
                (None, Some(list)) => {
                    let mut memory = budget.open();
                    let unsound = |source| IndexError::OwnZtoc { layer, source };
                    let new = ztoc::decode_within(&ztoc.content(), &mut memory).map_err(unsound)?;
                    let unsound = |source| {
                        IndexError::from(prefetch::PathLookupError::Spans { layer, source })
                    };
                    let new = SpanTable::new(Arc::new(new)).map_err(unsound)?;
                    let spans = match list.spans(ztoc.digest(), &new, budget).await {
                        Ok(spans) => spans,
                        Err(why) => {
                            why.report("prefetch list", layer, progress)?;
                            Vec::new()
                        }
                    };
                    let bytes = prefetch::bytes(&new, &spans);
                    (spans, bytes)
                }
            };
        known.insert(layer, (spans.clone(), bytes));
        resolved.spans.push(spans);
        resolved.bytes.push(bytes);
    }
    for list in old.iter().filter(|list| !known.contains_key(&list.ztoc.layer)) {
        let why = NotCarriedOver::Lost("the new index has no ztoc for it".to_owned());
        why.report("prefetch list", list.ztoc.layer, progress)?;
    }
    Ok(resolved)
}

impl OldList {
    /// The list in spans of the table `new` of the ztoc `digest`.
    async fn spans(
        &self,
        digest: Digest,
        new: &SpanTable,
        budget: &Budget,
    ) -> Result<Vec<SpanRange>, NotCarriedOver> {
        let bytes = self.read("prefetch list", &self.artifact, MAX_PREFETCH).await?;
        let spans = parse(&bytes).map_err(|error| NotCarriedOver::lost(&error))?;
        if self.ztoc.ztoc == digest {
            return Ok(prefetch::remap(new, &spans, new));
        }
        let bytes = self
            .read("ztoc", &Descriptor::new(ZTOC, self.ztoc.ztoc, self.ztoc.size), MAX_ZTOC)
            .await?;
        let old = ztoc::decode_within(&bytes, &mut budget.open())
            .map_err(|error| NotCarriedOver::lost(&error))?;
        let old = SpanTable::new(Arc::new(old)).map_err(|error| NotCarriedOver::lost(&error))?;
        Ok(prefetch::remap(&old, &spans, new))
    }

    /// A blob of the old index. Other content in its place, such as a web page, may come
    /// once.
    async fn read(
        &self,
        what: &'static str,
        blob: &Descriptor,
        limit: u64,
    ) -> Result<Bytes, NotCarriedOver> {
        let mut read = self.store.blob_bytes(blob, limit).await;
        let is_damaged = matches!(&read, Err(error) if Damage::of(error) == Some(Damage::Damaged));
        if is_damaged && self.store.is_remote() {
            read = self.store.blob_bytes(blob, limit).await;
        }
        read.map_err(|source| NotCarriedOver::of(what, blob.digest, source))
    }
}

fn artifact(layer: Digest, bytes: Bytes) -> Artifact {
    let mut descriptor = Descriptor::of(PREFETCH, &bytes);
    descriptor.annotations = BTreeMap::from([(LAYER_DIGEST.to_owned(), layer.to_string())]);
    Artifact { descriptor, bytes }
}
