//! Limits the retries of all requests together, computes how long to wait before each, and tracks
//! mirrors that are silent, and registries that cannot be connected to. An outage affects the
//! registry, not a single request: after it has lasted too long, no request waits for its end.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::lock::Hold;

/// The retries that a run may use: each costs one, and each success gives one back. So a registry
/// that only fails is soon left alone, however many requests there are. For a registry that does
/// not respond at all see [`Outages`].
pub(super) struct RetryBudget {
    left: AtomicU32,
    full: u32,
}

impl RetryBudget {
    pub(super) fn new(full: u32) -> RetryBudget {
        RetryBudget { left: AtomicU32::new(full), full }
    }

    /// Takes a retry, if one is left.
    pub(super) fn spend(&self) -> bool {
        self.left
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok()
    }

    pub(super) fn succeeded(&self) {
        // The update fails only if the budget is full, which is fine.
        let _ = self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left < self.full).then(|| left + 1)
        });
    }
}

/// A random duration between half and one and a half of `wait`.
pub(super) fn jitter(wait: Duration) -> Duration {
    let random = RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64;
    wait.mul_f64(0.5 + random)
}

/// The longest wait that a registry can mean. Docker Hub's limits are for six hours.
const LONGEST_MEANT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Larger numbers are seconds since 1970 (docker/hub-feedback#2459), and yet larger ones
/// milliseconds.
const UNIX_TIMES: u64 = 1_000_000_000;
const UNIX_MILLISECONDS: u64 = 1_000_000_000_000;

/// `Retry-After` (RFC 9110 section 10.2.3): seconds, or a date, which some send as a Unix time. A
/// date in the past means now. The date is compared with the answer's own `date`, because the clock
/// of this machine may be wrong. None for a wait that nobody can mean.
pub(super) fn parse_retry_after(value: &str, date: Option<&str>) -> Option<Duration> {
    let value = value.trim();
    let now =
        date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or_else(SystemTime::now);
    let until = |then: SystemTime| then.duration_since(now).unwrap_or_default();
    let wait = match value.parse::<u64>() {
        Ok(seconds) if seconds < UNIX_TIMES => Duration::from_secs(seconds),
        Ok(time) if time < UNIX_MILLISECONDS => until(UNIX_EPOCH + Duration::from_secs(time)),
        Ok(time) => until(UNIX_EPOCH.checked_add(Duration::from_millis(time))?),
        Err(_) => until(httpdate::parse_http_date(value).ok()?),
    };
    (wait <= LONGEST_MEANT).then_some(wait)
}

/// How long a mirror that does not answer is not asked again. It doubles each time: asking one that
/// accepts connections and says nothing takes as long (goodrain/rainbond#2598).
const REST: Duration = Duration::from_secs(30);
/// How often it doubles.
const DOUBLINGS: u32 = 4;

/// How often in a row a mirror did not answer, or not at a useful speed, and when that was last.
#[derive(Default)]
pub(super) struct MirrorFailures(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    /// When the mirror is asked again.
    fn until(&self) -> Option<Instant> {
        self.last.map(|last| last + REST * (1 << self.count.saturating_sub(1).min(DOUBLINGS)))
    }
}

impl MirrorFailures {
    /// Whether the mirror is not asked now.
    pub(super) fn rests(&self, now: Instant) -> bool {
        self.0.hold().until().is_some_and(|until| now < until)
    }

    pub(super) fn note(&self, now: Instant, failed: bool) {
        let mut failures = self.0.hold();
        // Those that were begun together count once.
        let is_next = failures.until().is_none_or(|until| until <= now);
        *failures = if failed {
            Failures { count: failures.count + u32::from(is_next), last: Some(now) }
        } else {
            Failures::default()
        };
    }
}

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
            host.outage
                .as_mut()
                .is_some_and(|outage| !std::mem::replace(&mut outage.is_reported, true))
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
    fn retry_after_is_seconds_or_a_date() {
        let alone = |value: &str| parse_retry_after(value, None);
        assert_eq!(alone(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(alone("21600"), Some(Duration::from_secs(21_600)));
        assert_eq!(alone("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(90));
        let wait = alone(&later).unwrap();
        assert!((Duration::from_secs(85)..=Duration::from_secs(90)).contains(&wait), "{wait:?}");
        let bad =
            ["", "-1", "soon", "999999999", "18446744073709551615", "99999999999999999999999"];
        for bad in bad {
            assert_eq!(alone(bad), None, "{bad}");
        }
    }

    #[test]
    fn retry_after_may_be_a_unix_time() {
        let wait = |value: &str| parse_retry_after(value, Some("Fri, 02 May 2025 00:00:00 GMT"));
        for (value, seconds) in [
            ("1746144007", Some(7)),
            ("1746144007000", Some(7)),
            ("1746143990", Some(0)),
            ("1000000000", Some(0)),
            ("1746748800", Some(604_800)),
            ("1746748801", None),
        ] {
            assert_eq!(wait(value), seconds.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn a_date_is_compared_with_the_servers_clock() {
        let wait = |date: &str| parse_retry_after("Fri, 31 Dec 1999 23:59:59 GMT", Some(date));
        assert_eq!(wait("Fri, 31 Dec 1999 23:59:50 GMT"), Some(Duration::from_secs(9)));
        assert_eq!(wait("Sat, 01 Jan 2000 00:00:00 GMT"), Some(Duration::ZERO));
        // Without a valid date, the clock of this machine is used.
        assert_eq!(wait("yesterday"), Some(Duration::ZERO));
    }

    #[test]
    fn successes_refill_the_budget_up_to_its_limit() {
        let budget = RetryBudget::new(2);
        budget.succeeded();
        assert!(budget.spend() && budget.spend() && !budget.spend());
        budget.succeeded();
        assert!(budget.spend() && !budget.spend());
    }

    #[test]
    fn a_mirror_that_keeps_silent_is_asked_less_and_less() {
        let failures = MirrorFailures::default();
        let mut now = Instant::now();
        let mut rests = Vec::new();
        for _ in 0..7 {
            for _ in 0..3 {
                failures.note(now, true);
            }
            let until = failures.0.hold().until().unwrap();
            assert!(failures.rests(now) && !failures.rests(until));
            rests.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(rests, [30, 60, 120, 240, 480, 480, 480]);
        failures.note(now, false);
        assert!(!failures.rests(now));
    }

    #[test]
    fn jitter_stays_within_bounds() {
        for _ in 0..1000 {
            let wait = jitter(Duration::from_secs(2));
            assert!((Duration::from_secs(1)..=Duration::from_secs(3)).contains(&wait), "{wait:?}");
        }
    }

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
        assert_eq!(
            outages.failed("r", then + Duration::from_secs(3)).lasts,
            Duration::from_secs(3)
        );
        let later = then + Duration::from_secs(3);
        // After a long time without requests, a failure is a new outage.
        let much_later = later + FORGOTTEN;
        assert!(outages.failed("r", much_later).lasts.is_zero() && outages.is_news("r"));
    }
}
