//! Fetches spans: neighbours in one request, each decoded as soon as its last byte has arrived.
//! Counts what the requests take.

use std::collections::VecDeque;
use std::iter::{self, repeat};
use std::mem;
use std::mem::take;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::budget::ReadBudget;
use super::claim::MissingSpans;
use super::in_flight::{FetchPromise, FetchRole, SpanRequest};
use super::inner::{CountGuard, Layer, LayerHandle, on_disk};
use super::pieces::{DecodedSpan, HANDED_OVER, covering};
use super::race::Race;
use super::{Counts, FetchCause, Purpose, ReadError};
use crate::layers::MAX_COMPRESSED;
use ociseek_format::fine::{FineSpans, Windows};
use ociseek_format::layer::span::SpanError;
use ociseek_format::offset::SpanId;
use ociseek_store::{Part, StoreError};

/// The most compressed bytes in a request, unless a single span has more: as many as a connection
/// delivers in this time, between these limits. What is fetched ahead of a reader is more. So it
/// comes over several connections if the registry limits the speed of each.
const REQUEST: Range<u64> = 4 << 20..16 << 20;
const REQUEST_TIME: Duration = Duration::from_millis(50);
/// The most bytes of the blob between two spans of a request that are fetched in vain.
pub(super) const MOST_BETWEEN: u64 = 1 << 20;

/// Spans that no read waits for are handed to a decoder together, up to this many compressed bytes:
/// handing over a small span takes longer than decoding it. None waits longer than this for others.
const HANDED: usize = 1 << 20;
const HANDED_WITHIN: Duration = Duration::from_millis(4);

/// Whether the cache on disk may have a span that should be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disk {
    /// Look there first.
    Ask,
    /// The cache has or claimed to have the span, but it could not be read, so fetch it.
    Skip,
}

impl LayerHandle {
    /// Fetches spans in the background.
    pub(super) fn launch(&self, mut spans: Vec<SpanRequest>, disk: Disk, cause: FetchCause) {
        if spans.is_empty() {
            return;
        }
        spans.sort_by_key(|wanted| wanted.promise.span());
        if let Some(read) = spans.iter().find(|of| of.promise.cause() == FetchCause::Read) {
            let at = self.layer.open.spans.plain_range(read.promise.span()).start.0;
            self.inner.rest.note_read(self.id, at, || self.layer.file_at(at));
        }
        let handle = self.clone();
        tokio::spawn(async move {
            if handle.layer.open.map().is_unpacked() {
                let spans = match disk {
                    Disk::Ask => handle.not_on_disk(spans).await,
                    Disk::Skip => spans,
                };
                handle.unpack(spans, disk).await;
                return;
            }
            let MissingSpans { ours, others } = match disk {
                Disk::Ask => handle.claim(spans).await,
                Disk::Skip => MissingSpans { ours: spans, others: Vec::new() },
            };
            handle.fetch_groups(ours, cause);
            if !others.is_empty() {
                handle.await_others(others, cause).await;
            }
        });
    }

    /// Fetches spans, which must be in order.
    pub(super) fn fetch_groups(&self, spans: Vec<SpanRequest>, cause: FetchCause) {
        let between = self.inner.pace.bytes_per_request().min(MOST_BETWEEN);
        let most = self.inner.pace.bytes_in(REQUEST_TIME).clamp(REQUEST.start, REQUEST.end);
        for group in groups(&self.layer, spans, between, most) {
            let handle = self.clone();
            tokio::spawn(async move {
                let _counted =
                    (cause == FetchCause::Read).then(|| CountGuard::new(&handle.inner.waited_for));
                handle.fetch(group).await;
            });
        }
    }

    async fn fetch(&self, mut group: VecDeque<SpanRequest>) {
        let layer = self.layer.digest();
        let budget = ReadBudget::new(self.inner.options.deadline);
        let asked = group.len();
        let first = group.front().map(|wanted| wanted.promise.span().0);
        let spans: Vec<SpanId> = group.iter().map(|wanted| wanted.promise.span()).collect();
        let purpose = if self.inner.start.covers(spans.iter().map(|span| self.span(*span))) {
            Purpose::Start
        } else {
            Purpose::Read
        };
        self.fetch_windows(spans.into_iter(), purpose);
        let mut arrived = ArrivedSpans::default();
        let receiving = self.receive(&mut group, &mut arrived, purpose, budget);
        let received = budget.wait(receiving).await;
        // What has arrived is whole, whatever came after it.
        self.hand_over(&mut arrived, purpose, budget);
        debug!(
            name: "fetched", target: "ociseek::content",
            %layer, first_span = first, spans = asked - group.len(), of = asked,
            ms = budget.elapsed().as_millis() as u64,
        );
        // The spans left in the group did not arrive.
        for wanted in group {
            let span = wanted.promise.span();
            let error = match &received {
                Some(Ok(())) => continue,
                Some(Err(Failed::Store(source))) => {
                    ReadError::Fetch { layer, span, source: Arc::clone(source) }
                }
                Some(Err(Failed::TooLarge(bytes))) => {
                    ReadError::TooLarge { layer, span, bytes: *bytes, limit: MAX_COMPRESSED }
                }
                None => budget.exceeded(layer, span),
            };
            wanted.promise.complete(Err(error));
        }
    }

    /// Reads the bytes of the spans in `group`, and moves each complete span from there to
    /// `arrived` and on to a decoder.
    async fn receive(
        &self,
        group: &mut VecDeque<SpanRequest>,
        arrived: &mut ArrivedSpans,
        purpose: Purpose,
        budget: ReadBudget,
    ) -> Result<(), Failed> {
        let LayerHandle { inner, layer, .. } = self;
        let (Some(first), Some(last)) = (group.front(), group.back()) else { return Ok(()) };
        let mut position = layer.blob_range(first.promise.span()).start;
        let end = layer.blob_range(last.promise.span()).end;
        let largest =
            group.iter().map(|w| layer.blob_range(w.promise.span())).map(|r| r.end - r.start).max();
        if let Some(bytes) = largest.filter(|bytes| *bytes > MAX_COMPRESSED) {
            return Err(Failed::TooLarge(bytes));
        }
        let _permit = inner.requests.acquire().await;
        arrived.permit = Arc::new(inner.permit(end - position).await);
        // The bytes of the first incomplete span in the group. Neighbours may share a byte, and
        // `position` is that of the next byte that arrives.
        let mut bytes: Vec<u8> = Vec::new();
        let mut race = Race::new(self, position..end, purpose);
        loop {
            let next = match arrived.due() {
                None => race.next().await?,
                Some(due) => match timeout_at(due, race.next()).await {
                    Ok(next) => next?,
                    Err(_) => {
                        self.hand_over(arrived, purpose, budget);
                        continue;
                    }
                },
            };
            let Some(mut chunk) = next else { return Ok(()) };
            while let Some(wanted) = group.front() {
                let range = layer.blob_range(wanted.promise.span());
                // What lies between two spans is of no use.
                let between = range.start.saturating_sub(position).min(chunk.len() as u64);
                let _ = chunk.split_to(between as usize);
                position += between;
                let missing =
                    usize::try_from(range.end - range.start).unwrap_or(usize::MAX) - bytes.len();
                if chunk.len() < missing {
                    bytes.reserve_exact(missing);
                    bytes.extend_from_slice(&chunk);
                    position += chunk.len() as u64;
                    break;
                }
                bytes.extend_from_slice(&chunk.split_to(missing));
                position = range.end;
                let shared = group
                    .get(1)
                    .is_some_and(|next| layer.blob_range(next.promise.span()).start < range.end);
                let seed = bytes.last().copied().filter(|_| shared);
                let blob = std::mem::replace(&mut bytes, seed.into_iter().collect());
                if let Some(wanted) = group.pop_front() {
                    let is_awaited = wanted.promise.cause() == FetchCause::Read;
                    if is_awaited {
                        // It does not queue behind those that nobody waits for.
                        self.hand_over(arrived, purpose, budget);
                    }
                    arrived.push(ArrivedSpan { wanted, blob });
                    if is_awaited || arrived.bytes >= HANDED || group.is_empty() {
                        self.hand_over(arrived, purpose, budget);
                    }
                }
            }
        }
    }

    /// Has what has arrived decoded.
    fn hand_over(&self, arrived: &mut ArrivedSpans, purpose: Purpose, budget: ReadBudget) {
        arrived.bytes = 0;
        arrived.since = None;
        let spans = take(&mut arrived.spans);
        if !spans.is_empty() {
            let permit = Arc::clone(&arrived.permit);
            tokio::spawn(self.clone().finish(spans, purpose, budget, permit));
        }
    }

    /// Decodes spans whose bytes have all arrived, and ends their promises.
    async fn finish(
        self,
        spans: Vec<ArrivedSpan>,
        purpose: Purpose,
        budget: ReadBudget,
        permit: Arc<Option<OwnedSemaphorePermit>>,
    ) {
        let begun = Instant::now();
        let mut decodable = Vec::with_capacity(spans.len());
        for ArrivedSpan { wanted, blob } in spans {
            let span = wanted.promise.span();
            let windows = match self.windows(span, purpose, budget).await {
                Ok(windows) => windows,
                Err(error) => {
                    wanted.promise.complete(Err(error));
                    continue;
                }
            };
            let next = SpanId(span.0 + 1);
            if self.layer.window_checks.was_used(next) {
                // It may not be in memory any more. The span that is decoded now shows whether it
                // was right.
                let _ = self.windows(next, purpose, budget).await;
            }
            decodable.push(DecodableSpan { wanted, windows, blob, begun });
        }
        let layer = self.layer.digest();
        for mut damaged in self.decode_off(decodable, Attempt::First).await {
            // A cache between us and the registry may have stored wrong bytes.
            let span = damaged.wanted.promise.span();
            self.inner.counts.retries.add(1);
            let fetched = budget.wait(self.fetch_past_caches(span, purpose)).await;
            let error = match fetched {
                Some(Ok(blob)) => {
                    damaged.blob = blob;
                    self.decode_off(vec![damaged], Attempt::Last).await;
                    continue;
                }
                Some(Err(source)) => ReadError::Fetch { layer, span, source: Arc::new(source) },
                None => budget.exceeded(layer, span),
            };
            damaged.wanted.promise.complete(Err(error));
        }
        drop(permit);
    }

    /// The bytes of a span, from the registry itself.
    async fn fetch_past_caches(
        &self,
        span: SpanId,
        purpose: Purpose,
    ) -> Result<Vec<u8>, StoreError> {
        let LayerHandle { inner, layer, .. } = self;
        let part =
            inner.source.blob_part(&layer.open.descriptor, layer.blob_range(span), true).await?;
        let mut part = CountedPart::new(part, &inner.counts, purpose);
        let mut bytes = Vec::new();
        while let Some(chunk) = part.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// Decodes spans on a thread that may block. What no read asked for is decoded a few spans at a
    /// time; what a read waits for does not queue behind that. Returns those whose bytes should be
    /// fetched again.
    async fn decode_off(&self, spans: Vec<DecodableSpan>, attempt: Attempt) -> Vec<DecodableSpan> {
        let inner = &self.inner;
        let is_awaited = spans.iter().any(|of| of.wanted.promise.cause() == FetchCause::Read);
        let decoders = if is_awaited { &inner.read_decoders } else { &inner.decoders };
        let Ok(slot) = Arc::clone(decoders).acquire_owned().await else { return Vec::new() };
        let handle = self.clone();
        let (sender, decoded) = oneshot::channel();
        spawn_blocking(move || {
            let (damaged, unstored) = handle.decode_and_end(spans, attempt);
            // A disk that does not answer must not keep a decoder.
            drop(slot);
            let size = |(promise, _): &(FetchPromise, _)| handle.layer.size(promise.span());
            let room = handle.inner.cache.wait_to_store(unstored.iter().map(size).sum());
            let _ = sender.send(damaged);
            if room.is_some() {
                for (promise, mut decoded) in unstored {
                    decoded.store();
                    promise.complete(Ok(decoded.run));
                }
            }
        });
        decoded.await.unwrap_or_default()
    }

    /// Decodes spans, and keeps their promises. Returns those whose bytes are not the layer's
    /// instead, unless this is the last attempt, and those that are delivered and not stored on
    /// disk yet. Blocks.
    fn decode_and_end(
        &self,
        spans: Vec<DecodableSpan>,
        attempt: Attempt,
    ) -> (Vec<DecodableSpan>, Vec<(FetchPromise, DecodedSpan)>) {
        let layer = self.layer.digest();
        let mut damaged = Vec::new();
        let mut unstored = Vec::new();
        let mut rest = spans.into_iter();
        // Of more at a time, the first would wait longer than it must.
        while let Some(first) = rest.next() {
            let mut pair: Vec<DecodableSpan> = iter::once(first).chain(rest.next()).collect();
            // Damaged bytes are of no use.
            let blobs: Vec<Vec<u8>> = pair.iter_mut().map(|of| mem::take(&mut of.blob)).collect();
            let spans = pair.iter().map(|of| of.wanted.promise.span());
            let spans: Vec<(SpanId, &[u8])> =
                spans.zip(blobs.iter().map(|blob| &blob[..])).collect();
            for (proven, of) in self.layer.open.spans.prove(&spans).into_iter().zip(pair) {
                let decoded = proven.and_then(|proven| {
                    let DecodableSpan { wanted, windows, .. } = &of;
                    let span = wanted.promise.span();
                    self.decode(span, wanted.pieces.as_ref(), windows.as_deref(), &proven)
                });
                let result = match decoded {
                    Err(
                        SpanError::Digest { .. }
                        | SpanError::Length { .. }
                        | SpanError::Proof { .. },
                    ) if attempt == Attempt::First => {
                        damaged.push(of);
                        continue;
                    }
                    Err(source) => {
                        if source.is_contradiction() {
                            self.inner.contradict(self.layer.open.how, &layer, &source);
                        }
                        Err(ReadError::Span { layer, source })
                    }
                    Ok(decoded) => Ok(decoded),
                };
                if of.wanted.promise.cause() == FetchCause::Read {
                    self.inner.pace.note_handling(of.begun.elapsed());
                }
                let promise = of.wanted.promise;
                match result {
                    Err(error) => promise.complete(Err(error)),
                    Ok(decoded) if decoded.is_whole && decoded.is_unstored() => {
                        promise.deliver(Ok(Arc::clone(&decoded.run)));
                        unstored.push((promise, decoded));
                    }
                    Ok(mut decoded) => {
                        decoded.store();
                        promise.complete(Ok(decoded.run));
                    }
                }
            }
        }
        (damaged, unstored)
    }

    /// Completes the fetches of spans that are in the cache after all, and returns the others.
    pub(super) async fn not_on_disk(&self, spans: Vec<SpanRequest>) -> Vec<SpanRequest> {
        if !self.keeps_on_disk() {
            return spans;
        }
        let handle = self.clone();
        let wanted: Vec<SpanId> = spans.iter().map(|wanted| wanted.promise.span()).collect();
        let looked = on_disk(move || {
            wanted.into_iter().map(|span| handle.is_on_disk(span)).collect::<Vec<bool>>()
        });
        let looked = looked.await.unwrap_or_default();
        let mut missing = Vec::new();
        for (wanted, is_there) in spans.into_iter().zip(looked.into_iter().chain(repeat(false))) {
            if is_there {
                wanted.promise.complete(Ok(Arc::default()));
            } else {
                missing.push(wanted);
            }
        }
        missing
    }
}

/// A span with all its bytes.
struct ArrivedSpan {
    wanted: SpanRequest,
    blob: Vec<u8>,
}

/// The spans that have arrived and were not handed over yet.
#[derive(Default)]
struct ArrivedSpans {
    spans: Vec<ArrivedSpan>,
    /// The size of their compressed bytes, and when the first of them arrived.
    bytes: usize,
    since: Option<Instant>,
    /// For the bytes of all spans of the request.
    permit: Arc<Option<OwnedSemaphorePermit>>,
}

impl ArrivedSpans {
    fn push(&mut self, span: ArrivedSpan) {
        self.bytes += span.blob.len();
        self.since.get_or_insert_with(Instant::now);
        self.spans.push(span);
    }

    /// When they should not wait any longer.
    fn due(&self) -> Option<Instant> {
        Some(self.since? + HANDED_WITHIN)
    }
}

/// A span with all that is needed to decode it.
struct DecodableSpan {
    wanted: SpanRequest,
    windows: Option<Arc<Windows>>,
    blob: Vec<u8>,
    /// When handling it began.
    begun: Instant,
}

/// Whether the bytes of a span may be fetched once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    Last,
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

/// Groups spans that are fetched together: neighbours, and those with at most `between` bytes of
/// the blob between them. A group has at most `most` bytes, or one span. `spans` must be in order.
fn groups(
    layer: &Layer,
    spans: Vec<SpanRequest>,
    between: u64,
    most: u64,
) -> Vec<VecDeque<SpanRequest>> {
    let mut groups: Vec<VecDeque<SpanRequest>> = Vec::new();
    for wanted in spans {
        let blob = layer.blob_range(wanted.promise.span());
        let fits = |group: &&mut VecDeque<SpanRequest>| {
            let of = |wanted: &SpanRequest| layer.blob_range(wanted.promise.span());
            let last = group.back().map_or(0, |last| of(last).end);
            let start = group.front().map_or(blob.end, |first| of(first).start);
            blob.start.saturating_sub(last) <= between && blob.end - start <= most
        };
        match groups.last_mut().filter(fits) {
            Some(group) => group.push_back(wanted),
            None => groups.push(VecDeque::from([wanted])),
        }
    }
    groups
}

/// A part of a layer that adds up its costs, however reading it ends.
pub(super) struct CountedPart<'a> {
    part: Part,
    counts: &'a Counts,
    purpose: Purpose,
    delivered: u64,
}

impl<'a> CountedPart<'a> {
    pub(super) fn new(part: Part, counts: &'a Counts, purpose: Purpose) -> CountedPart<'a> {
        CountedPart { part, counts, purpose, delivered: 0 }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let chunk = self.part.next().await?;
        let length = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        self.delivered += length;
        self.add_bytes(length);
        Ok(chunk)
    }
}

impl CountedPart<'_> {
    fn add_bytes(&self, bytes: u64) {
        self.counts.bytes_fetched.add(bytes);
        if self.purpose == Purpose::Start {
            self.counts.start_bytes.add(bytes);
        }
    }
}

impl Drop for CountedPart<'_> {
    fn drop(&mut self) {
        let requests = u64::from(self.part.requests());
        self.counts.requests.add(requests);
        self.counts.retries.add(requests.saturating_sub(1));
        if self.purpose == Purpose::Start {
            self.counts.start_requests.add(requests);
        }
        self.add_bytes(self.part.extra(self.delivered));
    }
}

/// The most compressed bytes that are fetched around a missing span: as many as a span of a SOCI
/// index usually has.
const MOST_AROUND: u64 = 4 << 20;
/// The part of them that lies before it, one in this many, within the same file: a mapped library
/// is read in any order.
const BEFORE: u64 = 4;

impl LayerHandle {
    /// The spans around those that are missing up to `last`, as far as they are missing too. As
    /// many as arrive in the time that a request costs anyway: the spans of a fine index are small,
    /// so a program that needs many would wait for one after the other. An image with a recorded
    /// start does not need this while its reads are within that start. `missed` are the spans that
    /// the read waits for.
    pub(super) fn next_spans(&self, last: SpanId, missed: &[SpanRequest]) -> Vec<SpanRequest> {
        let inner = &self.inner;
        let layer = &self.layer;
        let most = inner.pace.bytes_per_request().min(MOST_AROUND);
        let Some(head) = layer.open.map().fine() else { return Vec::new() };
        let first = missed.iter().map(|wanted| wanted.promise.span()).min();
        let missed = missed.iter().map(|wanted| self.span(wanted.promise.span()));
        if (inner.has_recorded_start() && !inner.start.note_miss(missed)) || most == 0 {
            return Vec::new();
        }
        let spans = head.spans();
        let file = |span| layer.file_at(spans.plain_range(span).start.0);
        let before = first
            .and_then(|first| Some((first, file(first)?.start)))
            .into_iter()
            .flat_map(|(first, file)| preceding(spans, first, most / BEFORE, file));
        let mut around = self.join_missing(before);
        around.extend(self.join_missing(following(spans, last, most)));
        around
    }

    /// Joins spans up to the first that is not missing.
    fn join_missing(&self, spans: impl Iterator<Item = SpanId>) -> Vec<SpanRequest> {
        let in_flight = &self.inner.in_flight;
        spans
            .take_while(|span| !self.is_in_memory(*span))
            .map_while(|span| match in_flight.join(self.span(span), FetchCause::Readahead) {
                // It may have arrived after we looked and before we joined.
                FetchRole::Fetch(promise, _) if !self.is_in_memory(span) => {
                    let pieces = Some(covering(&(0..self.layer.size(span))));
                    Some(SpanRequest { promise, pieces })
                }
                FetchRole::Fetch(..) | FetchRole::Wait(_) => None,
            })
            .collect()
    }
}

/// The spans after `missing` with at most `most` bytes of the blob. They also have a limit in bytes
/// of the tar, because all of them may be in memory at once. The spans after the tar's end hold
/// nothing to read, and there may be thousands of them.
fn following(spans: &FineSpans, missing: SpanId, most: u64) -> impl Iterator<Item = SpanId> {
    let blob_end = spans.fetch_range(missing).end + most;
    let plain_end = spans.plain_range(missing).end + HANDED_OVER;
    SpanId::each(SpanId(missing.0 + 1)..SpanId(spans.count())).take_while(move |span| {
        let plain = spans.plain_range(*span);
        spans.fetch_range(*span).end <= blob_end && plain.end <= plain_end && !plain.is_empty()
    })
}

/// The spans before `missing`, from the last one on, with at most `most` bytes of the blob, that do
/// not begin before the byte `least` of the tar; limited in bytes of the tar, too.
fn preceding(
    spans: &FineSpans,
    missing: SpanId,
    most: u64,
    least: u64,
) -> impl Iterator<Item = SpanId> {
    let blob_start = spans.fetch_range(missing).start.0.saturating_sub(most);
    let plain_start = spans.plain_range(missing).start.0.saturating_sub(HANDED_OVER).max(least);
    (0..missing.0).rev().map(SpanId).take_while(move |span| {
        let plain = spans.plain_range(*span);
        spans.fetch_range(*span).start.0 >= blob_start && plain.start.0 >= plain_start
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::digest::{ChainState, Digest};
    use ociseek_format::fine::{Codec, FineStart, SpanParts};
    use ociseek_format::offset::{Compressed, Uncompressed};

    const COUNT: u64 = 64;
    const BLOB: u64 = 64 << 10;

    /// Spans of [`BLOB`] bytes of the blob and `plain` bytes of the tar, which ends at `tar_end`.
    fn spans(plain: u64, tar_end: u64) -> FineSpans {
        let start = |number: u64| FineStart {
            input: Compressed(number * BLOB),
            output: Uncompressed(number * plain),
            bits: 0,
            state: ChainState::INITIAL,
        };
        let parts = SpanParts {
            layer: Digest::sha256(b""),
            codec: Codec::Gzip,
            blob_size: COUNT * BLOB,
            tar_end: Uncompressed(tar_end),
            span_size: 32 << 10,
            starts: (0..COUNT).map(start).collect(),
        };
        FineSpans::new(parts).unwrap()
    }

    #[test]
    fn following_spans_are_limited_in_bytes_of_the_blob_and_of_the_tar() {
        let numbers = |plain: u64, missing: u32, most: u64| -> Vec<u32> {
            let spans = spans(plain, COUNT * plain);
            following(&spans, SpanId(missing), most).map(|span| span.0).collect()
        };
        let usual = 128 << 10;
        assert_eq!(numbers(usual, 10, 3 * BLOB), [11, 12, 13]);
        assert_eq!(numbers(usual, 10, 3 * BLOB - 1), [11, 12]);
        assert_eq!(numbers(usual, 62, MOST_AROUND), [63]);
        assert_eq!(numbers(usual, 63, MOST_AROUND), [0; 0]);
        // Of files with zeros, few bytes of the blob are many of the tar.
        assert_eq!(numbers(HANDED_OVER / 4, 10, MOST_AROUND), [11, 12, 13, 14]);
        assert_eq!(numbers(HANDED_OVER + 1, 10, MOST_AROUND), [0; 0]);
    }

    #[test]
    fn preceding_spans_are_limited_and_in_the_same_file() {
        let usual = 128 << 10;
        let numbers = |plain: u64, missing: u32, most: u64, least: u64| -> Vec<u32> {
            let spans = spans(plain, COUNT * plain);
            preceding(&spans, SpanId(missing), most, least).map(|span| span.0).collect()
        };
        assert_eq!(numbers(usual, 10, 3 * BLOB, 0), [9, 8, 7]);
        assert_eq!(numbers(usual, 10, 3 * BLOB - 1, 0), [9, 8]);
        assert_eq!(numbers(usual, 10, MOST_AROUND, 8 * usual - 1), [9, 8]);
        assert_eq!(numbers(usual, 10, MOST_AROUND, 8 * usual + 1), [9]);
        assert_eq!(numbers(usual, 1, MOST_AROUND, 0), [0]);
        assert_eq!(numbers(usual, 0, MOST_AROUND, 0), [0; 0]);
        assert_eq!(numbers(HANDED_OVER / 4, 10, MOST_AROUND, 0), [9, 8, 7, 6]);
    }

    #[test]
    fn spans_after_the_end_of_the_tar_do_not_follow() {
        // A few bytes of span 12 belong to the tar.
        let spans = spans(128 << 10, 12 * (128 << 10) + 5);
        let numbers = |missing: u32| -> Vec<u32> {
            following(&spans, SpanId(missing), MOST_AROUND).map(|span| span.0).collect()
        };
        assert_eq!(numbers(10), [11, 12]);
        assert_eq!(numbers(12), [0; 0]);
        assert_eq!(numbers(20), [0; 0]);
    }
}
