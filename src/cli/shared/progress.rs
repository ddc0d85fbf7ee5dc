//! Progress on standard error: bars on a terminal, else a line every few seconds.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle as BarStyle};

use super::args::ProgressStyle;
use super::size::{duration, human, rate};
use super::terminal::{Style, complain, safe};
use crate::digest::Digest;
use crate::lock::Hold;
use crate::progress::{Event, Progress};

/// Between two plain lines.
const EVERY: Duration = Duration::from_secs(5);

/// What the user sees while images are indexed.
pub enum Display {
    Bars(Bars),
    Plain(Plain),
    /// Warnings only, if those.
    Quiet {
        warnings: bool,
    },
}

impl Display {
    /// `quiet` drops warnings too.
    pub fn new(style: ProgressStyle, quiet: bool) -> Display {
        use std::io::IsTerminal;
        match style {
            _ if quiet => Display::Quiet { warnings: false },
            ProgressStyle::None => Display::Quiet { warnings: true },
            ProgressStyle::Auto if std::io::stderr().is_terminal() => Display::Bars(Bars::new()),
            ProgressStyle::Auto | ProgressStyle::Plain => Display::Plain(Plain::new()),
        }
    }

    /// The image that events are about from now on.
    pub fn begin(&self, image: &str) {
        match self {
            Display::Bars(bars) => bars.begin(),
            Display::Plain(plain) => plain.lock().begin(image),
            Display::Quiet { .. } => {}
        }
    }

    /// Takes everything off the screen, so that other text can be written.
    pub fn end(&self) {
        match self {
            Display::Bars(bars) => bars.end(),
            Display::Plain(plain) => plain.lock().image.clear(),
            Display::Quiet { .. } => {}
        }
    }
}

impl Progress for Display {
    fn report(&self, event: Event) {
        match self {
            Display::Bars(bars) => bars.report(event),
            Display::Plain(plain) => plain.report(event),
            Display::Quiet { warnings } => {
                if let (true, Event::Warning(text)) = (*warnings, event) {
                    warn(&text);
                }
            }
        }
    }
}

fn warn(text: &str) {
    complain(&warning(text));
}

fn warning(text: &str) -> String {
    format!("{} {}", Style::stderr().yellow("warning:"), safe(text))
}

/// A bar for each layer in flight and one for the whole.
pub struct Bars {
    all: MultiProgress,
    state: Mutex<BarsState>,
}

#[derive(Default)]
struct BarsState {
    whole: Option<ProgressBar>,
    layers: HashMap<Digest, ProgressBar>,
}

impl Bars {
    fn new() -> Bars {
        Bars { all: MultiProgress::new(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BarsState> {
        self.state.hold()
    }

    fn begin(&self) {
        self.end();
        let whole = self.all.add(ProgressBar::new_spinner());
        whole.set_message("reading manifests");
        whole.enable_steady_tick(Duration::from_millis(120));
        self.lock().whole = Some(whole);
    }

    fn end(&self) {
        let mut state = self.lock();
        let BarsState { whole, layers } = std::mem::take(&mut *state);
        for bar in layers.into_values().chain(whole) {
            bar.finish_and_clear();
            self.all.remove(&bar);
        }
        drop(state);
        let _ = self.all.clear();
    }

    fn report(&self, event: Event) {
        let mut state = self.lock();
        match event {
            Event::Image { bytes, .. } => {
                if let Some(whole) = &state.whole {
                    if whole.length().is_none() {
                        whole.set_style(bar_style("{bytes:>10}/{total_bytes:10} {bytes_per_sec:>12}  {eta} left"));
                        whole.set_message("all");
                        whole.set_length(0);
                    }
                    whole.inc_length(bytes);
                }
            }
            Event::LayerStarted { layer, bytes } => {
                // A bar draws wherever it is: first it must stand among the others.
                let bar = match &state.whole {
                    Some(whole) => self.all.insert_before(whole, ProgressBar::new(bytes)),
                    None => self.all.add(ProgressBar::new(bytes)),
                };
                bar.set_style(bar_style("{bytes:>10}/{total_bytes:10} {bytes_per_sec:>12}"));
                bar.set_message(layer.short());
                state.layers.insert(layer, bar);
            }
            Event::LayerRead { layer, bytes } => {
                if let Some(bar) = state.layers.get(&layer) {
                    bar.inc(bytes);
                }
                if let Some(whole) = &state.whole {
                    whole.inc(bytes);
                }
            }
            Event::LayerDone { layer } | Event::LayerFailed { layer } => {
                if let Some(bar) = state.layers.remove(&layer) {
                    bar.finish_and_clear();
                    self.all.remove(&bar);
                }
            }
            Event::Attaching { .. } => {
                if let Some(whole) = &state.whole {
                    whole.set_style(BarStyle::default_spinner());
                    whole.set_message("attaching");
                }
            }
            Event::TokenService { .. } => {}
            Event::Warning(text) => {
                let _ = self.all.println(warning(&text));
            }
        }
    }
}

impl Drop for Bars {
    /// An interrupted run leaves no bars behind.
    fn drop(&mut self) {
        self.end();
    }
}

/// A bar with `figures` behind it; as wide as the terminal allows.
fn bar_style(figures: &str) -> BarStyle {
    // The blanks at the end leave room for the ^C that a terminal echoes: a line that wraps could not be cleared.
    BarStyle::with_template(&format!("{{msg:12}} [{{wide_bar}}] {figures}   "))
        .unwrap_or_else(|_| BarStyle::default_bar())
        .progress_chars("=> ")
}

/// A line every few seconds, none at the start or end: what is done within them needs none.
pub struct Plain {
    state: Arc<Mutex<PlainState>>,
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

struct PlainState {
    image: String,
    since: Instant,
    layers: usize,
    layers_done: usize,
    bytes: u64,
    bytes_read: u64,
    phase: &'static str,
}

impl PlainState {
    fn begin(&mut self, image: &str) {
        *self = PlainState { image: safe(image), ..PlainState::new() };
    }

    fn new() -> PlainState {
        PlainState {
            image: String::new(),
            since: Instant::now(),
            layers: 0,
            layers_done: 0,
            bytes: 0,
            bytes_read: 0,
            phase: "reading manifests",
        }
    }

    fn line(&self) -> Option<String> {
        if self.image.is_empty() {
            return None;
        }
        let seconds = self.since.elapsed().as_secs_f64();
        let what = match self.phase {
            "reading layers" => format!(
                "{} of {} layers done, {} of {} read, {}",
                self.layers_done,
                self.layers,
                human(self.bytes_read),
                human(self.bytes),
                rate(self.bytes_read, seconds),
            ),
            phase => phase.to_owned(),
        };
        Some(format!("{}: {what}, {}", self.image, duration(seconds)))
    }
}

impl Plain {
    fn new() -> Plain {
        let state = Arc::new(Mutex::new(PlainState::new()));
        let (stop, stopped) = channel();
        let shared = Arc::clone(&state);
        let ticker = std::thread::Builder::new().name("progress".into()).spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(EVERY) {
                let line = shared.hold().line();
                if let Some(line) = line {
                    complain(&line);
                }
            }
        });
        // Without the thread there are no lines, and that is all.
        Plain { state, stop: Some(stop), ticker: ticker.ok() }
    }

    fn lock(&self) -> MutexGuard<'_, PlainState> {
        self.state.hold()
    }

    fn report(&self, event: Event) {
        let mut state = self.lock();
        match event {
            Event::Image { layers, bytes, .. } => {
                state.phase = "reading layers";
                state.layers += layers;
                state.bytes += bytes;
            }
            Event::LayerStarted { .. } | Event::TokenService { .. } => {}
            Event::LayerRead { bytes, .. } => state.bytes_read += bytes,
            Event::LayerDone { .. } | Event::LayerFailed { .. } => state.layers_done += 1,
            Event::Attaching { .. } => state.phase = "attaching the index",
            Event::Warning(text) => {
                drop(state);
                warn(&text);
            }
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(ticker) = self.ticker.take() {
            let _ = ticker.join();
        }
    }
}
