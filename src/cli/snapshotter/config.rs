//! The configuration file of `ociseek snapshotter`: its options by their long names, as TOML.

use std::any::TypeId;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::builder::ValueRange;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches};
use strsim::levenshtein;
use toml::{Table, Value};

use super::SnapshotterArgs;
use crate::cli::args::{Cli, Command, NodeCommand};
use crate::cli::help;
use crate::cli::shared::error::{CliError, ForUser};

/// Larger files are not configurations.
const MAX_BYTES: u64 = 1 << 20;
/// Options that are not for the file: those that name it, and those for a single image.
const NOT_IN_FILE: [&str; 8] =
    ["config", "print-config", "index", "stats-file", "password-stdin", "trust", "help", "version"];

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigFileFault {
    #[error("cannot read it")]
    Read(#[source] io::Error),
    #[error("more than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("not TOML: {0}")]
    Toml(String),
    #[error("unknown key {key:?}: {advice}")]
    Unknown { key: String, advice: String },
    #[error("{key}: expected {expected}")]
    Kind { key: String, expected: &'static str },
    #[error("{0}")]
    Option(String),
}

/// What the file at `path` has.
///
/// # Errors
/// If it cannot be read, or is not TOML.
pub(super) fn table(path: &Path) -> Result<Table, ConfigFileFault> {
    let mut text = String::new();
    let file = File::open(path).map_err(ConfigFileFault::Read)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(ConfigFileFault::Read)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ConfigFileFault::TooLarge);
    }
    text.parse().map_err(|error: toml::de::Error| toml_fault(&text, &error))
}

/// The options of this process, with those of a file that neither the command line nor the
/// environment gives.
///
/// # Errors
/// If the file has a key or a value that is not valid.
pub(super) fn args(
    table: &Table,
    typed: impl IntoIterator<Item = OsString>,
) -> Result<SnapshotterArgs, ConfigFileFault> {
    let mut arguments: Vec<OsString> = typed.into_iter().collect();
    let matches = program().try_get_matches_from(&arguments).map_err(wrong_option)?;
    for (key, value) in table {
        let given = arguments_of(key, value)?;
        let is_overridden =
            matches.subcommand_matches("snapshotter").is_some_and(|matches| is_given(matches, key));
        if !is_overridden {
            arguments.extend(given.into_iter().map(OsString::from));
        }
    }
    parsed(arguments)
}

/// The options that [`args`] returns for the file at `path`.
fn read(
    path: &Path,
    typed: impl IntoIterator<Item = OsString>,
) -> Result<SnapshotterArgs, ConfigFileFault> {
    args(&table(path)?, typed)
}

/// As it is called: an empty variable counts as unset.
fn program() -> clap::Command {
    help::with_other_names(Cli::command())
}

fn parsed(arguments: Vec<OsString>) -> Result<SnapshotterArgs, ConfigFileFault> {
    let matches = program().try_get_matches_from(arguments);
    let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed.map_err(wrong_option)?.command {
        Command::Node(NodeCommand::Snapshotter(args)) => Ok(*args),
        _ => Err(ConfigFileFault::Option("the command is not snapshotter".to_owned())),
    }
}

fn wrong_option(error: clap::Error) -> ConfigFileFault {
    ConfigFileFault::Option(first_line(&error))
}

/// The options of the snapshotter that has the configuration at `path`, or none.
///
/// # Errors
/// As [`table`] and [`args`].
pub(super) fn or_defaults(path: Option<&Path>) -> Result<SnapshotterArgs, CliError> {
    let none = ["ociseek", "snapshotter"].map(OsString::from);
    let wrong =
        |source| ConfigFileError { path: path.map(Path::to_owned).unwrap_or_default(), source };
    Ok(match path {
        Some(path) => read(path, none),
        None => parsed(none.into()),
    }
    .map_err(wrong)?)
}

/// Where the text is not TOML, with what is usually wrong there.
fn toml_fault(text: &str, error: &toml::de::Error) -> ConfigFileFault {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let number = text.get(..start).map_or(1, |before| before.matches('\n').count() + 1);
    let line = text.lines().nth(number - 1).unwrap_or_default();
    let is_key = |key: &str| key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    // A value may be a password, and this is logged.
    let (key, advice) = match line.split_once('=') {
        Some((key, value)) if is_key(key.trim()) => {
            let begins = value.trim().chars().next();
            let is_bare = begins.is_some_and(|first| first.is_alphabetic() || "/*".contains(first));
            let is_list = value.trim().starts_with('[');
            let advice = match value.chars().any(|c| "\u{201c}\u{201d}\u{2018}\u{2019}".contains(c))
            {
                true => ": it has typographic quotes: type \" in their place",
                false if is_bare => {
                    ": a text is in double quotes, such as root = \"/var/lib/ociseek\""
                }
                false if is_list => {
                    ": each text of a list is in double quotes, such as [\"registry.example/team/*\"]"
                }
                false => "",
            };
            (format!(", at {:?}", key.trim()), advice)
        }
        _ => (String::new(), ": a line is KEY = VALUE, and a text is in double quotes"),
    };
    ConfigFileFault::Toml(format!("{} in line {number}{key}{advice}", error.message()))
}

/// Without clap's prefix and the hint to its help.
fn first_line(error: &impl ToString) -> String {
    let text = error.to_string();
    let line = text.trim().lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

fn with_option<T>(key: &str, look: impl FnOnce(&Arg) -> T) -> Option<T> {
    let program = Cli::command();
    let command = program.find_subcommand("snapshotter")?;
    options(command).find(|arg| arg.get_long() == Some(key)).map(look)
}

/// Whether the file can have this key.
#[cfg(test)]
pub(super) fn is_key(key: &str) -> bool {
    with_option(key, |_| ()).is_some()
}

/// The options that the file can have.
fn options(command: &clap::Command) -> impl Iterator<Item = &Arg> {
    let in_file = |arg: &&Arg| arg.get_long().is_some_and(|long| !NOT_IN_FILE.contains(&long));
    command.get_arguments().filter(in_file)
}

fn is_given(given: &ArgMatches, key: &str) -> bool {
    let source = with_option(key, |arg| given.value_source(arg.get_id().as_str()));
    matches!(source.flatten(), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// What an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// It is a flag.
    Nothing,
    /// It can also be used like a flag.
    PerhapsValue,
    Value,
    Values,
}

fn takes(arg: &Arg) -> Takes {
    if !arg.get_action().takes_values() {
        return Takes::Nothing;
    }
    let is_list =
        matches!(arg.get_action(), ArgAction::Append) || arg.get_value_delimiter().is_some();
    match arg.get_num_args().unwrap_or(ValueRange::SINGLE).min_values() {
        0 => Takes::PerhapsValue,
        _ if is_list => Takes::Values,
        _ => Takes::Value,
    }
}

fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

/// The error for an unknown key: with the one that was meant, if it is written in another way.
fn unknown(key: &str, value: &Value) -> ConfigFileFault {
    let letters = |key: &str| {
        let letters = key.chars().filter(char::is_ascii_alphanumeric);
        letters.map(|letter| letter.to_ascii_lowercase()).collect::<String>()
    };
    let meant = Cli::command().find_subcommand("snapshotter").and_then(|command| {
        let near = |arg: &&Arg| {
            arg.get_long().is_some_and(|long| levenshtein(&letters(long), &letters(key)) <= 1)
        };
        options(command).find(near).and_then(|arg| arg.get_long()).map(str::to_owned)
    });
    let advice = match (meant, value) {
        (Some(meant), _) => format!("did you mean {meant}?"),
        (None, Value::Table(_)) => {
            "keys are at the top of the file, without a [table]; containerd has a configuration of its own".to_owned()
        }
        (None, _) => "ociseek snapshotter --print-config lists all".to_owned(),
    };
    ConfigFileFault::Unknown { key: key.to_owned(), advice }
}

/// The arguments for a key of the file.
fn arguments_of(key: &str, value: &Value) -> Result<Vec<String>, ConfigFileFault> {
    let takes = with_option(key, takes).ok_or_else(|| unknown(key, value))?;
    let wrong = |expected| ConfigFileFault::Kind { key: key.to_owned(), expected };
    let is_path = with_option(key, is_path).unwrap_or(false);
    let is_absolute = |text: &str| {
        // A socket may be a URL, and the file of client-cert is behind the name of its registry.
        let behind_host = text.split_once('=').map(|(_, file)| file);
        let path = text.strip_prefix("unix:").or(behind_host).unwrap_or(text);
        Path::new(path).is_absolute()
    };
    let one = |value: &Value, expected| match value {
        Value::String(text) if !is_path || is_absolute(text) => Ok(format!("--{key}={text}")),
        // A service has a working directory that nobody thinks of.
        _ if is_path => Err(wrong("an absolute path, such as \"/var/lib/ociseek\"")),
        Value::Integer(number) => Ok(format!("--{key}={number}")),
        _ => Err(wrong(expected)),
    };
    match (takes, value) {
        (Takes::Nothing | Takes::PerhapsValue, Value::Boolean(true)) => {
            Ok(vec![format!("--{key}")])
        }
        (Takes::Nothing | Takes::PerhapsValue, Value::Boolean(false)) => Ok(Vec::new()),
        (Takes::Nothing, _) => Err(wrong("true or false")),
        (Takes::Values, Value::Array(values)) => {
            values.iter().map(|value| one(value, "an array of strings")).collect()
        }
        (Takes::Values, value) => Ok(vec![one(value, "a string or an array of strings")?]),
        (Takes::Value | Takes::PerhapsValue, value) => {
            Ok(vec![one(value, "a string or a number")?])
        }
    }
}

/// A file with all keys as comments, each with its help and its default.
pub(super) fn printed() -> String {
    let mut text = "# The configuration of ociseek snapshotter. Options of the command line and variables of the\n\
        # environment (OCISEEK_...) have precedence.\n"
        .to_owned();
    let program = Cli::command();
    let command = program.find_subcommand("snapshotter");
    for arg in command.into_iter().flat_map(options).filter(|arg| !arg.is_hide_set()) {
        let key = arg.get_long().unwrap_or_default();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let name = || {
            arg.get_value_names()
                .and_then(|names| names.first())
                .map_or("VALUE", |name| name.as_str())
        };
        let default =
            arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        let example = || format!("{}{}", if is_path(arg) { "/" } else { "" }, name());
        let value = match takes(arg) {
            Takes::Nothing | Takes::PerhapsValue => "false".to_owned(),
            Takes::Value => format!("{:?}", default.unwrap_or_else(example)),
            Takes::Values => format!("[{:?}]", default.unwrap_or_else(example)),
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "\n# {}\n# {key} = {value}\n", help.replace('\n', "\n# "));
    }
    text
}

/// The file that `--config` names, if it cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: the configuration cannot be used", path.display())]
pub(crate) struct ConfigFileError {
    path: PathBuf,
    source: ConfigFileFault,
}

impl ForUser for ConfigFileError {
    fn hint(&self) -> Option<String> {
        let ConfigFileFault::Read(error) = &self.source else { return None };
        (error.kind() == io::ErrorKind::NotFound).then(|| {
            "ociseek snapshotter --print-config > FILE writes one with all keys; \
             docs/snapshotter.md describes them"
                .into()
        })
    }
}

impl ConfigFileError {
    pub(super) fn at(path: &Path) -> impl FnOnce(ConfigFileFault) -> ConfigFileError {
        |source| ConfigFileError { path: path.to_owned(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str, typed: &str) -> Result<SnapshotterArgs, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        read(&path, typed.split(' ').map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_gives_what_the_command_line_does_not() {
        let text = "root = \"/r\"\nsocket = \"unix:///s\"\ncache-dir = \"/c\"\nplain-http = true\ndeadline = \"5s\"\n\
            client-cert = \"r.example=/a\"\nclient-key = \"/b\"\nsignature-key = [\"/a\", \"/b\"]\n";
        let args = given(text, "ociseek -q snapshotter --root /typed").unwrap();
        assert_eq!((args.root, args.socket), (PathBuf::from("/typed"), PathBuf::from("/s")));
        assert_eq!(args.lazy.deadline.as_secs(), 5);
    }

    #[test]
    fn invalid_files_are_refused() {
        for (text, wanted) in [
            ("nonsense = 1", "unknown key \"nonsense\""),
            ("lazy_from = [\"*\"]", "did you mean lazy-from?"),
            ("lazyFrom = [\"*\"]", "did you mean lazy-from?"),
            ("Root = \"/r\"", "did you mean root?"),
            ("[proxy_plugins.ociseek]\ntype = \"snapshot\"", "containerd has a configuration"),
            ("root = \u{201c}/r\u{201d}", "typographic quotes"),
            ("lazy-from = [*]", "each text of a list is in double quotes"),
            ("stats-file = \"/x\"", "unknown key \"stats-file\""),
            ("config = \"/x\"", "unknown key \"config\""),
            ("[table]\nroot = \"/r\"", "unknown key \"table\""),
            ("root = true", "root: expected an absolute path"),
            ("root = \"\"", "root: expected an absolute path"),
            ("socket = -1", "socket: expected an absolute path"),
            ("policy = \"policy.json\"", "policy: expected an absolute path"),
            ("ca-file = [\"/a\", 1]", "ca-file: expected an absolute path"),
            ("deadline = true", "deadline: expected a string or a number"),
            ("image-service = \"yes\"", "image-service: expected true or false"),
            ("prefetch = \"fast\"", "expected true, false, or a speed"),
            ("lazy-from = [1.5]", "lazy-from: expected an array of strings"),
            ("deadline = \"soon\"", "invalid value 'soon' for '--deadline"),
            ("root = ", "not TOML"),
        ] {
            let error = given(text, "ociseek snapshotter").unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn the_printed_file_is_valid_with_and_without_its_defaults() {
        let text = printed();
        assert!(text.parse::<Table>().unwrap().is_empty());
        for line in text.lines().filter_map(|line| line.strip_prefix("# ")) {
            let Some((key, _)) =
                line.split_once(" = ").filter(|(key, _)| with_option(key, |_| ()).is_some())
            else {
                continue;
            };
            let table: Table = line.parse().unwrap();
            assert!(arguments_of(key, &table[key]).is_ok(), "{line}");
        }
        assert!(text.contains("\n# socket = \"/run/ociseek/snapshotter.sock\"\n"), "{text}");
    }
}
