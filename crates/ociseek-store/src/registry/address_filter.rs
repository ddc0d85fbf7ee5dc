//! The addresses that a client may connect to. A name is resolved once, and the checked address is
//! the one used for the connection, so a DNS answer that changes in between (DNS rebinding) has no
//! effect.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::select_ok;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use url::{Host, Url};

use super::address::is_link_local;
use super::lookups::{LOOKUPS, system_lookup};
use crate::lock::Hold;

/// The head start of each address over the next one (RFC 8305 section 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// The time limit for finding an address that answers.
const SEARCH: Duration = Duration::from_secs(5);
/// How many attempts are made for a family with several addresses: each address in turn, then again
/// from the first.
const ATTEMPTS: usize = 8;
/// How long an address that answered goes first.
const KNOWN: Duration = Duration::from_secs(60);
/// The number of names that are remembered.
const NAMES: usize = 256;

/// The addresses that a client may connect to.
#[derive(Debug, Clone, Default)]
pub enum AllowedAddresses {
    /// All addresses except link-local ones, where clouds serve the credentials of a machine.
    #[default]
    Any,
    /// Public addresses, and for these hosts (`HOST:PORT` in lower case) all addresses that
    /// [`AllowedAddresses::Any`] allows. Proxies are not used, because they would resolve the
    /// names.
    Public {
        /// Hosts that may have private addresses.
        inside: Arc<[String]>,
    },
}

impl AllowedAddresses {
    /// Public addresses, and the registries in `named` (`HOST` or `HOST:PORT`) at any address.
    pub fn public_and<'a>(named: impl Iterator<Item = &'a str>) -> AllowedAddresses {
        let mut inside = Vec::new();
        for name in named.map(str::to_ascii_lowercase) {
            match name.rsplit_once(':') {
                Some((_, port)) if !port.ends_with(']') => inside.push(name),
                _ => inside.extend([format!("{name}:443"), format!("{name}:80")]),
            }
        }
        AllowedAddresses::Public { inside: inside.into() }
    }

    pub(super) fn is_public_only(&self) -> bool {
        matches!(self, AllowedAddresses::Public { .. })
    }

    /// Whether a URL's host may have any address.
    pub(super) fn is_inside(&self, url: &Url) -> bool {
        let AllowedAddresses::Public { inside } = self else { return true };
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return false;
        };
        inside.iter().any(|named| named.rsplit_once(':') == Some((host, port.to_string().as_str())))
    }
}

/// Why a URL that contains an address is refused. Names are checked when they are resolved.
pub(super) fn refuse_address(allowed: &AllowedAddresses, url: &Url) -> Option<&'static str> {
    let ip = match url.host() {
        Some(Host::Ipv4(ip)) => IpAddr::V4(ip),
        Some(Host::Ipv6(ip)) => IpAddr::V6(ip),
        _ => return None,
    };
    (!allowed.is_inside(url) && !is_public(ip)).then_some("non-public addresses are refused")
}

/// The name resolved only to refused addresses.
#[derive(Debug, thiserror::Error)]
#[error("{name} leads to {kind} address, which is refused")]
pub(super) struct RefusedAddress {
    name: String,
    kind: &'static str,
}

/// The name cannot be resolved, or no resolver responded.
#[derive(Debug, thiserror::Error)]
#[error("cannot resolve the name {name}")]
pub(super) struct UnresolvedName {
    name: String,
    source: Arc<std::io::Error>,
}

/// The system's resolver, without refused addresses.
pub(super) struct Resolver {
    pub public_only: bool,
    pub known_addresses: Arc<KnownAddresses>,
}

/// Which of several IPv6 addresses of a name answers. hyper tries them one after the other, for
/// seconds each.
#[derive(Default)]
pub(super) struct KnownAddresses {
    /// The ports to which clients connect without a proxy, by name.
    ports: Mutex<HashMap<String, u16>>,
    /// The address that answered first, and when.
    first: tokio::sync::Mutex<HashMap<String, (IpAddr, Instant)>>,
}

impl KnownAddresses {
    /// A client connects to this host without a proxy.
    pub(super) fn expect(&self, url: &Url) {
        let (Some(Host::Domain(name)), Some(port)) = (url.host(), url.port_or_known_default())
        else {
            return;
        };
        let mut ports = self.ports.hold();
        if ports.get(name) != Some(&port) {
            if ports.len() == NAMES {
                ports.clear();
            }
            ports.insert(name.to_owned(), port);
        }
    }

    /// Moves the address that answers first to the front.
    async fn sort(&self, name: &str, addresses: &mut [SocketAddr]) {
        let port = self.ports.hold().get(name).copied();
        let Some(port) =
            port.filter(|_| addresses.len() > 1 && addresses.iter().all(SocketAddr::is_ipv6))
        else {
            return;
        };
        // Others who ask meanwhile wait for the answer instead of searching too.
        let mut first = self.first.lock().await;
        let place = |ip: IpAddr| addresses.iter().position(|address| address.ip() == ip);
        let known = first
            .get(name)
            .filter(|(_, since)| since.elapsed() < KNOWN)
            .and_then(|(ip, _)| place(*ip));
        let place = match known {
            Some(place) => place,
            None => {
                let Some(place) = first_to_answer(addresses, port).await else { return };
                if first.len() == NAMES {
                    first.clear();
                }
                first.insert(name.to_owned(), (addresses[place].ip(), Instant::now()));
                place
            }
        };
        addresses[..=place].rotate_right(1);
    }
}

/// The number of the address to which a connection can be made first.
async fn first_to_answer(addresses: &[SocketAddr], port: u16) -> Option<usize> {
    let tries = addresses.iter().zip(0..).map(|(address, number)| {
        Box::pin(async move {
            sleep(HEAD_START * number).await;
            TcpStream::connect(SocketAddr::new(address.ip(), port)).await.map(|_| number as usize)
        })
    });
    timeout(SEARCH, select_ok(tries)).await.ok()?.ok().map(|(number, _)| number)
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let public_only = self.public_only;
        let known_addresses = Arc::clone(&self.known_addresses);
        Box::pin(async move {
            let addresses = LOOKUPS.of(name.as_str(), system_lookup).await;
            let unresolved = |source| UnresolvedName { name: name.as_str().to_owned(), source };
            let addresses = addresses.map_err(unresolved)?;
            let refused = |ip: IpAddr| is_link_local(ip) || public_only && !is_public(ip);
            let (bad, mut good): (Vec<_>, Vec<_>) =
                addresses.into_iter().partition(|address| refused(address.ip()));
            if good.is_empty() && !bad.is_empty() {
                let link_local = bad.iter().any(|address| is_link_local(address.ip()));
                let kind = if link_local { "a link-local" } else { "a private" };
                return Err(RefusedAddress { name: name.as_str().to_owned(), kind }.into());
            }
            known_addresses.sort(name.as_str(), &mut good).await;
            Ok(Box::new(repeated(&side_by_side(good)).into_iter()) as Addrs)
        })
    }
}

/// If all addresses are IPv4 ones, adds all but the first once more, as IPv6 addresses with the
/// same meaning (RFC 4291 section 2.5.5.2). hyper tries the addresses of one family one after the
/// other, for seconds each, but those of two families side by side, 300 ms apart (RFC 8305). So a
/// first address that is silent holds nothing up. Where there is no IPv6, only the first ones are
/// used.
fn side_by_side(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let again = |address: &SocketAddr| match address {
        SocketAddr::V4(v4) => Some(SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()))),
        SocketAddr::V6(_) => None,
    };
    let mapped: Option<Vec<SocketAddr>> = addresses.iter().map(again).collect();
    let more = mapped.into_iter().flatten().skip(1);
    addresses.iter().copied().chain(more).collect()
}

/// Repeats the addresses of each family that has several. hyper divides the time for connecting
/// equally among the addresses, so with more of them it gives up a silent one sooner: after 1.25 of
/// 10 seconds.
fn repeated(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_first = |address: &SocketAddr| {
        addresses.first().map(SocketAddr::is_ipv6) == Some(address.is_ipv6())
    };
    let (first, second): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_first);
    let again = |family: Vec<SocketAddr>| {
        let count = if family.len() > 1 { family.len().max(ATTEMPTS) } else { family.len() };
        family.into_iter().cycle().take(count)
    };
    again(first).chain(again(second)).collect()
}

/// Whether an address is public (IANA IPv4 and IPv6 Special-Purpose Address Registries). For an
/// IPv6 address that embeds an IPv4 address, that one decides.
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || a == 0
        || a == 100 && b & 0xc0 == 64 // between carriers and customers, RFC 6598
        || a == 192 && b == 0 && c == 0
        || a == 192 && b == 88 && c == 99 // the old 6to4 relays
        || a == 198 && b & 0xfe == 18 // benchmarks, RFC 2544
        || a >= 224) // multicast, reserved, broadcast
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match (a, b) {
        // NAT64 (RFC 6052) and 6to4 (RFC 3056) embed an IPv4 address.
        (0x64, 0xff9b) => [c, d, e, f] == [0; 4] && is_public_v4(v4(g, h)),
        (0x2002, _) => is_public_v4(v4(b, c)),
        // Teredo and other protocol assignments, documentation, segment routing.
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => false,
        // Only this block is assigned.
        _ => a & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_and_others() {
        for (ip, want) in [
            ("8.8.8.8", true),
            ("0.0.0.0", false),
            ("10.0.0.1", false),
            ("100.64.0.1", false),
            ("100.128.0.1", true),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("172.16.0.1", false),
            ("172.32.0.1", true),
            ("192.0.0.8", false),
            ("192.168.1.1", false),
            ("198.18.0.1", false),
            ("203.0.113.1", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("2606:4700::1", true),
            ("::", false),
            ("::1", false),
            ("::ffff:10.0.0.1", false),
            ("::ffff:8.8.8.8", true),
            ("::127.0.0.1", false),
            ("64:ff9b::10.0.0.1", false),
            ("64:ff9b::8.8.8.8", true),
            ("64:ff9b:1::8.8.8.8", false),
            ("2002:a00:1::1", false),
            ("2002:808:808::1", true),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("2001:4860::1", true),
            ("fc00::1", false),
            ("fd00:ec2::254", false),
            ("fe80::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_public(ip.parse().unwrap()), want, "{ip}");
        }
    }

    #[test]
    fn addresses_of_one_family_become_two() {
        let parse = |list: &[&str]| {
            list.iter().map(|address| address.parse().unwrap()).collect::<Vec<SocketAddr>>()
        };
        for (resolved, tried) in [
            (&["9.9.9.1:0"][..], &["9.9.9.1:0"][..]),
            (&["9.9.9.1:0", "9.9.9.2:0"], &["9.9.9.1:0", "9.9.9.2:0", "[::ffff:9.9.9.2]:0"]),
            (&["9.9.9.1:0", "[2600::1]:0"], &["9.9.9.1:0", "[2600::1]:0"]),
            (&["[2600::1]:0", "[2600::2]:0"], &["[2600::1]:0", "[2600::2]:0"]),
        ] {
            assert_eq!(side_by_side(parse(resolved)), parse(tried));
        }
    }

    #[test]
    fn several_addresses_of_a_family_are_repeated() {
        let parse = |list: &str| {
            list.split(' ').map(|address| address.parse().unwrap()).collect::<Vec<SocketAddr>>()
        };
        let [a, b, c, x, y] = ["9.9.9.1:0", "9.9.9.2:0", "9.9.9.3:0", "[2600::1]:0", "[2600::2]:0"];
        for (resolved, tried) in [
            (a.to_owned(), a.to_owned()),
            (format!("{x} {a}"), format!("{x} {a}")),
            (format!("{a} {b} {x}"), format!("{a} {b} {a} {b} {a} {b} {a} {b} {x}")),
            (
                format!("{x} {a} {y} {b} {c}"),
                format!("{x} {y} {x} {y} {x} {y} {x} {y} {a} {b} {c} {a} {b} {c} {a} {b}"),
            ),
        ] {
            assert_eq!(repeated(&parse(&resolved)), parse(&tried), "{resolved}");
        }
        assert_eq!(repeated(&[]), []);
        let many: Vec<SocketAddr> = (1..=9).map(|n| SocketAddr::from(([9, 9, 9, n], 0))).collect();
        assert_eq!(repeated(&many), many);
    }

    /// The number of connections that a server has got and not taken yet.
    async fn connections(server: &tokio::net::TcpListener) -> usize {
        let mut count = 0;
        while timeout(Duration::from_millis(100), server.accept()).await.is_ok() {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn of_several_ipv6_addresses_the_one_that_answers_goes_first() {
        let server = tokio::net::TcpListener::bind("127.0.0.3:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        // The queue for connections is full, so that the kernel no longer answers.
        let silent = tokio::net::TcpSocket::new_v4().unwrap();
        silent.bind(format!("127.0.0.2:{port}").parse().unwrap()).unwrap();
        let silent = silent.listen(1).unwrap();
        let address = silent.local_addr().unwrap();
        let mut full = Vec::new();
        while let Ok(connected) =
            timeout(Duration::from_millis(300), TcpStream::connect(address)).await
        {
            full.push(connected.unwrap());
        }
        let parse = |list: [&str; 2]| list.map(|address| address.parse::<SocketAddr>().unwrap());
        let [no, answers] = ["[::ffff:127.0.0.2]:0", "[::ffff:127.0.0.3]:0"];
        let mixed = ["127.0.0.2:0", answers];
        let known_addresses = KnownAddresses::default();
        for (name, resolved, sorted, connected) in [
            ("unknown.example", [no, answers], [no, answers], 0),
            ("mixed.example", mixed, mixed, 0),
            ("sound.example", [answers, no], [answers, no], 1),
            ("several.example", [no, answers], [answers, no], 1),
            // It is known now.
            ("several.example", [no, answers], [answers, no], 0),
        ] {
            if name != "unknown.example" {
                known_addresses.expect(&Url::parse(&format!("http://{name}:{port}/v2/")).unwrap());
            }
            let mut addresses = parse(resolved);
            known_addresses.sort(name, &mut addresses).await;
            assert_eq!(
                (addresses, connections(&server).await),
                (parse(sorted), connected),
                "{name}"
            );
        }
    }

    #[test]
    fn named_hosts_may_have_private_addresses() {
        let allowed = AllowedAddresses::public_and(
            ["127.0.0.1:5000", "Registry.corp", "[::1]:5000", "[fd00::1]"].into_iter(),
        );
        for (url, inside) in [
            ("http://127.0.0.1:5000/v2/", true),
            ("http://127.0.0.1:6379/", false),
            ("http://127.0.0.1/", false),
            ("https://registry.corp/v2/", true),
            ("http://registry.corp/v2/", true),
            ("https://registry.corp:8443/", false),
            ("https://x.registry.corp/", false),
            ("http://[::1]:5000/", true),
            ("https://[fd00::1]/", true),
            ("https://[fd00::2]/", false),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(allowed.is_inside(&url), inside, "{url}");
        }
        let refused = |url: &str| refuse_address(&allowed, &Url::parse(url).unwrap()).is_some();
        assert!(
            refused("http://127.0.0.1:6379/")
                && refused("http://169.254.169.254/")
                && refused("http://[::1]/")
        );
        // URL parsers accept other spellings of an address.
        assert!(
            refused("http://2130706433/")
                && refused("http://0x7f.1/")
                && refused("http://0177.0.0.1/")
        );
        assert!(
            !refused("http://127.0.0.1:5000/")
                && !refused("https://8.8.8.8/")
                && !refused("https://name/")
        );
        assert!(
            refuse_address(&AllowedAddresses::Any, &Url::parse("http://127.0.0.1/").unwrap())
                .is_none()
        );
    }
}
