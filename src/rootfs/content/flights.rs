//! Spans on their way: one fetch serves all who wait for it. And those that did not come in time.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::fetch::Cause;
use super::layer::SpanOf;
use super::model::ReadError;
use super::pieces::Run;
use crate::offset::SpanId;

/// How long it is remembered that a span has missed the deadline.
const MISSED: Duration = Duration::from_secs(1);

/// What came of a fetch. The run may hold less than a waiter wants: then it looks into the caches, or fetches itself.
pub(super) type Landed = Result<Arc<Run>, ReadError>;

/// A span on its way, and why.
type Flying = (watch::Receiver<Option<Landed>>, Cause);

#[derive(Clone, Default)]
pub(super) struct Flights {
    flying: Arc<Mutex<HashMap<SpanOf, Flying>>>,
}

/// What [`Flights::board`] found.
pub(super) enum Boarding {
    /// Somebody fetches the span already.
    Wait(Waiter),
    /// Nobody did; now the holder of the flight does.
    Fetch(Flight, Waiter),
}

/// Waits for a span.
pub(super) struct Waiter {
    landed: watch::Receiver<Option<Landed>>,
    /// Somebody fetches it whom no read waits for but those that joined: if that fails, it says little.
    pub is_joined_ahead: bool,
}

/// The duty to fetch a span. Dropped before [`Flight::land`], it fails for all who wait.
pub(super) struct Flight {
    of: SpanOf,
    flights: Flights,
    sender: watch::Sender<Option<Landed>>,
}

/// A span to be fetched.
pub(super) struct Wanted {
    pub flight: Flight,
    /// The pieces of it that are to be handed over at least; `None` where it is fetched for the cache on disk alone.
    pub pieces: Option<Range<u32>>,
}

impl Flights {
    /// `cause`: why the span would be fetched.
    pub(super) fn board(&self, of: SpanOf, cause: Cause) -> Boarding {
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((landed, other)) = flying.get(&of) {
            return Boarding::Wait(Waiter { landed: landed.clone(), is_joined_ahead: *other == Cause::Ahead });
        }
        let (sender, landed) = watch::channel(None);
        flying.insert(of, (landed.clone(), cause));
        Boarding::Fetch(Flight { of, flights: self.clone(), sender }, Waiter { landed, is_joined_ahead: false })
    }

    /// Whether somebody fetches the span.
    pub(super) fn has(&self, of: SpanOf) -> bool {
        self.flying.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&of)
    }
}

impl Flight {
    pub(super) fn span(&self) -> SpanId {
        self.of.span
    }

    /// The fetch is over. What belongs into the caches is there before this, so that whoever finds
    /// no flight any more finds it there.
    pub(super) fn land(self, landed: Landed) {
        self.leave();
        self.sender.send_replace(Some(landed));
    }

    fn leave(&self) {
        self.flights.flying.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.of);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.sender.borrow().is_none() {
            self.leave();
        }
    }
}

impl Waiter {
    /// What came of the fetch; `None` if it was given up.
    pub(super) async fn landed(mut self) -> Option<Landed> {
        self.landed.wait_for(Option::is_some).await.ok()?.clone()
    }
}

/// Spans that have just missed the deadline. When the kernel's reading ahead fails it asks once
/// more, for the very page that a program waits for: waiting for that too would take twice the
/// deadline.
pub(super) struct Misses {
    window: Duration,
    since: Mutex<HashMap<SpanOf, Instant>>,
}

impl Misses {
    pub(super) fn new(deadline: Duration) -> Misses {
        Misses { window: MISSED.min(deadline / 4), since: Mutex::default() }
    }

    /// These did not come in time.
    pub(super) fn add(&self, spans: impl Iterator<Item = SpanOf>) {
        let now = Instant::now();
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|_, then| now.duration_since(*then) < self.window);
        since.extend(spans.map(|of| (of, now)));
    }

    /// Whether a span missed the deadline just now.
    pub(super) fn has(&self, of: SpanOf) -> bool {
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.get(&of).is_some_and(|then| then.elapsed() < self.window)
    }
}
