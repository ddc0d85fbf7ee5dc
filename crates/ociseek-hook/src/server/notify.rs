//! Handles a notification: limits its size, its rate and its duration, authenticates its sender,
//! parses it, and offers each of its images as a job.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};
use url::form_urlencoded;

use super::App;
use super::queue::OfferError;
use crate::backlog::Offer;
use crate::http::Peer;
use crate::job::Job;
use crate::log::TARGET;
use crate::metrics::Counter;
use crate::secret::{RequestCredentials, SecretCheck, Secrets};
use ociseek_format::event::{EventError, Events, Headers, MAX_BODY, parse};
use ociseek_format::image::{CANONICAL_REGISTRY, is_canonical_registry};
use ociseek_format::progress::causes;
use ociseek_store::lock::Hold;

/// How long a request waits for permission to have its body read.
const TURN: Duration = Duration::from_secs(5);
/// The maximum number of reasons in a response for rejected events.
const REASONS: usize = 10;

/// A response other than success.
struct Refusal {
    status: StatusCode,
    reason: String,
    /// In seconds.
    retry_after: Option<u64>,
}

impl Refusal {
    fn new(status: StatusCode, reason: impl Into<String>) -> Refusal {
        Refusal { status, reason: reason.into(), retry_after: None }
    }

    fn later(status: StatusCode, seconds: u64, reason: &str) -> Refusal {
        Refusal { status, reason: reason.to_owned(), retry_after: Some(seconds) }
    }

    fn answer(self) -> Response {
        let mut response = answer(self.status, &json!({"error": self.reason}));
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

/// `OPTIONS`: a sender of CloudEvents asks for permission (CloudEvents, "HTTP 1.1 Web Hooks", 4),
/// which needs the secret.
pub(super) async fn may_i(headers: HeaderMap) -> Response {
    let origin = headers.get("webhook-request-origin").cloned();
    let mut response = StatusCode::OK.into_response();
    let allowed = response.headers_mut();
    allowed.insert(header::ALLOW, HeaderValue::from_static("POST, OPTIONS"));
    if let Some(origin) = origin {
        allowed.insert("webhook-allowed-origin", origin);
        allowed.insert("webhook-allowed-rate", HeaderValue::from_static("*"));
    }
    response
}

fn no_secret() -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "the secret is missing or wrong")
}

/// The response to clients without the secret.
pub(super) fn unauthorized() -> Response {
    no_secret().answer()
}

/// Whether a request without a body has the secret, if one is required.
pub(super) fn shows_secret(app: &App, headers: &HeaderMap, uri: &Uri) -> bool {
    let query = Query::of(uri);
    app.config
        .secrets
        .as_ref()
        .is_none_or(|secrets| secrets.judge(&shown(headers, &query)) == SecretCheck::Good)
}

fn shown<'a>(headers: &'a HeaderMap, query: &'a Query) -> RequestCredentials<'a> {
    RequestCredentials {
        authorization: text(headers, "authorization"),
        signature: text(headers, "x-hub-signature-256"),
        token: query.token.as_deref(),
    }
}

/// A header's value, if it is text.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// `POST`: a notification.
pub(super) async fn notify(
    State(app): State<Arc<App>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
) -> Response {
    let taken = take(&app, request).await;
    taken.unwrap_or_else(|refusal| {
        if app.complaints.take() {
            let status = refusal.status.as_u16();
            warn!(name: "refused", target: TARGET, peer = peer.to_string(), status, reason = refusal.reason);
        }
        refusal.answer()
    })
}

async fn take(app: &App, request: Request) -> Result<Response, Refusal> {
    if app.stopping.load(Ordering::Relaxed) {
        return Err(Refusal::later(StatusCode::SERVICE_UNAVAILABLE, 30, "the service is stopping"));
    }
    let (parts, body) = request.into_parts();
    let query = Query::of(&parts.uri);
    let shown = shown(&parts.headers, &query);
    let verdict = admit(app, &parts.headers, &query, &shown)?;
    let bodies = if verdict == SecretCheck::Signature { &app.unproven_bodies } else { &app.bodies };
    let busy =
        |_| Refusal::later(StatusCode::SERVICE_UNAVAILABLE, 5, "too many notifications at once");
    let turn = tokio::time::timeout(TURN, bodies.acquire()).await.map_err(busy)?;
    let body = read(body, MAX_BODY, app.config.patience).await.map_err(|error| match error {
        BodyError::TooLarge => too_large(),
        BodyError::TooSlow => {
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")
        }
        BodyError::Broken => Refusal::new(StatusCode::BAD_REQUEST, "the body is incomplete"),
    })?;
    if verdict == SecretCheck::Signature {
        let signed = |(secrets, signature): (&Secrets, &str)| secrets.signed(signature, &body);
        if !app.config.secrets.as_ref().zip(shown.signature).is_some_and(signed) {
            return Err(no_secret());
        }
    }
    if !app.rate.take() {
        return Err(Refusal::later(
            StatusCode::TOO_MANY_REQUESTS,
            1,
            "too many notifications a second",
        ));
    }
    let events = parse(&Headers::new(|name| text(&parts.headers, name)), &body);
    drop((body, turn));
    let events = events.map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, causes(&error)))?;
    app.runner.metrics.count(Counter::Events, events.shape.code());
    if let Some(word) = &events.handshake {
        return Ok(answer(StatusCode::OK, &json!({"validationResponse": word})));
    }
    enqueue(app, events, query.registry.as_deref()).await
}

fn too_large() -> Refusal {
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, EventError::TooLarge.to_string())
}

/// Checks as much as possible by the header, so that unauthenticated clients cost no memory for a
/// body.
fn admit(
    app: &App,
    headers: &HeaderMap,
    query: &Query,
    shown: &RequestCredentials<'_>,
) -> Result<SecretCheck, Refusal> {
    let secrets = app.config.secrets.as_ref();
    let verdict = secrets.map_or(SecretCheck::Good, |secrets| secrets.judge(shown));
    if verdict == SecretCheck::Bad {
        return Err(no_secret());
    }
    // Without a secret, any web page could make a browser on this machine send a request. Browsers
    // add these headers, registries do not.
    if secrets.is_none()
        && ["origin", "sec-fetch-site"].iter().any(|name| headers.contains_key(*name))
    {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "requests from web pages are refused"));
    }
    if let Some(registry) =
        query.registry.as_deref().filter(|registry| !is_canonical_registry(registry))
    {
        let shown: String = registry.chars().take(150).collect();
        let reason =
            format!("?registry={shown:?} is not a registry: expected {CANONICAL_REGISTRY}");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, reason));
    }
    if text(headers, "content-encoding")
        .is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity"))
    {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "compressed bodies are not supported",
        ));
    }
    let length = text(headers, "content-length").and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > MAX_BODY as u64) {
        return Err(too_large());
    }
    Ok(verdict)
}

/// The results for the images in a body.
#[derive(Default)]
struct IntakeResult {
    accepted: usize,
    duplicates: usize,
    reasons: Vec<String>,
    ignored: usize,
}

impl IntakeResult {
    fn ignore(&mut self, app: &App, label: &'static str, reason: String) {
        app.runner.metrics.count(Counter::Images, label);
        self.ignored += 1;
        self.reason(reason);
    }

    fn reason(&mut self, reason: String) {
        if self.reasons.len() < REASONS {
            self.reasons.push(reason);
        }
    }
}

async fn enqueue(app: &App, events: Events, registry: Option<&str>) -> Result<Response, Refusal> {
    let mut taken = IntakeResult::default();
    for ignored in &events.ignored {
        taken.ignore(app, "ignored", ignored.to_string());
    }
    // All images are offered even if there is no room: the sender repeats the whole body, and the
    // others are duplicates then.
    let mut full = None;
    for push in events.pushes {
        let image = match push.image(registry) {
            Ok(image) => image,
            Err(reason) => {
                // With an invalid name, the event's registry is usually the cause.
                let hint = if registry.is_none() { ": add ?registry=HOST to the URL" } else { "" };
                taken.ignore(app, "ignored", format!("{}: {reason}{hint}", push.repository));
                continue;
            }
        };
        let job = Job { image };
        // Only a process that runs a job knows its result. A shared queue detects duplicates
        // itself.
        let id = app.queue.local().and(push.id.as_ref());
        let id = id.map(|id| format!("{}{} {id}", events_of(app, &job), events.shape));
        if let Some(id) = &id {
            let mut seen = app.seen.lock().await;
            if seen.knows(id, Instant::now()) {
                app.runner.metrics.count(Counter::Images, "replayed");
                taken.duplicates += 1;
                continue;
            }
            // Added before the job, which may fail at once and make its events be forgotten.
            seen.add(id.clone(), Instant::now());
        }
        if let Err(refusal) = one(app, job, &mut taken).await {
            app.runner.metrics.count(Counter::Images, "full");
            full = Some(refusal);
            if let Some(id) = &id {
                app.seen.lock().await.forget(id);
            }
        }
    }
    if let Some(refusal) = full {
        return Err(refusal);
    }
    let IntakeResult { accepted, duplicates, reasons, ignored } = taken;
    if accepted + duplicates > 0 {
        app.queue.sync().await.map_err(|error| unwritable(&error))?;
    }
    let status = if accepted > 0 { StatusCode::ACCEPTED } else { StatusCode::OK };
    let body = json!({"accepted": accepted, "duplicates": duplicates, "ignored": ignored, "reasons": reasons});
    Ok(answer(status, &body))
}

/// The common prefix of the keys of all events that requested a job.
pub(super) fn events_of(app: &App, job: &Job) -> String {
    format!("{} ", job.key(app.runner.unit()))
}

async fn one(app: &App, job: Job, taken: &mut IntakeResult) -> Result<(), Refusal> {
    if let Some(skipped) = job.skipped_by_name(app.runner.versions()) {
        taken.ignore(app, "ignored", skipped.to_string());
        return Ok(());
    }
    if !app.runner.admits(&job) {
        if app.complaints.take() {
            warn!(name: "not-allowed", target: TARGET, image = job.image.to_string());
        }
        taken.ignore(app, "not-allowed", format!("{} is not allowed by --allow", job.image));
        return Ok(());
    }
    let name = job.image.to_string();
    let not_enabled = job.not_enabled(app.runner.versions());
    let full = |seconds, status, reason| Err(Refusal::later(status, seconds, reason));
    match app.queue.offer(job).await {
        Ok(Offer::Accepted) => {
            app.runner.metrics.count(Counter::Images, "accepted");
            info!(name: "accepted", target: TARGET, image = name);
            taken.accepted += 1;
            if let Some(why) = not_enabled {
                taken.reason(format!("no SOCI-enabled image: {why}"));
            }
            Ok(())
        }
        Ok(Offer::Duplicate) => {
            app.runner.metrics.count(Counter::Images, "duplicate");
            debug!(name: "duplicate", target: TARGET, image = name);
            taken.duplicates += 1;
            Ok(())
        }
        Ok(Offer::RepositoryFull) => full(
            10,
            StatusCode::TOO_MANY_REQUESTS,
            "too many images of this repository are waiting",
        ),
        Ok(Offer::Full) => full(30, StatusCode::SERVICE_UNAVAILABLE, "the queue is full"),
        Ok(Offer::Closed) => full(30, StatusCode::SERVICE_UNAVAILABLE, "the service is stopping"),
        Err(error) => Err(unwritable(&error)),
    }
}

/// Reports that the queue or its journal cannot be written.
fn unwritable(error: &OfferError) -> Refusal {
    error!(name: "queue", target: TARGET, error = causes(error));
    Refusal::later(StatusCode::SERVICE_UNAVAILABLE, 30, "cannot write to the queue")
}

/// The parameters in the URL.
#[derive(Default)]
struct Query {
    token: Option<String>,
    registry: Option<String>,
}

impl Query {
    fn of(uri: &Uri) -> Query {
        let mut query = Query::default();
        for (key, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            match &*key {
                "token" => query.token = Some(value.into_owned()),
                "registry" => query.registry = Some(value.to_ascii_lowercase()),
                _ => {}
            }
        }
        query
    }
}

/// A token bucket: `rate` per second on average, with bursts of several seconds' worth.
pub(super) struct Bucket {
    rate: f64,
    full: f64,
    state: Mutex<(f64, Instant)>,
}

impl Bucket {
    pub(super) fn new(rate: u32, seconds: u32) -> Bucket {
        let full = f64::from(rate) * f64::from(seconds);
        Bucket { rate: rate.into(), full, state: Mutex::new((full, Instant::now())) }
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&self) -> bool {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> bool {
        let mut state = self.state.hold();
        let (level, at) = *state;
        let level =
            (level + now.saturating_duration_since(at).as_secs_f64() * self.rate).min(self.full);
        let taken = level >= 1.0;
        *state = (if taken { level - 1.0 } else { level }, now);
        taken
    }
}

/// Why a body was not read.
enum BodyError {
    TooLarge,
    TooSlow,
    Broken,
}

/// Reads a body of at most `limit` bytes that arrives within `patience`.
async fn read(body: Body, limit: usize, patience: Duration) -> Result<BytesMut, BodyError> {
    let read = async {
        let mut chunks = body.into_data_stream();
        let mut bytes = BytesMut::new();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| BodyError::Broken)?;
            if bytes.len() + chunk.len() > limit {
                return Err(BodyError::TooLarge);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    tokio::time::timeout(patience, read).await.unwrap_or(Err(BodyError::TooSlow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_does_not_exceed_its_rate_over_time() {
        let bucket = Bucket::new(10, 2);
        let begun = Instant::now();
        let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        let taken = (0..100).filter(|_| bucket.take_at(at(0.0))).count();
        assert_eq!(taken, 20);
        let taken = (0..1000).filter(|n| bucket.take_at(at(f64::from(*n) / 100.0))).count();
        assert!((98..=102).contains(&taken), "{taken}");
        let taken = (0..100).filter(|_| bucket.take_at(at(1000.0))).count();
        assert_eq!(taken, 20, "what was not taken is not kept for ever");
    }
}
