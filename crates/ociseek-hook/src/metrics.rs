//! Counters, in the text format of Prometheus (Prometheus docs, "Exposition formats", 0.0.4).

use ociseek_store::lock::Hold;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

/// Upper bounds of the histogram buckets for the duration of jobs, in seconds.
const BUCKETS: [f64; 9] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0];

/// A counter. Labels come from fixed sets, which limits the number of time series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// Requests, by status of the response.
    Requests,
    /// Notifications, by shape.
    Events,
    /// Images in notifications, by result.
    Images,
    /// Jobs, by result.
    Jobs,
    /// SOCI-enabled images, by result.
    Enabled,
    /// The number of bytes of layers that were read.
    LayerBytes,
}

impl Counter {
    fn describe(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Counter::Requests => ("ociseek_hook_requests_total", "code", "Requests answered"),
            Counter::Events => ("ociseek_hook_events_total", "shape", "Notifications understood"),
            Counter::Images => ("ociseek_hook_images_total", "result", "Images in notifications"),
            Counter::Jobs => ("ociseek_hook_jobs_total", "result", "Jobs finished or retried"),
            Counter::Enabled => ("ociseek_hook_enabled_total", "result", "SOCI-enabled images by outcome"),
            Counter::LayerBytes => ("ociseek_hook_layer_bytes_total", "", "Bytes of layers read"),
        }
    }
}

/// The counters of a service, for Prometheus.
#[derive(Default)]
pub struct Metrics(Mutex<Counts>);

ociseek_format::opaque_debug!(Metrics);

#[derive(Default)]
struct Counts {
    counters: BTreeMap<(Counter, &'static str), u64>,
    buckets: [u64; BUCKETS.len()],
    jobs: u64,
    seconds: f64,
}

impl Metrics {
    /// Adds `by` to a counter. `label` is the value of the counter's only label.
    pub fn add(&self, counter: Counter, label: &'static str, by: u64) {
        let mut counts = self.0.hold();
        *counts.counters.entry((counter, label)).or_default() += by;
    }

    /// Adds 1 to a counter.
    pub fn count(&self, counter: Counter, label: &'static str) {
        self.add(counter, label, 1);
    }

    /// Records the duration of a job.
    pub fn job(&self, took: Duration) {
        let mut counts = self.0.hold();
        let seconds = took.as_secs_f64();
        for (bucket, bound) in counts.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
        counts.jobs += 1;
        counts.seconds += seconds;
    }

    /// All counters, together with `gauges` from elsewhere: name, description, value.
    pub fn text(&self, gauges: &[(&str, &str, u64)]) -> String {
        let counts = self.0.hold();
        let mut text = String::new();
        let mut last = None;
        for ((counter, value), count) in &counts.counters {
            let (name, label, help) = counter.describe();
            if last.replace(counter) != Some(counter) {
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
            }
            let _ = match label {
                "" => writeln!(text, "{name} {count}"),
                label => writeln!(text, "{name}{{{label}=\"{value}\"}} {count}"),
            };
        }
        let name = "ociseek_hook_job_seconds";
        let _ = writeln!(text, "# HELP {name} Job duration\n# TYPE {name} histogram");
        for (bucket, bound) in counts.buckets.iter().zip(BUCKETS) {
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {bucket}");
        }
        let Counts { jobs, seconds, .. } = &*counts;
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {jobs}\n{name}_sum {seconds}\n{name}_count {jobs}");
        for (name, help, value) in gauges {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format() {
        let metrics = Metrics::default();
        metrics.count(Counter::Requests, "202");
        metrics.count(Counter::Requests, "202");
        metrics.count(Counter::Requests, "401");
        metrics.add(Counter::LayerBytes, "", 1000);
        metrics.job(Duration::from_millis(700));
        let text = metrics.text(&[("ociseek_hook_queued", "Jobs waiting", 3)]);
        for line in [
            "# TYPE ociseek_hook_requests_total counter",
            "ociseek_hook_requests_total{code=\"202\"} 2",
            "ociseek_hook_requests_total{code=\"401\"} 1",
            "ociseek_hook_layer_bytes_total 1000",
            "ociseek_hook_job_seconds_bucket{le=\"0.5\"} 0",
            "ociseek_hook_job_seconds_bucket{le=\"1\"} 1",
            "ociseek_hook_job_seconds_bucket{le=\"+Inf\"} 1",
            "ociseek_hook_job_seconds_sum 0.7",
            "ociseek_hook_queued 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches("# TYPE ociseek_hook_requests_total").count(), 1);
    }
}
