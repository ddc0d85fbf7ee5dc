//! What all clients of a process share: how fast they may receive together, and who learns of their
//! requests.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::lock::Hold;

/// How long the link may have been idle to make up for it.
const BURST: Duration = Duration::from_millis(250);

/// A request whose answer began, or that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnsweredRequest {
    /// None if there was no answer.
    pub status: Option<u16>,
    /// The time until the headers of the answer.
    pub took: Duration,
}

/// What all clients of a process share.
pub struct SharedLink {
    /// How fast they receive.
    pub speed: Arc<SpeedLimit>,
    observe: Box<dyn Fn(AnsweredRequest) + Send + Sync>,
}

impl fmt::Debug for SharedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLink").field("speed", &self.speed).finish_non_exhaustive()
    }
}

impl SharedLink {
    /// A link without a limit. `observe` learns of each request.
    pub fn new(observe: impl Fn(AnsweredRequest) + Send + Sync + 'static) -> SharedLink {
        SharedLink { speed: Arc::default(), observe: Box::new(observe) }
    }

    /// A part of the link, for some of the clients: `observe` learns of their requests, too.
    pub fn part(
        self: &Arc<SharedLink>,
        observe: impl Fn(AnsweredRequest) + Send + Sync + 'static,
    ) -> SharedLink {
        let whole = Arc::clone(self);
        let both = move |request| {
            whole.answered(request);
            observe(request);
        };
        SharedLink { speed: Arc::clone(&self.speed), observe: Box::new(both) }
    }

    pub(super) fn answered(&self, request: AnsweredRequest) {
        (self.observe)(request);
    }
}

/// A speed limit that several tasks share. It is off until it is set.
#[derive(Debug, Default)]
pub struct SpeedLimit {
    /// In bytes per second; 0 for no limit.
    speed: AtomicU64,
    /// When what has passed so far has passed at this speed.
    free_at: Mutex<Option<Instant>>,
    /// The speed has changed.
    changed: Notify,
}

impl SpeedLimit {
    /// In bytes per second.
    pub fn get(&self) -> Option<u64> {
        Some(self.speed.load(Ordering::Relaxed)).filter(|speed| *speed > 0)
    }

    /// From now on, at most this many bytes pass in a second. None for no limit.
    pub fn set(&self, bytes_per_second: Option<u64>) {
        let speed = bytes_per_second.unwrap_or(0);
        if self.speed.swap(speed, Ordering::Relaxed) != speed {
            *self.free_at.hold() = None;
            self.changed.notify_waiters();
        }
    }

    /// Waits until these bytes may pass, or the speed changes.
    pub async fn pass(&self, bytes: u64) {
        let changed = self.changed.notified();
        if let Some(at) = self.passes_at(bytes, Instant::now()) {
            tokio::select! {
                () = sleep_until(at) => {}
                () = changed => {}
            }
        }
    }

    fn passes_at(&self, bytes: u64, now: Instant) -> Option<Instant> {
        let speed = self.get()?;
        let takes = Duration::from_secs_f64(bytes as f64 / speed as f64);
        let mut free_at = self.free_at.hold();
        let since = free_at.map_or(now, |free_at| free_at.max(now));
        let until = since + takes;
        *free_at = Some(until);
        until.checked_sub(BURST).filter(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_arrives_is_counted_together() {
        let link = SpeedLimit::default();
        let now = Instant::now();
        assert_eq!(link.passes_at(u64::MAX, now), None);
        link.set(Some(1000));
        assert_eq!(link.passes_at(200, now), None);
        let waits = |bytes, after: u64| {
            let now = now + Duration::from_secs(after);
            link.passes_at(bytes, now).map_or(Duration::ZERO, |at| at - now)
        };
        // 2.2 s of bytes have arrived, and then 3.2 s.
        assert_eq!(waits(2000, 0), Duration::from_millis(1950));
        assert_eq!(waits(1000, 1), Duration::from_millis(1950));
        // The time in which nothing arrived is not made up for.
        assert_eq!(waits(1000, 1000), Duration::from_millis(750));
        // The same limit again forgives nothing.
        link.set(Some(1000));
        assert_eq!(waits(1000, 1000), Duration::from_millis(1750));
        link.set(None);
        assert_eq!(waits(u64::MAX, 1000), Duration::ZERO);
    }

    #[tokio::test]
    async fn who_waits_by_a_slow_limit_goes_on_when_it_changes() {
        let link = SpeedLimit::default();
        link.set(Some(1));
        let change = async {
            tokio::task::yield_now().await;
            link.set(Some(1 << 30));
        };
        let both = async { tokio::join!(link.pass(1 << 20), change) };
        tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
    }
}
