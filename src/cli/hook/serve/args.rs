//! What can be typed behind `ociseek hook serve`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

use crate::cli::hook::jobs::JobArgs;
use crate::hook::http::PATIENCE;
#[cfg(feature = "nats")]
use crate::hook::queue::QueueUrl;

const SERVE_LONG_ABOUT: &str = "\
Takes the push notifications of registries over HTTP, and indexes what was pushed.

It understands distribution (events v1 and v2), zot, Harbor, Quay, GitHub packages, Azure Container Registry (webhook and Event \
Grid), Google Artifact Registry (Pub/Sub push), Amazon ECR (EventBridge API destination), Docker Hub, JFrog Artifactory, and \
{\"image\": \"REGISTRY/REPOSITORY:TAG\"}. docs/hook.md has a configuration for each.

POST / takes a notification. It is answered with 202 when the image is in the queue, and 429 or 503 with Retry-After when there \
is no room. With --v2 it writes SOCI-enabled images too. Its own pushes, artifacts and deletions are ignored; an image that is pushed many times is indexed once. \
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
    #[arg(long, value_name = "nats://HOST[:PORT][/STREAM]", env = "OCISEEK_QUEUE", hide_env_values = true)]
    #[arg(conflicts_with = "journal", help_heading = "What is accepted")]
    pub queue: Option<QueueUrl>,

    /// The variable that --queue had here before `backfill` and the hooks agreed on one.
    #[cfg(feature = "nats")]
    #[arg(long, env = "OCISEEK_HOOK_QUEUE", hide = true, hide_env_values = true, conflicts_with = "journal")]
    pub hook_queue: Option<QueueUrl>,
}
