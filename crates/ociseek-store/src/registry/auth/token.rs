//! Tokens: what is asked of a token service, and its answer (docker's token specification, RFC
//! 6749).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use tokio::time::Instant;
use tracing::debug;
use url::{Url, form_urlencoded};

use super::{Access, AuthorizationHeader, Authorizer, Scope};
use crate::registry::TARGET;
use crate::registry::address::{by_https, refuse_realm, same_origin};
use crate::registry::credentials::{Credential, CredentialLookup};
use crate::registry::error::{LoginSearch, RegistryError, RequestLine, ShownLogin, shown};
use crate::registry::http::Http;
use crate::registry::request::Request;
use crate::registry::response::Response;
use crate::registry::retry::Retry;
use crate::registry::transport::one_line;
use ociseek_format::image::json::parse_lenient;
use ociseek_format::progress::ProgressEvent;

/// The size limit of a token service's response in bytes. Tokens that list many rights are long.
const ANSWER: u64 = 1 << 20;
/// The maximum number of redirects at a token service.
const REDIRECTS: usize = 3;
/// The lifetime of a token without `expires_in`, which is also the minimum (docker's token
/// specification).
const SHORTEST: Duration = Duration::from_secs(60);
/// The longest lifetime that is trusted. One registry sends nanoseconds instead of seconds.
const LONGEST: Duration = Duration::from_secs(3600);
impl Authorizer {
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
                form.append_pair("service", service.unwrap_or_default())
                    .append_pair("scope", scope);
                form.append_pair("refresh_token", &token);
                let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
                Request::new(Method::POST, url).body(form_type, Bytes::from(form.finish()))
            }
            credential => {
                let mut query = url.query_pairs_mut();
                if let Some(service) = service {
                    query.append_pair("service", service);
                }
                // As docker asks for several.
                for scope in scope.split(' ') {
                    query.append_pair("scope", scope);
                }
                let login = match &credential {
                    Some(Credential::Password(login)) => Some(login),
                    _ => None,
                };
                if let Some(user) = login.and_then(|login| str::from_utf8(&login.user).ok()) {
                    query.append_pair("account", user);
                }
                drop(query);
                let mut request = Request::new(Method::GET, url);
                if let Some(login) = login {
                    let value = HeaderValue::try_from(login.basic());
                    let mut value = value.map_err(|_| {
                        self.invalid_credentials("the credentials do not fit in a header")
                    })?;
                    value.set_sensitive(true);
                    request = request.header(AUTHORIZATION, value);
                }
                request
            }
        };
        let mut request = request.header(ACCEPT, HeaderValue::from_static("application/json"));
        for (name, value) in &self.own_headers {
            // A login replaces an Authorization header, as in containerd.
            let is_stated = [ACCEPT, CONTENT_TYPE].contains(name)
                || name == AUTHORIZATION && request.headers.contains_key(AUTHORIZATION);
            if !is_stated {
                request = request.header(name.clone(), value.clone());
            }
        }
        Ok(request)
    }

    /// Requests a token from the token service.
    pub(super) async fn token(
        &self,
        http: &Arc<Http>,
        base: &Url,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        lookup: CredentialLookup,
    ) -> Result<AuthorizationHeader, RegistryError> {
        let line = |method: &Method, url: &Url| RequestLine::new(&self.registry, method, url);
        let mut url = Url::parse(realm).map_err(|_| RegistryError::Detour {
            line: line(&Method::GET, base),
            to: one_line(realm, 100),
            reason: "its token service is not a URL",
        })?;
        url = by_https(base, url);
        if let Some(reason) = refuse_realm(base, &url) {
            return Err(RegistryError::Detour {
                line: line(&Method::GET, base),
                to: shown(&url),
                reason,
            });
        }
        url.set_fragment(None);
        let is_elsewhere = !same_origin(base, &url);
        let login = lookup.found;
        let shown = login
            .as_ref()
            .map(|login| ShownLogin { origin: self.origin(), place: Arc::clone(&login.place) });
        let search = LoginSearch { shown, failures: lookup.failures };
        if let Some(host) = elsewhere(base, realm).filter(|_| login.is_some())
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            http.progress()
                .report(ProgressEvent::TokenService { registry: self.registry.to_string(), host });
        }

        let mut request =
            self.token_request(url, service, scope, login.map(|login| login.credential))?;
        let mut retry = Retry::new(http);
        loop {
            match self
                .ask(
                    http,
                    &request,
                    search.clone(),
                    line(&request.method, &request.url).elsewhere(is_elsewhere),
                    retry.reads(),
                )
                .await
            {
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
        search: LoginSearch,
        line: RequestLine,
        reads: u32,
    ) -> Result<AuthorizationHeader, RegistryError> {
        let line = line.at_try(request.next_try());
        let mut response: Response = http.exchange(request, None, line.clone()).await?;
        // The credentials are for this host only.
        let mut moved = request.clone();
        for _ in 0..REDIRECTS {
            let next = match response.status().as_u16() {
                307 | 308 => response.location(),
                301..=303 if request.method == Method::GET => response.location(),
                _ => None,
            };
            let next = next
                .and_then(|next| moved.url.join(&next).ok())
                .filter(|url| same_origin(url, &moved.url));
            let Some(next) = next else { break };
            moved.url = next;
            response = http.exchange(&moved, None, line.clone()).await?;
        }
        response.search = search;
        let response = response.expect(&[200, 201]).await?;
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
        let wrong =
            |what: &str| RegistryError::Protocol { line: line.clone(), what: what.to_owned() };
        let answer: Answer = serde_json::from_slice(&body)
            .map_err(|_| wrong("the token service's answer is not JSON with a token"))?;
        let token = [answer.token, answer.access_token]
            .into_iter()
            .flatten()
            .find(|token| !token.is_empty());
        let token = token.ok_or_else(|| wrong("the token service's answer contains no token"))?;
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| wrong("the token service's token does not fit in a header"))?;
        value.set_sensitive(true);
        let lasts =
            answer.expires_in.as_ref().and_then(serde_json::Value::as_f64).unwrap_or_default();
        let lasts = lifetime(lasts);
        let (_, realm) = line.parts();
        debug!(name: "token", target: TARGET, registry = &*self.registry, realm, seconds = lasts.as_secs());
        let issued = Instant::now();
        Ok(AuthorizationHeader {
            value,
            issued,
            renew_at: Some(issued + lasts.mul_f64(0.8)),
            is_used: false,
            is_issued: true,
        })
    }
}

/// The host of a token service, if it is not the registry's own.
pub(super) fn elsewhere(base: &Url, realm: &str) -> Option<String> {
    let realm = Url::parse(realm).ok()?;
    (realm.host() != base.host()).then(|| realm.host_str().map(str::to_owned))?
}

/// The lifetime for a token's `expires_in` in seconds.
fn lifetime(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(SHORTEST.as_secs_f64(), LONGEST.as_secs_f64()))
}

/// The scopes to request, separated by spaces: our access, plus the access that the challenge
/// requests for the same repository. If the challenge names something else, its scopes are used.
pub(super) fn union(scope: &Scope, requested: Option<&str>) -> String {
    let Scope { repository, access, from } = scope;
    if repository.is_empty() {
        // The scope for the list of repositories (distribution's token specification, "Resource
        // Class and Type").
        return requested.unwrap_or("registry:catalog:*").to_owned();
    }
    let prefix = format!("repository:{repository}:");
    let own = access.actions();
    // A scope of no repository says nothing (project-zot/zot#1125).
    let scope = match requested.filter(|scope| !scope.starts_with("repository::")) {
        None => format!("{prefix}{own}"),
        Some(requested) => {
            match requested.strip_prefix(&prefix).filter(|actions| !actions.contains(' ')) {
                Some(actions) => {
                    let more = actions
                        .split(',')
                        .filter(|a| !a.is_empty() && !own.split(',').any(|o| o == *a));
                    more.fold(format!("{prefix}{own}"), |scope, action| scope + "," + action)
                }
                None => return requested.to_owned(),
            }
        }
    };
    match from {
        Some(from) => format!("{scope} repository:{from}:{}", Access::Pull.actions()),
        None => scope,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_combine_our_needs_and_the_challenge() {
        let scope = |repository: &str, access, from: Option<&str>| Scope {
            repository: repository.into(),
            access,
            from: from.map(Into::into),
        };
        for (access, requested, want) in [
            (Access::Pull, None, "repository:a/b:pull"),
            (Access::Push, Some("repository:a/b:pull"), "repository:a/b:pull,push"),
            (Access::Pull, Some("repository:a/b:pull,push"), "repository:a/b:pull,push"),
            (Access::Pull, Some("repository:a/b:*"), "repository:a/b:pull,*"),
            (Access::Pull, Some("registry:catalog:*"), "registry:catalog:*"),
            (Access::Push, Some("repository::pull"), "repository:a/b:pull,push"),
            (
                Access::Pull,
                Some("repository:x:pull repository:a/b:pull"),
                "repository:x:pull repository:a/b:pull",
            ),
        ] {
            assert_eq!(union(&scope("a/b", access, None), requested), want);
        }
        let catalog = scope("", Access::Pull, None);
        assert_eq!(union(&catalog, None), "registry:catalog:*");
        assert_eq!(union(&catalog, Some("registry:catalog:pull")), "registry:catalog:pull");
        let both = "repository:a/b:pull,push repository:c:pull";
        for requested in [None, Some("repository:a/b:pull,push"), Some(both)] {
            assert_eq!(union(&scope("a/b", Access::Push, Some("c")), requested), both);
        }
    }

    #[test]
    fn token_lifetimes_are_clamped() {
        for (seconds, want) in [(0.0, 60), (-5.0, 60), (60.0, 60), (300.0, 300), (300e9, 3600)] {
            assert_eq!(lifetime(seconds), Duration::from_secs(want));
        }
    }
}
