//! `ociseek hook serve`.

use std::io;
use std::num::NonZero;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;

use super::args::HookServeArgs;
use super::args_serve::JobArgs;
use super::caches;
use super::index::unattended;
use super::report::CliError;
use super::signals::Interrupt;
use super::source::{Registries, client_config};
use crate::hook::allow::{Allow, AllowList};
use crate::hook::job::Context;
use crate::hook::log::Log;
#[cfg(feature = "nats")]
use crate::hook::queue::Queue;
use crate::hook::runner::{Runner, dead_letters};
use crate::hook::secret::Secrets;
use crate::hook::server::sink::{Here, Sink};
use crate::hook::server::{ServerConfig, listen, serve};
use crate::ops::TOOL_IDENTIFIER;
use crate::progress::Progress;
use crate::store::StoreError;

pub async fn run(args: HookServeArgs, interrupted: &mut oneshot::Receiver<Interrupt>) -> Result<(), CliError> {
    let secrets = match (&args.secret_file, &args.secret) {
        (Some(file), _) => Some(secrets_of(file)?),
        (None, Some(secret)) => Some(Secrets::parse(secret)?),
        (None, None) => None,
    };
    let config = ServerConfig {
        secrets,
        rate: args.rate,
        workers: args.jobs.workers.into(),
        drain: Duration::from_secs(args.jobs.drain_timeout.into()),
    };
    let log = Log::new(io::stderr());
    let listener = listen(args.listen, &config).await?;
    let allowed: Vec<String> = args.jobs.allow.iter().map(ToString::to_string).collect();
    let runner = Arc::new(runner(args.jobs, log.clone()).await?);
    let here = || Here::new(args.queue_size as usize, args.journal.as_deref()).map(Sink::Here);
    #[cfg(feature = "nats")]
    let sink = match &args.queue {
        Some(url) => Sink::Queue(Queue::connect(url).await?),
        None => here()?,
    };
    #[cfg(not(feature = "nats"))]
    let sink = here()?;
    let address = listener.local_addr().map_err(CliError::Start)?.to_string();
    let queued = sink.here().map(|here| here.backlog.lengths().0);
    let fields = json!({"tool": TOOL_IDENTIFIER, "address": address, "allow": allowed, "queued": queued});
    log.info("listening", fields);
    let stop = async {
        let _ = interrupted.await;
    };
    serve(listener, runner, sink, config, stop).await;
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
    let runner = Arc::new(runner(args.jobs, log.clone()).await?);
    let queue = Queue::connect(&args.queue).await?;
    log.info("working", json!({"tool": TOOL_IDENTIFIER, "queue": args.queue.to_string()}));
    let stop = async {
        let _ = interrupted.await;
    };
    Ok(queue.work(runner, workers, drain, stop).await?)
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

/// The secrets in a file that is its owner's alone.
fn secrets_of(path: &Path) -> Result<Secrets, CliError> {
    let unreadable = |source| CliError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(CliError::OpenSecret { path: path.to_owned(), mode });
    }
    let text = io::read_to_string(io::Read::take(file, 64 << 10)).map_err(unreadable)?;
    Secrets::parse(&text).map_err(|source| CliError::SecretFile { path: path.to_owned(), source })
}
