//! Fetches the recorded start of the image's fine documents: the spans that a start is known to
//! read, in order, before and in parallel to requested reads. Several requests are in progress, so
//! that latency hardly counts, for as many bytes as arrive soon, so that nothing that is requested
//! waits for long.
//!
//! Requested reads have priority: while one is fetched, nothing new is fetched in advance that
//! would delay it. It waits while too many of the fetched spans are not read.

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
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::fetch::{Disk, MOST_BETWEEN};
use super::in_flight::{FetchRole, SpanRequest};
use super::inner::{CountGuard, Inner, LayerHandle, RaisedFlag, SpanOf};
use super::{FetchCause, StartStats};
use crate::cache::PIECE;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_store::lock::Hold;

/// Spans within this many compressed bytes of the recorded start are fetched together if they are
/// near each other, even if other spans are read between them; more, if the link is fast.
const BATCH: u64 = 4 << 20;
/// How many requests may be in progress.
pub(super) const AT_A_TIME: usize = 12;
/// The least and the most compressed bytes that they may be for together; a single request may be
/// for more. In units of [`UNIT`].
const ROOM: Range<usize> = (2 << 20) / UNIT as usize..(16 << 20) / UNIT as usize;
const UNIT: u64 = 1 << 10;
/// Between these, as many as have arrived in this time, on average.
const SOON: Duration = Duration::from_millis(160);
/// While a read is fetched, the bytes in progress must arrive in this time.
const AT_ONCE: Duration = Duration::from_millis(20);
/// The least and the most compressed bytes in a request, unless a single span has more: a part of
/// those that may be in progress.
const REQUEST: Range<u64> = 1 << 20..4 << 20;
const PART: u64 = 4;
/// How many requests may fail in a row before fetching stops.
const FAILURES: u32 = 8;
/// After this many reads that miss spans outside the recorded start, it is of little use to the
/// program.
const OUTSIDE: u32 = 8;
/// The interval of checks whether a read is being fetched.
const PAUSE: Duration = Duration::from_millis(2);
/// The interval of checks whether the program has read what was fetched.
const UNREAD_PAUSE: Duration = Duration::from_millis(20);
/// Fetching does not go on if the program reads nothing of it for so long.
const UNUSED: Duration = Duration::from_secs(60);

/// A span that was fetched in advance.
struct UnreadSpan {
    /// Its compressed size in bytes.
    blob: u64,
    /// How many bytes of the tar were put into memory.
    in_memory: u64,
}

/// The progress of the recorded start.
#[derive(Default)]
pub(super) struct StartProgress {
    /// All its spans.
    planned: Mutex<HashSet<SpanOf>>,
    /// The spans that were fetched in advance and not read.
    unread: Mutex<HashMap<SpanOf, UnreadSpan>>,
    /// The sum of their compressed sizes.
    unread_bytes: AtomicU64,
    spans: AtomicU64,
    /// How many bytes of the tar were put into memory and not read.
    in_memory: AtomicU64,
    /// Whether it is being fetched.
    is_running: AtomicBool,
    under_way: AtomicUsize,
    /// How many bytes these requests are for.
    under_way_bytes: AtomicUsize,
    failures: AtomicU32,
    /// Whether too much is unread, or fetching was given up.
    stopped: AtomicBool,
    given_up: AtomicBool,
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
        for UnreadSpan { blob, in_memory } in spans.filter_map(|span| unread.remove(&span)) {
            self.unread_bytes.fetch_sub(blob, Ordering::Relaxed);
            self.in_memory.fetch_sub(in_memory, Ordering::Relaxed);
        }
    }

    /// Whether it is being fetched, and does not wait for the program.
    pub(super) fn is_under_way(&self) -> bool {
        self.is_running.load(Ordering::Relaxed) && !self.stopped.load(Ordering::Relaxed)
    }

    /// Whether `size` more bytes may be put into memory: the spans of this image must not displace
    /// each other.
    fn has_room(&self, inner: &Inner, size: u64) -> bool {
        self.in_memory.load(Ordering::Relaxed).saturating_add(size) <= inner.memory.max() / 2
    }

    /// Waits while more than `most` bytes are unread: the program may be slower than the link.
    /// Returns false if fetching is of no use any more.
    async fn goes_on(&self, most: u64) -> bool {
        let unread = || self.unread_bytes.load(Ordering::Relaxed);
        let mut known = unread();
        let mut since = Instant::now();
        loop {
            if self.failures.load(Ordering::Relaxed) >= FAILURES || since.elapsed() > UNUSED {
                self.given_up.store(true, Ordering::Relaxed);
            }
            let goes_on = !self.given_up.load(Ordering::Relaxed);
            let waits = goes_on && unread() > most;
            self.stopped.store(waits || !goes_on, Ordering::Relaxed);
            if !waits {
                return goes_on;
            }
            sleep(UNREAD_PAUSE).await;
            if unread() != known {
                known = unread();
                since = Instant::now();
            }
        }
    }

    fn requested(&self, span: SpanOf, requested: UnreadSpan) {
        self.spans.fetch_add(1, Ordering::Relaxed);
        let mut unread = self.unread.hold();
        self.unread_bytes.fetch_add(requested.blob, Ordering::Relaxed);
        self.in_memory.fetch_add(requested.in_memory, Ordering::Relaxed);
        if let Some(old) = unread.insert(span, requested) {
            self.unread_bytes.fetch_sub(old.blob, Ordering::Relaxed);
            self.in_memory.fetch_sub(old.in_memory, Ordering::Relaxed);
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

/// How many bytes have arrived per second since the beginning.
struct Throughput<'a> {
    inner: &'a Inner,
    begun: Instant,
    bytes: u64,
}

impl Throughput<'_> {
    fn new(inner: &Inner) -> Throughput<'_> {
        Throughput { inner, begun: Instant::now(), bytes: inner.counts.bytes_fetched.get() }
    }

    /// The bytes that arrive in `time`.
    fn bytes_in(&self, time: Duration) -> u64 {
        let bytes = self.inner.counts.bytes_fetched.get() - self.bytes;
        let elapsed = self.begun.elapsed().as_secs_f64().max(1e-3);
        (bytes as f64 * time.as_secs_f64() / elapsed) as u64
    }

    /// How many units may be in progress.
    fn room(&self) -> usize {
        ((self.bytes_in(SOON) / UNIT) as usize).clamp(ROOM.start, ROOM.end)
    }
}

/// Fetches the recorded start of all layers.
pub(super) async fn fetch(inner: &Arc<Inner>) {
    let _running = RaisedFlag::new(&inner.start.is_running);
    let mut plan = Plan::new(inner);
    let planned = plan.spans();
    inner.start.planned.hold().extend(planned);
    let unfetched = spawn_blocking(move || {
        plan.retain(LayerHandle::is_missing);
        plan
    });
    // On a second start nothing is missing, and a thread for each step would only delay it.
    let Ok(mut plan) = unfetched.await else { return };
    let throughput = &Throughput::new(inner);
    let room = &Semaphore::new(ROOM.start);
    let mut granted = ROOM.start;
    let steps = std::iter::from_fn(|| {
        let most = throughput.room();
        room.add_permits(most.saturating_sub(granted));
        granted = granted.max(most);
        let bytes = most as u64 * UNIT;
        plan.next_step(&StepSize {
            batch: bytes.max(BATCH),
            request: (bytes / PART).clamp(REQUEST.start, REQUEST.end),
            between: inner.pace.bytes_per_request().min(MOST_BETWEEN),
        })
    });
    let fetches = stream::iter(steps).map(|(handle, spans)| async move {
        let bytes = blob_bytes(&handle, &spans);
        let units = usize::try_from(bytes.div_ceil(UNIT)).unwrap_or(ROOM.start).min(ROOM.start);
        let _room = room.acquire_many(units as u32).await;
        handle.fetch_missing_start(spans, bytes, throughput).await;
    });
    fetches.buffer_unordered(AT_A_TIME).for_each(|()| ready(())).await;
    inner.windows.release_start();
}

/// Puts the spans that the cache on disk has into memory, in order, up to the part of it that a
/// start may take. It reads and verifies them on one thread, ahead of the program that starts.
pub(super) fn load(inner: &Arc<Inner>) {
    for (handle, spans) in Plan::new(inner).steps().filter(|(handle, _)| handle.keeps_on_disk()) {
        for span in spans.into_iter().filter(|span| !handle.is_in_memory(*span)) {
            let size = handle.layer.size(span);
            if !inner.start.has_room(inner, size) {
                return;
            }
            let pieces =
                inner.cache.read(&handle.layer.place(span), 0..pieces(size)).unwrap_or_default();
            for (number, piece) in (0..).zip(&pieces) {
                inner.memory.put(handle.piece(span, number), piece.clone(), piece.len() as u64);
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
    let of_step = |(handle, spans): (LayerHandle, Vec<SpanId>)| {
        let table = &handle.layer.open.spans;
        let mut ranges: Vec<Range<Uncompressed>> = Vec::new();
        for plain in spans.into_iter().map(|span| table.plain_range(span)) {
            match ranges.last_mut().filter(|last| last.end == plain.start) {
                Some(last) => last.end = plain.end,
                None => ranges.push(plain),
            }
        }
        ranges.into_iter().map(move |range| (handle.id, range))
    };
    Plan::new(inner).steps().flat_map(of_step).collect()
}

/// The number of pieces of a span of `size` bytes.
fn pieces(size: u64) -> u32 {
    u32::try_from(size.div_ceil(PIECE as u64)).unwrap_or(u32::MAX)
}

/// The compressed bytes from the first of some spans, which are in order, to the last.
fn blob_bytes(handle: &LayerHandle, spans: &[SpanId]) -> u64 {
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return 0 };
    handle.layer.blob_range(*last).end - handle.layer.blob_range(*first).start
}

/// What a request may be for.
struct StepSize {
    /// How many compressed bytes of the recorded start are put into the order of the blob at a
    /// time.
    batch: u64,
    /// The most compressed bytes of a request, unless a single span has more.
    request: u64,
    /// The most bytes of the blob between two spans of a request.
    between: u64,
}

impl StepSize {
    /// For neighbours only.
    const NEIGHBOURS: StepSize = StepSize { batch: BATCH, request: REQUEST.start, between: 0 };
}

/// The spans that are left to fetch. The next request is always for the layer with the fewest bytes
/// so far, since no document states the order between layers.
struct Plan {
    layers: Vec<PlannedLayer>,
    turns: BinaryHeap<Reverse<(u64, usize)>>,
}

struct PlannedLayer {
    handle: LayerHandle,
    /// In the order of the recorded start.
    spans: VecDeque<SpanId>,
    /// The requests for the spans before those.
    requests: VecDeque<Vec<SpanId>>,
}

impl Plan {
    fn new(inner: &Arc<Inner>) -> Plan {
        // A layer that occurs twice in the image is read at its upper position.
        let mut places: HashMap<_, u32> = HashMap::new();
        places.extend((0..).zip(&inner.layers).map(|(place, layer)| (layer.digest(), place)));
        let mut places: Vec<u32> = places.into_values().collect();
        places.sort_unstable();
        let planned = |handle: LayerHandle| {
            let start = handle.layer.open.map().fine().map_or(&[][..], |head| head.start());
            let spans = start.iter().cloned().flat_map(SpanId::each).collect();
            PlannedLayer { handle, spans, requests: VecDeque::new() }
        };
        let layers: Vec<PlannedLayer> = places
            .into_iter()
            .filter_map(|place| inner.handle(LayerId(place)))
            .map(planned)
            .collect();
        let turns = (0..layers.len()).map(|layer| Reverse((0, layer))).collect();
        Plan { layers, turns }
    }

    /// All spans.
    fn spans(&self) -> impl Iterator<Item = SpanOf> {
        self.layers.iter().flat_map(|layer| layer.spans.iter().map(|span| layer.handle.span(*span)))
    }

    fn retain(&mut self, is_wanted: impl Fn(&LayerHandle, SpanId) -> bool) {
        for PlannedLayer { handle, spans, .. } in &mut self.layers {
            spans.retain(|span| is_wanted(handle, *span));
        }
    }

    /// The spans of the next request, in order.
    fn next_step(&mut self, size: &StepSize) -> Option<(LayerHandle, Vec<SpanId>)> {
        while let Some(Reverse((bytes, turn))) = self.turns.pop() {
            let Some(layer) = self.layers.get_mut(turn) else { continue };
            let Some(spans) = layer.next_step(size) else { continue };
            self.turns.push(Reverse((bytes + blob_bytes(&layer.handle, &spans), turn)));
            return Some((layer.handle.clone(), spans));
        }
        None
    }

    /// All requests in order, each for neighbours.
    fn steps(mut self) -> impl Iterator<Item = (LayerHandle, Vec<SpanId>)> {
        std::iter::from_fn(move || self.next_step(&StepSize::NEIGHBOURS))
    }
}

impl PlannedLayer {
    fn next_step(&mut self, size: &StepSize) -> Option<Vec<SpanId>> {
        if self.requests.is_empty() {
            let mut batch = Vec::new();
            let mut bytes = 0;
            while bytes < size.batch
                && let Some(span) = self.spans.pop_front()
            {
                let blob = self.handle.layer.blob_range(span);
                batch.push(span);
                bytes += blob.end - blob.start;
            }
            self.requests = merged(&self.handle, &batch, size).into();
        }
        self.requests.pop_front()
    }
}

/// Merges spans that are near each other. The requests are ordered by the first of their spans in
/// `spans`.
fn merged(handle: &LayerHandle, spans: &[SpanId], size: &StepSize) -> Vec<Vec<SpanId>> {
    let mut sorted: Vec<(SpanId, usize)> = spans.iter().copied().zip(0..).collect();
    sorted.sort_unstable();
    sorted.dedup_by_key(|(span, _)| *span);
    let mut runs: Vec<(usize, Vec<SpanId>)> = Vec::new();
    for (span, order) in sorted {
        let blob = handle.layer.blob_range(span);
        let fits = |(_, run): &&mut (usize, Vec<SpanId>)| {
            let of = |span: Option<&SpanId>| span.map(|span| handle.layer.blob_range(*span));
            let start = of(run.first()).map_or(blob.start, |first| first.start);
            let last = of(run.last()).map_or(blob.start, |last| last.end);
            blob.start.saturating_sub(last) <= size.between && blob.end - start <= size.request
        };
        match runs.last_mut().filter(fits) {
            Some((first, run)) => {
                run.push(span);
                *first = order.min(*first);
            }
            None => runs.push((order, vec![span])),
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
    async fn fetch_missing_start(
        &self,
        spans: Vec<SpanId>,
        bytes: u64,
        throughput: &Throughput<'_>,
    ) {
        let start = &self.inner.start;
        while self.inner.waited_for.load(Ordering::Relaxed) > 0
            && start.under_way.load(Ordering::Relaxed) > 0
            && start.under_way_bytes.load(Ordering::Relaxed) as u64 + bytes
                > throughput.bytes_in(AT_ONCE)
        {
            sleep(PAUSE).await;
        }
        if !start.goes_on(self.inner.options.unread).await {
            return;
        }
        let _under_way = CountGuard::new(&start.under_way);
        let _bytes = CountGuard::of(&start.under_way_bytes, bytes as usize);
        let mut wanted = Vec::new();
        let mut waiters = Vec::new();
        // Those that have come into the cache on disk since are found when they are claimed.
        for span in spans.into_iter().filter(|span| !self.is_in_memory(*span)) {
            let size = self.layer.size(span);
            let pieces = start.has_room(&self.inner, size).then(|| 0..pieces(size));
            if pieces.is_none() && !self.keeps_on_disk() {
                continue;
            }
            if let FetchRole::Fetch(promise, waiter) =
                self.inner.in_flight.join(self.span(span), FetchCause::Readahead)
            {
                let blob = self.layer.blob_range(span);
                let in_memory = if pieces.is_some() { size } else { 0 };
                let blob = blob.end - blob.start;
                start.requested(self.span(span), UnreadSpan { blob, in_memory });
                wanted.push(SpanRequest { promise, pieces });
                waiters.push(waiter);
            }
        }
        debug!(name: "start", target: "ociseek::content", layer = %self.layer.digest(), spans = wanted.len());
        self.launch(wanted, Disk::Ask, FetchCause::Readahead);
        // The last one mostly ends last, so this task is not woken for each of them.
        for waiter in waiters.into_iter().rev() {
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
