//! The log of requests.

use reqwest::header;
use tokio::time::Instant;
use tracing::debug;

use super::TARGET;
use super::error::{RegistryError, RequestLine};
use super::request::{Authorization, Request};
use ociseek_format::progress::causes;

/// Logs a request when it is over: when its response was read or dropped.
pub(super) struct Trail {
    line: RequestLine,
    begun: Instant,
    /// `basic` or `bearer`, if it carries authorization.
    auth: Option<&'static str>,
    /// Whether its authorization was used before.
    reused: Option<bool>,
    pub status: Option<u16>,
    /// The number of bytes in its body, and of those received in the response.
    pub sent: u64,
    pub received: u64,
    error: Option<String>,
}

impl Trail {
    pub(super) fn new(request: &Request, authorization: Option<&Authorization>, line: &RequestLine) -> Trail {
        let value = authorization.map(|shown| &shown.value).or(request.headers.get(header::AUTHORIZATION));
        let auth = value.map(|value| if value.as_bytes().starts_with(b"Bearer ") { "bearer" } else { "basic" });
        let (line, reused) = (line.clone(), authorization.map(|shown| !shown.is_new));
        Trail { line, begun: Instant::now(), auth, reused, status: None, sent: 0, received: 0, error: None }
    }

    pub(super) fn failed(&mut self, error: RegistryError) -> RegistryError {
        self.error = Some(causes(&error));
        error
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        let (method, url) = self.line.parts();
        debug!(
            name: "request", target: TARGET,
            method,
            url,
            status = self.status,
            ms = (self.begun.elapsed().as_secs_f64() * 1e4).round() / 10.0,
            bytes = self.received,
            sent = (self.sent > 0).then_some(self.sent),
            attempt = self.line.attempt(),
            auth = self.auth,
            reused = self.reused,
            error = self.error,
        );
    }
}
