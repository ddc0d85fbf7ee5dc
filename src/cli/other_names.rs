//! Hidden names that options have in other tools, where the meaning is the same.

use clap::{Arg, ArgAction, Command};

/// `program` with the options that belong to no single command's definition:
///
/// - `-o json` and `--output json` (kubectl, helm, aws) for `--format json`, unless the command has
///   an --output already
/// - `--all-platforms` (soci, nerdctl), which is the default here
pub(super) fn added(program: Command) -> Command {
    program.mut_subcommands(|command| {
        let mut command = added(command);
        let has = |command: &Command, test: &dyn Fn(&Arg) -> bool| command.get_arguments().any(test);
        let writes = has(&command, &|arg| arg.get_long() == Some("output") || arg.get_short() == Some('o'));
        if has(&command, &|arg| arg.get_id() == "format") && !writes {
            command = command.mut_arg("format", |arg| arg.short_alias('o').alias("output"));
        }
        let several = |arg: &Arg| arg.get_id() == "platform" && matches!(arg.get_action(), ArgAction::Append);
        if has(&command, &several) {
            let all = Arg::new("all-platforms").long("all-platforms").hide(true).action(ArgAction::SetTrue);
            command = command.arg(all.conflicts_with("platform"));
        }
        command
    })
}
