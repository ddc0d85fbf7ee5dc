//! Responses, right and wrong, for the lies of tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::image::image_index;
use crate::sandbox::OCI_INDEX;
use axum::body::Body;
use axum::http::{Response, header};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use serde_json::{Value, json};

/// In the extensions of an answer: it never begins.
#[derive(Clone)]
pub(super) struct NoResponse;

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
    let answer =
        Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    answer.body(Body::from(value.to_string())).unwrap()
}

pub fn index_answer(manifests: &Value) -> Response<Body> {
    let index = image_index(&manifests);
    Response::builder()
        .header(header::CONTENT_TYPE, OCI_INDEX)
        .body(Body::from(index.to_string()))
        .unwrap()
}

pub fn web_page() -> Response<Body> {
    let page = "<!doctype html><title>Sign in</title>";
    Response::builder()
        .header(header::CONTENT_TYPE, "text/html; charset=utf-8")
        .body(Body::from(page))
        .unwrap()
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

/// The same response with a wrong byte in the middle of its body, which has at least one.
pub fn damaged(answer: Response<Body>, content: &Bytes) -> Response<Body> {
    damaged_at(content.len() / 2, answer, content)
}

/// The same response with a wrong byte at this place of its body.
pub fn damaged_at(at: usize, answer: Response<Body>, content: &Bytes) -> Response<Body> {
    let mut bytes = content.to_vec();
    bytes[at] ^= 0x20;
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
    Response::builder()
        .header(header::CONTENT_TYPE, media_type)
        .body(Body::from_stream(body))
        .unwrap()
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
    Response::builder()
        .header(header::CONTENT_LENGTH, content.len())
        .body(Body::from_stream(body))
        .unwrap()
}

/// How many responses were being sent at the same time.
#[derive(Default)]
pub struct OpenResponses {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl OpenResponses {
    /// Sends `content` in ten slow pieces, and counts the response as open meanwhile.
    pub fn answer(
        self: &Arc<OpenResponses>,
        honest: Response<Body>,
        content: Bytes,
    ) -> Response<Body> {
        struct Counted(Arc<OpenResponses>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.now.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let counted = Counted(Arc::clone(self));
        let pieces: Vec<_> = content
            .chunks(content.len().div_ceil(10).max(1))
            .map(|c| content.slice_ref(c))
            .collect();
        let body = stream::iter(pieces).then(move |piece| {
            let _ = &counted;
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok::<_, std::io::Error>(piece)
            }
        });
        let (head, _) = honest.into_parts();
        Response::from_parts(head, Body::from_stream(body))
    }

    /// The largest number so far.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

/// An answer that never begins.
pub fn no_response() -> Response<Body> {
    Response::builder().extension(NoResponse).body(Body::empty()).unwrap()
}

/// True for the first `n` calls.
pub fn first(n: usize) -> impl Fn() -> bool + Send + Sync {
    let left = std::sync::atomic::AtomicUsize::new(n);
    move || {
        use std::sync::atomic::Ordering::SeqCst;
        left.try_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}
