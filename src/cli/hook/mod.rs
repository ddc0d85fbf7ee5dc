//! `ociseek hook`: services that index images as they are pushed.

use clap::Subcommand;

use lambda::args::HookLambdaArgs;
use serve::args::HookServeArgs;
#[cfg(feature = "nats")]
use worker::args::HookWorkerArgs;

mod jobs;
pub mod lambda;
mod secret_file;
pub mod serve;
#[cfg(feature = "nats")]
pub mod worker;

/// Index images as they are pushed
#[derive(Debug, Subcommand)]
pub enum HookCommand {
    Serve(Box<HookServeArgs>),
    #[cfg(feature = "nats")]
    Worker(Box<HookWorkerArgs>),
    Lambda(Box<HookLambdaArgs>),
}
