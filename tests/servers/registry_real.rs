//! The registry client with real registries, whose content is then read by real clients.

use ociseek_testkit::image::image_manifest;
use ociseek_testkit::servers;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, Uri, header};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::progress::{ProgressEvent, Recorder};
use ociseek_store::blob::{AttachMethod, Target};
use ociseek_store::registry::{
    CertificateFault, Client, ClientConfig, CredentialSource, Limits, RegistryError, Repository,
};
use ociseek_testkit::blobs::{SOCI, content, index_manifest};
use ociseek_testkit::sandbox::{OCI_CONFIG, OCI_MANIFEST};
use ociseek_testkit::servers::{Server, htpasswd, private_ca, run, tool};
use serde_json::{Value, json};

const REPOSITORY: &str = "team/app";

fn config() -> ClientConfig {
    let limits = Limits { first_wait: Duration::from_millis(20), ..Limits::default() };
    ClientConfig { credentials: CredentialSource::Anonymous, limits, ..ClientConfig::default() }
}

fn as_user(host: &str, user: &str, password: &str) -> ClientConfig {
    let credentials = CredentialSource::Only {
        registry: host.into(),
        user: user.into(),
        password: password.into(),
    };
    ClientConfig { credentials, ..config() }
}

fn repository(host: &str, config: ClientConfig) -> Repository {
    Client::new(config).unwrap().repository(host, REPOSITORY).unwrap()
}

/// The image of the indexes.
fn subject() -> (Bytes, Descriptor) {
    let config = json!({"mediaType": OCI_CONFIG, "digest": Digest::sha256(b"{}"), "size": 2});
    let manifest = image_manifest(&config, &json!([]));
    let bytes = Bytes::from(manifest.to_string());
    (bytes.clone(), Descriptor::of(OCI_MANIFEST, &bytes))
}

async fn push(repository: &Repository, content: &Bytes) -> Descriptor {
    let blob = Descriptor::of("application/octet-stream", content);
    repository.push_blob(&blob, content.clone()).await.unwrap();
    blob
}

/// Pushes blobs and attaches an index with this name. Returns the index's digest and how it was
/// attached.
async fn attach(
    repository: &Repository,
    name: &str,
    replaces: &[Digest],
) -> Result<(Digest, AttachMethod), RegistryError> {
    repository.push_blob(&Descriptor::of(SOCI, b"{}"), Bytes::from_static(b"{}")).await?;
    let layer = push(repository, &content(5000)).await;
    let (bytes, index) = index_manifest(&subject().1, &[&layer], name);
    let report = repository.attach(&index, bytes, &subject().1, replaces).await?;
    assert_eq!(report.not_deleted, []);
    Ok((index.digest, report.attached))
}

/// Uses every function of the client once.
async fn round(host: &str, config: ClientConfig) {
    let limits = Limits { monolithic: 1 << 20, chunk: 700_000, ..config.limits.clone() };
    let repository = repository(host, ClientConfig { limits, ..config });
    // In one request, in chunks, and without content.
    for length in [1000, 2_000_000, 0] {
        let content = content(length);
        let blob = Descriptor::of("application/octet-stream", &content);
        assert!(!repository.blob_exists(&blob.digest, None).await.unwrap());
        assert!(repository.push_blob(&blob, content.clone()).await.unwrap());
        assert!(!repository.push_blob(&blob, content.clone()).await.unwrap());
        assert!(repository.blob_exists(&blob.digest, None).await.unwrap());
        assert_eq!(repository.blob_bytes(&blob, 2_000_000).await.unwrap(), content);
        let wrong = Descriptor { size: blob.size + 1, ..blob.clone() };
        let error = repository.blob_bytes(&wrong, 3_000_000).await.unwrap_err();
        assert!(matches!(error, RegistryError::Size { .. }), "{error:?}");
    }
    let error = repository.manifest(&Target::Tag("none".into())).await.unwrap_err();
    assert!(error.is_not_found(), "{error:?}");

    let (old, _) = attach(&repository, "old", &[]).await.unwrap();
    let (again, _) = attach(&repository, "old", &[]).await.unwrap();
    assert_eq!(old, again);
    let found = repository.referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
    assert_eq!(found.descriptors.iter().map(|found| found.digest).collect::<Vec<_>>(), [old]);
    let (new, attached) = attach(&repository, "new", &[old]).await.unwrap();
    assert_eq!(found.api, attached == AttachMethod::ReferrersApi);
    let found = repository.referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
    assert_eq!(found.descriptors.iter().map(|found| found.digest).collect::<Vec<_>>(), [new]);
    assert_eq!(found.descriptors[0].annotations["name"], "new");
    let document = repository.manifest(&Target::Digest(new)).await.unwrap();
    assert_eq!(document.media_type, OCI_MANIFEST);
    assert!(repository.manifest(&Target::Digest(old)).await.unwrap_err().is_not_found());
}

/// The referrers of the subject according to regctl and oras.
fn read_by_others(server: &Server, oras_options: &[&str]) -> Option<[Vec<String>; 2]> {
    let regctl = tool("regctl")?;
    let oras = tool("oras")?;
    let subject = format!("{}/{REPOSITORY}@{}", server.host, subject().1.digest);
    let registry = format!("reg={},tls=disabled", server.host);
    let seen = run(
        &regctl,
        &[
            "--host",
            &registry,
            "artifact",
            "list",
            &subject,
            "--filter-artifact-type",
            SOCI,
            "--format",
            "body",
        ],
    );
    let index: Value = serde_json::from_str(&seen).unwrap();
    let digests = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|one| one["digest"].as_str().unwrap().to_owned())
            .collect()
    };
    let by_regctl = digests(&index["manifests"]);
    let discover =
        ["discover", "--plain-http", "--artifact-type", SOCI, "--format", "json", &subject];
    let seen = run(&oras, &[&discover, oras_options].concat());
    let tree: Value = serde_json::from_str(&seen).unwrap();
    let by_oras = digests(&tree["referrers"]);
    Some([by_regctl, by_oras])
}

/// Attaches an index to an existing image, and lets other clients read the result.
async fn attach_for_others(server: &Server, oras_options: &[&str]) -> Option<AttachMethod> {
    let repository = repository(&server.host, config());
    push(&repository, &Bytes::from_static(b"{}")).await;
    server.put_manifest(REPOSITORY, "latest", OCI_MANIFEST, &subject().0);
    let document = repository.manifest(&Target::Tag("latest".into())).await.unwrap();
    assert_eq!((document.digest, document.bytes), (subject().1.digest, subject().0));
    let (old, _) = attach(&repository, "old", &[]).await.unwrap();
    let (new, attached) = attach(&repository, "new", &[old]).await.unwrap();
    assert_eq!(read_by_others(server, oras_options)?, [[new.to_string()], [new.to_string()]]);
    // The image is unchanged.
    let document = repository.manifest(&Target::Tag("latest".into())).await.unwrap();
    assert_eq!(document.bytes, subject().0);
    Some(attached)
}

fn tag() -> String {
    format!("sha256-{}", subject().1.digest.hex())
}

fn no_more(_: &Path) -> String {
    String::new()
}

#[tokio::test]
async fn distribution() {
    let Some(server) = Server::distribution("127.0.0.1:0", no_more) else { return };
    round(&server.host, config()).await;
    // A new registry, so that the others read the result of a single run.
    let Some(server) = Server::distribution("127.0.0.1:0", no_more) else { return };
    assert_eq!(
        attach_for_others(&server, &[]).await.unwrap_or(AttachMethod::TagSchema(tag())),
        AttachMethod::TagSchema(tag())
    );
}

#[tokio::test]
async fn distribution_by_ipv6() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return servers::skip("this machine has no IPv6");
    }
    let Some(server) = Server::distribution("[::1]:0", no_more) else { return };
    assert!(server.host.starts_with("[::1]:"), "{}", server.host);
    round(&server.host, config()).await;
}

#[tokio::test]
async fn distribution_with_passwords() {
    let Some(line) = htpasswd("u", "p:q") else { return };
    let sections = |dir: &Path| {
        std::fs::write(dir.join("passwords"), line).unwrap();
        format!("auth: {{htpasswd: {{realm: r, path: '{}'}}}}\n", dir.join("passwords").display())
    };
    let Some(server) = Server::distribution("127.0.0.1:0", sections) else { return };
    round(&server.host, as_user(&server.host, "u", "p:q")).await;
    for config in [as_user(&server.host, "u", "hunter2"), config()] {
        let error =
            repository(&server.host, config).manifest(&Target::Tag("t".into())).await.unwrap_err();
        assert!(error.is_unauthorized(), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn distribution_with_tls_of_a_private_authority() {
    let Some(server) = Server::distribution_with_tls() else { return };
    let trusting = || ClientConfig { ca_files: vec![server.dir.path().join("ca.pem")], ..config() };
    round(&server.host, trusting()).await;
    let by_name = format!("localhost:{}", server.port());
    let get = |config: ClientConfig| {
        let repository = repository(&by_name, config);
        async move { repository.manifest(&Target::Tag("none".into())).await.unwrap_err() }
    };
    assert!(get(trusting()).await.is_not_found());
    assert!(get(ClientConfig { insecure_skip_tls_verify: true, ..config() }).await.is_not_found());
    // A certificate of an unknown authority is not retried.
    let error = get(ClientConfig { plain_http: Some(false), ..config() }).await;
    assert_eq!(error.untrusted(), Some(CertificateFault::Issuer { given: false }), "{error:?}");
    assert!(matches!(error, RegistryError::Transport { .. }), "{error:?}");
    // HTTP to a registry that uses HTTPS: the error says so.
    let error = get(config()).await;
    assert!(
        error
            .to_string()
            .contains("400 Bad Request: Client sent an HTTP request to an HTTPS server"),
        "{error}"
    );
}

#[tokio::test]
async fn distribution_with_client_certificates() {
    let mut authority = Some(());
    let sections = |dir: &Path| {
        authority = private_ca(dir);
        let at = |name: &str| dir.join(name).display().to_string();
        format!(
            "  tls: {{certificate: '{}', key: '{}', clientcas: ['{}']}}\n",
            at("cert.pem"),
            at("key.pem"),
            at("ca.pem")
        )
    };
    let Some(server) = Server::distribution("127.0.0.1:0", sections) else { return };
    let Some(()) = authority else { return };
    let at = |name: &str| server.dir.path().join(name);
    let stranger = || ClientConfig { ca_files: vec![at("ca.pem")], ..config() };
    let known = ClientConfig {
        client_cert: Some(at("cert.pem")),
        client_key: Some(at("key.pem")),
        ..stranger()
    };
    round(&server.host, known).await;
    let error =
        repository(&server.host, stranger()).manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert!(error.wants_client_certificate(), "{error:?}");
    // The same from docker's folder.
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().join(&server.host);
    std::fs::create_dir(&host).unwrap();
    for (from, to) in [("ca.pem", "ca.crt"), ("cert.pem", "client.cert"), ("key.pem", "client.key")]
    {
        std::fs::copy(at(from), host.join(to)).unwrap();
    }
    let certs_d = Some(vec![folder.path().to_owned()]);
    let error = repository(&server.host, ClientConfig { certs_d, ..config() })
        .manifest(&Target::Tag("t".into()))
        .await;
    assert!(error.unwrap_err().is_not_found());
}

/// The keys and certificate of a token service, made by openssl.
struct Issuer {
    openssl: PathBuf,
    dir: tempfile::TempDir,
}

impl Issuer {
    fn new() -> Option<Issuer> {
        let openssl = tool("openssl")?;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let make =
            ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=issuer"];
        run(&openssl, &[&make[..], &["-keyout", &at("key.pem"), "-out", &at("cert.pem")]].concat());
        Some(Issuer { openssl, dir })
    }

    /// A token (RFC 7519) for `scope`, as far as the user has access. Anyone may pull.
    fn token(&self, scope: &str, user: Option<&str>) -> String {
        let certificate = std::fs::read_to_string(self.dir.path().join("cert.pem")).unwrap();
        let certificate: String =
            certificate.lines().filter(|line| !line.starts_with('-')).collect();
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let (kind, rest) = scope.split_once(':').unwrap();
        let (name, actions) = rest.rsplit_once(':').unwrap();
        let actions: Vec<&str> =
            actions.split(',').filter(|action| *action == "pull" || user.is_some()).collect();
        let claims = json!({
            "iss": "issuer", "sub": user.unwrap_or_default(), "aud": "service",
            "exp": now + 60, "nbf": now - 10, "iat": now, "jti": now.to_string(),
            "access": [{"type": kind, "name": name, "actions": actions}],
        });
        let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let head = json!({"typ": "JWT", "alg": "RS256", "x5c": [certificate]});
        let signed = format!("{}.{}", encode(&head), encode(&claims));
        // A folder for each, because tokens may be requested at the same time.
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("text");
        let signature = dir.path().join("signature");
        std::fs::write(&text, &signed).unwrap();
        let key = self.dir.path().join("key.pem");
        let arguments = [
            "dgst",
            "-sha256",
            "-sign",
            key.to_str().unwrap(),
            "-out",
            signature.to_str().unwrap(),
            text.to_str().unwrap(),
        ];
        run(&self.openssl, &arguments);
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(std::fs::read(signature).unwrap()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distribution_with_tokens() {
    let Some(issuer) = Issuer::new() else { return };
    let certificate = issuer.dir.path().join("cert.pem").display().to_string();
    let issuer = Arc::new(issuer);
    let answer = async move |uri: Uri, headers: HeaderMap| {
        let query = uri
            .query()
            .unwrap_or_default()
            .replace("%3A", ":")
            .replace("%2F", "/")
            .replace("%2C", ",");
        let scope = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("scope="))
            .unwrap_or_default()
            .to_owned();
        let right = format!("Basic {}", BASE64_STANDARD.encode("u:p"));
        let user = match headers.get(header::AUTHORIZATION) {
            None => None,
            Some(shown) if *shown == *right => Some("u"),
            Some(_) => {
                return (StatusCode::UNAUTHORIZED, r#"{"details":"wrong password"}"#.to_owned());
            }
        };
        (StatusCode::OK, json!({"token": issuer.token(&scope, user), "expires_in": 60}).to_string())
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let realm = format!("http://{}/token", listener.local_addr().unwrap());
    tokio::spawn(async move {
        axum::serve(listener, axum::Router::new().route("/token", axum::routing::get(answer))).await
    });
    let sections = |_: &Path| {
        let token = format!(
            "{{realm: '{realm}', service: service, issuer: issuer, rootcertbundle: '{certificate}'}}"
        );
        format!("auth: {{token: {token}}}\n")
    };
    let Some(server) = Server::distribution("127.0.0.1:0", sections) else { return };
    round(&server.host, as_user(&server.host, "u", "p")).await;
    // Anyone may read, but nobody else may write.
    let anyone = repository(&server.host, config());
    assert!(anyone.manifest(&Target::Tag("none".into())).await.unwrap_err().is_not_found());
    let error = attach(&anyone, "x", &[]).await.err();
    assert!(error.is_none_or(|error| error.is_unauthorized()));
    let pushed = anyone.push_blob(&Descriptor::of("x/y", b"new"), Bytes::from_static(b"new")).await;
    assert!(pushed.as_ref().is_err_and(RegistryError::is_unauthorized), "{pushed:?}");
    let error = repository(&server.host, as_user(&server.host, "u", "hunter2"))
        .manifest(&Target::Tag("t".into()))
        .await
        .unwrap_err();
    assert!(matches!(error, RegistryError::Token { .. }) && error.is_unauthorized(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_attaching_to_distribution_loses_nothing() {
    let Some(server) = Server::distribution("127.0.0.1:0", no_more) else { return };
    let all: Vec<_> = (0..4)
        .map(|i| {
            let repository = repository(&server.host, config());
            tokio::spawn(async move { attach(&repository, &format!("w{i}"), &[]).await.unwrap().0 })
        })
        .collect();
    let mut attached = Vec::new();
    for one in all {
        attached.push(one.await.unwrap());
    }
    let found = repository(&server.host, config())
        .referrers(&subject().1.digest, Some(SOCI))
        .await
        .unwrap();
    let mut found: Vec<_> = found.descriptors.iter().map(|found| found.digest).collect();
    found.sort_unstable();
    attached.sort_unstable();
    assert_eq!(found, attached);
}

#[tokio::test]
async fn olareg() {
    let none = |_: &Path, _| vec![];
    let Some(server) = Server::olareg(none) else { return };
    round(&server.host, config()).await;
    let Some(server) = Server::olareg(none) else { return };
    assert_eq!(
        attach_for_others(&server, &[]).await.unwrap_or(AttachMethod::ReferrersApi),
        AttachMethod::ReferrersApi
    );
}

#[tokio::test]
async fn olareg_without_its_referrers_api() {
    let Some(server) = Server::olareg(|_, _| vec!["--api-referrer=false".into()]) else { return };
    round(&server.host, config()).await;
    let Some(server) = Server::olareg(|_, _| vec!["--api-referrer=false".into()]) else { return };
    // oras treats olareg's 405 as an error, so it needs this option.
    let by_tag = ["--distribution-spec", "v1.1-referrers-tag"];
    assert_eq!(
        attach_for_others(&server, &by_tag).await.unwrap_or(AttachMethod::TagSchema(tag())),
        AttachMethod::TagSchema(tag())
    );
}

#[tokio::test]
async fn olareg_with_passwords_and_with_tokens() {
    let Some(line) = htpasswd("alice", "pw") else { return };
    let hash = line.trim().split_once(':').unwrap().1.to_owned();
    let users = format!(
        "users:\n  alice:\n    cred: '{hash}'\nacls:\n  - repo: '*'\n    members: ['alice']\n    access: \
         ['read', 'write', 'delete']\n"
    );
    for kind in ["--auth-basic", "--auth-token-opaque"] {
        let arguments = |dir: &Path, port| {
            let file = dir.join("users.yaml");
            std::fs::write(&file, &users).unwrap();
            vec![
                format!("{kind}={}", file.display()),
                format!("--external-url=http://127.0.0.1:{port}"),
            ]
        };
        let Some(server) = Server::olareg(arguments) else { return };
        round(&server.host, as_user(&server.host, "alice", "pw")).await;
        for config in [as_user(&server.host, "alice", "hunter2"), config()] {
            let error = repository(&server.host, config)
                .manifest(&Target::Tag("t".into()))
                .await
                .unwrap_err();
            assert!(matches!(error.status(), Some(401 | 403)), "{kind}: {error:?}");
        }
    }
}

#[tokio::test]
async fn olareg_with_a_rate_limit() {
    let Some(server) = Server::olareg(|_, _| vec!["--rate-limit=2".into()]) else { return };
    let repository = repository(&server.host, config());
    for i in 0..4 {
        push(&repository, &content(10 + i)).await;
    }
    attach(&repository, "x", &[]).await.unwrap();
}

#[tokio::test]
async fn olareg_with_warnings() {
    let Some(server) = Server::olareg(|_, _| vec!["--warning=moving away".into()]) else { return };
    let recorder = Arc::new(Recorder::default());
    round(&server.host, ClientConfig { progress: recorder.clone(), ..config() }).await;
    assert_eq!(
        recorder.events(),
        [ProgressEvent::Warning(format!("{} says: moving away", server.host))]
    );
}

#[tokio::test]
async fn olareg_with_tls_of_a_private_authority() {
    let mut authority = Some(());
    let arguments = |dir: &Path, _| {
        authority = private_ca(dir);
        let at = |name: &str| dir.join(name).display().to_string();
        vec![format!("--tls-cert={}", at("cert.pem")), format!("--tls-key={}", at("key.pem"))]
    };
    let Some(server) = Server::olareg(arguments) else { return };
    let Some(()) = authority else { return };
    round(
        &server.host,
        ClientConfig { ca_files: vec![server.dir.path().join("ca.pem")], ..config() },
    )
    .await;
}

#[tokio::test]
async fn cranes_registry() {
    let Some(server) = Server::crane() else { return };
    round(&server.host, config()).await;
}

/// Several clients each attach an index to one image at the same time. No index that was reported
/// as attached is lost, unless the registry loses it: olareg 0.2.2 updates its lists without a lock
/// (`referrerAdd` in its referrer.go). Then the next run attaches it again. `OCISEEK_PUSHERS=64`
/// uses 64 clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_pushers_to_one_subject_lose_nothing() {
    let pushers =
        std::env::var("OCISEEK_PUSHERS").map_or(12, |pushers| pushers.parse().expect("a number"));
    let with_api = Server::olareg(|_, _| Vec::new());
    let without = Server::distribution("127.0.0.1:0", |_| String::new());
    for server in [with_api, without].into_iter().flatten() {
        push(&repository(&server.host, config()), &Bytes::from_static(b"{}")).await;
        let all: Vec<_> = (0..pushers)
            .map(|number| {
                // Separate clients, which only share the registry.
                let repository = repository(&server.host, config());
                let name = format!("pusher {number}");
                tokio::spawn(async move {
                    attach(&repository, &name, &[]).await.map(|(digest, _)| (name, digest))
                })
            })
            .collect();
        let mut attached = Vec::new();
        let mut refused = 0;
        for one in all {
            match one.await.unwrap() {
                Ok(named) => attached.push(named),
                Err(error) => {
                    assert!(error.to_string().contains("others overwrote our change"), "{error:?}");
                    refused += 1;
                }
            }
        }
        let lost = async || {
            let found = repository(&server.host, config())
                .referrers(&subject().1.digest, Some(SOCI))
                .await
                .unwrap();
            let is_lost = |(_, digest): &&(String, Digest)| {
                found.descriptors.iter().all(|one| one.digest != *digest)
            };
            (found.api, attached.iter().filter(is_lost).cloned().collect::<Vec<(String, Digest)>>())
        };
        let (api, lost_at_first) = lost().await;
        let all = attached.len();
        let one = lost_at_first.len();
        println!(
            "API {api}: {pushers} pushers, {all} attached, {refused} refused, {one} lost by the registry"
        );
        assert!(api || lost_at_first.is_empty(), "{lost_at_first:?}");
        for (name, digest) in lost_at_first {
            assert_eq!(
                attach(&repository(&server.host, config()), &name, &[]).await.unwrap().0,
                digest
            );
        }
        assert_eq!((lost().await.1, attached.len() + refused), (Vec::new(), pushers));
        assert!(attached.len() > pushers / 2, "{refused} of {pushers} could not attach");
    }
}
