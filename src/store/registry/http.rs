//! Sends a single HTTP request and receives its response, with a limit for every wait. Other
//! modules decide which hosts to contact, with which authorization, and whether to retry.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode, redirect};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;
use url::Url;

use super::TARGET;
use super::address::{base_url, same_origin};
use super::backoff::{RetryBudget, parse_retry_after};
use super::config::{ClientConfig, Limits};
use super::error::{Answer, Asked, CredentialOrigin, RegistryError, shown};
use super::gate::{Reach, Resolver, refuse_address};
use super::one_line::one_line;
use super::outage::Outages;
use super::proxy::Proxies;
use super::tls::Tls;
use super::transport::{RequestContext, TransportError};
use crate::progress::{Progress, ProgressEvent, causes};
use crate::store::Traffic;

/// The size limit of an error response's body in bytes.
const ERROR_BODY: u64 = 64 << 10;
/// How many warnings of registries are passed on in a run.
const WARNINGS: usize = 16;
/// The size of the pieces in which a body is sent, in bytes, to observe its progress.
const PIECE: usize = 64 << 10;

/// A request that can be sent several times.
#[derive(Clone)]
pub(super) struct Request {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
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
        Request { method, url, headers: HeaderMap::new(), body: Bytes::new(), tries: Arc::default() }
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

    pub(super) fn body(mut self, content_type: HeaderValue, body: Bytes) -> Request {
        self.body = body;
        self.header(header::CONTENT_TYPE, content_type)
    }
}

/// The state that all registries of a client share.
pub(super) struct Common {
    tls: Tls,
    /// For every host without its own settings.
    connections: Connections,
    proxies: Proxies,
    reach: Reach,
    limits: Limits,
    /// Whether requests are retried for as long as their callers wait.
    endless: AtomicBool,
    budget: RetryBudget,
    outages: Outages,
    /// Limits the connections for reading large blobs.
    slots: Arc<Semaphore>,
    progress: Arc<dyn Progress>,
    warned: Mutex<HashSet<String>>,
    requests: AtomicU64,
    received: Arc<AtomicU64>,
}

/// The connections with one TLS configuration. Clones share them.
#[derive(Clone)]
struct Connections {
    /// For hosts outside. If only public addresses are allowed, limited to those, and without a
    /// proxy.
    outside: reqwest::Client,
    /// For hosts that may have any address.
    inside: reqwest::Client,
}

/// The connections to a registry and to the hosts to which it redirects.
pub(super) struct Http {
    pub limits: Limits,
    common: Arc<Common>,
    /// The only host that may receive the client certificate.
    origin: Url,
    home: Connections,
    away: Connections,
    own_authorities: bool,
}

fn builder(limits: &Limits, tls: rustls::ClientConfig, public_only: bool) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("ociseek/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .referer(false)
        .retry(reqwest::retry::never())
        .dns_resolver(Arc::new(Resolver { public_only }))
        .connect_timeout(limits.connect)
        .no_proxy()
}

fn by_proxy(builder: reqwest::ClientBuilder, proxies: Proxies) -> reqwest::ClientBuilder {
    // A proxy that cannot be used was already reported as an error.
    builder.proxy(reqwest::Proxy::custom(move |url| proxies.of(url).ok().flatten().map(|proxy| proxy.url.clone())))
}

/// A client for `host`, which is not a registry, with the same TLS settings. It follows no
/// redirects, does not retry, and waits for a response as long as its caller does.
///
/// # Errors
/// Those of [`Client::new`](super::Client::new), and if the environment names a proxy for `host`
/// that cannot be used.
#[cfg(feature = "lambda")]
pub(crate) fn http_client(config: &ClientConfig, host: &Url) -> Result<reqwest::Client, RegistryError> {
    let proxies = Proxies::of_environment();
    if let Err(source) = proxies.of(host) {
        let registry = host.host_str().unwrap_or_default().into();
        return Err(RegistryError::Proxy { asked: Asked::new(&registry, &Method::GET, host), source });
    }
    let builder = builder(&config.limits, Tls::new(config)?.common()?, false);
    by_proxy(builder, proxies).build().map_err(|error| RegistryError::Http(error.into()))
}

impl Common {
    pub(super) fn new(config: &ClientConfig) -> Result<Common, RegistryError> {
        let (tls, proxies) = (Tls::new(config)?, Proxies::of_environment());
        Ok(Common {
            connections: Connections::new(&config.limits, &config.reach, &proxies, tls.common()?)?,
            tls,
            proxies,
            reach: config.reach.clone(),
            budget: RetryBudget::new(config.limits.failures),
            limits: config.limits.clone(),
            endless: AtomicBool::new(false),
            outages: Outages::default(),
            slots: Arc::new(Semaphore::new(config.limits.connections.clamp(1, Semaphore::MAX_PERMITS))),
            progress: Arc::clone(&config.progress),
            warned: Mutex::default(),
            requests: AtomicU64::new(0),
            received: Arc::default(),
        })
    }
}

impl Connections {
    fn new(
        limits: &Limits,
        reach: &Reach,
        proxies: &Proxies,
        tls: rustls::ClientConfig,
    ) -> Result<Connections, RegistryError> {
        let build =
            |builder: reqwest::ClientBuilder| builder.build().map_err(|error| RegistryError::Http(error.into()));
        if reach.is_public_only() {
            let inside = build(builder(limits, tls.clone(), false))?;
            return Ok(Connections { outside: build(builder(limits, tls, true))?, inside });
        }
        let anywhere = build(by_proxy(builder(limits, tls, false), proxies.clone()))?;
        Ok(Connections { outside: anywhere.clone(), inside: anywhere })
    }
}

impl Http {
    /// The connections for the registry `name`.
    pub(super) fn new(common: &Arc<Common>, name: &str) -> Result<Http, RegistryError> {
        let connections = |tls| Connections::new(&common.limits, &common.reach, &common.proxies, tls);
        let (home, away, own_authorities) = match common.tls.own(name)? {
            Some(own) => (connections(own.home)?, connections(own.away)?, own.own_authorities),
            None => (common.connections.clone(), common.connections.clone(), common.tls.has_own_authorities()),
        };
        let (common, origin) = (Arc::clone(common), base_url("https", name)?);
        Ok(Http { limits: common.limits.clone(), common, origin, home, away, own_authorities })
    }

    /// Whether the user gave certificate authorities for this registry.
    pub(super) fn has_own_authorities(&self) -> bool {
        self.own_authorities
    }

    pub(super) fn budget(&self) -> &RetryBudget {
        &self.common.budget
    }

    pub(super) fn outages(&self) -> &Outages {
        &self.common.outages
    }

    /// The traffic so far, with all registries of the client.
    pub(super) fn traffic(&self) -> Traffic {
        let Common { requests, received, .. } = &*self.common;
        Traffic { requests: requests.load(Ordering::Relaxed), bytes: received.load(Ordering::Relaxed) }
    }

    /// A permit for each connection over which large blobs may be read.
    pub(super) fn slots(&self) -> &Arc<Semaphore> {
        &self.common.slots
    }

    pub(super) fn progress(&self) -> &Arc<dyn Progress> {
        &self.common.progress
    }

    /// How long failures are retried. None for as long as the caller waits.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.limits.patience.filter(|_| !self.common.endless.load(Ordering::Relaxed))
    }

    /// From now on, requests to all registries of the client are retried for as long as their
    /// callers wait.
    pub(super) fn be_endless(&self) {
        self.common.endless.store(true, Ordering::Relaxed);
    }

    /// Records a response from a registry, which ends an outage.
    pub(super) fn answered(&self, registry: &str) {
        self.common.budget.succeeded();
        if self.common.outages.answered(registry) {
            self.progress().report(ProgressEvent::Warning(format!("{registry} is reachable again")));
        }
    }

    /// Sends a request and receives the headers of the response, whatever its status.
    pub(super) async fn exchange(
        &self,
        request: &Request,
        authorization: Option<Authorization>,
        asked: Asked,
    ) -> Result<Response, RegistryError> {
        let mut trail = Trail::new(request, authorization.as_ref(), &asked);
        self.common.requests.fetch_add(1, Ordering::Relaxed);
        match self.send(request, authorization, asked, &mut trail).await {
            Ok((inner, asked, context)) => {
                trail.status = Some(inner.status().as_u16());
                self.pass_on_warnings(&asked, inner.headers());
                let (url, pace) = (request.url.clone(), Pace::new(&self.limits));
                let (idle, all) = (self.limits.idle, Arc::clone(&self.common.received));
                Ok(Response { url, asked, shown: None, inner, pace, idle, context, trail, all })
            }
            Err(error) => Err(trail.failed(error)),
        }
    }

    async fn send(
        &self,
        request: &Request,
        authorization: Option<Authorization>,
        asked: Asked,
        trail: &mut Trail,
    ) -> Result<(reqwest::Response, Asked, RequestContext), RegistryError> {
        let Common { reach, proxies, .. } = &*self.common;
        if let Some(reason) = refuse_address(reach, &request.url) {
            return Err(RegistryError::Detour { asked, to: shown(&request.url), reason });
        }
        let proxy = match proxies.of(&request.url) {
            Ok(proxy) => proxy.filter(|_| !reach.is_public_only()),
            // If proxies are not used, an invalid one does not matter.
            Err(_) if reach.is_public_only() => None,
            Err(source) => return Err(RegistryError::Proxy { asked, source }),
        };
        let context = RequestContext {
            proxy: proxy.map(|proxy| proxy.to_string().into()),
            own_authorities: self.own_authorities,
        };
        let connections = if same_origin(&self.origin, &request.url) { &self.home } else { &self.away };
        let client = if reach.is_inside(&request.url) { &connections.inside } else { &connections.outside };
        let mut builder = client
            .request(request.method.clone(), request.url.clone())
            .headers(request.headers.clone())
            .header(header::ACCEPT_ENCODING, "identity");
        if let Some(Authorization { value, .. }) = authorization {
            builder = builder.header(header::AUTHORIZATION, value);
        }
        let taken = Arc::new(AtomicU64::new(0));
        let length = request.body.len() as u64;
        if length > 0 {
            builder = builder.header(header::CONTENT_LENGTH, length).body(pieces(&request.body, &taken));
        } else if request.method != Method::GET && request.method != Method::HEAD {
            builder = builder.body(Bytes::new());
        }

        let mut sending = std::pin::pin!(builder.send());
        let inner = loop {
            let before = taken.load(Ordering::Relaxed);
            let wait = if before < length { self.limits.idle } else { self.limits.header };
            tokio::select! {
                answer = &mut sending => break answer,
                () = sleep(wait) => if taken.load(Ordering::Relaxed) == before {
                    let awaited = if before < length { "room for the next bytes of the body" } else { "an answer" };
                    return Err(RegistryError::Timeout { asked, awaited, within: wait });
                }
            }
        };
        trail.sent = length;
        match inner {
            Ok(inner) => Ok((inner, asked, context)),
            Err(error) => Err(RegistryError::Transport { asked, source: TransportError::new(error, &context) }),
        }
    }

    /// Registries may send warnings (distribution spec, "Warnings"). Each is reported once, up to a
    /// limit.
    fn pass_on_warnings(&self, asked: &Asked, headers: &HeaderMap) {
        for value in headers.get_all(header::WARNING) {
            let Some(text) = value.to_str().ok().and_then(|v| v.strip_prefix("299 - ")) else { continue };
            let text = one_line(text.trim().trim_matches('"'), 300);
            let Ok(mut warned) = self.common.warned.lock() else { continue };
            if warned.len() < WARNINGS && warned.insert(text.clone()) {
                self.progress().report(ProgressEvent::Warning(format!("{} says: {text}", asked.registry())));
            }
        }
    }
}

/// The values of a header that are text.
pub(super) fn texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
}

/// `body` as a stream. `taken` counts the bytes that the connection has accepted.
fn pieces(body: &Bytes, taken: &Arc<AtomicU64>) -> reqwest::Body {
    let (body, taken) = (body.clone(), Arc::clone(taken));
    let offsets = (0..body.len()).step_by(PIECE);
    reqwest::Body::wrap_stream(stream::iter(offsets.map(move |from| {
        let piece = body.slice(from..body.len().min(from + PIECE));
        taken.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Ok::<_, std::convert::Infallible>(piece)
    })))
}

/// Logs a request when it is over: when its response was read or dropped.
struct Trail {
    asked: Asked,
    begun: Instant,
    /// `basic` or `bearer`, if it carries authorization.
    auth: Option<&'static str>,
    /// Whether its authorization was used before.
    reused: Option<bool>,
    status: Option<u16>,
    /// The number of bytes in its body, and of those received in the response.
    sent: u64,
    received: u64,
    error: Option<String>,
}

impl Trail {
    fn new(request: &Request, authorization: Option<&Authorization>, asked: &Asked) -> Trail {
        let value = authorization.map(|shown| &shown.value).or(request.headers.get(header::AUTHORIZATION));
        let auth = value.map(|value| if value.as_bytes().starts_with(b"Bearer ") { "bearer" } else { "basic" });
        let (asked, reused) = (asked.clone(), authorization.map(|shown| !shown.is_new));
        Trail { asked, begun: Instant::now(), auth, reused, status: None, sent: 0, received: 0, error: None }
    }

    fn failed(&mut self, error: RegistryError) -> RegistryError {
        self.error = Some(causes(&error));
        error
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        let (method, url) = self.asked.parts();
        debug!(
            name: "request", target: TARGET,
            method,
            url,
            status = self.status,
            ms = (self.begun.elapsed().as_secs_f64() * 1e4).round() / 10.0,
            bytes = self.received,
            sent = (self.sent > 0).then_some(self.sent),
            attempt = self.asked.attempt(),
            auth = self.auth,
            reused = self.reused,
            error = self.error,
        );
    }
}

/// A response whose headers have arrived.
pub(super) struct Response {
    /// Where it came from, after redirects.
    pub url: Url,
    pub asked: Asked,
    /// The credentials that the request carried, if this response may be about them.
    pub shown: Option<CredentialOrigin>,
    inner: reqwest::Response,
    pace: Pace,
    idle: Duration,
    context: RequestContext,
    trail: Trail,
    /// The number of bytes in all responses.
    all: Arc<AtomicU64>,
}

impl Response {
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
        let chunk = self.next_chunk().await.map_err(|error| self.trail.failed(error))?;
        let length = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        self.trail.received += length;
        self.all.fetch_add(length, Ordering::Relaxed);
        Ok(chunk)
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        let begun = Instant::now();
        let chunk = match timeout(self.idle, self.inner.chunk()).await {
            Ok(Ok(chunk)) => chunk,
            Ok(Err(error)) => {
                let source = TransportError::new(error, &self.context);
                return Err(RegistryError::Transport { asked: self.asked.clone(), source });
            }
            Err(_) => {
                let awaited = "the next bytes of the body";
                return Err(RegistryError::Timeout { asked: self.asked.clone(), awaited, within: self.idle });
            }
        };
        let length = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        if chunk.is_some() && self.pace.is_too_slow(begun.elapsed(), length) {
            return Err(RegistryError::Slow { asked: self.asked.clone(), slowest: self.pace.slowest });
        }
        Ok(chunk)
    }

    /// The whole body, if it has at most `limit` bytes. No more than that is read.
    pub(super) async fn bytes(mut self, limit: u64) -> Result<Bytes, RegistryError> {
        let too_large = |asked: &Asked| RegistryError::TooLarge { asked: asked.clone(), limit };
        if self.content_length().is_some_and(|length| length > limit) {
            return Err(too_large(&self.asked));
        }
        let mut body = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            if (body.len() + chunk.len()) as u64 > limit {
                return Err(too_large(&self.asked));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Returns this response if it has one of the statuses, otherwise an error.
    pub(super) async fn expect(self, statuses: &[u16]) -> Result<Response, RegistryError> {
        if statuses.contains(&self.status().as_u16()) { Ok(self) } else { Err(self.refusal().await) }
    }

    /// Returns this response unless it is a web page: proxies and sign-in pages answer everything
    /// with 200 and HTML. An empty body is accepted, because some registries declare it as HTML.
    pub(super) fn no_web_page(self, instead_of: &str) -> Result<Response, RegistryError> {
        if self.status() == 200 && self.media_type() == "text/html" && self.content_length() != Some(0) {
            let what = format!("a web page came instead of {instead_of}");
            return Err(RegistryError::Protocol { asked: self.asked, what });
        }
        Ok(self)
    }

    /// Converts this response to an error, with the codes and message in its body as far as it
    /// arrives.
    pub(super) async fn refusal(mut self) -> RegistryError {
        let date = self.text(header::DATE);
        let retry_after = self.text(header::RETRY_AFTER).and_then(|value| parse_retry_after(value, date));
        let (asked, status) = (self.asked.clone(), self.status());
        let mut body = Vec::new();
        while let Ok(Some(chunk)) = self.chunk().await {
            let room = (ERROR_BODY as usize).saturating_sub(body.len());
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if room <= chunk.len() {
                break;
            }
        }
        let (codes, message) = explain(&body);
        let shown = self.shown;
        RegistryError::Answer(Box::new(Answer { asked, status, codes, message, retry_after, shown }))
    }
}

/// The codes and message in an error body: the distribution spec's JSON, a token service's JSON, or
/// the first line of anything else.
fn explain(body: &[u8]) -> (Vec<String>, String) {
    #[derive(serde::Deserialize)]
    struct Body {
        #[serde(default)]
        errors: Vec<One>,
        // Token services: docker's `details`, RFC 6749's `error` and `error_description`.
        details: Option<String>,
        error: Option<String>,
        error_description: Option<String>,
    }
    #[derive(serde::Deserialize)]
    struct One {
        code: Option<String>,
        message: Option<String>,
    }
    let Ok(body) = serde_json::from_slice::<Body>(body) else {
        return (Vec::new(), one_line(&String::from_utf8_lossy(body), 200));
    };
    let codes = body.errors.iter().filter_map(|e| e.code.as_deref()).chain(body.error.as_deref());
    let codes = codes.take(16).map(|code| one_line(code, 60)).collect();
    let message = body.errors.iter().find_map(|e| e.message.as_deref());
    let message = message.or(body.error_description.as_deref()).or(body.details.as_deref()).unwrap_or_default();
    (codes, one_line(message, 200))
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
    fn error_bodies_of_every_kind() {
        let (codes, message) =
            explain(br#"{"errors":[{"code":"DENIED","message":"no\nquota","detail":{}},{"code":"X"}]}"#);
        assert_eq!((codes, message.as_str()), (vec!["DENIED".into(), "X".into()], "no"));
        let (codes, message) = explain(br#"{"error":"invalid_grant","error_description":"expired"}"#);
        assert_eq!((codes, message.as_str()), (vec!["invalid_grant".into()], "expired"));
        assert_eq!(explain(br#"{"details":"wrong password"}"#).1, "wrong password");
        assert_eq!(explain(b"<html>\x1b[2J\n<body>").1, "<html>\\u{1b}[2J");
        assert_eq!(explain(b"").1, "");
        assert_eq!(explain(b"\xff\xfe").1, "\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_trickle_is_too_slow_and_a_pause_of_the_reader_is_not() {
        let mut pace = Pace { slowest: 1024, over: Duration::from_secs(60), waited: Duration::ZERO, bytes: 0 };
        assert!(!(0..59).any(|_| pace.is_too_slow(Duration::from_secs(1), 1)));
        assert!(pace.is_too_slow(Duration::from_secs(1), 1));
        assert!(!(0..600).any(|_| pace.is_too_slow(Duration::from_secs(1), 2000)));
        assert!(!(0..600).any(|_| pace.is_too_slow(Duration::from_millis(1), 1)));
    }
}
