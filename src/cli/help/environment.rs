//! Adjusts clap's errors for options from environment variables, which clap reports as if they had
//! been typed.

use std::env;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, Error};

/// Names the variable with the invalid value, and removes options from the usage line that are only
/// there because their variables are set. `typed` are the arguments after the program's name.
pub(super) fn name(error: &mut Error, typed: &[String], program: Command) {
    let mut command = called(program, typed);
    if let (Some(ContextValue::String(option)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
        && let Some(arg) = command.get_arguments().find(|arg| arg.to_string() == *option)
        && let Some(variable) = arg.get_env().filter(|_| !is_typed(arg, typed)).and_then(|name| name.to_str())
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

/// The command of `program` that was typed.
pub(super) fn called(mut program: Command, typed: &[String]) -> Command {
    program.build();
    let mut command = program;
    for word in typed {
        match command.find_subcommand(word) {
            Some(below) => command = below.clone(),
            None => break,
        }
    }
    command
}

fn is_typed(arg: &Arg, typed: &[String]) -> bool {
    let long = arg.get_long().unwrap_or_default();
    let is_long = |word: &str| word.strip_prefix("--").is_some_and(|word| word.split('=').next() == Some(long));
    let is_short = |word: &str| {
        let letters = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        arg.get_short().is_some_and(|letter| letters.is_some_and(|letters| letters.contains(letter)))
    };
    typed.iter().any(|word| is_long(word) || is_short(word))
}
