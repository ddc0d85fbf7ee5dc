//! Why a registry call failed. Messages contain no secrets: URLs are shown without their query, and
//! text from a registry is cut and escaped.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use url::Url;

use super::address::NotAHost;
use super::credentials::{CredentialError, HelperError};
use super::proxy::ProxyError;
use super::transport::{CertificateFault, TransportError, TransportKind, is_transient_status};
use crate::{Cause, read_times};
use ociseek_format::budget::OverBudget;
use ociseek_format::digest::Digest;
use ociseek_format::image::JsonFault;
use ociseek_format::printable::exact_size;
use ociseek_format::progress::causes;

/// A request in messages: the method, and the URL without query and user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLine {
    /// The registry as the user named it, whichever host responded.
    registry: Arc<str>,
    text: String,
    /// The number of the try, from 1.
    attempt: u32,
    /// Another server than the registry, to which the registry sent the client.
    is_elsewhere: bool,
}

impl RequestLine {
    pub(super) fn new(registry: &Arc<str>, method: &Method, url: &Url) -> RequestLine {
        RequestLine {
            registry: Arc::clone(registry),
            text: format!("{method} {}", shown(url)),
            attempt: 1,
            is_elsewhere: false,
        }
    }

    pub(super) fn elsewhere(self, is_elsewhere: bool) -> RequestLine {
        RequestLine { is_elsewhere, ..self }
    }

    pub(super) fn at_try(self, attempt: u32) -> RequestLine {
        RequestLine { attempt, ..self }
    }

    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The method and URL for messages.
    pub(super) fn parts(&self) -> (&str, &str) {
        self.text.split_once(' ').unwrap_or_default()
    }

    pub(super) fn registry(&self) -> &str {
        &self.registry
    }

    /// `HOST` or `HOST:PORT` of the URL.
    fn server(&self) -> &str {
        let (_, url) = self.parts();
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        rest.split('/').next().unwrap_or_default()
    }
}

impl fmt::Display for RequestLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A URL for messages: without user, query (which has the signature of signed URLs) and fragment.
pub(super) fn shown(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let path: String = url.path().chars().take(300).collect();
    format!("{}://{}{port}{path}", url.scheme(), url.host_str().unwrap_or_default())
}

/// The status of an HTTP response, shown with its name: `404 Not Found`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub(super) StatusCode);

impl Status {
    /// For clients of other services that use the same HTTP library.
    #[doc(hidden)]
    pub fn new(status: StatusCode) -> Status {
        Status(status)
    }

    /// The status code.
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
    #[error("the client certificate is for another key")]
    ClientKey,
    #[error("{path} {what}", path = .path.display())]
    CertsD { path: PathBuf, what: &'static str },
    #[error("{path}: {what}", path = .path.display())]
    Hosts { path: PathBuf, what: String },
    #[error("{path} cannot be read", path = .path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("cannot set up TLS")]
    Tls(#[source] Cause),
    #[error("cannot set up HTTP")]
    Http(#[source] Cause),

    /// `realm` is the host of the token service if it is not the registry's.
    #[error("cannot get a token for {registry}")]
    Token { registry: Arc<str>, realm: Option<String>, source: Box<RegistryError> },
    /// The registry redirects to a place that the client must not contact.
    #[error("{line}: it points to {to}: {reason}")]
    Detour { line: RequestLine, to: String, reason: &'static str },

    #[error("{line}")]
    Proxy { line: RequestLine, source: ProxyError },
    #[error("{line}")]
    Transport { line: RequestLine, source: TransportError },
    #[error("{line}: {awaited} did not arrive within {} s", .within.as_secs_f32())]
    Timeout { line: RequestLine, awaited: &'static str, within: Duration },
    #[error("{line}: slower than {slowest} bytes a second")]
    Slow { line: RequestLine, slowest: u64 },
    /// The request used plain HTTP.
    #[error("{line}: the server speaks TLS")]
    SpeaksTls { line: RequestLine },
    #[error("{0}")]
    Answer(Box<Answer>),
    #[error("gave up after {tries} tries")]
    GaveUp { tries: u32, source: Box<RegistryError> },

    /// The response violates the distribution spec.
    #[error("{line}: {what}")]
    Protocol { line: RequestLine, what: String },
    /// `reads` is how many times it was read: what may have been damaged on the way is read once
    /// more.
    #[error("{line}: the answer is not the expected JSON{}", read_times(*.reads))]
    Json { line: RequestLine, source: JsonFault, reads: u32 },
    #[error("{line}: the answer is larger than {}", exact_size(*limit))]
    TooLarge { line: RequestLine, limit: u64 },
    /// `reads` as above.
    #[error("{line}: the content has the digest {found}, not {expected}{}", read_times(*.reads))]
    Digest { line: RequestLine, expected: Box<Digest>, found: Box<Digest>, reads: u32 },
    /// `reads` as above.
    #[error("{line}: the content has the digest {found}, which the registry does not know{}", read_times(*.reads))]
    UnknownDigest { line: RequestLine, found: Box<Digest>, reads: u32 },
    #[error("{line}: the content has {found} bytes, not {expected}")]
    Size { line: RequestLine, expected: u64, found: u64 },
    /// The content does not match its descriptor. Nothing was sent.
    #[error("the content for {digest} ({expected} bytes) is something else ({found} bytes)")]
    Content { digest: Digest, expected: u64, found: u64 },
    /// The uploaded content does not match its descriptor. The registry was not told to keep it.
    #[error("the content for {expected} is {found}")]
    Blob { expected: Box<Digest>, found: Box<Digest> },
    #[error("blob {digest} has {size} bytes; the limit is {}", exact_size(*limit))]
    BlobTooLarge { digest: Digest, size: u64, limit: u64 },
    #[error("the registry lost the upload of {digest} {times} times")]
    UploadLost { digest: Digest, times: u32, source: Box<RegistryError> },
    #[error("referrers tag {tag} in {repository}: {reason}")]
    FallbackTag { repository: String, tag: String, reason: String },
}

impl RegistryError {
    /// The status of the registry's (or its token service's) response, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self.root() {
            RegistryError::Answer(answer) => Some(answer.status.as_u16()),
            _ => None,
        }
    }

    /// The registry as the user named it.
    pub fn host(&self) -> Option<&str> {
        match self {
            RegistryError::Token { registry, .. } => Some(registry),
            RegistryError::GaveUp { source, .. } | RegistryError::UploadLost { source, .. } => {
                source.host()
            }
            _ => self.line().map(RequestLine::registry),
        }
    }

    /// The server that failed, as `HOST` or `HOST:PORT`, if it is another one than the registry:
    /// the target of a redirect, the place of an upload, or the token service.
    pub fn elsewhere(&self) -> Option<&str> {
        self.root().line().filter(|line| line.is_elsewhere).map(RequestLine::server)
    }

    /// It is about the token that the request needs, which gets the login wherever it comes from.
    pub fn is_about_a_token(&self) -> bool {
        match self {
            RegistryError::GaveUp { source, .. } | RegistryError::UploadLost { source, .. } => {
                source.is_about_a_token()
            }
            RegistryError::Token { .. } => true,
            _ => false,
        }
    }

    fn line(&self) -> Option<&RequestLine> {
        match self {
            RegistryError::Detour { line, .. }
            | RegistryError::Proxy { line, .. }
            | RegistryError::SpeaksTls { line }
            | RegistryError::Transport { line, .. }
            | RegistryError::Timeout { line, .. }
            | RegistryError::Slow { line, .. }
            | RegistryError::Protocol { line, .. }
            | RegistryError::Json { line, .. }
            | RegistryError::TooLarge { line, .. }
            | RegistryError::Digest { line, .. }
            | RegistryError::UnknownDigest { line, .. }
            | RegistryError::Size { line, .. } => Some(line),
            RegistryError::Answer(answer) => Some(&answer.line),
            _ => None,
        }
    }

    /// The registry requires credentials, or rejected the given ones (401).
    pub fn is_unauthorized(&self) -> bool {
        self.status() == Some(401)
    }

    /// The login does not suffice (401 or 403). Some registries say this of what does not exist.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.status(), Some(401 | 403))
    }

    /// The content does not exist (404).
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// A manifest was refused because a blob that it names does not exist. Push the blob with
    /// [`push_blob_unchecked`](super::Repository::push_blob_unchecked) and try again.
    pub fn is_blob_unknown(&self) -> bool {
        self.has_code("MANIFEST_BLOB_UNKNOWN") || self.has_code("BLOB_UNKNOWN")
    }

    /// The credentials that the registry or its token service rejected (401), if any were sent.
    pub fn rejected(&self) -> Option<CredentialOrigin> {
        match self.root() {
            RegistryError::Answer(answer) if answer.status == StatusCode::UNAUTHORIZED => {
                answer.search.shown.as_ref().map(|shown| shown.origin)
            }
            _ => None,
        }
    }

    /// Where the rejected credentials were found: a file, a variable or a credential helper.
    pub fn rejected_place(&self) -> Option<&str> {
        match self.root() {
            RegistryError::Answer(answer) => {
                answer.search.shown.as_ref().map(|shown| &*shown.place)
            }
            _ => None,
        }
    }

    /// The host of the token service, if another host than the registry's responded.
    pub fn token_service(&self) -> Option<&str> {
        match self {
            RegistryError::GaveUp { source, .. } | RegistryError::UploadLost { source, .. } => {
                source.token_service()
            }
            RegistryError::Token { realm, .. } => realm.as_deref(),
            _ => None,
        }
    }

    /// Why the registry's certificate is not trusted, if that is the fault.
    pub fn untrusted(&self) -> Option<CertificateFault> {
        match self.transport()?.kind {
            TransportKind::Certificate(why) => Some(why),
            _ => None,
        }
    }

    /// The registry requires a client certificate, or rejected the given one. nginx says so in a
    /// page with status 400.
    pub fn wants_client_certificate(&self) -> bool {
        match self.root() {
            RegistryError::Answer(answer) => {
                answer.status == StatusCode::BAD_REQUEST
                    && answer.codes.is_empty()
                    && answer.message.contains("SSL certificate")
            }
            _ => self
                .transport()
                .is_some_and(|transport| transport.kind == TransportKind::ClientCertificate),
        }
    }

    /// The server does not use TLS, but most likely plain HTTP.
    pub fn is_not_tls(&self) -> bool {
        self.transport().is_some_and(|transport| transport.kind == TransportKind::NotTls)
    }

    /// The request used plain HTTP, and the server uses TLS or rejected plain HTTP (400) without
    /// another reason.
    pub fn is_not_plain_http(&self) -> bool {
        match self.root() {
            RegistryError::SpeaksTls { .. } => true,
            // A server that wants TLS does not know the error codes of registries.
            RegistryError::Answer(answer) => {
                let message = answer.message.to_ascii_lowercase();
                let gives_no_reason =
                    matches!(message.as_str(), "" | "bad request" | "400 bad request");
                let is_about_tls =
                    ["https", "ssl", "tls"].iter().any(|word| message.contains(word));
                answer.status == StatusCode::BAD_REQUEST
                    && answer.line.text.contains(" http://")
                    && answer.codes.is_empty()
                    && (gives_no_reason || is_about_tls)
            }
            _ => false,
        }
    }

    /// The method of the refused request.
    pub fn refused_method(&self) -> Option<&str> {
        match self.root() {
            RegistryError::Answer(answer) => Some(answer.line.parts().0),
            _ => None,
        }
    }

    /// The URL of the refused request.
    pub fn url(&self) -> Option<&str> {
        match self.root() {
            RegistryError::Answer(answer) => Some(answer.line.parts().1),
            _ => None,
        }
    }

    /// The connection could not be established.
    pub fn is_unreachable(&self) -> bool {
        self.root().is_connect()
    }

    /// Nothing listens on the port of this machine.
    pub fn has_no_listener(&self) -> bool {
        self.transport().is_some_and(|transport| transport.kind == TransportKind::NoListener)
    }

    /// The proxy of the failed request, without user and password, and the variable that names it.
    pub fn proxy(&self) -> Option<&str> {
        self.transport()?.proxy.as_deref()
    }

    /// The proxy requires a user and a password (407).
    pub fn is_proxy_login(&self) -> bool {
        self.status() == Some(407)
            || self.transport().is_some_and(|transport| transport.kind == TransportKind::ProxyLogin)
    }

    /// The proxy refuses to connect to the registry.
    pub fn is_refused_by_proxy(&self) -> bool {
        let kind = self.transport().map(|transport| transport.kind);
        matches!(kind, Some(TransportKind::Tunnel(Some(_))))
    }

    /// The environment variable that names a proxy that cannot be used.
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

    /// The credential helper that failed, so that the request was refused, by its name in docker's
    /// configuration.
    pub fn helper(&self) -> Option<(&str, &HelperError)> {
        let RegistryError::Answer(answer) = self.root() else { return None };
        answer.search.failures.iter().find_map(|failure| match &**failure {
            CredentialError::Helper { name, source } => Some((&**name, source)),
            _ => None,
        })
    }

    /// Whether the registry gives another reason than that it does not know the repository, the
    /// manifest or the blob, such as `MANIFEST_BLOB_UNKNOWN`.
    pub fn is_for_another_reason(&self) -> bool {
        const NAMES: [&str; 6] = [
            "NAME_UNKNOWN",
            "NAME_INVALID",
            "MANIFEST_UNKNOWN",
            "BLOB_UNKNOWN",
            "NOT_FOUND",
            "UNKNOWN",
        ];
        let RegistryError::Answer(answer) = self.root() else { return false };
        answer.codes.first().is_some_and(|code| {
            !NAMES.contains(&code.as_str()) && code.to_ascii_uppercase() == *code
        })
    }

    /// Whether the registry's message has one of these words.
    pub fn says(&self, words: &[&str]) -> bool {
        let RegistryError::Answer(answer) = self.root() else { return false };
        let message = answer.message.to_ascii_lowercase();
        words.iter().any(|word| message.contains(word))
    }

    /// Whether the answer to a GET has no code of an error, as that of another web server.
    pub fn is_without_code(&self) -> bool {
        let RegistryError::Answer(answer) = self.root() else { return false };
        answer.codes.is_empty() && self.refused_method() == Some("GET")
    }

    /// Whether the registry says that it does not know the repository (`NAME_UNKNOWN`).
    pub fn is_name_unknown(&self) -> bool {
        self.has_code("NAME_UNKNOWN")
    }

    /// The repository whose tag the registry does not know (`MANIFEST_UNKNOWN`), after the
    /// registry's name.
    pub fn repository_without_tag(&self) -> Option<String> {
        let (_, path) = self.url()?.split_once("/v2/")?;
        let (repository, reference) = path.split_once("/manifests/")?;
        if reference.contains(':') || !self.has_code("MANIFEST_UNKNOWN") {
            return None;
        }
        Some(format!("{}/{repository}", self.host()?))
    }

    /// Whether the response has this error code of the distribution spec.
    pub(super) fn has_code(&self, code: &str) -> bool {
        matches!(self.root(), RegistryError::Answer(answer) if answer.codes.iter().any(|c| c == code))
    }

    /// Whether a retry may help.
    pub(super) fn calls_for_retry(&self) -> bool {
        match self {
            RegistryError::Timeout { .. } | RegistryError::Slow { .. } => true,
            RegistryError::Transport { source, .. } => {
                source.kind.is_lost() || source.kind == TransportKind::Broken
            }
            RegistryError::Answer(answer) => is_transient_status(answer.status),
            _ => false,
        }
    }

    /// The content is not what was requested: it has another size or digest, or is too long.
    pub fn is_other_content(&self) -> bool {
        matches!(
            self,
            RegistryError::Digest { .. }
                | RegistryError::UnknownDigest { .. }
                | RegistryError::Blob { .. }
                | RegistryError::Size { .. }
                | RegistryError::TooLarge { .. }
                | RegistryError::BlobTooLarge { .. }
        )
    }

    /// Whether the operation may succeed later: the registry was not reachable, was busy, or closed
    /// the connection, or another client was faster.
    pub fn is_transient(&self) -> bool {
        match self {
            RegistryError::UploadLost { .. } | RegistryError::FallbackTag { .. } => true,
            _ => self.root().calls_for_retry(),
        }
    }

    /// The connection could not be established, so the request had no effect.
    pub(super) fn is_connect(&self) -> bool {
        matches!(self, RegistryError::Transport { source, .. } if source.kind.is_lost())
    }

    /// The host name cannot be resolved.
    pub(super) fn is_unresolved(&self) -> bool {
        matches!(self, RegistryError::Transport { source, .. } if source.kind == TransportKind::Unresolved)
    }

    /// The connection ended before the response arrived.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self, RegistryError::Transport { source, .. } if source.kind == TransportKind::Broken)
    }

    /// The wait that the registry requests.
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

/// An error response of the registry.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(super) line: RequestLine,
    pub(super) status: StatusCode,
    /// The error codes of the distribution spec ("Error Codes") in the response.
    pub(super) codes: Vec<String>,
    /// The registry's message: one line, cut and escaped; may be empty.
    pub(super) message: String,
    pub(super) retry_after: Option<Duration>,
    pub(super) search: LoginSearch,
}

/// The login of a request that was refused.
#[derive(Debug, Clone, Default)]
pub(super) struct LoginSearch {
    /// The credentials that it carried.
    pub shown: Option<ShownLogin>,
    /// The places that might have had other ones, but could not be read.
    pub failures: Vec<Arc<CredentialError>>,
}

/// The credentials that a registry received.
#[derive(Debug, Clone)]
pub(super) struct ShownLogin {
    pub origin: CredentialOrigin,
    /// Where they were found.
    pub place: Arc<str>,
}

/// The source of the credentials that a registry received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialOrigin {
    /// The caller of the client.
    Given,
    /// A stored login.
    Stored,
    /// Either of these. The token service accepted them and issued a token, which is not
    /// sufficient.
    Granted,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.status)?;
        if let Some(code) = self.codes.first() {
            write!(f, " {code}")?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        if let Some(wait) = self.retry_after {
            write!(f, " (asks to wait {} s)", wait.as_secs())?;
        }
        if !self.search.failures.is_empty() {
            let all: Vec<_> =
                self.search.failures.iter().take(4).map(|failure| causes(failure)).collect();
            write!(f, " (not all logins could be read: {})", all.join("; "))?;
        }
        Ok(())
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
    fn urls_are_shown_without_secrets() {
        let url = Url::parse("https://u:pw@h.example:8443/v2/a/blobs/x?X-Amz-Signature=s3cret#f")
            .unwrap();
        assert_eq!(shown(&url), "https://h.example:8443/v2/a/blobs/x");
    }
}
