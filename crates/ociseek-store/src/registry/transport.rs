//! Why a request got no response: the kind of failure, and its cause in words, as text that is safe
//! for a terminal.

use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use reqwest::StatusCode;
use rustls::{AlertDescription, CertificateError};

use crate::x509::object_id;
use ociseek_format::printable::is_hostile;

/// Why there was no response, or only a part of it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}{text}", .proxy.as_ref().map(|proxy| format!("via the proxy {proxy}: ")).unwrap_or_default())]
pub struct TransportError {
    pub(super) kind: TransportKind,
    text: String,
    /// The proxy of the request, without user and password.
    pub(super) proxy: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransportKind {
    Connect,
    /// Nothing listens on the port of this machine.
    NoListener,
    /// The host name cannot be resolved.
    Unresolved,
    /// The server closed the connection during the TLS handshake.
    Dropped,
    /// The server's certificate is not trusted.
    Certificate(CertificateFault),
    /// The server requires a client certificate, or rejected the given one.
    ClientCertificate,
    /// The TLS handshake failed.
    Tls,
    /// The server does not use TLS.
    NotTls,
    /// The name resolves to an address that the client must not contact.
    Refused,
    /// The proxy requires a user and a password.
    ProxyLogin,
    /// The proxy refuses to connect to the host, with this status if it is known.
    Tunnel(Option<StatusCode>),
    Broken,
}

impl TransportKind {
    /// There was no connection, so the request had no effect.
    pub(super) fn is_lost(self) -> bool {
        match self {
            TransportKind::Connect
            | TransportKind::NoListener
            | TransportKind::Unresolved
            | TransportKind::Dropped => true,
            TransportKind::Tunnel(status) => status.is_none_or(is_transient_status),
            _ => false,
        }
    }
}

/// Temporary statuses: RFC 9110 section 15, RFC 6585 section 4, RFC 8470 section 5.2. Those of
/// proxies whose server does not answer: nginx's 499, and Cloudflare's from 520
/// (google/go-containerregistry#1707).
pub(super) fn is_transient_status(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429 | 499 | 500 | 502 | 503 | 504 | 520..=524 | 527 | 530)
}

/// Whether it is webpki's error for an authority's certificate that a server presents as its own.
/// Its type is not public.
pub(super) fn is_of_an_authority(error: &rustls::OtherError) -> bool {
    error.to_string().contains("CaUsedAsEndEntity")
}

/// Why a server's certificate is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateFault {
    /// It has expired.
    Expired,
    /// It is not valid yet, or this machine's clock is wrong.
    NotYetValid,
    /// It is for other hosts.
    Name,
    /// It was not signed by a trusted authority.
    Issuer {
        /// Whether the user gave authorities for this registry.
        given: bool,
    },
    /// It is an authority's own certificate, and not one that the user gave.
    Authority,
    /// Another reason.
    Other,
}

/// Further facts about a failed request.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestContext {
    pub proxy: Option<Arc<str>>,
    /// Whether the host is this machine.
    pub is_local: bool,
    /// Whether the user gave certificate authorities for this registry.
    pub own_authorities: bool,
}

impl TransportError {
    /// Joins the causes on one line, without outer ones that add nothing, and without URLs.
    pub(super) fn new(error: reqwest::Error, context: &RequestContext) -> TransportError {
        let error = error.without_url();
        let kind = if error.is_connect() { TransportKind::Connect } else { TransportKind::Broken };
        TransportError::of(&error, kind, std::error::Error::source(&error), context)
    }

    /// The exchange over a connection failed.
    pub(super) fn of_exchange(error: &hyper::Error, context: &RequestContext) -> TransportError {
        TransportError::of(error, TransportKind::Broken, Some(error), context)
    }

    /// An error of this kind, unless its causes, which begin with `next`, say more.
    fn of(
        error: &dyn std::error::Error,
        mut kind: TransportKind,
        mut next: Option<&(dyn std::error::Error + 'static)>,
        context: &RequestContext,
    ) -> TransportError {
        let mut causes: Vec<String> = Vec::new();
        while let Some(cause) = next {
            if cause.is::<super::address_filter::RefusedAddress>() {
                kind = TransportKind::Refused;
            }
            if cause.is::<super::address_filter::UnresolvedName>() {
                kind = TransportKind::Unresolved;
                // "dns error: error resolving DNS" adds nothing.
                causes.clear();
            }
            if kind == TransportKind::Connect && cause.downcast_ref().is_some_and(is_hang_up) {
                kind = TransportKind::Dropped;
            }
            if kind == TransportKind::Connect
                && context.is_local
                && cause.downcast_ref::<io::Error>().is_some_and(is_refused)
            {
                kind = TransportKind::NoListener;
            }
            let text = cause.to_string();
            // The types of these errors are not public.
            match text.strip_prefix("tunnel error: ") {
                Some("proxy authorization required") => kind = TransportKind::ProxyLogin,
                Some("unsuccessful") => kind = TransportKind::Tunnel(None),
                _ => {}
            }
            if let Some(tls) = rustls_error(cause) {
                let (kind, text) = of_tls(tls, context);
                return TransportError { kind, text, proxy: context.proxy.clone() };
            }
            causes.push(text);
            next = cause.source();
        }
        let outer = causes.iter().take_while(|cause| cause.starts_with("client error (")).count();
        causes.drain(..outer.min(causes.len().saturating_sub(1)));
        causes.dedup();
        let text = if causes.is_empty() { error.to_string() } else { causes.join(": ") };
        TransportError { kind, text: one_line(&text, 300), proxy: context.proxy.clone() }
    }

    /// The proxy refused a tunnel with this status.
    pub(super) fn with_tunnel_status(self, status: StatusCode) -> TransportError {
        let kind = TransportKind::Tunnel(Some(status));
        let text = format!("it refuses to connect to the host: {status}");
        TransportError { kind, text, ..self }
    }

    pub(super) fn broken(text: &str) -> TransportError {
        TransportError { kind: TransportKind::Broken, text: text.to_owned(), proxy: None }
    }
}

/// Errors of a server that rejects our first bytes, or that goes away at that moment.
fn is_hang_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

/// The TLS error in an error. An io::Error hides the error it wraps from `source()`, and may wrap
/// another one.
fn rustls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    match error.downcast_ref::<io::Error>() {
        Some(io) => io.get_ref().and_then(|inner| rustls_error(inner)),
        None => error.downcast_ref(),
    }
}

/// Rephrases rustls's errors, which are written for programmers.
fn of_tls(error: &rustls::Error, context: &RequestContext) -> (TransportKind, String) {
    use rustls::Error;
    match error {
        Error::InvalidMessage(_) => {
            (TransportKind::NotTls, "the server does not speak TLS".to_owned())
        }
        Error::InvalidCertificate(error) => {
            let (why, text) = of_certificate(error, context);
            (TransportKind::Certificate(why), text)
        }
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::PeerIncompatible(_) => {
            (TransportKind::Tls, "no TLS version (1.2 or 1.3) or cipher in common".to_owned())
        }
        other => (TransportKind::Tls, one_line(&other.to_string(), 300)),
    }
}

fn of_alert(alert: AlertDescription) -> (TransportKind, String) {
    use AlertDescription as Alert;
    match alert {
        Alert::CertificateRequired => {
            (TransportKind::ClientCertificate, "it requires a client certificate".to_owned())
        }
        // TLS 1.2 has no other alert for a missing certificate.
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied => (
            TransportKind::ClientCertificate,
            format!("it rejected the client certificate, or requires one ({alert:?})"),
        ),
        Alert::ProtocolVersion => {
            (TransportKind::Tls, "it speaks neither TLS 1.2 nor TLS 1.3".to_owned())
        }
        Alert::HandshakeFailure => (
            TransportKind::Tls,
            "no cipher in common, or it requires a client certificate".to_owned(),
        ),
        other => (TransportKind::Tls, format!("it aborted the TLS handshake ({other:?})")),
    }
}

fn of_certificate(
    error: &CertificateError,
    context: &RequestContext,
) -> (CertificateFault, String) {
    let date = |seconds: u64| {
        httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds.min(1 << 37)))
    };
    match error {
        CertificateError::ExpiredContext { not_after, .. } => (
            CertificateFault::Expired,
            format!("its certificate expired on {}", date(not_after.as_secs())),
        ),
        CertificateError::Expired => {
            (CertificateFault::Expired, "its certificate has expired".to_owned())
        }
        CertificateError::NotValidYetContext { not_before, .. } => (
            CertificateFault::NotYetValid,
            format!("its certificate is not valid before {}", date(not_before.as_secs())),
        ),
        CertificateError::NotValidYet => {
            (CertificateFault::NotYetValid, "its certificate is not valid yet".to_owned())
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented: Vec<&str> = presented.iter().map(|name| plain_name(name)).collect();
            let names =
                if presented.is_empty() { "no host".to_owned() } else { presented.join(", ") };
            let text = format!("its certificate is for {names}, not for {}", expected.to_str());
            (CertificateFault::Name, one_line(&text, 300))
        }
        CertificateError::NotValidForName => {
            (CertificateFault::Name, "its certificate is for another host".to_owned())
        }
        CertificateError::UnknownIssuer => {
            let why = CertificateFault::Issuer { given: context.own_authorities };
            (why, "its certificate is not signed by a trusted authority".to_owned())
        }
        CertificateError::BadSignature => {
            let why = CertificateFault::Issuer { given: context.own_authorities };
            let text = "its certificate is not signed by the authority it names, or with an RSA key of \
                        less than 2048 bits";
            (why, text.to_owned())
        }
        // The trusted authority of that name has another kind of key.
        CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            let why = CertificateFault::Issuer { given: context.own_authorities };
            (why, "its certificate is not signed by the authority it names".to_owned())
        }
        CertificateError::UnsupportedSignatureAlgorithmContext {
            signature_algorithm_id: id,
            ..
        } => {
            let name = object_id(id).unwrap_or_default();
            let text = format!(
                "its certificate is signed with an algorithm that is not supported ({name})"
            );
            (CertificateFault::Other, text)
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            (CertificateFault::Other, "its certificate is not a server certificate".to_owned())
        }
        CertificateError::Other(other) if is_of_an_authority(other) => (
            CertificateFault::Authority,
            "it presents the certificate of a certificate authority (CA:TRUE) as its own"
                .to_owned(),
        ),
        CertificateError::BadEncoding => {
            (CertificateFault::Other, "its certificate cannot be read".to_owned())
        }
        _ => (CertificateFault::Other, "its certificate cannot be verified".to_owned()),
    }
}

/// webpki writes the name x as `DnsName("x")`, and the address x as `IpAddress(x)`.
fn plain_name(presented: &str) -> &str {
    let inner = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(presented).trim_matches('"')
}

/// The first line of untrusted text, escaped, with at most `limit` characters.
pub(super) fn one_line(text: &str, limit: usize) -> String {
    let line = text.trim_start().lines().next().unwrap_or_default().trim_end();
    let mut cut: String = line.chars().take(limit).flat_map(escaped).collect();
    if line.chars().nth(limit).is_some() {
        cut.push('…');
    }
    cut
}

/// Escapes what must not reach a terminal.
fn escaped(c: char) -> Box<dyn Iterator<Item = char>> {
    if is_hostile(c) { Box::new(c.escape_unicode()) } else { Box::new(std::iter::once(c)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_becomes_one_harmless_line() {
        assert_eq!(one_line("\n  a\u{1b}[31mb\r\nsecond", 80), "a\\u{1b}[31mb");
        assert_eq!(one_line(&"x".repeat(500), 10), format!("{}…", "x".repeat(10)));
        assert_eq!(one_line("", 10), "");
    }
}
