//! `ociseek snapshotter`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use futures_util::FutureExt;
use rustix::process::geteuid;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::{info, warn};
use url::Url;

use crate::cli::image_fs::LazyArgs;
use crate::cli::shared::args::FormatArgs;
use crate::cli::shared::caches::{self, NODE_CACHE};
use crate::cli::shared::error::{CliError, DONE};
use crate::cli::shared::notify;
use crate::cli::shared::parse;
use crate::cli::shared::progress::Display;
use crate::cli::shared::signals::{self, Interrupt};
use crate::cli::shared::size::ByteSize;
use crate::cli::shared::source::check_hosts;
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::trust::{LazyFromArgs, of_a_node};
use crate::cli::shared::verbosity::{LogLevel, VerbosityArgs};
use crate::cli::{blocking, until};
use ociseek_format::image::ImageName;
use ociseek_format::progress::Progress;
use ociseek_node::{CallObserver, ImageService, PullingPods, Snapshotter, UnnamedListener, serve};
use ociseek_store::registry::PulledLogins;

pub(crate) use config::ConfigFileError;
use events::{ApiServer, PodEvents};
use images::{NodeImages, NodeSettings};
use install::{InstallArgs, UninstallArgs};
use metrics::{MonitoredSnapshotter, SnapshotterMetrics};
use reload::Reloading;
use status::{ImagesArgs, StatusArgs};

mod config;
mod containerd;
pub(super) mod doctor;
mod events;
mod host;
mod images;
mod install;
mod metrics;
mod reads;
mod reload;
mod room;
pub(crate) mod status;

/// A start takes less, unless it waits for a disk.
const SLOW_START: Duration = Duration::from_secs(5);

const SNAPSHOTTER_LONG_ABOUT: &str = "\
Serves containerd as a snapshotter: containers start before their image is pulled, through its fine or SOCI index. The \
image does not change.

containerd pulls only the manifest and the config of an image with an index. The first container over it mounts the \
image. Another process keeps the mounts, so that containers outlive the snapshotter (Linux 6.9). Images whose index \
covers less than 80% of their bytes, or whose index is not trusted, are pulled and unpacked as by overlayfs.

Images are read as by ociseek mount, with the same options. Only those of the repositories that --lazy-from names, or \
that a key signed, start lazily: whoever can push there decides what their containers see.

Needs root and /dev/fuse, and must see the mounts that containerd sees. docs/snapshotter.md has the configuration of \
containerd, and what does not work yet.";

const SNAPSHOTTER_AFTER_HELP: &str = "\
Examples:
  ociseek snapshotter --lazy-from 'registry.example/team/*'
  ociseek snapshotter --print-config > /etc/ociseek/snapshotter.toml
  ociseek snapshotter --config /etc/ociseek/snapshotter.toml
  ociseek snapshotter status --config /etc/ociseek/snapshotter.toml

Exit status: 0 stopped by SIGINT or SIGTERM, 1 failure, 2 usage error.";

/// Where containerd has its `hosts.toml` by default.
const CONTAINERD_HOSTS: &str = "/etc/containerd/certs.d";
/// Start containers in containerd before their image is pulled
#[derive(Debug, Args)]
#[command(long_about = SNAPSHOTTER_LONG_ABOUT, after_long_help = SNAPSHOTTER_AFTER_HELP)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
#[command(mut_args(of_a_node))]
pub(crate) struct SnapshotterArgs {
    /// The socket to listen on
    #[arg(long, value_name = "PATH", default_value = "/run/ociseek/snapshotter.sock")]
    #[arg(value_parser = parse::socket)]
    pub socket: PathBuf,

    /// Where snapshots are kept; created if it is missing
    #[arg(long, value_name = "DIR", default_value = "/var/lib/ociseek/snapshotter")]
    pub root: PathBuf,

    /// Read options from this TOML file
    ///
    /// Its keys are the long names of the options. Options of the command line and variables of the
    /// environment have precedence. Unknown keys are errors. On SIGHUP, the snapshotter reads it
    /// again, and does not end.
    #[arg(long, value_name = "FILE", env = "OCISEEK_SNAPSHOTTER_CONFIG")]
    pub config: Option<PathBuf>,

    /// Print a configuration file with all options and their defaults as comments, and exit
    #[arg(long)]
    pub print_config: bool,

    /// The socket of containerd: it knows in which other repositories an image is, if the first one
    /// does not have it any more
    #[arg(long, value_name = "PATH", default_value = "/run/containerd/containerd.sock")]
    #[arg(value_parser = parse::socket)]
    pub containerd: PathBuf,

    /// Serve /healthz, /readyz and /metrics (for Prometheus) on this address
    ///
    /// There is no authentication: use an address of this machine only, such as 127.0.0.1:9464,
    /// unless a firewall keeps others out.
    #[arg(long, value_name = "IP:PORT", env = "OCISEEK_SNAPSHOTTER_METRICS_LISTEN", value_parser = parse::listen)]
    pub metrics_listen: Option<SocketAddr>,

    /// How much memory to use, for all mounts together; suffixes KiB, MiB, GiB
    ///
    /// It is divided equally among the mounts. What a mount does not need for its list of files and
    /// its buffers is for content, from 1 to 64 MiB (docs/snapshotter.md).
    #[arg(long, value_name = "SIZE", env = "OCISEEK_SNAPSHOTTER_MEMORY", default_value = "512MiB")]
    #[arg(value_parser = parse::memory)]
    pub memory: ByteSize,

    /// Record what is read in this time after an image is mounted, for `index --profile`
    ///
    /// Each image has a file in the directory `starts` of --root. Images whose fine index has a
    /// recorded startup are left out (docs/snapshotter.md).
    #[arg(long, value_name = "DURATION", env = "OCISEEK_SNAPSHOTTER_RECORD_STARTS")]
    #[arg(value_parser = parse::duration_of(1, 3600))]
    pub record_starts: Option<Duration>,

    /// Take the logins of pulls, such as imagePullSecrets, by serving containerd's image service
    ///
    /// Set kubelet's option image-service-endpoint to --socket. Calls are passed on unchanged to
    /// --containerd. A login is in memory only, and is used for the repository of its pull
    /// (docs/kubernetes.md).
    #[arg(long, env = "OCISEEK_SNAPSHOTTER_IMAGE_SERVICE", value_parser = parse::switch)]
    pub image_service: bool,

    /// Create an event on each pod whose image is pulled whole, at this Kubernetes API server
    ///
    /// Needs --image-service, which knows the pod of a pull (docs/kubernetes.md).
    #[arg(long, value_name = "URL", env = "OCISEEK_SNAPSHOTTER_EVENTS_API_SERVER")]
    #[arg(value_parser = events::api_server)]
    pub events_api_server: Option<Url>,

    /// The folder with the token for --events-api-server, and with ca.crt, its authority
    #[arg(long, value_name = "DIR", default_value = events::LOGIN)]
    pub events_login: PathBuf,

    /// The most that all mounts together receive from registries in a second, such as 200Mbit
    #[arg(long, value_name = "SPEED", env = "OCISEEK_SNAPSHOTTER_BANDWIDTH", value_parser = parse::link)]
    pub bandwidth: Option<u64>,

    /// The least severe lines of the log
    ///
    /// -v, -q and OCISEEK_LOG have precedence.
    #[arg(long, value_name = "LEVEL", env = "OCISEEK_SNAPSHOTTER_LOG_LEVEL", value_enum)]
    #[arg(default_value_t = LogLevel::Info)]
    pub log_level: LogLevel,

    #[command(flatten)]
    pub lazy_from: LazyFromArgs,

    #[command(flatten)]
    pub lazy: LazyArgs,

    #[command(subcommand)]
    pub command: Option<SnapshotterCommand>,
}

/// The commands beside the snapshotter itself.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotterCommand {
    Status(StatusArgs),
    Images(ImagesArgs),
    Install(InstallArgs),
    Uninstall(UninstallArgs),
}

impl SnapshotterCommand {
    /// How it prints, if it does.
    pub(crate) fn format(&self) -> Option<FormatArgs> {
        match self {
            SnapshotterCommand::Status(args) => Some(args.format),
            SnapshotterCommand::Images(args) => Some(args.format),
            SnapshotterCommand::Install(_) | SnapshotterCommand::Uninstall(_) => None,
        }
    }

    fn run(self) -> Result<(), CliError> {
        match self {
            SnapshotterCommand::Status(args) => status::status(args),
            SnapshotterCommand::Images(args) => status::images(args),
            SnapshotterCommand::Install(args) => install::run(args),
            SnapshotterCommand::Uninstall(args) => install::uninstall(args),
        }
    }
}

pub(crate) async fn run(
    args: SnapshotterArgs,
    verbosity: VerbosityArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    if let Some(command) = args.command {
        return until(interrupted, blocking(move || command.run())).await;
    }
    if args.print_config {
        return Stdout::new().print(config::printed());
    }
    let configured = match args.config.clone() {
        Some(path) => Some((config::table(&path).map_err(ConfigFileError::at(&path))?, path)),
        None => None,
    };
    let args = match &configured {
        Some((table, path)) => {
            config::args(table, std::env::args_os()).map_err(ConfigFileError::at(path))?
        }
        None => args,
    };
    // One that comes before the server serves does not end it, either.
    let hangups = configured.as_ref().map(|_| signals::hangups()).transpose();
    let hangups = hangups.map_err(CliError::start)?;
    verbosity.set_log_level(args.log_level);
    let SnapshotterArgs { socket, root, containerd, metrics_listen, memory, image_service, .. } =
        &args;
    let login = args.events_login.clone();
    let api = args.events_api_server.clone().map(|address| ApiServer { address, login });
    let socket = socket.clone();
    let root = root.clone();
    let containerd = containerd.clone();
    let (metrics_listen, memory, serves_images) = (*metrics_listen, memory.0, *image_service);
    let settings = settings(args)?;
    let progress: Arc<dyn Progress> = Arc::new(Display::new(verbosity));
    // Nothing is created for a server that cannot listen.
    let listener = UnnamedListener::bind(&socket).map_err(CliError::write(&socket))?;
    let monitoring = metrics::listening(metrics_listen).await?;
    let caches = caches::reading(&settings.lazy.cache, &progress).await?;
    let metrics = Arc::<SnapshotterMetrics>::default();
    let counted = Arc::clone(&metrics);
    let cache = caches.spans.clone();
    let pulls = serves_images.then(PulledLogins::default);
    let pods = PullingPods::default();
    let (events, creating) = api.map(|api| PodEvents::new(api, pods.clone())).unzip();
    let mut images = NodeImages::new(settings, caches, progress, Arc::clone(&metrics));
    images.pulls.clone_from(&pulls);
    images.events = events;
    images.containerd.clone_from(&containerd);
    let images = Arc::new(images);
    let forgetting = Arc::clone(&images).forget_old();
    let judging = Arc::clone(&images);
    let image_service = pulls.map(|logins| ImageService {
        containerd,
        logins,
        pods,
        is_wanted: Arc::new(move |image| {
            judging.settings().word.rules_for(&ImageName::Registry(image.clone())).is_ok()
        }),
    });
    let waiting = tokio::spawn(say_what_it_waits_for(root.clone()));
    let snapshotter = Snapshotter::open(&root, Arc::<NodeImages>::clone(&images), memory).await;
    let snapshotter =
        Arc::new(snapshotter.map_err(CliError::at(&root, "the snapshotter cannot use it"))?);
    let service = MonitoredSnapshotter { metrics, snapshotter: Arc::clone(&snapshotter), cache };
    let monitored = metrics::served(monitoring, service);
    let listener = listener.named(|socket| snapshotter.keep_socket(socket));
    waiting.abort();
    let listener = listener.map_err(CliError::write(&socket))?;
    let reloading = configured.map(|(table, path)| Reloading {
        path,
        started: table.clone(),
        table,
        verbosity,
        images,
        snapshotter: Arc::clone(&snapshotter),
    });
    let reloading = async {
        match reloading.zip(hangups) {
            Some((reloading, hangups)) => reloading.at_hangups(hangups).await,
            None => std::future::pending().await,
        }
    };
    let creating = async {
        match creating {
            Some(creating) => creating.await,
            None => std::future::pending().await,
        }
    };
    info!(name: "listening", socket = %socket.display(), "listening");
    notify::ready();
    let observer: CallObserver = Arc::new(move |call| metrics::count(&counted, call));
    let serving = serve(snapshotter, listener, observer, image_service, interrupted.map(|_| ()));
    let ended = tokio::select! {
        ended = serving => ended.map_err(CliError::start),
        () = monitored => Ok(()),
        never = forgetting => match never {},
        never = reloading => match never {},
        never = notify::alive(|| true) => match never {},
        never = creating => match never {},
    };
    if ended.is_ok() {
        // Without this, reads that are not answered would fail. The next server answers them.
        std::process::exit(DONE.into());
    }
    ended
}

/// A disk that does not answer keeps the server from starting until it does.
async fn say_what_it_waits_for(root: PathBuf) {
    sleep(SLOW_START).await;
    warn!(name: "state", root = %root.display(), "the start waits, probably for the disk");
}

/// What a configuration says that can be changed while the server runs.
///
/// # Errors
/// If it is not for a node, or nobody vouches for its images.
fn settings(args: SnapshotterArgs) -> Result<NodeSettings, CliError> {
    let SnapshotterArgs { mut lazy, lazy_from, record_starts, bandwidth, .. } = args;
    let SnapshotterArgs { events_api_server, image_service, .. } = args;
    if lazy.stats.is_some() || lazy.view.index.is_some() || lazy.registry.password_stdin {
        return Err(CliError::usage(
            "--stats-file, --index and --password-stdin are for one image",
        ));
    }
    if events_api_server.is_some() && !image_service {
        return Err(CliError::usage(
            "events-api-server needs image-service = true: only the image service knows the pod of a pull",
        ));
    }
    check_hosts(&lazy.registry)?;
    let word = lazy_from.word(&lazy.view.trust)?;
    with_defaults_of_node(&mut lazy, CONTAINERD_HOSTS.as_ref());
    Ok(NodeSettings { word, lazy, record_starts, bandwidth })
}

/// Fills in where a node has its cache and the `hosts.toml` of containerd.
fn with_defaults_of_node(lazy: &mut LazyArgs, containerd: &Path) {
    let cache = &mut lazy.cache.cache.dir.cache_dir;
    if cache.is_none() && geteuid().is_root() {
        *cache = Some(NODE_CACHE.into());
    }
    let hosts = &mut lazy.logins.hosts_dir;
    if hosts.is_none() && containerd.is_dir() {
        *hosts = Some(containerd.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerds_hosts_files_are_read_unless_another_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = |configuration: &str, containerd: &Path| {
            let typed = ["ociseek", "snapshotter"].map(Into::into);
            let mut args = config::args(&configuration.parse().unwrap(), typed).unwrap();
            with_defaults_of_node(&mut args.lazy, containerd);
            args.lazy.logins.hosts_dir
        };
        assert_eq!(hosts("", dir.path()).as_deref(), Some(dir.path()));
        assert_eq!(hosts("hosts-dir = '/other'", dir.path()), Some("/other".into()));
        assert_eq!(hosts("", &dir.path().join("missing")), None);
    }
}
