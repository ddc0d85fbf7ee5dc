//! The options for output and logging: `-q`, `-v`, `-vv` and `OCISEEK_LOG`.

use std::sync::OnceLock;
use std::time::Instant;

use clap::{ArgAction, Args, ValueEnum};
use serde_json::Value;
use tracing::Level;
use tracing::metadata::LevelFilter;
use tracing_subscriber::filter::Targets;

use super::error::{CliError, ForUser, USAGE};
use super::parse;
use super::terminal::{Style, UseOfColors, complain, safe, use_colors};
use ociseek_hook::log::json_line;
use ociseek_hook::logging::{Line, change, install, level_word};

/// The variable with a detailed filter for the log.
const VARIABLE: &str = "OCISEEK_LOG";
/// The targets that `-vv` adds: connections and TLS handshakes of the libraries.
const LIBRARIES: [&str; 5] = ["async_nats", "fuser", "hyper_util", "reqwest", "rustls"];

/// The options of all commands.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct VerbosityArgs {
    /// Log requests, retries and cache use to standard error; -vv adds detail
    ///
    /// -vv also logs the messages of the HTTP and TLS libraries. OCISEEK_LOG sets the level of each
    /// part (docs/environment.md).
    #[arg(long, short, global = true, action = ArgAction::Count)]
    #[arg(help_heading = "Output", display_order = 901)]
    pub verbose: u8,

    /// Print no progress, notes or reports: only what was asked for, warnings and errors
    ///
    /// Of a report, only the digests of what was made are left. The hooks log only warnings and
    /// errors.
    #[arg(long, short, global = true, env = "OCISEEK_QUIET", value_parser = parse::switch)]
    #[arg(help_heading = "Output", display_order = 900)]
    pub quiet: bool,

    /// How to show progress on standard error
    #[arg(long, global = true, value_name = "STYLE", env = "OCISEEK_PROGRESS", value_enum)]
    #[arg(default_value_t = ProgressStyle::Auto, hide = true)]
    #[arg(help_heading = "Output", display_order = 902)]
    pub progress: ProgressStyle,

    /// When to use colors
    #[arg(long, global = true, value_name = "WHEN", env = "OCISEEK_COLOR", value_enum)]
    #[arg(default_value_t = UseOfColors::Auto, hide_short_help = true)]
    #[arg(help_heading = "Output", display_order = 903)]
    pub color: UseOfColors,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressStyle {
    /// Bars on a terminal, plain otherwise
    Auto,
    /// A line every few seconds
    Plain,
    /// Only warnings
    None,
}

/// The readers of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogReader {
    /// People, on standard error.
    People,
    /// Programs: one JSON object per line, on standard error.
    Programs,
    /// Programs, on standard output. Lambda does not distinguish the two streams.
    Lambda,
}

impl VerbosityArgs {
    /// Applies `--color`, and starts the log, if one is requested.
    ///
    /// # Errors
    /// When the variable does not hold a filter.
    pub(crate) fn start_log(self, readers: LogReader) -> Result<(), CliError> {
        use_colors(self.color);
        let variable = std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned());
        let variable = variable
            .filter(|value| !value.trim().is_empty())
            .map(|value| filter(&value))
            .transpose()?;
        let filter = match (self.verbose, variable, readers) {
            (0, Some(filter), _) => filter,
            (0, None, LogReader::People) => return Ok(()),
            (0, None, _) => own(if self.quiet { Level::WARN } else { Level::INFO }),
            (1, _, _) => own(Level::DEBUG),
            _ => own(Level::TRACE).with_targets(LIBRARIES.map(|library| (library, Level::DEBUG))),
        };
        let _ = STARTED.set(Instant::now());
        install(
            filter,
            match readers {
                LogReader::People => |line| complain(&text(line)),
                LogReader::Programs => |line| complain(&json_line(line)),
                LogReader::Lambda => |line| {
                    use std::io::Write as _;
                    // If nobody reads the output, the failure cannot be reported.
                    let _ = writeln!(std::io::stdout().lock(), "{}", json_line(line));
                },
            },
        );
        Ok(())
    }

    /// The level of a configuration, unless `-v`, `-q` or the variable says something else.
    pub(crate) fn set_log_level(self, level: LogLevel) {
        let is_set = std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty());
        if self.verbose == 0 && !self.quiet && !is_set {
            change(own(level.into()));
        }
    }
}

/// What our own modules log, from this level on.
fn own(level: Level) -> Targets {
    Targets::new().with_target("ociseek", level)
}

/// The least severe lines that a service logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Level {
        match level {
            LogLevel::Error => Level::ERROR,
            LogLevel::Warn => Level::WARN,
            LogLevel::Info => Level::INFO,
            LogLevel::Debug => Level::DEBUG,
        }
    }
}

/// The value of `OCISEEK_LOG` if it is not a valid filter.
#[derive(Debug, thiserror::Error)]
#[error("OCISEEK_LOG: {0:?} is neither a level nor TARGET=LEVEL")]
struct LogFilterError(String);

impl ForUser for LogFilterError {
    fn hint(&self) -> Option<String> {
        Some(
            "levels are off, error, warn, info, debug and trace; for example: \
             OCISEEK_LOG=ociseek=debug,rustls=trace (docs/environment.md lists the targets)"
                .into(),
        )
    }

    fn exit_code(&self) -> u8 {
        USAGE
    }
}

/// Levels, and levels of targets, separated by commas. A word that is not a level is not accepted
/// as a target either, because it is probably a misspelled level.
fn filter(value: &str) -> Result<Targets, LogFilterError> {
    let wrong = |part: &str| LogFilterError(part.chars().take(60).collect());
    let mut filter = Targets::new();
    for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (target, word) = part
            .split_once('=')
            .map_or((None, part), |(target, word)| (Some(target.trim()), word.trim()));
        // Parsing also accepts numbers and the empty text.
        let level = word
            .parse::<LevelFilter>()
            .ok()
            .filter(|level| level.to_string().eq_ignore_ascii_case(word));
        filter = match (target, level) {
            (Some(""), _) | (_, None) => return Err(wrong(part)),
            (None, Some(level)) => filter.with_default(level),
            (Some(target), Some(level)) => filter.with_target(target, level),
        };
    }
    Ok(filter)
}

/// When the log started, to print relative times.
static STARTED: OnceLock<Instant> = OnceLock::new();

/// A line of the log for people: ` 0.123 debug ociseek::registry request GET http://...
/// status=200`.
fn text(line: &Line<'_>) -> String {
    let style = Style::stderr();
    let level = level_word(line.level);
    let level = match line.level {
        Level::ERROR => style.red(level),
        Level::WARN => style.yellow(level),
        _ => style.dim(level),
    };
    let seconds = STARTED.get().map_or(0.0, |started| started.elapsed().as_secs_f64());
    let mut text =
        format!("{seconds:>9.3} {level} {} {}", safe(line.target), style.bold(line.event));
    for (name, value) in &line.fields {
        let value = match value {
            Value::String(value) if name == "message" => safe(value),
            Value::String(value) if value.is_empty() || value.contains([' ', '"', '=']) => {
                safe(&format!("{value:?}"))
            }
            Value::String(value) => safe(value),
            value => safe(&value.to_string()),
        };
        text.push(' ');
        if name != "message" {
            text.push_str(&style.dim(&format!("{name}=")));
        }
        text.push_str(&value);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        for (value, target, level, passes) in [
            ("debug", "hyper_util::client", Level::DEBUG, true),
            ("ociseek=debug", "ociseek::registry", Level::DEBUG, true),
            ("ociseek=debug", "ociseek::registry", Level::TRACE, false),
            ("ociseek=debug", "rustls", Level::ERROR, false),
            (" warn , ociseek::registry=TRACE,", "ociseek::registry", Level::TRACE, true),
            (" warn , ociseek::registry=TRACE,", "ociseek::cache", Level::INFO, false),
            ("ociseek=info,ociseek::registry=off", "ociseek::registry", Level::ERROR, false),
        ] {
            assert_eq!(
                filter(value).unwrap().would_enable(target, &level),
                passes,
                "{value} {target} {level}"
            );
        }
        for bad in [
            "debgu",
            "ociseek",
            "ociseek=",
            "=debug",
            "ociseek=debug=trace",
            "5",
            "ociseek=5",
            "info,verbose",
        ] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
