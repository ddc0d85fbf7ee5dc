//! `ociseek version`, and the manual pages and completions generated from the definitions of the
//! options.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command};
use clap_complete::Shell;
use serde::Serialize;

use crate::cli::help::command_names;
use crate::cli::shared::args::FormatArgs;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::stdout::Stdout;
use ociseek_format::ztoc;
use ociseek_ops::TOOL_IDENTIFIER;

const COMPLETIONS_AFTER_HELP: &str = "\
Examples:
  ociseek completions bash > /etc/bash_completion.d/ociseek
  ociseek completions zsh > \"${fpath[1]}/_ociseek\"
  ociseek completions fish > ~/.config/fish/completions/ociseek.fish";

/// Print a shell completion script
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_AFTER_HELP)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Print the manual page, or write the pages of all commands
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ociseek man index | man -l -\n  ociseek man --output /usr/local/share/man/man1"
)]
pub(crate) struct ManArgs {
    /// Write ociseek.1 and a page for each command into this directory
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// The page of this command, such as index or hook serve
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    #[arg(value_parser = CommandName, hide_possible_values = true)]
    pub command: Vec<String>,
}

/// Any word. Shells offer the names of commands.
#[derive(Debug, Clone)]
struct CommandName;

impl TypedValueParser for CommandName {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(command_names().map(PossibleValue::new)))
    }
}

/// Print version, commit, target and SOCI compatibility
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    pub format: FormatArgs,
}

/// The version of soci-snapshotter with which our ztocs and indexes are compared, byte for byte
/// (tests/system/differential.rs).
const SOCI: &str = "v0.15.0";

pub(super) fn version(args: &VersionArgs) -> Result<(), CliError> {
    let commit = Some(env!("OCISEEK_BUILD_COMMIT")).filter(|commit| !commit.is_empty());
    let features: Vec<&str> =
        env!("OCISEEK_BUILD_FEATURES").split(',').filter(|name| !name.is_empty()).collect();
    let version = env!("CARGO_PKG_VERSION");
    let target = env!("OCISEEK_BUILD_TARGET");
    let ztoc = String::from_utf8_lossy(ztoc::VERSION);
    let text = if args.format.is_json() {
        let version = Version {
            version,
            commit,
            target,
            features,
            build_tool_identifier: TOOL_IDENTIFIER,
            ztoc_version: &ztoc,
            soci_version: SOCI,
        };
        text_of(version)?
    } else {
        format!(
            "ociseek {version}\ncommit {}\ntarget {target}\nfeatures {}\nztoc version {ztoc}, compatible with \
             soci-snapshotter {SOCI}\n",
            commit.unwrap_or("unknown"),
            if features.is_empty() { "none".to_owned() } else { features.join(", ") },
        )
    };
    Stdout::new().print(text)
}

pub(super) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "ociseek", &mut script);
    if args.shell == Shell::Fish {
        script.extend_from_slice(words_for_fish(&command).as_bytes());
    }
    Stdout::new().print(&script)
}

/// What clap_complete leaves out for fish: the words that commands take as arguments.
fn words_for_fish(program: &Command) -> String {
    let mut text = String::new();
    for command in program.get_subcommands() {
        for argument in command.get_positionals() {
            let words = argument.get_value_parser().possible_values().into_iter().flatten();
            let words: Vec<String> = words.map(|word| word.get_name().to_owned()).collect();
            if !words.is_empty() {
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "complete -c ociseek -n \"__fish_ociseek_using_subcommand {}\" -f -a \"{}\"",
                    command.get_name(),
                    words.join(" ")
                );
            }
        }
    }
    text
}

/// Prints the page of the program, or writes the pages of all commands to a directory.
pub(super) fn man(args: &ManArgs, command: Command) -> Result<(), CliError> {
    match &args.output {
        Some(dir) => pages(dir, command).map_err(CliError::write(dir)),
        None => {
            let mut command = command.disable_help_subcommand(true);
            command.build();
            let mut shown = &mut command;
            for name in &args.command {
                shown = shown.find_subcommand_mut(name).ok_or_else(|| {
                    let typed = args.command.join(" ");
                    CliError::usage(format!("no such command: ociseek {typed}"))
                        .with_hint("man takes one command: ociseek --help lists all")
                })?;
            }
            let page = page(shown).map_err(CliError::stdout)?;
            if io::stdout().is_terminal() && show(&page).is_ok_and(|was_shown| was_shown) {
                return Ok(());
            }
            Stdout::new().print(page)
        }
    }
}

/// Shows a page by man(1). Returns false if that failed.
fn show(page: &[u8]) -> io::Result<bool> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(page)?;
    let status = std::process::Command::new("man").arg("-l").arg(file.path()).status()?;
    Ok(status.success())
}

fn pages(dir: &Path, command: Command) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut ahead = vec![command];
    while let Some(mut command) = ahead.pop() {
        ahead.extend(command.get_subcommands().filter(|below| !below.is_hide_set()).cloned());
        let name = clap_mangen::Man::new(command.clone()).get_filename();
        std::fs::write(dir.join(name), page(&mut command)?)?;
    }
    Ok(())
}

/// The manual page of a command. Its synopsis is the usage line of its help.
fn page(command: &mut Command) -> io::Result<Vec<u8>> {
    let usage = command.render_usage().to_string();
    let man = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    // Justified text would stretch the examples.
    page.extend(b".ad l\n");
    man.render_name_section(&mut page)?;
    page.extend(b".SH SYNOPSIS\n.nf\n");
    let lines = usage.strip_prefix("Usage: ").unwrap_or(&usage).lines().map(str::trim);
    lines.for_each(|line| {
        page.extend(format!("{}\n", line.replace('\\', "\\e").replace('-', "\\-")).bytes())
    });
    page.extend(b".fi\n");
    let mut rest = Vec::new();
    man.render_description_section(&mut rest)?;
    man.render_options_section(&mut rest)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut rest)?;
    }
    if command.get_after_help().is_some() || command.get_after_long_help().is_some() {
        man.render_extra_section(&mut rest)?;
    }
    if command.get_version().is_some() {
        man.render_version_section(&mut rest)?;
    }
    page.extend(unfilled(&rest));
    Ok(page)
}

/// Keeps indented lines separate: commands and tables.
fn unfilled(page: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(page.len());
    let mut is_unfilled = false;
    for line in page.split_inclusive(|&byte| byte == b'\n') {
        let is_indented = line.starts_with(b" ");
        if is_indented != is_unfilled {
            text.extend(if is_indented { b".nf\n" } else { b".fi\n" });
            is_unfilled = is_indented;
        }
        text.extend(line);
    }
    text
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Version<'a> {
    pub version: &'static str,
    /// Null if it was not known during the build.
    pub commit: Option<&'static str>,
    /// The compilation target.
    pub target: &'static str,
    pub features: Vec<&'static str>,
    /// The tool name that is recorded in ztocs and indexes.
    pub build_tool_identifier: &'static str,
    /// The format version of the ztocs that it builds.
    pub ztoc_version: &'a str,
    /// The version of soci-snapshotter with byte-for-byte equal ztocs and indexes.
    pub soci_version: &'static str,
}
