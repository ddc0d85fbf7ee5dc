//! Limits the retries of all requests together, and computes how long to wait before each.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// The retries that a run may use: each costs one, and each success gives one back. So a registry
/// that only fails is soon left alone, however many requests there are. For a registry that does
/// not respond at all see [`super::outage`].
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
        self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    pub(super) fn succeeded(&self) {
        // The update fails only if the budget is full, which is fine.
        let _ = self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left < self.full).then(|| left + 1));
    }
}

/// A random duration between half and one and a half of `wait`.
pub(super) fn jitter(wait: Duration) -> Duration {
    let random = RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64;
    wait.mul_f64(0.5 + random)
}

/// `Retry-After` (RFC 9110 section 10.2.3): seconds, or a date. A date in the past means now. The
/// date is compared with the answer's own `date`, because the clock of this machine may be wrong.
pub(super) fn parse_retry_after(value: &str, date: Option<&str>) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = httpdate::parse_http_date(value).ok()?;
    let now = date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or_else(SystemTime::now);
    Some(then.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let alone = |value: &str| parse_retry_after(value, None);
        assert_eq!(alone(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(alone("1000000000"), Some(Duration::from_secs(1_000_000_000)));
        assert_eq!(alone("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(90));
        let wait = alone(&later).unwrap();
        assert!((Duration::from_secs(85)..=Duration::from_secs(90)).contains(&wait), "{wait:?}");
        for bad in ["", "-1", "soon", "99999999999999999999999"] {
            assert_eq!(alone(bad), None, "{bad}");
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
    fn jitter_stays_within_bounds() {
        for _ in 0..1000 {
            let wait = jitter(Duration::from_secs(2));
            assert!((Duration::from_secs(1)..=Duration::from_secs(3)).contains(&wait), "{wait:?}");
        }
    }
}
