//! Bars at the bottom of the terminal, and text that is written while they are there.

use std::sync::Mutex;

use indicatif::MultiProgress;

use crate::lock::Hold;

/// The bars that are drawn now. There is one terminal.
static BARS: Mutex<Option<MultiProgress>> = Mutex::new(None);

/// From now on text goes above `bars`; `None`: there are no bars any more.
pub(crate) fn set_bars(bars: Option<MultiProgress>) {
    *BARS.hold() = bars;
}

/// Takes the bars off the screen while `write` writes.
pub(crate) fn aside<T>(write: impl FnOnce() -> T) -> T {
    let bars = BARS.hold().clone();
    match bars {
        Some(bars) => bars.suspend(write),
        None => write(),
    }
}
