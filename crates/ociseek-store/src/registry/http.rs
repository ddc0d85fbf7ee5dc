//! Sends a single HTTP request and receives the headers of its response, with a limit for every
//! wait. Other modules decide which hosts to contact, with which authorization, and whether to
//! retry.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, redirect};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};
use url::Url;

use super::address::{base_url, is_loopback, same_origin};
use super::address_filter::{AllowedAddresses, KnownAddresses, Resolver, refuse_address};
use super::backoff::{Outages, RetryBudget};
use super::config::{ClientConfig, Limits};
use super::error::{RegistryError, RequestLine, shown};
use super::hosts::HostTls;
use super::link::{AnsweredRequest, SharedLink};
use super::proxy::Proxies;
use super::request::{Authorization, Request, Trail};
use super::response::{Received, Response};
use super::tls::Tls;
use super::transport::{RequestContext, TransportError, TransportKind, one_line};
use super::verbatim::{Connection, HEADERS, Route};
use crate::Traffic;
use ociseek_format::progress::{Progress, ProgressEvent};

/// How many warnings of registries are passed on in a run.
const WARNINGS: usize = 16;
const AGENT: &str = concat!("ociseek/", env!("CARGO_PKG_VERSION"));
/// After this long without an answer, the wait is reported.
const STALL: Duration = Duration::from_secs(10);

/// The state that all registries of a client share.
pub(super) struct Common {
    tls: Tls,
    /// For every host without its own settings.
    connections: Connections,
    proxies: Proxies,
    known_addresses: Arc<KnownAddresses>,
    allowed_addresses: AllowedAddresses,
    limits: Limits,
    /// Whether requests are retried for as long as their callers wait.
    forever: AtomicBool,
    budget: RetryBudget,
    outages: Outages,
    /// Limits the connections for reading large blobs.
    permits: Arc<Semaphore>,
    link: Option<Arc<SharedLink>>,
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
    /// For requests that reqwest cannot send.
    tls: Arc<rustls::ClientConfig>,
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

fn builder(
    limits: &Limits,
    tls: rustls::ClientConfig,
    resolver: Resolver,
) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(AGENT)
        .redirect(redirect::Policy::none())
        .referer(false)
        .http1_max_headers(HEADERS)
        .retry(reqwest::retry::never())
        .dns_resolver(Arc::new(resolver))
        .connect_timeout(limits.connect)
        .no_proxy()
}

fn by_proxy(builder: reqwest::ClientBuilder, proxies: Proxies) -> reqwest::ClientBuilder {
    // A proxy that cannot be used was already reported as an error.
    builder.proxy(reqwest::Proxy::custom(move |url| {
        proxies.of(url).ok().flatten().map(|proxy| proxy.url.clone())
    }))
}

/// A client for `host`, which is not a registry, with the same TLS settings. It follows no
/// redirects, does not retry, and waits for a response as long as its caller does.
///
/// # Errors
/// Those of [`Client::new`](super::Client::new), and if the environment names a proxy for `host`
/// that cannot be used.
pub fn http_client(config: &ClientConfig, host: &Url) -> Result<reqwest::Client, RegistryError> {
    let proxies = Proxies::of_environment();
    if let Err(source) = proxies.of(host) {
        let registry = host.host_str().unwrap_or_default().into();
        return Err(RegistryError::Proxy {
            line: RequestLine::new(&registry, &Method::GET, host),
            source,
        });
    }
    let resolver = Resolver { public_only: false, known_addresses: Arc::default() };
    let builder = builder(&config.limits, Tls::new(config)?.common()?, resolver);
    by_proxy(builder, proxies).build().map_err(|error| RegistryError::Http(error.into()))
}

impl Common {
    pub(super) fn new(config: &ClientConfig) -> Result<Common, RegistryError> {
        let tls = Tls::new(config)?;
        let proxies = Proxies::of_environment();
        let known_addresses = Arc::default();
        Ok(Common {
            connections: Connections::new(
                &config.limits,
                &config.allowed_addresses,
                &proxies,
                &known_addresses,
                tls.common()?,
            )?,
            tls,
            proxies,
            known_addresses,
            allowed_addresses: config.allowed_addresses.clone(),
            budget: RetryBudget::new(config.limits.failures),
            limits: config.limits.clone(),
            forever: AtomicBool::new(false),
            outages: Outages::default(),
            permits: Arc::new(Semaphore::new(
                config.limits.connections.clamp(1, Semaphore::MAX_PERMITS),
            )),
            link: config.link.clone(),
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
        allowed: &AllowedAddresses,
        proxies: &Proxies,
        known_addresses: &Arc<KnownAddresses>,
        tls: rustls::ClientConfig,
    ) -> Result<Connections, RegistryError> {
        let build = |builder: reqwest::ClientBuilder| {
            builder.build().map_err(|error| RegistryError::Http(error.into()))
        };
        let resolver =
            |public_only| Resolver { public_only, known_addresses: Arc::clone(known_addresses) };
        let own = Arc::new(tls.clone());
        if allowed.is_public_only() {
            let inside = build(builder(limits, tls.clone(), resolver(false)))?;
            return Ok(Connections {
                outside: build(builder(limits, tls, resolver(true)))?,
                inside,
                tls: own,
            });
        }
        let anywhere = build(by_proxy(builder(limits, tls, resolver(false)), proxies.clone()))?;
        Ok(Connections { outside: anywhere.clone(), inside: anywhere, tls: own })
    }
}

impl Http {
    /// The connections for the registry `name`, with settings of its own.
    pub(super) fn new(
        common: &Arc<Common>,
        name: &str,
        tls: &HostTls,
    ) -> Result<Http, RegistryError> {
        let Common { limits, allowed_addresses, proxies, known_addresses, .. } = &**common;
        let connections =
            |tls| Connections::new(limits, allowed_addresses, proxies, known_addresses, tls);
        let (home, away, own_authorities) = match common.tls.own(name, tls)? {
            Some(own) => (connections(own.home)?, connections(own.away)?, own.own_authorities),
            None => (
                common.connections.clone(),
                common.connections.clone(),
                common.tls.has_own_authorities(),
            ),
        };
        let common = Arc::clone(common);
        let origin = base_url("https", name)?;
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
        Traffic {
            requests: requests.load(Ordering::Relaxed),
            bytes: received.load(Ordering::Relaxed),
        }
    }

    /// A permit for each connection over which large blobs may be read.
    pub(super) fn permits(&self) -> &Arc<Semaphore> {
        &self.common.permits
    }

    pub(super) fn progress(&self) -> &Arc<dyn Progress> {
        &self.common.progress
    }

    /// How long failures are retried. None for as long as the caller waits.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.limits.patience.filter(|_| !self.common.forever.load(Ordering::Relaxed))
    }

    /// From now on, requests to all registries of the client are retried for as long as their
    /// callers wait.
    pub(super) fn retry_forever(&self) {
        self.common.forever.store(true, Ordering::Relaxed);
    }

    /// Reports why a registry is waited for, unless it was reported a short time ago.
    pub(super) fn report_trouble(&self, registry: &str, what: &str) {
        if self.common.outages.is_new_trouble(registry, Instant::now()) {
            self.progress().report(ProgressEvent::Warning(what.to_owned()));
        }
    }

    /// Records a response from a registry, which ends an outage.
    pub(super) fn answered(&self, registry: &str) {
        self.common.budget.succeeded();
        if self.common.outages.answered(registry) {
            self.progress()
                .report(ProgressEvent::Warning(format!("{registry} is reachable again")));
        }
    }

    /// Sends a request and receives the headers of the response, whatever its status.
    pub(super) async fn exchange(
        &self,
        request: &Request,
        authorization: Option<Authorization>,
        line: RequestLine,
    ) -> Result<Response, RegistryError> {
        let mut trail = Trail::new(request, authorization.as_ref(), &line);
        self.common.requests.fetch_add(1, Ordering::Relaxed);
        // On the heap: futures that send requests would otherwise hold several of these, and
        // threads have them on their stacks.
        let begun = Instant::now();
        let answered = Box::pin(self.send(request, authorization, line, &mut trail)).await;
        if let Some(link) = &self.common.link {
            let status = answered.as_ref().ok().map(|(inner, ..)| inner.status().as_u16());
            link.answered(AnsweredRequest { status, took: begun.elapsed() });
        }
        match answered {
            Ok((inner, line, context)) => {
                trail.status = Some(inner.status().as_u16());
                self.pass_on_warnings(&line, inner.headers());
                let received = Arc::clone(&self.common.received);
                Ok(Response::new(
                    inner,
                    request.url.clone(),
                    line,
                    context,
                    trail,
                    &self.limits,
                    Received { bytes: received, link: self.common.link.clone() },
                ))
            }
            Err(error) => Err(trail.failed(error)),
        }
    }

    async fn send(
        &self,
        request: &Request,
        authorization: Option<Authorization>,
        line: RequestLine,
        trail: &mut Trail,
    ) -> Result<(reqwest::Response, RequestLine, RequestContext), RegistryError> {
        let Common { allowed_addresses: allowed, proxies, .. } = &*self.common;
        if let Some(reason) = refuse_address(allowed, &request.url) {
            return Err(RegistryError::Detour { line, to: shown(&request.url), reason });
        }
        let proxy = match proxies.of(&request.url) {
            Ok(proxy) => proxy.filter(|_| !allowed.is_public_only()),
            // If proxies are not used, an invalid one does not matter.
            Err(_) if allowed.is_public_only() => None,
            Err(source) => return Err(RegistryError::Proxy { line, source }),
        };
        if proxy.is_none() {
            self.common.known_addresses.expect(&request.url);
        }
        let context = RequestContext {
            proxy: proxy.map(|proxy| proxy.to_string().into()),
            is_local: is_loopback(&request.url),
            own_authorities: self.own_authorities,
        };
        let connections =
            if same_origin(&self.origin, &request.url) { &self.home } else { &self.away };
        let is_inside = allowed.is_inside(&request.url);
        let mut headers = request.headers.clone();
        headers.append(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(Authorization { value, .. }) = authorization {
            headers.append(header::AUTHORIZATION, value);
        }
        let own_connection = match &request.target {
            Some(target) => {
                let known_addresses = Arc::clone(&self.common.known_addresses);
                let resolver = Resolver { public_only: !is_inside, known_addresses };
                let (tls, proxy_tls) = (&connections.tls, &self.away.tls);
                let route = Route { proxy, resolver: &resolver, tls, proxy_tls };
                let connecting = Connection::open(&request.url, target, &route);
                // If that fails, the request is sent as usual, which reports why.
                timeout(self.limits.connect, connecting).await.ok().flatten()
            }
            None => None,
        };
        let Some((body, progress)) = request.outgoing() else {
            let source = TransportError::broken("the body cannot be sent again");
            return Err(RegistryError::Transport { line, source });
        };
        let length = progress.length;
        // Google's servers answer 411 to a POST without a length, although it has no body (RFC 9110
        // section 8.6).
        let has_body = matches!(request.method, Method::POST | Method::PUT | Method::PATCH);
        if has_body {
            headers.append(header::CONTENT_LENGTH, length.into());
        }
        let method = request.method.clone();
        let sending = async {
            if let Some(connection) = own_connection {
                headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
                let sent = connection.send(method, headers, body).await;
                return sent.map_err(|error| TransportError::of_exchange(&error, &context));
            }
            let client = if is_inside { &connections.inside } else { &connections.outside };
            let mut builder = client.request(method, request.url.clone()).headers(headers);
            if has_body {
                builder = builder.body(body);
            }
            builder.send().await.map_err(|error| TransportError::new(error, &context))
        };

        let mut sending = std::pin::pin!(sending);
        let mut taken = 0;
        let mut since = Instant::now();
        let mut is_reported = false;
        let inner = loop {
            let wait = if taken < length { self.limits.idle } else { self.limits.header };
            let next = since + if is_reported { wait } else { wait.min(STALL) };
            tokio::select! {
                answer = &mut sending => break answer,
                () = sleep_until(next) => {}
            }
            let now = progress.taken();
            // A body that arrives slowly has other limits.
            if now > taken || progress.is_hungry() {
                (taken, since) = (now, Instant::now());
                continue;
            }
            let awaited =
                if taken < length { "room for the next bytes of the body" } else { "an answer" };
            if since.elapsed() >= wait {
                return Err(RegistryError::Timeout { line, awaited, within: wait });
            }
            is_reported = true;
            let waited = STALL.as_secs();
            let registry = line.registry();
            let what = format!("{line}: {registry} has not sent {awaited} for {waited} s");
            self.report_trouble(
                registry,
                &format!("{what}; waiting up to {} s", wait.as_secs_f32()),
            );
        };
        trail.sent = length;
        match inner {
            Ok(inner) => Ok((inner, line, context.clone())),
            Err(mut source) => {
                if let (TransportKind::Tunnel(_), Some(proxy)) = (source.kind, proxy)
                    && let Some(status) = proxy.tunnel_status(&request.url).await
                {
                    source = source.with_tunnel_status(status);
                }
                Err(RegistryError::Transport { line, source })
            }
        }
    }

    /// Registries may send warnings (distribution spec, "Warnings"). Each is reported once, up to a
    /// limit.
    fn pass_on_warnings(&self, line: &RequestLine, headers: &HeaderMap) {
        for value in headers.get_all(header::WARNING) {
            let Some(text) = value.to_str().ok().and_then(|v| v.strip_prefix("299 - ")) else {
                continue;
            };
            let text = one_line(text.trim().trim_matches('"'), 300);
            self.warn_once(format!("{} says: {text}", line.registry()));
        }
    }

    /// Reports a warning, unless it was reported before.
    pub(super) fn warn_once(&self, text: String) {
        let is_new = |mut warned: MutexGuard<'_, HashSet<String>>| {
            warned.len() < WARNINGS && warned.insert(text.clone())
        };
        if self.common.warned.lock().is_ok_and(is_new) {
            self.progress().report(ProgressEvent::Warning(text));
        }
    }
}

/// The values of a header. Bytes beyond ASCII that are not UTF-8 are replaced.
pub(super) fn texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<Cow<'a, str>> {
    headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect()
}
