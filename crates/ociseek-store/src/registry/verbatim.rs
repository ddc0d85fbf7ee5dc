//! Requests for a URL exactly as a server wrote it.
//!
//! [`Url`] follows browsers: it resolves `%2e%2e` in a path, and encodes `'` in a query. Go's
//! programs send both as they are, and a signature may cover the text. reqwest takes only a
//! [`Url`], so such a request has a connection of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use reqwest::Method;
use reqwest::dns::Resolve;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::{Host, Position, Url};

use super::address_filter::Resolver;

/// What Go encodes in a path.
const ENCODED: &[char] = &[' ', '"', '<', '>', '\\', '^', '`', '{', '|', '}'];

/// The path and query of `location` as Go sends them, if they are not those of the URL that it was
/// resolved to.
pub(super) fn target(location: &str, resolved: &Url) -> Option<PathAndQuery> {
    let location = location.split('#').next()?;
    let after_scheme = ["http:", "https:"].iter().find_map(|scheme| {
        let (start, rest) = location.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    let rest = after_scheme.unwrap_or(location);
    let target = match rest.strip_prefix("//") {
        Some(rest) => &rest[rest.find(['/', '?'])?..],
        None if after_scheme.is_none() && rest.starts_with('/') => rest,
        // It continues the path of the request.
        None => return None,
    };
    let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
    let is_plain = !path.contains(ENCODED) && path.split('/').all(|it| it != "." && it != "..");
    let path = if is_plain && !path.is_empty() { path } else { resolved.path() };
    let target = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    (target != resolved[Position::BeforePath..Position::AfterQuery]).then_some(())?;
    target.parse().ok()
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Sends a request without a body to the host of `url`, and receives the headers of the response.
/// None for any failure: the caller sends the request as it usually does, and reports that.
pub(super) async fn send(
    method: &Method,
    (url, target): (&Url, &PathAndQuery),
    headers: HeaderMap,
    tls: &Arc<rustls::ClientConfig>,
    (resolver, limit): (&Resolver, Duration),
) -> Option<reqwest::Response> {
    let stream = tokio::time::timeout(limit, connect(url, tls, resolver)).await.ok()??;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    let mut request = hyper::Request::new(reqwest::Body::from(Bytes::new()));
    *request.method_mut() = method.clone();
    *request.uri_mut() = target.clone().into();
    *request.headers_mut() = headers;
    let host = &url[Position::BeforeHost..Position::AfterPort];
    request.headers_mut().insert(HOST, HeaderValue::try_from(host).ok()?);
    let response = sender.send_request(request).await.ok()?;
    Some(response.map(reqwest::Body::wrap).into())
}

async fn connect(
    url: &Url,
    tls: &Arc<rustls::ClientConfig>,
    resolver: &Resolver,
) -> Option<Box<dyn Stream>> {
    let port = url.port_or_known_default()?;
    let addresses: Vec<SocketAddr> = match url.host()? {
        Host::Ipv4(ip) => vec![(ip, port).into()],
        Host::Ipv6(ip) => vec![(ip, port).into()],
        Host::Domain(name) => {
            let found = resolver.resolve(name.parse().ok()?).await.ok()?;
            found.map(|address| (address.ip(), port).into()).collect()
        }
    };
    let stream = TcpStream::connect(&addresses[..]).await.ok()?;
    if url.scheme() == "http" {
        return Some(Box::new(stream));
    }
    let name = url.host_str()?.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(name).ok()?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await.ok()?;
    Some(Box::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_sends() {
        for (location, sent) in [
            ("https://s.example/a/%2e%2e/b?x=1", Some("/a/%2e%2e/b?x=1")),
            ("https://s.example/%2E/b", Some("/%2E/b")),
            ("https://s.example/b?name='a b'", None),
            ("https://s.example/b?name='a'&c=%27", Some("/b?name='a'&c=%27")),
            ("HTTPS://s.example/b?name='a'#part", Some("/b?name='a'")),
            ("//s.example/b?name='a'", Some("/b?name='a'")),
            ("/b?name='a'", Some("/b?name='a'")),
            ("https://s.example?name='a'", Some("/?name='a'")),
            ("b?name='a'", None),
            ("?name='a'", None),
            ("https:b?name='a'", None),
            // The same as the URL.
            ("https://s.example/b%2Fc%2f/d'e/~f?x=%2F+%20~!*()", None),
            ("https://s.example/a/../b", None),
            ("https://s.example", None),
            // The path is the URL's, as Go encodes it, too.
            ("https://s.example/{a}?b='", Some("/%7Ba%7D?b='")),
        ] {
            let resolved = Url::parse("https://s.example/v2/a/blobs/x").unwrap();
            let resolved = resolved.join(location).unwrap();
            let found = target(location, &resolved);
            assert_eq!(found.as_ref().map(PathAndQuery::as_str), sent, "{location}: {resolved}");
        }
    }
}
