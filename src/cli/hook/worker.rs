//! `ociseek hook worker`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::oneshot;
use tracing::info;

use crate::cli::hook::{JobArgs, address, connect, runner};
use crate::cli::shared::error::CliError;
use crate::cli::shared::parse;
use crate::cli::shared::signals::Interrupt;
use ociseek_hook::http::{PATIENCE, monitor};
use ociseek_hook::log::TARGET;
use ociseek_hook::nats::{QueueUrl, Worker};
use ociseek_hook::server::listen_openly;
use ociseek_ops::TOOL_IDENTIFIER;

const WORKER_LONG_ABOUT: &str = "\
Takes jobs from a NATS JetStream work queue, filled by ociseek hook serve --queue and ociseek backfill --queue, and \
indexes the images.

Any number of workers can run. A job is acknowledged once its index is attached. A busy worker reports progress; after \
--silence without one, another worker gets the job. Jobs that fail permanently are moved to the stream \
NAME-parked with the reason: nats stream view ociseek-parked.

Use the same --kind for the commands that fill the queue: if it contains {tag}, each tag of an image is a job.";

const WORKER_AFTER_HELP: &str = "\
Example:
  nats-server -js &
  export OCISEEK_KIND='v2={tag}-soci' OCISEEK_QUEUE=nats://localhost
  export OCISEEK_HOOK_ALLOW=registry.corp.example
  ociseek hook serve &
  ociseek hook worker";

/// Index images from a queue that many workers share
#[derive(Debug, Args)]
#[command(long_about = WORKER_LONG_ABOUT, after_help = WORKER_AFTER_HELP)]
#[command(
    override_usage = "ociseek hook worker [OPTIONS] --queue <nats://HOST[:PORT][/STREAM]> --allow <REGISTRY[/GLOB]>"
)]
pub(crate) struct HookWorkerArgs {
    /// The queue; credentials go before the host, as USER:PASSWORD@ or TOKEN@; tls:// is NATS over
    /// TLS
    ///
    /// Other users of this machine can see command lines: prefer the environment variable for a URL
    /// with a password.
    #[arg(
        long,
        value_name = "nats://HOST[:PORT][/STREAM]",
        env = "OCISEEK_QUEUE",
        hide_env_values = true
    )]
    pub queue: QueueUrl,

    /// Serve /healthz, /readyz and /metrics (Prometheus) on this address [default: none]
    #[arg(long, value_name = "IP:PORT", env = "OCISEEK_HOOK_WORKER_LISTEN", value_parser = parse::listen)]
    pub listen: Option<SocketAddr>,

    /// After how long without a report a worker is considered dead and its job goes to another
    ///
    /// The first worker of a queue sets this for all workers. A busy worker reports three times in
    /// this period.
    #[arg(long, value_name = "DURATION", env = "OCISEEK_HOOK_SILENCE", default_value = "30s")]
    #[arg(value_parser = parse::duration_of(3, 3600))]
    pub silence: Duration,

    #[command(flatten)]
    pub jobs: JobArgs,
}

pub(crate) async fn run(
    args: HookWorkerArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    let workers = args.jobs.workers.into();
    let drain = args.jobs.drain_timeout;
    // What is wrong with the command line is said before a port is taken.
    let runner = Arc::new(runner(args.jobs).await?);
    let listener = match args.listen {
        Some(address) => Some(listen_openly(address).await?),
        None => None,
    };
    let url = args.queue;
    let queue = connect(&url).await?;
    let worker = Arc::new(Worker::new(queue, runner, args.silence).await?);
    let address = listener.as_ref().map(address).transpose()?;
    info!(name: "working", target: TARGET, tool = TOOL_IDENTIFIER, queue = url.to_string(), address);
    let stop = async {
        let _ = interrupted.await;
    };
    let monitored = async {
        match listener {
            Some(listener) => {
                monitor(listener, Arc::clone(&worker), Duration::from_secs(PATIENCE.into())).await
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = worker.work(workers, drain, stop) => {}
        () = monitored => {}
    }
    Ok(())
}
