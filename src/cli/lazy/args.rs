//! The options of the commands that serve an image's files while something runs.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};

use crate::cli::shared::args::{ReadCacheArgs, RegistryArgs, ViewArgs};
use ociseek_ops::mount::Prefetch;

/// The options that all commands share which serve an image's files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reading")]
pub(crate) struct LazyArgs {
    #[command(flatten)]
    pub view: ViewArgs,

    /// Fetch the rest of the image in the background
    #[arg(long, env = "OCISEEK_PREFETCH", value_parser = FalseyValueParser::new())]
    pub prefetch: bool,

    /// Ignore the prefetch lists of the index, and the start that a fine index records
    #[arg(long, env = "OCISEEK_IGNORE_PREFETCH_LIST", value_parser = FalseyValueParser::new(), hide_short_help = true)]
    pub ignore_prefetch_list: bool,

    /// How long a read waits for the registry before it fails with an input/output error
    ///
    /// For one second after that, other reads of the same bytes fail immediately, because the
    /// kernel retries each failed read.
    #[arg(long, value_name = "SECONDS", env = "OCISEEK_DEADLINE", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub deadline: u64,

    /// On exit, write statistics to this file as JSON: times, requests, bytes fetched, cache hits
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    #[command(flatten)]
    pub cache: ReadCacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

impl LazyArgs {
    pub(crate) fn prefetching(&self) -> Prefetch {
        Prefetch { ignore_lists: self.ignore_prefetch_list, all: self.prefetch }
    }
}

/// How a command that serves files runs.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Run until stopped or unmounted (the default)
    #[arg(long, conflicts_with = "detach", hide_short_help = true)]
    pub foreground: bool,

    /// Return once mounted, and serve from a background process until unmounted
    #[arg(long)]
    pub detach: bool,

    /// With --detach: write warnings to this file once mounted
    #[arg(long, value_name = "FILE", requires = "detach")]
    pub log: Option<PathBuf>,

    /// Record the first reads in order, as JSON lines for `index --profile`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Marks the background process of --detach.
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// Options for running a container.
#[derive(Debug, Args)]
#[command(next_help_heading = "Container")]
pub(crate) struct ContainerArgs {
    /// Run this instead of the image's entrypoint and command; if empty, run only what follows --
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<String>,

    /// The container's network: only a loopback interface, or the host's with its /etc/resolv.conf
    /// and /etc/hosts
    #[arg(long, value_name = "KIND", value_enum, default_value_t = NetArg::None)]
    pub net: NetArg,

    /// Give the container a terminal
    #[arg(long)]
    pub tty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetArg {
    None,
    Host,
}
