//! The options of the commands that serve an image's files while something runs.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};

use crate::cli::shared::args::{ReadCacheArgs, RegistryArgs, ViewArgs};
use crate::ops::mount::Prefetch;

/// What all commands share that serve an image's files while something runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "How the image is read")]
pub struct LazyArgs {
    #[command(flatten)]
    pub view: ViewArgs,

    /// Fetch in the background what nobody has read yet
    #[arg(long, env = "OCISEEK_PREFETCH", value_parser = FalseyValueParser::new())]
    pub prefetch: bool,

    /// Do not fetch ahead what the index lists for that
    #[arg(long, env = "OCISEEK_IGNORE_PREFETCH_LIST", value_parser = FalseyValueParser::new())]
    pub ignore_prefetch_list: bool,

    /// How long a read waits for the registry before it ends with an input/output error
    ///
    /// For a second after that, other reads of the same bytes fail at once: the kernel asks twice
    /// for what a program waits for.
    #[arg(long, value_name = "SECONDS", env = "OCISEEK_DEADLINE", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub deadline: u64,

    /// At the end, write figures to this file, as JSON: times, requests, bytes fetched, cache hits
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    #[command(flatten)]
    pub cache: ReadCacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

impl LazyArgs {
    pub fn prefetching(&self) -> Prefetch {
        Prefetch { ignore_lists: self.ignore_prefetch_list, all: self.prefetch }
    }
}

/// How a command that serves files goes on.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Stay until stopped or unmounted; the default
    #[arg(long, conflicts_with = "detach")]
    pub foreground: bool,

    /// Come back when the files are there, and leave a process behind that serves them until they are unmounted
    #[arg(long)]
    pub detach: bool,

    /// With --detach: where warnings go once the files are there
    #[arg(long, value_name = "FILE", requires = "detach")]
    pub log: Option<PathBuf>,

    /// Record what is read first, in order, as lines of JSON: `index --prefetch-profile` takes them
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// This is the process that --detach leaves behind.
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// How a container runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Container")]
pub struct ContainerArgs {
    /// Run this instead of the image's entrypoint and command; empty: only what comes after --
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<String>,

    /// The container's network: none but its own loopback, or this machine's, with its /etc/resolv.conf and /etc/hosts
    #[arg(long, value_name = "KIND", value_enum, default_value_t = NetArg::None)]
    pub net: NetArg,

    /// Give the container a terminal
    #[arg(long)]
    pub tty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetArg {
    None,
    Host,
}
