//! Fetches in the background what a start is known to read, or the rest of an image.

use std::collections::BTreeSet;
use std::future::ready;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::debug;

use super::FetchCause;
use super::fetch::Disk;
use super::in_flight::{FetchRole, SpanRequest};
use super::inner::{Inner, Layer, LayerHandle};
use ociseek_format::image::Descriptor;
use ociseek_format::image::prefetch::{MAX_PREFETCH, SpanRange, parse};
use ociseek_format::offset::{LayerId, SpanId};
use ociseek_format::progress::causes;

/// How many compressed bytes are requested at a time. A read that arrives in between does not wait
/// longer than for this.
const STEP: u64 = 4 << 20;
/// The interval of checks whether reads are waiting.
const PAUSE: Duration = Duration::from_millis(5);
/// How many fetches may fail in a row before fetching stops.
const FAILURES: u32 = 8;
const TOO_SMALL: &str = "the cache is too small for the whole image: the rest is fetched on demand";

/// How many fetches of listed spans may be in progress.
const AT_A_TIME: usize = 4;

/// Fetches the spans that prefetch artifacts list. An artifact that cannot be used is reported as a
/// warning.
pub(super) async fn fetch_artifacts(inner: &Arc<Inner>, artifacts: Vec<(LayerId, Descriptor)>) {
    let mut all = Vec::new();
    for (layer, artifact) in artifacts {
        let ranges = match inner.source.blob_bytes(&artifact, MAX_PREFETCH).await {
            Ok(bytes) => parse(&bytes).map_err(|error| causes(&error)),
            Err(error) => Err(causes(&error)),
        };
        match ranges {
            Ok(ranges) => all.push((layer, ranges)),
            Err(why) => {
                inner.warn(format!("ignoring prefetch artifact {}: {why}", artifact.digest))
            }
        }
    }
    fetch_ranges(inner, all).await;
}

/// Fetches the listed spans of each layer. Spans that do not exist are ignored.
async fn fetch_ranges(inner: &Arc<Inner>, listed: Vec<(LayerId, Vec<SpanRange>)>) {
    // The spans of this image must not displace each other.
    let room = inner.cache.max_bytes() / 10 * 8;
    let mut steps = Vec::new();
    let mut planned = 0;
    for (layer, ranges) in listed {
        let Some(on) = inner.on(layer).filter(LayerHandle::keeps_on_disk) else { continue };
        for range in ranges {
            let end = SpanId(range.end().0.saturating_add(1).min(on.layer.open.spans.count()));
            let mut next = *range.start();
            while next < end {
                let spans = next..step(&on.layer, next).end.min(end);
                next = spans.end;
                planned += size(&on.layer, &spans);
                if planned <= room {
                    steps.push((on.clone(), spans));
                }
            }
        }
    }
    let fetches =
        stream::iter(steps).map(|(on, spans)| async move { on.fetch_missing(spans).await });
    // A span that did not arrive is fetched again when it is read.
    fetches.buffer_unordered(AT_A_TIME).for_each(|_| ready(())).await;
}

pub(super) async fn prefetch(inner: &Arc<Inner>) {
    let mut failures = 0;
    // The spans of this image must not displace each other.
    let mut room = inner.cache.max_bytes() / 10 * 8;
    let mut seen = BTreeSet::new();
    for on in (0..inner.layers.len() as u32).filter_map(|layer| inner.on(LayerId(layer))) {
        if !on.keeps_on_disk() || !seen.insert(on.layer.digest()) {
            continue;
        }
        // Each step would decode such a layer from its start.
        if on.layer.open.map().is_unpacked() && !on.keeps_whole() {
            inner.warn(TOO_SMALL.to_owned());
            continue;
        }
        let mut next = SpanId(0);
        while next.0 < on.layer.open.spans.count() {
            let spans = step(&on.layer, next);
            next = spans.end;
            let Some(left) = room.checked_sub(size(&on.layer, &spans)) else {
                inner.warn(TOO_SMALL.to_owned());
                return;
            };
            room = left;
            while inner.waiting.load(Ordering::Relaxed) > 0 {
                sleep(PAUSE).await;
            }
            if on.fetch_missing(spans).await {
                failures = 0
            } else {
                failures += 1
            }
            if failures == FAILURES {
                return;
            }
        }
    }
}

/// The spans from `first` on that are fetched together.
fn step(layer: &Layer, first: SpanId) -> Range<SpanId> {
    let start = layer.blob_range(first).start;
    let fits = |span: &u32| layer.blob_range(SpanId(*span)).end - start <= STEP;
    let more = (first.0 + 1..layer.open.spans.count()).take_while(fits).count();
    first..SpanId(first.0 + 1 + more as u32)
}

/// The size of spans in bytes of the tar.
fn size(layer: &Layer, spans: &Range<SpanId>) -> u64 {
    SpanId::each(spans.clone()).map(|span| layer.size(span)).sum()
}

impl LayerHandle {
    /// Fetches the spans that are not on disk. Returns false if one of them did not arrive.
    async fn fetch_missing(&self, spans: Range<SpanId>) -> bool {
        let on = self.clone();
        let missing = spawn_blocking(move || {
            let is_missing = |span: &SpanId| on.layer.size(*span) > 0 && !on.is_on_disk(*span);
            SpanId::each(spans).filter(is_missing).collect::<Vec<SpanId>>()
        });
        let mut wanted = Vec::new();
        let mut waiters = Vec::new();
        for span in missing.await.unwrap_or_default() {
            match self.inner.in_flight.join(self.span(span), FetchCause::Readahead) {
                FetchRole::Wait(waiter) => waiters.push(waiter),
                FetchRole::Fetch(promise, waiter) => {
                    wanted.push(SpanRequest { promise, pieces: None });
                    waiters.push(waiter);
                }
            }
        }
        debug!(name: "prefetch", target: "ociseek::content", layer = %self.layer.digest(), spans = wanted.len());
        self.launch(wanted, Disk::Ask, FetchCause::Readahead);
        let mut all_arrived = true;
        // The last one mostly ends last, so this task is not woken for each of them.
        for waiter in waiters.into_iter().rev() {
            if let Some(Err(error)) = waiter.result().await {
                self.inner.report(&error);
                all_arrived = false;
            }
        }
        all_arrived
    }
}
