//! A small registry in memory that behaves correctly unless a test makes it lie.
//!
//! The lie is a function that sees each request first, and may answer it instead of the registry.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use ociseek::digest::Digest;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;

use crate::support::sandbox::{GZIP, OCI_CONFIG, gzip};

pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A request as the registry saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: Method,
    /// Including the query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.path.contains(part)
    }
}

type Lie = Box<dyn Fn(&Seen, &Faulty) -> Option<Response<Body>> + Send + Sync>;

/// The properties of the registry, apart from lies.
#[derive(Default, Clone)]
pub struct Nature {
    /// Whether it has the referrers API and sends `OCI-Subject`.
    pub referrers: bool,
    /// Requires tokens from its own `/token`, which gives them to everyone, or only to this user.
    pub bearer: Option<Option<(String, String)>>,
    /// Requires this user and password.
    pub basic: Option<(String, String)>,
    /// Whether it honours If-Match and If-None-Match for tags.
    pub conditions: bool,
    /// The delay before each response to a manifest PUT and after each manifest GET.
    pub slow_manifests: Duration,
    /// The delay before each response to a blob GET.
    pub slow_blobs: Duration,
}

#[derive(Default, Clone)]
struct Content {
    blobs: HashMap<String, Bytes>,
    /// The media type and bytes, by digest and by tag.
    manifests: BTreeMap<String, (String, Bytes)>,
    uploads: HashMap<String, Vec<u8>>,
    /// Tokens, each with its repository.
    tokens: HashMap<String, String>,
    issued: usize,
    next_upload: usize,
    seen: Vec<Seen>,
}

/// A running registry. Clones share it. It ends with the test's runtime.
#[derive(Clone)]
pub struct Faulty {
    pub address: SocketAddr,
    nature: Arc<Nature>,
    content: Arc<Mutex<Content>>,
    lie: Arc<Lie>,
    door: Arc<Mutex<Option<Door>>>,
}

/// Whether connections are taken.
enum Door {
    Open(JoinHandle<()>),
    /// They are refused. The socket keeps the port, so that nobody else gets it.
    Closed(JoinHandle<TcpSocket>),
}

/// In the extensions of an answer: it never begins.
#[derive(Clone)]
struct Silence;

impl Faulty {
    pub async fn honest(nature: Nature) -> Faulty {
        Faulty::start(nature, |_, _| None).await
    }

    pub async fn start(
        nature: Nature,
        lie: impl Fn(&Seen, &Faulty) -> Option<Response<Body>> + Send + Sync + 'static,
    ) -> Faulty {
        Faulty::at("127.0.0.1:0", nature, lie).await
    }

    pub async fn at(
        address: &str,
        nature: Nature,
        lie: impl Fn(&Seen, &Faulty) -> Option<Response<Body>> + Send + Sync + 'static,
    ) -> Faulty {
        let listener = TcpListener::bind(address).await.unwrap();
        let faulty = Faulty {
            address: listener.local_addr().unwrap(),
            nature: Arc::new(nature),
            content: Arc::default(),
            lie: Arc::new(Box::new(lie)),
            door: Arc::default(),
        };
        faulty.open(listener);
        faulty
    }

    fn open(&self, listener: TcpListener) {
        let app = axum::Router::new().fallback(handle).with_state(self.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        *self.door.lock().unwrap() = Some(Door::Open(serving));
    }

    /// From now on connections are refused. Those that there are stay.
    pub fn down(&self) {
        let mut door = self.door.lock().unwrap();
        let Some(Door::Open(serving)) = door.take() else { panic!("it is down") };
        serving.abort();
        let address = self.address;
        *door = Some(Door::Closed(tokio::spawn(async move {
            let _ = serving.await;
            loop {
                let socket = TcpSocket::new_v4().unwrap();
                socket.set_reuseaddr(true).unwrap();
                // A program that another test starts at this moment has the old socket until it runs.
                if socket.bind(address).is_ok() {
                    return socket;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })));
    }

    /// Takes connections again, if it is down.
    pub async fn up(&self) {
        let door = self.door.lock().unwrap().take();
        match door {
            Some(Door::Closed(socket)) => self.open(socket.await.unwrap().listen(1024).unwrap()),
            open => *self.door.lock().unwrap() = open,
        }
    }

    /// Another registry with the same properties and content, and no requests yet.
    pub async fn copy(&self, lie: impl Fn(&Seen, &Faulty) -> Option<Response<Body>> + Send + Sync + 'static) -> Faulty {
        let copy = Faulty::start((*self.nature).clone(), lie).await;
        let content = Content { seen: Vec::new(), ..self.content.lock().unwrap().clone() };
        *copy.content.lock().unwrap() = content;
        copy
    }

    /// `HOST:PORT`
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn add_blob(&self, content: impl Into<Bytes>) -> Digest {
        let content = content.into();
        let digest = Digest::sha256(&content);
        self.content.lock().unwrap().blobs.insert(digest.to_string(), content);
        digest
    }

    /// Adds an image without an index, with one layer whose tar is `layer`. Returns the digest of
    /// the layer's blob.
    pub fn add_image(&self, tag: &str, layer: &[u8]) -> Digest {
        let config = json!({
            "os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": [Digest::sha256(layer)]},
        });
        let (config, layer) = (config.to_string().into_bytes(), gzip(layer));
        let of = |media_type, content: &[u8]| {
            let (digest, size) = (Digest::sha256(content), content.len());
            json!({"mediaType": media_type, "digest": digest, "size": size})
        };
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": of(OCI_CONFIG, &config), "layers": [of(GZIP, &layer)],
        });
        self.add_blob(config);
        self.add_manifest(tag, MANIFEST, manifest.to_string());
        self.add_blob(layer)
    }

    pub fn add_manifest(&self, reference: &str, media_type: &str, content: impl Into<Bytes>) -> Digest {
        let content = content.into();
        let digest = Digest::sha256(&content);
        let mut all = self.content.lock().unwrap();
        all.manifests.insert(digest.to_string(), (media_type.into(), content.clone()));
        all.manifests.insert(reference.into(), (media_type.into(), content));
        digest
    }

    pub fn blob(&self, digest: &Digest) -> Option<Bytes> {
        self.content.lock().unwrap().blobs.get(&digest.to_string()).cloned()
    }

    pub fn remove_blob(&self, digest: &Digest) {
        self.content.lock().unwrap().blobs.remove(&digest.to_string());
    }

    pub fn manifest(&self, reference: &str) -> Option<Bytes> {
        self.content.lock().unwrap().manifests.get(reference).map(|(_, bytes)| bytes.clone())
    }

    /// Whether it has the referrers API.
    pub fn has_referrers(&self) -> bool {
        self.nature.referrers
    }

    /// All manifests, by tag and by digest.
    pub fn manifests(&self) -> BTreeMap<String, Bytes> {
        let all = self.content.lock().unwrap();
        all.manifests.iter().map(|(reference, (_, bytes))| (reference.clone(), bytes.clone())).collect()
    }

    pub fn revoke_tokens(&self) {
        self.content.lock().unwrap().tokens.clear();
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.content.lock().unwrap().seen.clone()
    }

    /// The requests with this method and with `part` in their path or query.
    pub fn saw(&self, method: &str, part: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.is(method, part)).collect()
    }
}

async fn handle(State(faulty): State<Faulty>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 256 << 20).await.unwrap_or_default();
    let path = head.uri.path_and_query().map(|p| p.as_str().to_owned()).unwrap_or_default();
    let seen = Seen { method: head.method, path, headers: head.headers, body };
    faulty.content.lock().unwrap().seen.push(seen.clone());
    if let Some(lie) = (faulty.lie)(&seen, &faulty) {
        if lie.extensions().get::<Silence>().is_some() {
            std::future::pending::<()>().await;
        }
        return lie;
    }
    faulty.truth(&seen).await
}

impl Faulty {
    /// The correct response, for lies that modify it. Not for registries with slow manifests.
    pub fn truth_now(&self, seen: &Seen) -> Response<Body> {
        self.truth(seen).now_or_never().unwrap()
    }

    /// The correct response.
    pub async fn truth(&self, seen: &Seen) -> Response<Body> {
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        if path == "/token" {
            return self.token(seen);
        }
        if let Some(refusal) = self.unauthorized(seen) {
            return refusal;
        }
        let slow = self.nature.slow_manifests;
        let Some((name, what, reference)) = split(path) else { return status(404) };
        match (seen.method.as_str(), what) {
            ("GET" | "HEAD", "blobs") => {
                pause(self.nature.slow_blobs).await;
                self.get_blob(seen, reference)
            }
            ("POST", "uploads") => {
                let mut all = self.content.lock().unwrap();
                all.next_upload += 1;
                let id = format!("u{}", all.next_upload);
                all.uploads.insert(id.clone(), Vec::new());
                accepted(name, &id, 0)
            }
            (_, "uploads") if !query.contains("_state=a%2Fb") => {
                problem(400, "BLOB_UPLOAD_INVALID", "the state is gone")
            }
            (_, "uploads") => self.upload(seen, name, reference, query),
            ("GET" | "HEAD", "manifests") => {
                let answer = self.get_manifest(reference);
                pause(slow).await;
                answer
            }
            ("PUT", "manifests") => {
                pause(slow).await;
                self.put_manifest(seen, reference)
            }
            ("DELETE", "manifests") => {
                let removed = self.content.lock().unwrap().manifests.remove(reference);
                status(if removed.is_some() { 202 } else { 404 })
            }
            ("GET", "tags") => self.tags(query),
            ("GET", "referrers") if self.nature.referrers => self.get_referrers(reference),
            ("GET", "referrers") => status(404),
            _ => status(405),
        }
    }

    fn token(&self, seen: &Seen) -> Response<Body> {
        if let Some(Some((user, password))) = &self.nature.bearer
            && seen.header("authorization") != Some(&basic(user, password))
            && !String::from_utf8_lossy(&seen.body).contains("refresh_token=identity-of-")
        {
            return Response::builder().status(401).body(Body::from(r#"{"details":"wrong password"}"#)).unwrap();
        }
        let mut all = self.content.lock().unwrap();
        all.issued += 1;
        let token = format!("token-{}", all.issued);
        let asked =
            format!("{}&{}", seen.path, String::from_utf8_lossy(&seen.body)).replace("%3A", ":").replace("%2F", "/");
        let name =
            asked.split("scope=repository:").nth(1).and_then(|scope| scope.split(':').next()).unwrap_or_default();
        all.tokens.insert(token.clone(), name.to_owned());
        json_answer(200, &json!({"token": token, "expires_in": 300}))
    }

    fn unauthorized(&self, seen: &Seen) -> Option<Response<Body>> {
        let shown = seen.header("authorization").unwrap_or_default();
        let challenge = if self.nature.bearer.is_some() {
            let token = shown.strip_prefix("Bearer ").unwrap_or_default();
            let name = split(seen.path.split('?').next().unwrap_or_default()).map_or("", |(name, _, _)| name);
            if self.content.lock().unwrap().tokens.get(token).is_some_and(|repository| repository == name) {
                return None;
            }
            let actions = if matches!(seen.method.as_str(), "GET" | "HEAD") { "pull" } else { "pull,push" };
            let (host, scope) = (self.address, format!("repository:{name}:{actions}"));
            format!("Bearer realm=\"http://{host}/token\",service=\"faulty\",scope=\"{scope}\"")
        } else {
            let (user, password) = self.nature.basic.as_ref()?;
            if shown == basic(user, password) {
                return None;
            }
            "Basic realm=\"faulty\"".to_owned()
        };
        let mut refusal = problem(401, "UNAUTHORIZED", "authentication required");
        refusal.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.parse().unwrap());
        Some(refusal)
    }

    pub fn get_blob(&self, seen: &Seen, digest: &str) -> Response<Body> {
        let Some(blob) = self.content.lock().unwrap().blobs.get(digest).cloned() else {
            return problem(404, "BLOB_UNKNOWN", "blob unknown");
        };
        let total = blob.len();
        let answer = Response::builder().header(header::ETAG, format!("\"{digest}\""));
        let range = seen.header("range").and_then(|r| {
            let (from, last) = r.strip_prefix("bytes=")?.split_once('-')?;
            let end = last.parse::<usize>().map_or(total, |last| total.min(last + 1));
            Some((from.parse::<usize>().ok()?, end))
        });
        match range {
            Some((from, end)) if from < end => answer
                .status(206)
                .header(header::CONTENT_RANGE, format!("bytes {from}-{}/{total}", end - 1))
                .body(Body::from(blob.slice(from..end)))
                .unwrap(),
            Some(_) => status(416),
            None => answer.header(header::CONTENT_LENGTH, total).body(Body::from(blob)).unwrap(),
        }
    }

    fn upload(&self, seen: &Seen, name: &str, id: &str, query: &str) -> Response<Body> {
        let mut all = self.content.lock().unwrap();
        let Some(upload) = all.uploads.get_mut(id) else {
            return problem(404, "BLOB_UPLOAD_UNKNOWN", "no such upload");
        };
        match seen.method.as_str() {
            "PATCH" => {
                let first = seen.header("content-range").and_then(|r| r.split('-').next()?.parse::<usize>().ok());
                if first != Some(upload.len()) {
                    return status(416);
                }
                upload.extend_from_slice(&seen.body);
                accepted(name, id, upload.len())
            }
            "GET" => {
                let mut answer = accepted(name, id, upload.len());
                *answer.status_mut() = StatusCode::NO_CONTENT;
                answer
            }
            "PUT" => {
                upload.extend_from_slice(&seen.body);
                let content = Bytes::from(std::mem::take(upload));
                let digest = query.split('&').find_map(|p| p.strip_prefix("digest=")).unwrap_or_default();
                let digest = digest.replace("%3A", ":");
                if Digest::sha256(&content).to_string() != digest {
                    return problem(400, "DIGEST_INVALID", "digest invalid");
                }
                all.uploads.remove(id);
                all.blobs.insert(digest, content);
                status(201)
            }
            "DELETE" => {
                all.uploads.remove(id);
                status(204)
            }
            _ => status(405),
        }
    }

    fn get_manifest(&self, reference: &str) -> Response<Body> {
        let Some((media_type, bytes)) = self.content.lock().unwrap().manifests.get(reference).cloned() else {
            return problem(404, "MANIFEST_UNKNOWN", "manifest unknown");
        };
        let digest = Digest::sha256(&bytes);
        Response::builder()
            .header(header::CONTENT_TYPE, media_type)
            .header("docker-content-digest", digest.to_string())
            .header(header::ETAG, format!("\"{digest}\""))
            .body(Body::from(bytes))
            .unwrap()
    }

    fn put_manifest(&self, seen: &Seen, reference: &str) -> Response<Body> {
        let digest = Digest::sha256(&seen.body).to_string();
        let mut all = self.content.lock().unwrap();
        if self.nature.conditions {
            let there = all.manifests.get(reference).map(|(_, bytes)| format!("\"{}\"", Digest::sha256(bytes)));
            let differs = seen.header("if-match").is_some_and(|etag| there.as_deref() != Some(etag));
            if differs || seen.header("if-none-match").is_some() && there.is_some() {
                return status(412);
            }
        }
        let Ok(parsed) = serde_json::from_slice::<Value>(&seen.body) else { return status(400) };
        let blobs = parsed["layers"].as_array().into_iter().flatten().chain([&parsed["config"]]);
        for blob in blobs.filter_map(|blob| blob["digest"].as_str()) {
            if !all.blobs.contains_key(blob) {
                return problem(400, "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry");
            }
        }
        let media_type = seen.header("content-type").unwrap_or_default().to_owned();
        all.manifests.insert(digest.clone(), (media_type.clone(), seen.body.clone()));
        all.manifests.insert(reference.into(), (media_type, seen.body.clone()));
        let mut answer = Response::builder().status(201).header("docker-content-digest", digest);
        if let (true, Some(subject)) = (self.nature.referrers, parsed["subject"]["digest"].as_str()) {
            answer = answer.header("oci-subject", subject);
        }
        answer.body(Body::empty()).unwrap()
    }

    /// A page of tags, in byte order.
    fn tags(&self, query: &str) -> Response<Body> {
        let asked = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        let (count, last) = (asked("n").map_or(usize::MAX, |n| n.parse().unwrap()), asked("last").unwrap_or_default());
        let all = self.content.lock().unwrap();
        let mut names: Vec<&str> = all.manifests.keys().map(String::as_str).collect();
        names.retain(|name| !name.contains(':') && *name > last);
        let mut answer = Response::builder().header(header::CONTENT_TYPE, "application/json");
        if names.len() > count {
            names.truncate(count);
            let next = format!("</v2/a/b/tags/list?n={count}&last={}>; rel=\"next\"", names[count - 1]);
            answer = answer.header(header::LINK, next);
        }
        answer.body(Body::from(json!({"name": "a/b", "tags": names}).to_string())).unwrap()
    }

    pub fn get_referrers(&self, subject: &str) -> Response<Body> {
        let all = self.content.lock().unwrap();
        let mut found = Vec::new();
        for (reference, (media_type, bytes)) in &all.manifests {
            let manifest: Value = serde_json::from_slice(bytes).unwrap_or_default();
            if reference.contains(':') && manifest["subject"]["digest"] == subject {
                let stated = Some(&manifest["artifactType"]).filter(|stated| stated.is_string());
                let kind = stated.unwrap_or(&manifest["config"]["mediaType"]).clone();
                found.push(
                    json!({"mediaType": media_type, "digest": reference, "size": bytes.len(), "artifactType": kind}),
                );
            }
        }
        index_answer(&json!(found))
    }
}

/// `/v2/NAME/blobs|manifests|referrers/REFERENCE` or `/v2/NAME/blobs/uploads/ID`.
fn split(path: &str) -> Option<(&str, &str, &str)> {
    let path = path.strip_prefix("/v2/")?;
    let (rest, reference) = path.rsplit_once('/')?;
    let (name, what) = rest.rsplit_once('/')?;
    Some((name.strip_suffix("/blobs").unwrap_or(name), what, reference))
}

/// Without a delay this is ready at once, which lets a lie use the correct response without
/// waiting.
async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

fn accepted(name: &str, id: &str, length: usize) -> Response<Body> {
    Response::builder()
        .status(202)
        .header(header::LOCATION, format!("/v2/{name}/blobs/uploads/{id}?_state=a%2Fb"))
        .header(header::RANGE, format!("0-{}", length.saturating_sub(1)))
        .body(Body::empty())
        .unwrap()
}

pub fn basic(user: &str, password: &str) -> String {
    use base64::Engine as _;
    format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(format!("{user}:{password}")))
}

pub fn status(status: u16) -> Response<Body> {
    Response::builder().status(status).body(Body::empty()).unwrap()
}

pub fn problem(status: u16, code: &str, message: &str) -> Response<Body> {
    json_answer(status, &json!({"errors": [{"code": code, "message": message}]}))
}

pub fn json_answer(status: u16, value: &Value) -> Response<Body> {
    let answer = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    answer.body(Body::from(value.to_string())).unwrap()
}

pub fn index_answer(manifests: &Value) -> Response<Body> {
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    Response::builder().header(header::CONTENT_TYPE, INDEX).body(Body::from(index.to_string())).unwrap()
}

pub fn web_page() -> Response<Body> {
    let page = "<!doctype html><title>Sign in</title>";
    Response::builder().header(header::CONTENT_TYPE, "text/html; charset=utf-8").body(Body::from(page)).unwrap()
}

pub fn redirect(status: u16, to: &str) -> Response<Body> {
    Response::builder().status(status).header(header::LOCATION, to).body(Body::empty()).unwrap()
}

/// Closes the connection without a response, like a process that dies, and prints nothing.
pub fn hang_up() -> ! {
    std::panic::resume_unwind(Box::new(()))
}

/// A response, and a copy of its body.
pub fn body_of(answer: Response<Body>) -> (Response<Body>, Bytes) {
    let (head, body) = answer.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).now_or_never().unwrap().unwrap();
    (Response::from_parts(head, Body::from(bytes.clone())), bytes)
}

/// The same response with a wrong byte in its body, which has at least one.
pub fn damaged(answer: Response<Body>, content: &Bytes) -> Response<Body> {
    let mut bytes = content.to_vec();
    bytes[content.len() / 2] ^= 0x20;
    answer.map(|_| Body::from(bytes))
}

/// Announces the whole response, but breaks the connection after `kept` bytes of it.
pub fn cut(answer: Response<Body>, content: &Bytes, kept: usize) -> Response<Body> {
    let (mut head, _) = answer.into_parts();
    head.headers.insert(header::CONTENT_LENGTH, content.len().into());
    // In two pieces with a delay, so that the first is sent before the connection breaks.
    let pieces = vec![Ok(content.slice(..kept)), Err(std::io::Error::other("cut"))];
    let body = stream::unfold(pieces.into_iter(), |mut pieces| async move {
        let piece = pieces.next()?;
        if piece.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some((piece, pieces))
    });
    Response::from_parts(head, Body::from_stream(body))
}

/// An endless body: repeats `piece` with a pause in between.
pub fn endless(media_type: &str, piece: Bytes, pause: Duration) -> Response<Body> {
    let body = stream::unfold((), move |()| {
        let piece = piece.clone();
        async move {
            tokio::time::sleep(pause).await;
            Some((Ok::<_, std::io::Error>(piece), ()))
        }
    });
    Response::builder().header(header::CONTENT_TYPE, media_type).body(Body::from_stream(body)).unwrap()
}

/// The start of `content`, followed by silence.
pub fn stalls(content: &Bytes, kept: usize) -> Response<Body> {
    let head = content.slice(..kept);
    let body = stream::unfold(Some(head), |head| async move {
        match head {
            Some(head) => Some((Ok::<_, std::io::Error>(head), None)),
            None => std::future::pending().await,
        }
    });
    Response::builder().header(header::CONTENT_LENGTH, content.len()).body(Body::from_stream(body)).unwrap()
}

/// An answer that never begins.
pub fn silence() -> Response<Body> {
    Response::builder().extension(Silence).body(Body::empty()).unwrap()
}

/// True for the first `n` calls.
pub fn first(n: usize) -> impl Fn() -> bool + Send + Sync {
    let left = std::sync::atomic::AtomicUsize::new(n);
    move || {
        use std::sync::atomic::Ordering::SeqCst;
        left.try_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}
