//! `ociseek hook serve`, and the files with its secrets: who else can read them is checked.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::fs::{StatVfsMountFlags, fstatvfs};
use serde_json::json;
use tokio::sync::oneshot;
use tracing::info;

#[cfg(feature = "nats")]
use crate::cli::hook::connect;
use crate::cli::hook::{JobArgs, address, runner};
use crate::cli::shared::error::CliError;
use crate::cli::shared::parse;
use crate::cli::shared::signals::Interrupt;
use ociseek_hook::http::PATIENCE;
use ociseek_hook::log::TARGET;
#[cfg(feature = "nats")]
use ociseek_hook::nats::QueueUrl;
use ociseek_hook::secret::Secrets;
use ociseek_hook::server::queue::{JobQueue, LocalQueue};
use ociseek_hook::server::{Listeners, ServerConfig, listen, listen_openly, serve};
use ociseek_ops::TOOL_IDENTIFIER;

// The default of --client-timeout.
const _: () = assert!(PATIENCE == 15);

const SERVE_LONG_ABOUT: &str = "\
Receives push notifications from registries over HTTP and indexes the pushed images.

It understands distribution (events v1 and v2), zot, Harbor, Quay, GitHub packages, Azure Container Registry \
(webhook and Event Grid), Google Artifact Registry (Pub/Sub push), Amazon ECR (EventBridge API destination), Docker \
Hub, JFrog Artifactory, and {\"image\": \"REGISTRY/REPOSITORY:TAG\"}. docs/hook-operations.md has a \
configuration for each.

POST / accepts a notification. The answer is 202 once the image is queued, or 429 or 503 with Retry-After if the \
queue is full. With --kind v2=TAG it writes SOCI-enabled images. Its own pushes, artifacts and deletions are \
ignored; an image pushed many times is indexed once. GET /healthz and /readyz are health endpoints, and /metrics \
serves Prometheus metrics (which require the secret, if one is set). The log goes to standard error as JSON lines.

Put a reverse proxy in front of it for TLS. On SIGTERM it stops accepting notifications and finishes accepted jobs for \
up to --drain-timeout.";

const SERVE_AFTER_HELP: &str = "\
Senders pass the secret as Authorization: Bearer SECRET (or Basic, as the password; or the bare secret, as Harbor \
sends it), as X-Hub-Signature-256: sha256=HMAC of the body (GitHub), or, if they can only be given a URL, as \
?token=SECRET.

For events that do not name their registry (zot, JFrog), or use a name that is unknown here, add ?registry=HOST.

Examples:
  Only a registry on this machine:
    ociseek hook serve --kind 'v2={tag}-soci' --allow localhost:5000
    curl -d '{\"image\": \"localhost:5000/app:v1\"}' http://127.0.0.1:8080/

  On the network, with a secret, a persistent journal, and one team's repositories:
    openssl rand -hex 32 > secret; chmod 600 secret
    ociseek hook serve --kind 'v2={tag}-soci' --listen 0.0.0.0:8080 --secret-file secret \\
      --journal /var/lib/ociseek/journal --allow 'registry.corp.example/team/**'

Exit status: 0 stopped normally, 1 could not start, 2 usage error.";

/// Index images on push notifications from registries
#[derive(Args)]
#[command(long_about = SERVE_LONG_ABOUT, after_long_help = SERVE_AFTER_HELP)]
pub(crate) struct HookServeArgs {
    /// The address to listen on; a public one requires a secret
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "OCISEEK_HOOK_LISTEN",
        default_value = "127.0.0.1:8080"
    )]
    #[arg(value_parser = parse::listen, help_heading = "Server and authentication")]
    pub listen: SocketAddr,

    /// Read the secret from this file; each line is a valid secret
    ///
    /// The file must not be readable by others (its group is fine), except under /run/secrets and
    /// on read-only file systems, where Docker and Kubernetes mount secrets.
    #[arg(long, value_name = "FILE", env = "OCISEEK_HOOK_SECRET_FILE", conflicts_with = "secret")]
    #[arg(help_heading = "Server and authentication")]
    pub secret_file: Option<PathBuf>,

    /// The secret
    ///
    /// Other users of this machine can see command lines: prefer the environment variable or
    /// --secret-file.
    #[arg(long, value_name = "SECRET", env = "OCISEEK_HOOK_SECRET", hide_env_values = true)]
    #[arg(help_heading = "Server and authentication")]
    pub secret: Option<String>,

    /// Maximum notifications per second on average; bursts of ten seconds' worth are allowed
    #[arg(
        long,
        value_name = "N",
        env = "OCISEEK_HOOK_RATE",
        default_value = "100",
        help_heading = "Server and authentication"
    )]
    pub rate: NonZeroU32,

    /// Also serve /healthz, /readyz and /metrics on this address, without requiring the secret
    ///
    /// For Prometheus and probes. On the --listen address, /metrics requires the secret if one is
    /// set.
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "OCISEEK_HOOK_METRICS_LISTEN",
        value_parser = parse::listen,
        help_heading = "Server and authentication"
    )]
    pub metrics_listen: Option<SocketAddr>,

    /// How long a client may take to send the headers or body, or to accept part of the response
    ///
    /// Connections are closed after eight times as long. One address can have 256 of the 512
    /// connections.
    #[arg(
        long,
        value_name = "DURATION",
        env = "OCISEEK_HOOK_CLIENT_TIMEOUT",
        default_value = "15s"
    )]
    #[arg(value_parser = parse::duration_of(1, 3600), help_heading = "Server and authentication")]
    pub client_timeout: Duration,

    #[command(flatten)]
    pub jobs: JobArgs,

    /// Maximum number of waiting jobs; one repository can have a quarter of them
    #[arg(long, value_name = "N", env = "OCISEEK_HOOK_QUEUE_SIZE", default_value = "10000")]
    #[arg(value_parser = parse::number::<u32>(1, 1_000_000), help_heading = "Queue")]
    pub queue_size: u32,

    /// Record accepted jobs in this file until they are done; unfinished ones resume at the next
    /// start
    ///
    /// Without a journal, jobs that are unfinished when the service stops go to the dead letters.
    #[arg(long, value_name = "FILE", env = "OCISEEK_HOOK_JOURNAL", help_heading = "Queue")]
    pub journal: Option<PathBuf>,

    /// Put jobs into this NATS JetStream work queue, for ociseek hook worker, instead of running
    /// them here
    #[cfg(feature = "nats")]
    #[arg(
        long,
        value_name = "nats://HOST[:PORT][/STREAM]",
        env = "OCISEEK_QUEUE",
        hide_env_values = true
    )]
    #[arg(conflicts_with = "journal", help_heading = "Queue")]
    pub queue: Option<QueueUrl>,
}

ociseek_format::opaque_debug!(HookServeArgs);

pub(crate) async fn run(
    args: HookServeArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    let secrets = match (&args.secret_file, &args.secret) {
        (Some(file), _) => Some(secrets(file)?),
        (None, Some(secret)) => {
            let secrets = Secrets::parse(secret);
            Some(secrets.map_err(|error| {
                CliError::because("the secret is not valid", error).with_hint(NEW_SECRET)
            })?)
        }
        (None, None) => None,
    };
    let config = ServerConfig {
        secrets,
        rate: args.rate,
        workers: args.jobs.workers.into(),
        patience: args.client_timeout,
        drain: args.jobs.drain_timeout,
    };
    let allowed: Vec<String> = args.jobs.allow.iter().map(ToString::to_string).collect();
    // What is wrong with the command line is said before a port is taken.
    let runner = Arc::new(runner(args.jobs).await?);
    let notifications = listen(args.listen, &config).await?;
    let monitor = match args.metrics_listen {
        Some(address) => Some(listen_openly(address).await?),
        None => None,
    };
    let local = || {
        let queue =
            LocalQueue::new(args.queue_size as usize, runner.unit(), args.journal.as_deref());
        queue.map(JobQueue::Local)
    };
    #[cfg(feature = "nats")]
    let sink = match &args.queue {
        Some(url) => JobQueue::Nats(connect(url).await?.with_unit(runner.unit())),
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

/// Where container runtimes mount secrets. They decide who else in the container may read them.
const MOUNTED: [&str; 2] = ["/run/secrets", "/var/run/secrets"];

const NEW_SECRET: &str = "generate a secret with openssl rand -hex 32";

/// The secrets in a file.
///
/// The file's group may read it. Everyone may read it only if the user cannot choose its mode:
/// below [`MOUNTED`], and on a read-only file system, as used by Kubernetes.
///
/// # Errors
/// If it cannot be read, others can read or write it, or it contains no secret.
fn secrets(path: &Path) -> Result<Secrets, CliError> {
    let unreadable = |error| CliError::read(path)(error);
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
    if let Some(what) = open_to_others(mode, || is_mounted(path, &file)) {
        return Err({
            let shown = path.display();
            let problem = format!("{shown}: other users can {what} this secret (mode {mode:o})");
            CliError::new(problem).with_hint(format!("chmod 600 {shown}"))
        });
    }
    let text = io::read_to_string(io::Read::take(file, 64 << 10)).map_err(unreadable)?;
    Secrets::parse(&text).map_err(|error| {
        CliError::at(path, "not a usable secret file")(error).with_hint(NEW_SECRET)
    })
}

/// The access that a file's mode wrongly gives to others.
fn open_to_others(mode: u32, is_mounted: impl Fn() -> bool) -> Option<&'static str> {
    match mode {
        mode if mode & 0o022 != 0 => Some("write"),
        mode if mode & 0o004 != 0 && !is_mounted() => Some("read"),
        _ => None,
    }
}

fn is_mounted(path: &Path, file: &File) -> bool {
    let is_read_only =
        fstatvfs(file).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::RDONLY));
    // The path may contain symbolic links.
    is_read_only
        || path
            .canonicalize()
            .is_ok_and(|path| MOUNTED.iter().any(|mounted| path.starts_with(mounted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_files_that_others_can_read_are_refused() {
        for (mode, elsewhere, mounted) in [
            (0o400, None, None),
            (0o600, None, None),
            (0o440, None, None),
            (0o640, None, None),
            (0o444, Some("read"), None),
            (0o644, Some("read"), None),
            (0o604, Some("read"), None),
            (0o660, Some("write"), Some("write")),
            (0o666, Some("write"), Some("write")),
        ] {
            assert_eq!(open_to_others(mode, || false), elsewhere, "{mode:o}");
            assert_eq!(open_to_others(mode, || true), mounted, "{mode:o}");
        }
    }
}
