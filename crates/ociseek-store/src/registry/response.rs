//! The response to a request: its headers, its body with a limit for every wait, and its errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::StatusCode;
use reqwest::header::{self, HeaderMap};
use tokio::time::{Instant, timeout};
use url::Url;

use super::backoff::{MirrorFailures, parse_retry_after};
use super::config::Limits;
use super::error::{Answer, LoginSearch, RegistryError, RequestLine};
use super::link::SharedLink;
use super::reason::{explain, title};
use super::request::Trail;
use super::transport::{RequestContext, TransportError};

/// The size limit of an error response's body in bytes.
const ERROR_BODY: u64 = 64 << 10;

/// A response whose headers have arrived.
pub(super) struct Response {
    /// Where it came from, after redirects.
    pub url: Url,
    pub line: RequestLine,
    /// The credentials that the request carried, if this response may be about them.
    pub search: LoginSearch,
    /// Whether there is new authorization for the request, which could not be sent again.
    pub is_renewed: bool,
    inner: reqwest::Response,
    pace: Pace,
    idle: Duration,
    context: RequestContext,
    trail: Trail,
    received: Received,
    /// Of the mirror that it came from, unless it is the last host.
    mirror: Option<Arc<MirrorFailures>>,
}

/// Where the bytes in the bodies of all responses are counted, and how fast they may arrive.
pub(super) struct Received {
    pub bytes: Arc<AtomicU64>,
    pub link: Option<Arc<SharedLink>>,
}

impl Response {
    pub(super) fn new(
        inner: reqwest::Response,
        url: Url,
        line: RequestLine,
        context: RequestContext,
        trail: Trail,
        limits: &Limits,
        received: Received,
    ) -> Response {
        let pace = Pace::new(limits);
        let idle = limits.idle;
        Response {
            url,
            line,
            search: LoginSearch::default(),
            is_renewed: false,
            inner,
            pace,
            idle,
            context,
            trail,
            received,
            mirror: None,
        }
    }

    /// The same from a mirror, whose body may be silent or trickle for this long.
    pub(super) fn of_mirror(
        mut self,
        patience: Duration,
        failures: Arc<MirrorFailures>,
    ) -> Response {
        self.idle = self.idle.min(patience);
        self.pace.over = self.idle;
        self.mirror = Some(failures);
        self
    }

    pub(super) fn status(&self) -> StatusCode {
        self.inner.status()
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.inner.headers()
    }

    /// The value of a header, if it exists and is text.
    pub(super) fn text(&self, name: impl header::AsHeaderName) -> Option<&str> {
        self.headers().get(name).and_then(|value| value.to_str().ok())
    }

    /// The URL in `Location`. Bytes beyond ASCII, which some servers send as they are, become
    /// percent-encoded.
    pub(super) fn location(&self) -> Option<String> {
        let value = self.headers().get(header::LOCATION)?;
        Some(value.as_bytes().iter().fold(String::new(), |text, byte| {
            if byte.is_ascii() {
                text + char::from(*byte).encode_utf8(&mut [0; 4])
            } else {
                text + &format!("%{byte:02X}")
            }
        }))
    }

    pub(super) fn content_length(&self) -> Option<u64> {
        self.text(header::CONTENT_LENGTH).and_then(|length| length.trim().parse().ok())
    }

    /// The media type without its parameters, in lower case. Empty if there is none.
    pub(super) fn media_type(&self) -> String {
        let value = self.text(header::CONTENT_TYPE).unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// The next bytes of the body.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        let chunk = self.next_chunk().await.map_err(|error| {
            let is_stalled =
                matches!(error, RegistryError::Timeout { .. } | RegistryError::Slow { .. });
            if let Some(mirror) = self.mirror.as_ref().filter(|_| is_stalled) {
                mirror.note(Instant::now(), true);
            }
            self.trail.failed(error)
        })?;
        let length = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        self.trail.received += length;
        self.received.bytes.fetch_add(length, Ordering::Relaxed);
        if let Some(link) = &self.received.link {
            link.speed.pass(length).await;
        }
        Ok(chunk)
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        let begun = Instant::now();
        let chunk = match timeout(self.idle, self.inner.chunk()).await {
            Ok(Ok(chunk)) => chunk,
            Ok(Err(error)) => {
                let source = TransportError::new(error, &self.context);
                return Err(RegistryError::Transport { line: self.line.clone(), source });
            }
            Err(_) => {
                let awaited = "the next bytes of the body";
                return Err(RegistryError::Timeout {
                    line: self.line.clone(),
                    awaited,
                    within: self.idle,
                });
            }
        };
        let length = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        if chunk.is_some() && self.pace.is_too_slow(begun.elapsed(), length) {
            return Err(RegistryError::Slow {
                line: self.line.clone(),
                slowest: self.pace.slowest,
            });
        }
        Ok(chunk)
    }

    /// The whole body, if it has at most `limit` bytes. No more than that is read.
    pub(super) async fn bytes(mut self, limit: u64) -> Result<Bytes, RegistryError> {
        let too_large = |line: &RequestLine| RegistryError::TooLarge { line: line.clone(), limit };
        if self.content_length().is_some_and(|length| length > limit) {
            return Err(too_large(&self.line));
        }
        let mut body = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            if (body.len() + chunk.len()) as u64 > limit {
                return Err(too_large(&self.line));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Returns this response if it has one of the statuses, otherwise an error.
    pub(super) async fn expect(self, statuses: &[u16]) -> Result<Response, RegistryError> {
        if statuses.contains(&self.status().as_u16()) {
            Ok(self)
        } else {
            Err(self.refusal().await)
        }
    }

    pub(super) fn is_web_page(&self) -> bool {
        self.status() == 200 && self.media_type() == "text/html" && self.content_length() != Some(0)
    }

    /// Returns this response unless it is a web page: proxies and sign-in pages answer everything
    /// with 200 and HTML. An empty body is accepted, because some registries declare it as HTML.
    pub(super) async fn no_web_page(self, instead_of: &str) -> Result<Response, RegistryError> {
        if !self.is_web_page() {
            return Ok(self);
        }
        let line = self.line.clone();
        let title = title(&String::from_utf8_lossy(&self.start_of_body().await));
        let title = title.map(|title| format!(", {title:?},")).unwrap_or_default();
        Err(RegistryError::Protocol {
            line,
            what: format!("got a web page{title} instead of {instead_of}"),
        })
    }

    /// The first bytes of the body, as far as it arrives.
    async fn start_of_body(mut self) -> Vec<u8> {
        let mut body = Vec::new();
        while let Ok(Some(chunk)) = self.chunk().await {
            let room = (ERROR_BODY as usize).saturating_sub(body.len());
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if room <= chunk.len() {
                break;
            }
        }
        body
    }

    /// Converts this response to an error, with the codes and message in its body as far as it
    /// arrives.
    pub(super) async fn refusal(self) -> RegistryError {
        let date = self.text(header::DATE);
        // Docker Hub has the second, with a Unix time.
        let retry_after = [header::RETRY_AFTER.as_str(), "x-retry-after"]
            .into_iter()
            .find_map(|name| self.text(name).and_then(|value| parse_retry_after(value, date)));
        let line = self.line.clone();
        let status = self.status();
        let search = self.search.clone();
        let body = self.start_of_body().await;
        let (codes, message) = explain(&body);
        RegistryError::Answer(Box::new(Answer {
            line,
            status,
            codes,
            message,
            retry_after,
            search,
        }))
    }
}

/// Detects bodies that arrive too slowly. Only the time spent waiting for them counts.
struct Pace {
    slowest: u64,
    over: Duration,
    waited: Duration,
    bytes: u64,
}

impl Pace {
    fn new(limits: &Limits) -> Pace {
        Pace { slowest: limits.slowest, over: limits.idle, waited: Duration::ZERO, bytes: 0 }
    }

    fn is_too_slow(&mut self, waited: Duration, bytes: u64) -> bool {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < self.over {
            return false;
        }
        let too_slow = (self.bytes as f64) < self.slowest as f64 * self.waited.as_secs_f64();
        self.waited = Duration::ZERO;
        self.bytes = 0;
        too_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_counts_as_slow_but_a_pausing_reader_does_not() {
        let mut pace =
            Pace { slowest: 1024, over: Duration::from_secs(60), waited: Duration::ZERO, bytes: 0 };
        assert!(!(0..59).any(|_| pace.is_too_slow(Duration::from_secs(1), 1)));
        assert!(pace.is_too_slow(Duration::from_secs(1), 1));
        assert!(!(0..600).any(|_| pace.is_too_slow(Duration::from_secs(1), 2000)));
        assert!(!(0..600).any(|_| pace.is_too_slow(Duration::from_millis(1), 1)));
    }
}
