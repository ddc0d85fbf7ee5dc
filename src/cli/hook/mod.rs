//! `ociseek hook`: services that index images as they are pushed.

use clap::Subcommand;
use tokio::sync::oneshot;

#[cfg(feature = "lambda")]
use crate::cli::run::until;
use crate::cli::shared::error::CliError;
use crate::cli::shared::signals::Interrupt;
#[cfg(feature = "lambda")]
use lambda::HookLambdaArgs;
use serve::HookServeArgs;
#[cfg(feature = "nats")]
use worker::HookWorkerArgs;

mod jobs;
#[cfg(feature = "lambda")]
pub(super) mod lambda;
mod secret_file;
pub(super) mod serve;
#[cfg(feature = "nats")]
pub(super) mod worker;

/// Index images as they are pushed
#[derive(Debug, Subcommand)]
pub(super) enum HookCommand {
    Serve(Box<HookServeArgs>),
    #[cfg(feature = "nats")]
    Worker(Box<HookWorkerArgs>),
    #[cfg(feature = "lambda")]
    Lambda(Box<HookLambdaArgs>),
}

/// Runs a service until it is stopped, and then ends it gracefully.
pub(super) async fn run(command: HookCommand, interrupted: &mut oneshot::Receiver<Interrupt>) -> Result<(), CliError> {
    match command {
        HookCommand::Serve(args) => serve::run(*args, interrupted).await,
        #[cfg(feature = "nats")]
        HookCommand::Worker(args) => worker::run(*args, interrupted).await,
        #[cfg(feature = "lambda")]
        HookCommand::Lambda(args) => until(interrupted, lambda::run(*args)).await,
    }
}
