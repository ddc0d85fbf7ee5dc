//! `ociseek hook serve`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;
use tracing::info;

use crate::cli::hook::error::HookError;
#[cfg(feature = "nats")]
use crate::cli::hook::jobs::connect;
use crate::cli::hook::jobs::{address, runner};
use crate::cli::hook::secret_file;
use crate::cli::shared::error::CliError;
use crate::cli::shared::signals::Interrupt;
use args::HookServeArgs;
use ociseek_hook::log::TARGET;
use ociseek_hook::secret::Secrets;
use ociseek_hook::server::sink::{JobQueue, LocalQueue};
use ociseek_hook::server::{Listeners, ServerConfig, listen, listen_openly, serve};
use ociseek_ops::TOOL_IDENTIFIER;

pub(crate) mod args;

pub(crate) async fn run(args: HookServeArgs, interrupted: &mut oneshot::Receiver<Interrupt>) -> Result<(), CliError> {
    let secrets = match (&args.secret_file, &args.secret) {
        (Some(file), _) => Some(secret_file::secrets(file)?),
        (None, Some(secret)) => Some(Secrets::parse(secret).map_err(HookError::from)?),
        (None, None) => None,
    };
    let config = ServerConfig {
        secrets,
        rate: args.rate,
        workers: args.jobs.workers.into(),
        patience: Duration::from_secs(args.client_timeout.into()),
        drain: Duration::from_secs(args.jobs.drain_timeout.into()),
    };
    let notifications = listen(args.listen, &config).await.map_err(HookError::from)?;
    let monitor = match args.metrics_listen {
        Some(address) => Some(listen_openly(address).await.map_err(HookError::from)?),
        None => None,
    };
    let allowed: Vec<String> = args.jobs.allow.iter().map(ToString::to_string).collect();
    let runner = Arc::new(runner(args.jobs).await?);
    let local = || {
        let queue = LocalQueue::new(args.queue_size as usize, runner.unit(), args.journal.as_deref());
        queue.map(JobQueue::Local).map_err(HookError::from)
    };
    #[cfg(feature = "nats")]
    let sink = match args.queue.as_ref().or(args.hook_queue.as_ref()) {
        Some(url) => JobQueue::Queue(connect(url).await?.with_unit(runner.unit())),
        None => local()?,
    };
    #[cfg(not(feature = "nats"))]
    let sink = local()?;
    info!(
        name: "listening", target: TARGET,
        tool = TOOL_IDENTIFIER,
        address = address(&notifications)?,
        metrics = monitor.as_ref().map(address).transpose()?,
        allow.json = json!(allowed).to_string(),
        queued = sink.local().map(|queue| queue.backlog.lengths().0),
    );
    let stop = async {
        let _ = interrupted.await;
    };
    serve(Listeners { notifications, monitor }, runner, sink, config, stop).await;
    Ok(())
}
