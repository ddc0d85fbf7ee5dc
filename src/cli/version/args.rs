//! The options of `ociseek version`, `completions` and `man`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::shared::args::FormatArgs;

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
    pub shell: clap_complete::Shell,
}

/// Print the manual page, or write the pages of all commands
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ociseek man | man -l -\n  ociseek man --output /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write ociseek.1 and a page for each command into this directory
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Print version, commit, target and SOCI compatibility
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    pub format: FormatArgs,
}
