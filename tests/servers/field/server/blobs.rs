//! Blobs, at the registry and at the host of its signed URLs.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, header};
use bytes::Bytes;

use super::super::profile::Trait;
use super::{Asked, Content, Registry, unknown};
use ociseek_testkit::faulty::{problem, status};

/// How long a signed URL is valid.
const SIGNED: Duration = Duration::from_millis(700);

impl Registry {
    pub(super) fn get_blob(&self, asked: &Asked, name: &str, digest: &str) -> Response<Body> {
        let mut content = self.content.lock().unwrap();
        let blob = content
            .repositories
            .get(name)
            .and_then(|repository| repository.blobs.get(digest))
            .cloned();
        let Some(blob) = blob else { return unknown("BLOB") };
        if self.profile.has(Trait::NoHeadOfBlobs) && asked.method == "HEAD" {
            return unknown("BLOB");
        }
        if self.profile.has(Trait::SignedUrls) && asked.method == "GET" {
            return self.signed(&mut content, blob);
        }
        let refused = self.profile.find(|one| match one {
            Trait::RangesRefused(status) => Some(status),
            _ => None,
        });
        if let (Some(refused), Some(_)) = (refused, asked.header("range")) {
            return status(refused);
        }
        let range = asked.header("range").filter(|_| !self.profile.has(Trait::NoRanges));
        part(&blob, range, Some(digest))
    }

    /// A redirect to a signed URL of this content.
    pub(super) fn signed(&self, content: &mut Content, bytes: Bytes) -> Response<Body> {
        let key = format!("s{}", content.signed.len());
        let to = format!("http://{}/{key}?X-Amz-Expires=1&X-Amz-Signature={key}", self.storage);
        content.signed.insert(key, (bytes, Instant::now()));
        Response::builder().status(307).header(header::LOCATION, to).body(Body::empty()).unwrap()
    }
}

/// What the host of the signed URLs answers.
pub(super) async fn stored(
    State(registry): State<Registry>,
    request: Request<Body>,
) -> Response<Body> {
    let asked = Asked::of(request).await;
    if asked.header("authorization").is_some() {
        let message = "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query \
                       string parameter or the Authorization header should be specified";
        return problem(400, "InvalidArgument", message);
    }
    if let Some(id) = asked.path.strip_prefix("/uploads/") {
        return registry.upload(&asked, id);
    }
    if asked.method == "HEAD" {
        return problem(403, "AccessDenied", "The request signature we calculated does not match");
    }
    let content = registry.content.lock().unwrap();
    match content.signed.get(asked.path.trim_start_matches('/')) {
        Some((blob, at)) if at.elapsed() < SIGNED => part(blob, asked.header("range"), None),
        Some(_) => problem(403, "AccessDenied", "Request has expired"),
        None => status(404),
    }
}

/// The blob, or a part of it.
fn part(blob: &Bytes, range: Option<&str>, digest: Option<&str>) -> Response<Body> {
    let total = blob.len();
    let range = range.and_then(|range| {
        let (from, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        let end = last.parse::<usize>().map_or(total, |last| total.min(last + 1));
        Some((from.parse::<usize>().ok()?, end))
    });
    let mut answer = Response::builder().header(header::CONTENT_TYPE, "application/octet-stream");
    if let Some(digest) = digest {
        answer = answer.header("docker-content-digest", digest);
    }
    match range {
        Some((from, end)) if from < end => answer
            .status(206)
            .header(header::CONTENT_RANGE, format!("bytes {from}-{}/{total}", end - 1))
            .body(Body::from(blob.slice(from..end)))
            .unwrap(),
        Some(_) => status(416),
        None => {
            answer.header(header::CONTENT_LENGTH, total).body(Body::from(blob.clone())).unwrap()
        }
    }
}
