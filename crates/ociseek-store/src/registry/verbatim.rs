//! Requests for a URL exactly as a server wrote it.
//!
//! [`Url`] follows browsers: it resolves `%2e%2e` in a path, and encodes `'` in a query. Go's
//! programs send both as they are, and a signature may cover the text. reqwest takes only a
//! [`Url`], so such a request has a connection of its own.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap, HeaderValue, PROXY_AUTHORIZATION};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV4, SocksV5};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use reqwest::Method;
use reqwest::dns::Resolve;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;
use url::{Host, Position, Url};

use super::address_filter::Resolver;
use super::proxy::Proxy;

/// The most header lines of an answer. Go counts their bytes alone.
pub(super) const HEADERS: usize = 500;
/// What Go leaves in a path. One with another character is decoded and encoded
/// again (`URL.EscapedPath`).
const PLAIN: &[u8] = b"-_.~$&+,/:;=@!'()*[]%";
/// What Go encodes then.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// The path and query of `location` as Go sends them, if they are not those of the URL that it was
/// resolved to. `from` is the path of the request that it answers, as it was sent.
pub(super) fn target(location: &str, from: &str, resolved: &Url) -> Option<PathAndQuery> {
    let location = location.split('#').next()?;
    let after_scheme = ["http:", "https:"].iter().find_map(|scheme| {
        let (start, rest) = location.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    let rest = after_scheme.unwrap_or(location);
    let (from, target) = match rest.strip_prefix("//") {
        Some(rest) => ("", rest.find(['/', '?']).map_or("", |start| &rest[start..])),
        None if after_scheme.is_none() && !rest.is_empty() => (from, rest),
        None => return None,
    };
    let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
    let path = resolve(&escape(from), &escape(path));
    let target = query.map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
    (target != resolved[Position::BeforePath..Position::AfterQuery]).then_some(())?;
    target.parse().ok()
}

fn escape(path: &str) -> Cow<'_, str> {
    if path.bytes().all(|byte| byte.is_ascii_alphanumeric() || PLAIN.contains(&byte)) {
        return path.into();
    }
    percent_encode(&Cow::from(percent_decode_str(path)), ENCODED).to_string().into()
}

/// A path relative to another one, without the segments `.` and `..` (RFC 3986 section 5.2). Those
/// that are encoded stay.
fn resolve(from: &str, path: &str) -> String {
    let folder = match path {
        "" => from,
        _ if path.starts_with('/') => "",
        _ => &from[..from.rfind('/').map_or(0, |slash| slash + 1)],
    };
    let full = format!("{folder}{path}");
    let mut segments: Vec<&str> = Vec::new();
    let all = full.strip_prefix('/').unwrap_or(&full);
    for segment in all.split('/') {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    if all.ends_with("/.") || all.ends_with("/..") {
        segments.push("");
    }
    format!("/{}", segments.join("/"))
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// How a request gets to its host.
pub(super) struct Route<'a> {
    pub proxy: Option<&'a Proxy>,
    pub resolver: &'a Resolver,
    pub tls: &'a Arc<rustls::ClientConfig>,
    /// Without the registry's client certificate.
    pub proxy_tls: &'a Arc<rustls::ClientConfig>,
}

/// A connection for one request.
pub(super) struct Connection {
    sender: http1::SendRequest<reqwest::Body>,
    to: Uri,
    headers: HeaderMap,
}

impl Connection {
    /// Connects to the host of `url`. None for any failure.
    pub(super) async fn open(
        url: &Url,
        target: &PathAndQuery,
        route: &Route<'_>,
    ) -> Option<Connection> {
        let (stream, forwards) = route.connect(url).await?;
        let (sender, connection) = http1::Builder::new()
            .max_headers(HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .ok()?;
        tokio::spawn(connection);
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let mut headers = HeaderMap::from_iter([(HOST, HeaderValue::try_from(host).ok()?)]);
        let mut to = Uri::from(target.clone()).into_parts();
        if forwards {
            to.scheme = Some(url.scheme().parse().ok()?);
            to.authority = Some(host.parse().ok()?);
            if let Some(login) = route.proxy.and_then(Proxy::authorization) {
                headers.insert(PROXY_AUTHORIZATION, HeaderValue::try_from(login).ok()?);
            }
        }
        Some(Connection { sender, to: Uri::from_parts(to).ok()?, headers })
    }

    /// Sends the request, and receives the headers of the response.
    pub(super) async fn send(
        mut self,
        method: Method,
        headers: HeaderMap,
        body: reqwest::Body,
    ) -> hyper::Result<reqwest::Response> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = self.to;
        *request.headers_mut() = headers;
        request.headers_mut().extend(self.headers);
        let response = self.sender.send_request(request).await?;
        Ok(response.map(reqwest::Body::wrap).into())
    }
}

impl Route<'_> {
    /// A stream to the host of `url`, and whether it leads to a proxy that forwards requests.
    async fn connect(&self, url: &Url) -> Option<(Box<dyn Stream>, bool)> {
        let is_tls = url.scheme() == "https";
        let (stream, forwards) = match self.proxy {
            None => (self.direct(url).await?, false),
            Some(proxy) if proxy.url.scheme().starts_with("socks") => {
                (self.by_socks(proxy, url).await?, false)
            }
            Some(proxy) => {
                let stream = Box::new(proxy.connect().await?);
                let is_tls_proxy = proxy.url.scheme() == "https";
                let mut stream: Box<dyn Stream> = if is_tls_proxy {
                    over_tls(&proxy.url, stream, self.proxy_tls).await?
                } else {
                    stream
                };
                if is_tls && !proxy.ask_for_tunnel(&mut stream, url).await?.is_success() {
                    return None;
                }
                (stream, !is_tls)
            }
        };
        let stream = if is_tls { over_tls(url, stream, self.tls).await? } else { stream };
        Some((stream, forwards))
    }

    async fn addresses(&self, url: &Url) -> Option<Vec<SocketAddr>> {
        let port = url.port_or_known_default()?;
        Some(match url.host()? {
            Host::Ipv4(ip) => vec![(ip, port).into()],
            Host::Ipv6(ip) => vec![(ip, port).into()],
            Host::Domain(name) => {
                let addresses = self.resolver.resolve(name.parse().ok()?).await.ok()?;
                addresses.map(|address| (address.ip(), port).into()).collect()
            }
        })
    }

    async fn direct(&self, url: &Url) -> Option<Box<dyn Stream>> {
        let addresses = self.addresses(url).await?;
        Some(Box::new(TcpStream::connect(&addresses[..]).await.ok()?))
    }

    async fn by_socks(&self, proxy: &Proxy, url: &Url) -> Option<Box<dyn Stream>> {
        // As reqwest does it: without a letter at the end, names are resolved here.
        let host = match proxy.url.scheme() {
            "socks4" | "socks5" => self.addresses(url).await?.first()?.to_string(),
            _ => format!("{}:{}", url.host_str()?, url.port_or_known_default()?),
        };
        let to: Uri = format!("{}://{host}", url.scheme()).parse().ok()?;
        let mut by = proxy.url.clone();
        if by.port().is_none() {
            // The connector's default is that of HTTP.
            by.set_port(Some(1080)).ok()?;
        }
        let by: Uri = by.as_str().parse().ok()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let stream = if proxy.url.scheme().starts_with("socks4") {
            SocksV4::new(by, tcp).call(to).await.ok()?
        } else {
            let socks = SocksV5::new(by, tcp);
            let mut socks = match proxy.login() {
                Some((user, password)) => socks.with_auth(user, password),
                None => socks,
            };
            socks.call(to).await.ok()?
        };
        Some(Box::new(stream.into_inner()))
    }
}

/// The stream through TLS with the host of `url`.
async fn over_tls(
    url: &Url,
    stream: Box<dyn Stream>,
    config: &Arc<rustls::ClientConfig>,
) -> Option<Box<dyn Stream>> {
    let name = url.host_str()?.trim_matches(['[', ']']).to_owned();
    let connector = TlsConnector::from(Arc::clone(config));
    let stream = connector.connect(ServerName::try_from(name).ok()?, stream).await.ok()?;
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
            ("b?name='a'", Some("/v2/a/blobs/b?name='a'")),
            ("?name='a'", Some("/v2/a/blobs/x?name='a'")),
            ("../%2e%2e/b?c='", Some("/v2/a/%2e%2e/b?c='")),
            ("./b/%2E/.?c=%27", Some("/v2/a/blobs/b/%2E/?c=%27")),
            ("%2e/b", Some("/v2/a/blobs/%2e/b")),
            ("https:b?name='a'", None),
            // The same as the URL.
            ("https://s.example/b%2Fc%2f/d'e/~f?x=%2F+%20~!*()", None),
            ("https://s.example/a/../b", None),
            ("https://s.example", None),
            ("../b?c=%2F", None),
            ("", None),
            // Segments that are not encoded are resolved.
            ("https://s.example/a/../b/%2e%2e/c/./d", Some("/b/%2e%2e/c/d")),
            ("/../../a/%2e/..", Some("/a/")),
            // A path that cannot be sent is encoded as Go does it.
            ("https://s.example/{a}?b='", Some("/%7Ba%7D?b='")),
            ("https://s.example/{a}'%2f?b", Some("/%7Ba%7D%27/?b")),
            ("https://s.example/a\\b", Some("/a%5Cb")),
            ("https://s.example/a^b|c", Some("/a%5Eb%7Cc")),
        ] {
            let resolved = Url::parse("https://s.example/v2/a/blobs/x").unwrap();
            let from = resolved.path().to_owned();
            let resolved = resolved.join(location).unwrap();
            let path = target(location, &from, &resolved);
            assert_eq!(path.as_ref().map(PathAndQuery::as_str), sent, "{location}: {resolved}");
        }
        // The next one is relative to what was sent.
        let resolved = Url::parse("https://s.example/v2/b").unwrap();
        let path = target("b", "/v2/%2e%2e/x", &resolved).unwrap();
        assert_eq!(path.as_str(), "/v2/%2e%2e/b");
    }
}
