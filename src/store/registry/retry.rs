//! Retries: how long to wait, how many times, and when to give up.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::TARGET;
use super::backoff::jitter;
use super::error::RegistryError;
use super::http::Http;
use crate::progress::{ProgressEvent, causes};

/// The longest wait between two tries, unless the registry requests more.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// The longest wait if the registry cannot be connected to: trying costs little, and it may return
/// at any time.
const LONGEST_KNOCK: Duration = Duration::from_secs(2);
/// The number of tries for a name that cannot be resolved and never responded, because it is
/// usually misspelled.
const NAME_TRIES: u32 = 3;

/// The tries of a request.
pub(super) struct Retry {
    http: Arc<Http>,
    tries: u32,
    waited: Duration,
    /// When the first try failed.
    since: Option<Instant>,
}

impl Retry {
    pub(super) fn new(http: &Arc<Http>) -> Retry {
        Retry { http: Arc::clone(http), tries: 0, waited: Duration::ZERO, since: None }
    }

    /// Call this after a failed try. Returns when it is time for the next one, or the error if
    /// there will be none.
    pub(super) async fn again(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        self.tries += 1;
        if !error.calls_for_retry() {
            return Err(error);
        }
        let now = Instant::now();
        let failing = now - *self.since.get_or_insert(now);
        let is_lost = error.is_connect();
        // Without a time limit a caller waits for the response, such as the reader of a mounted
        // file.
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
        debug!(
            name: "retry", target: TARGET,
            registry = error.host(),
            attempt = self.tries + 1,
            wait_ms = wait.as_millis() as u64,
            error = causes(&error),
        );
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Whether to retry a registry that cannot be connected to. Reports the wait once.
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
            self.report_once(registry, &format!("cannot connect to {registry}{why}"));
        }
        goes_on
    }

    /// Whether to retry a registry that failed in another way.
    fn asks_on(&self, error: &RegistryError, now: Instant, failing: Duration, wait: Duration) -> bool {
        let limits = &self.http.limits;
        let Some(patience) = self.http.patience() else {
            if self.tries == limits.tries {
                let registry = error.host().unwrap_or_default();
                self.http.outages().failed(registry, now);
                self.report_once(registry, &error.to_string());
            }
            return wait <= limits.longest_wait;
        };
        (self.tries < limits.tries || failing < patience)
            && self.waited.saturating_add(wait) <= limits.longest_wait.max(patience)
            && self.http.budget().spend()
    }

    /// Reports once what a registry that is retried does.
    fn report_once(&self, registry: &str, what: &str) {
        if self.http.outages().is_news(registry) {
            let until = match self.http.patience() {
                Some(patience) => format!("for {} s", patience.as_secs_f32()),
                None => "as long as a read waits for it".to_owned(),
            };
            self.http.progress().report(ProgressEvent::Warning(format!("{what}; trying again {until}")));
        }
    }

    /// The request made progress, so earlier failures no longer count.
    pub(super) fn progressed(&mut self) {
        self.tries = 0;
        self.waited = Duration::ZERO;
        self.since = None;
    }

    fn wait(&self, requested: Option<Duration>, longest: Duration) -> Duration {
        let doubled = self.http.limits.first_wait.saturating_mul(1 << self.tries.saturating_sub(1).min(16));
        let backoff = jitter(doubled.min(longest));
        match requested {
            // Clients that were turned away together should not return at the same time.
            Some(requested) => requested.max(backoff).saturating_add(jitter(self.http.limits.first_wait)),
            None => backoff,
        }
    }
}
