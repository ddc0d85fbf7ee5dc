//! The proxies in the environment, with the rules of curl and of Go's net/http.
//!
//! A proxy that cannot be used is an error, because a user who sets one does not want direct
//! connections.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use reqwest::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use url::{Host, Url};

use super::address::is_loopback;

const SCHEMES: [&str; 6] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];

/// The proxy settings in the environment. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Proxies {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    http: Option<Result<Proxy, ProxyError>>,
    https: Option<Result<Proxy, ProxyError>>,
    direct: Vec<Rule>,
}

/// A proxy and the variable that names it. `Display` shows neither its user nor its password.
#[derive(Clone)]
pub(super) struct Proxy {
    pub url: Url,
    variable: &'static str,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        write!(
            f,
            "{}://{}{port} (${})",
            self.url.scheme(),
            self.url.host_str().unwrap_or_default(),
            self.variable
        )
    }
}

/// A variable does not contain a valid proxy. Messages do not include its value, which may contain
/// a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the proxy in ${variable} cannot be used: {reason}")]
pub struct ProxyError {
    /// The environment variable, such as `HTTPS_PROXY`.
    pub variable: &'static str,
    reason: &'static str,
}

impl Proxies {
    pub(super) fn of_environment() -> Proxies {
        Proxies::new(|name| std::env::var_os(name))
    }

    fn new(variable: impl Fn(&str) -> Option<OsString>) -> Proxies {
        let first = |names: &[&'static str]| {
            let set = |name: &&'static str| {
                Some((*name, variable(name).filter(|value| !value.is_empty())?))
            };
            names.iter().find_map(set)
        };
        let proxy =
            |names: &[&'static str]| first(names).map(|(name, value)| Proxy::parse(name, &value));
        // In a CGI program, HTTP_PROXY has the untrusted header `Proxy` of a request
        // (CVE-2016-5385).
        let cgi = variable("REQUEST_METHOD").is_some();
        let http = if cgi { &["http_proxy"][..] } else { &["HTTP_PROXY", "http_proxy"] };
        let all = || proxy(&["ALL_PROXY", "all_proxy"]);
        let direct =
            first(&["NO_PROXY", "no_proxy"]).map(|(_, value)| value.to_string_lossy().into_owned());
        let inner = Inner {
            http: proxy(http).or_else(all),
            https: proxy(&["HTTPS_PROXY", "https_proxy"]).or_else(all),
            direct: rules(&direct.unwrap_or_default()),
        };
        Proxies { inner: Arc::new(inner) }
    }

    /// The proxy for `url`. None for a direct connection, which hosts on this machine always get.
    pub(super) fn of(&self, url: &Url) -> Result<Option<&Proxy>, ProxyError> {
        let proxy = if url.scheme() == "http" { &self.inner.http } else { &self.inner.https };
        match proxy {
            Some(proxy)
                if !is_loopback(url) && !self.inner.direct.iter().any(|rule| rule.admits(url)) =>
            {
                proxy.as_ref().map(Some).map_err(|error| *error)
            }
            _ => Ok(None),
        }
    }
}

impl Proxy {
    fn parse(variable: &'static str, value: &OsString) -> Result<Proxy, ProxyError> {
        let wrong = |reason| ProxyError { variable, reason };
        let not_a_url = || wrong("it is not a URL such as http://HOST:PORT");
        let value = value.to_str().ok_or_else(not_a_url)?.trim();
        let url = if value.contains("://") {
            Url::parse(value)
        } else if value.trim_end_matches('/').contains('/') {
            // `http:/HOST` is a mistake, not a host named http.
            return Err(not_a_url());
        } else {
            Url::parse(&format!("http://{value}"))
        };
        let url = url.map_err(|_| not_a_url())?;
        if !SCHEMES.contains(&url.scheme()) {
            return Err(wrong("its scheme is not http, https, socks4, socks4a, socks5 or socks5h"));
        }
        // If its own parser is stricter than this one, the HTTP client would use no proxy.
        let known = url.as_str().parse::<hyper::Uri>().is_ok_and(|uri| uri.authority().is_some());
        if known && url.host_str().is_some_and(|host| !host.is_empty()) {
            Ok(Proxy { url, variable })
        } else {
            Err(not_a_url())
        }
    }
}

/// How long a proxy is asked for its status.
const STATUS_WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of a proxy's answer to CONNECT.
const ANSWER: usize = 16 << 10;

impl Proxy {
    /// The status with which the proxy refuses a tunnel to the host of `to`. The HTTP library does
    /// not return it, so the proxy is asked again. None if it speaks TLS or SOCKS.
    pub(super) async fn tunnel_status(&self, to: &Url) -> Option<StatusCode> {
        if self.url.scheme() != "http" {
            return None;
        }
        let ask = async { self.ask_for_tunnel(&mut self.connect().await?, to).await };
        let status = tokio::time::timeout(STATUS_WITHIN, ask).await.ok()??;
        (!status.is_success()).then_some(status)
    }

    /// A connection to the proxy itself.
    pub(super) async fn connect(&self) -> Option<TcpStream> {
        let port = self.url.port_or_known_default()?;
        let host = self.url.host_str()?.trim_matches(['[', ']']);
        TcpStream::connect((host, port)).await.ok()
    }

    /// Asks for a tunnel to the host of `to`, and returns the status of the answer.
    pub(super) async fn ask_for_tunnel(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        to: &Url,
    ) -> Option<StatusCode> {
        let target = format!("{}:{}", to.host_str()?, to.port_or_known_default()?);
        let login = self
            .authorization()
            .map(|login| format!("Proxy-Authorization: {login}\r\n"))
            .unwrap_or_default();
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
        let mut head = Vec::new();
        // What follows is the tunnel's.
        while !head.ends_with(b"\n\r\n") && !head.ends_with(b"\n\n") {
            if head.len() == ANSWER {
                return None;
            }
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8_lossy(&head);
        let status = head.lines().next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
        StatusCode::from_bytes(status.as_bytes()).ok()
    }

    /// The user and the password for the proxy.
    pub(super) fn login(&self) -> Option<(String, String)> {
        let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let password = self.url.password().unwrap_or_default();
        let user = Some(self.url.username()).filter(|user| !user.is_empty())?;
        Some((plain(user), plain(password)))
    }

    /// The login as `Proxy-Authorization` has it.
    pub(super) fn authorization(&self) -> Option<String> {
        let (user, password) = self.login()?;
        Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
    }
}

/// An entry of NO_PROXY.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    All,
    /// Addresses that share the first `bits` bits.
    Network {
        address: IpAddr,
        bits: u32,
    },
    /// A name and its subdomains, in lower case.
    Domain(String),
}

/// Invalid entries match nothing, as in other programs.
fn rules(list: &str) -> Vec<Rule> {
    list.split(|c: char| c == ',' || c.is_whitespace())
        .filter(|entry| !entry.is_empty())
        .filter_map(rule)
        .collect()
}

fn rule(entry: &str) -> Option<Rule> {
    let whole = |address: IpAddr| Hosts::Network { address, bits: width(address) };
    let inner = |text: &str| {
        text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text).to_owned()
    };
    if entry == "*" {
        return Some(Rule { hosts: Hosts::All, port: None });
    }
    if let Some((address, bits)) = entry.split_once('/') {
        let address = inner(address).parse::<IpAddr>().ok()?;
        let bits = bits.parse().ok()?;
        return (bits <= width(address))
            .then_some(Rule { hosts: Hosts::Network { address, bits }, port: None });
    }
    if let Ok(address) = inner(entry).parse() {
        return Some(Rule { hosts: whole(address), port: None });
    }
    let (host, port) = match entry.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (entry, None),
    };
    if let Ok(address) = inner(host).parse() {
        return Some(Rule { hosts: whole(address), port });
    }
    let name = host.strip_prefix('*').unwrap_or(host);
    let name = name.strip_prefix('.').unwrap_or(name).to_ascii_lowercase();
    (!name.is_empty()).then_some(Rule { hosts: Hosts::Domain(name), port })
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl Rule {
    fn admits(&self, url: &Url) -> bool {
        if self.port.is_some() && self.port != url.port_or_known_default() {
            return false;
        }
        match (&self.hosts, url.host()) {
            (Hosts::All, _) => true,
            (Hosts::Network { address, bits }, Some(Host::Ipv4(ip))) => {
                shares(*address, IpAddr::V4(ip), *bits)
            }
            (Hosts::Network { address, bits }, Some(Host::Ipv6(ip))) => {
                shares(*address, IpAddr::V6(ip), *bits)
            }
            (Hosts::Domain(domain), Some(Host::Domain(name))) => {
                let name = name.to_ascii_lowercase();
                name.strip_suffix(domain.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            _ => false,
        }
    }
}

/// Whether two addresses of the same family share the first bits.
fn shares(a: IpAddr, b: IpAddr, bits: u32) -> bool {
    let differ = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
        (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
        _ => return false,
    };
    differ.leading_zeros() >= bits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Proxies::new(|name| find(name).map(|(_, value)| value.into()))
    }

    fn of(variables: &[(&str, &str)], url: &str) -> Option<String> {
        proxies(variables).of(&Url::parse(url).unwrap()).unwrap().map(ToString::to_string)
    }

    #[test]
    fn the_proxy_is_chosen_by_url() {
        let both = [
            ("HTTPS_PROXY", "http://u:pw@one:3128/"),
            ("http_proxy", "two:80"),
            ("ALL_PROXY", "socks5h://three"),
        ];
        assert_eq!(
            of(&both, "https://r.example/").as_deref(),
            Some("http://one:3128 ($HTTPS_PROXY)")
        );
        assert_eq!(of(&both, "http://r.example/").as_deref(), Some("http://two ($http_proxy)"));
        assert_eq!(
            of(&both[2..], "http://r.example/").as_deref(),
            Some("socks5h://three ($ALL_PROXY)")
        );
        for here in ["http://localhost:5000/", "http://127.0.0.1/", "https://[::1]/"] {
            assert_eq!(of(&both, here), None, "{here}");
        }
        assert_eq!(
            of(&[("HTTP_PROXY", ""), ("http_proxy", "two")], "http://r/").as_deref(),
            Some("http://two ($http_proxy)")
        );
        let cgi = [("REQUEST_METHOD", "GET"), ("HTTP_PROXY", "evil")];
        assert_eq!(of(&cgi, "http://r.example/"), None);
    }

    #[test]
    fn errors_of_a_proxy_do_not_contain_its_password() {
        for value in [
            "ftp://u:hunter2@h:1",
            "htp:/u:hunter2@h:1",
            "http://[::1",
            "http://",
            "socks5://",
            "://h",
            "http://h:99999",
            "http:/h",
            "h h",
        ] {
            let proxies = proxies(&[("HTTPS_PROXY", value)]);
            let error = proxies.of(&Url::parse("https://r.example/").unwrap()).err();
            let text = error.unwrap_or_else(|| panic!("{value}")).to_string();
            assert!(
                text.starts_with("the proxy in $HTTPS_PROXY cannot be used: ")
                    && !text.contains("hunter2"),
                "{text}"
            );
            assert!(
                proxies.of(&Url::parse("http://r.example/").unwrap()).is_ok(),
                "it is not for this one"
            );
            assert!(proxies.of(&Url::parse("https://localhost/").unwrap()).is_ok(), "{value}");
        }
        // An unescaped @ in a password, as users type it.
        assert_eq!(
            of(&[("HTTP_PROXY", "http://u:p@x@h:1")], "http://r/").as_deref(),
            Some("http://h:1 ($HTTP_PROXY)")
        );
    }

    #[test]
    fn no_proxy_excludes_hosts() {
        for (list, url, direct) in [
            ("reg.test", "http://reg.test/", true),
            ("reg.test", "http://a.REG.test:5000/", true),
            ("reg.test", "http://areg.test/", false),
            ("eg.test", "http://reg.test/", false),
            (".test", "http://reg.test/", true),
            ("*.test", "http://reg.test/", true),
            ("reg.test:5000", "http://reg.test:5000/", true),
            ("reg.test:5000", "http://reg.test:5001/", false),
            ("reg.test:443", "https://reg.test/", true),
            ("reg.test:443", "http://reg.test/", false),
            ("x, reg.test ,y", "http://reg.test/", true),
            ("*", "http://reg.test/", true),
            ("10.77.0.0/16", "http://10.77.0.1/", true),
            ("10.77.0.0/16", "http://10.78.0.1/", false),
            ("10.77.0.0/33", "http://10.77.0.0/", false),
            ("0.0.0.0/0", "http://10.78.0.1/", true),
            ("0.0.0.0/0", "http://[fd00::1]/", false),
            ("10.77.0.1", "http://10.77.0.1/", true),
            ("10.77.0.1:80", "http://10.77.0.1/", true),
            ("10.77.0.1:81", "http://10.77.0.1/", false),
            ("fd00::1", "http://[fd00::1]:5000/", true),
            ("[fd00::1]:5000", "http://[fd00::1]:5000/", true),
            ("[fd00::1]:5000", "http://[fd00::1]/", false),
            ("fd00::/8", "http://[fd12::1]/", true),
            ("fd00::/8", "http://[fe12::1]/", false),
            (",,:5000,/8,.", "http://reg.test:5000/", false),
        ] {
            let proxy = of(&[("HTTP_PROXY", "p"), ("HTTPS_PROXY", "p"), ("NO_PROXY", list)], url);
            assert_eq!(proxy.is_none(), direct, "{list} {url}");
        }
    }
}
