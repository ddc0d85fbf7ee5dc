//! The recorded start of each document: from the user's list, or from the index that is replaced.
//!
//! The spans that a start reads are divided, so that it fetches fewer bytes that it does not read.
//! That takes reading these spans once more, about a tenth of an image.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;

use super::FoundFine;
use crate::damage::Damage;
use crate::index::IndexError;
use crate::index::existing_manifest::BlobCheck;
use crate::index::options::Work;
use crate::index::prefetch::NotCarriedOver;
use crate::prefetch::{LayerReads, MissingPath, PrefetchList, reads};
use crate::tree_memory::charge_tree;
use ociseek_format::budget::{Charge, OverBudget};
use ociseek_format::digest::Digest;
use ociseek_format::fine::{
    self, Codec, EncodedFine, FineError, FineLayer, FineSpans, FineStart, SpanDivision, SpanWindow,
};
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::FineRef;
use ociseek_format::layer::divide_span;
use ociseek_format::layer::span::SpanError;
use ociseek_format::offset::{SpanId, Uncompressed};
use ociseek_format::progress::{ProgressEvent, causes};
use ociseek_store::{Destination, Source};

/// Writes recorded starts into documents.
pub(super) struct StartWriter<'a> {
    /// The store of the layers.
    pub source: &'a Source,
    /// Its cache knows which documents are proven.
    pub work: Work<'a>,
    /// Grows by the bytes of layers that are read.
    pub bytes_read: &'a AtomicU64,
}

/// A layer with its document.
pub(super) type LayerDocument = (Descriptor, Arc<EncodedFine>);

/// A layer with its document, and the digest of the document's head.
type DecodedDocument = (Descriptor, Digest, FineLayer);

/// Documents that were encoded again, with the charge for their memory.
pub(super) struct EncodedDocuments {
    pub documents: Vec<LayerDocument>,
    pub memory: Charge,
}

impl StartWriter<'_> {
    /// The documents with the start that `list` specifies, and entries that match no file.
    /// `documents` are those of the image's layers, lowest first.
    ///
    /// # Errors
    /// If the layers cannot be combined, a document does not fit into memory, or a layer cannot be
    /// read.
    pub(super) async fn with_list(
        &self,
        list: &Arc<PrefetchList>,
        documents: Vec<LayerDocument>,
    ) -> Result<(EncodedDocuments, Vec<MissingPath>), IndexError> {
        let list = Arc::clone(list);
        let budget = self.source.budget().clone();
        let encoded = blocking(move || {
            let mut memory = budget.open();
            let layers = decoded(documents, &mut memory)?;
            let _tree = charge_tree(&budget, layers.iter().map(|(.., fine)| fine.entries()))?;
            let (reads, missing) =
                reads(&list, layers.iter().map(|(layer, _, fine)| (layer.digest, fine)))?;
            Ok((layers, memory, reads, missing))
        });
        let (layers, memory, reads, missing) = encoded.await?;
        Ok((self.with_reads(reads, layers, memory).await?, missing))
    }

    /// The documents with the start of those in `old`, which are in `destination`, and whether they
    /// have all of it. A start that is lost is reported.
    ///
    /// # Errors
    /// If a document does not fit into memory, or a layer or an old document cannot be read.
    pub(super) async fn with_old(
        &self,
        old: &FoundFine,
        destination: &Destination,
        documents: Vec<LayerDocument>,
    ) -> Result<(EncodedDocuments, bool), IndexError> {
        let budget = destination.as_source().budget().clone();
        let mut reads = LayerReads::new();
        let mut is_whole = true;
        for document in old.content.iter().flat_map(|old| &old.layers) {
            match start_of(destination, document).await {
                Ok(start) => drop(reads.insert(document.layer, start)),
                Err(why) => {
                    why.report("recorded startup", document.layer, self.work.progress)?;
                    is_whole = false;
                }
            }
        }
        let decoding = blocking(move || {
            let mut memory = budget.open();
            Ok((decoded(documents, &mut memory)?, memory))
        });
        let (layers, memory) = decoding.await?;
        Ok((self.with_reads(reads, layers, memory).await?, is_whole))
    }

    /// Encodes the layers again with a start that reads this. Spans that it reads are divided
    /// first.
    async fn with_reads(
        &self,
        reads: LayerReads,
        layers: Vec<DecodedDocument>,
        memory: Charge,
    ) -> Result<EncodedDocuments, IndexError> {
        let budget = self.source.budget();
        let mut encoded =
            EncodedDocuments { documents: Vec::with_capacity(layers.len()), memory: budget.open() };
        for (layer, whole, fine) in layers {
            let of = layer.digest;
            let reads = reads.get(&layer.digest).cloned().unwrap_or_default();
            let divisions = divide(self, &layer, &fine, &reads).await?;
            let cache = self.work.cache.filter(|_| !self.work.options.dry_run).cloned();
            let encode = blocking(move || {
                let fine =
                    fine.divided(&divisions.spans).map_err(|source| unwritten(&layer, source))?;
                let start: Vec<Range<SpanId>> =
                    reads.into_iter().map(|bytes| fine.spans_of(bytes)).collect();
                let document = encoded.push(layer, &fine, &start)?;
                // Its spans were divided by reading the layer, so it is as good as the one without
                // a start.
                if let Some(cache) = cache.filter(|cache| cache.is_proven(&of, &whole)) {
                    cache.put_proven(&of, &document.head_digest);
                }
                Ok(encoded)
            });
            encoded = encode.await?;
        }
        drop(memory);
        Ok(encoded)
    }
}

impl EncodedDocuments {
    /// Encodes a layer's document with this start.
    fn push(
        &mut self,
        layer: Descriptor,
        fine: &FineLayer,
        start: &[Range<SpanId>],
    ) -> Result<Arc<EncodedFine>, IndexError> {
        let document = fine.encode(start).map_err(|source| unwritten(&layer, source))?;
        let charged = self
            .memory
            .grow(document.bytes.len() as u64, || format!("the fine document of {}", layer.digest));
        charged.map_err(|source| unwritten(&layer, source.into()))?;
        let document = Arc::new(document);
        self.documents.push((layer, Arc::clone(&document)));
        Ok(document)
    }
}

/// The parts of the layer's tar that are the start in a document, which takes reading its head.
async fn start_of(
    destination: &Destination,
    document: &FineRef,
) -> Result<Vec<Range<Uncompressed>>, NotCarriedOver> {
    if !document.has_start() {
        return Ok(Vec::new());
    }
    let store = destination.as_source();
    let mut memory = store.budget().open();
    let charged = memory.grow(document.head_size, || format!("the head of {}", document.document));
    charged.map_err(|over| NotCarriedOver::lost(&over))?;
    let blob = document.blob();
    let mut bypass_caches = false;
    let head = loop {
        let head =
            match store.blob_range_bypassing(&blob, 0..document.head_size, bypass_caches).await {
                Ok(head) => head,
                // A web page instead of it may come once.
                Err(error)
                    if !bypass_caches
                        && store.is_remote()
                        && Damage::of(&error) == Some(Damage::Damaged) =>
                {
                    bypass_caches = true;
                    continue;
                }
                Err(error) => match BlobCheck::Size.damage(destination, &blob).await {
                    Ok(Some(_)) => return Err(NotCarriedOver::lost(&error)),
                    _ => return Err(NotCarriedOver::of("fine document", blob.digest, error)),
                },
            };
        if Digest::sha256(&head) == document.head_digest {
            break head;
        }
        // The bytes may have been damaged on the way, or by a cache.
        if bypass_caches || !store.is_remote() {
            let text = format!(
                "the head of {} does not have the digest that its index states",
                document.document
            );
            return Err(NotCarriedOver::Lost(text));
        }
        bypass_caches = true;
    };
    let head = fine::decode_head(&head, document.size, &mut memory)
        .map_err(|error| NotCarriedOver::lost(&error))?;
    let (spans, last) =
        (head.spans(), |spans: &Range<SpanId>| SpanId(spans.end.0.saturating_sub(1)));
    let bytes = |range: &Range<SpanId>| {
        spans.plain_range(range.start).start..spans.plain_range(last(range)).end
    };
    Ok(head.start().iter().map(bytes).collect())
}

fn decoded(
    documents: Vec<LayerDocument>,
    memory: &mut Charge,
) -> Result<Vec<DecodedDocument>, IndexError> {
    let decoded = documents.into_iter().map(|(layer, document)| {
        let fine =
            fine::decode(&document.bytes, memory).map_err(|source| unwritten(&layer, source))?;
        Ok((layer, document.head_digest, fine))
    });
    decoded.collect()
}

fn unwritten(layer: &Descriptor, source: FineError) -> IndexError {
    IndexError::Fine { layer: layer.digest, source }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IndexError> + Send + 'static,
) -> Result<T, IndexError> {
    spawn_blocking(work).await.map_err(|_| IndexError::PrefetchThread)?
}

/// The most bytes of the blob in a request, and the most that are skipped between two spans of one
/// request.
const REQUEST: u64 = 4 << 20;
const GAP: u64 = 256 << 10;
/// How many requests are in progress at a time.
const AT_A_TIME: usize = 4;
/// Larger spans are not divided: their blocks are too large for that. In bytes of the tar.
const MAX_PLAIN: u64 = 4 << 20;

/// The divisions of a layer's spans, with the charge for their memory.
struct Divisions {
    pub spans: BTreeMap<SpanId, SpanDivision>,
    _memory: Charge,
}

/// A span to divide, with its window.
type WholeSpan = (SpanId, Option<SpanWindow>);

/// Divides the spans of a layer that hold bytes of `reads`. They stay whole if time runs out, if
/// the registry does not send parts of layers, or if it sends bytes that the document does not
/// prove. A warning says so.
///
/// # Errors
/// If the layer cannot be read, or there is not enough memory.
async fn divide(
    writer: &StartWriter<'_>,
    layer: &Descriptor,
    fine: &FineLayer,
    reads: &[Range<Uncompressed>],
) -> Result<Divisions, IndexError> {
    let mut memory = writer.source.budget().open();
    let unwritten =
        |source: OverBudget| IndexError::Fine { layer: layer.digest, source: source.into() };
    let what = || format!("the divided spans of {}", layer.digest);
    // A copy of where spans begin, and the list with those of divided spans.
    let starts = 2 * u64::from(fine.spans().count()) * size_of::<FineStart>() as u64;
    memory.grow(starts, what).map_err(unwritten)?;
    let spans = Arc::new(fine.spans().clone());
    let batches = batches(&spans, reads);
    let read: Arc<[Range<Uncompressed>]> = reads.into();
    let mut divided = BTreeMap::new();
    let dividing = async {
        let mut batches = batches
            .into_iter()
            .map(|batch| divide_batch(writer, layer, fine, &spans, &read, batch));
        // Whether the registry sends parts of blobs is known after one request.
        let first = stream::iter(batches.next()).buffered(1);
        let mut done = first.chain(stream::iter(batches).buffer_unordered(AT_A_TIME));
        while let Some(batch) = done.next().await {
            if !writer.source.sends_parts() {
                return Ok(Err("the registry does not send parts of layers"));
            }
            for (span, division) in batch? {
                match division {
                    Ok(division) => {
                        memory.grow(division.footprint() as u64, what).map_err(unwritten)?;
                        divided.insert(span, division);
                    }
                    Err(error) => {
                        let text = format!(
                            "layer {}: span {span} is not divided: {}",
                            layer.digest,
                            causes(&error)
                        );
                        writer.work.progress.report(ProgressEvent::Warning(text));
                    }
                }
            }
        }
        Ok::<_, IndexError>(Ok(()))
    };
    if let Err(why) =
        writer.work.options.before_deadline(dividing).await.unwrap_or(Ok(Err("time ran out")))?
    {
        let text = format!(
            "layer {}: the spans of the recorded startup are not divided: {why}",
            layer.digest
        );
        writer.work.progress.report(ProgressEvent::Warning(text));
        divided.clear();
    }
    Ok(Divisions { spans: divided, _memory: memory })
}

/// The spans that can be divided among those with bytes of `reads`, in batches that are fetched
/// together.
fn batches(spans: &FineSpans, reads: &[Range<Uncompressed>]) -> Vec<Vec<SpanId>> {
    let touched: BTreeSet<SpanId> = match spans.codec() {
        Codec::Gzip | Codec::Zstd => {
            reads.iter().flat_map(|bytes| SpanId::each(spans.covering(bytes.clone()))).collect()
        }
        Codec::Plain => BTreeSet::new(),
    };
    let mut batches: Vec<Vec<SpanId>> = Vec::new();
    for span in touched {
        let plain = spans.plain_range(span);
        let blob = spans.fetch_range(span);
        let is_large = match spans.codec() {
            Codec::Plain | Codec::Gzip => {
                plain.end - plain.start > MAX_PLAIN || blob.end - blob.start > REQUEST
            }
            // These are meant to be divided, whatever their size is.
            Codec::Zstd => false,
        };
        if is_large {
            continue;
        }
        let fits = |batch: &&mut Vec<SpanId>| {
            let (Some(first), Some(last)) = (batch.first(), batch.last()) else { return false };
            let first = spans.fetch_range(*first);
            let last = spans.fetch_range(*last);
            blob.start - last.end <= GAP && blob.end - first.start <= REQUEST
        };
        match batches.last_mut().filter(fits) {
            Some(batch) => batch.push(span),
            None => batches.push(vec![span]),
        }
    }
    batches
}

async fn divide_batch(
    writer: &StartWriter<'_>,
    layer: &Descriptor,
    fine: &FineLayer,
    spans: &Arc<FineSpans>,
    reads: &Arc<[Range<Uncompressed>]>,
    batch: Vec<SpanId>,
) -> Result<Vec<(SpanId, Result<SpanDivision, SpanError>)>, IndexError> {
    let unwritten = |source| IndexError::Fine { layer: layer.digest, source };
    let (Some(first), Some(last)) = (batch.first(), batch.last()) else { return Ok(Vec::new()) };
    let range = spans.fetch_range(*first).start.0..spans.fetch_range(*last).end.0;
    let charged = writer
        .source
        .budget()
        .charge(range.end - range.start, || format!("spans {first} to {last} of {}", layer.digest));
    let _memory = charged.map_err(|source| unwritten(source.into()))?;
    let whole: Vec<WholeSpan> = batch
        .into_iter()
        .map(|span| Ok((span, fine.window(span)?)))
        .collect::<Result<_, _>>()
        .map_err(unwritten)?;
    let mut bypass_caches = false;
    loop {
        let read = writer.source.blob_range_bypassing(layer, range.clone(), bypass_caches).await;
        let bytes = read.map_err(|source| IndexError::ReadSpans { layer: layer.digest, source })?;
        writer.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let spans = Arc::clone(spans);
        let reads = Arc::clone(reads);
        let whole = whole.clone();
        let start = range.start;
        let dividing = spawn_blocking(move || divide_all(&spans, whole, &reads, &bytes, start));
        let divided = dividing.await.map_err(|_| IndexError::PrefetchThread)?;
        // The bytes may have been damaged on the way, or by a cache.
        if bypass_caches
            || !writer.source.is_remote()
            || divided.iter().all(|(_, division)| division.is_ok())
        {
            return Ok(divided);
        }
        bypass_caches = true;
    }
}

/// `bytes` are those of the blob from `start` on.
fn divide_all(
    spans: &FineSpans,
    whole: Vec<WholeSpan>,
    reads: &[Range<Uncompressed>],
    bytes: &Bytes,
    start: u64,
) -> Vec<(SpanId, Result<SpanDivision, SpanError>)> {
    let divide = |(span, window): WholeSpan| {
        let range = spans.fetch_range(span);
        let blob = bytes
            .get((range.start.0 - start) as usize..(range.end.0 - start) as usize)
            .unwrap_or_default();
        (span, divide_span(spans, span, window.as_ref(), blob, reads))
    };
    whole.into_iter().map(divide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::budget::Budget;
    use ociseek_format::digest::ChainState;
    use ociseek_format::fine::{Codec, FineSpans, SpanParts};
    use ociseek_format::offset::{Compressed, Uncompressed};

    #[test]
    fn reencoded_documents_are_charged() {
        let digest = Digest::sha256(&[0; 1024]);
        let parts = SpanParts {
            layer: digest,
            codec: Codec::Plain,
            blob_size: 1024,
            tar_end: Uncompressed(1024),
            span_size: fine::SPAN_SIZE,
            starts: vec![fine::FineStart {
                input: Compressed(0),
                output: Uncompressed(0),
                bits: 0,
                state: ChainState::INITIAL,
            }],
        };
        let fine =
            FineLayer::new(Vec::new(), FineSpans::new(parts).unwrap(), std::iter::empty()).unwrap();
        let size = fine.encode(&[]).unwrap().bytes.len() as u64;
        let budget = Budget::new(2 * size - 1);
        let mut encoded = EncodedDocuments { documents: Vec::new(), memory: budget.open() };
        let layer = Descriptor::new("layer", digest, 1024);
        encoded.push(layer.clone(), &fine, &[]).unwrap();
        assert_eq!(budget.used(), size);
        let refused = encoded.push(layer, &fine, &[]);
        assert!(
            matches!(refused, Err(IndexError::Fine { source: FineError::Memory(_), .. })),
            "{refused:?}"
        );
        assert_eq!(encoded.documents.len(), 1);
        drop(encoded);
        assert_eq!(budget.used(), 0);
    }
}
