//! What a service says of itself by HTTP: that it lives, whether it takes work, and what it has counted.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::connections::accept;
use crate::hook::runner::Runner;

/// A service that can be asked how it does.
pub trait Monitored: Send + Sync + 'static {
    /// What does its jobs and counts them.
    fn runner(&self) -> &Runner;

    /// Whether it takes work.
    fn is_ready(&self) -> bool;

    /// What is measured rather than counted: name, what it is, value.
    fn gauges(&self) -> Vec<(&'static str, &'static str, u64)>;
}

/// Answers `GET /healthz`, `/readyz` and `/metrics` at `listener`, to whoever asks, for as long as this is
/// polled. `patience` as of the service itself.
pub async fn monitor(listener: TcpListener, service: Arc<impl Monitored>, patience: Duration) {
    accept(listener, router(service), patience, std::future::pending()).await;
}

/// Those answers, to be served with others.
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
    let text = service.runner().metrics.text(&service.gauges());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
