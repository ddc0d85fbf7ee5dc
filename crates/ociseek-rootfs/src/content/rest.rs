//! Fetches the rest of an image in the background, so that containers do not need the registry for
//! as long as they run. First what is left of the recorded start, then what is near what was read,
//! the latest first, and then the layers in order.
//!
//! All images of a process share a limit of speed, the requests in progress, and the part of the
//! cache on disk that may be filled in advance. What does not fit there is said at the beginning.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::inner::{Inner, LayerHandle, RaisedFlag};
use super::prefetch::size;
use crate::cache::{LayerRoom, SpanSet};
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_store::lock::Hold;
use ociseek_store::registry::SpeedLimit;

/// The most compressed bytes of a request: a read that arrives in between does not wait longer than
/// for this. With a limit of speed, those of this time; at least so many.
const STEP: u64 = 4 << 20;
const STEP_TIME: Duration = Duration::from_millis(250);
const LEAST_STEP: u64 = 256 << 10;
/// How many requests of an image may be in progress, and of all images together.
const AT_A_TIME: usize = 4;
const ALL_AT_A_TIME: usize = 8;
/// A request that takes longer does not count as one of those any more: a silent registry must not
/// keep others waiting.
const SLOW: Duration = Duration::from_secs(5);
/// The interval of checks whether reads are waiting, or the recorded start is being fetched.
const PAUSE: Duration = Duration::from_millis(5);
const START_PAUSE: Duration = Duration::from_millis(50);
/// The pause after a request that failed, and the longest one: it is doubled with each further one.
const FAILED: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// How many times a part that did not arrive is requested.
const TRIES: u8 = 3;

/// What the images of a process share that fetch their rest in the background.
#[derive(Debug)]
pub struct BackgroundFetches {
    /// How fast they receive together.
    pub speed: SpeedLimit,
    requests: Semaphore,
}

impl Default for BackgroundFetches {
    fn default() -> BackgroundFetches {
        let requests = Semaphore::new(ALL_AT_A_TIME);
        BackgroundFetches { speed: SpeedLimit::default(), requests }
    }
}

impl BackgroundFetches {
    fn step(&self) -> u64 {
        let of_speed =
            |speed| u64::try_from(u128::from(speed) * STEP_TIME.as_millis() / 1000).unwrap_or(STEP);
        self.speed.get().map_or(STEP, |speed| of_speed(speed).clamp(LEAST_STEP, STEP))
    }
}

/// Fetches the rest of an image. Ends when all of it was fetched that fits the cache on disk.
pub(super) async fn fetch(inner: &Arc<Inner>, shared: &BackgroundFetches) {
    let rest = &inner.rest;
    let _active = RaisedFlag::new(&rest.is_active);
    while inner.start.is_under_way() {
        sleep(START_PAUSE).await;
    }
    let queue = &Mutex::new(Queue::new(inner));
    let failures = &AtomicU32::new(0);
    let worker = |_| async move {
        loop {
            while inner.waiting.load(Ordering::Relaxed) > 0 {
                sleep(PAUSE).await;
            }
            let Some(part) = queue.hold().next(inner, shared.step()) else { return };
            if inner.check_index(part.handle.layer.open.how).is_err() {
                return;
            }
            let bytes = size(&part.handle.layer, &part.spans);
            if fetched(&part, shared).await {
                rest.arrived(bytes);
                failures.store(0, Ordering::Relaxed);
                continue;
            }
            let number = failures.fetch_add(1, Ordering::Relaxed);
            queue.hold().give_back(part);
            let [shortest, longest] = FAILED;
            sleep((shortest * (1 << number.min(8))).min(longest)).await;
        }
    };
    join_all((0..AT_A_TIME).map(worker)).await;
}

/// Fetches what is missing of a part. Returns whether all of it is there.
async fn fetched(part: &PartOfRest, shared: &BackgroundFetches) -> bool {
    let handle = &part.handle;
    let missing = handle.missing_on_disk(part.spans.clone()).await;
    if missing.is_empty() {
        return true;
    }
    let blob = |span: &SpanId| handle.layer.blob_range(*span);
    shared.speed.pass(missing.iter().map(blob).map(|blob| blob.end - blob.start).sum()).await;
    let request = shared.requests.acquire().await;
    let mut fetching = pin!(handle.fetch_for_disk(missing));
    tokio::select! {
        all_arrived = &mut fetching => return all_arrived,
        () = sleep(SLOW) => drop(request),
    }
    fetching.await
}

/// Spans of a layer that are fetched together.
struct PartOfRest {
    handle: LayerHandle,
    spans: Range<SpanId>,
    tries: u8,
}

struct QueuedLayer {
    handle: LayerHandle,
    room: Arc<LayerRoom>,
    /// The spans that were requested.
    asked: SpanSet,
}

/// What is left to fetch.
struct Queue {
    layers: Vec<QueuedLayer>,
    /// The spans of the recorded start.
    start: VecDeque<(usize, Range<SpanId>)>,
    /// The spans near those that were read, the latest last.
    near: Vec<(usize, Range<SpanId>)>,
    /// The spans of all layers, in order.
    all: VecDeque<(usize, Range<SpanId>)>,
    /// What did not arrive.
    failed: VecDeque<PartOfRest>,
    is_full: bool,
}

impl Queue {
    fn new(inner: &Arc<Inner>) -> Queue {
        let cache = &inner.cache;
        let mut seen = HashSet::new();
        let layers =
            (0..inner.layers.len() as u32).filter_map(|layer| inner.handle(LayerId(layer)));
        // Equal layers are read as one.
        let on_disk: Vec<LayerHandle> = layers
            .filter(|handle| handle.keeps_on_disk() && seen.insert(handle.layer.digest()))
            .collect();
        let of_bytes = on_disk.iter().map(|handle| handle.layer.end()).fold(0, u64::saturating_add);
        // Each part would decode such a layer from its start.
        let fits =
            |handle: &LayerHandle| !handle.layer.open.map().is_unpacked() || handle.keeps_whole();
        let layers: Vec<QueuedLayer> = on_disk
            .into_iter()
            .filter(fits)
            .map(|handle| {
                let room = cache.room_of(handle.layer.digest(), handle.layer.open.spans.count());
                let room = Arc::new(room);
                QueuedLayer { handle, room, asked: SpanSet::default() }
            })
            .collect();
        let possible =
            layers.iter().map(|layer| layer.handle.layer.end()).fold(0, u64::saturating_add);
        let taken = layers.iter().map(|layer| layer.room.bytes()).fold(0, u64::saturating_add);
        let lacking = possible.saturating_sub(taken).saturating_sub(cache.room_left());
        let rooms = layers.iter().map(|layer| Arc::clone(&layer.room)).collect();
        inner.rest.begin(of_bytes, rooms);
        let unfit = (of_bytes - possible).saturating_add(lacking);
        let mut queue = Queue {
            layers,
            start: VecDeque::new(),
            near: Vec::new(),
            all: VecDeque::new(),
            failed: VecDeque::new(),
            is_full: false,
        };
        if unfit > 0 {
            say_too_small(inner, unfit);
        }
        for (place, layer) in queue.layers.iter().enumerate() {
            let spans = &layer.handle.layer.open.spans;
            let start = spans.map().fine().map_or(&[][..], |head| head.start());
            queue.start.extend(start.iter().map(|spans| (place, spans.clone())));
            queue.all.push_back((place, SpanId(0)..SpanId(spans.count())));
        }
        queue
    }

    /// What to fetch next: at most `step` compressed bytes, or one span. None if nothing is left,
    /// or there is no room for it.
    fn next(&mut self, inner: &Inner, step: u64) -> Option<PartOfRest> {
        let noted = inner.rest.take_near();
        let near: Vec<_> =
            noted.into_iter().filter_map(|noted| self.spans_of(inner, noted)).collect();
        self.near.extend(near);
        while !self.is_full {
            let next = self.start.front_mut().or(self.near.last_mut()).or(self.all.front_mut());
            let Some((place, range)) = next else { break };
            let place = *place;
            let Some(layer) = self.layers.get_mut(place) else { break };
            let spans = layer.unasked(range, step);
            if range.is_empty() {
                let _ = self
                    .start
                    .pop_front()
                    .or_else(|| self.near.pop())
                    .or_else(|| self.all.pop_front());
            }
            let fits = |span: &SpanId| layer.room.take(*span, layer.handle.layer.size(*span));
            let fitting = SpanId::each(spans.clone()).take_while(fits).count() as u32;
            self.is_full = spans.start.0 + fitting < spans.end.0;
            let spans = spans.start..SpanId(spans.start.0 + fitting);
            if !spans.is_empty() {
                return Some(PartOfRest { handle: layer.handle.clone(), spans, tries: 1 });
            }
        }
        let stats = inner.rest.stats().unwrap_or_default();
        if self.is_full && stats.unfit_bytes == 0 {
            // Other images have taken the room since.
            say_too_small(inner, stats.of_bytes.saturating_sub(stats.bytes));
        }
        self.failed.pop_front()
    }

    /// The spans near a read.
    fn spans_of(
        &self,
        inner: &Inner,
        (id, range): (LayerId, Range<u64>),
    ) -> Option<(usize, Range<SpanId>)> {
        let read = inner.layers.get(id.0 as usize)?;
        let place = self.layers.iter().position(|known| Arc::ptr_eq(&known.handle.layer, read))?;
        let end = range.end.min(read.end());
        let range = Uncompressed(range.start.min(end))..Uncompressed(end);
        Some((place, read.open.spans.covering(range)))
    }

    /// A part did not arrive. It is tried again when nothing else is left.
    fn give_back(&mut self, part: PartOfRest) {
        if part.tries < TRIES {
            self.failed.push_back(PartOfRest { tries: part.tries + 1, ..part });
        }
    }
}

impl QueuedLayer {
    /// Takes from `range` the next spans that were not requested: at most `step` compressed bytes,
    /// or one span.
    fn unasked(&mut self, range: &mut Range<SpanId>, step: u64) -> Range<SpanId> {
        while !range.is_empty() && self.asked.has(range.start) {
            range.start.0 += 1;
        }
        let first = range.start;
        if range.is_empty() {
            return first..first;
        }
        let begin = self.handle.layer.blob_range(first).start;
        while !range.is_empty()
            && (range.start == first
                || self.handle.layer.blob_range(range.start).end - begin <= step)
            && self.asked.insert(range.start)
        {
            range.start.0 += 1;
        }
        first..range.start
    }
}

/// Says how much of an image is not fetched, in bytes.
fn say_too_small(inner: &Inner, unfit: u64) {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    inner.rest.set_unfit(unfit);
    let of_bytes = inner.rest.stats().unwrap_or_default().of_bytes;
    inner.warn(format!(
        "the cache is too small for the whole image: of {} MiB in its layers, {} MiB are not fetched in the \
         background, because all images together may fill {} MiB of the cache with that",
        mib(of_bytes),
        mib(unfit),
        mib(inner.cache.room()),
    ));
}
