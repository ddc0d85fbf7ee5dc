//! Retries: how long to wait, how many times, and when to give up.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::TARGET;
use super::backoff::jitter;
use super::error::RegistryError;
use super::http::Http;
use super::request::Request;
use ociseek_format::digest::Digest;
use ociseek_format::progress::{ProgressEvent, causes};

/// The longest wait between two tries, unless the registry requests more.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// The longest wait if the registry cannot be connected to: trying costs little, and it may return
/// at any time.
const LONGEST_KNOCK: Duration = Duration::from_secs(2);
/// The number of tries for a name that cannot be resolved and never responded, because it is
/// usually misspelled.
const NAME_TRIES: u32 = 3;
/// The least number of attempts at an upload that the registry loses.
const FEWEST_UPLOADS: u32 = 3;
/// A longer wait is reported.
const NOTABLE_WAIT: Duration = Duration::from_millis(900);

/// The tries of a request.
pub(super) struct Retry {
    http: Arc<Http>,
    tries: u32,
    /// The waits between tries, except while it could not be connected to.
    waited: Duration,
    /// The longest wait that the registry requested.
    requested: Duration,
    /// When the first try failed.
    since: Option<Instant>,
    /// The number of readings, counting the current one.
    reads: u32,
}

impl Retry {
    pub(super) fn new(http: &Arc<Http>) -> Retry {
        let waited = Duration::ZERO;
        let requested = Duration::ZERO;
        Retry { http: Arc::clone(http), tries: 0, waited, requested, since: None, reads: 1 }
    }

    /// The number of times that the answer was read, counting the current one.
    pub(super) fn reads(&self) -> u32 {
        self.reads
    }

    /// Like [`Retry::again`], for a request whose whole answer is checked. An answer that may have
    /// been damaged on its way, or by a cache, is read once more.
    pub(super) async fn read_again(
        &mut self,
        request: &mut Request,
        error: RegistryError,
    ) -> Result<(), RegistryError> {
        let is_damaged = matches!(
            error,
            RegistryError::Digest { .. }
                | RegistryError::UnknownDigest { .. }
                | RegistryError::Json { .. }
        );
        if self.reads == 1 && is_damaged {
            self.reads = 2;
            *request = request.clone().past_caches();
            return Ok(());
        }
        // A mirror may state the length of what it has lost (containerd/containerd#9552), or be the
        // only one that can be reached.
        request.skips_mirrors = error.is_broken() && !request.skips_mirrors;
        self.after_failure(error).await
    }

    /// Call this after a failed try. Returns when it is time for the next one, or the error if
    /// there will be none.
    pub(super) async fn after_failure(
        &mut self,
        error: RegistryError,
    ) -> Result<(), RegistryError> {
        self.tries += 1;
        if !error.calls_for_retry() {
            return Err(error);
        }
        let now = Instant::now();
        // The registry may request a longer wait than it is retried for otherwise. Short ones that
        // it requests each time do not make it endless.
        let failing = (now - *self.since.get_or_insert(now)).saturating_sub(self.requested);
        let is_lost = error.is_connect();
        // Without a time limit a caller waits for the response, such as the reader of a mounted
        // file.
        let soon = is_lost || self.http.patience().is_none();
        let wait =
            self.wait(error.retry_after(), if soon { LONGEST_KNOCK } else { LONGEST_BACKOFF });
        let goes_on = if is_lost {
            self.retries_connecting(&error, now, failing)
        } else {
            self.retries_response(&error, now, failing, wait)
        };
        if !goes_on {
            return Err(match self.tries {
                1 => error,
                tries => RegistryError::GaveUp { tries, source: Box::new(error) },
            });
        }
        if !is_lost {
            self.waited += wait;
            self.report_wait(&error, wait);
        }
        self.requested = self.requested.max(error.retry_after().unwrap_or_default());
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

    /// Call this after the registry lost an upload. Returns when it is time to start another, or
    /// the error if there will be none.
    pub(super) async fn after_lost_upload(
        &mut self,
        digest: &Digest,
        error: RegistryError,
    ) -> Result<(), RegistryError> {
        self.tries += 1;
        let now = Instant::now();
        let failing = now - *self.since.get_or_insert(now);
        let is_over = self.http.patience().is_some_and(|patience| failing >= patience);
        if self.tries >= FEWEST_UPLOADS && is_over || !self.http.budget().spend() {
            return Err(RegistryError::UploadLost {
                digest: *digest,
                times: self.tries,
                source: Box::new(error),
            });
        }
        let wait = self.wait(None, LONGEST_BACKOFF);
        self.report_wait(&error, wait);
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Reports what a registry that can be connected to does, if the user has to wait for long.
    fn report_wait(&self, error: &RegistryError, wait: Duration) {
        let has_stalled =
            matches!(error, RegistryError::Timeout { .. } | RegistryError::Slow { .. });
        // Readers without a time limit are told when it has lasted for a while.
        let Some(patience) = self.http.patience() else { return };
        if !has_stalled && wait < NOTABLE_WAIT {
            return;
        }
        let seconds = wait.as_secs_f32().max(0.1);
        self.http.report_trouble(
            error.host().unwrap_or_default(),
            &format!(
                "{error}; trying again in {seconds:.1} s, for up to {} s",
                patience.as_secs_f32()
            ),
        );
    }

    /// Whether to retry a registry that cannot be connected to. Reports the wait once.
    fn retries_connecting(&self, error: &RegistryError, now: Instant, failing: Duration) -> bool {
        let registry = error.host().unwrap_or_default();
        let failure = self.http.outages().failed(registry, now);
        let patience = match self.http.patience() {
            // The registry may start together with this program.
            Some(patience) if error.has_no_listener() && !failure.has_responded => {
                Some(patience.min(self.http.limits.local_patience))
            }
            patience => patience,
        };
        let goes_on = if error.is_unresolved() && !failure.has_responded {
            self.tries < NAME_TRIES
        } else {
            patience.is_none_or(|patience| failing.max(failure.lasts) < patience)
        };
        if goes_on && (failure.has_responded || !error.is_unresolved()) {
            let why = std::error::Error::source(error)
                .map(|cause| format!(" ({cause})"))
                .unwrap_or_default();
            let server = match error.elsewhere() {
                Some(server) => format!("{server}, where {registry} sends its clients"),
                None => registry.to_owned(),
            };
            self.report_once(registry, &format!("cannot connect to {server}{why}"), patience);
        }
        goes_on
    }

    /// Whether to retry a registry that failed in another way.
    fn retries_response(
        &self,
        error: &RegistryError,
        now: Instant,
        failing: Duration,
        wait: Duration,
    ) -> bool {
        let limits = &self.http.limits;
        let Some(patience) = self.http.patience() else {
            if self.tries == limits.tries {
                let registry = error.host().unwrap_or_default();
                self.http.outages().failed(registry, now);
                self.report_once(registry, &error.to_string(), None);
            }
            return wait <= limits.longest_wait;
        };
        let most = limits.longest_wait.max(patience);
        self.http.outages().connected(error.host().unwrap_or_default(), now + wait.min(most));
        (self.tries < limits.tries || failing < patience)
            && self.waited.saturating_add(wait) <= most
            && self.http.budget().spend()
    }

    /// Reports once what a registry that is retried does, and for how long it is.
    fn report_once(&self, registry: &str, what: &str, patience: Option<Duration>) {
        if self.http.outages().is_news(registry) {
            let until = match patience {
                Some(patience) => format!("for {} s", patience.as_secs_f32()),
                None => "as long as a read waits for it".to_owned(),
            };
            self.http
                .progress()
                .report(ProgressEvent::Warning(format!("{what}; trying again {until}")));
        }
    }

    /// The request made progress, so earlier failures no longer count.
    pub(super) fn progressed(&mut self) {
        self.tries = 0;
        self.waited = Duration::ZERO;
        self.requested = Duration::ZERO;
        self.since = None;
    }

    fn wait(&self, requested: Option<Duration>, longest: Duration) -> Duration {
        let doubled =
            self.http.limits.first_wait.saturating_mul(1 << self.tries.saturating_sub(1).min(16));
        let backoff = jitter(doubled.min(longest));
        match requested {
            // Clients that were turned away together should not return at the same time.
            Some(requested) => {
                requested.max(backoff).saturating_add(jitter(self.http.limits.first_wait))
            }
            None => backoff,
        }
    }
}

#[cfg(test)]
mod tests {
    use reqwest::{Method, StatusCode};

    use super::super::config::{ClientConfig, Limits};
    use super::super::error::{Answer, LoginSearch, RequestLine};
    use super::super::hosts::HostTls;
    use super::super::http::Common;
    use super::super::transport::{TransportError, TransportKind};
    use super::*;

    const SOON: Duration = Duration::from_millis(1);

    /// A request that is retried for a minute, and failed for `before` already.
    fn retry(before: Duration) -> Retry {
        let limits = Limits {
            first_wait: SOON,
            patience: Some(Duration::from_secs(60)),
            longest_wait: Duration::from_secs(90),
            ..Limits::default()
        };
        let config = ClientConfig { limits, ..ClientConfig::default() };
        let http =
            Http::new(&Arc::new(Common::new(&config).unwrap()), "r.example", &HostTls::default())
                .unwrap();
        Retry { since: Some(Instant::now() - before), tries: 10, ..Retry::new(&Arc::new(http)) }
    }

    fn line() -> RequestLine {
        RequestLine::new(
            &"r.example".into(),
            &Method::GET,
            &"https://r.example/v2/".parse().unwrap(),
        )
    }

    fn refused() -> RegistryError {
        let mut source = TransportError::broken("refused");
        source.kind = TransportKind::Connect;
        RegistryError::Transport { line: line(), source }
    }

    fn busy(retry_after: Option<Duration>) -> RegistryError {
        let codes = Vec::new();
        let message = String::new();
        let status = StatusCode::SERVICE_UNAVAILABLE;
        RegistryError::Answer(Box::new(Answer {
            line: line(),
            status,
            codes,
            message,
            retry_after,
            search: LoginSearch::default(),
        }))
    }

    #[tokio::test]
    async fn requested_pauses_do_not_use_up_retries() {
        for after in [refused(), busy(None), busy(Some(SOON))] {
            let mut retry = retry(Duration::from_secs(90));
            // The outage before the pause began 90 s ago.
            retry.http.outages().failed("r.example", Instant::now() - Duration::from_secs(59));
            retry.requested = Duration::from_secs(59);
            retry.waited = retry.requested;
            retry.http.outages().connected("r.example", Instant::now());
            retry.after_failure(after).await.unwrap();
        }
    }

    #[tokio::test]
    async fn outages_do_not_use_up_requested_pauses() {
        let mut retry = retry(Duration::ZERO);
        retry.after_failure(refused()).await.unwrap();
        assert_eq!(retry.waited, Duration::ZERO);
        retry.after_failure(busy(Some(SOON))).await.unwrap();
        assert!(retry.waited >= SOON && retry.requested == SOON);
        // All requested pauses together have a limit.
        retry.waited = Duration::from_secs(90);
        let error = retry.after_failure(busy(Some(SOON))).await.unwrap_err();
        assert!(matches!(error, RegistryError::GaveUp { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn repeated_short_pauses_are_limited() {
        let mut retry = retry(Duration::from_secs(59));
        retry.requested = Duration::from_millis(100);
        let pause = Duration::from_millis(200);
        while let Ok(()) = retry.after_failure(busy(Some(pause))).await {
            assert!(retry.waited < Duration::from_secs(10), "{:?}", retry.waited);
        }
    }

    #[tokio::test]
    async fn a_port_without_a_listener_is_given_up_soon_unless_it_has_answered() {
        let error = || {
            let mut source = TransportError::broken("refused");
            source.kind = TransportKind::NoListener;
            RegistryError::Transport { line: line(), source }
        };
        let mut given_up = retry(Duration::from_secs(6));
        let failed = given_up.after_failure(error()).await.unwrap_err();
        assert!(failed.has_no_listener() && failed.is_unreachable(), "{failed:?}");
        let mut restarting = retry(Duration::from_secs(6));
        restarting.http.outages().answered("r.example");
        restarting.after_failure(error()).await.unwrap();
    }

    #[tokio::test]
    async fn failures_without_pauses_are_limited() {
        for error in [refused(), busy(None), busy(Some(SOON))] {
            let error = retry(Duration::from_secs(90)).after_failure(error).await.unwrap_err();
            assert!(matches!(error, RegistryError::GaveUp { tries: 11, .. }), "{error:?}");
        }
    }
}
