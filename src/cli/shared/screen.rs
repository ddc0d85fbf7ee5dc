//! The bars at the bottom of the terminal, and printing above them.

use std::io::{self, IsTerminal};
use std::sync::Mutex;

use indicatif::MultiProgress;

use crate::lock::Hold;

/// The current bars. There is only one terminal.
static BARS: Mutex<Option<MultiProgress>> = Mutex::new(None);

/// From now on, text is printed above `bars`. None if there are no bars any more.
pub(crate) fn set_bars(bars: Option<MultiProgress>) {
    *BARS.hold() = bars;
}

/// Hides the bars while `write` prints.
pub(crate) fn aside<T>(write: impl FnOnce() -> T) -> T {
    let bars = BARS.hold().clone();
    match bars {
        // A terminal that was closed is not one any more; `suspend` panics if it cannot draw.
        Some(bars) if io::stderr().is_terminal() => bars.suspend(write),
        _ => write(),
    }
}
