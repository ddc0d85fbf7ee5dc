//! The short help of `-h`. `--help` is complete.

use clap::error::ErrorKind;
use clap::{Command, Error};

use super::groups;

/// Whether clap prints the help because of `-h`, instead of `--help` or the command `help`. `typed`
/// are the arguments after the program's name.
pub(super) fn is_asked_for(message: &Error, typed: &[String]) -> bool {
    let mut options = typed.iter().take_while(|word| *word != "--");
    match message.kind() {
        ErrorKind::DisplayHelp => !options.any(|word| word == "--help" || word == "help"),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        _ => false,
    }
}

/// The program without the texts that only `--help` shows: environment variables, and longer
/// descriptions. Options state themselves whether they are hidden (`hide_short_help`).
pub(super) fn brief(program: Command) -> Command {
    let name = program.get_name().to_owned();
    groups::grouped(below(program, &name), false)
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
    match has_more {
        true => command.after_help(format!("All options, their environment variables, and examples: {name} --help")),
        false => command,
    }
}
