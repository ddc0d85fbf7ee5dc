//! What `-h` shows: less than `--help`, which is complete.

use clap::error::ErrorKind;
use clap::{Command, Error};

/// Whether the help that clap prints is that of `-h`, not that of `--help` or of the command `help`. `typed` is what
/// was typed behind the program's name.
pub(crate) fn is_asked_for(message: &Error, typed: &[String]) -> bool {
    let mut options = typed.iter().take_while(|word| *word != "--");
    match message.kind() {
        ErrorKind::DisplayHelp => !options.any(|word| word == "--help" || word == "help"),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        _ => false,
    }
}

/// The program without what only `--help` shows: environment variables, and texts that differ in it. The options say
/// themselves whether they are hidden (`hide_short_help`).
pub(crate) fn brief(program: Command) -> Command {
    let name = program.get_name().to_owned();
    below(program, &name)
}

/// `name` is what is typed to call the command.
fn below(command: Command, name: &str) -> Command {
    let has_more = command.get_after_long_help().is_some();
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
