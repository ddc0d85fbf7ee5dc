//! `ociseek hook`: services that index images as they are pushed. This file has the options that
//! they share, and the runner of jobs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
#[cfg(feature = "nats")]
use tracing::{info, warn};

use crate::cli::shared::args::{CacheArgs, LayerJobsArgs, RegistryArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::hint::job_hint;
use crate::cli::shared::indexing::{Unattended, UnattendedArgs};
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::size::ByteSize;
use crate::cli::shared::source::{Registries, client_config};
use crate::cli::shared::{caches, parse};
use crate::cli::until;
use lambda::HookLambdaArgs;
use ociseek_format::image::allow::Allow;
use ociseek_format::progress::Progress;
use ociseek_hook::allow::AllowList;
use ociseek_hook::log::LogProgress;
#[cfg(feature = "nats")]
use ociseek_hook::log::TARGET;
#[cfg(feature = "nats")]
use ociseek_hook::nats::{ConnectionChange, NatsQueue, QueueUrl};
use ociseek_hook::runner::{Runner, dead_letters};
use ociseek_hook::work::JobContext;
use ociseek_store::StoreError;
use serve::HookServeArgs;
#[cfg(feature = "nats")]
use worker::HookWorkerArgs;

pub(super) mod lambda;
pub(super) mod serve;
#[cfg(feature = "nats")]
pub(super) mod worker;

/// Index images as they are pushed
#[derive(Debug, Subcommand)]
pub(super) enum HookCommand {
    Serve(Box<HookServeArgs>),
    #[cfg(feature = "nats")]
    Worker(Box<HookWorkerArgs>),
    Lambda(Box<HookLambdaArgs>),
}

/// Runs a service until it is stopped, and then ends it gracefully.
pub(super) async fn run(
    command: HookCommand,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    match command {
        HookCommand::Serve(args) => serve::run(*args, interrupted).await,
        #[cfg(feature = "nats")]
        HookCommand::Worker(args) => worker::run(*args, interrupted).await,
        HookCommand::Lambda(args) => until(interrupted, lambda::run(*args)).await,
    }
}

/// The options that indexing services share.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// A registry (HOST[:PORT] or *.DOMAIN) whose images may be indexed, optionally with a glob for
    /// its repositories; can be repeated
    ///
    /// In the glob, * matches anything but a slash, and ** anything. Other hosts are contacted only
    /// if these registries refer to them (token services and blob stores), and only at public
    /// addresses. A registry named without a wildcard may be at a private address.
    #[arg(
        long,
        value_name = "REGISTRY[/GLOB]",
        env = "OCISEEK_HOOK_ALLOW",
        value_delimiter = ',',
        required = true
    )]
    #[arg(help_heading = "Allowed images")]
    pub allow: Vec<Allow>,

    /// Also allow private addresses for the listed registries and the hosts they refer to
    #[arg(long, env = "OCISEEK_HOOK_ALLOW_PRIVATE", value_parser = parse::switch)]
    #[arg(help_heading = "Allowed images")]
    pub allow_private: bool,

    /// Skip images whose layers total more than this across all platforms
    #[arg(
        long,
        value_name = "SIZE",
        env = "OCISEEK_HOOK_MAX_IMAGE_SIZE",
        default_value = "100GiB"
    )]
    #[arg(help_heading = "Allowed images")]
    pub max_image_size: ByteSize,

    #[command(flatten)]
    pub unattended: UnattendedArgs,

    /// How many images to index in parallel
    #[arg(long, value_name = "N", env = "OCISEEK_HOOK_WORKERS", default_value = "2")]
    #[arg(value_parser = parse::number::<u16>(1, 256), help_heading = "Jobs")]
    pub workers: u16,

    #[command(flatten, next_help_heading = "Jobs")]
    pub layer_jobs: LayerJobsArgs,

    /// How long to finish running jobs after a signal to stop
    #[arg(
        long,
        value_name = "DURATION",
        env = "OCISEEK_HOOK_DRAIN_TIMEOUT",
        default_value = "20s"
    )]
    #[arg(value_parser = parse::duration_of(0, 86_400), help_heading = "Jobs")]
    pub drain_timeout: Duration,

    /// How long to wait before a failed job is retried; six times as long before each later try
    #[arg(long, value_name = "DURATION", env = "OCISEEK_HOOK_RETRY_WAIT", default_value = "5s")]
    #[arg(value_parser = parse::duration_of(0, 3600), help_heading = "Jobs")]
    pub retry_wait: Duration,

    /// Append a JSON line to this file for each failed image; it is also in the log
    #[arg(long, value_name = "FILE", env = "OCISEEK_HOOK_DEAD_LETTER", help_heading = "Jobs")]
    pub dead_letter: Option<PathBuf>,

    #[command(flatten)]
    pub cache: CacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

fn address(listener: &TcpListener) -> Result<String, CliError> {
    Ok(listener.local_addr().map_err(CliError::start)?.to_string())
}

/// The runner of jobs.
async fn runner(args: JobArgs) -> Result<Runner, CliError> {
    let Unattended { index: options, versions, reuse_from } =
        args.unattended.options(args.layer_jobs.count())?;
    let progress: Arc<dyn Progress> = Arc::new(LogProgress);
    let cache = caches::ztocs(&args.cache, &progress).await;
    let dead = args.dead_letter.map(|path| {
        let opened = dead_letters(&path);
        opened.map_err(CliError::write(&path))
    });
    // A pattern matches any number of registries.
    let registries = if args.allow.iter().any(|allow| allow.registry().is_none()) {
        Registries::Several
    } else {
        Registries::of(args.allow.iter().filter_map(Allow::registry))
    };
    let config = client_config(args.registry, registries, &progress).await?;
    let max_image_size = Some(args.max_image_size.0);
    let context = |client| JobContext {
        client,
        cache,
        options,
        versions,
        max_image_size,
        reuse_from,
        progress,
    };
    let allow = AllowList::new(args.allow, args.allow_private);
    let runner = Runner::new(config, context, allow, dead.transpose()?, args.retry_wait, job_hint);
    Ok(runner.map_err(StoreError::from)?)
}

/// Connects to the queue. Changes of the connection are logged.
#[cfg(feature = "nats")]
async fn connect(url: &QueueUrl) -> Result<NatsQueue, CliError> {
    let on_change = |change: ConnectionChange| match change {
        ConnectionChange::Lost => warn!(name: "queue", target: TARGET, error = change.to_string()),
        ConnectionChange::Back => {
            info!(name: "queue", target: TARGET, message = change.to_string())
        }
    };
    Ok(NatsQueue::connect(url, on_change).await?)
}
