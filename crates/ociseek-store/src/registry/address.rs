//! Decides which hosts a client may contact: which of them are this machine, and which no server
//! may redirect to. Also turns a registry's name into a URL.

use std::net::IpAddr;

use url::{Host, Url};

/// The text is not a registry's host. At most 300 characters of it are kept.
#[derive(Debug)]
pub(super) struct NotAHost(pub String);

/// Whether docker treats the host as this machine: `localhost` and loopback addresses.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => {
            ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
        }
        None => false,
    }
}

/// Link-local addresses, where clouds serve the credentials of a machine (169.254.169.254,
/// fd00:ec2::254).
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => {
            ip.is_unicast_link_local() || ip.segments() == [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]
        }
    }
}

pub(super) fn same_origin(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme()
        && a.host() == b.host()
        && a.port_or_known_default() == b.port_or_known_default()
}

/// A URL that a registry sent, also of its token service, by HTTPS if it names the same host by
/// HTTP. Behind a proxy that terminates TLS, a registry may not know that it is reached by HTTPS.
pub(super) fn by_https(registry: &Url, mut to: Url) -> Url {
    let is_port = to.port() == registry.port() || to.port() == registry.port_or_known_default();
    let is_same = to.host() == registry.host() && is_port;
    if is_same && to.scheme() == "http" && registry.scheme() == "https" {
        // Cannot fail between these two schemes.
        let _ = to.set_scheme("https");
    }
    to
}

/// Why a request for `registry` that was sent to `from` must not be redirected to `to`; None if it
/// may.
pub(super) fn refuse_detour(registry: &Url, from: &Url, to: &Url) -> Option<&'static str> {
    let literal = match to.host() {
        Some(Host::Ipv4(ip)) => Some(IpAddr::V4(ip)),
        Some(Host::Ipv6(ip)) => Some(IpAddr::V6(ip)),
        _ => None,
    };
    match to.scheme() {
        "https" => {}
        "http" if from.scheme() == "http" => {}
        "http" => return Some("a downgrade from HTTPS to HTTP is refused"),
        _ => return Some("it is neither HTTP nor HTTPS"),
    }
    if !to.username().is_empty() || to.password().is_some() {
        return Some("URLs with credentials are refused");
    }
    if same_origin(registry, to) {
        return None;
    }
    if literal.is_some_and(is_link_local) {
        return Some("link-local addresses are refused");
    }
    if is_loopback(to) && !is_loopback(registry) {
        return Some("redirects from another machine to this one are refused");
    }
    None
}

/// Why credentials for `registry` must not be sent to its token service at `realm`; None if they
/// may.
pub(super) fn refuse_realm(registry: &Url, realm: &Url) -> Option<&'static str> {
    if realm.scheme() == "http" {
        let near = realm.host() == registry.host() || is_loopback(realm) && is_loopback(registry);
        if registry.scheme() != "http" || !near {
            return Some("token services without TLS are refused");
        }
    }
    refuse_detour(registry, registry, realm)
}

/// The registry's base URL for a scheme. The URL parser must leave its host unchanged.
pub(super) fn base_url(scheme: &str, registry: &str) -> Result<Url, NotAHost> {
    let wrong = || NotAHost(registry.chars().take(300).collect());
    let host = match registry {
        "docker.io" | "index.docker.io" => "registry-1.docker.io",
        other => other,
    };
    let url = Url::parse(&format!("{scheme}://{host}/")).map_err(|_| wrong())?;
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let same_host = match url.host() {
        Some(Host::Ipv6(ip)) => {
            let inner = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
            inner.and_then(|n| n.parse().ok()) == Some(ip)
        }
        Some(_) => url.host_str() == Some(name.to_ascii_lowercase().as_str()),
        None => false,
    };
    let same_port = match port {
        Some(port) => port.parse().ok() == url.port_or_known_default(),
        None => url.port().is_none(),
    };
    let bare = url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty();
    if same_host && same_port && bare && url.password().is_none() { Ok(url) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(s: &str) -> Url {
        Url::parse(s).unwrap()
    }

    #[test]
    fn links_to_the_same_host_keep_https() {
        for (registry, to, expected) in [
            ("https://r.io/", "http://r.io/v2/x?_state=a", "https://r.io/v2/x?_state=a"),
            ("https://r.io:8443/", "http://r.io:8443/v2/x", "https://r.io:8443/v2/x"),
            ("https://r.io:8443/", "http://r.io/v2/x", "http://r.io/v2/x"),
            ("https://r.io/", "http://r.io:443/v2/x", "https://r.io/v2/x"),
            ("https://r.io/", "http://r.io:80/v2/x", "https://r.io/v2/x"),
            ("https://r.io/", "http://r.io:8080/v2/x", "http://r.io:8080/v2/x"),
            ("https://r.io/", "http://s.io/v2/x", "http://s.io/v2/x"),
            ("http://r.io/", "http://r.io/v2/x", "http://r.io/v2/x"),
        ] {
            assert_eq!(by_https(&url(registry), url(to)).as_str(), expected);
        }
    }

    #[test]
    fn registries_become_urls() {
        for (registry, want) in [
            ("ghcr.io", "https://ghcr.io/"),
            ("docker.io", "https://registry-1.docker.io/"),
            ("Registry.Example:8443", "https://registry.example:8443/"),
            ("[::1]:5000", "https://[::1]:5000/"),
            ("[2001:DB8:0::1]", "https://[2001:db8::1]/"),
            ("10.0.0.1:443", "https://10.0.0.1/"),
        ] {
            assert_eq!(base_url("https", registry).unwrap().as_str(), want, "{registry}");
        }
    }

    #[test]
    fn hosts_that_the_url_parser_would_rewrite_are_refused() {
        for bad in [
            "",
            "u@h",
            "u:p@h",
            "h/x",
            "h?x",
            "h#x",
            "h:99999",
            "h:",
            "2130706433",
            "0177.0.0.1",
            "127.1",
            "ⓔxample.com",
            "h\\x",
            "a b",
            "[::1",
            "%6c.example",
        ] {
            assert!(base_url("https", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn redirect_targets_are_checked() {
        let registry = url("https://r.example/");
        for (to, allowed) in [
            ("https://cdn.example/x?sig", true),
            ("https://r.example/y", true),
            ("http://r.example/y", false),
            ("https://169.254.169.254/latest", false),
            ("https://[fe80::1]/", false),
            ("https://[::ffff:169.254.169.254]/", false),
            ("https://[fd00:ec2::254]/", false),
            ("https://127.0.0.1/", false),
            ("https://localhost/", false),
            ("https://u:p@cdn.example/", false),
            ("ftp://cdn.example/", false),
            ("https://10.1.2.3/", true),
        ] {
            assert_eq!(refuse_detour(&registry, &registry, &url(to)).is_none(), allowed, "{to}");
        }
        let local = url("http://localhost:5000/");
        assert!(refuse_detour(&local, &local, &url("http://127.0.0.1:9000/x")).is_none());
    }

    #[test]
    fn realms_are_checked() {
        for (registry, realm, allowed) in [
            ("https://registry-1.docker.io/", "https://auth.docker.io/token", true),
            ("https://r.example/", "http://r.example/token", false),
            ("https://r.example/", "http://evil.example/token", false),
            ("https://r.example/", "https://169.254.169.254/token", false),
            ("http://localhost:5000/", "http://127.0.0.1:5001/token", true),
            ("http://localhost:5000/", "http://evil.example/token", false),
            ("http://r.example:5000/", "http://r.example:5001/token", true),
            ("http://r.example:5000/", "http://evil.example/token", false),
        ] {
            assert_eq!(
                refuse_realm(&url(registry), &url(realm)).is_none(),
                allowed,
                "{registry} {realm}"
            );
        }
    }
}
