//! A small registry in memory that behaves correctly unless a test makes it lie.
//!
//! The lie is a function that sees each request first, and may answer it instead of the registry.

mod responses;
mod truth;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::image::{Image, config};
use crate::sandbox::{GZIP, gzip};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, Response};
use bytes::Bytes;
use ociseek_format::digest::Digest;
use responses::NoResponse;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{JoinHandle, block_in_place};

pub use responses::*;

/// A request as the registry received it.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    pub method: Method,
    /// Including the query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.path.contains(part)
    }
}

type Lie = Box<dyn Fn(&ReceivedRequest, &Faulty) -> Option<Response<Body>> + Send + Sync>;

/// The properties of the registry, apart from lies.
#[derive(Default, Clone)]
pub struct RegistrySettings {
    /// Whether it has the referrers API and sends `OCI-Subject`.
    pub referrers: bool,
    /// Requires tokens from its own `/token`, which gives them to everyone, or only to this user.
    pub bearer: Option<Option<(String, String)>>,
    /// How long these tokens are valid, by the wall clock. None for ever.
    pub token_lifetime: Option<Duration>,
    /// Requires this user and password.
    pub basic: Option<(String, String)>,
    /// Whether it honours If-Match and If-None-Match for tags.
    pub conditions: bool,
    /// Whether it refuses an image index that names a missing manifest, as distribution does.
    pub complete_lists: bool,
    /// Whether it refuses a manifest whose subject is missing, as GitLab does.
    pub strict_subjects: bool,
    /// The delay before each response to a manifest PUT and after each manifest GET.
    pub slow_manifests: Duration,
    /// The delay before each response to a blob GET.
    pub slow_blobs: Duration,
}

impl RegistrySettings {
    pub fn with_referrers() -> RegistrySettings {
        RegistrySettings { referrers: true, ..RegistrySettings::default() }
    }
}

#[derive(Default, Clone)]
struct Content {
    blobs: HashMap<String, Bytes>,
    /// The media type and bytes, by digest and by tag.
    manifests: BTreeMap<String, (String, Bytes)>,
    uploads: HashMap<String, Vec<u8>>,
    /// Tokens, each with its repository and the time when it was issued.
    tokens: HashMap<String, (String, SystemTime)>,
    issued: usize,
    next_upload: usize,
    requests: Vec<ReceivedRequest>,
}

/// A running registry. Clones share it. It ends with the test's runtime.
#[derive(Clone)]
pub struct Faulty {
    pub address: SocketAddr,
    settings: Arc<RegistrySettings>,
    content: Arc<Mutex<Content>>,
    lie: Arc<Lie>,
    listener: Arc<Mutex<Option<ListenerState>>>,
}

/// Whether connections are taken.
enum ListenerState {
    Open(JoinHandle<()>),
    /// They are refused. The socket keeps the port, so that nobody else gets it.
    Closed(JoinHandle<TcpSocket>),
}

impl Faulty {
    pub async fn honest(settings: RegistrySettings) -> Faulty {
        Faulty::start(settings, |_, _| None).await
    }

    pub async fn start(
        settings: RegistrySettings,
        lie: impl Fn(&ReceivedRequest, &Faulty) -> Option<Response<Body>> + Send + Sync + 'static,
    ) -> Faulty {
        Faulty::at("127.0.0.1:0", settings, lie).await
    }

    pub async fn at(
        address: &str,
        settings: RegistrySettings,
        lie: impl Fn(&ReceivedRequest, &Faulty) -> Option<Response<Body>> + Send + Sync + 'static,
    ) -> Faulty {
        let listener = TcpListener::bind(address).await.unwrap();
        let faulty = Faulty {
            address: listener.local_addr().unwrap(),
            settings: Arc::new(settings),
            content: Arc::default(),
            lie: Arc::new(Box::new(lie)),
            listener: Arc::default(),
        };
        faulty.open(listener);
        faulty
    }

    fn open(&self, listener: TcpListener) {
        let app = axum::Router::new().fallback(handle).with_state(self.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        *self.listener.lock().unwrap() = Some(ListenerState::Open(serving));
    }

    /// From now on connections are refused. Those that there are stay.
    pub fn down(&self) {
        let mut listener = self.listener.lock().unwrap();
        let Some(ListenerState::Open(serving)) = listener.take() else { panic!("it is down") };
        serving.abort();
        let address = self.address;
        *listener = Some(ListenerState::Closed(tokio::spawn(async move {
            let _ = serving.await;
            loop {
                let socket = TcpSocket::new_v4().unwrap();
                socket.set_reuseaddr(true).unwrap();
                // A program that another test starts at this moment has the old socket until it
                // runs.
                if socket.bind(address).is_ok() {
                    return socket;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })));
    }

    /// Takes connections again, if it is down.
    pub async fn up(&self) {
        let listener = self.listener.lock().unwrap().take();
        match listener {
            Some(ListenerState::Closed(socket)) => {
                self.open(socket.await.unwrap().listen(1024).unwrap())
            }
            open => *self.listener.lock().unwrap() = open,
        }
    }

    /// Another registry with the same properties and content, and no requests yet.
    pub async fn copy(
        &self,
        lie: impl Fn(&ReceivedRequest, &Faulty) -> Option<Response<Body>> + Send + Sync + 'static,
    ) -> Faulty {
        let copy = Faulty::start((*self.settings).clone(), lie).await;
        let content = Content { requests: Vec::new(), ..self.content.lock().unwrap().clone() };
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
        let image = Image::new(&config(&[layer.to_vec()]), [(GZIP, gzip(layer))]);
        image.add_to(self, tag);
        image.descriptors()[0].digest
    }

    pub fn add_manifest(
        &self,
        reference: &str,
        media_type: &str,
        content: impl Into<Bytes>,
    ) -> Digest {
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

    pub fn remove_manifest(&self, reference: &str) {
        self.content.lock().unwrap().manifests.remove(reference);
    }

    pub fn manifest(&self, reference: &str) -> Option<Bytes> {
        self.content.lock().unwrap().manifests.get(reference).map(|(_, bytes)| bytes.clone())
    }

    /// Whether it has the referrers API.
    pub fn has_referrers(&self) -> bool {
        self.settings.referrers
    }

    /// All manifests, by tag and by digest.
    pub fn manifests(&self) -> BTreeMap<String, Bytes> {
        let all = self.content.lock().unwrap();
        all.manifests
            .iter()
            .map(|(reference, (_, bytes))| (reference.clone(), bytes.clone()))
            .collect()
    }

    pub fn revoke_tokens(&self) {
        self.content.lock().unwrap().tokens.clear();
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.content.lock().unwrap().requests.clone()
    }

    /// The requests with this method and with `part` in their path or query.
    pub fn saw(&self, method: &str, part: &str) -> Vec<ReceivedRequest> {
        self.requests().into_iter().filter(|request| request.is(method, part)).collect()
    }
}

async fn handle(State(faulty): State<Faulty>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 256 << 20).await.unwrap_or_default();
    let path = head.uri.path_and_query().map(|p| p.as_str().to_owned()).unwrap_or_default();
    let request = ReceivedRequest { method: head.method, path, headers: head.headers, body };
    faulty.content.lock().unwrap().requests.push(request.clone());
    let lie = || (faulty.lie)(&request, &faulty);
    // A lie may wait, and what else its worker has to do could wait with it.
    let lie = match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => lie(),
        _ => block_in_place(lie),
    };
    if let Some(lie) = lie {
        if lie.extensions().get::<NoResponse>().is_some() {
            std::future::pending::<()>().await;
        }
        return lie;
    }
    faulty.truth(&request).await
}
