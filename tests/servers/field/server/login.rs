//! Passwords and tokens.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Response, header};
use serde_json::json;

use super::super::profile::{Login, Trait};
use super::{Asked, EXPIRED, PASSWORD, Registry, Token, USER, split};
use ociseek_testkit::faulty::{basic, json_answer, problem};

impl Registry {
    /// Gives a token for what is asked for, to the user.
    pub(super) fn token(&self, asked: &Asked) -> Response<Body> {
        let shown = asked.header("authorization").unwrap_or_default();
        if let Some(refusal) = self.expired(shown) {
            return refusal;
        }
        let form = String::from_utf8_lossy(&asked.body);
        let (is_known, scopes) = match self.login() {
            Some(Login::Identity) => {
                let given = format!("refresh_token={PASSWORD}");
                let has = |wanted: &str| form.split('&').any(|pair| pair == wanted);
                (asked.method == "POST" && has("grant_type=refresh_token") && has(&given), &*form)
            }
            _ => (shown == basic(USER, PASSWORD), &*asked.query),
        };
        let is_anonymous = shown.is_empty() && self.profile.has(Trait::AnonymousPull);
        if !is_known && !is_anonymous {
            return problem(401, "UNAUTHORIZED", "incorrect username or password");
        }
        let scopes =
            scopes.split('&').filter_map(|pair| pair.strip_prefix("scope=")).flat_map(|scopes| {
                let scopes = scopes
                    .replace("%3A", ":")
                    .replace("%2F", "/")
                    .replace("%2C", ",")
                    .replace("%20", "+");
                scopes.split('+').map(str::to_owned).collect::<Vec<_>>()
            });
        let allows: Vec<(String, Vec<String>)> = scopes
            .filter_map(|scope| {
                let (name, actions) = scope.strip_prefix("repository:")?.rsplit_once(':')?;
                let granted = actions.split(',').filter(|action| is_known || *action == "pull");
                Some((name.to_owned(), granted.map(str::to_owned).collect()))
            })
            .collect();
        let limit = self.profile.find(|one| match one {
            Trait::NoNewRepositories(status, message) => Some((status, message)),
            _ => None,
        });
        let mut content = self.content.lock().unwrap();
        if let Some((status, message)) = limit {
            let pushes = |(name, actions): &(String, Vec<String>)| {
                actions.iter().any(|action| action == "push")
                    && !content.repositories.contains_key(name)
            };
            if allows.iter().any(pushes) {
                return problem(status, "DENIED", message);
            }
        }
        let token = format!("token-{}", content.tokens.len());
        let is_first = content.tokens.values().all(|token| token.allows != allows);
        content.tokens.insert(
            token.clone(),
            Token { allows, issued: Instant::now(), is_first, is_used: false },
        );
        let name = if self.login() == Some(Login::Identity) { "access_token" } else { "token" };
        json_answer(200, &json!({name: token, "expires_in": self.lifetime().as_secs()}))
    }

    /// The refusal of a request whose login does not suffice.
    pub(super) fn unauthorized(&self, asked: &Asked) -> Option<Response<Body>> {
        let shown = asked.header("authorization").unwrap_or_default();
        match self.login()? {
            Login::Basic if shown == basic(USER, PASSWORD) => None,
            Login::Basic => {
                self.expired(shown).or_else(|| Some(challenge("Basic realm=\"field\"")))
            }
            Login::Token | Login::Identity => {
                self.without_token(asked, shown.strip_prefix("Bearer ").unwrap_or_default())
            }
        }
    }

    /// The refusal of a password that was right once.
    fn expired(&self, shown: &str) -> Option<Response<Body>> {
        let status = self.profile.find(|one| match one {
            Trait::ExpiredPassword(status) => Some(status),
            _ => None,
        })?;
        let message = "Your authorization token has expired. Reauthenticate and try again.";
        (shown == basic(USER, EXPIRED)).then(|| problem(status, "DENIED", message))
    }

    fn lifetime(&self) -> Duration {
        let seconds = self.profile.find(|one| match one {
            Trait::TokensExpire(seconds) => Some(seconds),
            _ => None,
        });
        Duration::from_secs(seconds.unwrap_or(300))
    }

    fn without_token(&self, asked: &Asked, token: &str) -> Option<Response<Body>> {
        let mut content = self.content.lock().unwrap();
        // Requests for manifests come one after the other, so none is refused twice.
        if let Some(token) = content.tokens.get_mut(token)
            && std::mem::replace(&mut token.is_used, true)
            && token.is_first
            && asked.path.contains("/manifests/")
            && self.profile.has(Trait::NoChallengeAfterExpiry)
        {
            return Some(problem(401, "UNAUTHORIZED", "the token has expired"));
        }
        let mut name = split(&asked.path).map_or("", |(name, _, _)| name);
        if let Some(id) = asked.path.strip_prefix("/artifacts-uploads/") {
            name = content.uploads.get(id).map_or("", |upload| upload.repository.as_str());
        }
        let deletes = asked.method == "DELETE" && asked.path.contains("/manifests/");
        let action = match asked.method.as_str() {
            "GET" | "HEAD" => "pull",
            _ if deletes && self.profile.has(Trait::DeleteHasItsScope) => "delete",
            _ => "push",
        };
        let from = asked.parameter("from").filter(|_| self.profile.has(Trait::MountReadsTheOther));
        let allowed = content.tokens.get(token).is_some_and(|token| {
            let granted = |name: &str, action: &str| {
                let mut scopes = token.allows.iter();
                name.is_empty()
                    || scopes
                        .any(|(of, actions)| of == name && actions.iter().any(|one| one == action))
            };
            let reads = from.as_ref().is_none_or(|from| granted(from, "pull"));
            granted(name, action) && reads && token.issued.elapsed() < self.lifetime()
        });
        let actions = if action == "push" { "pull,push" } else { action };
        let host = self.address;
        let other = from.map(|from| format!(" repository:{from}:pull")).unwrap_or_default();
        (!allowed).then(|| {
            challenge(&format!(
                "Bearer realm=\"http://{host}/token\",service=\"field\",scope=\"repository:{name}:{actions}{other}\""
            ))
        })
    }
}

fn challenge(challenge: &str) -> Response<Body> {
    let mut refusal = problem(401, "UNAUTHORIZED", "authentication required");
    refusal.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.parse().unwrap());
    refusal
}
