//! The HTTP service that registries notify.
//!
//! | request | answer |
//! |---|---|
//! | `POST /` or `/events` | accepts a notification; `?registry=HOST` names its registry, `?token=` passes the secret |
//! | `GET /healthz` | 200 while the process serves |
//! | `GET /readyz` | 200 while it takes notifications, else 503 |
//! | `GET /metrics` | counters for Prometheus, for those who show the secret if there is one |
//!
//! Everything has a bound: connections, of one peer too, and how long they last; the time for a
//! header, for a body, and for taking an answer; a body's bytes, bodies in memory at a time;
//! notifications a second, jobs that wait. An event is answered with success only when it is in the
//! queue, and in the journal if there is one.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use tracing::info;

use super::http::{Monitored, accept, monitor, monitor_router};
use super::log::TARGET;
use super::metrics::Counter;
use super::remembered::Remembered;
use super::runner::Runner;
use super::secret::Secrets;
use bounds::Bucket;
use sink::Sink;

mod bounds;
mod notify;
pub mod sink;
mod work;

/// Bodies that are read at a time of senders who have shown the secret: as many MiB at most.
const BODIES: usize = 24;
/// The same of senders whose secret must be judged by the body: strangers may be among them.
const UNPROVEN_BODIES: usize = 8;

/// How a service behaves.
pub struct ServerConfig {
    /// None: whoever can reach the service may notify it.
    pub secrets: Option<Secrets>,
    /// Maximum notifications per second on average; bursts of ten seconds' worth are allowed.
    pub rate: NonZeroU32,
    /// Jobs that are done side by side, where they are done here.
    pub workers: usize,
    /// How long a client may take to send a header, or a body, and to take some of an answer.
    pub patience: Duration,
    /// How long work goes on after the service was told to stop.
    pub drain: Duration,
}

/// Where a service is reached.
pub struct Listeners {
    /// Where notifications are taken.
    pub notifications: TcpListener,
    /// Where health and metrics are told to whoever asks, beside where notifications are taken.
    pub monitor: Option<TcpListener>,
}

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ServeError {
    #[error("without a secret, anyone who can reach {0} could send notifications")]
    NoSecret(SocketAddr),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// What all requests share.
struct App {
    runner: Arc<Runner>,
    sink: Sink,
    config: ServerConfig,
    rate: Bucket,
    /// Refusals that are logged a second: strangers must not fill the disk.
    complaints: Bucket,
    bodies: Semaphore,
    unproven_bodies: Semaphore,
    /// Events that were answered with success, and whose jobs did not fail: [`notify::events_of`]
    /// their job, then their ids.
    seen: Mutex<Remembered>,
    stopping: AtomicBool,
}

/// Listens on `address` for notifications, and refuses to do so for the whole network without a secret.
///
/// # Errors
/// When there is no secret, or the address cannot be had.
pub async fn listen(address: SocketAddr, config: &ServerConfig) -> Result<TcpListener, ServeError> {
    if config.secrets.is_none() && !address.ip().to_canonical().is_loopback() {
        return Err(ServeError::NoSecret(address));
    }
    listen_to_all(address).await
}

/// Listens on `address` for what everyone may ask: [`monitor`].
///
/// # Errors
/// When the address cannot be had.
pub async fn listen_to_all(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })
}

/// Serves until `stop`, then ends in good order: no more connections, requests that have begun are
/// answered, jobs go on for [`ServerConfig::drain`], and what is left by then is in the journal or
/// among the dead letters.
pub async fn serve(
    listeners: Listeners,
    runner: Arc<Runner>,
    sink: Sink,
    config: ServerConfig,
    stop: impl Future<Output = ()>,
) {
    let app = Arc::new(App {
        rate: Bucket::new(config.rate.get(), 10),
        complaints: Bucket::new(1, 20),
        bodies: Semaphore::new(BODIES),
        unproven_bodies: Semaphore::new(UNPROVEN_BODIES),
        seen: Mutex::default(),
        stopping: AtomicBool::new(false),
        runner,
        sink,
        config,
    });
    let patience = app.config.patience;
    let workers = work::start(&app);
    let stopped = async {
        stop.await;
        app.stopping.store(true, Ordering::Relaxed);
        let (waiting, running) = app.sink.here().map_or((0, 0), |here| here.backlog.lengths());
        info!(name: "stopping", target: TARGET, queued = waiting, running);
    };
    let service = async {
        accept(listeners.notifications, router(&app), patience, stopped).await;
        let left = work::finish(&app, workers).await;
        info!(name: "stopped", target: TARGET, left);
    };
    match listeners.monitor {
        Some(listener) => tokio::select! {
            () = service => {}
            () = monitor(listener, Arc::clone(&app), patience) => {}
        },
        None => service.await,
    }
}

fn router(app: &Arc<App>) -> Router {
    let taken = || post(notify::notify).options(notify::may_i);
    let runner = Arc::clone(&app.runner);
    let count = move |response: Response| {
        runner.metrics.count(Counter::Requests, code(response.status()));
        std::future::ready(response)
    };
    Router::new()
        .route("/", taken())
        .route("/events", taken())
        .with_state(Arc::clone(app))
        .merge(monitor_router(Arc::clone(app)).route_layer(from_fn_with_state(Arc::clone(app), guard)))
        .layer(map_response(count))
}

/// With a secret, strangers may be able to reach the service; they must not see its metrics.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match request.uri().path() == "/metrics" && !notify::shows_secret(&app, request.headers(), request.uri()) {
        true => notify::unauthorized(),
        false => next.run(request).await,
    }
}

impl Monitored for App {
    fn runner(&self) -> &Runner {
        &self.runner
    }

    fn is_ready(&self) -> bool {
        !self.stopping.load(Ordering::Relaxed) && self.sink.has_room()
    }

    /// A queue that many share is measured where it is.
    fn gauges(&self) -> Vec<(&'static str, &'static str, u64)> {
        let Some(here) = self.sink.here() else { return Vec::new() };
        let (waiting, running) = here.backlog.lengths();
        vec![
            ("ociseek_hook_queued", "Jobs waiting", waiting as u64),
            ("ociseek_hook_running", "Jobs in progress", running as u64),
        ]
    }
}

fn code(status: StatusCode) -> &'static str {
    match status.as_u16() {
        200 => "200",
        202 => "202",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        408 => "408",
        413 => "413",
        415 => "415",
        429 => "429",
        503 => "503",
        _ => "other",
    }
}
