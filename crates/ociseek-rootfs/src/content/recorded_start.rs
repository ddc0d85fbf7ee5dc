//! Fetches the recorded start of the image's fine documents: the spans that a start is known to
//! read, in order, before and in parallel to requested reads. Several requests are in progress, so
//! that latency hardly counts, for as many bytes as arrive soon, so that nothing that is requested
//! waits for long.
//!
//! Requested reads have priority: while one is fetched, nothing new is fetched in advance that
//! would delay it. It waits while too many of the fetched spans are not read.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::future::ready;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::FetchCause;
use super::fetch::{Disk, MOST_BETWEEN};
use super::in_flight::{FetchRole, SpanRequest};
use super::inner::{CountGuard, Inner, LayerHandle, SpanOf};
use super::start_progress::{ArrivedStart, UnreadSpan};
use crate::cache::PIECE;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_store::lock::Hold;

/// Spans within this many compressed bytes of the recorded start are fetched together if they are
/// near each other, even if other spans are read between them. Between the least and the most, as
/// many as arrive in this time.
const BATCH: Range<u64> = 4 << 20..64 << 20;
const BATCH_SOON: Duration = Duration::from_millis(320);
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
/// The interval of checks whether a read is being fetched.
const PAUSE: Duration = Duration::from_millis(2);
/// The most bytes of the tar for which the read of one span shows that the program needs them.
const HANDED_ON: u64 = 2 << 20;
/// The interval of checks whether a mount is over.
const UNTIL_OVER: Duration = Duration::from_millis(50);

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
    let _fetch = inner.start.begin();
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
            batch: throughput.bytes_in(BATCH_SOON).clamp(BATCH.start, BATCH.end),
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
            if !inner.start.has_room(inner.memory.max(), size) {
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

/// What arrives of the recorded start, to be put into the kernel's caches.
pub struct StartArrivals {
    inner: Arc<Inner>,
    receiver: Receiver<ArrivedStart>,
}

ociseek_format::opaque_debug!(StartArrivals);

impl StartArrivals {
    /// None if fetching has not begun, or a caller has them already.
    pub(super) fn of(inner: &Arc<Inner>) -> Option<StartArrivals> {
        let receiver = inner.start.arrivals()?;
        Some(StartArrivals { inner: Arc::clone(inner), receiver })
    }

    /// The next ranges of a layer's tar for the kernel's caches. The program must read other parts
    /// itself: otherwise nobody would notice that it does not need what is fetched. None when
    /// nothing more arrives, or `is_over` is set. Blocks.
    pub fn next(&self, is_over: &AtomicBool) -> Option<(LayerId, Vec<Range<Uncompressed>>)> {
        while !is_over.load(Ordering::Relaxed) {
            match self.receiver.recv_timeout(UNTIL_OVER) {
                Ok(arrived) => return Some((arrived.layer, self.handed_on(&arrived))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        None
    }

    /// The ranges of spans that lie next to each other, without the first of them.
    fn handed_on(&self, arrived: &ArrivedStart) -> Vec<Range<Uncompressed>> {
        let Some(handle) = self.inner.handle(arrived.layer) else { return Vec::new() };
        let table = &handle.layer.open.spans;
        let mut ranges = Vec::new();
        for run in arrived.spans.chunk_by(|a, b| a.0 + 1 == b.0) {
            let mut rest = run;
            while let Some((first, others)) = rest.split_first() {
                let start = table.plain_range(*first).start;
                let fits = |span: &&SpanId| table.plain_range(**span).end - start <= HANDED_ON;
                let (near, further) = others.split_at(others.iter().take_while(fits).count());
                rest = further;
                if let (Some(second), Some(last)) = (near.first(), near.last()) {
                    let spans = near.iter().map(|span| handle.span(*span));
                    self.inner.start.hand_on(handle.span(*first), spans);
                    ranges.push(table.plain_range(*second).start..table.plain_range(*last).end);
                }
            }
        }
        ranges
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
    const NEIGHBOURS: StepSize =
        StepSize { batch: BATCH.start, request: REQUEST.start, between: 0 };
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
        let mut arrived = ArrivedStart { layer: self.id, spans: Vec::new() };
        // Those that have come into the cache on disk since are found when they are claimed.
        for span in spans.into_iter().filter(|span| !self.is_in_memory(*span)) {
            let size = self.layer.size(span);
            let pieces = start.has_room(self.inner.memory.max(), size).then(|| 0..pieces(size));
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
                arrived.spans.push(span);
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
        start.arrived(arrived);
    }
}
