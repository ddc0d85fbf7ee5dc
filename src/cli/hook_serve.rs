//! `ociseek hook serve` and `ociseek hook worker`.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::args::HookServeArgs;
use super::args_serve::JobArgs;
use super::index::unattended;
use super::report::CliError;
use super::signals::Interrupt;
use super::source::{Registries, client_config};
use super::{caches, secret_file};
use crate::hook::allow::{Allow, AllowList};
#[cfg(feature = "nats")]
use crate::hook::http::{PATIENCE, monitor};
use crate::hook::job::Context;
use crate::hook::log::Log;
#[cfg(feature = "nats")]
use crate::hook::queue::{Change, Queue, QueueUrl, Worker};
use crate::hook::runner::{Runner, dead_letters};
use crate::hook::secret::Secrets;
use crate::hook::server::sink::{Here, Sink};
use crate::hook::server::{Listeners, ServerConfig, listen, listen_to_all, serve};
use crate::ops::TOOL_IDENTIFIER;
use crate::progress::Progress;
use crate::store::StoreError;

pub async fn run(args: HookServeArgs, interrupted: &mut oneshot::Receiver<Interrupt>) -> Result<(), CliError> {
    let secrets = match (&args.secret_file, &args.secret) {
        (Some(file), _) => Some(secret_file::secrets(file)?),
        (None, Some(secret)) => Some(Secrets::parse(secret)?),
        (None, None) => None,
    };
    let config = ServerConfig {
        secrets,
        rate: args.rate,
        workers: args.jobs.workers.into(),
        patience: Duration::from_secs(args.client_timeout.into()),
        drain: Duration::from_secs(args.jobs.drain_timeout.into()),
    };
    let log = Log::new(io::stderr());
    let notifications = listen(args.listen, &config).await?;
    let monitor = match args.metrics_listen {
        Some(address) => Some(listen_to_all(address).await?),
        None => None,
    };
    let allowed: Vec<String> = args.jobs.allow.iter().map(ToString::to_string).collect();
    let runner = Arc::new(runner(args.jobs, log.clone()).await?);
    let here = || Here::new(args.queue_size as usize, args.journal.as_deref()).map(Sink::Here);
    #[cfg(feature = "nats")]
    let sink = match &args.queue {
        Some(url) => Sink::Queue(connect(url, &log).await?),
        None => here()?,
    };
    #[cfg(not(feature = "nats"))]
    let sink = here()?;
    let queued = sink.here().map(|here| here.backlog.lengths().0);
    let mut fields =
        json!({"tool": TOOL_IDENTIFIER, "address": address(&notifications)?, "allow": allowed, "queued": queued});
    if let Some(monitor) = &monitor {
        fields["metrics"] = json!(address(monitor)?);
    }
    log.info("listening", fields);
    let stop = async {
        let _ = interrupted.await;
    };
    serve(Listeners { notifications, monitor }, runner, sink, config, stop).await;
    Ok(())
}

/// `ociseek hook worker`.
#[cfg(feature = "nats")]
pub async fn work(
    args: super::args::HookWorkerArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    let (workers, drain) = (args.jobs.workers.into(), Duration::from_secs(args.jobs.drain_timeout.into()));
    let log = Log::new(io::stderr());
    let listener = match args.listen {
        Some(address) => Some(listen_to_all(address).await?),
        None => None,
    };
    let runner = Arc::new(runner(args.jobs, log.clone()).await?);
    let queue = connect(&args.queue, &log).await?;
    let mut fields = json!({"tool": TOOL_IDENTIFIER, "queue": args.queue.to_string()});
    if let Some(listener) = &listener {
        fields["address"] = json!(address(listener)?);
    }
    log.info("working", fields);
    let stop = async {
        let _ = interrupted.await;
    };
    let worker = Arc::new(Worker::new(queue, runner));
    let monitored = async {
        match listener {
            Some(listener) => monitor(listener, Arc::clone(&worker), Duration::from_secs(PATIENCE.into())).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        done = worker.work(workers, drain, stop) => Ok(done?),
        () = monitored => Ok(()),
    }
}

/// The queue. That its connection is lost, and is back, is a line in the log.
#[cfg(feature = "nats")]
async fn connect(url: &QueueUrl, log: &Log) -> Result<Queue, CliError> {
    let log = log.clone();
    let tell = move |change: Change| match change {
        Change::Lost => log.warn("queue", json!({"error": change.to_string()})),
        Change::Back => log.info("queue", json!({"message": change.to_string()})),
    };
    Ok(Queue::connect(url, tell).await?)
}

fn address(listener: &TcpListener) -> Result<String, CliError> {
    Ok(listener.local_addr().map_err(CliError::Start)?.to_string())
}

/// What does the jobs.
async fn runner(args: JobArgs, log: Log) -> Result<Runner, CliError> {
    let progress: Arc<dyn Progress> = Arc::new(log.clone());
    let cpus = || std::thread::available_parallelism().map_or(1, NonZero::get);
    let jobs = args.jobs.map_or_else(cpus, usize::from);
    let options = unattended(args.platform, &args.build, args.min_layer_size, jobs, &args.reuse);
    let cache = caches::ztocs(&args.cache, &progress).await;
    let dead = args.dead_letter.map(|path| {
        let opened = dead_letters(&path);
        opened.map_err(|source| CliError::Write { path, source })
    });
    // A pattern stands for as many registries as there are hosts that it fits.
    let registries = if args.allow.iter().any(|allow| allow.registry().is_none()) {
        Registries::Several
    } else {
        Registries::of(args.allow.iter().filter_map(Allow::registry))
    };
    let config = client_config(args.registry, registries, &progress).await?;
    let max_image_size = Some(args.max_image_size.0);
    let reuse_from = args.reuse.reuse_from;
    let context = |client| Context { client, cache, options, max_image_size, reuse_from, progress };
    let allow = AllowList::new(args.allow, args.allow_private);
    let runner = Runner::new(config, context, allow, dead.transpose()?, log);
    Ok(runner.map_err(StoreError::from)?)
}
