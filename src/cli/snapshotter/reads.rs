//! What the metrics and the log have of the reads of an image.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::warn;

use super::metrics::{READS, SnapshotterCounter, SnapshotterMetrics};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_rootfs::content::{ReadError, ReadObserver};
use ociseek_store::lock::Hold;

/// How often the log has a line about reads of an image that fail for one reason: each program
/// tries again, and each span has an error of its own.
const PAUSE: Duration = Duration::from_secs(60);

/// Logs the warnings about an image.
pub(super) struct ImageLog(pub String);

impl Progress for ImageLog {
    fn report(&self, event: ProgressEvent) {
        if let ProgressEvent::Warning(text) = event {
            warn!(name: "warning", image = self.0, "{text}");
        }
    }
}

/// Counts the reads of an image, and logs those that fail.
pub(super) struct ImageReads {
    image: String,
    metrics: Arc<SnapshotterMetrics>,
    /// By their reasons: a wrong index must not be hidden by a registry that is away.
    failures: Mutex<BTreeMap<&'static str, Failures>>,
}

/// Failed reads since the last line of the log.
#[derive(Debug, Default)]
struct Failures {
    logged: Option<Instant>,
    others: u64,
}

impl Failures {
    /// The number of earlier failures without a line, if this one gets a line.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self.logged.is_some_and(|logged| now.duration_since(logged) < PAUSE) {
            self.others += 1;
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.others))
    }
}

impl ImageReads {
    pub(super) fn new(image: &str, metrics: &Arc<SnapshotterMetrics>) -> ImageReads {
        let metrics = Arc::clone(metrics);
        ImageReads { image: image.to_owned(), metrics, failures: Mutex::default() }
    }
}

impl ReadObserver for ImageReads {
    fn observe(&self, took: Duration, error: Option<&ReadError>) {
        self.metrics.took(&READS, took);
        let Some(error) = error else { return };
        let reason = error.code();
        self.metrics.count(SnapshotterCounter::ReadFailures, reason);
        let logged = self.failures.hold().entry(reason).or_default().next(Instant::now());
        if let Some(others) = logged {
            let image = &self.image;
            warn!(name: "read-failed", image, reason, error = causes(error), others);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_reads_have_a_line_in_a_minute() {
        let begun = Instant::now();
        let mut failures = Failures::default();
        let lines: Vec<(u64, u64)> = (0..150)
            .filter_map(|second| {
                Some((second, failures.next(begun + Duration::from_secs(second))?))
            })
            .collect();
        assert_eq!(lines, [(0, 0), (60, 59), (120, 59)]);
    }
}
