//! Standard output and error with the rules of this program: a closed pipe is not a failure, and
//! colours are only for terminals.

use std::io::{self, IsTerminal, Write};

use super::screen::aside;

/// Standard output. After its reader has gone away, output is silently dropped and the work
/// continues.
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

    /// Whether its reader has gone away.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Writes all of `text` and flushes it.
    ///
    /// # Errors
    /// If writing fails for another reason than a reader that has gone away, for example a full
    /// disk.
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

/// Writes a line to standard error. If that fails, there is nobody to report it to.
pub(crate) fn complain(line: &str) {
    // In a single write, so that lines of several processes do not mix.
    let _ = aside(|| io::stderr().lock().write_all(format!("{line}\n").as_bytes()));
}

/// Emphasis, on terminals that can show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    colour: bool,
}

impl Style {
    /// The style for a stream, depending on whether it is a terminal. Obeys `NO_COLOR`
    /// (no-color.org: set and not empty) and `TERM=dumb`.
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

/// Untrusted `text` on one line, with control characters and those that reorder or hide text
/// escaped.
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

/// Whether a character is a control character, or invisible with an effect on the rest of its line.
pub(crate) fn is_hostile(c: char) -> bool {
    c.is_control()
        || c == '\u{61c}'
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Complete writes like [`Stdout::write_whole`], for callers that need a writer.
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
    fn control_characters_are_escaped() {
        assert_eq!(safe("a\x1b[2Jb\r\nc\u{202e}d é"), "a\\u{1b}[2Jb\\r\\nc\\u{202e}d é");
    }

    #[test]
    fn only_a_colour_style_emits_escape_codes() {
        assert_eq!(Style::of(false).bold("x"), "x");
        assert_eq!(Style { colour: true }.bold("x"), "\x1b[1mx\x1b[0m");
        assert_eq!(Style { colour: true }.bold(""), "");
        assert_eq!(Style::of(false), Style { colour: false });
    }
}
