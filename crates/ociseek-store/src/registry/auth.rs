//! Authorization of requests to a registry. There is one token for each repository and kind of
//! access. All requests that wait for it share it. It is renewed before it expires, and once more
//! if the registry refuses it: with 401, or with another status if it is not new. Amazon ECR answers
//! 403 to a password that has expired, and its public registry 400 to a token.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use tokio::time::Instant;
use tracing::debug;
use url::{Url, form_urlencoded};

use super::TARGET;
use super::address::{base_url, refuse_realm};
use super::config::CredentialSource;
use super::credentials::{self, Credential, FoundCredential};
use super::error::{CredentialOrigin, RegistryError, RequestLine, ShownLogin, shown};
use super::http::{Http, texts};
use super::request::{Authorization, Request};
use super::response::Response;
use super::retry::Retry;
use crate::lock::Hold;
use ociseek_format::header::{Challenge, challenge};
use ociseek_format::image::ecr::EcrRegistry;
use ociseek_format::image::json::parse_lenient;
use ociseek_format::progress::{ProgressEvent, causes};

/// The size limit of a token service's response in bytes. Tokens that list many rights are long.
const ANSWER: u64 = 1 << 20;
/// The lifetime of a token without `expires_in`, which is also the minimum (docker's token
/// specification).
const SHORTEST: Duration = Duration::from_secs(60);
/// The longest lifetime that is trusted. One registry sends nanoseconds instead of seconds.
const LONGEST: Duration = Duration::from_secs(3600);
/// The number of scopes and repositories whose tokens and credentials are kept, the most recently
/// used ones. A walk through a whole registry does not return to the others soon.
const KEPT: usize = 256;

/// The kind of access to a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Access {
    Pull,
    Push,
    Delete,
}

impl Access {
    fn actions(self) -> &'static str {
        match self {
            Access::Pull => "pull",
            Access::Push => "pull,push",
            Access::Delete => "pull,push,delete",
        }
    }
}

/// A repository and a kind of access, for which a token is valid.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Scope {
    pub repository: Arc<str>,
    pub access: Access,
}

/// The version of the authorization that a request carried. If the request gets a 401, it tells
/// whether there is a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Generation(u64);

/// Everything known about the authorization at a registry.
pub(super) struct Authorizer {
    registry: Arc<str>,
    source: CredentialSource,
    /// The last challenge without its scope, as the first guess for new scopes.
    last: Mutex<Option<Challenge>>,
    slots: Mutex<Slots>,
    /// By repository.
    credentials: tokio::sync::Mutex<HashMap<Arc<str>, CachedCredential>>,
    /// Whether the user was warned about a token service on another host that receives the
    /// credentials.
    has_warned: AtomicBool,
}

/// Credentials with the time when they were looked up.
struct CachedCredential {
    at: Instant,
    found: Option<FoundCredential>,
}

#[derive(Default)]
struct Slots {
    /// The state of each scope, with its last use as a count of all uses.
    by_scope: HashMap<Scope, (u64, Arc<tokio::sync::Mutex<Slot>>)>,
    uses: u64,
}

impl Slots {
    fn slot(&mut self, scope: &Scope) -> Arc<tokio::sync::Mutex<Slot>> {
        self.uses += 1;
        if self.by_scope.len() >= KEPT && !self.by_scope.contains_key(scope) {
            // Keep the scopes for which a request is waiting.
            let idle = self.by_scope.iter().filter(|(_, (_, slot))| Arc::strong_count(slot) == 1);
            let oldest = idle.min_by_key(|(_, (used, _))| *used).map(|(scope, _)| scope.clone());
            oldest.and_then(|scope| self.by_scope.remove(&scope));
        }
        let (used, slot) = self.by_scope.entry(scope.clone()).or_default();
        *used = self.uses;
        Arc::clone(slot)
    }
}

/// The state of a scope. It stays locked while a token is fetched, so that other requests wait for
/// that token.
#[derive(Default)]
struct Slot {
    challenge: Option<Challenge>,
    header: Option<Header>,
    generation: u64,
}

struct Header {
    value: HeaderValue,
    issued: Instant,
    renew_at: Option<Instant>,
    /// Whether a request has used it.
    is_used: bool,
}

impl Authorizer {
    pub(super) fn new(registry: Arc<str>, source: CredentialSource) -> Authorizer {
        Authorizer {
            registry,
            source,
            last: Mutex::default(),
            slots: Mutex::default(),
            credentials: tokio::sync::Mutex::default(),
            has_warned: AtomicBool::new(false),
        }
    }

    fn slot(&self, scope: &Scope) -> Arc<tokio::sync::Mutex<Slot>> {
        self.slots.hold().slot(scope)
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<Challenge>> {
        self.last.hold()
    }

    /// The `Authorization` header for a request, if the registry has asked for one.
    pub(super) async fn header(
        &self,
        http: &Arc<Http>,
        base: &Url,
        scope: &Scope,
    ) -> Result<(Option<Authorization>, Generation), RegistryError> {
        let slot = self.slot(scope);
        let mut slot = slot.lock().await;
        let due = |header: &Header| header.renew_at.is_some_and(|at| at <= Instant::now());
        if slot.header.as_ref().is_none_or(due) {
            let challenge = slot.challenge.clone().or_else(|| self.last().clone());
            if let Some(challenge) = challenge {
                Box::pin(self.fill(&mut slot, http, base, scope, challenge)).await?;
            }
        }
        let generation = Generation(slot.generation);
        let shown = slot.header.as_mut().map(|header| {
            let is_new = !std::mem::replace(&mut header.is_used, true);
            Authorization { value: header.value.clone(), is_new }
        });
        Ok((shown, generation))
    }

    /// Renews the authorization after a 401. Returns false if there is nothing new to send.
    pub(super) async fn renew(
        &self,
        http: &Arc<Http>,
        base: &Url,
        scope: &Scope,
        used: Generation,
        answer: &HeaderMap,
    ) -> Result<bool, RegistryError> {
        let Some(challenge) = challenge(texts(answer, &WWW_AUTHENTICATE).iter().map(AsRef::as_ref)) else {
            return Ok(false);
        };
        let slot = self.slot(scope);
        let mut slot = slot.lock().await;
        // A scope that was dropped in the meantime has no header yet.
        if Generation(slot.generation) != used && slot.generation > 0 {
            return Ok(slot.header.is_some());
        }
        *self.last() = Some(challenge.clone().without_scope());
        let before = slot.header.take();
        self.forget_stale(http, &scope.repository).await;
        Box::pin(self.fill(&mut slot, http, base, scope, challenge)).await?;
        // A refused password stays refused, but a token may have expired.
        Ok(is_new(before.as_ref(), slot.header.as_ref()))
    }

    /// Renews the authorization after a refusal that may be about authorization that has expired.
    /// Returns false if it is new, or if there is nothing new to send.
    pub(super) async fn renew_stale(&self, http: &Arc<Http>, base: &Url, scope: &Scope, used: Generation) -> bool {
        let slot = self.slot(scope);
        let mut slot = slot.lock().await;
        if Generation(slot.generation) != used {
            return slot.header.is_some();
        }
        let Some(challenge) = slot.challenge.clone() else { return false };
        if slot.header.as_ref().is_none_or(|header| header.issued.elapsed() < http.limits.stale) {
            return false;
        }
        let before = slot.header.take();
        self.forget_stale(http, &scope.repository).await;
        if let Err(error) = Box::pin(self.fill(&mut slot, http, base, scope, challenge)).await {
            // The refusal itself is reported.
            debug!(name: "renewal", target: TARGET, registry = &*self.registry, error = causes(&error));
            slot.header = before;
            return false;
        }
        is_new(before.as_ref(), slot.header.as_ref())
    }

    async fn fill(
        &self,
        slot: &mut Slot,
        http: &Arc<Http>,
        base: &Url,
        scope: &Scope,
        challenge: Challenge,
    ) -> Result<(), RegistryError> {
        let (found, renew_at) = self.credential(http, &scope.repository).await?;
        let plain = |value: String| {
            let wrong = |_| self.misfit("the credentials contain characters that are not allowed in a header");
            let mut value = HeaderValue::try_from(value).map_err(wrong)?;
            value.set_sensitive(true);
            Ok::<_, RegistryError>(Some(Header { value, issued: Instant::now(), renew_at, is_used: false }))
        };
        slot.header = match (&challenge, found.as_ref().map(|found| found.credential.clone())) {
            (_, Some(Credential::Registry(token))) => plain(format!("Bearer {token}"))?,
            (Challenge::Basic, Some(Credential::Password { user, password })) => plain(basic(&user, &password))?,
            (Challenge::Basic, Some(Credential::Identity { login: Some((user, password)), .. })) => {
                plain(basic(&user, &password))?
            }
            (Challenge::Basic, _) => None,
            (Challenge::Bearer { realm, service, scope: requested }, _) => {
                let scopes = union(&scope.repository, scope.access, requested.as_deref());
                let token = |found| self.token(http, base, realm, service.as_deref(), &scopes, found);
                let mut fetched = token(found.clone()).await;
                // The password may have been changed since it was looked up.
                if fetched.as_ref().is_err_and(|error| matches!(error.status(), Some(400 | 401 | 403)))
                    && self.forget_stale(http, &scope.repository).await
                {
                    let (again, _) = self.credential(http, &scope.repository).await?;
                    if again.as_ref().map(|now| &now.credential) != found.as_ref().map(|then| &then.credential) {
                        fetched = token(again).await;
                    }
                }
                let wrap = |source| RegistryError::Token {
                    registry: Arc::clone(&self.registry),
                    realm: elsewhere(base, realm),
                    source: Box::new(source),
                };
                Some(fetched.map_err(wrap)?)
            }
        };
        slot.challenge = Some(challenge);
        slot.generation += 1;
        Ok(())
    }

    fn misfit(&self, what: &str) -> RegistryError {
        let url = base_url("https", &self.registry);
        match url {
            Ok(url) => RegistryError::Protocol {
                line: RequestLine::new(&self.registry, &Method::GET, &url),
                what: what.to_owned(),
            },
            Err(error) => error.into(),
        }
    }

    /// The credentials for a repository, and when to look them up again although nobody refuses
    /// them.
    async fn credential(
        &self,
        http: &Arc<Http>,
        repository: &Arc<str>,
    ) -> Result<(Option<FoundCredential>, Option<Instant>), RegistryError> {
        let lasts = has_short_logins(&self.registry).then_some(http.limits.ecr_login);
        let mut known = self.credentials.lock().await;
        let cached = known.get(repository);
        let found = match cached.filter(|cached| lasts.is_none_or(|lasts| cached.at.elapsed() < lasts)) {
            Some(cached) => {
                return Ok((cached.found.clone(), lasts.map(|lasts| cached.at + lasts)));
            }
            None => credentials::find(&self.source, &self.registry, repository, http.limits.helper).await,
        };
        let found = match (found, cached) {
            (Ok(found), _) => found,
            // The known ones still work for a while.
            (Err(error), Some(cached)) => {
                debug!(name: "renewal", target: TARGET, registry = &*self.registry, error = causes(&error));
                cached.found.clone()
            }
            (Err(source), None) => {
                return Err(RegistryError::Credentials { registry: Arc::clone(&self.registry), source });
            }
        };
        if known.len() >= KEPT && !known.contains_key(repository) {
            let oldest = known.iter().min_by_key(|(_, cached)| cached.at).map(|(name, _)| Arc::clone(name));
            oldest.and_then(|name| known.remove(&name));
        }
        let at = Instant::now();
        known.insert(Arc::clone(repository), CachedCredential { at, found: found.clone() });
        Ok((found, lasts.map(|lasts| at + lasts)))
    }

    /// The credentials that a request of this scope carried when it got a 401.
    pub(super) async fn shown(&self, scope: &Scope) -> Option<ShownLogin> {
        let slot = self.slot(scope);
        let is_bearer = matches!(slot.lock().await.challenge.as_ref()?, Challenge::Bearer { .. });
        let known = self.credentials.lock().await;
        let found = known.get(&scope.repository)?.found.as_ref()?;
        let origin = match found.credential {
            Credential::Password { .. } | Credential::Identity { .. } if is_bearer => CredentialOrigin::Granted,
            _ => self.origin(),
        };
        Some(ShownLogin { origin, place: Arc::clone(&found.place) })
    }

    /// The source of the credentials, if there are any.
    fn origin(&self) -> CredentialOrigin {
        match self.source {
            CredentialSource::Ambient => CredentialOrigin::Stored,
            CredentialSource::Anonymous | CredentialSource::Only { .. } => CredentialOrigin::Given,
        }
    }

    /// Forgets credentials that may have expired. Returns whether they will be looked up again.
    async fn forget_stale(&self, http: &Http, repository: &Arc<str>) -> bool {
        let mut known = self.credentials.lock().await;
        let is_stale = known.get(repository).is_some_and(|cached| cached.at.elapsed() >= http.limits.stale);
        if is_stale {
            known.remove(repository);
        }
        is_stale
    }

    /// Uses GET with a password or anonymously (docker's token specification), and POST with a
    /// refresh token (its OAuth2 form).
    fn token_request(
        &self,
        mut url: Url,
        service: Option<&str>,
        scope: &str,
        credential: Option<Credential>,
    ) -> Result<Request, RegistryError> {
        let request = match credential {
            Some(Credential::Identity { token, .. }) => {
                let mut form = form_urlencoded::Serializer::new(String::new());
                form.append_pair("grant_type", "refresh_token").append_pair("client_id", "ociseek");
                form.append_pair("service", service.unwrap_or_default()).append_pair("scope", scope);
                form.append_pair("refresh_token", &token);
                let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
                Request::new(Method::POST, url).body(form_type, Bytes::from(form.finish()))
            }
            credential => {
                let mut query = url.query_pairs_mut();
                if let Some(service) = service {
                    query.append_pair("service", service);
                }
                query.append_pair("scope", scope);
                if let Some(Credential::Password { user, .. }) = &credential {
                    query.append_pair("account", user);
                }
                drop(query);
                let mut request = Request::new(Method::GET, url);
                if let Some(Credential::Password { user, password }) = &credential {
                    let value = HeaderValue::try_from(basic(user, password));
                    let mut value = value.map_err(|_| self.misfit("the credentials do not fit in a header"))?;
                    value.set_sensitive(true);
                    request = request.header(AUTHORIZATION, value);
                }
                request
            }
        };
        Ok(request.header(ACCEPT, HeaderValue::from_static("application/json")))
    }

    /// Requests a token from the token service.
    async fn token(
        &self,
        http: &Arc<Http>,
        base: &Url,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        found: Option<FoundCredential>,
    ) -> Result<Header, RegistryError> {
        let line = |method: &Method, url: &Url| RequestLine::new(&self.registry, method, url);
        let mut url = Url::parse(realm).map_err(|_| RegistryError::Detour {
            line: line(&Method::GET, base),
            to: super::one_line::one_line(realm, 100),
            reason: "its token service is not a URL",
        })?;
        if let Some(reason) = refuse_realm(base, &url) {
            return Err(RegistryError::Detour { line: line(&Method::GET, base), to: shown(&url), reason });
        }
        url.set_fragment(None);
        let shown = found.as_ref().map(|found| ShownLogin { origin: self.origin(), place: Arc::clone(&found.place) });
        if let Some(host) = elsewhere(base, realm).filter(|_| shown.is_some())
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            http.progress().report(ProgressEvent::TokenService { registry: self.registry.to_string(), host });
        }

        let mut request = self.token_request(url, service, scope, found.map(|found| found.credential))?;
        let mut retry = Retry::new(http);
        loop {
            match self.ask(http, &request, shown.clone(), line(&request.method, &request.url), retry.reads()).await {
                Ok(header) => {
                    http.answered(&self.registry);
                    return Ok(header);
                }
                Err(error) => retry.read_again(&mut request, error).await?,
            }
        }
    }

    async fn ask(
        &self,
        http: &Arc<Http>,
        request: &Request,
        shown: Option<ShownLogin>,
        line: RequestLine,
        reads: u32,
    ) -> Result<Header, RegistryError> {
        // Redirects are not followed, because the credentials are for this address only.
        let line = line.at_try(request.next_try());
        let mut response: Response = http.exchange(request, None, line.clone()).await?;
        response.shown = shown;
        let response = response.expect(&[200]).await?;
        let body = response.bytes(ANSWER).await?;
        #[derive(serde::Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
            expires_in: Option<serde_json::Value>,
        }
        if let Err(source) = parse_lenient::<serde::de::IgnoredAny>(&body) {
            return Err(RegistryError::Json { line, source, reads });
        }
        // The source of an error in valid JSON may repeat its input, which could be a token here.
        let wrong = |what: &str| RegistryError::Protocol { line: line.clone(), what: what.to_owned() };
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|_| wrong("the token service's answer is not JSON with a token"))?;
        let token = [answer.token, answer.access_token].into_iter().flatten().find(|token| !token.is_empty());
        let token = token.ok_or_else(|| wrong("the token service's answer contains no token"))?;
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| wrong("the token service's token does not fit in a header"))?;
        value.set_sensitive(true);
        let lasts = answer.expires_in.as_ref().and_then(serde_json::Value::as_f64).unwrap_or_default();
        let lasts = lifetime(lasts);
        let (_, realm) = line.parts();
        debug!(name: "token", target: TARGET, registry = &*self.registry, realm, seconds = lasts.as_secs());
        let issued = Instant::now();
        Ok(Header { value, issued, renew_at: Some(issued + lasts.mul_f64(0.8)), is_used: false })
    }
}

/// Whether the registry's passwords expire after hours: those of Amazon ECR, after 12 (Amazon ECR
/// User Guide, "Private registry authentication").
fn has_short_logins(registry: &str) -> bool {
    EcrRegistry::of_host(registry).is_some()
}

/// Whether a request that was refused should be repeated with this header.
fn is_new(before: Option<&Header>, now: Option<&Header>) -> bool {
    now.is_some_and(|now| before.is_none_or(|before| before.value != now.value))
}

/// The host of a token service, if it is not the registry's own.
fn elsewhere(base: &Url, realm: &str) -> Option<String> {
    let realm = Url::parse(realm).ok()?;
    (realm.host() != base.host()).then(|| realm.host_str().map(str::to_owned))?
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
}

/// The lifetime for a token's `expires_in` in seconds.
fn lifetime(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(SHORTEST.as_secs_f64(), LONGEST.as_secs_f64()))
}

/// The scope to request: our access, plus the access that the challenge requests for the same
/// repository. If the challenge names something else, its scope is used.
fn union(repository: &str, access: Access, requested: Option<&str>) -> String {
    if repository.is_empty() {
        // The scope for the list of repositories (distribution's token specification, "Resource
        // Class and Type").
        return requested.unwrap_or("registry:catalog:*").to_owned();
    }
    let prefix = format!("repository:{repository}:");
    let own = access.actions();
    match requested {
        None => format!("{prefix}{own}"),
        Some(requested) => match requested.strip_prefix(&prefix).filter(|actions| !actions.contains(' ')) {
            Some(actions) => {
                let more = actions.split(',').filter(|a| !a.is_empty() && !own.split(',').any(|o| o == *a));
                more.fold(format!("{prefix}{own}"), |scope, action| scope + "," + action)
            }
            None => requested.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{ClientConfig, Limits};
    use super::super::http::Common;
    use super::*;

    #[test]
    fn scopes_combine_our_needs_and_the_challenge() {
        for (access, requested, want) in [
            (Access::Pull, None, "repository:a/b:pull"),
            (Access::Push, Some("repository:a/b:pull"), "repository:a/b:pull,push"),
            (Access::Pull, Some("repository:a/b:pull,push"), "repository:a/b:pull,push"),
            (Access::Pull, Some("repository:a/b:*"), "repository:a/b:pull,*"),
            (Access::Pull, Some("registry:catalog:*"), "registry:catalog:*"),
            (Access::Pull, Some("repository:x:pull repository:a/b:pull"), "repository:x:pull repository:a/b:pull"),
        ] {
            assert_eq!(union("a/b", access, requested), want);
        }
        assert_eq!(union("", Access::Pull, None), "registry:catalog:*");
        assert_eq!(union("", Access::Pull, Some("registry:catalog:pull")), "registry:catalog:pull");
    }

    #[test]
    fn token_lifetimes_are_clamped() {
        for (seconds, want) in [(0.0, 60), (-5.0, 60), (60.0, 60), (300.0, 300), (300e9, 3600)] {
            assert_eq!(lifetime(seconds), Duration::from_secs(want));
        }
    }

    #[tokio::test]
    async fn passwords_for_amazon_ecr_are_looked_up_before_they_expire() {
        const ECR: &str = "123456789012.dkr.ecr.us-east-1.amazonaws.com";
        for (registry, lasts, renews) in [
            (ECR, Duration::ZERO, true),
            ("public.ecr.aws", Duration::ZERO, true),
            (ECR, Duration::from_secs(3600), false),
            ("r.example", Duration::ZERO, false),
        ] {
            let limits = Limits { ecr_login: lasts, ..Limits::default() };
            let config = ClientConfig { limits, ..ClientConfig::default() };
            let http = Arc::new(Http::new(&Arc::new(Common::new(&config).unwrap()), registry).unwrap());
            let (user, password) = ("AWS".to_owned(), "p".to_owned());
            let source = CredentialSource::Only { registry: registry.to_owned(), user, password };
            let auth = Authorizer::new(registry.into(), source);
            *auth.last() = Some(Challenge::Basic);
            let base = base_url("https", registry).unwrap();
            let scope = Scope { repository: "a".into(), access: Access::Pull };
            let (_, first) = auth.header(&http, &base, &scope).await.unwrap();
            let (shown, second) = auth.header(&http, &base, &scope).await.unwrap();
            assert!(shown.is_some_and(|shown| shown.value == basic("AWS", "p")));
            assert_eq!(first != second, renews, "{registry} {lasts:?}");
        }
    }

    #[tokio::test]
    async fn memory_does_not_grow_with_the_registry() {
        let mut slots = Slots::default();
        let scope = |n: usize| Scope { repository: format!("r{n}").into(), access: Access::Pull };
        let waiting = slots.slot(&scope(0));
        slots.slot(&scope(1)).lock().await.generation = 7;
        for n in 2..10 * KEPT {
            slots.slot(&scope(n));
            slots.slot(&scope(1));
        }
        assert_eq!(slots.by_scope.len(), KEPT);
        assert!(Arc::ptr_eq(&waiting, &slots.slot(&scope(0))), "somebody holds it");
        assert_eq!(slots.slot(&scope(1)).lock().await.generation, 7, "it is in use");
        assert!(!slots.by_scope.contains_key(&scope(2)));
    }
}
