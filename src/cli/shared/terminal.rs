//! Terminals and standard error with the rules of this program: colours are only for terminals,
//! untrusted text is escaped or quoted, and text is printed above the bars at the bottom of the
//! terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, OnceLock};

use clap::ValueEnum;
use console::Term;
use indicatif::{MultiProgress, ProgressDrawTarget, TermLike};

use ociseek_format::printable::is_hostile;
use ociseek_store::lock::Hold;

/// The width of the terminal on standard output in columns. None if there is no terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    width_of(&Term::stdout(), io::stdout().is_terminal())
}

fn width_of(terminal: &Term, is_terminal: bool) -> Option<usize> {
    let (_, columns) = terminal.size_checked()?;
    is_terminal.then_some(usize::from(columns))
}

/// Whether bars can be drawn on standard error: on a terminal that moves its cursor.
pub(crate) fn draws() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Terminals that say they are narrower say nothing of use.
const LEAST_WIDTH: usize = 20;

/// `text` for a terminal of this width: longer lines break between words. A command is continued
/// as a shell reads it.
pub(crate) fn fitted(text: &str, columns: Option<usize>) -> String {
    match columns {
        Some(columns) if columns >= LEAST_WIDTH => {
            text.split_inclusive('\n').map(|line| fitted_line(line, columns)).collect()
        }
        _ => text.to_owned(),
    }
}

fn fitted_line(line: &str, columns: usize) -> String {
    let content = line.trim_end_matches('\n');
    if shown_width(content) <= columns {
        return line.to_owned();
    }
    let is_command = content.contains("next:") || content.contains("Next:");
    let most = if is_command { columns - " \\".len() } else { columns };
    let plain = without_codes(content);
    let indent = plain.len() - plain.trim_start().len() + 2;
    let mut text = String::new();
    let mut column = 0;
    let mut blanks = 0;
    let mut in_quotes = false;
    for (place, word) in content.split(' ').enumerate() {
        blanks += usize::from(place > 0);
        if word.is_empty() {
            continue;
        }
        let width = shown_width(word);
        if column > indent && column + blanks + width > most && !(is_command && in_quotes) {
            text += if is_command { " \\\n" } else { "\n" };
            text += &" ".repeat(indent);
            column = indent;
        } else {
            text += &" ".repeat(blanks);
            column += blanks;
        }
        text += word;
        column += width;
        blanks = 0;
        in_quotes ^= word.matches('\'').count() % 2 == 1;
    }
    text + &line[content.len()..]
}

/// The columns that a text takes.
fn shown_width(text: &str) -> usize {
    without_codes(text).chars().count()
}

/// `text` without the codes for colours, each of which ends with a letter.
fn without_codes(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, coded| {
        plain + coded.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or("")
    })
}

/// A row of a table that is cut to the width of a terminal.
pub(crate) fn cut(row: &str, columns: Option<usize>) -> String {
    match columns {
        Some(columns) if columns >= LEAST_WIDTH && row.chars().count() > columns => {
            row.chars().take(columns - 1).chain(['\u{2026}']).collect()
        }
        _ => row.to_owned(),
    }
}

/// Writes a line to standard error. If that fails, there is nobody to report it to.
pub(crate) fn complain(line: &str) {
    let line = fitted(line, width_of(&Term::stderr(), io::stderr().is_terminal()));
    // In a single write, so that lines of several processes do not mix.
    let _ = aside(|| io::stderr().lock().write_all(format!("{line}\n").as_bytes()));
}

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UseOfColors {
    /// On terminals, unless NO_COLOR or TERM=dumb is set; with FORCE_COLOR or CLICOLOR_FORCE
    /// everywhere
    Auto,
    /// Also in files and pipes
    Always,
    /// Nowhere
    Never,
}

static COLORS: OnceLock<UseOfColors> = OnceLock::new();

/// What the user wants of all output from now on. Only the first call counts.
pub(crate) fn use_colors(when: UseOfColors) {
    let _ = COLORS.set(when);
}

/// Emphasis, on terminals that can show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    colour: bool,
}

impl Style {
    /// The style for a stream, depending on whether it is a terminal. Obeys `--color`, and without
    /// it `NO_COLOR` (no-color.org: set and not empty) and `TERM=dumb`.
    pub(crate) fn of(is_terminal: bool) -> Style {
        match COLORS.get() {
            Some(UseOfColors::Always) => return Style { colour: true },
            Some(UseOfColors::Never) => return Style { colour: false },
            Some(UseOfColors::Auto) | None => {}
        }
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let forced = ["FORCE_COLOR", "CLICOLOR_FORCE"]
            .iter()
            .any(|name| std::env::var_os(name).is_some_and(|v| !v.is_empty() && v != "0"));
        Style { colour: !no_color && (forced || is_terminal && !dumb) }
    }

    pub(crate) fn has_colors(self) -> bool {
        self.colour
    }

    /// Without colours, as for files.
    pub(crate) fn plain() -> Style {
        Style { colour: false }
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
        if self.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
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

/// Complete writes like [`Stdout::print`], for callers that need a writer.
/// `bytes` unchanged if a shell accepts them, otherwise in quotes, with `$'\033'` for characters
/// that must not reach a terminal.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let mut pieces: Vec<(bool, String)> = Vec::new();
    let mut add = |is_plain: bool, text: &str| match pieces.last_mut() {
        Some((last, so_far)) if *last == is_plain => so_far.push_str(text),
        _ => pieces.push((is_plain, text.to_owned())),
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let mut buffer = [0; 4];
            let text = c.encode_utf8(&mut buffer);
            if is_hostile(c) { add(false, &octal(text.as_bytes())) } else { add(true, text) }
        }
        if !chunk.invalid().is_empty() {
            add(false, &octal(chunk.invalid()));
        }
    }
    if let [(true, text)] = &pieces[..]
        && !needs_quotes(text)
    {
        return text.clone();
    }
    if pieces.is_empty() {
        return "''".to_owned();
    }
    pieces
        .iter()
        .map(|(is_plain, text)| {
            if *is_plain {
                format!("'{}'", text.replace('\'', "'\\''"))
            } else {
                format!("$'{text}'")
            }
        })
        .collect()
}

fn octal(bytes: &[u8]) -> String {
    let escape = |byte: &u8| match byte {
        b'\n' => "\\n".to_owned(),
        b'\t' => "\\t".to_owned(),
        b'\r' => "\\r".to_owned(),
        byte => format!("\\{byte:03o}"),
    };
    bytes.iter().map(escape).collect()
}

/// Whether the text contains characters that are special to a shell.
fn needs_quotes(text: &str) -> bool {
    text.starts_with(['~', '#'])
        || text.contains([
            ' ', '!', '"', '$', '&', '\'', '(', ')', '*', ';', '<', '=', '>', '?', '[', '\\', '^',
            '`', '|',
        ])
}

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

/// Sets the bars above which text is printed, or None after they are gone.
pub(crate) fn set_bars(bars: Option<MultiProgress>) {
    *BARS.hold() = bars;
}

/// Hides the bars while `write` prints.
pub(super) fn aside<T>(write: impl FnOnce() -> T) -> T {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_commands_stay_commands() {
        let fit = |text: &str| fitted(text, Some(30));
        let short = "  note: short enough\n";
        assert_eq!(fit(short), short);
        let long = "  note: 2 layers are pulled whole: they are small\n";
        assert_eq!(fit(long), "  note: 2 layers are pulled\n    whole: they are small\n");
        assert_eq!(fitted(long, None), long);
        let styled = "  \x1b[33mnote:\x1b[0m 2 layers are pulled whole: they are small";
        assert_eq!(
            fit(styled),
            "  \x1b[33mnote:\x1b[0m 2 layers are pulled\n    whole: they are small"
        );
        let row = "\x1b[2m  1d995bf94215     1.1 MiB  left out: small\x1b[0m";
        assert_eq!(fit(row), "\x1b[2m  1d995bf94215     1.1 MiB\n    left out: small\x1b[0m");
        let word = format!("  manifest sha256:{}\n", "0".repeat(64));
        assert_eq!(fit(&word), format!("  manifest\n    sha256:{}\n", "0".repeat(64)));
        let command = "    next: ociseek convert r.example/a:1 'a b c d e' r.example/a:1-soci\n";
        let folded = fit(command);
        assert_eq!(folded.replace(" \\\n      ", " "), command);
        assert!(folded.lines().count() > 1 && folded.contains("'a b c d e'"), "{folded}");
        assert_eq!(cut("IMAGE  PLATFORM  VERSION  TOOL", Some(20)), "IMAGE  PLATFORM  VE\u{2026}");
        assert_eq!(cut("IMAGE  PLATFORM  VERSION  TOOL", None).len(), 30);
    }

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

    #[test]
    fn names_are_quoted_where_needed() {
        for (name, shown) in [
            (&b"plain-name_1.0,x+y@z:%/a"[..], "plain-name_1.0,x+y@z:%/a"),
            ("é ü".as_bytes(), "'é ü'"),
            (b"", "''"),
            (b"it's", "'it'\\''s'"),
            (b"a\nb", "'a'$'\\n''b'"),
            (b"\x1b[31m", "$'\\033''[31m'"),
            (b"\xff\xfe", "$'\\377\\376'"),
            ("x\u{202e}y".as_bytes(), "'x'$'\\342\\200\\256''y'"),
            (b"~", "'~'"),
            (b"a=b", "'a=b'"),
        ] {
            assert_eq!(quoted(name), shown);
        }
    }
}
