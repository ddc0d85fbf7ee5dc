//! The commands of the program. The options of each are in its own folder.

use clap::{Parser, Subcommand};

use crate::cli::cache::CacheCommand;
use crate::cli::cat::CatArgs;
use crate::cli::convert::ConvertArgs;
use crate::cli::doctor::DoctorArgs;
use crate::cli::index::IndexArgs;
use crate::cli::list::ListArgs;
use crate::cli::ls::LsArgs;
use crate::cli::rm::RmArgs;
use crate::cli::shared::verbosity::{LogReader, VerbosityArgs};
use crate::cli::trial::TryArgs;
use crate::cli::verify::VerifyArgs;
use crate::cli::version::{CompletionsArgs, ManArgs, VersionArgs};
use crate::cli::ztoc::ZtocCommand;

const ABOUT: &str = "Start containers before their image is pulled";

const LONG_ABOUT: &str = "\
Start containers before their image is pulled. ociseek adds a seekable index (SOCI) to existing OCI images.

It reads each layer once, and records where decompression can start and where each file is. No layer changes. The \
index comes with a SOCI-enabled image under a new name (version 2, for Fargate, SageMaker Studio and \
soci-snapshotter), or is attached to the image as it is (version 1). The program also starts containers and reads \
files by these indexes.";

const AFTER_HELP: &str = "\
A SOCI-enabled image next to the original, and which runtimes will start it lazily:
  ociseek convert ghcr.io/acme/app:1.4 ghcr.io/acme/app:1.4-soci
  ociseek doctor ghcr.io/acme/app:1.4-soci

The options of a command: ociseek COMMAND -h, or --help for all of them with examples.";

const AFTER_LONG_HELP: &str = "\
A SOCI-enabled image next to the original, and which runtimes will start it lazily:
  ociseek convert ghcr.io/acme/app:1.4 ghcr.io/acme/app:1.4-soci
  ociseek doctor ghcr.io/acme/app:1.4-soci

Exit status: 0 success, 1 failure, 2 usage error, 3 verify found differences, or doctor found no consumer; \
129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.

The options of a command: ociseek COMMAND -h, or --help for all of them with examples.";

#[derive(Debug, Parser)]
#[command(name = "ociseek", version, about = ABOUT, long_about = LONG_ABOUT, after_help = AFTER_HELP)]
#[command(after_long_help = AFTER_LONG_HELP, max_term_width = 100)]
#[command(arg_required_else_help = true)]
pub(in crate::cli) struct Cli {
    #[command(subcommand)]
    pub command: Command,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Try(Box<TryArgs>),
    Index(Box<IndexArgs>),
    Convert(Box<ConvertArgs>),
    Ls(Box<LsArgs>),
    Cat(Box<CatArgs>),
    Verify(Box<VerifyArgs>),
    #[cfg(mounts)]
    #[command(flatten)]
    Lazy(LazyCommand),
    #[cfg(mounts)]
    #[command(flatten)]
    Node(NodeCommand),
    Doctor(Box<DoctorArgs>),
    List(Box<ListArgs>),
    Rm(Box<RmArgs>),
    #[command(flatten)]
    Service(ServiceCommand),
    /// Plumbing, for tests and other tools.
    #[command(subcommand, hide = true)]
    Ztoc(ZtocCommand),
    #[command(subcommand)]
    Cache(CacheCommand),
    Completions(CompletionsArgs),
    Man(ManArgs),
    Version(VersionArgs),
}

/// The commands that show an image as a file system.
#[cfg(mounts)]
#[derive(Debug, Subcommand)]
pub(super) enum LazyCommand {
    Mount(Box<crate::cli::image_fs::mount::MountArgs>),
    Bundle(Box<crate::cli::image_fs::bundle::BundleArgs>),
    Store(Box<crate::cli::image_fs::store::StoreArgs>),
}

/// The program with these commands alone. Containers wait for them, and building the options of all
/// commands takes most of the time of parsing.
#[cfg(mounts)]
#[derive(Debug, Parser)]
#[command(name = "ociseek", version)]
pub(in crate::cli) struct LazyCli {
    #[command(subcommand)]
    command: LazyCommand,

    #[command(flatten)]
    verbosity: VerbosityArgs,
}

#[cfg(mounts)]
impl From<LazyCli> for Cli {
    fn from(cli: LazyCli) -> Cli {
        Cli { command: Command::Lazy(cli.command), verbosity: cli.verbosity }
    }
}

/// The commands that containerd calls.
#[cfg(mounts)]
#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    Snapshotter(Box<crate::cli::snapshotter::SnapshotterArgs>),
}

/// The commands that index images pushed by others.
#[derive(Debug, Subcommand)]
pub(super) enum ServiceCommand {
    #[command(subcommand)]
    Hook(super::hook::HookCommand),
    Backfill(Box<crate::cli::backfill::BackfillArgs>),
}

/// How a command reports failures on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failures {
    /// It does not: standard output is for people, or for other content.
    None,
    Document,
    /// As one of several lines.
    Line,
}

impl Command {
    /// What is logged: doctor prints more itself first.
    pub(super) fn log_of(&self, verbosity: VerbosityArgs) -> VerbosityArgs {
        match self {
            #[cfg(mounts)]
            Command::Doctor(args) if args.node.is_some() => verbosity,
            Command::Doctor(_) => {
                VerbosityArgs { verbose: verbosity.verbose.saturating_sub(1), ..verbosity }
            }
            _ => verbosity,
        }
    }

    pub(super) fn log_readers(&self) -> LogReader {
        match self {
            Command::Service(ServiceCommand::Hook(super::hook::HookCommand::Lambda(_))) => {
                LogReader::Lambda
            }
            Command::Service(ServiceCommand::Hook(_)) => LogReader::Programs,
            #[cfg(mounts)]
            Command::Node(NodeCommand::Snapshotter(args)) if args.command.is_none() => {
                LogReader::Programs
            }
            _ => LogReader::People,
        }
    }

    pub(super) fn failures(&self) -> Failures {
        let format = match self {
            Command::Service(ServiceCommand::Backfill(args)) if args.format.is_json() => {
                return Failures::Line;
            }
            Command::Service(_) => return Failures::None,
            #[cfg(mounts)]
            Command::Node(NodeCommand::Snapshotter(args)) => {
                match args.command.as_ref().and_then(|command| command.format()) {
                    Some(format) => format,
                    None => return Failures::None,
                }
            }
            Command::Try(args) => args.format,
            Command::Index(args) => args.format,
            Command::Convert(args) => args.format,
            Command::Ls(args) => args.format,
            Command::Verify(args) => args.format,
            Command::Doctor(args) => args.format,
            Command::List(args) => args.format,
            Command::Rm(args) => args.format,
            Command::Version(args) => args.format,
            Command::Cache(CacheCommand::Ls(args)) => args.format,
            Command::Cache(CacheCommand::Clear(args)) => args.format,
            Command::Ztoc(ZtocCommand::Show(args)) => args.format,
            Command::Ztoc(ZtocCommand::Verify(args)) => args.format,
            #[cfg(mounts)]
            Command::Lazy(LazyCommand::Store(args)) => match &args.command {
                Some(command) => command.format(),
                None => return Failures::None,
            },
            #[cfg(mounts)]
            Command::Lazy(LazyCommand::Mount(args)) => args.format,
            #[cfg(mounts)]
            Command::Lazy(LazyCommand::Bundle(args)) => args.format,
            Command::Cat(_)
            | Command::Ztoc(ZtocCommand::Create(_))
            | Command::Completions(_)
            | Command::Man(_) => return Failures::None,
        };
        if format.is_json() { Failures::Document } else { Failures::None }
    }
}
