//! A request before it is sent, and its line in the log.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream;
use hyper::http::uri::PathAndQuery;
use reqwest::Method;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc::Receiver;
use tokio::time::Instant;
use tracing::debug;
use url::Url;

use super::TARGET;
use super::error::{RegistryError, RequestLine};
use crate::lock::Hold;
use ociseek_format::progress::causes;

/// The size of the pieces in which a body is sent, in bytes, to observe its progress.
const PIECE: usize = 64 << 10;

/// A request that can be sent several times, unless its body is a stream.
#[derive(Clone)]
pub(super) struct Request {
    pub method: Method,
    pub url: Url,
    /// What is sent for the path and query of the URL, if a server wrote them in another way.
    pub target: Option<PathAndQuery>,
    pub headers: HeaderMap,
    /// Headers for the host itself, which may be logins: they end where a redirect leaves it, as
    /// Go's client drops `Authorization` there.
    pub own_headers: HeaderMap,
    /// Whether only the registry itself is asked, not its mirrors.
    pub skips_mirrors: bool,
    body: Bytes,
    stream: Option<Arc<StreamBody>>,
    /// How many times it was sent, counting its clones.
    tries: Arc<AtomicU32>,
}

/// The authorization that a request carries.
pub(super) struct Authorization {
    pub value: HeaderValue,
    /// Whether this is the first request that carries it.
    pub is_new: bool,
}

impl Request {
    pub(super) fn new(method: Method, url: Url) -> Request {
        let headers = HeaderMap::new();
        let own_headers = HeaderMap::new();
        let body = Bytes::new();
        let tries = Arc::default();
        Request {
            method,
            url,
            target: None,
            headers,
            own_headers,
            skips_mirrors: false,
            body,
            stream: None,
            tries,
        }
    }

    /// The number of the next try, from 1. Counts it as made.
    pub(super) fn next_try(&self) -> u32 {
        self.tries.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts `tries` earlier requests for the same content.
    pub(super) fn after(self, tries: u32) -> Request {
        self.tries.store(tries, Ordering::Relaxed);
        self
    }

    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Request {
        self.headers.append(name, value);
        self
    }

    /// Caches on the way must ask the registry instead of answering (RFC 9111 section 5.2.1.4).
    pub(super) fn past_caches(self) -> Request {
        let no_cache = HeaderValue::from_static("no-cache");
        self.header(header::CACHE_CONTROL, no_cache.clone()).header(header::PRAGMA, no_cache)
    }

    /// Whether caches on the way must ask the registry.
    pub(super) fn is_past_caches(&self) -> bool {
        self.headers.contains_key(header::CACHE_CONTROL)
    }

    pub(super) fn body(mut self, content_type: HeaderValue, body: Bytes) -> Request {
        self.body = body;
        self.header(header::CONTENT_TYPE, content_type)
    }

    pub(super) fn stream(mut self, content_type: HeaderValue, body: StreamBody) -> Request {
        self.stream = Some(Arc::new(body));
        self.header(header::CONTENT_TYPE, content_type)
    }

    /// Whether its body was sent and cannot be sent again.
    pub(super) fn is_spent(&self) -> bool {
        self.stream.as_ref().is_some_and(|body| body.pieces.hold().is_none())
    }

    /// The body for the connection, with a view of its progress. None if it is spent.
    pub(super) fn outgoing(&self) -> Option<(reqwest::Body, BodyProgress)> {
        let taken: Arc<AtomicU64> = Arc::default();
        let counted = Arc::clone(&taken);
        let Some(body) = &self.stream else {
            let (body, length) = (self.body.clone(), self.body.len() as u64);
            if body.is_empty() {
                return Some((body.into(), BodyProgress { length, taken, offered: None }));
            }
            let pieces = (0..body.len()).step_by(PIECE).map(move |from| {
                let piece = body.slice(from..body.len().min(from + PIECE));
                counted.fetch_add(piece.len() as u64, Ordering::Relaxed);
                Ok::<_, Infallible>(piece)
            });
            let body = reqwest::Body::wrap_stream(stream::iter(pieces));
            return Some((body, BodyProgress { length, taken, offered: None }));
        };
        let pieces = body.pieces.hold().take()?;
        let progress =
            BodyProgress { length: body.length, taken, offered: Some(Arc::clone(&body.offered)) };
        let pieces = stream::unfold((pieces, counted), |(mut pieces, counted)| async move {
            let piece: Bytes = pieces.recv().await?;
            counted.fetch_add(piece.len() as u64, Ordering::Relaxed);
            Some((Ok::<_, Infallible>(piece), (pieces, counted)))
        });
        Some((reqwest::Body::wrap_stream(pieces), progress))
    }
}

/// A body whose pieces arrive while it is sent. It can be sent once.
pub(super) struct StreamBody {
    length: u64,
    pieces: Mutex<Option<Receiver<Bytes>>>,
    offered: Arc<AtomicU64>,
}

impl StreamBody {
    /// A body of `length` bytes. `offered` counts the bytes that were put into the channel.
    pub(super) fn new(length: u64, pieces: Receiver<Bytes>, offered: Arc<AtomicU64>) -> StreamBody {
        StreamBody { length, pieces: Mutex::new(Some(pieces)), offered }
    }
}

/// How much of a body was sent.
pub(super) struct BodyProgress {
    pub length: u64,
    taken: Arc<AtomicU64>,
    /// For a stream, the bytes that arrived so far.
    offered: Option<Arc<AtomicU64>>,
}

impl BodyProgress {
    /// The bytes that the connection has accepted.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether the connection waits for the next bytes of the body, and not the reverse.
    pub(super) fn is_hungry(&self) -> bool {
        let taken = self.taken();
        taken < self.length
            && self.offered.as_ref().is_some_and(|offered| offered.load(Ordering::Relaxed) <= taken)
    }
}

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
    pub(super) fn new(
        request: &Request,
        authorization: Option<&Authorization>,
        line: &RequestLine,
    ) -> Trail {
        let value =
            authorization.map(|shown| &shown.value).or(request.headers.get(header::AUTHORIZATION));
        let auth = value
            .map(|value| if value.as_bytes().starts_with(b"Bearer ") { "bearer" } else { "basic" });
        let line = line.clone();
        let reused = authorization.map(|shown| !shown.is_new);
        Trail {
            line,
            begun: Instant::now(),
            auth,
            reused,
            status: None,
            sent: 0,
            received: 0,
            error: None,
        }
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
