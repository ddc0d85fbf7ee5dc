//! The HTTP service that registries notify.
//!
//! | request | answer |
//! |---|---|
//! | `POST /` or `/events` | takes a notification, `?registry=HOST` says where it comes from, `?token=` may show the secret |
//! | `GET /healthz` | 200 while the process serves |
//! | `GET /readyz` | 200 while it takes notifications, else 503 |
//! | `GET /metrics` | counters for Prometheus |
//!
//! Everything has a bound: connections, the time for a header and for a body, a body's bytes, bodies in memory at a time,
//! notifications a second, jobs that wait. An event is answered with success only when it is in the queue, and in the journal if
//! there is one.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinSet;

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

/// Connections at a time; more wait in the listener's queue.
const CONNECTIONS: usize = 512;
/// Bodies that are read at a time: as many MiB at most.
const BODIES: usize = 32;
/// From the first byte of a header to its last.
const HEADER: Duration = Duration::from_secs(10);
/// How long requests that are being answered may take at the end.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// How a service behaves.
pub struct ServerConfig {
    /// None: whoever can reach the service may notify it.
    pub secrets: Option<Secrets>,
    /// Notifications a second, on average; ten seconds' worth may come at once.
    pub rate: NonZeroU32,
    /// Jobs that are done side by side, where they are done here.
    pub workers: usize,
    /// How long work goes on after the service was told to stop.
    pub drain: Duration,
}

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("without a secret, {0} would take notifications from anyone who can reach it")]
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
    /// Ids of events that were answered with success.
    seen: Mutex<Remembered>,
    stopping: AtomicBool,
}

/// Listens on `address`, and refuses to do so for the whole network without a secret.
///
/// # Errors
/// When there is no secret, or the address cannot be had.
pub async fn listen(address: SocketAddr, config: &ServerConfig) -> Result<TcpListener, ServeError> {
    if config.secrets.is_none() && !address.ip().to_canonical().is_loopback() {
        return Err(ServeError::NoSecret(address));
    }
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })
}

/// Serves until `stop`, then ends in good order: no more connections, requests that have begun are answered, jobs go on for
/// [`ServerConfig::drain`], and what is left by then is in the journal or among the dead letters.
pub async fn serve(
    listener: TcpListener,
    runner: Arc<Runner>,
    sink: Sink,
    config: ServerConfig,
    stop: impl Future<Output = ()>,
) {
    let app = Arc::new(App {
        rate: Bucket::new(config.rate.get(), 10),
        complaints: Bucket::new(1, 20),
        bodies: Semaphore::new(BODIES),
        seen: Mutex::default(),
        stopping: AtomicBool::new(false),
        runner,
        sink,
        config,
    });
    let workers = work::start(&app);
    let (last, ending) = watch::channel(());
    let mut connections = JoinSet::new();
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let router = router(&app);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            (permit, accepted) = accepted => match accepted {
                Ok((stream, peer)) => {
                    let (router, ending) = (router.clone(), ending.clone());
                    connections.spawn(async move {
                        let _permit = permit;
                        connection(stream, peer, router, ending).await;
                    });
                }
                // Out of file descriptors, say: connections that end give some back.
                Err(error) => {
                    app.runner.log.warn("accept", json!({"error": error.to_string()}));
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
    app.stopping.store(true, Ordering::Relaxed);
    drop(listener);
    let (waiting, running) = app.sink.here().map_or((0, 0), |here| here.backlog.lengths());
    app.runner.log.info("stopping", json!({"queued": waiting, "running": running}));
    let _ = last.send(());
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_REQUESTS, all).await;
    connections.shutdown().await;
    let left = work::finish(&app, workers).await;
    app.runner.log.info("stopped", json!({"left": left}));
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
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Arc::clone(app))
        .layer(axum::middleware::map_response(count))
}

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, mut ending: watch::Receiver<()>) {
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(router.layer(axum::Extension(notify::Peer(peer.ip()))));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER).max_buf_size(64 << 10);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    // How a connection ends is its peer's affair.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = ending.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn ready(axum::extract::State(app): axum::extract::State<Arc<App>>) -> Response {
    match !app.stopping.load(Ordering::Relaxed) && app.sink.has_room() {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response(),
    }
}

async fn metrics(axum::extract::State(app): axum::extract::State<Arc<App>>) -> Response {
    // A queue that many share is measured where it is.
    let gauges = app.sink.here().map(|here| here.backlog.lengths()).map(|(waiting, running)| {
        [
            ("ociseek_hook_queued", "Jobs that wait", waiting as u64),
            ("ociseek_hook_running", "Jobs that are being done", running as u64),
        ]
    });
    let text = app.runner.metrics.text(gauges.as_ref().map_or(&[], |gauges| gauges));
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

fn code(status: StatusCode) -> &'static str {
    match status.as_u16() {
        200 => "200",
        202 => "202",
        400 => "400",
        401 => "401",
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
