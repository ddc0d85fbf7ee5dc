//! Divides the spans that a start reads, so that it fetches fewer bytes that it does not read. That
//! takes reading these spans once more, about a tenth of an image.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;

use super::writer::StartWriter;
use crate::index::error::IndexError;
use ociseek_format::budget::{Charge, OverBudget};
use ociseek_format::fine::{Codec, FineLayer, FineSpans, FineStart, SpanDivision, SpanWindow};
use ociseek_format::image::Descriptor;
use ociseek_format::layer::divide_span;
use ociseek_format::layer::span::SpanError;
use ociseek_format::offset::{SpanId, Uncompressed};
use ociseek_format::progress::{ProgressEvent, causes};

/// The most bytes of the blob in a request, and the most that are skipped between two spans of one
/// request.
const REQUEST: u64 = 4 << 20;
const GAP: u64 = 256 << 10;
/// How many requests are in progress at a time.
const AT_A_TIME: usize = 4;
/// Larger spans are not divided: their blocks are too large for that. In bytes of the tar.
const MAX_PLAIN: u64 = 4 << 20;

/// The divisions of a layer's spans, with the charge for their memory.
pub(super) struct Divisions {
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
pub(super) async fn divide(
    writer: &StartWriter<'_>,
    layer: &Descriptor,
    fine: &FineLayer,
    reads: &[Range<Uncompressed>],
) -> Result<Divisions, IndexError> {
    let mut memory = writer.source.budget().open();
    let unwritten = |source: OverBudget| IndexError::Fine { layer: layer.digest, source: source.into() };
    let what = || format!("the divided spans of {}", layer.digest);
    // A copy of where spans begin, and the list with those of divided spans.
    let starts = 2 * u64::from(fine.spans().count()) * size_of::<FineStart>() as u64;
    memory.grow(starts, what).map_err(unwritten)?;
    let spans = Arc::new(fine.spans().clone());
    let batches = batches(&spans, reads);
    let read: Arc<[Range<Uncompressed>]> = reads.into();
    let mut divided = BTreeMap::new();
    let dividing = async {
        let mut batches = batches.into_iter().map(|batch| divide_batch(writer, layer, fine, &spans, &read, batch));
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
                        let text = format!("layer {}: span {span} is not divided: {}", layer.digest, causes(&error));
                        writer.work.progress.report(ProgressEvent::Warning(text));
                    }
                }
            }
        }
        Ok::<_, IndexError>(Ok(()))
    };
    if let Err(why) = writer.work.options.before_deadline(dividing).await.unwrap_or(Ok(Err("time ran out")))? {
        let text = format!("layer {}: the spans of the recorded start are not divided: {why}", layer.digest);
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
        let (plain, blob) = (spans.plain_range(span), spans.fetch_range(span));
        let is_large = match spans.codec() {
            Codec::Plain | Codec::Gzip => plain.end - plain.start > MAX_PLAIN || blob.end - blob.start > REQUEST,
            // These are meant to be divided, whatever their size is.
            Codec::Zstd => false,
        };
        if is_large {
            continue;
        }
        let fits = |batch: &&mut Vec<SpanId>| {
            let (Some(first), Some(last)) = (batch.first(), batch.last()) else { return false };
            let (first, last) = (spans.fetch_range(*first), spans.fetch_range(*last));
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
    let what = || format!("spans {first} to {last} of {}", layer.digest);
    let charged = writer.source.budget().charge(range.end - range.start, what);
    let _memory = charged.map_err(|source| unwritten(source.into()))?;
    let whole: Vec<WholeSpan> =
        batch.into_iter().map(|span| Ok((span, fine.window(span)?))).collect::<Result<_, _>>().map_err(unwritten)?;
    let mut bypass_caches = false;
    loop {
        let read = writer.source.blob_range_bypassing(layer, range.clone(), bypass_caches).await;
        let bytes = read.map_err(|source| IndexError::ReadSpans { layer: layer.digest, source })?;
        writer.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let (spans, reads, whole, start) = (Arc::clone(spans), Arc::clone(reads), whole.clone(), range.start);
        let dividing = spawn_blocking(move || divide_all(&spans, whole, &reads, &bytes, start));
        let divided = dividing.await.map_err(|_| IndexError::PrefetchThread)?;
        // The bytes may have been damaged on the way, or by a cache.
        if bypass_caches || !writer.source.is_remote() || divided.iter().all(|(_, division)| division.is_ok()) {
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
        let blob = bytes.get((range.start.0 - start) as usize..(range.end.0 - start) as usize).unwrap_or_default();
        (span, divide_span(spans, span, window.as_ref(), blob, reads))
    };
    whole.into_iter().map(divide).collect()
}
