//! Sends requests that read to the mirrors of a registry before the registry itself.
//!
//! A mirror is a registry of its own for everything that protects logins: its credentials are those
//! stored under its name, and its certificates and headers are not used elsewhere.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::HeaderMap;
use tokio::time::{Instant, timeout};
use tracing::debug;
use url::Url;

use super::TARGET;
use super::auth::Scope;
use super::backoff::MirrorFailures;
use super::error::RegistryError;
use super::hosts::{Capabilities, MirrorConfig};
use super::request::Request;
use super::response::Response;

/// How long a mirror may take to begin its answer, and be silent or trickle in it: others have the
/// content, too. A pull waits for it (bottlerocket-os/bottlerocket#4564); containerd gives up a
/// connection after 30 s.
const ANSWER: Duration = Duration::from_secs(3);

/// Sends requests to one host.
pub(super) trait AskedHost {
    fn name(&self) -> &str;

    async fn base(&self) -> Result<&Url, RegistryError>;

    /// Makes one try, with the authorization of this host, and follows redirects.
    async fn follow(
        &self,
        request: &Request,
        scope: &Scope,
        attempt: u32,
    ) -> Result<Response, RegistryError>;
}

pub(super) struct Mirror<H> {
    host: H,
    /// The path of its API.
    root: String,
    capabilities: Capabilities,
    headers: HeaderMap,
    /// The registry that it mirrors, if its name is another one.
    namespace: Option<String>,
    failures: Arc<MirrorFailures>,
}

/// The name of a mirror, under which its logins are stored.
pub(super) fn name_of(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    match url.host_str().unwrap_or_default() {
        "registry-1.docker.io" => "docker.io".to_owned(),
        host => format!("{host}{port}"),
    }
}

impl<H: AskedHost> Mirror<H> {
    /// `host` for the registry `of`.
    pub(super) fn new(host: H, of: &str, mirror: MirrorConfig) -> Mirror<H> {
        let root = mirror.url.path().trim_end_matches('/').to_owned();
        let namespace = (host.name() != of).then(|| of.to_owned());
        let MirrorConfig { capabilities, headers, .. } = mirror;
        Mirror { host, root, capabilities, headers, namespace, failures: Arc::default() }
    }

    /// The same request to this host. None if it is not for the API.
    async fn redirected(&self, request: &Request) -> Option<Request> {
        let path = request.url.path().strip_prefix("/v2/")?;
        let mut url: Url = self.host.base().await.ok()?.clone();
        url.set_path(&format!("{}/{path}", self.root));
        url.set_query(request.url.query());
        if let Some(namespace) = &self.namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        let mut request = request.clone();
        request.url = url;
        request.own_headers = self.headers.clone();
        Some(request)
    }

    async fn follow(
        &self,
        request: &Request,
        scope: &Scope,
    ) -> Option<Result<Response, RegistryError>> {
        let request = self.redirected(request).await?;
        let answered = self.host.follow(&request, &self.scope(scope), request.next_try()).await;
        self.failures.note(Instant::now(), answered.is_err());
        Some(answered)
    }

    /// The repository has another name where the API has another path below `/v2`.
    fn scope(&self, scope: &Scope) -> Scope {
        let below = self.root.strip_prefix("/v2/").filter(|below| !below.is_empty());
        let repository = below.map(|below| format!("{below}/{}", scope.repository).into());
        Scope {
            repository: repository.unwrap_or_else(|| Arc::clone(&scope.repository)),
            ..scope.clone()
        }
    }
}

/// The hosts that are asked for a registry's content.
pub(super) struct Mirrors<H> {
    /// In this order, before the registry.
    pub first: Vec<Mirror<H>>,
    /// In place of the registry.
    pub server: Option<Box<Mirror<H>>>,
}

impl<H> Default for Mirrors<H> {
    fn default() -> Mirrors<H> {
        Mirrors { first: Vec::new(), server: None }
    }
}

impl<H: AskedHost> Mirrors<H> {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.server.is_none()
    }

    /// The answer of a mirror that has the content. None if the registry must be asked.
    pub(super) async fn answer(
        &self,
        request: &Request,
        scope: &Scope,
    ) -> Option<Result<Response, RegistryError>> {
        if self.is_empty() || !matches!(request.method, Method::GET | Method::HEAD) {
            return None;
        }
        // A mirror is a cache: what was wrong is read again from its source.
        let asked =
            self.first.iter().filter(|_| !request.is_past_caches() && !request.skips_mirrors);
        for mirror in asked
            .filter(|mirror| may_answer(mirror.capabilities, request.url.path()))
            .filter(|mirror| !mirror.failures.rests(Instant::now()))
        {
            let Ok(answer) = timeout(ANSWER, mirror.follow(request, scope)).await else {
                mirror.failures.note(Instant::now(), true);
                debug!(name: "mirror", target: TARGET, mirror = mirror.host.name(), silent = true);
                continue;
            };
            match answer? {
                // A page to log in is not the content (containerd/containerd#7400). Blobs may be
                // labelled as one by their first bytes.
                Ok(response)
                    if response.is_web_page() && !request.url.path().contains("/blobs/") =>
                {
                    debug!(name: "mirror", target: TARGET, mirror = mirror.host.name(), page = true);
                }
                Ok(response) if response.status().is_success() => {
                    return Some(Ok(response.of_mirror(ANSWER, Arc::clone(&mirror.failures))));
                }
                Ok(response) => {
                    let mirror = mirror.host.name();
                    let status = response.status().as_u16();
                    debug!(name: "mirror", target: TARGET, mirror, status);
                }
                Err(error) => {
                    debug!(name: "mirror", target: TARGET, mirror = mirror.host.name(), %error)
                }
            }
        }
        self.server.as_ref()?.follow(request, scope).await
    }
}

/// Whether a host with these capabilities may answer a request for this path. What has a digest
/// needs the least trust.
fn may_answer(capabilities: Capabilities, path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let last = parts.next().unwrap_or_default();
    match parts.next().unwrap_or_default() {
        "blobs" | "manifests" if last.contains(':') => capabilities.pulls,
        "referrers" => capabilities.lists_referrers,
        _ => capabilities.resolves,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::blob::Target;
    use crate::lock::Hold;
    use crate::registry::{Client, ClientConfig, CredentialSource, Repository};
    use ociseek_format::digest::Digest;

    const CONTENT: &str =
        r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json"}"#;
    const OTHER: &str = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","annotations":{}}"#;
    const EMPTY_LIST: &str = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}"#;
    const ASK: &str = "WWW-Authenticate: Basic realm=\"r\"\r\n";

    /// A server that notes the headers of its requests.
    struct Host {
        address: String,
        seen: Arc<Mutex<Vec<String>>>,
    }

    /// A server that answers the header of a request with a status, headers and a body.
    async fn host(
        answer: impl Fn(&str) -> (u16, &'static str, String) + Send + Sync + 'static,
    ) -> Host {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut header = Vec::new();
                while !header.ends_with(b"\r\n\r\n") {
                    header.push(stream.read_u8().await.unwrap());
                }
                let header = String::from_utf8(header).unwrap();
                let (status, headers, body) = answer(&header);
                noted.hold().push(header);
                let length = body.len();
                let kind = if body.contains("\"manifests\"") { "index" } else { "manifest" };
                let text = format!(
                    "HTTP/1.1 {status} S\r\nContent-Type: application/vnd.oci.image.{kind}.v1+json\r\n{headers}\
                     Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                // Clients need not read it.
                let _ = stream.write_all(text.as_bytes()).await;
            }
        });
        Host { address, seen }
    }

    async fn with(content: &'static str) -> Host {
        host(move |_| (200, "", content.to_owned())).await
    }

    impl Host {
        fn requests(&self) -> usize {
            self.seen.hold().len()
        }

        fn was_asked(&self, path: &str) -> bool {
            self.seen.hold().iter().any(|header| header.contains(path))
        }

        fn got_a_login(&self) -> bool {
            self.seen
                .hold()
                .iter()
                .any(|header| header.to_ascii_lowercase().contains("\nauthorization:"))
        }
    }

    /// The repository `a` of a registry with this `hosts.toml`. There is a login for the registry.
    fn repository(dir: &Path, registry: &str, text: &str) -> Repository {
        let folder = dir.join(registry.replace(':', "_") + "_");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("hosts.toml"), text).unwrap();
        let user = "user".to_owned();
        let password = "password".to_owned();
        let credentials = CredentialSource::Only { registry: registry.to_owned(), user, password };
        let config = ClientConfig {
            hosts_dir: Some(dir.to_owned()),
            credentials,
            ..ClientConfig::default()
        };
        Client::new(config).unwrap().repository(registry, "a").unwrap()
    }

    async fn content(repository: &Repository) -> Bytes {
        repository
            .manifest(&Target::Digest(Digest::sha256(CONTENT.as_bytes())))
            .await
            .unwrap()
            .bytes
    }

    fn table(host: &str, more: &str) -> String {
        format!("[host.\"http://{host}\"]\n{more}\n")
    }

    #[tokio::test]
    async fn the_first_mirror_with_the_content_answers() {
        let dir = tempfile::tempdir().unwrap();
        let own = with(CONTENT).await;
        let empty = host(|_| (404, "", String::new())).await;
        let full = with(CONTENT).await;
        let last = with(CONTENT).await;
        let gone =
            TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        let header =
            "[host.\"http://FULL\".header]\nx-key = \"secret\"\n".replace("FULL", &full.address);
        let text = [&gone, &empty.address, &full.address].map(|host| table(host, "")).concat()
            + &header
            + &table(&last.address, "");
        let repository = repository(dir.path(), &own.address, &text);
        for _ in 0..2 {
            assert_eq!(content(&repository).await, CONTENT);
        }
        assert_eq!([&own, &empty, &full, &last].map(Host::requests), [0, 2, 2, 0]);
        let seen = full.seen.hold()[0].clone();
        let path = format!("GET /v2/a/manifests/{}?ns=", Digest::sha256(CONTENT.as_bytes()));
        assert!(seen.starts_with(&path) && seen.contains("x-key: secret"), "{seen}");
        assert!(!empty.seen.hold().iter().any(|header| header.contains("x-key")));
    }

    #[tokio::test]
    async fn the_registry_is_asked_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let own = with(CONTENT).await;
        let lying = with(OTHER).await;
        let broken = host(|_| (500, "", String::new())).await;
        let text = [&broken, &lying]
            .map(|host| table(&host.address, "capabilities = [\"pull\"]"))
            .concat();
        let repository = repository(dir.path(), &own.address, &text);
        assert_eq!(content(&repository).await, CONTENT, "not what a mirror has in place of it");
        assert!(broken.requests() > 0 && lying.requests() > 0 && own.requests() > 0);
        // Hosts that may not resolve are not asked for tags.
        let manifest = repository.manifest(&Target::Tag("v1".to_owned())).await.unwrap();
        assert_eq!(manifest.bytes, CONTENT);
        assert!(
            !broken.was_asked("manifests/v1")
                && !lying.was_asked("manifests/v1")
                && own.was_asked("manifests/v1")
        );
    }

    #[tokio::test]
    async fn logins_are_for_their_own_host() {
        let dir = tempfile::tempdir().unwrap();
        let closed = |_: &str| (401, ASK, String::new());
        let mirror = host(closed).await;
        let server = host(closed).await;
        let own = host(|header| {
            if header.to_ascii_lowercase().contains("\nauthorization: basic ") {
                (200, "", CONTENT.to_owned())
            } else {
                (401, ASK, String::new())
            }
        });
        let own = own.await;
        let by_mirror = repository(dir.path(), &own.address, &table(&mirror.address, ""));
        assert_eq!(content(&by_mirror).await, CONTENT);
        assert!(own.got_a_login() && mirror.requests() > 0 && !mirror.got_a_login());
        // The server replaces the registry, and does not get its login either.
        let before = own.requests();
        let text = format!("server = \"http://{}\"", server.address);
        let error = repository(dir.path(), &own.address, &text)
            .manifest(&Target::Tag("v1".to_owned()))
            .await;
        assert_eq!(error.unwrap_err().status(), Some(401));
        assert!(server.requests() > 0 && !server.got_a_login());
        assert_eq!(own.requests(), before);
    }

    #[tokio::test]
    async fn a_mirror_without_referrers_does_not_hide_those_of_the_registry() {
        let list = EMPTY_LIST.replace(
            "[]",
            &format!(
                r#"[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{}","size":1,
                "artifactType":"some/type"}}]"#,
                Digest::sha256(b"x")
            ),
        );
        let dir = tempfile::tempdir().unwrap();
        let mirror = with(EMPTY_LIST).await;
        let own = host(move |header| {
            if header.contains("/referrers/") {
                (200, "", list.clone())
            } else {
                (404, "", String::new())
            }
        });
        let own = own.await;
        let repository = repository(dir.path(), &own.address, &table(&mirror.address, ""));
        let subject = Digest::sha256(CONTENT.as_bytes());
        let listed = repository.referrers(&subject, Some("some/type")).await.unwrap();
        assert_eq!(listed.descriptors.len(), 1);
        assert!(mirror.requests() > 0);
    }

    #[tokio::test]
    async fn headers_of_a_host_stay_there() {
        let dir = tempfile::tempdir().unwrap();
        let own = with(CONTENT).await;
        let storage = with(CONTENT).await;
        let location: &'static str =
            format!("Location: http://{}/blob\r\n", storage.address).leak();
        let mirror = host(move |_| (307, location, String::new())).await;
        let text = table(&mirror.address, "")
            + "[host.\"http://MIRROR\".header]\nauthorization = \"Bearer x\"\nx-key = \"secret\"\n"
                .replace("MIRROR", &mirror.address)
                .as_str();
        let repository = repository(dir.path(), &own.address, &text);
        assert_eq!(content(&repository).await, CONTENT);
        assert!(mirror.got_a_login() && mirror.was_asked("x-key: secret"));
        assert_eq!(storage.requests(), 1);
        assert!(!storage.got_a_login() && !storage.was_asked("x-key"));
        assert!(storage.was_asked("accept:"));
    }

    #[tokio::test]
    async fn a_silent_mirror_delays_the_next_one_for_seconds_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let own = with(CONTENT).await;
        // The kernel takes connections for it.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let full = with(CONTENT).await;
        let text = table(&silent.local_addr().unwrap().to_string(), "") + &table(&full.address, "");
        let repository = repository(dir.path(), &own.address, &text);
        let begun = Instant::now();
        for _ in 0..2 {
            assert_eq!(content(&repository).await, CONTENT);
        }
        // Without a limit it is 30 s.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        assert_eq!([&own, &full].map(Host::requests), [0, 2]);
    }

    /// Manifests and lists, of which a pull waits for several.
    #[tokio::test]
    async fn a_mirror_that_trickles_delays_the_next_one_once() {
        let dir = tempfile::tempdir().unwrap();
        let own = with(CONTENT).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let trickling = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(0));
        let noted = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                *noted.hold() += 1;
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.manifest.v1+json\r\n\
                     Content-Length: {}\r\n\r\n",
                    CONTENT.len()
                );
                let _ = stream.write_all(head.as_bytes()).await;
                for byte in CONTENT.as_bytes().chunks(1) {
                    let _ = stream.write_all(byte).await;
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        });
        let repository = repository(dir.path(), &own.address, &table(&trickling, ""));
        for _ in 0..3 {
            assert_eq!(content(&repository).await, CONTENT);
        }
        assert_eq!((*asked.hold(), own.requests()), (1, 3));
    }

    /// As containerd does (core/remotes/docker/authorizer.go): whatever realm the host names, but
    /// over TLS only, or where both are on this machine. No redirect takes them along.
    #[tokio::test]
    async fn the_token_service_gets_the_headers_of_its_host() {
        let dir = tempfile::tempdir().unwrap();
        let own = with(CONTENT).await;
        let other = host(|_| (200, "", r#"{"token":"t"}"#.to_owned())).await;
        let moved: &'static str = format!("Location: http://{}/t\r\n", other.address).leak();
        let is_moving = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let moving = Arc::clone(&is_moving);
        let tokens = host(move |_| {
            if moving.load(std::sync::atomic::Ordering::Relaxed) {
                (307, moved, String::new())
            } else {
                (200, "", r#"{"token":"t"}"#.to_owned())
            }
        });
        let tokens = tokens.await;
        let ask: &'static str =
            format!("WWW-Authenticate: Bearer realm=\"http://{}/token\"\r\n", tokens.address)
                .leak();
        for moves in [false, true] {
            is_moving.store(moves, std::sync::atomic::Ordering::Relaxed);
            let mirror = host(move |header| {
                if header.contains("Bearer t\r") {
                    (200, "", CONTENT.to_owned())
                } else {
                    (401, ask, String::new())
                }
            });
            let mirror = mirror.await;
            let text = table(&mirror.address, "")
                + &format!("[host.\"http://{}\".header]\nx-key = \"secret\"\n", mirror.address);
            let repository = repository(dir.path(), &own.address, &text);
            assert_eq!(content(&repository).await, CONTENT);
            assert_eq!(own.requests() > 0, moves, "the mirror has no token then");
            assert!(mirror.was_asked("x-key: secret") && tokens.was_asked("x-key: secret"));
        }
        assert!(!own.was_asked("x-key") && other.requests() == 0);
    }

    #[test]
    fn content_with_a_digest_needs_less_trust() {
        for (path, needs) in [
            ("/v2/a/b/blobs/sha256:00", 0),
            ("/v2/a/manifests/sha256:00", 0),
            ("/v2/a/manifests/v1", 1),
            ("/v2/a/referrers/manifests/v1", 1),
            ("/v2/a/manifests/sha256-00", 1),
            ("/v2/a/referrers/sha256:00", 2),
            ("/v2/a/tags/list", 1),
        ] {
            for all in 0..8 {
                let [pulls, resolves, lists_referrers] = [0, 1, 2].map(|bit| all >> bit & 1 == 1);
                let capabilities = Capabilities { pulls, resolves, lists_referrers };
                assert_eq!(may_answer(capabilities, path), all >> needs & 1 == 1, "{path} {all}");
            }
        }
    }
}
