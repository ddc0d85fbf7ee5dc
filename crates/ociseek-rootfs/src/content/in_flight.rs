//! The spans in flight: fetches in progress, each shared by all tasks that wait for the span. Also
//! remembers spans that missed the deadline.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::inner::SpanOf;
use super::pieces::Run;
use super::{FetchCause, ReadError};
use crate::cache::Claim;
use ociseek_format::offset::SpanId;
use ociseek_store::lock::Hold;

/// How long to remember that a span missed the deadline.
const MISSED: Duration = Duration::from_secs(1);

/// The result of a fetch. The run may hold less than a waiter wants, which then looks into the
/// caches or fetches the span itself.
pub(super) type SpanResult = Result<Arc<Run>, ReadError>;

/// The result of a fetch in progress, and the reason for the fetch.
type FetchInProgress = (watch::Receiver<Option<SpanResult>>, FetchCause);

#[derive(Clone, Default)]
pub(super) struct SpansInFlight {
    fetches: Arc<Mutex<HashMap<SpanOf, FetchInProgress>>>,
}

/// The result of [`SpansInFlight::join`].
pub(super) enum FetchRole {
    /// The span is already being fetched.
    Wait(Waiter),
    /// It was not; the holder of the promise must fetch it.
    Fetch(FetchPromise, Waiter),
}

/// Waits for a span.
pub(super) struct Waiter {
    result: watch::Receiver<Option<SpanResult>>,
    /// Whether the span is fetched in advance, and only those that joined wait for it. If that
    /// fails, it means little.
    pub is_joined_ahead: bool,
}

/// The duty to fetch a span. If it is dropped before [`FetchPromise::complete`], all waiters fail.
pub(super) struct FetchPromise {
    of: SpanOf,
    cause: FetchCause,
    in_flight: SpansInFlight,
    sender: watch::Sender<Option<SpanResult>>,
    /// Keeps other images from fetching the span until this is dropped.
    claim: Option<Claim>,
    has_ended: bool,
}

/// A span to be fetched.
pub(super) struct SpanRequest {
    pub promise: FetchPromise,
    /// The pieces that must at least be passed on. None if the span is fetched only for the cache
    /// on disk.
    pub pieces: Option<Range<u32>>,
}

impl SpansInFlight {
    /// `cause` is the reason if the span must be fetched.
    pub(super) fn join(&self, of: SpanOf, cause: FetchCause) -> FetchRole {
        let mut fetches = self.fetches.hold();
        if let Some((result, other)) = fetches.get(&of) {
            return FetchRole::Wait(Waiter {
                result: result.clone(),
                is_joined_ahead: *other == FetchCause::Readahead,
            });
        }
        let (sender, result) = watch::channel(None);
        fetches.insert(of, (result.clone(), cause));
        FetchRole::Fetch(
            FetchPromise {
                of,
                cause,
                in_flight: self.clone(),
                sender,
                claim: None,
                has_ended: false,
            },
            Waiter { result, is_joined_ahead: false },
        )
    }

    /// Whether the span is being fetched.
    pub(super) fn has(&self, of: SpanOf) -> bool {
        self.fetches.hold().contains_key(&of)
    }
}

impl FetchPromise {
    pub(super) fn span(&self) -> SpanId {
        self.of.span
    }

    /// The reason for the fetch.
    pub(super) fn cause(&self) -> FetchCause {
        self.cause
    }

    /// Keeps the claim until the fetch ends.
    pub(super) fn hold(&mut self, claim: Claim) {
        self.claim = Some(claim);
    }

    /// Gives all waiters the result, which must have all that they can want. Others still join the
    /// fetch, until it ends.
    pub(super) fn deliver(&self, result: SpanResult) {
        self.sender.send_replace(Some(result));
    }

    /// Ends the fetch. Its results must already be in the caches, because tasks that find no fetch
    /// in progress look there.
    pub(super) fn complete(mut self, result: SpanResult) {
        self.remove();
        self.has_ended = true;
        self.sender.send_replace(Some(result));
    }

    fn remove(&self) {
        self.in_flight.fetches.hold().remove(&self.of);
    }
}

impl Drop for FetchPromise {
    fn drop(&mut self) {
        // Another fetch may have begun since this one has ended.
        if !self.has_ended {
            self.remove();
        }
    }
}

impl Waiter {
    /// The result of the fetch. None if it was abandoned.
    pub(super) async fn result(mut self) -> Option<SpanResult> {
        self.result.wait_for(Option::is_some).await.ok()?.clone()
    }
}

/// Spans that recently missed the deadline. If the kernel's read-ahead fails, the kernel requests
/// the page that a program waits for once more. Waiting for that as well would take twice the
/// deadline.
pub(super) struct Misses {
    window: Duration,
    since: Mutex<HashMap<SpanOf, Instant>>,
}

impl Misses {
    pub(super) fn new(deadline: Duration) -> Misses {
        Misses { window: MISSED.min(deadline / 4), since: Mutex::default() }
    }

    /// Records spans that did not arrive in time.
    pub(super) fn add(&self, spans: impl Iterator<Item = SpanOf>) {
        let now = Instant::now();
        let mut since = self.since.hold();
        since.retain(|_, then| now.duration_since(*then) < self.window);
        since.extend(spans.map(|of| (of, now)));
    }

    /// Whether a span missed the deadline just now.
    pub(super) fn has(&self, of: SpanOf) -> bool {
        let since = self.since.hold();
        since.get(&of).is_some_and(|then| then.elapsed() < self.window)
    }
}
