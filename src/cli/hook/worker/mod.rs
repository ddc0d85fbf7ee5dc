//! `ociseek hook worker`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;

use crate::cli::hook::error::HookError;
use crate::cli::hook::jobs::{address, connect, runner};
use crate::cli::shared::report::CliError;
use crate::cli::shared::signals::Interrupt;
use crate::hook::http::{PATIENCE, monitor};
use crate::hook::log::Log;
use crate::hook::queue::Worker;
use crate::hook::server::listen_to_all;
use crate::ops::TOOL_IDENTIFIER;
use args::HookWorkerArgs;

pub mod args;

pub async fn run(args: HookWorkerArgs, interrupted: &mut oneshot::Receiver<Interrupt>) -> Result<(), CliError> {
    let (workers, drain) = (args.jobs.workers.into(), Duration::from_secs(args.jobs.drain_timeout.into()));
    let silence = Duration::from_secs(args.silence.into());
    let log = Log::new(io::stderr());
    let listener = match args.listen {
        Some(address) => Some(listen_to_all(address).await.map_err(HookError::from)?),
        None => None,
    };
    let runner = Arc::new(runner(args.jobs, log.clone()).await?);
    let Some(url) = args.queue.or(args.hook_queue) else {
        return Err(CliError::Usage("want --queue nats://HOST"));
    };
    let queue = connect(&url, &log).await?;
    let worker = Arc::new(Worker::new(queue, runner, silence).await.map_err(HookError::from)?);
    let mut fields = json!({"tool": TOOL_IDENTIFIER, "queue": url.to_string()});
    if let Some(listener) = &listener {
        fields["address"] = json!(address(listener)?);
    }
    log.info("working", fields);
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
