//! A registry in memory that behaves as its profile says.

mod blobs;
mod login;
mod manifests;
mod uploads;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, Response, header};
use bytes::Bytes;
use ociseek_format::digest::Digest;
use serde_json::json;
use tokio::net::TcpListener;

use super::profile::{Login, Profile, Trait};
use ociseek_testkit::faulty::{problem, status};

/// The user that the registry knows.
pub const USER: &str = "AWS";
pub const PASSWORD: &str = "of-today";
/// A password that was right once.
pub const EXPIRED: &str = "of-yesterday";

#[derive(Default, Clone, Debug)]
pub struct Repository {
    pub blobs: HashMap<String, Bytes>,
    /// The media type and the bytes, by digest.
    pub manifests: BTreeMap<String, (String, Bytes)>,
    pub tags: BTreeMap<String, String>,
}

#[derive(Default)]
struct Content {
    repositories: BTreeMap<String, Repository>,
    uploads: HashMap<String, Upload>,
    tokens: HashMap<String, Token>,
    /// How often each manifest was refused.
    late: HashMap<String, usize>,
    signed: HashMap<String, (Bytes, Instant)>,
    count: usize,
    requests: Vec<String>,
}

/// An upload under way.
struct Upload {
    repository: String,
    content: Vec<u8>,
    /// The size of the first chunk, and how many PATCHes there were.
    first: usize,
    patches: usize,
}

/// What a token allows: the actions for each repository.
struct Token {
    allows: Vec<(String, Vec<String>)>,
    issued: Instant,
    /// Whether it is the first one that allows this.
    is_first: bool,
    is_used: bool,
}

#[derive(Clone)]
pub struct Registry {
    pub address: SocketAddr,
    profile: &'static Profile,
    /// The host of signed URLs and of uploads.
    pub storage: SocketAddr,
    content: Arc<Mutex<Content>>,
}

/// A request as it came.
struct Asked {
    method: Method,
    path: String,
    query: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Asked {
    async fn of(request: Request<Body>) -> Asked {
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
        let path = head.uri.path().to_owned();
        let query = head.uri.query().unwrap_or_default().to_owned();
        Asked { method: head.method, path, query, headers: head.headers, body }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// A parameter of the query, decoded.
    fn parameter(&self, name: &str) -> Option<String> {
        let value =
            self.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.replace("%3A", ":").replace("%2F", "/").replace("%2C", ",").replace("%2B", "+"))
    }
}

impl Registry {
    pub async fn start(profile: &'static Profile) -> Registry {
        let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let storage = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let registry = Registry {
            address: front.local_addr().unwrap(),
            profile,
            storage: storage.local_addr().unwrap(),
            content: Arc::default(),
        };
        let app = axum::Router::new().fallback(handle).with_state(registry.clone());
        tokio::spawn(async move { axum::serve(front, app).await.unwrap() });
        let app = axum::Router::new().fallback(blobs::stored).with_state(registry.clone());
        tokio::spawn(async move { axum::serve(storage, app).await.unwrap() });
        registry
    }

    /// `HOST:PORT`
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Forgets everything but these repositories.
    pub fn reset(&self, repositories: BTreeMap<String, Repository>) {
        let mut content = self.content.lock().unwrap();
        content.repositories = repositories;
        content.requests.clear();
        content.tokens.clear();
        content.late.clear();
    }

    pub fn repository(&self, name: &str) -> Repository {
        self.content.lock().unwrap().repositories.get(name).cloned().unwrap_or_default()
    }

    /// The first lines of the requests since the last reset, each with the status of its answer.
    pub fn requests(&self) -> Vec<String> {
        self.content.lock().unwrap().requests.clone()
    }

    fn answer(&self, asked: &Asked) -> Response<Body> {
        if asked.path == "/token" {
            return self.token(asked);
        }
        if let Some(refusal) = self.unauthorized(asked).or_else(|| self.slowed_down()) {
            return refusal;
        }
        if asked.path == "/v2/" {
            return status(200);
        }
        if let Some(refused) = self.profile.find(|one| match one {
            Trait::HeadRefused(status) => Some(status),
            _ => None,
        }) && asked.method == Method::HEAD
        {
            return status(refused);
        }
        let changes = !matches!(asked.method, Method::GET | Method::HEAD);
        if let Some((status, message)) = self.profile.find(|one| match one {
            Trait::ReadOnly(status, message) => Some((status, message)),
            _ => None,
        }) && changes
        {
            return problem(status, if status == 405 { "UNSUPPORTED" } else { "DENIED" }, message);
        }
        if let Some(id) = asked.path.strip_prefix("/artifacts-uploads/") {
            return self.upload(asked, id);
        }
        let Some((name, what, reference)) = split(&asked.path) else { return status(404) };
        if let Some(status) = self.profile.find(|one| match one {
            Trait::NamesMustExist(status) => Some(status),
            _ => None,
        }) && !self.content.lock().unwrap().repositories.contains_key(name)
        {
            let message =
                format!("The repository with name '{name}' does not exist in the registry");
            return problem(status, "NAME_UNKNOWN", &message);
        }
        let owner = |name: &str| name.split('/').next().map(str::to_owned);
        if let Some(status) = self.profile.find(|one| match one {
            Trait::OwnersMustExist(status) => Some(status),
            _ => None,
        }) && !self
            .content
            .lock()
            .unwrap()
            .repositories
            .keys()
            .any(|known| owner(known) == owner(name))
        {
            return Response::builder().status(status).body(Body::from("Not found.\n")).unwrap();
        }
        match (asked.method.as_str(), what) {
            ("POST", "uploads") => self.begin(asked, name),
            (_, "uploads") => self.upload(asked, reference),
            ("GET" | "HEAD", "blobs") => self.get_blob(asked, name, reference),
            ("GET" | "HEAD", "manifests") => self.get_manifest(name, reference),
            ("PUT", "manifests") => self.put_manifest(asked, name, reference),
            ("DELETE", "manifests") => self.delete_manifest(name, reference),
            ("GET", "tags") => self.tags(asked, name),
            ("GET", "referrers") => self.referrers(asked, name, reference),
            _ => problem(405, "UNSUPPORTED", "The operation is unsupported."),
        }
    }

    /// 429, for one of so many requests.
    fn slowed_down(&self) -> Option<Response<Body>> {
        let each = self.profile.find(|one| match one {
            Trait::RateLimit(each) => Some(each),
            _ => None,
        })?;
        let mut content = self.content.lock().unwrap();
        content.count += 1;
        content.count.is_multiple_of(each).then(|| {
            Response::builder()
                .status(429)
                .header(header::RETRY_AFTER, "1")
                .header(header::CONTENT_TYPE, "text/plain")
                .header("ratelimit-limit", "100;w=21600")
                .header("ratelimit-remaining", "0;w=21600")
                .body(Body::from("Too Many Requests (HAP429).\n"))
                .unwrap()
        })
    }

    fn login(&self) -> Option<Login> {
        self.profile.find(|one| match one {
            Trait::Login(login) => Some(login),
            _ => None,
        })
    }
}

async fn handle(State(registry): State<Registry>, request: Request<Body>) -> Response<Body> {
    let line = format!("{} {}", request.method(), request.uri());
    let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let lengthless = !chunked && !request.headers().contains_key(header::CONTENT_LENGTH);
    let asked = Asked::of(request).await;
    let needs_length = registry.profile.find(|one| match one {
        Trait::PostNeedsLength(status) => Some(status),
        _ => None,
    });
    let answer = match needs_length {
        Some(status) if lengthless && matches!(asked.method.as_str(), "POST" | "PUT" | "PATCH") => {
            length_required(status)
        }
        _ => registry.answer(&asked),
    };
    let shown =
        format!("{line} {:?} -> {}", asked.header("content-range"), answer.status().as_u16());
    registry.content.lock().unwrap().requests.push(shown);
    answer
}

/// The page of a front end that never asked the registry.
fn length_required(status: u16) -> Response<Body> {
    let page = "<!DOCTYPE html><html lang=en><title>Error 411 (Length Required)!!1</title>";
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "text/html; charset=UTF-8")
        .body(Body::from(page))
        .unwrap()
}

/// `/v2/NAME/blobs|manifests|referrers|tags/REFERENCE`, or `/v2/NAME/blobs/uploads/ID`.
fn split(path: &str) -> Option<(&str, &str, &str)> {
    let (rest, reference) = path.strip_prefix("/v2/")?.rsplit_once('/')?;
    let (name, what) = rest.rsplit_once('/')?;
    Some((if what == "uploads" { name.strip_suffix("/blobs")? } else { name }, what, reference))
}

fn digest_of(content: &[u8]) -> String {
    Digest::sha256(content).to_string()
}

fn unknown(what: &str) -> Response<Body> {
    let answer =
        json!({"errors": [{"code": format!("{what}_UNKNOWN"), "message": "it is not there"}]});
    ociseek_testkit::faulty::json_answer(404, &answer)
}
