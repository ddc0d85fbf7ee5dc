//! Authorization of requests to a registry. There is one token for each repository and kind of
//! access. All requests that wait for it share it. It is renewed before it expires, and once more
//! if the registry refuses it: with 401, or with another status if it is not new. Amazon ECR
//! answers 403 to a password that has expired, and its public registry 400 to a token.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Method, StatusCode};
use tokio::time::Instant;
use tracing::debug;
use url::Url;

use crate::lock::Hold;
use crate::registry::TARGET;
use crate::registry::address::base_url;
use crate::registry::config::CredentialSource;
use crate::registry::credentials::{self, Credential, CredentialLookup, ProgramAnswers, Wanted};
use crate::registry::error::{
    CredentialOrigin, LoginSearch, RegistryError, RequestLine, ShownLogin,
};
use crate::registry::http::{Http, texts};
use crate::registry::request::Authorization;
use ociseek_format::header::{Challenge, challenge};
use ociseek_format::image::ecr::EcrRegistry;
use ociseek_format::progress::causes;
use token::{elsewhere, union};

mod token;

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
    pub(super) fn actions(self) -> &'static str {
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
    /// Another repository to read, from which a blob is mounted.
    pub from: Option<Arc<str>>,
}

/// The version of the authorization that a request carried. If the request gets a 401, it tells
/// whether there is a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Generation(u64);

impl Generation {
    /// Nothing was known yet.
    pub(super) const NONE: Generation = Generation(0);
}

/// Everything known about the authorization at a registry.
pub(super) struct Authorizer {
    pub(super) registry: Arc<str>,
    source: CredentialSource,
    /// The last challenge without its scope, as the first guess for new scopes.
    last: Mutex<Option<Challenge>>,
    tokens: Mutex<TokenCache>,
    credentials: tokio::sync::Mutex<KnownCredentials>,
    /// The headers that `hosts.toml` has for this host. As containerd does (its
    /// core/remotes/docker/config/hosts.go, `WithAuthHeader`), its token service gets them, too.
    pub(super) own_headers: HeaderMap,
    /// Whether the user was warned about a token service on another host that receives the
    /// credentials.
    pub(super) has_warned: AtomicBool,
}

#[derive(Default)]
struct KnownCredentials {
    by_repository: HashMap<Arc<str>, CredentialLookup>,
    programs: ProgramAnswers,
}

#[derive(Default)]
struct TokenCache {
    /// The state of each scope, with its last use as a count of all uses.
    by_scope: HashMap<Scope, (u64, Arc<tokio::sync::Mutex<Slot>>)>,
    uses: u64,
}

impl TokenCache {
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
    header: Option<AuthorizationHeader>,
    generation: u64,
}

pub(super) struct AuthorizationHeader {
    pub value: HeaderValue,
    pub issued: Instant,
    pub renew_at: Option<Instant>,
    /// Whether a request has used it.
    pub is_used: bool,
    /// Whether a token service just issued it.
    pub is_issued: bool,
}

impl Authorizer {
    pub(super) fn new(registry: Arc<str>, source: CredentialSource) -> Authorizer {
        Authorizer {
            registry,
            source,
            last: Mutex::default(),
            tokens: Mutex::default(),
            credentials: tokio::sync::Mutex::default(),
            own_headers: HeaderMap::new(),
            has_warned: AtomicBool::new(false),
        }
    }

    fn slot(&self, scope: &Scope) -> Arc<tokio::sync::Mutex<Slot>> {
        self.tokens.hold().slot(scope)
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
        let due =
            |header: &AuthorizationHeader| header.renew_at.is_some_and(|at| at <= Instant::now());
        if slot.header.as_ref().is_none_or(due) {
            // They are forgotten unless they lead to a token, also if the caller gives up: by now,
            // the registry may name another token service, or want none.
            let challenge = slot.challenge.take().or_else(|| self.last().take());
            if let Some(challenge) = challenge {
                slot.header = None;
                let filled = Box::pin(self.fill(&mut slot, http, base, scope, challenge)).await;
                match filled {
                    // The registry says what it wants.
                    Err(error) if error.status().is_some_and(is_refusal) => {}
                    filled => filled?,
                }
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
        let stated = challenge(texts(answer, &WWW_AUTHENTICATE).iter().map(AsRef::as_ref));
        let slot = self.slot(scope);
        let mut slot = slot.lock().await;
        // Docker Hardened Images left it out for an expired token (docker/hub-feedback#2530).
        let Some(challenge) = stated.or_else(|| slot.challenge.clone()) else { return Ok(false) };
        // A scope that was dropped in the meantime has no header yet.
        if Generation(slot.generation) != used && slot.generation > 0 {
            return Ok(slot.header.is_some());
        }
        let before = slot.header.take();
        self.forget_stale(http, &scope.repository).await;
        let earlier = slot.challenge.clone().filter(|earlier| *earlier != challenge);
        let filled = Box::pin(self.fill(&mut slot, http, base, scope, challenge)).await;
        // nvcr.io names a service for users once a token has expired, which gives strangers none
        // (NVIDIA/nvidia-container-toolkit#1945).
        match (filled, earlier) {
            (Err(error), Some(earlier)) => {
                let again = Box::pin(self.fill(&mut slot, http, base, scope, earlier)).await;
                again.map_err(|_| error)?;
            }
            (filled, _) => filled?,
        }
        Ok(is_new(before.as_ref(), slot.header.as_ref()))
    }

    /// Renews the authorization after a refusal that may be about authorization that has expired.
    /// Returns false if it is new, or if there is nothing new to send.
    pub(super) async fn renew_stale(
        &self,
        http: &Arc<Http>,
        base: &Url,
        scope: &Scope,
        used: Generation,
    ) -> bool {
        let slot = self.slot(scope);
        let mut slot = slot.lock().await;
        if Generation(slot.generation) != used {
            return slot.header.is_some();
        }
        let (Some(challenge), Some(header)) = (slot.challenge.clone(), &slot.header) else {
            return false;
        };
        let is_old = header.issued.elapsed() >= http.limits.stale;
        let (known, _) = self.credential(http, &scope.repository).await;
        let is_other = self.another_login(http, &scope.repository, &known).await.is_some();
        if !is_old && !is_other {
            return false;
        }
        let before = slot.header.take();
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
        let (lookup, renew_at) = self.credential(http, &scope.repository).await;
        let plain = |value: String| {
            let wrong = |_| {
                self.invalid_credentials(
                    "the credentials contain characters that are not allowed in a header",
                )
            };
            let mut value = HeaderValue::try_from(value).map_err(wrong)?;
            value.set_sensitive(true);
            Ok::<_, RegistryError>(Some(AuthorizationHeader {
                value,
                issued: Instant::now(),
                renew_at,
                is_used: false,
                is_issued: false,
            }))
        };
        slot.header = match (&challenge, lookup.credential().cloned()) {
            (_, Some(Credential::Registry(token))) => plain(format!("Bearer {token}"))?,
            (
                Challenge::Basic,
                Some(Credential::Password(login) | Credential::Identity { login: Some(login), .. }),
            ) => plain(login.basic())?,
            (Challenge::Basic, _) => None,
            (Challenge::Bearer { realm, service, scope: requested }, _) => {
                let scopes = union(scope, requested.as_deref());
                let token =
                    |lookup| self.token(http, base, realm, service.as_deref(), &scopes, lookup);
                let mut fetched = token(lookup.clone()).await;
                // The password may have been changed since it was looked up.
                if fetched
                    .as_ref()
                    .is_err_and(|error| matches!(error.status(), Some(400 | 401 | 403)))
                    && let Some(other) = self.another_login(http, &scope.repository, &lookup).await
                {
                    fetched = token(other).await;
                }
                let wrap = |source| RegistryError::Token {
                    registry: Arc::clone(&self.registry),
                    realm: elsewhere(base, realm),
                    source: Box::new(source),
                };
                Some(fetched.map_err(wrap)?)
            }
        };
        *self.last() = Some(challenge.clone().without_scope());
        slot.challenge = Some(challenge);
        slot.generation += 1;
        Ok(())
    }

    pub(super) fn invalid_credentials(&self, what: &str) -> RegistryError {
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
    ) -> (CredentialLookup, Option<Instant>) {
        let lasts = has_short_logins(&self.registry).then_some(http.limits.ecr_login);
        let mut known = self.credentials.lock().await;
        let KnownCredentials { by_repository, programs } = &mut *known;
        let cached = by_repository.get(repository);
        if let Some(cached) =
            cached.filter(|cached| lasts.is_none_or(|lasts| cached.at.elapsed() < lasts))
        {
            return (cached.clone(), lasts.map(|lasts| cached.at + lasts));
        }
        if let Some(lasts) = lasts {
            programs.forget(lasts);
        }
        let limit = http.limits.helper;
        let wanted = Wanted { registry: &self.registry, repository, limit };
        let mut lookup = credentials::find(&self.source, &wanted, programs).await;
        if let Some(path) = credentials::missing_file(&self.source) {
            http.warn_once(format!(
                "$REGISTRY_AUTH_FILE names {}, which does not exist",
                path.display()
            ));
        }
        // The known ones still work for a while.
        if let (None, false, Some(cached)) = (&lookup.found, lookup.failures.is_empty(), cached) {
            lookup.found.clone_from(&cached.found);
            lookup.at = Instant::now();
        }
        if by_repository.len() >= KEPT && !by_repository.contains_key(repository) {
            let oldest = by_repository.iter().min_by_key(|(_, cached)| cached.at);
            let oldest = oldest.map(|(name, _)| Arc::clone(name));
            oldest.and_then(|name| by_repository.remove(&name));
        }
        let renew_at = lasts.map(|lasts| lookup.at + lasts);
        by_repository.insert(Arc::clone(repository), lookup.clone());
        (lookup, renew_at)
    }

    /// Whether there are credentials for a scope's repository.
    pub(super) async fn has_login(&self, http: &Arc<Http>, scope: &Scope) -> bool {
        self.credential(http, &scope.repository).await.0.found.is_some()
    }

    /// The credentials that a request of this scope carried when it was refused, if it was by 401,
    /// and the places that were searched in vain.
    pub(super) async fn search(&self, scope: &Scope, status: StatusCode) -> LoginSearch {
        let challenge = self.slot(scope).lock().await.challenge.clone();
        let known = self.credentials.lock().await;
        let Some(lookup) = known.by_repository.get(&scope.repository) else {
            return LoginSearch::default();
        };
        let login = lookup.found.as_ref().filter(|_| status == StatusCode::UNAUTHORIZED);
        let shown = login.zip(challenge).map(|(login, challenge)| {
            let is_bearer = matches!(challenge, Challenge::Bearer { .. });
            let origin = match login.credential {
                Credential::Password(_) | Credential::Identity { .. } if is_bearer => {
                    CredentialOrigin::Granted
                }
                _ => self.origin(),
            };
            ShownLogin { origin, place: Arc::clone(&login.place) }
        });
        LoginSearch { shown, failures: lookup.failures.clone() }
    }

    /// The source of the credentials, if there are any.
    pub(super) fn origin(&self) -> CredentialOrigin {
        match self.source {
            CredentialSource::Ambient
            | CredentialSource::Node(_)
            | CredentialSource::File(_)
            | CredentialSource::Pull { .. } => CredentialOrigin::Stored,
            CredentialSource::Anonymous | CredentialSource::Only { .. } => CredentialOrigin::Given,
        }
    }

    /// The credentials that are found now, if they are not those that are `known`.
    async fn another_login(
        &self,
        http: &Arc<Http>,
        repository: &Arc<str>,
        known: &CredentialLookup,
    ) -> Option<CredentialLookup> {
        self.forget_stale(http, repository).await;
        let (now, _) = self.credential(http, repository).await;
        (now.credential() != known.credential()).then_some(now)
    }

    /// Forgets credentials that a registry refuses, so that they are looked up again. A login may
    /// have been stored in a file a moment ago, but a program that gave one is not asked at each
    /// refusal.
    async fn forget_stale(&self, http: &Http, repository: &Arc<str>) {
        let mut known = self.credentials.lock().await;
        known.by_repository.remove(repository);
        known.programs.forget(http.limits.stale);
    }
}

/// Whether the registry's passwords expire after hours: those of Amazon ECR, after 12 (Amazon ECR
/// User Guide, "Private registry authentication").
fn has_short_logins(registry: &str) -> bool {
    EcrRegistry::of_host(registry).is_some()
}

/// Whether a server says with this status that it will not answer such a request.
fn is_refusal(status: u16) -> bool {
    (400..500).contains(&status) && status != 429
}

/// Whether a request that was refused should be repeated with this header. A refused password stays
/// refused, but a token may have expired or been forgotten, also if its service issues the same
/// text again.
fn is_new(before: Option<&AuthorizationHeader>, now: Option<&AuthorizationHeader>) -> bool {
    now.is_some_and(|now| now.is_issued || before.is_none_or(|before| before.value != now.value))
}

#[cfg(test)]
mod tests {
    use super::super::config::{ClientConfig, Limits};
    use super::super::hosts::HostTls;
    use super::super::http::Common;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;

    use super::*;

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
            let http = Arc::new(
                Http::new(&Arc::new(Common::new(&config).unwrap()), registry, &HostTls::default())
                    .unwrap(),
            );
            let user = "AWS".to_owned();
            let password = "p".to_owned();
            let source = CredentialSource::Only { registry: registry.to_owned(), user, password };
            let auth = Authorizer::new(registry.into(), source);
            *auth.last() = Some(Challenge::Basic);
            let base = base_url("https", registry).unwrap();
            let scope = Scope { repository: "a".into(), access: Access::Pull, from: None };
            let (_, first) = auth.header(&http, &base, &scope).await.unwrap();
            let (shown, second) = auth.header(&http, &base, &scope).await.unwrap();
            assert!(shown.is_some_and(|shown| shown.value == credentials::Login::new("AWS", "p").basic()));
            assert_eq!(first != second, renews, "{registry} {lasts:?}");
        }
    }

    /// One answer of a server that is replaced must not end all reads of a mount.
    #[tokio::test]
    async fn a_token_service_that_has_gone_is_forgotten() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let registry = server.local_addr().unwrap().to_string();
        let realm = format!("http://{registry}/token");
        let has_tokens = Arc::new(AtomicBool::new(true));
        let serving = Arc::clone(&has_tokens);
        tokio::spawn(async move {
            while let Ok((stream, _)) = server.accept().await {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).await.unwrap() > 2 {
                    line.clear();
                }
                let answer: &[u8] = if serving.load(Ordering::Relaxed) {
                    b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\nconnection: close\r\n\r\n{\"token\":\"t\"}"
                } else {
                    b"HTTP/1.1 404 Gone\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                };
                stream.write_all(answer).await.unwrap();
            }
        });
        let common = Arc::new(Common::new(&ClientConfig::default()).unwrap());
        let http = Arc::new(Http::new(&common, &registry, &HostTls::default()).unwrap());
        let base = base_url("http", &registry).unwrap();
        let auth = Authorizer::new((&*registry).into(), CredentialSource::Anonymous);
        let scope =
            |name: &str| Scope { repository: name.into(), access: Access::Pull, from: None };
        let asks = format!("Bearer realm=\"{realm}\"");
        let asks = HeaderMap::from_iter([(WWW_AUTHENTICATE, asks.try_into().unwrap())]);
        let a = scope("a");
        for is_there in [false, true] {
            has_tokens.store(is_there, Ordering::Relaxed);
            let (_, used) = auth.header(&http, &base, &a).await.unwrap();
            let renewed = auth.renew(&http, &base, &a, used, &asks).await;
            assert_eq!(renewed.is_ok(), is_there);
            assert_eq!(auth.header(&http, &base, &a).await.unwrap().0.is_some(), is_there);
        }
        assert!(auth.header(&http, &base, &scope("b")).await.unwrap().0.is_some());
        has_tokens.store(false, Ordering::Relaxed);
        for _ in 0..2 {
            assert!(auth.header(&http, &base, &scope("c")).await.unwrap().0.is_none());
        }
    }

    #[tokio::test]
    async fn memory_does_not_grow_with_the_registry() {
        let mut tokens = TokenCache::default();
        let scope = |n: usize| Scope {
            repository: format!("r{n}").into(),
            access: Access::Pull,
            from: None,
        };
        let waiting = tokens.slot(&scope(0));
        tokens.slot(&scope(1)).lock().await.generation = 7;
        for n in 2..10 * KEPT {
            tokens.slot(&scope(n));
            tokens.slot(&scope(1));
        }
        assert_eq!(tokens.by_scope.len(), KEPT);
        assert!(Arc::ptr_eq(&waiting, &tokens.slot(&scope(0))), "somebody holds it");
        assert_eq!(tokens.slot(&scope(1)).lock().await.generation, 7, "it is in use");
        assert!(!tokens.by_scope.contains_key(&scope(2)));
    }
}
