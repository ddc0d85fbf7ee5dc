//! The endpoints for a service's state: whether it runs, whether it accepts work, and its counters.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::connections::accept;

/// A service with health and metrics endpoints.
pub trait Monitored: Send + Sync + 'static {
    /// Whether it accepts work.
    fn is_ready(&self) -> bool;

    /// Its counters and gauges, in the text format of Prometheus.
    fn metrics(&self) -> String;
}

/// Serves `GET /healthz`, `/readyz` and `/metrics` on `listener`, without authentication, for as
/// long as this is polled. `patience` is the service's.
pub async fn monitor(listener: TcpListener, service: Arc<impl Monitored>, patience: Duration) {
    accept(listener, router(service), patience, std::future::pending()).await;
}

/// The routes of these endpoints, to be served together with others.
pub(crate) fn router<M: Monitored>(service: Arc<M>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready::<M>))
        .route("/metrics", get(metrics::<M>))
        .with_state(service)
}

async fn ready<M: Monitored>(State(service): State<Arc<M>>) -> Response {
    match service.is_ready() {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response(),
    }
}

async fn metrics<M: Monitored>(State(service): State<Arc<M>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], service.metrics()).into_response()
}
