//! What is printed instead of running a command: its help, or what is wrong with the arguments.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Command, Error};

use super::shared::terminal::{Style, complain};

mod environment;
pub(super) mod groups;
mod other_tools;
mod short;

/// Prints `message`, which `program` gave for these arguments.
pub(super) fn print(mut message: Error, program: Command, arguments: Vec<OsString>) -> ExitCode {
    let typed = arguments.iter().skip(1).filter_map(|typed| typed.to_str().map(str::to_owned));
    let typed: Vec<String> = typed.collect();
    if short::is_asked_for(&message, &typed)
        && let Err(shorter) = short::brief(program.clone()).try_get_matches_from(arguments)
    {
        message = shorter;
    }
    // In ls, -h is an option, as it is for ls. Alone it can only be meant as everywhere else.
    if matches!(&typed[..], [ls, h] if ls == "ls" && h == "-h")
        && let Err(help) = short::brief(program.clone()).try_get_matches_from(["ociseek", "ls", "--help"])
    {
        message = help;
    }
    let hint = other_tools::hint(&mut message, &typed, program.clone());
    environment::name(&mut message, &typed, program);
    // A closed pipe is not a failure of --help.
    let _ = message.print();
    if let Some(hint) = hint {
        complain(&format!("{} {hint}", Style::stderr().green("hint:")));
    }
    ExitCode::from(message.exit_code() as u8)
}
