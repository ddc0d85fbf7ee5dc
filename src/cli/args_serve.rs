//! What can be typed behind `ociseek hook serve` and its workers.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use clap::builder::FalseyValueParser;

use super::args::{BuildArgs, CacheArgs, RegistryArgs};
use super::args_reuse::HookReuseArgs;
use super::size::ByteSize;
use crate::hook::allow::Allow;
use crate::hook::http::PATIENCE;
#[cfg(feature = "nats")]
use crate::hook::queue::QueueUrl;
use crate::image::Platform;

const SERVE_LONG_ABOUT: &str = "\
Takes the push notifications of registries over HTTP, and indexes what was pushed.

It understands distribution (events v1 and v2), zot, Harbor, Quay, GitHub packages, Azure Container Registry (webhook and Event \
Grid), Google Artifact Registry (Pub/Sub push), Amazon ECR (EventBridge API destination), Docker Hub, JFrog Artifactory, and \
{\"image\": \"REGISTRY/REPOSITORY:TAG\"}. docs/hook.md has a configuration for each.

POST / takes a notification. It is answered with 202 when the image is in the queue, and 429 or 503 with Retry-After when there \
is no room. Its own pushes, artifacts and deletions are ignored; an image that is pushed many times is indexed once. \
GET /healthz and /readyz say how it does, and /metrics (Prometheus, with the secret if there is one) what it did; the log, JSON lines, goes to standard error.

TLS is for a proxy in front of it. At SIGTERM it takes no more, and goes on for --drain-timeout with what it took.";

const SERVE_AFTER_HELP: &str = "\
A sender shows the secret as Authorization: Bearer SECRET (or Basic, as the password; or the bare secret, as Harbor sends it), as \
X-Hub-Signature-256: sha256=HMAC of the body (GitHub), or, where it can be told a URL only, as ?token=SECRET.

An event that does not say its registry (zot, JFrog), or says it under a name that is not known here, needs ?registry=HOST.

Examples:
  A registry on this machine, and nobody else:
    ociseek hook serve --allow localhost:5000
    curl -d '{\"image\": \"localhost:5000/app:v1\"}' http://127.0.0.1:8080/

  For the network, with a secret, a journal that survives the process, and one team's repositories:
    openssl rand -hex 32 > secret; chmod 600 secret
    ociseek hook serve --listen 0.0.0.0:8080 --secret-file secret --journal /var/lib/ociseek/journal \\
      --allow 'registry.corp.example/team/**'

Exit status: 0 stopped in good order, 1 it could not start, 2 wrong usage.";

/// Index images when registries say that they were pushed
#[derive(Debug, Args)]
#[command(long_about = SERVE_LONG_ABOUT, after_long_help = SERVE_AFTER_HELP)]
#[command(after_help = "Examples, and how to show the secret: ociseek hook serve --help")]
pub struct HookServeArgs {
    /// The address to listen on; one that others can reach needs a secret
    #[arg(long, value_name = "IP:PORT", env = "OCISEEK_HOOK_LISTEN", default_value = "127.0.0.1:8080")]
    #[arg(help_heading = "Who may ask")]
    pub listen: SocketAddr,

    /// Read the secret from this file; several lines are several secrets
    ///
    /// Its group may read it. Other users may not, except below /run/secrets and on file systems
    /// that are mounted read-only, as Docker and Kubernetes mount secrets.
    #[arg(long, value_name = "FILE", env = "OCISEEK_HOOK_SECRET_FILE", conflicts_with = "secret")]
    #[arg(help_heading = "Who may ask")]
    pub secret_file: Option<PathBuf>,

    /// The secret itself
    ///
    /// Other users of this machine can see a command line: prefer the environment variable, or --secret-file.
    #[arg(long, value_name = "SECRET", env = "OCISEEK_HOOK_SECRET", hide_env_values = true)]
    #[arg(help_heading = "Who may ask")]
    pub secret: Option<String>,

    /// Notifications a second, on average; ten seconds' worth may come at once
    #[arg(long, value_name = "N", env = "OCISEEK_HOOK_RATE", default_value = "100", help_heading = "Who may ask")]
    pub rate: NonZeroU32,

    /// Answer /healthz, /readyz and /metrics on this address too, without asking for the secret
    ///
    /// For Prometheus and for probes. On the address of --listen, /metrics asks for the secret if there is one.
    #[arg(long, value_name = "IP:PORT", env = "OCISEEK_HOOK_METRICS_LISTEN", help_heading = "Who may ask")]
    pub metrics_listen: Option<SocketAddr>,

    /// How many seconds a client may take to send a header or a body, or to accept any part of an answer
    ///
    /// A connection is closed after eight times as long. One address may have 256 of the 512 connections.
    #[arg(long, value_name = "SECONDS", env = "OCISEEK_HOOK_CLIENT_TIMEOUT", default_value_t = PATIENCE)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600), help_heading = "Who may ask")]
    pub client_timeout: u32,

    #[command(flatten)]
    pub jobs: JobArgs,

    /// How many jobs may wait; one repository may have a quarter of them
    #[arg(long, value_name = "N", env = "OCISEEK_HOOK_QUEUE_SIZE", default_value = "10000")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "What is accepted")]
    pub queue_size: u32,

    /// Write down what was accepted and is not done; it is taken up at the next start, however this one ends
    ///
    /// Without it, what is not done when the service stops is written to the dead letters.
    #[arg(long, value_name = "FILE", env = "OCISEEK_HOOK_JOURNAL", help_heading = "What is accepted")]
    pub journal: Option<PathBuf>,

    /// Put jobs into this work queue of NATS JetStream, for ociseek hook worker to do, rather than do them here
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "nats://HOST[:PORT][/STREAM]", env = "OCISEEK_HOOK_QUEUE", hide_env_values = true)]
    #[arg(conflicts_with = "journal", help_heading = "What is accepted")]
    pub queue: Option<QueueUrl>,
}

#[cfg(feature = "nats")]
const WORKER_LONG_ABOUT: &str = "\
Takes jobs out of a work queue of NATS JetStream, into which ociseek hook serve --queue and ociseek backfill put them, and indexes \
the images.

Any number of workers may run. A job is acknowledged when its index is attached; while it is worked on the worker says so every 10 \
seconds, and when nothing was heard for 30 seconds another worker gets it. What fails for good is parked in the stream NAME-parked \
with the reason: nats stream view ociseek-parked.";

#[cfg(feature = "nats")]
const WORKER_AFTER_HELP: &str = "\
Example:
  nats-server -js &
  ociseek hook serve --queue nats://localhost --allow registry.corp.example &
  ociseek hook worker --queue nats://localhost --allow registry.corp.example";

/// Index images from a queue that many workers share
#[cfg(feature = "nats")]
#[derive(Debug, Args)]
#[command(long_about = WORKER_LONG_ABOUT, after_help = WORKER_AFTER_HELP)]
pub struct HookWorkerArgs {
    /// The queue; [USER:PASSWORD@] or [TOKEN@] before the host, tls:// for TLS
    ///
    /// Other users of this machine can see a command line: prefer the environment variable where there is a password.
    #[arg(long, value_name = "nats://HOST[:PORT][/STREAM]", env = "OCISEEK_HOOK_QUEUE", hide_env_values = true)]
    pub queue: QueueUrl,

    /// Answer GET /healthz, /readyz and /metrics (Prometheus) on this address [default: none]
    #[arg(long, value_name = "IP:PORT", env = "OCISEEK_HOOK_WORKER_LISTEN")]
    pub listen: Option<SocketAddr>,

    #[command(flatten)]
    pub jobs: JobArgs,
}

/// What services that index have in common.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// A registry, HOST[:PORT] or *.DOMAIN, whose images may be indexed, and a glob of its repositories; may be repeated
    ///
    /// In the glob, * is anything but a slash and ** anything. No other host is called, but for where these send it: their token
    /// services and blob stores, at public addresses. A registry that is named in full may be at a private address.
    #[arg(long, value_name = "REGISTRY[/GLOB]", env = "OCISEEK_HOOK_ALLOW", value_delimiter = ',', required = true)]
    #[arg(help_heading = "What may be indexed")]
    pub allow: Vec<Allow>,

    /// Go to private addresses too, wherever a registry of the list is or sends us
    #[arg(long, env = "OCISEEK_HOOK_ALLOW_PRIVATE", value_parser = FalseyValueParser::new())]
    #[arg(help_heading = "What may be indexed")]
    pub allow_private: bool,

    /// Leave images alone whose layers have more bytes than this together, of all platforms
    #[arg(long, value_name = "SIZE", env = "OCISEEK_HOOK_MAX_IMAGE_SIZE", default_value = "100GiB")]
    #[arg(help_heading = "What may be indexed")]
    pub max_image_size: ByteSize,

    /// Only this platform, such as linux/arm64; may be repeated [default: all platforms of an image]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_delimiter = ',')]
    #[arg(help_heading = "What is indexed")]
    pub platform: Vec<Platform>,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten)]
    pub reuse: HookReuseArgs,

    /// Leave out layers whose blobs are smaller; 0 indexes all
    #[arg(long, value_name = "SIZE", env = "OCISEEK_MIN_LAYER_SIZE", default_value = "10MiB")]
    #[arg(help_heading = "What is indexed")]
    pub min_layer_size: ByteSize,

    /// How many images are indexed side by side
    #[arg(long, value_name = "N", env = "OCISEEK_HOOK_WORKERS", default_value = "2")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256), help_heading = "Work")]
    pub workers: u16,

    /// How many layers of an image are read side by side [default: one for each CPU]
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", value_parser = clap::value_parser!(u16).range(1..=256))]
    #[arg(help_heading = "Work")]
    pub jobs: Option<u16>,

    /// How many seconds work goes on after a signal to stop
    #[arg(long, value_name = "SECONDS", env = "OCISEEK_HOOK_DRAIN_TIMEOUT", default_value = "20")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=86_400), help_heading = "Work")]
    pub drain_timeout: u32,

    /// Add a JSON line to this file for each image that is given up; the log has it too
    #[arg(long, value_name = "FILE", env = "OCISEEK_HOOK_DEAD_LETTER", help_heading = "Work")]
    pub dead_letter: Option<PathBuf>,

    #[command(flatten)]
    pub cache: CacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}
