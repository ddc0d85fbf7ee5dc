//! Why a registry did not do what was asked. No message holds a secret: URLs are shown without their query, and what a
//! registry writes is cut and escaped.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use url::Url;

use super::address::NotAHost;
use super::credentials::CredentialError;
use super::helper::HelperError;
use super::proxy::ProxyError;
use super::transport::{TransportError, TransportKind, Untrusted};
use crate::budget::OverBudget;
use crate::digest::Digest;
use crate::store::Cause;

/// What was asked of whom: method and URL, without the URL's query and user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The registry as its user names it, whatever host answered in its stead.
    registry: Arc<str>,
    text: String,
    /// Which try it is, counted from 1.
    attempt: u32,
}

impl Asked {
    pub(super) fn new(registry: &Arc<str>, method: &Method, url: &Url) -> Asked {
        Asked { registry: Arc::clone(registry), text: format!("{method} {}", shown(url)), attempt: 1 }
    }

    pub(super) fn at_try(self, attempt: u32) -> Asked {
        Asked { attempt, ..self }
    }

    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Method and URL, as they are shown.
    pub(super) fn parts(&self) -> (&str, &str) {
        self.text.split_once(' ').unwrap_or_default()
    }

    pub(super) fn registry(&self) -> &str {
        &self.registry
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A URL for people: no user, no query (signed URLs carry their signature there), no fragment.
pub(super) fn shown(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let path: String = url.path().chars().take(300).collect();
    format!("{}://{}{port}{path}", url.scheme(), url.host_str().unwrap_or_default())
}

/// The status of an HTTP answer. It is shown with its name: `404 Not Found`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub(crate) StatusCode);

impl Status {
    /// Its number.
    pub fn code(self) -> u16 {
        self.0.as_u16()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum RegistryError {
    #[error(transparent)]
    Memory(#[from] OverBudget),
    #[error("{0:?} is not a registry: expected HOST or HOST:PORT")]
    Host(String),
    #[error("{0:?} is not a repository name")]
    Name(String),
    #[error("{path}: no PEM {what} can be read from it", path = .path.display())]
    Pem { path: PathBuf, what: &'static str, source: Option<Cause> },
    #[error("a client certificate needs its key, and a key its certificate")]
    ClientCertificate,
    #[error("{path} {what}", path = .path.display())]
    CertsD { path: PathBuf, what: &'static str },
    #[error("{path} cannot be read", path = .path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("cannot set up TLS")]
    Tls(#[source] Cause),
    #[error("cannot set up HTTP")]
    Http(#[source] Cause),

    #[error("looking up credentials for {registry}")]
    Credentials { registry: Arc<str>, source: CredentialError },
    /// `realm` is the host of the token service, where it is another one than the registry's.
    #[error("cannot get a token for {registry}")]
    Token { registry: Arc<str>, realm: Option<String>, source: Box<RegistryError> },
    /// The registry's answer points to a place where we do not go.
    #[error("{asked}: it points to {to}: {reason}")]
    Detour { asked: Asked, to: String, reason: &'static str },

    #[error("{asked}")]
    Proxy { asked: Asked, source: ProxyError },
    #[error("{asked}")]
    Transport { asked: Asked, source: TransportError },
    #[error("{asked}: {awaited} did not arrive within {} s", .within.as_secs_f32())]
    Timeout { asked: Asked, awaited: &'static str, within: Duration },
    #[error("{asked}: slower than {slowest} bytes a second")]
    Slow { asked: Asked, slowest: u64 },
    /// It was asked by plain HTTP.
    #[error("{asked}: the server speaks TLS")]
    SpeaksTls { asked: Asked },
    #[error("{0}")]
    Answer(Box<Answer>),
    #[error("gave up after {tries} tries")]
    GaveUp { tries: u32, source: Box<RegistryError> },

    /// The registry said something that the distribution spec does not have.
    #[error("{asked}: {what}")]
    Protocol { asked: Asked, what: String },
    #[error("{asked}: the answer is not the expected JSON")]
    Json { asked: Asked, source: serde_json::Error },
    #[error("{asked}: the answer is larger than {limit} bytes")]
    TooLarge { asked: Asked, limit: u64 },
    #[error("{asked}: the content has the digest {found}, not {expected}")]
    Digest { asked: Asked, expected: Box<Digest>, found: Box<Digest> },
    #[error("{asked}: the content has {found} bytes, not {expected}")]
    Size { asked: Asked, expected: u64, found: u64 },
    /// The content at hand is not what its descriptor says; nothing was sent.
    #[error("the content for {digest} ({expected} bytes) is something else ({found} bytes)")]
    Content { digest: Digest, expected: u64, found: u64 },
    /// What was being uploaded is something else than its descriptor says; the registry was not told to keep it.
    #[error("the content for {expected} is {found}")]
    Blob { expected: Box<Digest>, found: Box<Digest> },
    #[error("blob {digest} has {size} bytes; the limit is {limit}")]
    BlobTooLarge { digest: Digest, size: u64, limit: u64 },
    #[error("the registry lost the upload of {digest} {times} times")]
    UploadLost { digest: Digest, times: u32, source: Box<RegistryError> },
    #[error("referrers tag {tag} in {repository}: {reason}")]
    FallbackTag { repository: String, tag: String, reason: String },
}

impl RegistryError {
    /// The status of the registry's (or its token service's) answer, if it gave one.
    pub fn status(&self) -> Option<u16> {
        match self.root() {
            RegistryError::Answer(answer) => Some(answer.status.as_u16()),
            _ => None,
        }
    }

    /// The registry, as its user named it.
    pub fn host(&self) -> Option<&str> {
        match self {
            RegistryError::Credentials { registry, .. } | RegistryError::Token { registry, .. } => Some(registry),
            RegistryError::Detour { asked, .. }
            | RegistryError::Proxy { asked, .. }
            | RegistryError::SpeaksTls { asked }
            | RegistryError::Transport { asked, .. }
            | RegistryError::Timeout { asked, .. }
            | RegistryError::Slow { asked, .. }
            | RegistryError::Protocol { asked, .. }
            | RegistryError::Json { asked, .. }
            | RegistryError::TooLarge { asked, .. }
            | RegistryError::Digest { asked, .. }
            | RegistryError::Size { asked, .. } => Some(&asked.registry),
            RegistryError::Answer(answer) => Some(&answer.asked.registry),
            RegistryError::GaveUp { source, .. } | RegistryError::UploadLost { source, .. } => source.host(),
            _ => None,
        }
    }

    /// The registry wants other credentials than it was given, or any at all (401).
    pub fn is_unauthorized(&self) -> bool {
        self.status() == Some(401)
    }

    /// What was asked for is not there (404).
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// A manifest was refused since a blob that it names is not there: push it with
    /// [`push_blob_unchecked`](super::Repository::push_blob_unchecked) and try again.
    pub fn is_blob_unknown(&self) -> bool {
        self.has_code("MANIFEST_BLOB_UNKNOWN") || self.has_code("BLOB_UNKNOWN")
    }

    /// Credentials were shown, and the registry or its token service does not take them (401).
    pub fn rejected(&self) -> Option<Shown> {
        match self.root() {
            RegistryError::Answer(answer) if answer.status == StatusCode::UNAUTHORIZED => answer.shown,
            _ => None,
        }
    }

    /// Another host than the registry answered, its token service's: that host.
    pub fn token_service(&self) -> Option<&str> {
        match self {
            RegistryError::GaveUp { source, .. } | RegistryError::UploadLost { source, .. } => source.token_service(),
            RegistryError::Token { realm, .. } => realm.as_deref(),
            _ => None,
        }
    }

    /// Why the certificate of the registry is not to be trusted, if that is what is wrong.
    pub fn untrusted(&self) -> Option<Untrusted> {
        match self.transport()?.kind {
            TransportKind::Certificate(why) => Some(why),
            _ => None,
        }
    }

    /// The registry wants a client certificate, or another one than it was shown.
    pub fn wants_client_certificate(&self) -> bool {
        self.transport().is_some_and(|transport| transport.kind == TransportKind::ClientCertificate)
    }

    /// What answers speaks something else than TLS: most likely plain HTTP.
    pub fn is_not_tls(&self) -> bool {
        self.transport().is_some_and(|transport| transport.kind == TransportKind::NotTls)
    }

    /// It was asked by plain HTTP, and what answered speaks TLS, or holds plain HTTP for a mistake (400).
    pub fn is_not_plain_http(&self) -> bool {
        match self.root() {
            RegistryError::SpeaksTls { .. } => true,
            RegistryError::Answer(answer) => {
                answer.status == StatusCode::BAD_REQUEST && answer.asked.text.contains(" http://")
            }
            _ => false,
        }
    }

    /// No connection came about.
    pub fn is_unreachable(&self) -> bool {
        self.root().is_connect()
    }

    /// The proxy that the failed request went by, without its user and password, and the variable that names it.
    pub fn proxy(&self) -> Option<&str> {
        self.transport()?.proxy.as_deref()
    }

    /// The proxy refused to pass the request on until it is shown a user and a password (407).
    pub fn is_proxy_login(&self) -> bool {
        self.status() == Some(407)
            || self.transport().is_some_and(|transport| transport.kind == TransportKind::ProxyLogin)
    }

    /// A variable of the environment names a proxy that cannot be used: that variable.
    pub fn proxy_variable(&self) -> Option<&'static str> {
        match self.root() {
            RegistryError::Proxy { source, .. } => Some(source.variable),
            _ => None,
        }
    }

    fn transport(&self) -> Option<&TransportError> {
        match self.root() {
            RegistryError::Transport { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The credential helper that gave no credentials, by its name in docker's configuration.
    pub fn helper(&self) -> Option<(&str, &HelperError)> {
        match self.root() {
            RegistryError::Credentials { source: CredentialError::Helper { name, source }, .. } => Some((name, source)),
            _ => None,
        }
    }

    /// One of the error codes of the distribution spec is among the answer's.
    pub(super) fn has_code(&self, code: &str) -> bool {
        matches!(self.root(), RegistryError::Answer(answer) if answer.codes.iter().any(|c| c == code))
    }

    /// Trying again may help.
    pub(super) fn calls_for_retry(&self) -> bool {
        match self {
            RegistryError::Timeout { .. } | RegistryError::Slow { .. } => true,
            RegistryError::Transport { source, .. } => source.kind.is_lost() || source.kind == TransportKind::Broken,
            RegistryError::Answer(answer) => is_transient_status(answer.status),
            _ => false,
        }
    }

    /// What came is not what was asked for: another size or digest, or more than there should be.
    pub fn is_other_content(&self) -> bool {
        matches!(
            self,
            RegistryError::Digest { .. }
                | RegistryError::Size { .. }
                | RegistryError::TooLarge { .. }
                | RegistryError::BlobTooLarge { .. }
        )
    }

    /// The upload of a blob was begun `times` times, and came to nothing each time.
    pub(crate) fn upload_lost(digest: Digest, times: u32, source: RegistryError) -> RegistryError {
        RegistryError::UploadLost { digest, times, source: Box::new(source) }
    }

    /// What failed may go well at another time: the registry was not reached, was busy, broke off,
    /// or others were faster than us.
    pub fn is_transient(&self) -> bool {
        match self {
            RegistryError::UploadLost { .. } | RegistryError::FallbackTag { .. } => true,
            _ => self.root().calls_for_retry(),
        }
    }

    /// No connection came about, so that nothing can have been done.
    pub(super) fn is_connect(&self) -> bool {
        matches!(self, RegistryError::Transport { source, .. } if source.kind.is_lost())
    }

    /// The host's name leads nowhere.
    pub(super) fn is_unresolved(&self) -> bool {
        matches!(self, RegistryError::Transport { source, .. } if source.kind == TransportKind::Unresolved)
    }

    /// The connection ended before an answer came.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self, RegistryError::Transport { source, .. } if source.kind == TransportKind::Broken)
    }

    /// What the registry asks to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            RegistryError::Answer(answer) => answer.retry_after,
            _ => None,
        }
    }

    fn root(&self) -> &RegistryError {
        match self {
            RegistryError::GaveUp { source, .. }
            | RegistryError::Token { source, .. }
            | RegistryError::UploadLost { source, .. } => source.root(),
            _ => self,
        }
    }
}

/// Statuses that pass: RFC 9110 section 15, RFC 6585 section 4, RFC 8470 section 5.2.
pub(super) fn is_transient_status(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// A refusal: what the registry answered.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(super) asked: Asked,
    pub(super) status: StatusCode,
    /// The error codes of the distribution spec ("Error Codes"), as far as the answer has any.
    pub(super) codes: Vec<String>,
    /// What the registry says for people: one line, cut and escaped; may be empty.
    pub(super) message: String,
    pub(super) retry_after: Option<Duration>,
    /// The credentials that the request carried.
    pub(super) shown: Option<Shown>,
}

/// Where credentials came from that a registry was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// From whoever made the client.
    Given,
    /// From what a login left.
    Stored,
    /// Either; the token service took them, and gave a token for them that does not suffice.
    Granted,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.asked, self.status)?;
        if let Some(code) = self.codes.first() {
            write!(f, " {code}")?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        match self.retry_after {
            Some(wait) => write!(f, " (asks to wait {} s)", wait.as_secs()),
            None => Ok(()),
        }
    }
}

impl From<NotAHost> for RegistryError {
    fn from(NotAHost(host): NotAHost) -> RegistryError {
        RegistryError::Host(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_what_may_be_secret() {
        let url = Url::parse("https://u:pw@h.example:8443/v2/a/blobs/x?X-Amz-Signature=s3cret#f").unwrap();
        assert_eq!(shown(&url), "https://h.example:8443/v2/a/blobs/x");
    }
}
