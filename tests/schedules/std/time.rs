//! Time that passes only when a timeout elapses.

use std::cell::Cell;
use std::ops::Add;

pub use std::time::Duration;
/// The clock of this machine.
pub use std::time::Instant as WallClock;

thread_local! {
    /// The tasks and threads of a schedule share a thread of the system.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static ELAPSE: Cell<bool> = const { Cell::new(false) };
}

/// A moment of this clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    pub fn now() -> Instant {
        Instant(NOW.get())
    }

    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self)
    }

    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }

    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

/// Begins a schedule. Either timeouts elapse at any moment that the schedule chooses, or never:
/// then whatever waits for something else that never comes is a deadlock.
pub fn begin(timeouts_elapse: bool) {
    NOW.set(Duration::ZERO);
    ELAPSE.set(timeouts_elapse);
}

/// Whether timeouts may elapse in this schedule.
pub fn timeouts_elapse() -> bool {
    ELAPSE.get()
}

/// Moves the clock to `at`, unless it is later.
pub fn reach(at: Instant) {
    NOW.set(NOW.get().max(at.0));
}
