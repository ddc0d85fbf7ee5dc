//! `ociseek version`, and the pages and completions that come from the definitions of the options.

use std::io;
use std::path::Path;

use clap::Command;

use self::json::Version;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::report::CliError;
use crate::cli::shared::terminal::Stdout;
use crate::ops::TOOL_IDENTIFIER;
use crate::ztoc;
use args::{CompletionsArgs, ManArgs, VersionArgs};

pub mod args;
pub mod json;

/// The version of soci-snapshotter whose ztocs and indexes ours are compared with, byte for byte (tests/system/differential.rs).
const SOCI: &str = "v0.15.0";

pub fn version(args: &VersionArgs) -> Result<(), CliError> {
    let commit = Some(env!("OCISEEK_BUILD_COMMIT")).filter(|commit| !commit.is_empty());
    let features: Vec<&str> = env!("OCISEEK_BUILD_FEATURES").split(',').filter(|name| !name.is_empty()).collect();
    let (version, target) = (env!("CARGO_PKG_VERSION"), env!("OCISEEK_BUILD_TARGET"));
    let ztoc = String::from_utf8_lossy(ztoc::VERSION);
    let text = match args.format.is_json() {
        true => {
            let version = Version {
                version,
                commit,
                target,
                features,
                build_tool_identifier: TOOL_IDENTIFIER,
                ztoc_version: &ztoc,
                soci_version: SOCI,
            };
            text_of(version).map_err(CliError::Stdout)?
        }
        false => format!(
            "ociseek {version}\ncommit {}\ntarget {target}\nfeatures {}\nztocs of version {ztoc}, as soci-snapshotter {SOCI} makes them\n",
            commit.unwrap_or("unknown"),
            if features.is_empty() { "none".to_owned() } else { features.join(", ") },
        ),
    };
    Stdout::new().write_whole(text.as_bytes()).map_err(CliError::Stdout)
}

pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "ociseek", &mut script);
    Stdout::new().write_whole(&script).map_err(CliError::Stdout)
}

/// The page of the program on standard output, or those of all commands in a directory.
pub fn man(args: &ManArgs, command: Command) -> Result<(), CliError> {
    match &args.output {
        Some(dir) => pages(dir, command).map_err(|source| CliError::Write { path: dir.clone(), source }),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command.disable_help_subcommand(true)).render(&mut page).map_err(CliError::Stdout)?;
            Stdout::new().write_whole(&page).map_err(CliError::Stdout)
        }
    }
}

fn pages(dir: &Path, command: Command) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(command, dir)
}
