//! The parts of AWS that indexing in Amazon ECR needs: a call of ECR's API for the token that the
//! registry requires, for which the registry itself has no call (Amazon ECR API Reference,
//! GetAuthorizationToken), and its signature.
//!
//! The AWS SDK includes all of this, but aws-sdk-ecr alone has some hundred crates as dependencies.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use tokio::sync::Mutex;
use url::Url;

use ociseek_format::image::ecr::EcrRegistry;
use ociseek_store::Cause;
use ociseek_store::registry::{ClientConfig, RegistryError, Status, http_client};

mod sigv4;

use sigv4::{Credentials, RequestToSign, SigningScope, sign};

/// Requests a token for the caller's own registry.
const BODY: &str = "{}";
/// The size limit of the response in bytes. Tokens are some kilobytes long.
const ANSWER: usize = 256 << 10;
/// The time limit for a try.
const CALL: Duration = Duration::from_secs(10);
/// The number of tries before giving up, and the wait after the first.
const TRIES: u32 = 3;
const WAIT: Duration = Duration::from_millis(200);
/// Tokens that expire sooner are not used for new work. They are valid for 12 hours, and a function
/// runs for at most 15 minutes.
const LEAST_LEFT: Duration = Duration::from_secs(3600);

/// Why a call of ECR's API failed. Messages contain no tokens or signatures.
#[derive(Debug, thiserror::Error)]
pub enum EcrError {
    #[error("{0} is not set")]
    NoCredentials(&'static str),
    #[error("{0} is not a valid service address")]
    Endpoint(String),
    #[error("cannot create an HTTP client")]
    Client(#[from] RegistryError),
    #[error("GetAuthorizationToken at {host} failed")]
    Transport { host: String, source: Cause },
    #[error("GetAuthorizationToken at {host} returned {status}: {what}")]
    Refused { host: String, status: Status, what: String },
    #[error("GetAuthorizationToken at {host} returned an unusable answer: {what}")]
    Answer { host: String, what: &'static str },
}

impl EcrError {
    /// Whether a retry may help.
    pub fn is_transient(&self) -> bool {
        match self {
            EcrError::Transport { .. } => true,
            EcrError::Refused { status, what, .. } => {
                // AWS states with 400 that there are too many calls.
                matches!(status.code(), 429 | 500..600) || what.starts_with("Throttling")
            }
            _ => false,
        }
    }
}

/// The user and password for a registry of ECR.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The user for basic authentication, in ECR always `AWS`.
    pub user: String,
    /// The password for basic authentication. Not included in the output of `Debug`.
    pub password: String,
    expires: SystemTime,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token(until {:?})", self.expires)
    }
}

/// ECR's API. Tokens are kept until an hour before they expire.
pub struct Ecr {
    credentials: Credentials,
    /// If set, all calls go here instead of to the service in the registry's region.
    endpoint: Option<Url>,
    /// Tokens by registry: a token is valid for everything that the caller can access, but is only
    /// sent to one registry.
    tokens: Mutex<BTreeMap<EcrRegistry, Token>>,
}

ociseek_format::opaque_debug!(Ecr);

impl Ecr {
    /// Uses the credentials and the endpoint in the environment, like AWS's own programs:
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; `AWS_ENDPOINT_URL_ECR`,
    /// `AWS_ENDPOINT_URL` (AWS SDKs and Tools Reference Guide, "Service-specific endpoints").
    ///
    /// # Errors
    /// If there are no credentials, or the endpoint is not a URL.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Ecr, EcrError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let needed = |name: &'static str| variable(name).ok_or(EcrError::NoCredentials(name));
        let credentials = Credentials {
            access_key_id: needed("AWS_ACCESS_KEY_ID")?,
            secret_access_key: needed("AWS_SECRET_ACCESS_KEY")?,
            session_token: variable("AWS_SESSION_TOKEN"),
        };
        let endpoint = variable("AWS_ENDPOINT_URL_ECR").or_else(|| variable("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.map(|url| parse_endpoint(&url)).transpose()?;
        Ok(Ecr { credentials, endpoint, tokens: Mutex::default() })
    }

    /// The token for a registry, to be kept secret.
    ///
    /// # Errors
    /// If the service does not return one.
    pub async fn token(&self, registry: &EcrRegistry) -> Result<Token, EcrError> {
        let mut tokens = self.tokens.lock().await;
        if let Some(token) = tokens.get(registry)
            && token.expires.duration_since(SystemTime::now()).is_ok_and(|left| left > LEAST_LEFT)
        {
            return Ok(token.clone());
        }
        let token = self.fetch(registry).await?;
        tokens.insert(registry.clone(), token.clone());
        Ok(token)
    }

    /// Forgets a token that was rejected.
    pub async fn forget(&self, registry: &EcrRegistry) {
        self.tokens.lock().await.remove(registry);
    }

    /// Temporary errors are retried. An answer that may have been damaged on its way is read once
    /// more.
    async fn fetch(&self, registry: &EcrRegistry) -> Result<Token, EcrError> {
        let url = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => parse_endpoint(&format!("https://{}", registry.api_host()))?,
        };
        let http = http_client(&ClientConfig::default(), &url)?;
        let mut tries = 1;
        let mut unusable = 0;
        loop {
            let error = match self
                .once(&http, &url, registry)
                .await
                .and_then(|answer| token_in(&answer, &url))
            {
                Ok(token) => return Ok(token),
                Err(error) => error,
            };
            let may_pass = if let EcrError::Answer { .. } = &error {
                unusable += 1;
                unusable == 1
            } else {
                error.is_transient()
            };
            if !may_pass || tries == TRIES {
                return Err(error);
            }
            tokio::time::sleep(WAIT * tries).await;
            tries += 1;
        }
    }

    async fn once(
        &self,
        http: &reqwest::Client,
        url: &Url,
        registry: &EcrRegistry,
    ) -> Result<Vec<u8>, EcrError> {
        let (service, target) = match registry {
            EcrRegistry::Private { .. } => {
                ("ecr", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken")
            }
            EcrRegistry::Public { .. } => {
                ("ecr-public", "SpencerFrontendService.GetAuthorizationToken")
            }
        };
        let headers = [("content-type", "application/x-amz-json-1.1"), ("x-amz-target", target)];
        let host = host(url);
        let request =
            RequestToSign { method: "POST", host: &host, headers: &headers, body: BODY.as_bytes() };
        let scope = SigningScope { region: registry.region(), service };
        let mut sent = http.post(url.clone()).timeout(CALL);
        for (name, value) in sign(&request, scope, &self.credentials, SystemTime::now()) {
            sent = sent.header(name, value);
        }
        for (name, value) in headers {
            sent = sent.header(name, value);
        }
        // Without the URL, which adds nothing to the host.
        let failed = |error: reqwest::Error| EcrError::Transport {
            host: host.clone(),
            source: error.without_url().into(),
        };
        let mut answer = sent.body(BODY).send().await.map_err(failed)?;
        let status = answer.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > ANSWER {
                return Err(EcrError::Answer { host, what: "it is too long" });
            }
        }
        if status.is_success() {
            Ok(bytes)
        } else {
            Err(EcrError::Refused { host, status: Status::new(status), what: error_text(&bytes) })
        }
    }
}

/// The token in the body of an answer.
fn token_in(answer: &[u8], url: &Url) -> Result<Token, EcrError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        authorization_data: Option<AuthorizationData>,
    }
    /// The response for private registries has a list, and one element was requested. The
    /// response for the public registry has a single object.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum AuthorizationData {
        List(Vec<Authorization>),
        One(Authorization),
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Authorization {
        authorization_token: String,
        /// Seconds since 1970.
        expires_at: Option<f64>,
    }
    let wrong = |what| EcrError::Answer { host: host(url), what };
    // serde's error message may repeat the input, which contains a secret here.
    let answer: Answer =
        serde_json::from_slice(answer).map_err(|_| wrong("it is not in the documented format"))?;
    let authorization = match answer.authorization_data {
        Some(AuthorizationData::List(list)) => list.into_iter().next(),
        Some(AuthorizationData::One(one)) => Some(one),
        None => None,
    };
    let authorization = authorization.ok_or_else(|| wrong("it contains no token"))?;
    let plain = BASE64_STANDARD.decode(authorization.authorization_token).ok();
    let plain = plain.and_then(|plain| String::from_utf8(plain).ok());
    let (user, password) = plain
        .as_deref()
        .and_then(|p| p.split_once(':'))
        .ok_or_else(|| wrong("its token is not valid"))?;
    let seconds = authorization.expires_at.filter(|s| (0.0..1e11).contains(s)).unwrap_or_default();
    let expires = UNIX_EPOCH + Duration::from_secs_f64(seconds);
    Ok(Token { user: user.to_owned(), password: password.to_owned(), expires })
}

fn parse_endpoint(text: &str) -> Result<Url, EcrError> {
    let wrong = || EcrError::Endpoint(text.chars().take(150).collect());
    let url = Url::parse(text).map_err(|_| wrong())?;
    let sound = matches!(url.scheme(), "http" | "https")
        && url.host().is_some()
        && url.username().is_empty();
    if sound && url.password().is_none() && url.path() == "/" && url.query().is_none() {
        Ok(url)
    } else {
        Err(wrong())
    }
}

/// The value of the header `Host`: with the port, unless it is the scheme's default.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The message for an error of the service: its type and its message, on one line.
fn error_text(body: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    struct ErrorBody {
        #[serde(default, rename = "__type")]
        kind: String,
        #[serde(default, alias = "Message")]
        message: String,
    }
    let ErrorBody { kind, message } = serde_json::from_slice(body).unwrap_or_default();
    let kind = kind.rsplit('#').next().unwrap_or_default();
    let text = format!("{kind} {message}");
    text.trim().chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_validated() {
        for good in ["https://api.ecr.eu-west-1.amazonaws.com", "http://127.0.0.1:5000/"] {
            assert!(parse_endpoint(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "x",
            "ftp://x",
            "https://",
            "https://u:p@x",
            "https://x/y",
            "https://x/?y",
            "file:///etc",
        ] {
            assert!(parse_endpoint(bad).is_err(), "{bad}");
        }
        assert_eq!(host(&Url::parse("https://a.example:443/").unwrap()), "a.example");
        assert_eq!(host(&Url::parse("http://127.0.0.1:5000/").unwrap()), "127.0.0.1:5000");
    }

    #[test]
    fn the_text_of_an_error_is_extracted() {
        let error = br#"{"__type":"com.amazonaws.ecr#AccessDeniedException","Message":"not\nyou"}"#;
        assert_eq!(error_text(error), "AccessDeniedException notyou");
        assert_eq!(
            error_text(br#"{"__type":"ServerException","message":"m"}"#),
            "ServerException m"
        );
        assert_eq!(error_text(b"<html>"), "");
    }

    #[test]
    fn credentials_are_read_from_the_environment() {
        let variables = |more: &'static [(&'static str, &'static str)]| {
            move |name: &str| {
                let keys = [("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "secret")];
                more.iter()
                    .chain(&keys)
                    .find(|(n, _)| *n == name)
                    .map(|(_, value)| (*value).to_owned())
            }
        };
        let ecr = Ecr::from_environment(variables(&[("AWS_ENDPOINT_URL", "http://127.0.0.1:1")]))
            .unwrap();
        assert_eq!(ecr.endpoint.unwrap().port(), Some(1));
        let both = [
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
            ("AWS_ENDPOINT_URL_ECR", "http://127.0.0.1:2"),
        ];
        let ecr = Ecr::from_environment(variables(Box::leak(Box::new(both)))).unwrap();
        assert_eq!(ecr.endpoint.unwrap().port(), Some(2));
        assert!(Ecr::from_environment(variables(&[("AWS_ENDPOINT_URL", "nowhere")])).is_err());
        assert!(matches!(
            Ecr::from_environment(variables(&[("AWS_ACCESS_KEY_ID", "")])),
            Err(EcrError::NoCredentials("AWS_ACCESS_KEY_ID"))
        ));
    }
}
