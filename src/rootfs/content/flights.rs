//! Spans on their way: one fetch serves all who wait for it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::error::ReadError;
use super::pieces::Run;

/// A layer's number and a span's.
type SpanOf = (u32, u32);
/// What came of a fetch. The run may hold less than a waiter wants: then it looks into the caches, or fetches itself.
pub(super) type Landed = Result<Arc<Run>, ReadError>;

#[derive(Clone, Default)]
pub(super) struct Flights {
    flying: Arc<Mutex<HashMap<SpanOf, watch::Receiver<Option<Landed>>>>>,
}

/// What [`Flights::board`] found.
pub(super) enum Boarding {
    /// Somebody fetches the span already.
    Wait(Waiter),
    /// Nobody did; now the holder of the flight does.
    Fetch(Flight, Waiter),
}

/// Waits for a span.
pub(super) struct Waiter(watch::Receiver<Option<Landed>>);

/// The duty to fetch a span. Dropped before [`Flight::land`], it fails for all who wait.
pub(super) struct Flight {
    pub layer: u32,
    pub span: u32,
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
    pub fn board(&self, layer: u32, span: u32) -> Boarding {
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(receiver) = flying.get(&(layer, span)) {
            return Boarding::Wait(Waiter(receiver.clone()));
        }
        let (sender, receiver) = watch::channel(None);
        flying.insert((layer, span), receiver.clone());
        Boarding::Fetch(Flight { layer, span, flights: self.clone(), sender }, Waiter(receiver))
    }

    /// Whether somebody fetches the span.
    pub fn has(&self, layer: u32, span: u32) -> bool {
        self.flying.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&(layer, span))
    }
}

impl Flight {
    /// The fetch is over. What belongs into the caches is there before this, so that whoever finds no flight any more finds it there.
    pub fn land(self, landed: Landed) {
        self.leave();
        self.sender.send_replace(Some(landed));
    }

    fn leave(&self) {
        self.flights.flying.lock().unwrap_or_else(PoisonError::into_inner).remove(&(self.layer, self.span));
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
    pub async fn landed(mut self) -> Option<Landed> {
        self.0.wait_for(Option::is_some).await.ok()?.clone()
    }
}
