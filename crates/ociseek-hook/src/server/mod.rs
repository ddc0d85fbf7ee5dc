//! The HTTP service that registries notify.
//!
//! | request | answer |
//! |---|---|
//! | `POST /` or `/events` | accepts a notification; `?registry=HOST` names its registry, `?token=` passes the secret |
//! | `GET /healthz` | 200 while the process serves |
//! | `GET /readyz` | 200 while it takes notifications, else 503 |
//! | `GET /metrics` | counters for Prometheus, for those who show the secret if there is one |
//!
//! Everything is limited: the number and duration of connections, in total and for each peer; the
//! time to send a header or a body, and to accept a response; the size of a body, and the number of
//! bodies in memory; notifications per second, and waiting jobs. An event is only confirmed after
//! its jobs are in the queue, and in the journal if there is one.

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

use super::http::{Monitored, PATIENCE, accept, monitor, monitor_router};
use super::log::TARGET;
use super::metrics::Counter;
use super::recent_keys::RecentKeys;
use super::runner::Runner;
use super::secret::Secrets;
use notify::Bucket;
use queue::JobQueue;

mod notify;
pub mod queue;
mod work;

/// How many bodies of authenticated senders are read at the same time. Each takes up to a MiB of
/// memory.
const BODIES: usize = 24;
/// How many bodies are read at the same time if the body is needed to authenticate the sender.
const UNPROVEN_BODIES: usize = 8;

/// The settings of a service.
#[derive(Debug)]
pub struct ServerConfig {
    /// None to accept notifications without authentication.
    pub secrets: Option<Secrets>,
    /// The maximum number of notifications per second on average, with bursts of ten seconds'
    /// worth.
    pub rate: NonZeroU32,
    /// How many jobs run at the same time, unless a shared queue is used.
    pub workers: usize,
    /// How long a client may take to send a header or a body, and to accept some of a response.
    pub patience: Duration,
    /// How long jobs may continue after the service was stopped.
    pub drain: Duration,
}

/// Like `hook serve` without options: accepts everything from this machine, and runs two jobs at a
/// time.
impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            secrets: None,
            rate: NonZeroU32::new(100).unwrap_or(NonZeroU32::MIN),
            workers: 2,
            patience: Duration::from_secs(PATIENCE.into()),
            drain: Duration::from_secs(20),
        }
    }
}

/// The sockets of a service.
#[derive(Debug)]
pub struct Listeners {
    /// For notifications.
    pub notifications: TcpListener,
    /// For health and metrics without authentication, in addition to the first socket.
    pub monitor: Option<TcpListener>,
}

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("without a secret, anyone who can reach {0} could send notifications")]
    NoSecret(SocketAddr),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// The state that all requests share.
struct App {
    runner: Arc<Runner>,
    queue: JobQueue,
    config: ServerConfig,
    rate: Bucket,
    /// Limits how many refusals are logged per second, so that clients cannot fill the disk.
    complaints: Bucket,
    bodies: Semaphore,
    unproven_bodies: Semaphore,
    /// Events that were confirmed and whose jobs did not fail. Keys begin with the prefix of their
    /// job ([`notify::events_of`]), followed by the event's id.
    seen: Mutex<RecentKeys>,
    stopping: AtomicBool,
}

/// Listens on `address` for notifications. Refuses to listen on the network without a secret.
///
/// # Errors
/// If there is no secret, or the address is not available.
pub async fn listen(address: SocketAddr, config: &ServerConfig) -> Result<TcpListener, ServeError> {
    if config.secrets.is_none() && !address.ip().to_canonical().is_loopback() {
        return Err(ServeError::NoSecret(address));
    }
    listen_openly(address).await
}

/// Listens on `address` for the unauthenticated endpoints of [`monitor`].
///
/// # Errors
/// If the address is not available.
pub async fn listen_openly(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })
}

/// Serves until `stop`, and then ends gracefully: accepts no more connections, completes running
/// requests, and lets jobs continue for [`ServerConfig::drain`]. The remaining jobs are in the
/// journal or among the dead letters.
pub async fn serve(
    listeners: Listeners,
    runner: Arc<Runner>,
    queue: JobQueue,
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
        queue,
        config,
    });
    let patience = app.config.patience;
    let workers = work::start(&app);
    let stopped = async {
        stop.await;
        app.stopping.store(true, Ordering::Relaxed);
        let (waiting, running) = app.queue.local().map_or((0, 0), |queue| queue.backlog.lengths());
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
        .merge(
            monitor_router(Arc::clone(app)).route_layer(from_fn_with_state(Arc::clone(app), guard)),
        )
        .layer(map_response(count))
}

/// If there is a secret, the service may be reachable by clients without it, who must not see its
/// metrics.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if request.uri().path() == "/metrics"
        && !notify::shows_secret(&app, request.headers(), request.uri())
    {
        notify::unauthorized()
    } else {
        next.run(request).await
    }
}

impl Monitored for App {
    fn is_ready(&self) -> bool {
        !self.stopping.load(Ordering::Relaxed) && self.queue.has_room()
    }

    /// A shared queue has its own metrics.
    fn metrics(&self) -> String {
        let Some(queue) = self.queue.local() else { return self.runner.metrics.text(&[]) };
        let (waiting, running) = queue.backlog.lengths();
        self.runner.metrics.text(&[
            ("ociseek_hook_queued", "Jobs waiting", waiting as u64),
            ("ociseek_hook_running", "Jobs in progress", running as u64),
        ])
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
