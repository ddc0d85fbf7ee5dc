//! What `ociseek backfill` shows: an object of JSON per line, and the progress of a walk on
//! standard error (`37 of 120 images`).

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};
use serde::Serialize;

use super::time;
use crate::cli::shared::json::{Coded, DigestText, Failure, digests, milliseconds};
use crate::cli::shared::progress::{TICK, Ticker};
use crate::cli::shared::size::{about, human};
use crate::cli::shared::terminal::{draws, new_bars, set_bars};
use crate::cli::shared::verbosity::{ProgressStyle, VerbosityArgs};
use ociseek_hook::backfill::{ImageOutcome, ImageReport};
use ociseek_hook::enabled::{EnableOutcome, EnabledImage};
use ociseek_hook::job::{JobResult, Products};
use ociseek_store::lock::Hold;

/// The result for an image, or for a list of repositories or tags that failed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Line<'a> {
    /// A stable word.
    status: &'static str,
    /// Its name.
    image: &'a str,
    digest: Option<DigestText>,
    /// Why it is skipped (a stable word), or null.
    reason: Option<&'static str>,
    /// When an `old` image was created, in RFC 3339; otherwise null.
    created: Option<String>,
    /// The time before which images are `old`, in RFC 3339; null for other images.
    since: Option<String>,
    error: Option<Failure>,
    /// The SOCI-enabled image, if --kind v2=TAG requests one; otherwise null.
    enabled: Option<Enabled>,
    /// The layers that were not finished in time.
    left: Vec<DigestText>,
    /// Bytes of layers that were read.
    bytes_read: u64,
    bytes_written: u64,
    seconds: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Enabled {
    /// Its full name; null if there is no tag for it.
    image: Option<String>,
    digest: Option<DigestText>,
    /// `pending` (in a dry run), `written`, `already-there`, `nothing-to-index`, `out-of-time` or
    /// `skipped`.
    status: &'static str,
    /// For `already-there`, what its ztocs and fine documents were compared with, as in the JSON of
    /// `index`; null otherwise.
    checked: Option<&'static str>,
    /// The digest that the name had before; null if there was none or it is the same.
    replaced: Option<DigestText>,
    /// Why it was not made, or null.
    reason: Option<Coded>,
    /// Number of layers that were not finished in time.
    left: usize,
}

impl Enabled {
    fn pending(image: String) -> Enabled {
        let status = "pending";
        let image = Some(image);
        Enabled {
            image,
            digest: None,
            status,
            checked: None,
            replaced: None,
            reason: None,
            left: 0,
        }
    }

    fn of(enabled: &EnabledImage) -> Enabled {
        let replaced = match &enabled.result {
            EnableOutcome::Written { replaced, .. } => *replaced,
            _ => None,
        };
        Enabled {
            image: enabled.reference().map(|name| name.to_string()),
            digest: enabled.digest().map(DigestText::from),
            status: enabled.status(),
            checked: enabled.checked(),
            replaced: replaced.map(DigestText::from),
            reason: enabled.reason().map(|(code, text)| Coded { code, text }),
            left: match &enabled.result {
                EnableOutcome::OutOfTime { left } => *left,
                _ => 0,
            },
        }
    }
}

impl<'a> Line<'a> {
    pub(crate) fn of(
        code: &'static str,
        report: &'a ImageReport,
        products: Option<&Products>,
    ) -> Line<'a> {
        let left = products.and_then(|products| products.index.as_ref()).map(|image| &image.left);
        let (created, since) = match &report.result {
            Ok(ImageOutcome::Old { created, since }) => (Some(time(*created)), Some(time(*since))),
            _ => (None, None),
        };
        Line {
            status: code,
            image: &report.name,
            digest: report.digest.map(DigestText::from),
            reason: match &report.result {
                Ok(ImageOutcome::Done(JobResult::Skipped(skipped))) => Some(skipped.code()),
                _ => None,
            },
            created,
            since,
            error: report.result.as_ref().err().map(|error| Failure::of(error)),
            enabled: match &report.result {
                Ok(ImageOutcome::Pending { enabled: Some(name) }) => {
                    Some(Enabled::pending(name.to_string()))
                }
                _ => products.and_then(|products| products.enabled.as_ref()).map(Enabled::of),
            },
            left: left
                .map_or_else(Vec::new, |left| digests(left.iter().map(|layer| &layer.digest))),
            bytes_read: products.map_or(0, |products| products.bytes_read),
            bytes_written: products.map_or(0, |products| products.bytes_written),
            seconds: milliseconds(report.seconds),
        }
    }
}

/// How many images and how much time are needed before the remaining time is estimated.
const ENOUGH: (u64, Duration) = (3, Duration::from_secs(2));

pub(super) struct Tally {
    state: Arc<Mutex<State>>,
    output: ProgressOutput,
}

enum ProgressOutput {
    Bar { all: MultiProgress, bar: ProgressBar },
    Lines(#[allow(dead_code, reason = "it writes for as long as it is there")] Ticker),
    Nothing,
}

struct State {
    since: Instant,
    found: u64,
    is_listed: bool,
    done: u64,
    bytes: u64,
}

impl State {
    fn line(&self, elapsed: Duration) -> String {
        let State { found, is_listed, done, bytes, .. } = *self;
        let more = if is_listed { "" } else { " listed so far" };
        let mut line = format!("{done} of {found} images{more}");
        if bytes > 0 {
            line += &format!(", {} read", human(bytes));
        }
        if is_listed && done < found && done >= ENOUGH.0 && elapsed >= ENOUGH.1 {
            let left = elapsed.as_secs_f64() / done as f64 * (found - done) as f64;
            line += &format!(", about {} left", about(left));
        }
        line
    }
}

impl Tally {
    pub(super) fn new(verbosity: VerbosityArgs) -> Tally {
        let state = State { since: Instant::now(), found: 0, is_listed: false, done: 0, bytes: 0 };
        let state = Arc::new(Mutex::new(state));
        let output = match verbosity.progress {
            _ if verbosity.quiet => ProgressOutput::Nothing,
            ProgressStyle::None => ProgressOutput::Nothing,
            ProgressStyle::Auto if draws() => {
                let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
                // The spaces at the end leave room for the ^C that a terminal echoes.
                let style = BarStyle::with_template("[{bar:20}] {msg}   ")
                    .unwrap_or_else(|_| BarStyle::default_bar());
                ProgressOutput::Bar {
                    all: new_bars(),
                    bar: bar.with_style(style.progress_chars("=> ")),
                }
            }
            ProgressStyle::Auto | ProgressStyle::Plain => {
                let shared = Arc::clone(&state);
                let line = move |state: &State| {
                    (state.found > 0).then(|| state.line(state.since.elapsed()))
                };
                ProgressOutput::Lines(Ticker::new(move || line(&shared.hold())))
            }
        };
        Tally { state, output }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.hold()
    }

    pub(super) fn found(&self) {
        let mut state = self.lock();
        state.found += 1;
        self.draw(&state);
        if let ProgressOutput::Bar { all, bar } = &self.output
            && state.found == 1
        {
            set_bars(Some(all.clone()));
            all.add(bar.clone()).enable_steady_tick(TICK);
        }
    }

    pub(super) fn listed(&self) {
        let mut state = self.lock();
        state.is_listed = true;
        self.draw(&state);
    }

    /// Records another finished image. `bytes` counts the layers that were read so far.
    pub(super) fn done(&self, bytes: u64) {
        let mut state = self.lock();
        state.done += 1;
        state.bytes = bytes;
        self.draw(&state);
    }

    fn draw(&self, state: &State) {
        if let ProgressOutput::Bar { bar, .. } = &self.output {
            bar.set_length(state.found);
            bar.set_position(state.done);
            bar.set_message(state.line(state.since.elapsed()));
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if let ProgressOutput::Bar { bar, .. } = &self.output {
            bar.finish_and_clear();
            set_bars(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_state_what_is_done_and_left() {
        let line = |found, is_listed, done, bytes, seconds| {
            let state = State { since: Instant::now(), found, is_listed, done, bytes };
            state.line(Duration::from_secs(seconds))
        };
        assert_eq!(line(7, false, 5, 0, 60), "5 of 7 images listed so far");
        assert_eq!(line(120, true, 2, 1 << 20, 60), "2 of 120 images, 1.0 MiB read");
        assert_eq!(
            line(120, true, 30, 1 << 20, 60),
            "30 of 120 images, 1.0 MiB read, about 3 min left"
        );
        assert_eq!(line(120, true, 120, 0, 60), "120 of 120 images");
    }
}
