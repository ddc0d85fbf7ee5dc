//! `ociseek hook worker`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::info;

use crate::cli::hook::error::HookError;
use crate::cli::hook::jobs::{address, connect, runner};
use crate::cli::shared::error::CliError;
use crate::cli::shared::signals::Interrupt;
use args::HookWorkerArgs;
use ociseek_hook::http::{PATIENCE, monitor};
use ociseek_hook::log::TARGET;
use ociseek_hook::queue::Worker;
use ociseek_hook::server::listen_openly;
use ociseek_ops::TOOL_IDENTIFIER;

pub(crate) mod args;

pub(crate) async fn run(args: HookWorkerArgs, interrupted: &mut oneshot::Receiver<Interrupt>) -> Result<(), CliError> {
    let (workers, drain) = (args.jobs.workers.into(), Duration::from_secs(args.jobs.drain_timeout.into()));
    let silence = Duration::from_secs(args.silence.into());
    let listener = match args.listen {
        Some(address) => Some(listen_openly(address).await.map_err(HookError::from)?),
        None => None,
    };
    let runner = Arc::new(runner(args.jobs).await?);
    let Some(url) = args.queue.or(args.hook_queue) else {
        return Err(CliError::Usage("give --queue nats://HOST"));
    };
    let queue = connect(&url).await?;
    let worker = Arc::new(Worker::new(queue, runner, silence).await.map_err(HookError::from)?);
    let address = listener.as_ref().map(address).transpose()?;
    info!(name: "working", target: TARGET, tool = TOOL_IDENTIFIER, queue = url.to_string(), address);
    let stop = async {
        let _ = interrupted.await;
    };
    let monitored = async {
        match listener {
            Some(listener) => monitor(listener, Arc::clone(&worker), Duration::from_secs(PATIENCE.into())).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = worker.work(workers, drain, stop) => {}
        () = monitored => {}
    }
    Ok(())
}
