//! Fetching spans: neighbours in one request, each decoded as soon as its last byte is here.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Inner;
use super::counts::CountedPart;
use super::decode::decode;
use super::error::ReadError;
use super::flights::Wanted;
use super::layer::Layer;
use super::pieces::Run;
use crate::layer::span::SpanError;
use crate::rootfs::layers::MAX_COMPRESSED;
use crate::store::StoreError;

/// Compressed bytes that one request brings, unless a single span has more.
const REQUEST: u64 = 16 << 20;
/// Compressed bytes that are in memory at a time, waiting for the rest of their span or for a decoder, in units of [`UNIT`].
pub(super) const UNITS: usize = (128 << 20) / UNIT as usize;
const UNIT: u64 = 64 << 10;
/// Requests at a time.
pub(super) const LINES: usize = 8;
/// How often a silent connection is given up before the deadline.
const PATIENCE: u32 = 4;

/// Fetches spans of one layer in the background. With `anew` nobody looks whether the cache has them.
pub(super) fn launch(inner: &Arc<Inner>, number: u32, mut spans: Vec<Wanted>, anew: bool) {
    if spans.is_empty() {
        return;
    }
    spans.sort_by_key(|wanted| wanted.flight.span);
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        let spans = if anew { spans } else { inner.not_on_disk(number, spans).await };
        let Some(layer) = inner.layers.get(number as usize) else { return };
        if layer.open.map().is_unpacked() {
            super::again::decode_again(&inner, number, layer, spans, anew).await;
            return;
        }
        for group in groups(layer, spans) {
            let inner = Arc::clone(&inner);
            tokio::spawn(async move { fetch(&inner, number, group).await });
        }
    });
}

/// Neighbours that are fetched together. `spans` is in order.
fn groups(layer: &Layer, spans: Vec<Wanted>) -> Vec<VecDeque<Wanted>> {
    let mut groups: Vec<VecDeque<Wanted>> = Vec::new();
    for wanted in spans {
        let end = layer.blob_range(wanted.flight.span).end;
        let fits = |group: &&mut VecDeque<Wanted>| {
            let is_next = group.back().is_some_and(|last| last.flight.span + 1 == wanted.flight.span);
            let start = group.front().map_or(end, |first| layer.blob_range(first.flight.span).start);
            is_next && end - start <= REQUEST
        };
        match groups.last_mut().filter(fits) {
            Some(group) => group.push_back(wanted),
            None => groups.push(VecDeque::from([wanted])),
        }
    }
    groups
}

async fn fetch(inner: &Arc<Inner>, number: u32, mut group: VecDeque<Wanted>) {
    let Some(layer) = inner.layers.get(number as usize) else { return };
    let digest = layer.open.descriptor.digest;
    let deadline = inner.options.deadline;
    let received = timeout(deadline, receive(inner, number, layer, &mut group)).await;
    // What is left in the group did not come.
    for wanted in group {
        let span = wanted.flight.span;
        let error = match &received {
            Ok(Ok(())) => continue,
            Ok(Err(Failed::Store(source))) => ReadError::Fetch { layer: digest, span, source: Arc::clone(source) },
            Ok(Err(Failed::TooLarge(bytes))) => {
                ReadError::TooLarge { layer: digest, span, bytes: *bytes, limit: MAX_COMPRESSED }
            }
            Err(_) => ReadError::Deadline { layer: digest, span, after: deadline },
        };
        wanted.flight.land(Err(error));
    }
}

enum Failed {
    Store(Arc<StoreError>),
    TooLarge(u64),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Store(Arc::new(error))
    }
}

/// Reads the bytes of the spans of `group`, and takes each out of it that is complete.
async fn receive(inner: &Arc<Inner>, number: u32, layer: &Layer, group: &mut VecDeque<Wanted>) -> Result<(), Failed> {
    let (Some(first), Some(last)) = (group.front(), group.back()) else { return Ok(()) };
    let mut position = layer.blob_range(first.flight.span).start;
    let end = layer.blob_range(last.flight.span).end;
    let largest = group.iter().map(|w| layer.blob_range(w.flight.span)).map(|r| r.end - r.start).max();
    if let Some(bytes) = largest.filter(|bytes| *bytes > MAX_COMPRESSED) {
        return Err(Failed::TooLarge(bytes));
    }
    let _line = inner.lines.acquire().await;
    let permit = Arc::new(inner.permit(end - position).await);
    let stall = inner.options.deadline / PATIENCE;
    // The bytes of the first span of the group that is not complete. Neighbours may share a byte.
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        let part = inner.source.blob_part(&layer.open.descriptor, position..end, false).await?;
        let mut part = CountedPart::new(part, &inner.counts);
        loop {
            let Ok(next) = timeout(stall, part.next()).await else { break };
            let Some(mut chunk) = next? else { return Ok(()) };
            position += chunk.len() as u64;
            while let Some(wanted) = group.front() {
                let range = layer.blob_range(wanted.flight.span);
                let missing = usize::try_from(range.end - range.start).unwrap_or(usize::MAX) - bytes.len();
                if chunk.len() < missing {
                    bytes.extend_from_slice(&chunk);
                    break;
                }
                bytes.extend_from_slice(&chunk.split_to(missing));
                let shared = group.get(1).is_some_and(|next| layer.blob_range(next.flight.span).start < range.end);
                let seed = bytes.last().copied().filter(|_| shared);
                let complete = std::mem::replace(&mut bytes, seed.into_iter().collect());
                if let Some(wanted) = group.pop_front() {
                    tokio::spawn(finish(Arc::clone(inner), number, wanted, complete, Arc::clone(&permit)));
                }
            }
        }
        // Nothing came for long: perhaps another connection does better.
        inner.counts.retries.add(1);
    }
}

/// Decodes a span whose bytes are all here, and lands its flight.
async fn finish(
    inner: Arc<Inner>,
    number: u32,
    wanted: Wanted,
    blob: Vec<u8>,
    permit: Arc<Option<OwnedSemaphorePermit>>,
) {
    let Some(layer) = inner.layers.get(number as usize) else { return };
    let (span, digest) = (wanted.flight.span, layer.open.descriptor.digest);
    let landed = match decode_off(&inner, number, span, &wanted.pieces, blob).await {
        // Whatever lies between us and the registry may have kept wrong bytes.
        Some(Err(SpanError::Digest { .. } | SpanError::Length { .. })) => {
            inner.counts.retries.add(1);
            let deadline = inner.options.deadline;
            match timeout(deadline, fetch_anew(&inner, layer, span)).await {
                Ok(Ok(blob)) => decode_off(&inner, number, span, &wanted.pieces, blob)
                    .await
                    .map(|decoded| decoded.map_err(|source| ReadError::Span { layer: digest, source })),
                Ok(Err(source)) => Some(Err(ReadError::Fetch { layer: digest, span, source: Arc::new(source) })),
                Err(_) => Some(Err(ReadError::Deadline { layer: digest, span, after: deadline })),
            }
        }
        Some(decoded) => Some(decoded.map_err(|source| ReadError::Span { layer: digest, source })),
        None => None,
    };
    drop(permit);
    if let Some(landed) = landed {
        wanted.flight.land(landed.map(Arc::new));
    }
}

async fn fetch_anew(inner: &Inner, layer: &Layer, span: u32) -> Result<Vec<u8>, StoreError> {
    let part = inner.source.blob_part(&layer.open.descriptor, layer.blob_range(span), true).await?;
    let mut part = CountedPart::new(part, &inner.counts);
    let mut bytes = Vec::new();
    while let Some(chunk) = part.next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Decodes on a thread that may block, as one of a few. `None` if the program is ending.
async fn decode_off(
    inner: &Arc<Inner>,
    number: u32,
    span: u32,
    wanted: &Option<Range<u32>>,
    blob: Vec<u8>,
) -> Option<Result<Run, SpanError>> {
    let slot = Arc::clone(&inner.decoders).acquire_owned().await.ok()?;
    let (inner, wanted) = (Arc::clone(inner), wanted.clone());
    let decoded = spawn_blocking(move || {
        let _slot = slot;
        let layer = inner.layers.get(number as usize)?;
        Some(decode(&inner, number, layer, span, wanted.as_ref(), &blob))
    });
    decoded.await.ok().flatten()
}

impl Inner {
    /// Room for so many compressed bytes; what is more than all room there is gets that.
    async fn permit(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(UNITS as u32);
        Arc::clone(&self.room).acquire_many_owned(units).await.ok()
    }

    /// Lands the flights of those spans that the cache has after all.
    pub(super) async fn not_on_disk(self: &Arc<Self>, number: u32, spans: Vec<Wanted>) -> Vec<Wanted> {
        let inner = Arc::clone(self);
        let asked = spawn_blocking(move || {
            let Some(layer) = inner.layers.get(number as usize).filter(|layer| inner.keeps_on_disk(layer)) else {
                return spans;
            };
            let (there, missing): (Vec<Wanted>, Vec<Wanted>) = spans.into_iter().partition(|wanted| {
                let span = wanted.flight.span;
                inner.cache.has(&layer.key(span), layer.size(span))
            });
            there.into_iter().for_each(|wanted| wanted.flight.land(Ok(Arc::default())));
            missing
        });
        asked.await.unwrap_or_default()
    }
}
