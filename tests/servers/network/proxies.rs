//! SOCKS and HTTPS proxies.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::Response;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::faulty::{Faulty, RegistrySettings, redirect, status};
use ociseek_testkit::mounts::wait_until;
use ociseek_testkit::sandbox::{Sandbox, index, shown, tar};
use ociseek_testkit::servers::{Server, private_ca, run, tool};

/// A running proxy.
struct Proxy {
    _child: ChildProcess,
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn start(kind: &str, arguments: &[impl AsRef<OsStr>]) -> Option<Proxy> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/ociseek-testkit/src/proxy.py");
        let mut command = Command::new(tool("python3")?);
        let mut child = ChildProcess::spawn(
            command.arg(script).arg(kind).args(arguments).stdout(Stdio::piped()),
        );
        let mut lines = BufReader::new(child.stdout()).lines().map_while(Result::ok);
        let port = lines.next().unwrap().parse().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let hosts = Arc::clone(&asked);
        std::thread::spawn(move || lines.for_each(|host| hosts.lock().unwrap().push(host)));
        Some(Proxy { _child: child, port, asked })
    }

    /// The hosts that it was asked for, each once. It tells of them in its own time.
    fn asked(&self) -> Vec<String> {
        wait_until("the proxy is asked", || !self.asked.lock().unwrap().is_empty());
        let mut asked = self.asked.lock().unwrap().clone();
        asked.sort();
        asked.dedup();
        asked
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socks_proxy_resolves_the_names() {
    let Some(proxy) = Proxy::start("socks", &[""; 0]) else { return };
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    registry.add_image("v1", &tar(1, 2, 40_000));
    let port = registry.address.port();
    let sandbox = Sandbox::new();
    // Its name is known to the proxy alone.
    let image = format!("registry.invalid:{port}/a/b:v1");
    let run = |user: &str| {
        let mut command = sandbox.command(&index(&["--plain-http", "--retry-for=1s", &image]));
        command.env("ALL_PROXY", format!("socks5h://{user}@127.0.0.1:{}", proxy.port));
        tokio::task::block_in_place(|| shown(&mut command))
    };
    let text = run("u:p");
    assert!(text.ends_with("--- status 0 ---"), "{text}");
    assert_eq!(proxy.asked(), ["registry.invalid"]);
    let text = run("u:hunter2");
    assert!(text.ends_with("--- status 1 ---") && !text.contains("hunter2"), "{text}");
}

#[test]
fn an_https_proxy_forwards_https() {
    let Some(server) = Server::distribution_with_tls() else { return };
    let at = |name: &str| server.dir.path().join(name);
    let proxy = Proxy::start("https", &[&at("cert.pem"), &at("key.pem")]);
    let (Some(proxy), Some(crane)) = (proxy, tool("crane")) else { return };
    let sandbox = Sandbox::with_small_image();
    let layout = sandbox.path("img");
    let image = format!("{}/a/b:v1", server.host);
    run(&crane, &["push", "--insecure", layout.to_str().unwrap(), &image]);
    // Registries on this machine are spoken to without a proxy.
    let image = format!("registry.invalid:{}/a/b:v1", server.port());
    let run = |user: &str| {
        let mut command =
            sandbox.command(&index(&["--plain-http=false", "--retry-for=1s", &image]));
        command.env("SSL_CERT_FILE", at("ca.pem"));
        command.env("https_proxy", format!("https://{user}@localhost:{}", proxy.port));
        shown(&mut command)
    };
    let text = run("u:p");
    assert!(text.ends_with("--- status 0 ---"), "{text}");
    assert_eq!(proxy.asked(), ["registry.invalid"]);
    let text = run("u:hunter2");
    assert!(text.ends_with("--- status 1 ---") && !text.contains("hunter2"), "{text}");
}

/// Whatever the route to a host, it gets the target of a redirect as it was written: a signature
/// may cover the text.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn redirects_are_followed_to_the_letter_through_proxies() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = private_ca(dir.path()) else { return };
    let at = |name: &str| dir.path().join(name).display().to_string();
    let pair = [at("cert.pem"), at("key.pem")];
    let start = |kind: &str| tokio::task::block_in_place(|| Proxy::start(kind, &pair)).unwrap();
    let proxies = [("http", "http"), ("socks5h", "socks"), ("https", "https")]
        .map(|(scheme, kind)| (scheme, start(kind)));
    for (location, target) in [
        ("SCHEME://HOST/s/%2e%2e/b?f=UTF-8''x&sig=a%2fb", "/s/%2e%2e/b?f=UTF-8''x&sig=a%2fb"),
        ("/s/%2E/b?sig='1'", "/s/%2E/b?sig='1'"),
        ("../%2e%2e/b?sig='1'", "/v2/a/b/%2e%2e/b?sig='1'"),
    ] {
        let registry = Faulty::start(RegistrySettings::default(), move |request, registry| {
            if let Some((path, digest)) = request.path.split_once("&d=") {
                let blob = registry.blob(&digest.parse().unwrap()).filter(|_| path == target);
                return Some(blob.map_or_else(|| status(403), |it| Response::new(Body::from(it))));
            }
            let (_, digest) = request.path.split_once("/b/blobs/")?;
            let host = request.header("host").unwrap();
            let scheme = if host.ends_with(&format!(":{}", registry.address.port())) {
                "http"
            } else {
                "https"
            };
            let to = location.replace("SCHEME", scheme).replace("HOST", host);
            request.is("GET", "/blobs/sha").then(|| redirect(307, &format!("{to}&d={digest}")))
        })
        .await;
        registry.add_image("v1", &tar(1, 2, 40_000));
        let port = registry.address.port().to_string();
        let relay = [&pair[..], std::slice::from_ref(&port)].concat();
        let relay = tokio::task::block_in_place(|| Proxy::start("relay", &relay)).unwrap();
        for (scheme, proxy) in &proxies {
            for (port, plain) in [(registry.address.port(), "true"), (relay.port, "false")] {
                let sandbox = Sandbox::new();
                let image = format!("registry.invalid:{port}/a/b:v1");
                let plain = format!("--plain-http={plain}");
                let mut command =
                    sandbox.command(&index(&[&plain, "--retry-for=1s", "--dry-run", &image]));
                command.env("SSL_CERT_FILE", at("ca.pem"));
                command.env("ALL_PROXY", format!("{scheme}://u:p@localhost:{}", proxy.port));
                let text = tokio::task::block_in_place(|| shown(&mut command));
                let ended = text.ends_with("--- status 0 ---");
                assert!(ended, "{scheme} {plain} {location}: {text}");
            }
        }
    }
}

/// A proxy that refuses to connect says why, and is not asked again and again.
#[test]
fn a_tunnel_that_a_proxy_refuses_is_reported() {
    for (answer, says, hint) in [
        (
            "403 Blocked by policy",
            "it refuses to connect to the host: 403 Forbidden",
            "does not let this machine reach registry.invalid",
        ),
        (
            "407 Proxy Authentication Required",
            "proxy authorization required",
            "the proxy requires a login",
        ),
        ("451 No", "451 Unavailable For Legal Reasons", "does not let this machine reach"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(0));
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                *count.lock().unwrap() += 1;
                let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
                while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                let _ = write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n");
            }
        });
        let sandbox = Sandbox::new();
        let mut command = sandbox.command(&["ls", "registry.invalid/a/b:v1"]);
        let text = shown(command.env("HTTPS_PROXY", &proxy));
        assert!(text.contains(&format!("via the proxy {proxy} ($HTTPS_PROXY): ")), "{text}");
        assert!(text.contains(says) && text.contains(hint), "{text}");
        assert!(text.ends_with("--- status 1 ---"), "{text}");
        // Once for the tunnel, and once for its status.
        assert!(*asked.lock().unwrap() <= 2, "{text}");
    }
}
