//! Certificates: which are trusted, the errors for others, and which servers receive the client
//! certificate.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::*;
use ociseek_store::signatures;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::passes;
use ociseek_testkit::servers::{private_ca, run, tool};

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
        let provider = Arc::new(signatures::provider());
        let mut roots = RootCertStore::empty();
        let authorities = CertificateDer::pem_file_iter(dir.join("ca.pem")).unwrap();
        roots.add_parsable_certificates(authorities.map(Result::unwrap));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        Tls::with(dir, verifier.allow_unauthenticated().build().unwrap(), answer)
    }

    fn with(
        dir: &Path,
        verifier: Arc<dyn ClientCertVerifier>,
        answer: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Tls {
        let provider = Arc::new(signatures::provider());
        let certificates =
            |name: &str| CertificateDer::pem_file_iter(dir.join(name)).unwrap().map(Result::unwrap);
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
        ociseek_testkit::this_test(module_path!(), "child_with_a_self_signed_certificate");
    child
        .arg("--ignored")
        .env("SSL_CERT_FILE", dir.path().join("cert.pem"))
        .env("TEST_CERTIFICATES", dir.path());
    passes(&mut child);
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

/// Takes any client certificate, as servers in Go and OpenSSL do that only ask for one.
#[derive(Debug)]
struct AnyClient(Arc<rustls::crypto::CryptoProvider>);

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::server::danger::ClientCertVerified, rustls::Error> {
        Ok(rustls::server::danger::ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    /// A key that does not belong to the certificate is noticed by its server, but not here.
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

const EC_256: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
const EC_384: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-384"];
const EC_521: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-521"];
const SERVER: &str = "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n";

/// An authority with this key: `ca.pem`, `ca-key.pem`.
fn authority(dir: &Path, key: &[&str], hash: &str) -> Option<()> {
    let openssl = tool("openssl")?;
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let ask = [&["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=ca", hash, "-newkey"], key];
    let out = [at("ca-key.pem"), at("ca.pem")];
    run(&openssl, &[&ask.concat()[..], &["-keyout", &out[0], "-out", &out[1]]].concat());
    Some(())
}

/// A certificate that the authority of `dir` signs: `NAME.pem`, `NAME-key.pem`. Without extensions,
/// of version 1.
fn issued(dir: &Path, name: &str, key: &[&str], hash: &str, extensions: &str) -> Option<()> {
    let openssl = tool("openssl")?;
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let [key_file, request, cert] =
        [format!("{name}-key.pem"), "request.pem".to_owned(), format!("{name}.pem")]
            .map(|it| at(&it));
    let ask = [&["req", "-nodes", "-subj", "/CN=leaf", "-newkey"], key].concat();
    run(&openssl, &[&ask[..], &["-keyout", &key_file, "-out", &request]].concat());
    let [ca, ca_key, text] = ["ca.pem", "ca-key.pem", "extensions"].map(at);
    std::fs::write(&text, extensions).unwrap();
    let mut sign = vec!["x509", "-req", "-in", &request, "-CA", &ca, "-CAkey", &ca_key, "-days"];
    sign.extend(["30", "-CAcreateserial", hash, "-out", &cert]);
    if !extensions.is_empty() {
        sign.extend(["-extfile", &text]);
    }
    run(&openssl, &sign);
    Some(())
}

fn named(dir: &Path, from: &str) {
    std::fs::rename(dir.join(format!("{from}.pem")), dir.join("cert.pem")).unwrap();
    std::fs::rename(dir.join(format!("{from}-key.pem")), dir.join("key.pem")).unwrap();
}

/// Each from a report of a client that is stricter than Go's.
#[tokio::test]
async fn keys_and_hashes_of_private_authorities_are_read() {
    for (source, ca, ca_hash, leaf, leaf_hash) in [
        ("control", EC_256, "-sha256", EC_384, "-sha384"),
        ("smallstep", &["ed25519"], "-sha256", &["ed25519"], "-sha256"),
        ("control", &["rsa:2048"], "-sha512", &["rsa:2048"], "-sha384"),
        ("rustls/webpki#267", EC_384, "-sha384", EC_256, "-sha512"),
        ("kanidm#4002, reqwest#2925", EC_256, "-sha256", EC_384, "-sha512"),
        ("turborepo#13035", EC_521, "-sha512", EC_256, "-sha512"),
        ("rustls#1367", EC_384, "-sha384", EC_521, "-sha384"),
        ("openssl's default hash", EC_521, "-sha256", EC_521, "-sha256"),
        ("rustls#1367", EC_521, "-sha384", EC_521, "-sha384"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let Some(()) = authority(dir.path(), ca, ca_hash) else { return };
        issued(dir.path(), "leaf", leaf, leaf_hash, SERVER).unwrap();
        named(dir.path(), "leaf");
        let server = Tls::start(dir.path(), |_| ok("x"));
        let host = format!("localhost:{}", server.port);
        let read = get(&host, trusting(dir.path().join("ca.pem"))).await;
        assert_eq!(read.unwrap_or_else(|error| panic!("{source}: {error:?}")), "x");
        // Another authority of the same name and kind.
        let other = tempfile::tempdir().unwrap();
        authority(other.path(), ca, ca_hash).unwrap();
        let error = get(&host, trusting(other.path().join("ca.pem"))).await.unwrap_err();
        let given = Some(CertificateFault::Issuer { given: true });
        assert_eq!(error.untrusted(), given, "{source}: {error:?}");
        // And one of another kind, whose key cannot have signed it.
        let kind = if ca[0].starts_with("rsa") { EC_256 } else { &["rsa:2048"][..] };
        authority(other.path(), kind, "-sha256").unwrap();
        let error = get(&host, trusting(other.path().join("ca.pem"))).await.unwrap_err();
        assert_eq!(error.untrusted(), given, "{source}, another kind: {error:?}");
    }
}

/// openssl as a server that has all of P-521, in both versions of TLS: its certificate, its
/// authority's, the key exchange, and a client certificate that it wants.
#[tokio::test]
async fn openssl_is_understood_with_p_521_alone() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = authority(dir.path(), EC_521, "-sha512") else { return };
    issued(dir.path(), "leaf", EC_521, "-sha512", SERVER).unwrap();
    issued(dir.path(), "client", EC_521, "-sha512", "extendedKeyUsage=clientAuth\n").unwrap();
    for version in ["-tls1_2", "-tls1_3"] {
        let mut server = Command::new(tool("openssl").unwrap());
        server.current_dir(dir.path()).args(["s_server", "-accept", "127.0.0.1:0", "-WWW"]);
        server.args(["-cert", "leaf.pem", "-key", "leaf-key.pem", "-CAfile", "ca.pem", version]);
        server.args(["-Verify", "1", "-verify_return_error", "-groups", "P-521"]);
        server.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = ChildProcess::spawn(&mut server);
        let mut said = BufReader::new(server.stdout());
        let mut line = String::new();
        while !line.starts_with("ACCEPT ") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "it listens");
        }
        let port = line.trim().rsplit(':').next().unwrap();
        let config = ClientConfig {
            client_cert: Some(dir.path().join("client.pem")),
            client_key: Some(dir.path().join("client-key.pem")),
            ..trusting(dir.path().join("ca.pem"))
        };
        // Its answer arrives: it has no file with a colon in its name, and says so.
        let error = get(&format!("localhost:{port}"), config).await.unwrap_err();
        assert!(matches!(error, RegistryError::Size { .. }), "{version}: {error:?}");
    }
}

/// P-521, in both forms of its key, from a server that verifies what the key signs.
#[tokio::test]
async fn a_client_key_may_be_for_p_521() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = private_ca(dir.path()) else { return };
    let openssl = tool("openssl").unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    issued(dir.path(), "client", EC_521, "-sha256", "extendedKeyUsage=clientAuth\n").unwrap();
    let [key, alone] = ["client-key.pem", "alone.pem"].map(at);
    run(&openssl, &["ec", "-in", &key, "-out", &alone]);
    assert!(std::fs::read_to_string(&alone).unwrap().contains("BEGIN EC PRIVATE KEY"));
    let server = Tls::start(dir.path(), |_| ok("x"));
    let host = format!("localhost:{}", server.port);
    let with = |key: &str| ClientConfig {
        client_cert: Some(dir.path().join("client.pem")),
        client_key: Some(dir.path().join(key)),
        ..trusting(dir.path().join("ca.pem"))
    };
    for key in ["client-key.pem", "alone.pem"] {
        assert_eq!(get(&host, with(key)).await.unwrap(), "x", "{key}");
    }
    assert!(server.requests().iter().all(|(_, sent)| *sent));
    issued(dir.path(), "other", EC_521, "-sha256", "").unwrap();
    assert!(matches!(Client::new(with("other-key.pem")), Err(RegistryError::ClientKey)));
}

/// A certificate of an authority that another one signed (guest-components#1569, lnd#5450).
#[tokio::test]
async fn a_server_may_have_a_certificate_with_ca_true() {
    let leaf = "subjectAltName=DNS:localhost\nbasicConstraints=critical,CA:TRUE\n";
    let for_clients = format!("{leaf}extendedKeyUsage=clientAuth\n");
    let for_servers = format!("{leaf}extendedKeyUsage=serverAuth\n");
    for (extensions, is_read) in [(leaf, true), (&for_servers, true), (&for_clients, false)] {
        let dir = tempfile::tempdir().unwrap();
        let Some(()) = authority(dir.path(), EC_256, "-sha256") else { return };
        issued(dir.path(), "leaf", EC_256, "-sha256", extensions).unwrap();
        named(dir.path(), "leaf");
        let server = Tls::start(dir.path(), |_| ok("x"));
        let host = format!("localhost:{}", server.port);
        let given = || trusting(dir.path().join("ca.pem"));
        assert_eq!(get(&host, given()).await.is_ok(), is_read, "{extensions}");
        let error = get(&format!("127.0.0.1:{}", server.port), given()).await.unwrap_err();
        let fault = if is_read { CertificateFault::Name } else { CertificateFault::Authority };
        assert_eq!(error.untrusted(), Some(fault), "{error:?}");
        // Another authority of the same name.
        let other = tempfile::tempdir().unwrap();
        authority(other.path(), EC_256, "-sha256").unwrap();
        let error = get(&host, trusting(other.path().join("ca.pem"))).await.unwrap_err();
        assert_eq!(error.untrusted(), Some(CertificateFault::Authority), "{error:?}");
    }
}

/// `openssl x509 -req` makes certificates of version 1 (rustls#2364, ureq#1077).
#[tokio::test]
async fn client_certificates_of_every_kind_are_sent() {
    for (key, extensions) in
        [(EC_256, ""), (EC_384, "extendedKeyUsage=clientAuth\n"), (&["rsa:2048"][..], "")]
    {
        let dir = tempfile::tempdir().unwrap();
        let Some(()) = private_ca(dir.path()) else { return };
        issued(dir.path(), "client", key, "-sha256", extensions).unwrap();
        let provider = Arc::new(signatures::provider());
        let server = Tls::with(dir.path(), Arc::new(AnyClient(provider)), |_| ok("x"));
        let config = ClientConfig {
            client_cert: Some(dir.path().join("client.pem")),
            client_key: Some(dir.path().join("client-key.pem")),
            ..trusting(dir.path().join("ca.pem"))
        };
        assert_eq!(get(&format!("localhost:{}", server.port), config).await.unwrap(), "x");
        assert!(server.requests()[0].1, "it was sent: {key:?} {extensions}");
    }
}

/// As Go's `AppendCertsFromPEM`, but with a warning.
#[tokio::test]
async fn certificates_that_cannot_be_read_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = private_ca(dir.path()) else { return };
    let server = Tls::start(dir.path(), |_| ok("x"));
    let host = format!("localhost:{}", server.port);
    let right = std::fs::read_to_string(dir.path().join("ca.pem")).unwrap();
    let block =
        |text: &str| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    let at = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    for broken in [block("MAMCAQE="), block("!!!"), block("")] {
        for text in [format!("{broken}{right}"), format!("{right}{broken}")] {
            let file = at("bundle.pem", &text);
            let recorder = Arc::new(Recorder::default());
            let config = ClientConfig { progress: recorder.clone(), ..trusting(file.clone()) };
            assert_eq!(get(&host, config).await.unwrap(), "x", "{broken}");
            let warning = format!("{} has a certificate that cannot be read", file.display());
            assert!(recorder.warnings().concat().contains(&warning), "{broken}");
        }
        let error = Client::new(trusting(at("alone.pem", &broken))).err().unwrap();
        assert!(error.to_string().contains("alone.pem"), "{error}");
    }
    // An empty file beside the right one.
    let folder = dir.path().join(&host);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("ca.crt"), &right).unwrap();
    std::fs::write(folder.join("old.crt"), "").unwrap();
    let recorder = Arc::new(Recorder::default());
    let certs_d = Some(vec![dir.path().to_owned()]);
    let config = ClientConfig { certs_d, progress: recorder.clone(), ..config() };
    assert_eq!(get(&host, config).await.unwrap(), "x");
    assert!(recorder.warnings().concat().contains("old.crt has no certificate"));
}

/// Harbor and others behind a proxy for TLS (goharbor/harbor#3933, goharbor/harbor#20530,
/// artifact-keeper#316): the token service has the registry's host, but not its scheme.
#[tokio::test]
async fn a_token_service_of_the_same_host_is_asked_by_https() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = private_ca(dir.path()) else { return };
    let server = Tls::start(dir.path(), |head| {
        let lower = head.to_ascii_lowercase();
        if head.starts_with("GET /token") {
            return ok(r#"{"token":"t"}"#);
        }
        if lower.contains("authorization: bearer t") {
            return ok("x");
        }
        let host = lower.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned();
        let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{host}/token\"");
        let end = "Content-Length: 0\r\nConnection: close\r\n\r\n";
        format!("HTTP/1.1 401 Unauthorized\r\n{challenge}\r\n{end}")
    });
    let host = format!("localhost:{}", server.port);
    assert_eq!(get(&host, trusting(dir.path().join("ca.pem"))).await.unwrap(), "x");
}
