//! Shows progress on standard error: bars on a terminal, otherwise a line every few seconds.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{
    MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle as BarStyle,
};

use super::size::{about, duration, human, rate};
use super::terminal::{Style, complain, draws, new_bars, safe, set_bars};
use super::verbosity::{ProgressStyle, VerbosityArgs};
use ociseek_format::digest::Digest;
use ociseek_format::progress::{Progress, ProgressEvent, ReadAllReason};
use ociseek_store::lock::Hold;

/// The interval of plain lines.
const EVERY: Duration = Duration::from_secs(5);
/// Operations that are faster show no progress.
const MOMENT: Duration = Duration::from_millis(300);
/// The interval of drawing bars.
pub(crate) const TICK: Duration = Duration::from_millis(120);
/// Narrower terminals have no room for a bar beside the figures, in columns.
const LEAST_FOR_BARS: usize = 76;
/// The time after which a rate is meaningful.
const MEASURED: Duration = Duration::from_secs(1);

/// The display of progress while images are read.
pub(crate) enum Display {
    Bars(Bars),
    Plain(PlainProgress),
    Quiet,
}

impl Display {
    pub(crate) fn new(verbosity: VerbosityArgs) -> Display {
        match verbosity.progress {
            _ if verbosity.quiet => Display::Quiet,
            ProgressStyle::None => Display::Quiet,
            ProgressStyle::Auto if draws() => Display::Bars(Bars::new()),
            ProgressStyle::Auto | ProgressStyle::Plain => Display::Plain(PlainProgress::new()),
        }
    }

    /// Shows the progress of `work` on `image`, if it takes more than a moment.
    pub(crate) async fn during<T>(&self, image: &str, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        self.name(image);
        let done = tokio::select! {
            biased;
            done = &mut work => done,
            () = tokio::time::sleep(MOMENT) => {
                self.wait();
                work.await
            }
        };
        self.end();
        done
    }

    /// Sets the image for the following events.
    pub(crate) fn begin(&self, image: &str) {
        self.name(image);
        self.wait();
    }

    fn name(&self, image: &str) {
        match self {
            Display::Bars(bars) => bars.begin(image),
            Display::Plain(plain) => plain.lock().begin(image),
            Display::Quiet => {}
        }
    }

    /// Shows activity before any progress is known.
    fn wait(&self) {
        if let Display::Bars(bars) = self {
            bars.wait();
        }
    }

    /// Clears the display.
    pub(crate) fn end(&self) {
        match self {
            Display::Bars(bars) => bars.end(),
            Display::Plain(plain) => plain.lock().image.clear(),
            Display::Quiet => {}
        }
    }
}

impl Progress for Display {
    fn report(&self, event: ProgressEvent) {
        match (self, event) {
            (_, ProgressEvent::Warning(text)) => warn(&text),
            (Display::Bars(bars), event) => bars.report(event),
            (Display::Plain(plain), event) => plain.report(event),
            (Display::Quiet, _) => {}
        }
    }
}

/// Shows only warnings.
pub(crate) struct WarningProgress;

impl Progress for WarningProgress {
    fn report(&self, event: ProgressEvent) {
        if let ProgressEvent::Warning(text) = event {
            warn(&text);
        }
    }
}

fn warn(text: &str) {
    complain(&format!("{} {}", Style::stderr().yellow("warning:"), safe(text)));
}

/// Reports that an image is read completely because no index is used.
fn note_reading(bytes: u64, why: ReadAllReason) {
    let note = Style::stderr().dim("note:");
    let bytes = human(bytes);
    match why {
        ReadAllReason::Unindexed { indexable: 1.. } => complain(&format!(
            "{note} reading {bytes}: this image has no index, so its layers are read once"
        )),
        ReadAllReason::Untrusted => complain(&format!(
            "{note} reading {bytes}: no trusted index covers these layers; --trust repository also takes an index \
             that only the repository vouches for"
        )),
        ReadAllReason::Unindexed { .. } | ReadAllReason::Undigested => {}
    }
}

/// A bar for each layer in progress, and one for the total.
pub(crate) struct Bars {
    all: MultiProgress,
    state: Mutex<BarsState>,
}

#[derive(Default)]
struct BarsState {
    /// The current image. If empty, nothing is shown.
    image: String,
    whole: Option<ProgressBar>,
    layers: HashMap<Digest, ProgressBar>,
}

impl Bars {
    fn new() -> Bars {
        Bars { all: new_bars(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BarsState> {
        self.state.hold()
    }

    fn begin(&self, image: &str) {
        self.end();
        set_bars(Some(self.all.clone()));
        self.lock().image = image.to_owned();
    }

    fn wait(&self) {
        let mut state = self.lock();
        if state.whole.is_none() && !state.image.is_empty() {
            let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            let spinner =
                spinner.with_style(BarStyle::default_spinner()).with_message("reading manifests");
            state.whole = Some(self.show(spinner));
        }
    }

    /// Adds the bar for the total. Its style and figures are set before, so that the first drawing
    /// is correct.
    fn show(&self, bar: ProgressBar) -> ProgressBar {
        let bar = self.all.add(bar);
        bar.enable_steady_tick(TICK);
        bar
    }

    fn end(&self) {
        let mut state = self.lock();
        let BarsState { whole, layers, .. } = std::mem::take(&mut *state);
        self.remove(layers.into_values().chain(whole));
        drop(state);
        let _ = self.all.clear();
        set_bars(None);
    }

    fn remove(&self, bars: impl IntoIterator<Item = ProgressBar>) {
        for bar in bars {
            bar.finish_and_clear();
            self.all.remove(&bar);
        }
    }

    /// Adds `bytes` more to the total.
    fn expect(&self, state: &mut BarsState, bytes: u64) {
        match &state.whole {
            // A bar of nothing would never move.
            _ if bytes == 0 => {}
            Some(whole) if whole.length().is_some() => whole.inc_length(bytes),
            _ => {
                let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::hidden());
                let bar = bar.with_style(bar_style("{rate:>9} {left:>15}")).with_message("all");
                self.remove(state.whole.take());
                state.whole = Some(self.show(bar));
            }
        }
    }

    fn report(&self, event: ProgressEvent) {
        let mut state = self.lock();
        if state.image.is_empty() {
            return;
        }
        match event {
            ProgressEvent::Image { bytes, .. } => self.expect(&mut state, bytes),
            ProgressEvent::Reading { bytes, why, .. } => {
                note_reading(bytes, why);
                // Earlier bytes were read for another purpose.
                self.remove(state.whole.take());
                self.expect(&mut state, bytes);
            }
            ProgressEvent::LayerStarted { layer, bytes } => {
                let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::hidden());
                let bar = bar.with_style(bar_style("{rate:>9}")).with_message(layer.short());
                let bar = match &state.whole {
                    Some(whole) => self.all.insert_before(whole, bar),
                    None => self.all.add(bar),
                };
                bar.tick();
                state.layers.insert(layer, bar);
            }
            ProgressEvent::LayerRead { layer, bytes } => {
                if let Some(bar) = state.layers.get(&layer) {
                    bar.inc(bytes);
                }
                if let Some(whole) = state.whole.as_ref().filter(|whole| whole.length().is_some()) {
                    whole.inc(bytes);
                }
            }
            ProgressEvent::LayerDone { layer } | ProgressEvent::LayerFailed { layer } => {
                // Otherwise it is only drawn at its ticks, and layers may be done in less time.
                state.whole.iter().for_each(ProgressBar::force_draw);
                self.remove(state.layers.remove(&layer));
            }
            ProgressEvent::Attaching { .. } => {
                if let Some(whole) = &state.whole {
                    whole.set_style(BarStyle::default_spinner());
                    whole.set_message("attaching");
                }
            }
            ProgressEvent::TokenService { .. } | ProgressEvent::Warning(_) => {}
        }
    }
}

impl Drop for Bars {
    /// Clears the bars even after an interruption.
    fn drop(&mut self) {
        self.end();
    }
}

/// A bar for bytes, followed by `figures`, as wide as the terminal allows. The rate and remaining
/// time are blank until they are known.
fn bar_style(figures: &str) -> BarStyle {
    let known = |state: &ProgressState| state.pos() > 0 && state.elapsed() >= MEASURED;
    let (_, columns) = console::Term::stderr().size();
    // The spaces at the end leave room for the ^C that a terminal echoes. A wrapped line could not
    // be cleared.
    let template = if usize::from(columns) < LEAST_FOR_BARS {
        "{msg:12} {bytes:>10}/{total_bytes:10}   ".to_owned()
    } else {
        format!("{{msg:12}} [{{wide_bar}}] {{bytes:>10}}/{{total_bytes:10}} {figures}   ")
    };
    BarStyle::with_template(&template)
        .unwrap_or_else(|_| BarStyle::default_bar())
        .with_key("rate", move |state: &ProgressState, to: &mut dyn fmt::Write| {
            let _ = if known(state) {
                to.write_str(&rate(state.per_sec() as u64, 1.0))
            } else {
                Ok(())
            };
        })
        .with_key("left", move |state: &ProgressState, to: &mut dyn fmt::Write| {
            let left = state.eta().as_secs_f64();
            let _ = if known(state) && left > 0.0 {
                write!(to, "{} left", about(left))
            } else {
                Ok(())
            };
        })
        .progress_chars("=> ")
}

/// A line every few seconds, but none at the start or end, so that short operations print none.
pub(crate) struct PlainProgress {
    state: Arc<Mutex<PlainState>>,
    _ticker: Ticker,
}

struct PlainState {
    image: String,
    since: Instant,
    layers: usize,
    layers_done: usize,
    bytes: u64,
    bytes_read: u64,
    phase: Phase,
}

#[derive(Clone, Copy)]
enum Phase {
    Manifests,
    Layers,
    Attaching,
}

impl PlainState {
    fn begin(&mut self, image: &str) {
        *self = PlainState { image: image.to_owned(), ..PlainState::new() };
    }

    fn new() -> PlainState {
        PlainState {
            image: String::new(),
            since: Instant::now(),
            layers: 0,
            layers_done: 0,
            bytes: 0,
            bytes_read: 0,
            phase: Phase::Manifests,
        }
    }

    fn expect(&mut self, layers: usize, bytes: u64) {
        self.phase = Phase::Layers;
        self.layers += layers;
        self.bytes += bytes;
    }

    fn line(&self) -> Option<String> {
        if self.image.is_empty() {
            return None;
        }
        let seconds = self.since.elapsed().as_secs_f64();
        let what = match self.phase {
            Phase::Manifests => "reading manifests".to_owned(),
            Phase::Layers => format!(
                "{} of {} layers done, {} of {} read, {}",
                self.layers_done,
                self.layers,
                human(self.bytes_read),
                human(self.bytes),
                rate(self.bytes_read, seconds),
            ),
            Phase::Attaching => "attaching the index".to_owned(),
        };
        Some(format!("{}: {what}, {}", safe(&self.image), duration(seconds)))
    }
}

impl PlainProgress {
    fn new() -> PlainProgress {
        let state = Arc::new(Mutex::new(PlainState::new()));
        let shared = Arc::clone(&state);
        let _ticker = Ticker::new(move || shared.hold().line());
        PlainProgress { state, _ticker }
    }

    fn lock(&self) -> MutexGuard<'_, PlainState> {
        self.state.hold()
    }

    fn report(&self, event: ProgressEvent) {
        let mut state = self.lock();
        match event {
            ProgressEvent::Image { layers, bytes, .. } => state.expect(layers, bytes),
            ProgressEvent::Reading { layers, bytes, why } => {
                note_reading(bytes, why);
                // Earlier bytes were read for another purpose.
                (state.layers, state.layers_done, state.bytes, state.bytes_read) = (0, 0, 0, 0);
                state.expect(layers, bytes);
            }
            ProgressEvent::LayerStarted { .. }
            | ProgressEvent::TokenService { .. }
            | ProgressEvent::Warning(_) => {}
            ProgressEvent::LayerRead { bytes, .. } => state.bytes_read += bytes,
            ProgressEvent::LayerDone { .. } | ProgressEvent::LayerFailed { .. } => {
                state.layers_done += 1
            }
            ProgressEvent::Attaching { .. } => state.phase = Phase::Attaching,
        }
    }
}

/// Prints a line every few seconds, but none at the start or end.
pub(crate) struct Ticker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn new(line: impl Fn() -> Option<String> + Send + 'static) -> Ticker {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("progress".into()).spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(EVERY) {
                line().iter().for_each(|line| complain(line));
            }
        });
        // If the thread cannot start, no lines are printed. Nothing else depends on it.
        Ticker { stop: Some(stop), thread: thread.ok() }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_read() {
        let plain = PlainProgress::new();
        let line = |event| {
            plain.report(event);
            plain.lock().line().unwrap()
        };
        plain.lock().begin("app:1");
        let layer = Digest::sha256(b"");
        let why = ReadAllReason::Undigested;
        assert!(
            line(ProgressEvent::Reading { layers: 2, bytes: 3000, why })
                .starts_with("app:1: 0 of 2 layers done, 0 B")
        );
        assert!(
            line(ProgressEvent::LayerRead { layer, bytes: 2000 })
                .contains("2.0 KiB of 2.9 KiB read, ")
        );
        assert!(line(ProgressEvent::LayerDone { layer }).contains("1 of 2 layers done"));
        assert!(
            line(ProgressEvent::Reading { layers: 1, bytes: 5, why })
                .contains("0 of 1 layers done, 0 B of 5 B read")
        );
        assert!(
            line(ProgressEvent::Attaching { index: layer, blobs: 1 })
                .starts_with("app:1: attaching the index, ")
        );
    }
}
