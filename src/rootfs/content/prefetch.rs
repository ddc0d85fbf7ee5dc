//! Bringing in the background what a start is known to read, or the rest of an image.

use std::collections::BTreeSet;
use std::future::ready;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Inner;
use super::fetch::launch;
use super::flights::{Boarding, Wanted};
use super::layer::Layer;
use crate::image::Descriptor;
use crate::image::prefetch::{MAX_PREFETCH, SpanRange, parse};
use crate::progress::causes;

/// Compressed bytes that are asked for at a time: a read that comes in between waits for no more.
const STEP: u64 = 4 << 20;
/// How soon it is looked again whether reads are waiting.
const PAUSE: Duration = Duration::from_millis(5);
/// Fetches that may fail one after the other before it is given up.
const FAILURES: u32 = 8;
const TOO_SMALL: &str = "the cache is too small for the whole image: what is left of it is fetched when it is read";

/// Fetches of listed spans that are under way at a time.
const AT_A_TIME: usize = 4;

/// Brings the spans that prefetch artifacts list, each for the layer of a number. An artifact that
/// cannot be used is a warning.
pub(super) async fn artifacts(inner: &Arc<Inner>, artifacts: Vec<(u32, Descriptor)>) {
    let mut all = Vec::new();
    for (number, artifact) in artifacts {
        let ranges = match inner.source.blob_bytes(&artifact, MAX_PREFETCH).await {
            Ok(bytes) => parse(&bytes).map_err(|error| causes(&error)),
            Err(error) => Err(causes(&error)),
        };
        match ranges {
            Ok(ranges) => all.push((number, ranges)),
            Err(why) => inner.warn(format!("prefetch artifact {} is not used: {why}", artifact.digest)),
        }
    }
    listed(inner, all).await;
}

/// Brings the spans that are listed for each layer, by its number. What is listed and not there is passed over.
async fn listed(inner: &Arc<Inner>, listed: Vec<(u32, Vec<SpanRange>)>) {
    // What this image takes may not push out itself.
    let room = inner.cache.max_bytes() / 10 * 8;
    let mut steps = Vec::new();
    let mut planned = 0;
    for (number, ranges) in listed {
        let Some(layer) = inner.layers.get(number as usize).filter(|layer| inner.keeps_on_disk(layer)) else {
            continue;
        };
        for range in ranges {
            let end = range.end().saturating_add(1).min(layer.open.spans.count());
            let mut next = *range.start();
            while next < end {
                let spans = next..step(layer, next).end.min(end);
                next = spans.end;
                planned += spans.clone().map(|span| layer.size(span)).sum::<u64>();
                if planned <= room {
                    steps.push((number, spans));
                }
            }
        }
    }
    let bringing = stream::iter(steps).map(|(number, spans)| bring(inner, number, spans));
    // A span that does not come is fetched again when it is read.
    bringing.buffer_unordered(AT_A_TIME).for_each(|_| ready(())).await;
}

pub(super) async fn prefetch(inner: &Arc<Inner>) {
    let mut failures = 0;
    // What this image takes may not push out itself.
    let mut room = inner.cache.max_bytes() / 10 * 8;
    let mut seen = BTreeSet::new();
    for (number, layer) in (0..).zip(&inner.layers) {
        if !inner.keeps_on_disk(layer) || !seen.insert(layer.open.descriptor.digest) {
            continue;
        }
        // Each step would decode it from its start.
        if layer.open.map().is_unpacked() && !inner.keeps_whole(layer) {
            inner.warn(TOO_SMALL.to_owned());
            continue;
        }
        let mut next = 0;
        while next < layer.open.spans.count() {
            let spans = step(layer, next);
            next = spans.end;
            let size: u64 = spans.clone().map(|span| layer.size(span)).sum();
            let Some(left) = room.checked_sub(size) else {
                inner.warn(TOO_SMALL.to_owned());
                return;
            };
            room = left;
            while inner.waiting.load(Ordering::Relaxed) > 0 {
                sleep(PAUSE).await;
            }
            match bring(inner, number, spans).await {
                true => failures = 0,
                false => failures += 1,
            }
            if failures == FAILURES {
                return;
            }
        }
    }
}

/// The spans from `first` on that are fetched together.
fn step(layer: &Layer, first: u32) -> Range<u32> {
    let start = layer.blob_range(first).start;
    let fits = |span: &u32| layer.blob_range(*span).end - start <= STEP;
    let more = (first + 1..layer.open.spans.count()).take_while(fits).count();
    first..first + 1 + more as u32
}

/// Fetches those of `spans` that are not on disk. False: one of them did not come.
async fn bring(inner: &Arc<Inner>, number: u32, spans: Range<u32>) -> bool {
    let looking = Arc::clone(inner);
    let missing = spawn_blocking(move || {
        let Some(layer) = looking.layers.get(number as usize) else { return Vec::new() };
        let is_missing = |span: &u32| {
            let size = layer.size(*span);
            size > 0 && !looking.cache.has(&layer.key(*span), size)
        };
        spans.filter(is_missing).collect::<Vec<u32>>()
    });
    let (mut wanted, mut waiters) = (Vec::new(), Vec::new());
    for span in missing.await.unwrap_or_default() {
        match inner.flights.board(number, span) {
            Boarding::Wait(waiter) => waiters.push(waiter),
            Boarding::Fetch(flight, waiter) => {
                wanted.push(Wanted { flight, pieces: None });
                waiters.push(waiter);
            }
        }
    }
    launch(inner, number, wanted, false);
    let mut came = true;
    for waiter in waiters {
        if let Some(Err(error)) = waiter.landed().await {
            inner.tell(&error);
            came = false;
        }
    }
    came
}
