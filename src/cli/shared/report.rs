//! The single place that converts errors to text.

use std::error::Error;

use super::error::CliError;
use super::json::Failure;
use super::layers::shortfalls;
use super::terminal::{Style, complain, safe};
use ociseek_format::progress::causes;

/// Reports an error on standard error. `about` is the affected image.
pub(crate) fn report_error(about: Option<&str>, error: &CliError) {
    let style = Style::stderr();
    let what = match about {
        Some(about) => format!("{}: {}", safe(about), in_one_line(error)),
        None => in_one_line(error),
    };
    complain(&format!("{} {what}", style.red("error:")));
    let shortfalls = error.refused().map(shortfalls).unwrap_or_default();
    shortfalls.iter().for_each(|line| complain(&format!("  {line}")));
    if let Some(hint) = error.hint() {
        complain(&format!("{} {hint}", style.green("hint:")));
    }
}

/// The error for programs.
pub(crate) fn failure(error: &CliError) -> Failure {
    Failure { hint: error.hint(), ..Failure::of(error) }
}

/// The error and its causes on one line, escaped for terminals.
pub(crate) fn in_one_line(error: &dyn Error) -> String {
    safe(&causes(error))
}
