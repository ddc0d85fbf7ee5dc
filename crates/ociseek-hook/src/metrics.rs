//! Counters, in the text format of Prometheus (Prometheus docs, "Exposition formats", 0.0.4).

use ociseek_store::lock::Hold;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

/// The counters of a service, and its histograms of how long its work takes.
pub trait Counters: Copy + Ord + 'static {
    /// The histograms.
    const DURATIONS: &'static [Durations];
    /// Counters with values of their labels that are there from the start, at 0: a series that
    /// appears with its first event does not show that event to those who compare it with before.
    const FROM_START: &'static [(Self, &'static [&'static str])] = &[];

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

/// How long jobs take.
pub const JOBS: Durations = Durations {
    name: "ociseek_hook_job_seconds",
    help: "Job duration",
    buckets: &[0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0],
};

impl Counters for Counter {
    const DURATIONS: &'static [Durations] = &[JOBS];

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
    durations: BTreeMap<&'static str, Histogram>,
}

#[derive(Default)]
struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    seconds: f64,
}

impl<C: Counters> Default for Metrics<C> {
    fn default() -> Metrics<C> {
        let series = |(counter, labels): &(C, &'static [&'static str])| {
            let counter = *counter;
            labels.iter().map(move |label| ((counter, *label), 0))
        };
        let histogram = |of: &Durations| {
            (of.name, Histogram { buckets: vec![0; of.buckets.len()], ..Histogram::default() })
        };
        Metrics(Mutex::new(Counts {
            counters: C::FROM_START.iter().flat_map(series).collect(),
            durations: C::DURATIONS.iter().map(histogram).collect(),
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
    pub fn took(&self, of: &Durations, took: Duration) {
        let mut counts = self.0.hold();
        let Some(histogram) = counts.durations.get_mut(of.name) else { return };
        let seconds = took.as_secs_f64();
        for (bucket, bound) in histogram.buckets.iter_mut().zip(of.buckets) {
            *bucket += u64::from(seconds <= *bound);
        }
        histogram.count += 1;
        histogram.seconds += seconds;
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
        for Durations { name, help, buckets } in C::DURATIONS {
            let Some(histogram) = counts.durations.get(name) else { continue };
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
            for (bucket, bound) in histogram.buckets.iter().zip(*buckets) {
                let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {bucket}");
            }
            let Histogram { count, seconds, .. } = histogram;
            let _ = writeln!(
                text,
                "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {seconds}\n{name}_count {count}"
            );
        }
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
        metrics.took(&JOBS, Duration::from_millis(700));
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
