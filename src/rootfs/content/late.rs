//! Spans that have just missed the deadline. When the kernel's reading ahead fails it asks once
//! more, for the very page that a program waits for: waiting for that too would take twice the
//! deadline.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a span counts as late.
const LATE: Duration = Duration::from_secs(1);

pub(super) struct Late {
    window: Duration,
    /// By the number of the layer and of the span.
    since: Mutex<HashMap<(u32, u32), Instant>>,
}

impl Late {
    pub fn new(deadline: Duration) -> Late {
        Late { window: LATE.min(deadline / 4), since: Mutex::default() }
    }

    /// Spans of a layer did not come in time.
    pub fn add(&self, layer: u32, spans: impl Iterator<Item = u32>) {
        let now = Instant::now();
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|_, then| now.duration_since(*then) < self.window);
        since.extend(spans.map(|span| ((layer, span), now)));
    }

    /// Whether a span missed the deadline just now.
    pub fn has(&self, layer: u32, span: u32) -> bool {
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.get(&(layer, span)).is_some_and(|then| then.elapsed() < self.window)
    }
}
