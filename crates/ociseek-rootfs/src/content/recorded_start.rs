//! Fetches the recorded start of the image's fine documents: the spans that a start is known to
//! read, in order, before and in parallel to requested reads. Several requests are in progress, so
//! that latency hardly counts, but of few bytes, so that nothing that is requested waits for long.
//!
//! Requested reads have priority: while one is fetched, nothing new is fetched in advance. It stops
//! if the fetched spans are not read.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::future::ready;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::debug;

use super::fetch::Disk;
use super::in_flight::{FetchRole, SpanRequest};
use super::inner::{CountGuard, Inner, LayerHandle, SpanOf};
use super::{FetchCause, StartStats};
use crate::cache::PIECE;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_store::lock::Hold;

/// The most compressed bytes in a request, unless a single span has more.
const REQUEST: u64 = 1 << 20;
/// Neighbours within this many compressed bytes of the recorded start are fetched together, even if
/// other spans are read between them.
const BATCH: u64 = 4 << 20;
/// How many requests may be in progress, and how many compressed bytes they may be for together, in
/// units of [`UNIT`]. A single request may be for more.
pub(super) const AT_A_TIME: usize = 12;
const ROOM: usize = (2 << 20) / UNIT as usize;
const UNIT: u64 = 1 << 10;
/// How many requests may fail in a row before fetching stops.
const FAILURES: u32 = 8;
/// After this many reads that miss spans outside the recorded start, it is of little use to the
/// program.
const OUTSIDE: u32 = 8;
/// The interval of checks whether a read is being fetched.
const PAUSE: Duration = Duration::from_millis(2);

/// The progress of the recorded start.
#[derive(Default)]
pub(super) struct StartProgress {
    /// All its spans.
    planned: Mutex<HashSet<SpanOf>>,
    /// The spans that were fetched in advance and not read, with their compressed size in bytes.
    unread: Mutex<HashMap<SpanOf, u64>>,
    /// The sum of these sizes.
    unread_bytes: AtomicU64,
    spans: AtomicU64,
    /// How many bytes of the tar were put into memory.
    in_memory: AtomicU64,
    under_way: AtomicUsize,
    failures: AtomicU32,
    stopped: AtomicBool,
    /// The number of reads that missed spans outside of it.
    outside: AtomicU32,
}

impl StartProgress {
    /// Whether all of these spans belong to the recorded start.
    pub(super) fn covers(&self, mut spans: impl Iterator<Item = SpanOf>) -> bool {
        let planned = self.planned.hold();
        !planned.is_empty() && spans.all(|span| planned.contains(&span))
    }

    /// Records a read that must fetch these spans itself. Returns whether the spans after them are
    /// worth fetching too, because the recorded start will not bring them. It brings nothing if it
    /// is ignored or has stopped.
    pub(super) fn note_miss(&self, mut spans: impl Iterator<Item = SpanOf>) -> bool {
        let stopped = self.stopped.load(Ordering::Relaxed);
        let planned = self.planned.hold();
        let is_outside = spans.any(|span| stopped || !planned.contains(&span));
        is_outside && self.outside.fetch_add(1, Ordering::Relaxed) >= OUTSIDE
    }

    /// Whether a span was fetched in advance and not read.
    pub(super) fn is_unread(&self, span: SpanOf) -> bool {
        let is_any = self.unread_bytes.load(Ordering::Relaxed) > 0;
        is_any && self.unread.hold().contains_key(&span)
    }

    /// Records a read of these spans.
    pub(super) fn read(&self, spans: impl Iterator<Item = SpanOf>) {
        if self.unread_bytes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut unread = self.unread.hold();
        let bytes: u64 = spans.filter_map(|span| unread.remove(&span)).sum();
        self.unread_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether `size` more bytes may be put into memory: the spans of this image must not displace
    /// each other.
    fn has_room(&self, inner: &Inner, size: u64) -> bool {
        self.in_memory.load(Ordering::Relaxed).saturating_add(size) <= inner.memory.max() / 2
    }

    fn requested(&self, span: SpanOf, bytes: u64) {
        self.spans.fetch_add(1, Ordering::Relaxed);
        let mut unread = self.unread.hold();
        if unread.insert(span, bytes).is_none() {
            self.unread_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn stats(&self) -> StartStats {
        StartStats {
            spans: self.spans.load(Ordering::Relaxed),
            unread_bytes: self.unread_bytes.load(Ordering::Relaxed),
            stopped: self.stopped.load(Ordering::Relaxed),
        }
    }
}

/// Fetches the recorded start of all layers.
pub(super) async fn fetch(inner: &Arc<Inner>) {
    let steps = steps(inner);
    {
        let mut planned = inner.start.planned.hold();
        planned.extend(
            steps
                .iter()
                .flat_map(|(on, spans)| SpanId::each(spans.clone()).map(|span| on.span(span))),
        );
    }
    let is_unfetched = |(on, spans): &(LayerHandle, Range<SpanId>)| {
        SpanId::each(spans.clone()).any(|span| on.is_missing(span))
    };
    let unfetched =
        spawn_blocking(move || steps.into_iter().filter(is_unfetched).collect::<Vec<_>>());
    let room = &Semaphore::new(ROOM);
    // On a second start nothing is missing, and a thread for each step would only delay it.
    let fetches = stream::iter(unfetched.await.unwrap_or_default()).map(|(on, spans)| async move {
        let units =
            usize::try_from(blob_bytes(&on, &spans).div_ceil(UNIT)).unwrap_or(ROOM).min(ROOM);
        let _room = room.acquire_many(units as u32).await;
        on.fetch_missing_start(spans).await;
    });
    fetches.buffer_unordered(AT_A_TIME).for_each(|()| ready(())).await;
}

/// Puts the spans that the cache on disk has into memory, in order, up to the part of it that a
/// start may take. It reads and verifies them on one thread, ahead of the program that starts.
pub(super) fn load(inner: &Arc<Inner>) {
    for (on, spans) in steps(inner).into_iter().filter(|(on, _)| on.keeps_on_disk()) {
        for span in SpanId::each(spans).filter(|span| !on.is_in_memory(*span)) {
            let size = on.layer.size(span);
            if !inner.start.has_room(inner, size) {
                return;
            }
            let pieces =
                inner.cache.read(&on.layer.key(span), size, 0..pieces(size)).unwrap_or_default();
            for (number, piece) in (0..).zip(&pieces) {
                inner.memory.put(on.piece(span, number), piece.clone(), piece.len() as u64);
            }
            if !pieces.is_empty() {
                inner.start.in_memory.fetch_add(size, Ordering::Relaxed);
                inner.counts.disk_hits.add(1);
            }
        }
    }
}

/// The ranges of the layers' tars that all requests are for, in order.
pub(super) fn ranges(inner: &Arc<Inner>) -> Vec<(LayerId, Range<Uncompressed>)> {
    let range = |(on, spans): (LayerHandle, Range<SpanId>)| {
        let last = SpanId(spans.end.0.saturating_sub(1));
        let table = &on.layer.open.spans;
        (on.id, table.plain_range(spans.start).start..table.plain_range(last).end)
    };
    steps(inner).into_iter().map(range).collect()
}

/// The number of pieces of a span of `size` bytes.
fn pieces(size: u64) -> u32 {
    u32::try_from(size.div_ceil(PIECE as u64)).unwrap_or(u32::MAX)
}

/// The compressed bytes of neighbouring spans.
fn blob_bytes(on: &LayerHandle, spans: &Range<SpanId>) -> u64 {
    let last = SpanId(spans.end.0.saturating_sub(1));
    on.layer.blob_range(last).end - on.layer.blob_range(spans.start).start
}

/// The requests in order. The next one is always for the layer with the fewest bytes so far, since
/// no document states the order between layers.
fn steps(inner: &Arc<Inner>) -> Vec<(LayerHandle, Range<SpanId>)> {
    // A layer that occurs twice in the image is read at its upper position.
    let mut places: HashMap<_, u32> = HashMap::new();
    places.extend((0..).zip(&inner.layers).map(|(place, layer)| (layer.digest(), place)));
    let mut places: Vec<u32> = places.into_values().collect();
    places.sort_unstable();
    let layers = places.into_iter().filter_map(|place| inner.on(LayerId(place)));
    let mut queues: Vec<(LayerHandle, VecDeque<Range<SpanId>>)> =
        layers.map(|on| (on.clone(), requests(&on))).collect();
    let mut turns: BinaryHeap<Reverse<(u64, usize)>> =
        (0..queues.len()).map(|queue| Reverse((0, queue))).collect();
    let mut steps = Vec::new();
    while let Some(Reverse((bytes, turn))) = turns.pop() {
        let Some((on, queue)) = queues.get_mut(turn) else { continue };
        let Some(spans) = queue.pop_front() else { continue };
        turns.push(Reverse((bytes + blob_bytes(on, &spans), turn)));
        steps.push((on.clone(), spans));
    }
    steps
}

/// The requests for a layer's recorded start, in its order, except that neighbours that are read
/// soon after each other are fetched together, up to the size of a request.
fn requests(on: &LayerHandle) -> VecDeque<Range<SpanId>> {
    let mut requests = VecDeque::new();
    let Some(head) = on.layer.open.map().fine() else { return requests };
    let mut batch = Vec::new();
    let mut bytes = 0;
    for span in head.start().iter().cloned().flat_map(SpanId::each) {
        let blob = on.layer.blob_range(span);
        batch.push(span);
        bytes += blob.end - blob.start;
        if bytes >= BATCH {
            requests.extend(merged(on, &std::mem::take(&mut batch)));
            bytes = 0;
        }
    }
    requests.extend(merged(on, &batch));
    requests
}

/// Merges neighbours. The ranges are ordered by their first span in `spans`.
fn merged(on: &LayerHandle, spans: &[SpanId]) -> Vec<Range<SpanId>> {
    let mut sorted: Vec<(SpanId, usize)> = spans.iter().copied().zip(0..).collect();
    sorted.sort_unstable();
    let mut runs: Vec<(usize, Range<SpanId>)> = Vec::new();
    for (span, order) in sorted {
        let end = on.layer.blob_range(span).end;
        let fits = |(_, run): &&mut (usize, Range<SpanId>)| {
            run.end == span && end - on.layer.blob_range(run.start).start <= REQUEST
        };
        match runs.last_mut().filter(fits) {
            Some((first, run)) => {
                run.end = SpanId(span.0 + 1);
                *first = order.min(*first);
            }
            None => runs.push((order, span..SpanId(span.0 + 1))),
        }
    }
    runs.sort_unstable_by_key(|(order, _)| *order);
    runs.into_iter().map(|(_, run)| run).collect()
}

impl LayerHandle {
    /// Whether a span is in no cache. Blocks.
    fn is_missing(&self, span: SpanId) -> bool {
        self.layer.size(span) > 0 && !self.is_in_memory(span) && !self.is_on_disk(span)
    }

    /// Fetches the spans that are in no cache yet, while no read needs the connection.
    async fn fetch_missing_start(&self, spans: Range<SpanId>) {
        let start = &self.inner.start;
        while self.inner.waited_for.load(Ordering::Relaxed) > 0
            && start.under_way.load(Ordering::Relaxed) > 0
        {
            sleep(PAUSE).await;
        }
        if start.stopped.load(Ordering::Relaxed) {
            return;
        }
        if start.unread_bytes.load(Ordering::Relaxed) > self.inner.options.unread
            || start.failures.load(Ordering::Relaxed) >= FAILURES
        {
            start.stopped.store(true, Ordering::Relaxed);
            return;
        }
        let _under_way = CountGuard::new(&start.under_way);
        let on = self.clone();
        let missing = spawn_blocking(move || {
            SpanId::each(spans).filter(|span| on.is_missing(*span)).collect::<Vec<SpanId>>()
        });
        let mut wanted = Vec::new();
        let mut waiters = Vec::new();
        for span in missing.await.unwrap_or_default() {
            let size = self.layer.size(span);
            let pieces = start.has_room(&self.inner, size).then(|| 0..pieces(size));
            if pieces.is_none() && !self.keeps_on_disk() {
                continue;
            }
            if let FetchRole::Fetch(promise, waiter) =
                self.inner.in_flight.join(self.span(span), FetchCause::Readahead)
            {
                start
                    .in_memory
                    .fetch_add(if pieces.is_some() { size } else { 0 }, Ordering::Relaxed);
                let blob = self.layer.blob_range(span);
                start.requested(self.span(span), blob.end - blob.start);
                wanted.push(SpanRequest { promise, pieces });
                waiters.push(waiter);
            }
        }
        debug!(name: "start", target: "ociseek::content", layer = %self.layer.digest(), spans = wanted.len());
        self.launch(wanted, Disk::Ask, FetchCause::Readahead);
        for waiter in waiters {
            match waiter.result().await {
                // The next read of the span tries again and reports the error.
                Some(Err(_)) => start.failures.fetch_add(1, Ordering::Relaxed),
                Some(Ok(_)) => start.failures.swap(0, Ordering::Relaxed),
                None => 0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_outside_of_what_is_planned_are_counted_and_all_of_them_after_it_stopped() {
        let start = StartProgress::default();
        let of = |span: u32| SpanOf { layer: LayerId(0), span: SpanId(span) };
        start.planned.lock().unwrap().extend((0..10).map(of));
        let wanted_after = |spans: &[u32], times: usize| -> usize {
            (0..times).filter(|_| start.note_miss(spans.iter().copied().map(of))).count()
        };
        assert_eq!(wanted_after(&[3], 100), 0);
        assert_eq!(wanted_after(&[], 100), 0, "only read-ahead");
        assert_eq!(wanted_after(&[9, 10], 8), 0);
        assert_eq!(wanted_after(&[10], 2), 2);
        assert_eq!(wanted_after(&[3], 100), 0, "they are still planned");
        start.stopped.store(true, Ordering::Relaxed);
        assert_eq!(wanted_after(&[3], 2), 2);
    }
}
