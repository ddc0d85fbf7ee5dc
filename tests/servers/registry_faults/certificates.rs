//! Certificates: which are trusted, the errors for others, and which servers receive the client
//! certificate.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::support::servers::{private_ca, run, tool};

/// The requests of a server: the first line, and whether the client sent a certificate.
type Log = Arc<Mutex<Vec<(String, bool)>>>;

struct Tls {
    port: u16,
    log: Log,
}

impl Tls {
    /// Uses `cert.pem` in `dir`, requests a client certificate issued by `ca.pem`, and sends the
    /// response that `answer` returns for a request's head.
    fn start(dir: &Path, answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Tls {
        let certificates =
            |name: &str| CertificateDer::pem_file_iter(dir.join(name)).unwrap().map(Result::unwrap);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates("ca.pem"));
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = verifier.allow_unauthenticated().build().unwrap();
        let key = PrivateKeyDer::from_pem_file(dir.join("key.pem")).unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = config.with_client_cert_verifier(verifier);
        let config =
            Arc::new(config.with_single_cert(certificates("cert.pem").collect(), key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Log::default();
        let kept = Arc::clone(&log);
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let config = Arc::clone(&config);
                let log = Arc::clone(&kept);
                let answer = Arc::clone(&answer);
                std::thread::spawn(move || {
                    let connection = ServerConnection::new(config).unwrap();
                    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if !stream.read_line(&mut head).is_ok_and(|read| read > 0) {
                            return;
                        }
                    }
                    let stream = stream.get_mut();
                    let first = head.lines().next().unwrap().to_owned();
                    log.lock().unwrap().push((first, stream.conn.peer_certificates().is_some()));
                    let _ = stream.write_all(answer(&head).as_bytes());
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                });
            }
        });
        Tls { port, log }
    }

    fn requests(&self) -> Vec<(String, bool)> {
        self.log.lock().unwrap().clone()
    }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn blob() -> Descriptor {
    Descriptor::of("x/y", b"x")
}

async fn get(host: &str, config: ClientConfig) -> Result<Bytes, RegistryError> {
    // Always use TLS, as for a registry on another machine.
    let config = ClientConfig { plain_http: Some(false), ..config };
    Client::new(config).unwrap().repository(host, "a/b").unwrap().blob_bytes(&blob(), 1).await
}

fn trusting(file: PathBuf) -> ClientConfig {
    ClientConfig { ca_files: vec![file], ..config() }
}

#[tokio::test]
async fn the_client_certificate_is_sent_only_to_its_registry() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = private_ca(dir.path()) else { return };
    let at = |name: &str| dir.path().join(name);
    let token = r#"{"token":"t"}"#;
    let other =
        Tls::start(dir.path(), move |head| ok(if head.contains("/token") { token } else { "x" }));
    let elsewhere = format!("https://localhost:{}", other.port);
    let registry = Tls::start(dir.path(), move |head| {
        let end = "Content-Length: 0\r\nConnection: close\r\n\r\n";
        if head.to_ascii_lowercase().contains("authorization: bearer t") {
            let path = head.split(' ').nth(1).unwrap();
            format!("HTTP/1.1 307 Moved\r\nLocation: {elsewhere}{path}\r\n{end}")
        } else {
            let challenge = format!("WWW-Authenticate: Bearer realm=\"{elsewhere}/token\"");
            format!("HTTP/1.1 401 Unauthorized\r\n{challenge}\r\n{end}")
        }
    });
    let host = format!("127.0.0.1:{}", registry.port);
    let given = ClientConfig {
        client_cert: Some(at("cert.pem")),
        client_key: Some(at("key.pem")),
        ..trusting(at("ca.pem"))
    };
    // The same from a folder, which also provides the authority for hosts to which the registry
    // redirects.
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join(&host)).unwrap();
    for (from, to) in [("ca.pem", "ca.crt"), ("cert.pem", "me.cert"), ("key.pem", "me.key")] {
        std::fs::copy(at(from), folder.path().join(&host).join(to)).unwrap();
    }
    let found = ClientConfig { certs_d: Some(vec![folder.path().to_owned()]), ..config() };
    for config in [given, found] {
        registry.log.lock().unwrap().clear();
        other.log.lock().unwrap().clear();
        assert_eq!(get(&host, config).await.unwrap(), "x");
        let own = registry.requests();
        let others = other.requests();
        assert!(own.len() == 2 && own.iter().all(|(_, shown)| *shown), "{own:?}");
        assert!(others.len() == 2 && others.iter().all(|(_, shown)| !*shown), "{others:?}");
        assert!(others[0].0.contains("/token") && others[1].0.contains("/blobs/"), "{others:?}");
    }
    let stranger = tempfile::tempdir().unwrap();
    let Some(()) = private_ca(stranger.path()) else { return };
    let cert = Some(at("cert.pem"));
    let key = Some(stranger.path().join("key.pem"));
    let mixed = ClientConfig { client_cert: cert, client_key: key, ..trusting(at("ca.pem")) };
    assert!(matches!(Client::new(mixed), Err(RegistryError::ClientKey)));
}

/// A self-signed certificate as in docker's documentation: `cert.pem`, `key.pem`, and a copy of the
/// first as `ca.pem`.
fn self_signed(dir: &Path, days: &str) -> Option<()> {
    let openssl = tool("openssl")?;
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let key = at("key.pem");
    let cert = at("cert.pem");
    let request = at("request.pem");
    let extensions = at("extensions");
    std::fs::write(
        &extensions,
        "subjectAltName=DNS:localhost\nbasicConstraints=critical,CA:TRUE\n",
    )
    .unwrap();
    let ask = [
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-keyout",
        &key,
        "-out",
        &request,
    ];
    run(&openssl, &ask);
    let sign =
        ["x509", "-req", "-in", &request, "-signkey", &key, "-days", days, "-extfile", &extensions];
    run(&openssl, &[&sign[..], &["-out", &cert]].concat());
    std::fs::copy(cert, at("ca.pem")).unwrap();
    Some(())
}

#[tokio::test]
async fn a_self_signed_certificate_is_trusted_only_for_its_registry() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = self_signed(dir.path(), "30") else { return };
    let given = || trusting(dir.path().join("cert.pem"));
    let server = Tls::start(dir.path(), |_| ok("x"));
    let host = format!("localhost:{}", server.port);
    let by_address = format!("127.0.0.1:{}", server.port);
    assert_eq!(get(&host, given()).await.unwrap(), "x");
    let error = get(&by_address, given()).await.unwrap_err();
    assert_eq!(error.untrusted(), Some(CertificateFault::Name), "{error:?}");
    assert!(
        everything(&error).contains("its certificate is for localhost, not for 127.0.0.1"),
        "{error:?}"
    );

    let error = get(&host, config()).await.unwrap_err();
    assert_eq!(error.untrusted(), Some(CertificateFault::Authority), "{error:?}");
    let another = tempfile::tempdir().unwrap();
    self_signed(another.path(), "30").unwrap();
    let error = get(&host, trusting(another.path().join("cert.pem"))).await.unwrap_err();
    assert_eq!(
        error.untrusted(),
        Some(CertificateFault::Authority),
        "another one of the same name: {error:?}"
    );
    assert_eq!(server.requests().len(), 1, "nothing is sent to one that is not trusted");
}

#[test]
fn a_self_signed_certificate_in_the_systems_store_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = self_signed(dir.path(), "30") else { return };
    let mut child =
        crate::support::this_test(module_path!(), "child_with_a_self_signed_certificate");
    child
        .arg("--ignored")
        .env("SSL_CERT_FILE", dir.path().join("cert.pem"))
        .env("TEST_CERTIFICATES", dir.path());
    let output = child.output().unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
#[ignore = "run by a_self_signed_certificate_in_the_systems_store_is_trusted, in a process of its own"]
async fn child_with_a_self_signed_certificate() {
    let dir = PathBuf::from(std::env::var("TEST_CERTIFICATES").unwrap());
    let server = Tls::start(&dir, |_| ok("x"));
    assert_eq!(get(&format!("localhost:{}", server.port), config()).await.unwrap(), "x");
    let error = get(&format!("127.0.0.1:{}", server.port), config()).await.unwrap_err();
    assert_eq!(error.untrusted(), Some(CertificateFault::Name), "{error:?}");
}

#[tokio::test]
async fn an_expired_pinned_certificate_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = self_signed(dir.path(), "0") else { return };
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let server = Tls::start(dir.path(), |_| ok("x"));
    let error = get(&format!("localhost:{}", server.port), trusting(dir.path().join("cert.pem")))
        .await
        .unwrap_err();
    assert_eq!(error.untrusted(), Some(CertificateFault::Expired), "{error:?}");
    assert!(everything(&error).contains("its certificate expired on "), "{error:?}");
}

#[tokio::test]
async fn a_wrong_authority_and_a_missing_one_have_different_errors() {
    let dir = tempfile::tempdir().unwrap();
    let another = tempfile::tempdir().unwrap();
    let (Some(()), Some(())) = (private_ca(dir.path()), private_ca(another.path())) else { return };
    let server = Tls::start(dir.path(), |_| ok("x"));
    let host = format!("localhost:{}", server.port);
    for (config, given) in [(config(), false), (trusting(another.path().join("ca.pem")), true)] {
        let error = get(&host, config).await.unwrap_err();
        assert_eq!(error.untrusted(), Some(CertificateFault::Issuer { given }), "{error:?}");
        assert!(!everything(&error).contains("UnknownIssuer"), "{error:?}");
    }
    // A server's own certificate is accepted in place of its authority's.
    assert_eq!(get(&host, trusting(dir.path().join("cert.pem"))).await.unwrap(), "x");
}
