//! The bars at the bottom of the terminal, and printing above them.

use std::io;
use std::sync::Mutex;

use console::Term;
use indicatif::{MultiProgress, ProgressDrawTarget, TermLike};

use ociseek_store::lock::Hold;

/// How often bars are drawn in a second, at most.
const RATE: u8 = 20;

/// The current bars. There is only one terminal.
static BARS: Mutex<Option<MultiProgress>> = Mutex::new(None);

/// New bars on standard error, or hidden ones if it is not a terminal.
pub(crate) fn new_bars() -> MultiProgress {
    let terminal = Term::buffered_stderr();
    MultiProgress::with_draw_target(if terminal.is_term() {
        ProgressDrawTarget::term_like_with_hz(Box::new(Screen(terminal)), RATE)
    } else {
        ProgressDrawTarget::hidden()
    })
}

/// From now on, text is printed above `bars`. None if there are no bars any more.
pub(crate) fn set_bars(bars: Option<MultiProgress>) {
    *BARS.hold() = bars;
}

/// Hides the bars while `write` prints.
pub(crate) fn aside<T>(write: impl FnOnce() -> T) -> T {
    let bars = BARS.hold().clone();
    match bars {
        Some(bars) => bars.suspend(write),
        None => write(),
    }
}

/// A terminal that may be closed at any time. What cannot be drawn any more is dropped: indicatif
/// panics if a terminal fails.
#[derive(Debug)]
struct Screen(Term);

impl Screen {
    fn drop_errors(&self, draw: impl FnOnce(&Term) -> io::Result<()>) -> io::Result<()> {
        let _ = draw(&self.0);
        Ok(())
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        TermLike::width(&self.0)
    }

    fn height(&self) -> u16 {
        TermLike::height(&self.0)
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.drop_errors(|terminal| terminal.move_cursor_up(lines))
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.drop_errors(|terminal| terminal.move_cursor_down(lines))
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.drop_errors(|terminal| terminal.move_cursor_right(columns))
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.drop_errors(|terminal| terminal.move_cursor_left(columns))
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.drop_errors(|terminal| terminal.write_line(text))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.drop_errors(|terminal| terminal.write_str(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.drop_errors(Term::clear_line)
    }

    fn flush(&self) -> io::Result<()> {
        self.drop_errors(Term::flush)
    }
}
