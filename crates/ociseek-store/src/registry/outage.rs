//! Tracks registries that cannot be connected to. An outage affects the registry, not a single
//! request: after it has lasted too long, no request waits for its end.

use crate::lock::Hold;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// After this time without a failure, the registry may have been available in between.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// The registries of a client, by the user's names for them.
#[derive(Default)]
pub(super) struct Outages(Mutex<HashMap<Box<str>, Availability>>);

#[derive(Default)]
struct Availability {
    /// Whether it has ever responded, so its name is right.
    has_responded: bool,
    outage: Option<Outage>,
    /// When a failure other than an outage was last reported.
    trouble: Option<Instant>,
}

struct Outage {
    since: Instant,
    last: Instant,
    is_reported: bool,
}

/// The state of a registry after a failure.
pub(super) struct OutageFailure {
    pub has_responded: bool,
    /// How long the registry has been unreachable.
    pub lasts: Duration,
}

impl Outages {
    fn with<T>(&self, registry: &str, run: impl FnOnce(&mut Availability) -> T) -> T {
        let mut all = self.0.hold();
        match all.get_mut(registry) {
            Some(host) => run(host),
            None => run(all.entry(registry.into()).or_default()),
        }
    }

    pub(super) fn failed(&self, registry: &str, now: Instant) -> OutageFailure {
        self.with(registry, |host| {
            let outage = host.outage.take().filter(|outage| now - outage.last < FORGOTTEN);
            let outage = outage.unwrap_or(Outage { since: now, last: now, is_reported: false });
            let lasts = now - outage.since;
            host.outage = Some(Outage { last: now, ..outage });
            OutageFailure { has_responded: host.has_responded, lasts }
        })
    }

    /// It was connected to, though it failed in another way, and is asked again `then`. Until then
    /// it is not down, however long that is.
    pub(super) fn connected(&self, registry: &str, then: Instant) {
        self.with(registry, |seen| {
            if let Some(outage) = &mut seen.outage {
                outage.since = outage.since.max(then);
                outage.last = outage.last.max(then);
            }
        });
    }

    /// Whether the registry has ever responded.
    pub(super) fn has_responded(&self, registry: &str) -> bool {
        self.with(registry, |host| host.has_responded)
    }

    /// Whether the outage should be reported. True only once.
    pub(super) fn is_news(&self, registry: &str) -> bool {
        self.with(registry, |host| {
            host.outage.as_mut().is_some_and(|outage| !std::mem::replace(&mut outage.is_reported, true))
        })
    }

    /// Whether a failure of a registry that can be connected to should be reported: the first, and
    /// then one in a while.
    pub(super) fn is_new_trouble(&self, registry: &str, now: Instant) -> bool {
        self.with(registry, |host| {
            let is_new = host.trouble.is_none_or(|last| now - last >= FORGOTTEN);
            if is_new {
                host.trouble = Some(now);
            }
            is_new
        })
    }

    /// Records a response. Returns true if it ends an outage that was reported.
    pub(super) fn answered(&self, registry: &str) -> bool {
        self.with(registry, |host| {
            host.has_responded = true;
            host.outage.take().is_some_and(|outage| outage.is_reported)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_affects_all_requests_and_ends_with_a_response() {
        let outages = Outages::default();
        let begun = Instant::now();
        let first = outages.failed("r", begun);
        assert!(!first.has_responded && first.lasts.is_zero());
        assert!(outages.is_news("r") && !outages.is_news("r"));
        let later = begun + Duration::from_secs(40);
        assert_eq!(outages.failed("r", later).lasts, Duration::from_secs(40));
        assert!(outages.failed("other", later).lasts.is_zero());
        assert!(outages.answered("r") && !outages.answered("r"));
        let again = outages.failed("r", later);
        assert!(again.has_responded && again.lasts.is_zero());
        assert!(outages.is_news("r"));
        // A pause between two failures does not count.
        let then = later + Duration::from_secs(50);
        outages.connected("r", then);
        assert!(outages.failed("r", then).lasts.is_zero() && !outages.is_news("r"));
        assert_eq!(outages.failed("r", then + Duration::from_secs(3)).lasts, Duration::from_secs(3));
        let later = then + Duration::from_secs(3);
        // After a long time without requests, a failure is a new outage.
        let much_later = later + FORGOTTEN;
        assert!(outages.failed("r", much_later).lasts.is_zero() && outages.is_news("r"));
    }
}
