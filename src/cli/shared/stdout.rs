//! Standard output, for what a command was asked for. A closed pipe is not a failure.

use std::io::{self, IsTerminal, Write};

use super::error::CliError;
use super::terminal::{Style, aside, fitted, terminal_width};

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

    /// Writes all of `text`, a command's output, and flushes it.
    ///
    /// # Errors
    /// If writing fails for another reason than a reader that has gone away, for example a full
    /// disk.
    pub(crate) fn print(&mut self, text: impl AsRef<[u8]>) -> Result<(), CliError> {
        self.write_whole(text.as_ref()).map_err(CliError::stdout)
    }

    /// As [`Stdout::print`], with lines that break between words on a terminal.
    pub(crate) fn tell(&mut self, text: &str) -> Result<(), CliError> {
        self.print(fitted(text, terminal_width()))
    }

    fn write_whole(&mut self, text: &[u8]) -> io::Result<()> {
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

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_whole(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
