//! What can be typed behind `ociseek hook worker`.

use std::net::SocketAddr;

use clap::Args;

use crate::cli::hook::jobs::JobArgs;
use crate::hook::queue::QueueUrl;

const WORKER_LONG_ABOUT: &str = "\
Takes jobs out of a work queue of NATS JetStream, into which ociseek hook serve --queue and ociseek backfill put them, and indexes \
the images.

Any number of workers may run. A job is acknowledged when its index is attached; while it is worked on the worker says so, and \
when nothing was heard for --silence seconds another worker gets it. What fails for good is parked in the stream NAME-parked \
with the reason: nats stream view ociseek-parked.

Give --v2 or --v2-only to those that fill the queue too: with {tag} in it, each tag of an image is a job.";

const WORKER_AFTER_HELP: &str = "\
Example:
  nats-server -js &
  ociseek hook serve --queue nats://localhost --allow registry.corp.example &
  ociseek hook worker --queue nats://localhost --allow registry.corp.example";

/// Index images from a queue that many workers share
#[derive(Debug, Args)]
#[command(long_about = WORKER_LONG_ABOUT, after_help = WORKER_AFTER_HELP)]
#[command(
    override_usage = "ociseek hook worker [OPTIONS] --queue <nats://HOST[:PORT][/STREAM]> --allow <REGISTRY[/GLOB]>"
)]
pub struct HookWorkerArgs {
    /// The queue; [USER:PASSWORD@] or [TOKEN@] before the host, tls:// for TLS
    ///
    /// Other users of this machine can see a command line: prefer the environment variable where there is a password.
    #[arg(long, value_name = "nats://HOST[:PORT][/STREAM]", env = "OCISEEK_QUEUE", hide_env_values = true)]
    #[arg(required_unless_present = "hook_queue")]
    pub queue: Option<QueueUrl>,

    /// The variable that --queue had here before `backfill` and the hooks agreed on one.
    #[arg(long, env = "OCISEEK_HOOK_QUEUE", hide = true, hide_env_values = true)]
    pub hook_queue: Option<QueueUrl>,

    /// Answer GET /healthz, /readyz and /metrics (Prometheus) on this address [default: none]
    #[arg(long, value_name = "IP:PORT", env = "OCISEEK_HOOK_WORKER_LISTEN")]
    pub listen: Option<SocketAddr>,

    /// After how many seconds of silence a worker is taken for dead, and its job goes to another
    ///
    /// The first worker of a queue decides this for all of them. A worker that is busy says so three times in this time.
    #[arg(long, value_name = "SECONDS", env = "OCISEEK_HOOK_SILENCE", default_value = "30")]
    #[arg(value_parser = clap::value_parser!(u32).range(3..=3600))]
    pub silence: u32,

    #[command(flatten)]
    pub jobs: JobArgs,
}
