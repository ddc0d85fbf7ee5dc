//! The list of commands in the program's own help, in groups.

use std::fmt::Write;

use clap::Command;
use clap::builder::StyledStr;

/// A group of commands: what they do, their names, and whether only `--help` lists them.
struct Group {
    title: &'static str,
    commands: &'static [&'static str],
    only_long: bool,
}

const GROUPS: [Group; 6] = [
    Group { title: "Make indexes", commands: &["convert", "index", "backfill", "hook"], only_long: false },
    Group {
        title: "Run containers and read files before the image is pulled",
        commands: &["snapshotter", "store", "mount", "bundle", "ls", "cat"],
        only_long: false,
    },
    Group { title: "Check", commands: &["doctor", "verify", "trace", "report", "inspect", "diff"], only_long: false },
    Group { title: "Find, copy and remove", commands: &["list", "copy", "rm", "prune"], only_long: false },
    Group { title: "This machine", commands: &["cache", "version", "help"], only_long: false },
    Group { title: "For packagers, and for single layers", commands: &["completions", "man", "ztoc"], only_long: true },
];

/// `program` with its commands in groups; in the `long` help all of them.
pub(in crate::cli) fn grouped(program: Command, long: bool) -> Command {
    let template = template(&program, long);
    program.help_template(template)
}

fn template(program: &Command, long: bool) -> StyledStr {
    let styles = program.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
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
        for command in program.get_subcommands() {
            assert!(once.contains(command.get_name()), "{}", command.get_name());
            let line = 15 + command.get_about().unwrap().to_string().chars().count();
            assert!(line <= 100, "{}: {line} columns", command.get_name());
        }
    }
}
