//! Standard output and error as the program uses them: a closed pipe is no failure, and colour is for terminals only.

use std::io::{self, IsTerminal, Write};

use super::screen::aside;

/// Standard output. Once its reader has gone away, what is written is dropped without a word, and the work goes on.
pub(crate) struct Stdout {
    gone: bool,
    is_terminal: bool,
    pub style: Style,
}

impl Stdout {
    pub(crate) fn new() -> Stdout {
        let is_terminal = io::stdout().is_terminal();
        Stdout { gone: false, is_terminal, style: Style::of(is_terminal) }
    }

    /// Nobody reads it any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Writes all of `text` and flushes it.
    ///
    /// # Errors
    /// When it cannot be written for another reason than that nobody reads it: a full disk, say.
    pub(crate) fn write_whole(&mut self, text: &[u8]) -> io::Result<()> {
        if self.gone {
            return Ok(());
        }
        let write = || {
            let mut stdout = io::stdout().lock();
            stdout.write_all(text).and_then(|()| stdout.flush())
        };
        match if self.is_terminal { aside(write) } else { write() } {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.gone = true;
                Ok(())
            }
            result => result,
        }
    }
}

/// Writes a line to standard error; if that is impossible there is nobody left to tell.
pub(crate) fn complain(line: &str) {
    // In one piece, so that lines of several processes do not mix.
    let _ = aside(|| io::stderr().lock().write_all(format!("{line}\n").as_bytes()));
}

/// Emphasis, on terminals that can show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    colour: bool,
}

impl Style {
    /// For a stream that is a terminal or not. `NO_COLOR` (no-color.org: set and not empty) and `TERM=dumb` are heeded.
    pub(crate) fn of(is_terminal: bool) -> Style {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Style { colour: is_terminal && !no_color && !dumb }
    }

    pub(crate) fn stderr() -> Style {
        Style::of(io::stderr().is_terminal())
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// `text` in one line that a terminal shows as it is: control characters, and those that turn or
/// hide parts of a line, are escaped. For whatever images and registries say.
pub(crate) fn safe(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut safe, c| {
        if is_hostile(c) {
            safe.extend(c.escape_default())
        } else {
            safe.push(c)
        }
        safe
    })
}

/// A control character, or one that is not seen but changes how the rest of its line is.
pub(crate) fn is_hostile(c: char) -> bool {
    c.is_control()
        || c == '\u{61c}'
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Whole writes, as [`Stdout::write_whole`] does them, for those who want a writer.
impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_whole(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_text_reaches_a_terminal() {
        assert_eq!(safe("a\x1b[2Jb\r\nc\u{202e}d é"), "a\\u{1b}[2Jb\\r\\nc\\u{202e}d é");
    }

    #[test]
    fn plain_is_plain() {
        assert_eq!(Style::of(false).bold("x"), "x");
        assert_eq!(Style { colour: true }.bold("x"), "\x1b[1mx\x1b[0m");
        assert_eq!(Style { colour: true }.bold(""), "");
        assert_eq!(Style::of(false), Style { colour: false });
    }
}
