//! Names that have several addresses, that change them, or that have only one of IPv6.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ociseek_format::digest::Digest;
use ociseek_store::blob::Target;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource, Limits};
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::hook::{Hook, pushed};
use ociseek_testkit::sandbox::{OCI_MANIFEST, Sandbox, index, shown, tar};
use ociseek_testkit::servers::{skip, tool};
use ociseek_testkit::{PATIENCE, in_own_mounts, passes, this_test};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;

/// The registry, for the process that runs this test alone.
const HOST: &str = "OCISEEK_TEST_HOST";

/// `command`, for which the file `hosts` is /etc/hosts.
fn with_hosts(hosts: &Path, command: &Command) -> Command {
    let mut inside = in_own_mounts("mount --bind \"$0\" /etc/hosts && exec \"$@\"");
    inside.arg(hosts);
    inside.arg(command.get_program()).args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        inside.current_dir(dir);
    }
    inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    inside
}

/// `command` in a network of its own, with these addresses.
fn in_a_network(addresses: &[&str], command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    let add: String = addresses
        .iter()
        .map(|address| format!(" && ip address add {address}/128 dev lo nodad"))
        .collect();
    inside.args(["--net", "sh", "-c", &format!("ip link set lo up{add} && exec \"$@\""), "sh"]);
    inside.arg(command.get_program()).args(command.get_args());
    inside
}

/// A server whose queue for connections is full, so that the kernel no longer answers.
async fn silent(address: SocketAddr) -> (TcpListener, Vec<TcpStream>) {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
    socket.bind(address).unwrap();
    let listener = socket.listen(1).unwrap();
    let mut full = Vec::new();
    while let Ok(connected) =
        tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await
    {
        full.push(connected.unwrap());
    }
    (listener, full)
}

/// Whether this test can have an /etc/hosts of its own. Prints a line if not.
fn can_name() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("an /etc/hosts of one's own wants root");
    }
    is_root && tool("unshare").is_some()
}

#[tokio::test]
async fn the_next_address_is_tried_while_the_first_is_silent() {
    if !can_name() {
        return;
    }
    let registry = Faulty::at("127.0.0.3:0", RegistrySettings::default(), |_, _| None).await;
    registry.add_manifest("t", OCI_MANIFEST, "{}");
    let port = registry.address.port();
    let _silent = silent(SocketAddr::from(([127, 0, 0, 2], port))).await;
    let sandbox = Sandbox::new();
    let hosts = sandbox.path("hosts");
    std::fs::write(&hosts, "127.0.0.2 several.example\n127.0.0.3 several.example\n").unwrap();
    let mut child = with_hosts(&hosts, &this_test(module_path!(), "child_of_the_silent_address"));
    child.env(HOST, format!("several.example:{port}"));
    tokio::task::spawn_blocking(move || passes(&mut child)).await.unwrap();
    assert_eq!(registry.saw("GET", "/manifests/t").len(), 1);
}

#[tokio::test]
async fn child_of_the_silent_address() {
    let Ok(host) = std::env::var(HOST) else { return };
    asks(&host).await;
}

async fn asks(host: &str) {
    // One address after the other would take half an hour.
    asks_within(host, Duration::from_secs(3600)).await;
}

/// Asks a registry, with this limit for connecting.
async fn asks_within(host: &str, connect: Duration) {
    let limits = Limits { connect, ..Limits::default() };
    let credentials = CredentialSource::Anonymous;
    let config =
        ClientConfig { credentials, limits, plain_http: Some(true), ..ClientConfig::default() };
    let repository = Client::new(config).unwrap().repository(host, "a/b").unwrap();
    let asked = tokio::time::timeout(PATIENCE, repository.manifest(&Target::Tag("t".into()))).await;
    assert_eq!(&asked.unwrap().unwrap().bytes[..], b"{}");
}

#[test]
fn the_next_ipv6_address_is_tried_while_the_first_is_silent() {
    if !can_name() || tool("ip").is_none() {
        return;
    }
    passes_where_the_name_has(&["fd00::2", "fd00::3"], "child_of_the_silent_ipv6_address");
}

/// Runs a test of this module in a network of its own, where `several.example` has these addresses.
fn passes_where_the_name_has(addresses: &[&str], test: &str) {
    let sandbox = Sandbox::new();
    let hosts = sandbox.path("hosts");
    let names: String =
        addresses.iter().map(|address| format!("{address} several.example\n")).collect();
    std::fs::write(&hosts, names).unwrap();
    let ipv6: Vec<&str> =
        addresses.iter().copied().filter(|address| address.contains(':')).collect();
    let mut child = with_hosts(&hosts, &in_a_network(&ipv6, &this_test(module_path!(), test)));
    passes(child.env(HOST, "several.example"));
}

#[tokio::test]
async fn child_of_the_silent_ipv6_address() {
    let Ok(host) = std::env::var(HOST) else { return };
    let registry = Faulty::at("[fd00::3]:0", RegistrySettings::default(), |_, _| None).await;
    registry.add_manifest("t", OCI_MANIFEST, "{}");
    let port = registry.address.port();
    let _silent = silent(format!("[fd00::2]:{port}").parse().unwrap()).await;
    asks(&format!("{host}:{port}")).await;
    assert_eq!(registry.saw("GET", "/manifests/t").len(), 1);
}

/// Of a name with two addresses of each family, whose first ones are silent.
#[test]
fn the_next_addresses_are_tried_while_the_first_of_both_families_are_silent() {
    if !can_name() || tool("ip").is_none() {
        return;
    }
    passes_where_the_name_has(
        &["127.0.0.2", "127.0.0.3", "fd00::2", "fd00::3"],
        "child_of_the_silent_addresses",
    );
}

#[tokio::test]
async fn child_of_the_silent_addresses() {
    let Ok(host) = std::env::var(HOST) else { return };
    let four = Faulty::at("127.0.0.3:0", RegistrySettings::default(), |_, _| None).await;
    let port = four.address.port();
    let six =
        Faulty::at(&format!("[fd00::3]:{port}"), RegistrySettings::default(), |_, _| None).await;
    for registry in [&four, &six] {
        registry.add_manifest("t", OCI_MANIFEST, "{}");
    }
    let _silent = [
        silent(SocketAddr::from(([127, 0, 0, 2], port))).await,
        silent(format!("[fd00::2]:{port}").parse().unwrap()).await,
    ];
    let begun = Instant::now();
    // Half of that would be spent on each first address.
    asks_within(&format!("{host}:{port}"), Duration::from_secs(40)).await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(four.saw("GET", "/manifests/t").len() + six.saw("GET", "/manifests/t").len(), 1);
}

#[test]
fn a_hook_follows_a_name_to_another_address() {
    if !can_name() {
        return;
    }
    let one = Runtime::new().unwrap();
    let two = Runtime::new().unwrap();
    let settings = || RegistrySettings::with_referrers();
    let first = one.block_on(Faulty::at("127.0.0.2:0", settings(), |_, _| None));
    let port = first.address.port();
    let second = two.block_on(Faulty::at(&format!("127.0.0.3:{port}"), settings(), |_, _| None));
    let sandbox = Sandbox::new();
    let host = format!("moving.example:{port}");
    let hosts = sandbox.path("hosts");
    std::fs::write(&hosts, "127.0.0.2 moving.example\n").unwrap();
    let allow = format!("--allow={host}");
    let args =
        ["hook", "serve", "--listen=127.0.0.1:0", "--plain-http", "--min-layer-size=0", &allow];
    let hook = Hook::spawn(&mut with_hosts(&hosts, &sandbox.command(&args)));
    let push = |registry: &Faulty, number: u64| {
        registry.add_image("v1", &tar(number, 2, 30_000));
        let digest = Digest::sha256(&registry.manifest("v1").unwrap());
        let (status, text) = hook.post(&pushed(&number.to_string(), &host, "a/b", &digest));
        assert_eq!(status, 202, "{text}");
    };
    push(&first, 1);
    hook.until("the first image", |hook| hook.indexed() == 1);
    // Its connections break too.
    one.shutdown_background();
    std::fs::write(&hosts, "127.0.0.3 moving.example\n").unwrap();
    push(&second, 2);
    hook.until("the second image", |hook| hook.indexed() == 2);
    assert!(!second.saw("PUT", "/manifests/").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_may_have_only_an_ipv6_address() {
    if !can_name() {
        return;
    }
    let registry = Faulty::at("[::1]:0", RegistrySettings::with_referrers(), |_, _| None).await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    let sandbox = Sandbox::new();
    let hosts = sandbox.path("hosts");
    std::fs::write(&hosts, "::1 six.example\n").unwrap();
    for image in [
        format!("six.example:{}/a/b:v1", registry.address.port()),
        format!("{}/a/b:v1", registry.host()),
    ] {
        let command = sandbox.command(&index(&["--plain-http", &image]));
        let text = tokio::task::block_in_place(|| shown(&mut with_hosts(&hosts, &command)));
        assert!(text.ends_with("--- status 0 ---"), "{text}");
    }
}
