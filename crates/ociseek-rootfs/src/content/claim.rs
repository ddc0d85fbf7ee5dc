//! Spans that another image of this process is fetching for the cache on disk. They are not fetched
//! here too, but awaited there. Who fetches a span for the cache claims it first.
//!
//! Nobody waits for an image that makes no progress: after some time its spans are fetched here,
//! and for some time after that, nothing is awaited.

use std::iter::repeat_with;
use std::mem::take;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::debug;

use super::FetchCause;
use super::in_flight::SpanRequest;
use super::inner::{LayerHandle, on_disk};
use super::race::stall;
use crate::cache::{Claim, ClaimOutcome};
use ociseek_format::offset::SpanId;
use ociseek_store::lock::Hold;

/// The shortest and the longest interval of checks whether a span has arrived.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];

/// Until when the claims of others are ignored, if ever.
#[derive(Default)]
pub(super) struct OthersIgnored(Mutex<Option<Instant>>);

impl OthersIgnored {
    fn is_now(&self) -> bool {
        self.0.hold().is_some_and(|until| Instant::now() < until)
    }

    fn begin(&self, time: Duration) {
        *self.0.hold() = Instant::now().checked_add(time);
    }
}

/// Spans that are in no cache.
#[derive(Default)]
pub(super) struct MissingSpans {
    /// They must be fetched here.
    pub ours: Vec<SpanRequest>,
    /// Another image is fetching them.
    pub others: Vec<SpanRequest>,
}

/// Who is to fetch a span for the cache on disk.
enum MissingFrom {
    /// It is there.
    Nobody,
    Us(Option<Claim>),
    Others,
}

impl LayerHandle {
    /// Claims the spans, as far as others have not claimed them. Completes the fetches of those
    /// that are in the cache on disk after all.
    pub(super) async fn claim(&self, spans: Vec<SpanRequest>) -> MissingSpans {
        if !self.keeps_on_disk() {
            return MissingSpans { ours: spans, others: Vec::new() };
        }
        let handle = self.clone();
        let wanted: Vec<SpanId> = spans.iter().map(|wanted| wanted.promise.span()).collect();
        let claimed = on_disk(move || {
            let LayerHandle { inner, layer, .. } = &handle;
            let claim = |span: SpanId| {
                let claim = match inner.cache.claim(&layer.place(span)) {
                    ClaimOutcome::Granted(claim) => Some(claim),
                    ClaimOutcome::Taken if !inner.others_ignored.is_now() => {
                        return MissingFrom::Others;
                    }
                    ClaimOutcome::Taken | ClaimOutcome::Unavailable => None,
                };
                // It may have been stored just before it could be claimed.
                if handle.is_on_disk(span) { MissingFrom::Nobody } else { MissingFrom::Us(claim) }
            };
            wanted.into_iter().map(claim).collect::<Vec<_>>()
        });
        let claimed = claimed.await.unwrap_or_default().into_iter().map(Some);
        let mut missing = MissingSpans::default();
        for (mut wanted, claimed) in spans.into_iter().zip(claimed.chain(repeat_with(|| None))) {
            match claimed {
                Some(MissingFrom::Others) => missing.others.push(wanted),
                Some(MissingFrom::Nobody) => wanted.promise.complete(Ok(Arc::default())),
                Some(MissingFrom::Us(Some(claim))) => {
                    wanted.promise.hold(claim);
                    missing.ours.push(wanted);
                }
                // The disk does not answer, or there are no claims.
                Some(MissingFrom::Us(None)) | None => missing.ours.push(wanted),
            }
        }
        missing
    }

    /// Waits until others have stored these spans. Fetches those that they gave up, and all that is
    /// left if nothing arrives for as long as a connection may be silent.
    pub(super) async fn await_others(self, mut spans: Vec<SpanRequest>, cause: FetchCause) {
        let layer = self.layer.digest();
        let asked = spans.len();
        let begun = Instant::now();
        let stall = stall(self.inner.options.deadline);
        let [mut pause, longest] = PAUSES;
        let mut progress = begun;
        let mut fetched = 0;
        while !spans.is_empty() {
            sleep(pause).await;
            let before = spans.len();
            let mut missing = self.claim(take(&mut spans)).await;
            if missing.others.len() < before {
                [pause, _] = PAUSES;
                progress = Instant::now();
            } else if progress.elapsed() < stall {
                pause = (pause * 2).min(longest);
            } else {
                self.inner.others_ignored.begin(self.inner.options.deadline);
                missing.ours.append(&mut missing.others);
            }
            fetched += missing.ours.len();
            self.fetch_groups(missing.ours, cause);
            spans = missing.others;
        }
        debug!(
            name: "awaited", target: "ociseek::content",
            %layer, spans = asked - fetched, of = asked, ms = begun.elapsed().as_millis() as u64,
        );
    }
}
