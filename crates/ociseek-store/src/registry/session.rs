//! The connection to a registry: sends requests with authorization, redirects and retries. The
//! modules above use only this one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper::http::uri::PathAndQuery;
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use tokio::sync::OnceCell;
use tracing::debug;
use url::Url;

use super::TARGET;
use super::address::{base_url, by_https, is_loopback, refuse_detour, same_origin};
use super::auth::{Authorizer, Generation, Scope};
use super::config::ClientConfig;
use super::elsewhere::OtherRegistries;
use super::error::{RegistryError, RequestLine, shown};
use super::hosts::{self, HostTls, MirrorConfig, RegistryHosts};
use super::http::{Common, Http};
use super::mirrors::{AskedHost, Mirror, Mirrors, name_of};
use super::places::RecentPlaces;
use super::request::Request;
use super::response::Response;
use super::retry::Retry;
use super::transport::{TransportKind, is_transient_status};
use super::verbatim;

/// The maximum number of redirects for a request.
const HOPS: usize = 10;
/// How long to remember that a registry cannot send parts of blobs. It may have been one of many
/// servers behind its name.
const NO_RANGES: Duration = Duration::from_secs(60);

pub(super) struct Registry {
    pub http: Arc<Http>,
    /// The registry as the user named it.
    pub name: Arc<str>,
    pub ranges: Ranges,
    pub places: RecentPlaces,
    pub referrers: ReferrersApi,
    auth: Authorizer,
    others: OtherRegistries,
    scheme: Scheme,
    base: OnceCell<Url>,
    /// Whether a server that closed a plain HTTP connection uses TLS.
    is_tls_after_all: OnceCell<bool>,
    /// The headers with which the registry's root asks strangers to log in. None if it does not.
    root_challenge: OnceCell<Option<HeaderMap>>,
    pub mirrors: Mirrors<Registry>,
}

enum Scheme {
    Http,
    Https,
    /// A registry on this machine, with TLS settings from the user, which may be meant for this
    /// registry or for another one. Or a host with TLS settings and a URL that says HTTP.
    Ask,
}

/// Whether to request parts of blobs from a registry.
#[derive(Default)]
pub(super) struct Ranges(Mutex<Option<Instant>>);

impl Ranges {
    pub(super) fn may_ask(&self) -> bool {
        self.0
            .lock()
            .ok()
            .and_then(|refused| *refused)
            .is_none_or(|refused| refused.elapsed() > NO_RANGES)
    }

    /// The registry sent the whole blob instead of a part.
    pub(super) fn refused(&self) {
        if let Ok(mut refused) = self.0.lock() {
            *refused = Some(Instant::now());
        }
    }
}

impl Registry {
    pub(super) fn new(
        common: &Arc<Common>,
        config: &ClientConfig,
        name: &str,
    ) -> Result<Registry, RegistryError> {
        let hosts =
            config.hosts_dir.as_ref().map(|dir| hosts::find(dir, name, &base_url("https", name)?));
        let RegistryHosts { mirrors, server, tls } = hosts.transpose()?.unwrap_or_default();
        let mirror = |mirror: MirrorConfig| {
            let plain_http = Some(mirror.url.scheme() == "http");
            let mut host =
                Registry::with(common, config, &name_of(&mirror.url), plain_http, &mirror.tls)?;
            if mirror.tries_tls {
                host.scheme = Scheme::Ask;
            }
            host.auth.own_headers = mirror.headers.clone();
            Ok::<_, RegistryError>(Mirror::new(host, name, mirror))
        };
        let first = mirrors.into_iter().map(mirror).collect::<Result<_, _>>()?;
        let server = server.map(mirror).transpose()?.map(Box::new);
        let mut registry = Registry::with(common, config, name, config.plain_http, &tls)?;
        registry.mirrors = Mirrors { first, server };
        Ok(registry)
    }

    /// A registry without mirrors.
    fn with(
        common: &Arc<Common>,
        config: &ClientConfig,
        name: &str,
        plain_http: Option<bool>,
        tls: &HostTls,
    ) -> Result<Registry, RegistryError> {
        let https = base_url("https", name)?;
        let http = Arc::new(Http::new(common, name, tls)?);
        let tls = config.insecure_skip_tls_verify
            || config.client_cert.is_some()
            || http.has_own_authorities();
        let scheme = match plain_http {
            Some(true) => Scheme::Http,
            Some(false) => Scheme::Https,
            None if !is_loopback(&https) || name.ends_with(":443") => Scheme::Https,
            None if tls => Scheme::Ask,
            None => Scheme::Http,
        };
        let name: Arc<str> = name.into();
        let auth = Authorizer::new(Arc::clone(&name), config.credentials.clone());
        let base = OnceCell::new();
        let is_tls_after_all = OnceCell::new();
        Ok(Registry {
            http,
            name,
            ranges: Ranges::default(),
            places: RecentPlaces::default(),
            referrers: ReferrersApi::default(),
            auth,
            others: OtherRegistries::default(),
            scheme,
            base,
            is_tls_after_all,
            root_challenge: OnceCell::new(),
            mirrors: Mirrors::default(),
        })
    }

    /// The registry's root URL.
    pub(super) async fn base(&self) -> Result<&Url, RegistryError> {
        self.base
            .get_or_try_init(|| async {
                let https = base_url("https", &self.name)?;
                let speaks_tls = match self.scheme {
                    Scheme::Http => false,
                    Scheme::Https => true,
                    Scheme::Ask => self.speaks_tls(&https).await?,
                };
                if speaks_tls { Ok(https) } else { Ok(base_url("http", &self.name)?) }
            })
            .await
    }

    /// Whether the server at `base` uses TLS. If it cannot be reached, the next call tries again.
    async fn speaks_tls(&self, base: &Url) -> Result<bool, RegistryError> {
        let request = Request::new(Method::HEAD, base.clone());
        let mut retry = Retry::new(&self.http);
        loop {
            match self.http.exchange(&request, None, self.request_line(&request.method, base)).await
            {
                Ok(_) => return Ok(true),
                Err(RegistryError::Transport { line, source }) => match source.kind {
                    TransportKind::Dropped | TransportKind::NotTls => return Ok(false),
                    TransportKind::Connect
                    | TransportKind::NoListener
                    | TransportKind::Unresolved => {
                        retry.after_failure(RegistryError::Transport { line, source }).await?;
                    }
                    // A failure after the handshake, for example because of a client certificate,
                    // does not indicate plain HTTP.
                    _ => return Ok(true),
                },
                Err(_) => return Ok(true),
            }
        }
    }

    /// Whether a server that silently closed a plain HTTP connection uses TLS, tested with a TLS
    /// handshake.
    async fn is_tls_after_all(&self, url: &Url) -> bool {
        if url.scheme() != "http" || self.http.outages().has_responded(&self.name) {
            return false;
        }
        let ask = || async {
            let Ok(base) = base_url("https", &self.name) else { return false };
            let request = Request::new(Method::HEAD, base.clone());
            match self
                .http
                .exchange(&request, None, self.request_line(&request.method, &base))
                .await
            {
                Ok(_) => true,
                Err(RegistryError::Transport { source, .. }) => matches!(
                    source.kind,
                    TransportKind::Certificate(_)
                        | TransportKind::ClientCertificate
                        | TransportKind::Tls
                ),
                Err(_) => false,
            }
        };
        *self.is_tls_after_all.get_or_init(ask).await
    }

    pub(super) fn request_line(&self, method: &Method, url: &Url) -> RequestLine {
        RequestLine::new(&self.name, method, url)
    }

    /// Sends a request until it gets a response that is not temporary.
    pub(super) async fn send(
        &self,
        request: &Request,
        scope: &Scope,
    ) -> Result<Response, RegistryError> {
        let mut retry = Retry::new(&self.http);
        loop {
            match self.once(request, scope).await {
                Ok(response) => return Ok(response),
                Err(error) => retry.after_failure(error).await?,
            }
        }
    }

    /// Makes one try: adds authorization, renews it once if it is refused, follows redirects. A
    /// temporary status is an error.
    pub(super) async fn once(
        &self,
        request: &Request,
        scope: &Scope,
    ) -> Result<Response, RegistryError> {
        let by_mirror = self.mirrors.answer(request, scope).await;
        let is_home = by_mirror.is_none();
        let response = match by_mirror {
            Some(answered) => answered?,
            None => self.at_home(request, scope).await?,
        };
        if is_transient_status(response.status()) {
            return Err(response.refusal().await);
        }
        if is_home {
            self.http.answered(&self.name);
        }
        Ok(response)
    }

    async fn at_home(&self, request: &Request, scope: &Scope) -> Result<Response, RegistryError> {
        match self.follow_redirects(request, scope, request.next_try()).await {
            Err(error) if error.is_broken() && self.is_tls_after_all(&request.url).await => {
                Err(RegistryError::SpeaksTls {
                    line: self.request_line(&request.method, &request.url),
                })
            }
            answered => answered,
        }
    }

    async fn follow_redirects(
        &self,
        request: &Request,
        scope: &Scope,
        attempt: u32,
    ) -> Result<Response, RegistryError> {
        let base = self.base().await?;
        let mut hop = request.clone();
        let mut hops = 0;
        let mut remembered = self.places.of(request);
        if let Some(place) = &remembered {
            hop.url = place.clone();
            hops = 1;
        }
        let mut renewed = false;
        let mut restarted = false;
        let mut asked_elsewhere = false;
        loop {
            let at_home = same_origin(base, &hop.url);
            hop.headers = request.headers.clone();
            if at_home {
                hop.headers.extend(request.own_headers.clone());
            }
            let (authorization, generation) = if at_home {
                self.auth.header(&self.http, base, scope).await?
            } else {
                self.others.header(&self.http, &hop.url, scope).await
            };
            let used = at_home.then_some(generation);
            let carries_login = authorization.is_some();
            let line = self.request_line(&hop.method, &hop.url).at_try(attempt).elsewhere(!at_home);
            let answered = self.http.exchange(&hop, authorization, line).await;
            if remembered.is_some()
                && !answered.as_ref().is_ok_and(|response| response.status().is_success())
            {
                self.places.forget(request);
            }
            let mut response = answered?;
            if at_home && may_want_a_login(response.status()) {
                response.search = self.auth.search(scope, response.status()).await;
            }
            if !at_home
                && !asked_elsewhere
                && response.status() == StatusCode::UNAUTHORIZED
                && is_read(&request.method)
            {
                asked_elsewhere = true;
                let headers = response.headers();
                if self.others.renew(&self.http, &hop.url, scope, generation, headers).await {
                    continue;
                }
            }
            match (response.status(), used) {
                (StatusCode::UNAUTHORIZED, Some(used)) if !renewed => {
                    renewed = true;
                    let is_renewed =
                        self.auth.renew(&self.http, base, scope, used, response.headers()).await?
                            || !carries_login && self.log_in_by_the_root(base, scope, used).await?;
                    if !is_renewed || hop.is_spent() {
                        response.is_renewed = is_renewed;
                        // Only now are they looked up.
                        response.search = self.auth.search(scope, response.status()).await;
                        return Ok(response);
                    }
                }
                (StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST, Some(used))
                    if carries_login && !renewed =>
                {
                    renewed = true;
                    let is_renewed = self.auth.renew_stale(&self.http, base, scope, used).await;
                    if !is_renewed || hop.is_spent() {
                        response.is_renewed = is_renewed;
                        return Ok(response);
                    }
                }
                (StatusCode::FORBIDDEN | StatusCode::NOT_FOUND, Some(used))
                    if !carries_login && !renewed =>
                {
                    renewed = true;
                    if !self.log_in_by_the_root(base, scope, used).await? || hop.is_spent() {
                        response.search = self.auth.search(scope, response.status()).await;
                        return Ok(response);
                    }
                }
                (status, _) if is_redirect(status, &request.method) && hop.is_spent() => {
                    return Ok(response);
                }
                // A signed URL may have expired.
                (status, None)
                    if hops > 0
                        && !restarted
                        && has_run_out(status, request, remembered.is_some()) =>
                {
                    restarted = true;
                    remembered = None;
                    hop = request.clone();
                    hops = 0;
                }
                (status, _) if is_redirect(status, &request.method) => {
                    hops += 1;
                    let to = self.target(base, &response, hops)?;
                    let location = response.location().unwrap_or_default();
                    let path = hop.target.as_ref().map_or(hop.url.path(), PathAndQuery::path);
                    hop.target = verbatim::target(&location, path, &to);
                    hop.url = to;
                    if !same_origin(base, &hop.url) {
                        self.places.note_redirect(request);
                    }
                    let from = shown(&response.url);
                    let to = shown(&hop.url);
                    debug!(name: "redirect", target: TARGET, status = status.as_u16(), from, to);
                }
                (status, used) => {
                    let is_new = hops > 0 && used.is_none() && remembered.is_none();
                    if is_new && status.is_success() && hop.target.is_none() {
                        self.places.remember(request, &hop.url);
                    }
                    return Ok(response);
                }
            }
        }
    }

    /// Logs in as the registry's root asks for it, which docker and others request first: a
    /// registry may hide from strangers what a login could read, without asking for one. Returns
    /// false if no login was found, or if the root does not ask for one.
    async fn log_in_by_the_root(
        &self,
        base: &Url,
        scope: &Scope,
        used: Generation,
    ) -> Result<bool, RegistryError> {
        if !self.auth.has_login(&self.http, scope).await {
            return Ok(false);
        }
        let ask = || async {
            let Ok(url) = base.join("/v2/") else { return Ok(None) };
            let request = Request::new(Method::GET, url);
            let answer = self
                .http
                .exchange(&request, None, self.request_line(&request.method, &request.url))
                .await?;
            let asks = answer.status() == StatusCode::UNAUTHORIZED;
            Ok::<_, RegistryError>(asks.then(|| answer.headers().clone()))
        };
        match self.root_challenge.get_or_try_init(ask).await {
            Ok(Some(headers)) => self.auth.renew(&self.http, base, scope, used, headers).await,
            Ok(None) | Err(_) => Ok(false),
        }
    }

    /// The target of a redirect.
    fn target(&self, base: &Url, response: &Response, hops: usize) -> Result<Url, RegistryError> {
        let protocol = |what: String| RegistryError::Protocol { line: response.line.clone(), what };
        if hops > HOPS {
            return Err(protocol(format!("more than {HOPS} redirects")));
        }
        let location = response
            .location()
            .ok_or_else(|| protocol("a redirect without a location".to_owned()))?;
        self.resolve(base, response, &location)
    }

    /// The URL of the next page of a list. It is at the registry: behind a proxy, a link may have
    /// the scheme or the host that the registry has there (containers/image reads it like this), or
    /// a prefix of the path (sonatype/nexus-public#1011), or it lacks the name of the virtual
    /// repository (renovatebot/renovate#15080).
    pub(super) async fn next_page(
        &self,
        request: &Request,
        link: &str,
    ) -> Result<Url, RegistryError> {
        let mut url = self.base().await?.clone();
        let linked = request
            .url
            .join(link)
            .ok()
            .filter(|linked| matches!(linked.scheme(), "http" | "https"));
        let linked = linked.ok_or_else(|| RegistryError::Protocol {
            line: self.request_line(&request.method, &request.url),
            what: "the link to the next page of the list is not a URL".to_owned(),
        })?;
        let path = request.url.path();
        let is_shorter = linked.path().strip_prefix("/v2").is_some_and(|rest| path.ends_with(rest));
        let is_same = is_shorter || linked.path().ends_with(path);
        url.set_path(if is_same { path } else { linked.path() });
        url.set_query(linked.query());
        Ok(url)
    }

    /// A URL in a response, if the client may contact it. Its query is left unchanged.
    pub(super) fn resolve(
        &self,
        base: &Url,
        response: &Response,
        location: &str,
    ) -> Result<Url, RegistryError> {
        let line = || response.line.clone();
        let mut url = response.url.join(location).map_err(|_| RegistryError::Protocol {
            line: line(),
            what: "it points to something that is not a URL".to_owned(),
        })?;
        url.set_fragment(None);
        let url = by_https(base, url);
        match refuse_detour(base, &response.url, &url) {
            Some(reason) => Err(RegistryError::Detour { line: line(), to: shown(&url), reason }),
            None => Ok(url),
        }
    }
}

impl AskedHost for Registry {
    fn name(&self) -> &str {
        &self.name
    }

    async fn base(&self) -> Result<&Url, RegistryError> {
        Registry::base(self).await
    }

    async fn follow(
        &self,
        request: &Request,
        scope: &Scope,
        attempt: u32,
    ) -> Result<Response, RegistryError> {
        self.follow_redirects(request, scope, attempt).await
    }
}

/// Requests that only read follow every redirect. Requests that write only follow those that keep
/// method and body (RFC 9110 section 15.4).
fn is_redirect(status: StatusCode, method: &Method) -> bool {
    match status.as_u16() {
        307 | 308 => true,
        301..=303 => is_read(method),
        _ => false,
    }
}

/// Statuses for those who are not logged in: registries hide what is private by 403 and 404, and
/// allow strangers fewer requests.
fn may_want_a_login(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 404 | 429)
}

/// Object stores answer 403 to an expired URL, and with other statuses too if the URL was valid
/// before.
fn has_run_out(status: StatusCode, request: &Request, remembered: bool) -> bool {
    let refused = remembered && status.is_client_error() && !is_transient_status(status);
    is_read(&request.method) && (refused || status == StatusCode::FORBIDDEN)
}

fn is_read(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

/// Whether a registry is known to have the referrers API. The opposite is not remembered: it may be
/// true of only one of several servers, and asking again costs no time.
#[derive(Default)]
pub(super) struct ReferrersApi(AtomicBool);

impl ReferrersApi {
    pub(super) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn found(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
