//! What is printed instead of running a command: its help, or what is wrong with the arguments.
//! Also the names of options of other tools that are taken.

use std::env;
use std::ffi::OsString;
use std::fmt::Write;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, Error, ValueEnum as _};

use super::shared::error::{CliError, FAILED};
use super::shared::report::report_error;
use super::shared::terminal::{Style, UseOfColors, complain, use_colors};
use super::slips::{self, called};

/// Prints `message`, which `program` gave for these arguments. `unused` makes the program again.
pub(super) fn print(
    mut message: Error,
    program: Command,
    unused: fn() -> Command,
    arguments: Vec<OsString>,
) -> ExitCode {
    let typed = arguments.iter().skip(1).filter_map(|typed| typed.to_str().map(str::to_owned));
    let typed: Vec<String> = typed.collect();
    if let Some(when) = colors_typed(&typed) {
        use_colors(when);
    }
    if is_short_asked_for(&message, &typed)
        && let Err(shorter) = brief(program.clone()).try_get_matches_from(arguments)
    {
        message = shorter;
    }
    // In ls, -h is an option, as it is for ls. Alone it can only be meant as everywhere else.
    if matches!(&typed[..], [ls, h] if ls == "ls" && h == "-h") {
        let short = |help: Arg| help.action(ArgAction::HelpShort);
        // clap finds options of a command that was used by their places, which mut_arg changes.
        let program = brief(unused()).mut_subcommand("ls", |ls| ls.mut_arg("help", short));
        if let Err(help) = program.try_get_matches_from(["ociseek", "ls", "--help"]) {
            message = help;
        }
    }
    let hint = slips::hint(&mut message, &typed, program.clone());
    name_variable(&mut message, &typed, program);
    let printed = show(&message);
    if let Err(error) = printed
        // A closed pipe is not a failure of --help.
        && !(message.use_stderr() || error.kind() == io::ErrorKind::BrokenPipe)
    {
        report_error(None, &CliError::stdout(error));
        return ExitCode::from(FAILED);
    }
    if let Some(hint) = hint {
        complain(&format!("{} {hint}", Style::stderr().green("hint:")));
    }
    ExitCode::from(message.exit_code() as u8)
}

/// As `Error::print`, which knows neither `--color` nor `FORCE_COLOR`.
fn show(message: &Error) -> io::Result<()> {
    let text = message.render();
    let text = |style: Style| {
        if style.has_colors() { text.ansi().to_string() } else { text.to_string() }
    };
    if message.use_stderr() {
        io::stderr().write_all(text(Style::stderr()).as_bytes())
    } else {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text(Style::of(stdout.is_terminal())).as_bytes())?;
        stdout.flush()
    }
}

/// `--color` of arguments that were not parsed, or its variable.
fn colors_typed(typed: &[String]) -> Option<UseOfColors> {
    let mut options = typed.iter().take_while(|word| *word != "--");
    let when = loop {
        match options.next().map(String::as_str) {
            Some("--color") => break options.next().cloned(),
            Some(word) => {
                if let Some(when) = word.strip_prefix("--color=") {
                    break Some(when.to_owned());
                }
            }
            None => break env::var("OCISEEK_COLOR").ok(),
        }
    };
    UseOfColors::from_str(&when?, false).ok()
}

/// Whether clap prints the help because of `-h`, instead of `--help` or the command `help`. `typed`
/// are the arguments after the program's name.
fn is_short_asked_for(message: &Error, typed: &[String]) -> bool {
    let mut options = typed.iter().take_while(|word| *word != "--");
    match message.kind() {
        ErrorKind::DisplayHelp => !options.any(|word| word == "--help" || word == "help"),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        _ => false,
    }
}

/// The program without the texts that only `--help` shows: environment variables, and longer
/// descriptions. Options state themselves whether they are hidden (`hide_short_help`).
fn brief(program: Command) -> Command {
    let name = program.get_name().to_owned();
    grouped(below(program, &name), false)
}

/// `name` is the full command as the user types it.
fn below(command: Command, name: &str) -> Command {
    // The program itself ends with its own advice.
    let has_more = command.get_after_long_help().is_some() && name.contains(' ');
    let command = command.mut_args(|arg| arg.hide_env(true));
    let command = command.mut_subcommands(|command| {
        let name = format!("{name} {}", command.get_name());
        below(command, &name)
    });
    if has_more {
        command.after_help(format!(
            "All options, their environment variables, and examples: {name} --help"
        ))
    } else {
        command
    }
}

/// A group of commands: what they do, their names, and whether only `--help` lists them.
struct Group {
    title: &'static str,
    commands: &'static [&'static str],
    only_long: bool,
}

const GROUPS: [Group; 7] = [
    Group { title: "Begin here", commands: &["try"], only_long: false },
    Group {
        title: "Make indexes",
        commands: &["convert", "index", "backfill", "hook"],
        only_long: false,
    },
    Group {
        title: "Run containers and read files before the image is pulled",
        commands: &["snapshotter", "store", "mount", "bundle", "ls", "cat"],
        only_long: false,
    },
    Group { title: "Check", commands: &["doctor", "verify"], only_long: false },
    Group { title: "Find and remove", commands: &["list", "rm"], only_long: false },
    Group { title: "This machine", commands: &["cache"], only_long: false },
    Group {
        title: "About the program",
        commands: &["version", "help", "man", "completions"],
        only_long: true,
    },
];

/// The commands that the help lists.
pub(super) fn command_names() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().flat_map(|group| group.commands).copied()
}

/// `program` with its commands in groups; in the `long` help all of them.
pub(super) fn grouped(program: Command, long: bool) -> Command {
    let template = template(&program, long);
    program.help_template(template)
}

fn template(program: &Command, long: bool) -> StyledStr {
    let styles = program.get_styles();
    let header = styles.get_header();
    let literal = styles.get_literal();
    let mut text = StyledStr::new();
    let _ = write!(text, "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n");
    for group in GROUPS.iter().filter(|group| long || !group.only_long) {
        let _ = writeln!(text, "{header}{}:{header:#}", group.title);
        for name in group.commands {
            let about = match program.find_subcommand(name) {
                // clap adds it, and not always before this.
                _ if *name == "help" => "Print the help of a command".to_owned(),
                Some(command) => command.get_about().map(ToString::to_string).unwrap_or_default(),
                // Not in this build.
                None => continue,
            };
            let _ = writeln!(text, "  {literal}{name:<11}{literal:#}  {about}");
        }
        let _ = writeln!(text);
    }
    let _ = write!(text, "{header}Options:{header:#}\n{{options}}{{after-help}}");
    text
}

/// Names the variable with the invalid value, and removes options from the usage line that are only
/// there because their variables are set. `typed` are the arguments after the program's name.
fn name_variable(error: &mut Error, typed: &[String], program: Command) {
    let mut command = called(program, typed);
    if let (Some(ContextValue::String(option)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
        && let Some(arg) = command.get_arguments().find(|arg| arg.to_string() == *option)
        && let Some(variable) =
            arg.get_env().filter(|_| !is_typed(arg, typed)).and_then(|name| name.to_str())
        && env::var(variable).is_ok_and(|set| set.contains(value.as_str()))
    {
        let variable = format!("${variable}");
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    let is_set = |arg: &Arg| arg.get_env().is_some_and(|variable| env::var_os(variable).is_some());
    if error.get(ContextKind::Usage).is_some() && command.get_arguments().any(is_set) {
        let usage = command.render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
}

fn is_typed(arg: &Arg, typed: &[String]) -> bool {
    let long = arg.get_long().unwrap_or_default();
    let is_long = |word: &str| {
        word.strip_prefix("--").is_some_and(|word| word.split('=').next() == Some(long))
    };
    let is_short = |word: &str| {
        let letters = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        arg.get_short()
            .is_some_and(|letter| letters.is_some_and(|letters| letters.contains(letter)))
    };
    typed.iter().any(|word| is_long(word) || is_short(word))
}

/// `program` with the options that belong to no single command's definition:
///
/// - `-o json` and `--output json` (kubectl, helm, aws) for `--format json`, unless the command has
///   an --output already
/// - `--all-platforms` (soci, nerdctl), which is the default here
pub(super) fn with_other_names(program: Command) -> Command {
    program.mut_args(without_empty_variable).mut_subcommands(|command| {
        let mut command = with_other_names(command);
        let has =
            |command: &Command, test: &dyn Fn(&Arg) -> bool| command.get_arguments().any(test);
        let writes =
            has(&command, &|arg| arg.get_long() == Some("output") || arg.get_short() == Some('o'));
        if has(&command, &|arg| arg.get_id() == "format") && !writes {
            command = command.mut_arg("format", |arg| arg.short_alias('o').alias("output"));
        }
        let several =
            |arg: &Arg| arg.get_id() == "platform" && matches!(arg.get_action(), ArgAction::Append);
        if has(&command, &several) && !has(&command, &|arg| arg.get_id() == "all_platforms") {
            let all = Arg::new("all-platforms")
                .long("all-platforms")
                .hide(true)
                .action(ArgAction::SetTrue);
            command = command.arg(all.conflicts_with("platform"));
        }
        command
    })
}

/// An empty variable counts as unset: CI systems set those of inputs that nobody gave.
fn without_empty_variable(arg: Arg) -> Arg {
    let is_empty = |name: &std::ffi::OsStr| env::var_os(name).is_some_and(|value| value.is_empty());
    if arg.get_env().is_some_and(is_empty) { arg.env(None::<&str>) } else { arg }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::args::Cli;

    #[test]
    fn every_command_is_in_one_group() {
        let listed: Vec<&str> = GROUPS.iter().flat_map(|group| group.commands).copied().collect();
        let once: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(listed.len(), once.len());
        let program = Cli::command();
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(once.contains(command.get_name()), "{}", command.get_name());
            let line = 15 + command.get_about().unwrap().to_string().chars().count();
            assert!(line <= 100, "{}: {line} columns", command.get_name());
        }
    }
}
