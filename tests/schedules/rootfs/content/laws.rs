//! What must hold for the spans in flight, whatever the order of the steps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use shuttle::future::block_on;
use tokio::task::JoinHandle;

use super::budget::ReadBudget;
use super::in_flight::{FetchRole, Misses, SpansInFlight};
use super::inner::{Counts, Inner, NoCache, Options, Start, Tally};
use super::layer::{Layer, LayerHandle, OpenLayer, Readers, SPAN, bytes};
use super::lru::Lru;
use super::{FetchCause, ReadError};
use crate::offset::{SpanId, Uncompressed};

const SPANS: u32 = 3;
/// First bytes and sizes. Each span is read by several readers, and some read two spans.
const READS: [(u64, usize); 4] = [(0, 8), (1, 2), (4, 4), (2, 4)];

/// A layer whose reads fetch `ahead` further bytes, with room for `memory` bytes.
fn layer(ahead: u64, memory: u64, tally: Tally) -> LayerHandle {
    let deadline = Duration::from_secs(60);
    let inner = Inner {
        in_flight: SpansInFlight::default(),
        memory: Lru::new(memory),
        misses: Misses::new(deadline),
        options: Options { deadline },
        waiting: AtomicUsize::new(0),
        counts: Counts::default(),
        start: Start,
        cache: NoCache,
        tally,
    };
    let layer =
        Layer { open: OpenLayer::default(), readers: Mutex::new(Readers(ahead)), spans: SPANS };
    LayerHandle { inner: Arc::new(inner), layer: Arc::new(layer) }
}

fn budget(on: &LayerHandle) -> ReadBudget {
    ReadBudget::new(on.inner.options.deadline)
}

fn spawn(on: &LayerHandle, (at, size): (u64, usize)) -> JoinHandle<Result<Bytes, ReadError>> {
    let on = on.clone();
    tokio::spawn(async move { on.read(Uncompressed(at), size, budget(&on)).await })
}

fn wanted((at, size): (u64, usize)) -> Bytes {
    let all: Vec<u8> = (0..SPANS).flat_map(|span| bytes(SpanId(span))).collect();
    Bytes::from(all).slice(at as usize..at as usize + size)
}

/// Nothing is left behind when all readers are gone.
async fn assert_idle(on: &LayerHandle) {
    let tasks = std::mem::take(&mut *on.inner.tally.tasks.lock().unwrap());
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(on.inner.waiting.load(Ordering::SeqCst), 0);
    assert!(
        (0..SPANS).all(|span| !on.inner.in_flight.has(on.span(SpanId(span)))),
        "a fetch is still in progress"
    );
}

/// Readers at the same time get the right bytes, and each span is fetched once.
pub fn readers_share_a_fetch() {
    block_on(async {
        let on = layer(0, 1 << 20, Tally::default());
        for (read, reader) in READS.map(|read| (read, spawn(&on, read))) {
            assert_eq!(reader.await.unwrap(), Ok(wanted(read)));
        }
        assert_eq!(on.inner.tally.fetches(), [SpanId(0), SpanId(1)]);
        assert_idle(&on).await;
    });
}

/// If a fetch is abandoned, or misses the deadline of the reader that began it, one of the others
/// fetches the span.
pub fn abandoned_fetches_are_repeated_once() {
    block_on(async {
        let tally = Tally { may_abandon: 2.into(), may_miss: 1.into(), ..Tally::default() };
        let on = layer(0, 1 << 20, tally);
        for (read, reader) in READS.map(|read| (read, spawn(&on, read))) {
            assert_eq!(reader.await.unwrap(), Ok(wanted(read)));
        }
        let Tally { may_abandon, may_miss, .. } = &on.inner.tally;
        let repeated = 3 - may_abandon.load(Ordering::SeqCst) - may_miss.load(Ordering::SeqCst);
        assert_eq!(on.inner.tally.fetches().len(), 2 + repeated as usize);
        assert_idle(&on).await;
    });
}

/// A fetch that fails fails those who wait for it, and only them.
pub fn failures_are_not_kept() {
    block_on(async {
        let on = layer(0, 1 << 20, Tally { may_fail: 1.into(), ..Tally::default() });
        for (read, reader) in READS.map(|read| (read, spawn(&on, read))) {
            match reader.await.unwrap() {
                Ok(got) => assert_eq!(got, wanted(read)),
                Err(error) => assert!(matches!(error, ReadError::Fetch { .. }), "{error:?}"),
            }
        }
        let failures = 1 - on.inner.tally.may_fail.load(Ordering::SeqCst) as usize;
        for read in READS {
            let again = on.read(Uncompressed(read.0), read.1, budget(&on)).await;
            assert_eq!(again, Ok(wanted(read)));
        }
        // A failure may come before all want the span, or instead of a fetch that nobody repeats.
        assert!((2..=2 + failures).contains(&on.inner.tally.fetches().len()));
        assert_idle(&on).await;
    });
}

/// What is fetched ahead is shared too, with those who read it and with those who fetch it ahead.
pub fn spans_fetched_ahead_are_shared() {
    block_on(async {
        let on = layer(2 * SPAN, 1 << 20, Tally::default());
        let reads = [(0, 4), (4, 4), (8, 4)];
        for (read, reader) in reads.map(|read| (read, spawn(&on, read))) {
            assert_eq!(reader.await.unwrap(), Ok(wanted(read)));
        }
        assert_eq!(on.inner.tally.fetches(), [SpanId(0), SpanId(1), SpanId(2)]);
        assert_idle(&on).await;
    });
}

/// A reader that leaves, because its deadline has passed or its caller has gone, takes nothing from
/// the others. Those whose deadline passes say so.
pub fn readers_may_leave() {
    block_on(async {
        let on = layer(0, 1 << 20, Tally::default());
        let leaving = spawn(&on, READS[0]);
        let readers = READS.map(|read| (read, spawn(&on, read)));
        leaving.abort();
        for (read, reader) in readers {
            match reader.await.unwrap() {
                Ok(got) => assert_eq!(got, wanted(read)),
                Err(error) => assert!(matches!(error, ReadError::Deadline { .. }), "{error:?}"),
            }
        }
        let fetches = on.inner.tally.fetches();
        assert!(
            fetches.len() <= 2 && fetches.windows(2).all(|two| two[0] != two[1]),
            "{fetches:?}"
        );
        let _ = leaving.await;
        assert_idle(&on).await;
    });
}

/// With memory for one span only, readers live on what is passed to them.
pub fn readers_need_no_memory() {
    block_on(async {
        let on = layer(0, SPAN, Tally::default());
        for (read, reader) in READS.map(|read| (read, spawn(&on, read))) {
            assert_eq!(reader.await.unwrap(), Ok(wanted(read)));
        }
        assert_idle(&on).await;
    });
}

/// Of those who want a span at the same time, one must fetch it. Each that waits learns the result,
/// or that there is none.
pub fn one_promise_at_a_time() {
    block_on(async {
        let in_flight = SpansInFlight::default();
        let promises = Arc::new(AtomicUsize::new(0));
        let of = layer(0, 0, Tally::default()).span(SpanId(0));
        let tasks = [true, false, true].map(|keeps| {
            let in_flight = in_flight.clone();
            let promises = Arc::clone(&promises);
            tokio::spawn(async move {
                match in_flight.join(of, FetchCause::Read) {
                    FetchRole::Wait(waiter) => waiter.result().await,
                    FetchRole::Fetch(promise, waiter) => {
                        assert_eq!(
                            promises.fetch_add(1, Ordering::SeqCst),
                            0,
                            "two promises for a span"
                        );
                        tokio::task::yield_now().await;
                        promises.fetch_sub(1, Ordering::SeqCst);
                        if keeps {
                            promise.complete(Ok(Arc::default()))
                        } else {
                            drop(promise)
                        }
                        waiter.result().await
                    }
                }
            })
        });
        for task in tasks {
            task.await.unwrap();
        }
        assert!(!in_flight.has(of));
    });
}
