//! Trying again: how long to wait, how often, and when to let it be.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::error::RegistryError;
use super::http::Http;
use crate::progress::Event;

/// No wait between two tries is longer, unless the registry asks for it.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// The same where nobody listens: to knock costs little, and the registry may be back at any time.
const LONGEST_KNOCK: Duration = Duration::from_secs(2);
/// Tries of a name that cannot be resolved and under which nobody has answered yet: it is mistyped more often than not.
const NAME_TRIES: u32 = 3;

/// What a run may spend on new tries: each costs one, each success gives one back. A registry that
/// answers with nothing but failures is thus left alone soon, however many requests there are; for
/// one that does not answer at all see [`super::outage`].
pub(super) struct Budget {
    left: AtomicU32,
    full: u32,
}

impl Budget {
    pub fn new(full: u32) -> Budget {
        Budget { left: AtomicU32::new(full), full }
    }

    fn spend(&self) -> bool {
        self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    pub fn succeeded(&self) {
        // Full is full: the error of the update says no more than that.
        let _ = self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left < self.full).then(|| left + 1));
    }
}

/// The tries of one request.
pub(super) struct Retry {
    http: Arc<Http>,
    tries: u32,
    waited: Duration,
    /// When the first of them failed.
    since: Option<Instant>,
}

impl Retry {
    pub fn new(http: &Arc<Http>) -> Retry {
        Retry { http: Arc::clone(http), tries: 0, waited: Duration::ZERO, since: None }
    }

    /// After a try failed: returns when it is time for the next, or with the error when there will be none.
    pub async fn again(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        self.tries += 1;
        if !error.is_temporary() {
            return Err(error);
        }
        let now = Instant::now();
        let failing = now - *self.since.get_or_insert(now);
        let is_lost = error.is_connect();
        // Where there is no limit somebody waits for the answer, such as the reader of a mounted file.
        let soon = is_lost || self.http.patience().is_none();
        let wait = self.wait(error.retry_after(), if soon { LONGEST_KNOCK } else { LONGEST_BACKOFF });
        let goes_on =
            if is_lost { self.knocks_on(&error, now, failing) } else { self.asks_on(&error, now, failing, wait) };
        if !goes_on {
            return Err(match self.tries {
                1 => error,
                tries => RegistryError::GaveUp { tries, source: Box::new(error) },
            });
        }
        self.waited += wait;
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Whether a registry that cannot be connected to is tried again. That it is waited for is said once.
    fn knocks_on(&self, error: &RegistryError, now: Instant, failing: Duration) -> bool {
        let registry = error.host().unwrap_or_default();
        let failure = self.http.outages().failed(registry, now);
        let patience = self.http.patience();
        let goes_on = if error.is_unresolved() && !failure.known {
            self.tries < NAME_TRIES
        } else {
            patience.is_none_or(|patience| failing.max(failure.lasts) < patience)
        };
        if goes_on && (failure.known || !error.is_unresolved()) {
            let why = std::error::Error::source(error).map(|cause| format!(" ({cause})")).unwrap_or_default();
            self.tell(registry, &format!("cannot connect to {registry}{why}"));
        }
        goes_on
    }

    /// Whether a registry that failed otherwise is asked again.
    fn asks_on(&self, error: &RegistryError, now: Instant, failing: Duration, wait: Duration) -> bool {
        let limits = &self.http.limits;
        let Some(patience) = self.http.patience() else {
            if self.tries == limits.tries {
                let registry = error.host().unwrap_or_default();
                self.http.outages().failed(registry, now);
                self.tell(registry, &error.to_string());
            }
            return wait <= limits.longest_wait;
        };
        (self.tries < limits.tries || failing < patience)
            && self.waited.saturating_add(wait) <= limits.longest_wait.max(patience)
            && self.http.budget().spend()
    }

    /// Says once what a registry that is waited for does.
    fn tell(&self, registry: &str, what: &str) {
        if self.http.outages().is_news(registry) {
            let until = match self.http.patience() {
                Some(patience) => format!("for {} s", patience.as_secs_f32()),
                None => "as long as somebody waits for it".to_owned(),
            };
            self.http.progress().report(Event::Warning(format!("{what}; trying again {until}")));
        }
    }

    /// It went on: what failed before counts no more.
    pub fn progressed(&mut self) {
        self.tries = 0;
        self.waited = Duration::ZERO;
        self.since = None;
    }

    fn wait(&self, asked: Option<Duration>, longest: Duration) -> Duration {
        let doubled = self.http.limits.first_wait.saturating_mul(1 << self.tries.saturating_sub(1).min(16));
        let backoff = jitter(doubled.min(longest));
        match asked {
            // All that were sent away together should not come back together.
            Some(asked) => asked.max(backoff).saturating_add(jitter(self.http.limits.first_wait)),
            None => backoff,
        }
    }
}

/// Between half and one and a half of `wait`, at random.
pub(super) fn jitter(wait: Duration) -> Duration {
    let random = RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64;
    wait.mul_f64(0.5 + random)
}

/// `Retry-After` (RFC 9110 section 10.2.3): seconds, or a date. A date that is over means now.
pub(super) fn parse_retry_after(value: &str) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(parse_retry_after(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(parse_retry_after("1000000000"), Some(Duration::from_secs(1_000_000_000)));
        assert_eq!(parse_retry_after("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(90));
        let wait = parse_retry_after(&later).unwrap();
        assert!((Duration::from_secs(85)..=Duration::from_secs(90)).contains(&wait), "{wait:?}");
        for bad in ["", "-1", "soon", "99999999999999999999999"] {
            assert_eq!(parse_retry_after(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_budget_is_given_back_by_successes_and_no_more_than_full() {
        let budget = Budget::new(2);
        budget.succeeded();
        assert!(budget.spend() && budget.spend() && !budget.spend());
        budget.succeeded();
        assert!(budget.spend() && !budget.spend());
    }

    #[test]
    fn jitter_stays_in_its_bounds() {
        for _ in 0..1000 {
            let wait = jitter(Duration::from_secs(2));
            assert!((Duration::from_secs(1)..=Duration::from_secs(3)).contains(&wait), "{wait:?}");
        }
    }
}
