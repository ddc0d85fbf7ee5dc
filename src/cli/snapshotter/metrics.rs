//! Metrics of the snapshotter, and the HTTP server for them and its health.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use crate::cli::shared::error::{CliError, HookError};
use ociseek_hook::http::{Monitored, PATIENCE, monitor};
use ociseek_hook::metrics::{Counters, Durations, Metrics};
use ociseek_hook::server::listen_openly;
use ociseek_snapshotter::{AnsweredCall, KeptNumbers, Snapshotter};

/// A counter of the snapshotter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SnapshotterCounter {
    Requests,
    Failures,
    Unpacked,
    Mounts,
    Replacements,
    FetchedBytes,
}

impl Counters for SnapshotterCounter {
    const DURATIONS: Durations = Durations {
        name: "ociseek_snapshotter_request_seconds",
        help: "Time to answer a request of containerd",
        buckets: &[0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0],
    };

    fn describe(self) -> (&'static str, &'static str, &'static str) {
        match self {
            SnapshotterCounter::Requests => {
                ("ociseek_snapshotter_requests_total", "method", "Requests of containerd answered")
            }
            SnapshotterCounter::Failures => (
                "ociseek_snapshotter_failures_total",
                "method",
                "Requests of containerd that failed",
            ),
            SnapshotterCounter::Unpacked => (
                "ociseek_snapshotter_unpacked_total",
                "reason",
                "Pulls that were left to containerd",
            ),
            SnapshotterCounter::Mounts => {
                ("ociseek_snapshotter_mounts_total", "result", "Attempts to mount an image")
            }
            SnapshotterCounter::Replacements => (
                "ociseek_snapshotter_replacements_total",
                "result",
                "Attempts to continue with a mount of an earlier server",
            ),
            SnapshotterCounter::FetchedBytes => (
                "ociseek_snapshotter_fetched_bytes_total",
                "",
                "Bytes fetched from registries for mounts",
            ),
        }
    }
}

pub(super) type SnapshotterMetrics = Metrics<SnapshotterCounter>;

/// Counts a call.
pub(super) fn count(metrics: &SnapshotterMetrics, call: AnsweredCall) {
    metrics.count(SnapshotterCounter::Requests, call.method);
    if call.failed {
        metrics.count(SnapshotterCounter::Failures, call.method);
    }
    metrics.took(call.took);
}

struct MonitoredSnapshotter {
    metrics: Arc<SnapshotterMetrics>,
    snapshotter: Arc<Snapshotter>,
}

impl Monitored for MonitoredSnapshotter {
    fn is_ready(&self) -> bool {
        self.snapshotter.is_ready()
    }

    fn metrics(&self) -> String {
        let KeptNumbers { snapshots, images, mounts, fetched, silent } = self.snapshotter.numbers();
        self.metrics.set(SnapshotterCounter::FetchedBytes, "", fetched);
        self.metrics.text(&[
            ("ociseek_snapshotter_snapshots", "Snapshots", snapshots),
            ("ociseek_snapshotter_images", "Images whose layers are not pulled", images),
            ("ociseek_snapshotter_mounts", "Mounts of images", mounts),
            ("ociseek_snapshotter_silent_mounts", "Mounts that do not answer", silent),
        ])
    }
}

/// Listens on `address`. The server runs as long as the returned future is polled.
pub(super) async fn served(
    address: Option<SocketAddr>,
    metrics: &Arc<SnapshotterMetrics>,
    snapshotter: &Arc<Snapshotter>,
) -> Result<impl Future<Output = ()> + use<>, CliError> {
    let listener = match address {
        Some(address) => Some(listen_openly(address).await.map_err(HookError::from)?),
        None => None,
    };
    if let Some(address) = listener.as_ref().and_then(|listener| listener.local_addr().ok()) {
        info!(%address, "serving metrics");
    }
    let service =
        MonitoredSnapshotter { metrics: Arc::clone(metrics), snapshotter: Arc::clone(snapshotter) };
    Ok(async move {
        match listener {
            Some(listener) => {
                monitor(listener, Arc::new(service), Duration::from_secs(PATIENCE.into())).await
            }
            None => std::future::pending().await,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_method() {
        let metrics = SnapshotterMetrics::default();
        for (method, failed) in [("Prepare", false), ("Prepare", true), ("Stat", false)] {
            count(&metrics, AnsweredCall { method, failed, took: Duration::from_millis(3) });
        }
        let text = metrics.text(&[]);
        for line in [
            "# TYPE ociseek_snapshotter_requests_total counter",
            "ociseek_snapshotter_requests_total{method=\"Prepare\"} 2",
            "ociseek_snapshotter_failures_total{method=\"Prepare\"} 1",
            "ociseek_snapshotter_request_seconds_bucket{le=\"0.001\"} 0",
            "ociseek_snapshotter_request_seconds_bucket{le=\"0.005\"} 3",
            "ociseek_snapshotter_request_seconds_count 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("failures_total{method=\"Stat\"}"), "{text}");
    }
}
