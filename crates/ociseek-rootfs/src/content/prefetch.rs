//! Fetches in the background what prefetch artifacts list.

use std::future::ready;
use std::ops::Range;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;
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
    let room = inner.cache.room();
    let mut steps = Vec::new();
    let mut planned = 0;
    for (layer, ranges) in listed {
        let Some(handle) = inner.handle(layer).filter(LayerHandle::keeps_on_disk) else { continue };
        for range in ranges {
            let end = SpanId(range.end().0.saturating_add(1).min(handle.layer.open.spans.count()));
            let mut next = *range.start();
            while next < end {
                let spans = next..step(&handle.layer, next).end.min(end);
                next = spans.end;
                planned += size(&handle.layer, &spans);
                if planned <= room {
                    steps.push((handle.clone(), spans));
                }
            }
        }
    }
    let fetches =
        stream::iter(steps).map(|(handle, spans)| async move { handle.fetch_missing(spans).await });
    // A span that did not arrive is fetched again when it is read.
    fetches.buffer_unordered(AT_A_TIME).for_each(|_| ready(())).await;
}

/// The spans from `first` on that are fetched together.
fn step(layer: &Layer, first: SpanId) -> Range<SpanId> {
    let start = layer.blob_range(first).start;
    let fits = |span: &u32| layer.blob_range(SpanId(*span)).end - start <= STEP;
    let more = (first.0 + 1..layer.open.spans.count()).take_while(fits).count();
    first..SpanId(first.0 + 1 + more as u32)
}

/// The size of spans in bytes of the tar.
pub(super) fn size(layer: &Layer, spans: &Range<SpanId>) -> u64 {
    SpanId::each(spans.clone()).map(|span| layer.size(span)).sum()
}

impl LayerHandle {
    /// Fetches the spans that are not on disk.
    async fn fetch_missing(&self, spans: Range<SpanId>) {
        let missing = self.missing_on_disk(spans).await;
        self.fetch_for_disk(missing).await;
    }

    /// Those of the spans that are not on disk.
    pub(super) async fn missing_on_disk(&self, spans: Range<SpanId>) -> Vec<SpanId> {
        let handle = self.clone();
        let missing = spawn_blocking(move || {
            let is_missing =
                |span: &SpanId| handle.layer.size(*span) > 0 && !handle.is_on_disk(*span);
            SpanId::each(spans).filter(is_missing).collect()
        });
        missing.await.unwrap_or_default()
    }

    /// Fetches spans into the cache on disk. Returns false if one of them did not arrive.
    pub(super) async fn fetch_for_disk(&self, spans: Vec<SpanId>) -> bool {
        let mut wanted = Vec::new();
        let mut waiters = Vec::new();
        for span in spans {
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
