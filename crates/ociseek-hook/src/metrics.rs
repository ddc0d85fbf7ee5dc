//! Counters, in the text format of Prometheus (Prometheus docs, "Exposition formats", 0.0.4).

use ociseek_store::lock::Hold;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

/// The counters of a service, and the histogram of how long its work takes.
pub trait Counters: Copy + Ord {
    /// The histogram.
    const DURATIONS: Durations;

    /// The name, the name of the only label (or none), and a description.
    fn describe(self) -> (&'static str, &'static str, &'static str);
}

/// A histogram of durations.
#[derive(Debug, Clone, Copy)]
pub struct Durations {
    /// Its name.
    pub name: &'static str,
    /// What takes as long.
    pub help: &'static str,
    /// The upper bounds of its buckets, in seconds.
    pub buckets: &'static [f64],
}

/// A counter of the hooks. Labels come from fixed sets, which limits the number of time series.
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

impl Counters for Counter {
    const DURATIONS: Durations = Durations {
        name: "ociseek_hook_job_seconds",
        help: "Job duration",
        buckets: &[0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0],
    };

    fn describe(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Counter::Requests => ("ociseek_hook_requests_total", "code", "Requests answered"),
            Counter::Events => ("ociseek_hook_events_total", "shape", "Notifications understood"),
            Counter::Images => ("ociseek_hook_images_total", "result", "Images in notifications"),
            Counter::Jobs => ("ociseek_hook_jobs_total", "result", "Jobs finished or retried"),
            Counter::Enabled => {
                ("ociseek_hook_enabled_total", "result", "SOCI-enabled images by outcome")
            }
            Counter::LayerBytes => ("ociseek_hook_layer_bytes_total", "", "Bytes of layers read"),
        }
    }
}

/// The counts of a service, for Prometheus.
pub struct Metrics<C = Counter>(Mutex<Counts<C>>);

impl<C> std::fmt::Debug for Metrics<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

struct Counts<C> {
    counters: BTreeMap<(C, &'static str), u64>,
    buckets: Vec<u64>,
    durations: u64,
    seconds: f64,
}

impl<C: Counters> Default for Metrics<C> {
    fn default() -> Metrics<C> {
        let buckets = vec![0; C::DURATIONS.buckets.len()];
        Metrics(Mutex::new(Counts {
            counters: BTreeMap::new(),
            buckets,
            durations: 0,
            seconds: 0.0,
        }))
    }
}

impl<C: Counters> Metrics<C> {
    /// Adds `by` to a counter. `label` is the value of the counter's only label.
    pub fn add(&self, counter: C, label: &'static str, by: u64) {
        let mut counts = self.0.hold();
        *counts.counters.entry((counter, label)).or_default() += by;
    }

    /// Sets a counter to a total that is counted elsewhere.
    pub fn set(&self, counter: C, label: &'static str, total: u64) {
        self.0.hold().counters.insert((counter, label), total);
    }

    /// Adds 1 to a counter.
    pub fn count(&self, counter: C, label: &'static str) {
        self.add(counter, label, 1);
    }

    /// Records how long some work took.
    pub fn took(&self, took: Duration) {
        let mut counts = self.0.hold();
        let seconds = took.as_secs_f64();
        for (bucket, bound) in counts.buckets.iter_mut().zip(C::DURATIONS.buckets) {
            *bucket += u64::from(seconds <= *bound);
        }
        counts.durations += 1;
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
        let Durations { name, help, buckets } = C::DURATIONS;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (bucket, bound) in counts.buckets.iter().zip(buckets) {
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {bucket}");
        }
        let Counts { durations: count, seconds, .. } = &*counts;
        let _ = writeln!(
            text,
            "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {seconds}\n{name}_count {count}"
        );
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
        let metrics = Metrics::<Counter>::default();
        metrics.count(Counter::Requests, "202");
        metrics.count(Counter::Requests, "202");
        metrics.count(Counter::Requests, "401");
        metrics.add(Counter::LayerBytes, "", 1000);
        metrics.took(Duration::from_millis(700));
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
