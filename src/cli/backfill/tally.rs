//! Shows the progress of a walk on standard error: `37 of 120 images`.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};

use crate::cli::shared::progress::{TICK, Ticker};
use crate::cli::shared::screen::{new_bars, set_bars};
use crate::cli::shared::size::{about, human};
use crate::cli::shared::verbosity::{ProgressStyle, VerbosityArgs};
use ociseek_store::lock::Hold;

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
            ProgressStyle::Auto if std::io::stderr().is_terminal() => {
                let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
                // The spaces at the end leave room for the ^C that a terminal echoes.
                let style = BarStyle::with_template("[{bar:20}] {msg}   ").unwrap_or_else(|_| BarStyle::default_bar());
                ProgressOutput::Bar { all: new_bars(), bar: bar.with_style(style.progress_chars("=> ")) }
            }
            ProgressStyle::Auto | ProgressStyle::Plain => {
                let shared = Arc::clone(&state);
                let line = move |state: &State| (state.found > 0).then(|| state.line(state.since.elapsed()));
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
        assert_eq!(line(120, true, 30, 1 << 20, 60), "30 of 120 images, 1.0 MiB read, about 3 min left");
        assert_eq!(line(120, true, 120, 0, 60), "120 of 120 images");
    }
}
