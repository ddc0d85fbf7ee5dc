//! Metrics of the snapshotter, and the HTTP server for them and its health.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::spawn_blocking;
use tracing::info;

use crate::cli::shared::error::CliError;
use ociseek_hook::http::{Monitored, PATIENCE, monitor};
use ociseek_hook::metrics::{Counters, Durations, Metrics};
use ociseek_hook::server::listen_openly;
use ociseek_node::{AnsweredCall, KeptNumbers, METHODS, Snapshotter};
use ociseek_ops::judge::NotLazy;
use ociseek_rootfs::cache::{SpanCache, SpanCacheStats};
use ociseek_rootfs::content::ReadError;
use ociseek_store::registry::AnsweredRequest;

/// A counter of the snapshotter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SnapshotterCounter {
    Requests,
    Failures,
    Unpacked,
    Mounts,
    Replacements,
    FetchedBytes,
    ReadFailures,
    RegistryRequests,
    CacheHits,
    CacheMisses,
    CacheEvictions,
    Reloads,
}

/// How long containerd's requests take.
const REQUESTS: Durations = Durations {
    name: "ociseek_snapshotter_request_seconds",
    help: "Time to answer a request of containerd",
    buckets: &[0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0],
};
/// How long reads of containers take.
pub(super) const READS: Durations = Durations {
    name: "ociseek_snapshotter_read_seconds",
    help: "Time to answer a read of a file in an image",
    buckets: &[0.0001, 0.0005, 0.0025, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0],
};
/// How long registries take to answer.
const REGISTRIES: Durations = Durations {
    name: "ociseek_snapshotter_registry_request_seconds",
    help: "Time until the answer of a registry begins",
    buckets: &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0],
};

impl Counters for SnapshotterCounter {
    const DURATIONS: &'static [Durations] = &[REQUESTS, READS, REGISTRIES];
    const FROM_START: &'static [(SnapshotterCounter, &'static [&'static str])] = &[
        (SnapshotterCounter::Requests, METHODS),
        (SnapshotterCounter::Failures, METHODS),
        (SnapshotterCounter::Unpacked, &NotLazy::CODES),
        (SnapshotterCounter::Mounts, &["mounted", "failed"]),
        (SnapshotterCounter::Replacements, &["replaced", "failed"]),
        (SnapshotterCounter::ReadFailures, &ReadError::CODES),
        (SnapshotterCounter::RegistryRequests, &["2xx", "3xx", "4xx", "5xx", "none"]),
        (SnapshotterCounter::Reloads, &["reloaded", "failed"]),
    ];

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
            SnapshotterCounter::ReadFailures => (
                "ociseek_snapshotter_read_failures_total",
                "reason",
                "Reads of files in images that failed",
            ),
            SnapshotterCounter::RegistryRequests => (
                "ociseek_snapshotter_registry_requests_total",
                "code",
                "Requests to registries and token services",
            ),
            SnapshotterCounter::CacheHits => (
                "ociseek_snapshotter_cache_hits_total",
                "",
                "Lookups in the cache on disk that found the span",
            ),
            SnapshotterCounter::CacheMisses => (
                "ociseek_snapshotter_cache_misses_total",
                "",
                "Lookups in the cache on disk that did not find the span",
            ),
            SnapshotterCounter::CacheEvictions => (
                "ociseek_snapshotter_cache_evictions_total",
                "",
                "Files removed from the cache on disk to make room",
            ),
            SnapshotterCounter::Reloads => (
                "ociseek_snapshotter_reloads_total",
                "result",
                "Attempts to read the configuration again",
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
    metrics.took(&REQUESTS, call.took);
}

/// Counts a request to a registry.
pub(super) fn count_request(metrics: &SnapshotterMetrics, request: AnsweredRequest) {
    let code = match request.status {
        None => "none",
        Some(..300) => "2xx",
        Some(300..400) => "3xx",
        Some(400..500) => "4xx",
        Some(500..) => "5xx",
    };
    metrics.count(SnapshotterCounter::RegistryRequests, code);
    metrics.took(&REGISTRIES, request.took);
}

/// All metrics, as Prometheus reads them.
fn text(metrics: &SnapshotterMetrics, numbers: KeptNumbers, cache: SpanCacheStats) -> String {
    let KeptNumbers { snapshots, images, mounts, fetched, silent } = numbers;
    let SpanCacheStats { bytes, max_bytes, hits, misses, evictions, is_silent } = cache;
    for (counter, total) in [
        (SnapshotterCounter::FetchedBytes, fetched),
        (SnapshotterCounter::CacheHits, hits),
        (SnapshotterCounter::CacheMisses, misses),
        (SnapshotterCounter::CacheEvictions, evictions),
    ] {
        metrics.set(counter, "", total);
    }
    metrics.text(&[
        ("ociseek_snapshotter_snapshots", "Snapshots", snapshots),
        ("ociseek_snapshotter_images", "Images whose layers are not pulled", images),
        ("ociseek_snapshotter_mounts", "Mounts of images", mounts),
        ("ociseek_snapshotter_silent_mounts", "Mounts that do not answer", silent),
        ("ociseek_snapshotter_cache_bytes", "Size of the content in the cache on disk", bytes),
        ("ociseek_snapshotter_cache_limit_bytes", "Size limit of the cache on disk", max_bytes),
        (
            "ociseek_snapshotter_cache_silent",
            "Whether the disk of the cache does not answer",
            u64::from(is_silent),
        ),
    ])
}

/// Whose metrics are served.
pub(super) struct MonitoredSnapshotter {
    pub metrics: Arc<SnapshotterMetrics>,
    pub snapshotter: Arc<Snapshotter>,
    pub cache: SpanCache,
}

impl Monitored for MonitoredSnapshotter {
    fn is_ready(&self) -> bool {
        self.snapshotter.is_ready()
    }

    fn metrics(&self) -> String {
        text(&self.metrics, self.snapshotter.numbers(), self.cache.stats())
    }
}

/// Listens on `address`.
pub(super) async fn listening(
    address: Option<SocketAddr>,
) -> Result<Option<TcpListener>, CliError> {
    match address {
        Some(address) => Ok(Some(listen_openly(address).await?)),
        None => Ok(None),
    }
}

/// Serves the metrics as long as the returned future is polled.
pub(super) fn served(
    listener: Option<TcpListener>,
    service: MonitoredSnapshotter,
) -> impl Future<Output = ()> + use<> {
    if let Some(address) = listener.as_ref().and_then(|listener| listener.local_addr().ok()) {
        info!(name: "listening", %address, "serving metrics");
        let cache = service.cache.clone();
        // Nobody waits for it.
        drop(spawn_blocking(move || cache.measure()));
    }
    async move {
        match listener {
            Some(listener) => {
                monitor(listener, Arc::new(service), Duration::from_secs(PATIENCE.into())).await
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
            "ociseek_snapshotter_failures_total{method=\"Stat\"} 0",
            "ociseek_snapshotter_request_seconds_bucket{le=\"0.001\"} 0",
            "ociseek_snapshotter_request_seconds_bucket{le=\"0.005\"} 3",
            "ociseek_snapshotter_request_seconds_count 3",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn requests_to_registries_are_counted_by_kinds_of_answers() {
        let metrics = SnapshotterMetrics::default();
        for status in [Some(206), Some(307), Some(404), Some(503), None, Some(200)] {
            let took = Duration::from_millis(20);
            count_request(&metrics, AnsweredRequest { status, took });
        }
        let text = metrics.text(&[]);
        let count = |code: &str| {
            let name = format!("ociseek_snapshotter_registry_requests_total{{code=\"{code}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().to_owned()
        };
        assert_eq!(["2xx", "3xx", "4xx", "5xx", "none"].map(count), ["2", "1", "1", "1", "1"]);
        assert!(text.contains("ociseek_snapshotter_registry_request_seconds_count 6\n"), "{text}");
    }

    /// Each metric with its label, as `name{label}`.
    fn served_names() -> BTreeSet<String> {
        let numbers = KeptNumbers { snapshots: 0, images: 0, mounts: 0, fetched: 0, silent: 0 };
        let text = text(&SnapshotterMetrics::default(), numbers, SpanCacheStats::default());
        let label = |line: &str, name: &str| {
            let label = line.strip_prefix(name)?.strip_prefix('{')?.split('=').next()?;
            Some(format!("{name}{{{label}}}"))
        };
        let described = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let named = described.filter_map(|line| line.split(' ').next()).map(|name| {
            let labelled = text.lines().find_map(|line| label(line, name));
            labelled.unwrap_or_else(|| name.to_owned())
        });
        named.collect()
    }

    #[test]
    fn the_page_has_a_row_for_each_metric() {
        let page = include_str!("../../../docs/snapshotter.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `ociseek_snapshotter_"));
        let documented: BTreeSet<String> = rows
            .filter_map(|row| Some(format!("ociseek_snapshotter_{}", row.split('`').next()?)))
            .collect();
        assert_eq!(documented, served_names());
    }
}
