//! `ociseek snapshotter`.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::task::block_in_place;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::cli::image_fs::LazyArgs;
use crate::cli::image_fs::detach::read_output;
use crate::cli::shared::args::FormatArgs;
use crate::cli::shared::error::CliError;
use crate::cli::shared::progress::Display;
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::size::ByteSize;
use crate::cli::shared::source::Images;
use crate::cli::shared::terminal::Stdout;
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::shared::{caches, parse};
use crate::cli::{blocking, until};
use ociseek_format::digest::Digest;
use ociseek_format::image::ImageName;
use ociseek_format::progress::{Progress, causes, sources};
use ociseek_ops::ahead::{Fetching, FetchingAhead, IndexCoverage, coverage};
use ociseek_ops::mount::start_keeper;
use ociseek_ops::mount_server::StartRecord;
use ociseek_rootfs::cache::PIECE;
use ociseek_rootfs::fuse::MountInfo;
use ociseek_rootfs::layers::Caches;
use ociseek_snapshotter::{
    CallObserver, ImageLayers, LazyImages, Listener, MountOrder, Snapshotter, serve,
};
use ociseek_store::StoreError;
use ociseek_store::lock::Hold;
use ociseek_store::recall::Recall;
use ociseek_store::registry::RegistryError;

pub(crate) use config::ConfigFileError;
use install::InstallArgs;
use metrics::{SnapshotterCounter, SnapshotterMetrics};
use status::{ImagesArgs, StatusArgs};

mod config;
mod install;
mod metrics;
pub(crate) mod status;

const SNAPSHOTTER_LONG_ABOUT: &str = "\
Serves containerd as a snapshotter: containers start before their image is pulled, through its fine or SOCI index. The \
image does not change.

containerd pulls only the manifest and the config of an image with an index. The first container over it mounts the \
image, by a background process that outlives the snapshotter. Images whose index covers less than 80% of their bytes, \
or whose index is not trusted, are pulled and unpacked as by overlayfs.

Images are read as by ociseek mount, with the same options. containerd names them by digest, so indexes that only the \
repository vouches for are not used: see --trust.

Needs root and /dev/fuse, and must see the mounts that containerd sees. docs/snapshotter.md has the configuration of \
containerd, and what does not work yet.";

const SNAPSHOTTER_AFTER_HELP: &str = "\
Examples:
  ociseek snapshotter --trust repository
  ociseek snapshotter --print-config > /etc/ociseek/snapshotter.toml
  ociseek snapshotter --config /etc/ociseek/snapshotter.toml
  ociseek snapshotter status --config /etc/ociseek/snapshotter.toml

Exit status: 0 stopped by SIGINT, SIGTERM or SIGHUP, 1 failure, 2 usage error.";

/// Images are mounted if an index covers this share of their bytes.
const COVERED_PERCENT: u64 = 80;
/// For how many images the layers are kept in memory, and for how long: containerd asks for each
/// layer of a pull, and mounts the image soon after that.
const KNOWN: usize = 256;
const KNOWN_FOR: Duration = Duration::from_secs(300);
/// How long a pull waits to learn whether the image has an index. containerd may reach the registry
/// by a mirror that is not configured here. The CRI cancels a pull that makes no progress for a
/// minute or more (`image_pull_progress_timeout`).
const LOOKUP: Duration = Duration::from_secs(20);

/// Start containers in containerd before their image is pulled
#[derive(Debug, Args)]
#[command(long_about = SNAPSHOTTER_LONG_ABOUT, after_long_help = SNAPSHOTTER_AFTER_HELP)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
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
    /// environment have precedence. Unknown keys are errors.
    #[arg(long, value_name = "FILE", env = "OCISEEK_SNAPSHOTTER_CONFIG")]
    pub config: Option<PathBuf>,

    /// Print a configuration file with all options and their defaults as comments, and exit
    #[arg(long)]
    pub print_config: bool,

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
    /// recorded start are left out (docs/snapshotter.md).
    #[arg(long, value_name = "DURATION", env = "OCISEEK_SNAPSHOTTER_RECORD_STARTS")]
    #[arg(value_parser = parse::duration_of(1, 3600))]
    pub record_starts: Option<Duration>,

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
}

impl SnapshotterCommand {
    /// How it prints, if it does.
    pub(crate) fn format(&self) -> Option<FormatArgs> {
        match self {
            SnapshotterCommand::Status(args) => Some(args.format),
            SnapshotterCommand::Images(args) => Some(args.format),
            SnapshotterCommand::Install(_) => None,
        }
    }

    fn run(self) -> Result<(), CliError> {
        match self {
            SnapshotterCommand::Status(args) => status::status(args),
            SnapshotterCommand::Images(args) => status::images(args),
            SnapshotterCommand::Install(args) => install::run(args),
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
    let typed = std::env::args_os();
    let (args, arguments) = match args.config.clone() {
        Some(path) => config::read(&path, typed).map_err(ConfigFileError::at(&path))?,
        None => (args, typed.collect()),
    };
    if args.lazy.stats.is_some()
        || args.lazy.view.index.is_some()
        || args.lazy.registry.password_stdin
    {
        return Err(CliError::Usage(
            "--stats-file, --index and --password-stdin are for one image",
        ));
    }
    let progress: Arc<dyn Progress> = Arc::new(Display::new(verbosity));
    let caches = caches::reading(&args.lazy.cache, &progress).await?;
    let mount = mount_options(arguments.into_iter().skip(1));
    let metrics = Arc::<SnapshotterMetrics>::default();
    let known = Mutex::default();
    let counted = Arc::clone(&metrics);
    let root = std::path::absolute(&args.root).map_err(CliError::Start)?;
    let lazy = args.lazy;
    let record_starts = args.record_starts;
    let metered = Arc::clone(&metrics);
    let ahead = FetchingAhead::new(caches.clone(), LOOKUP);
    let images = MountedByProcess {
        lazy,
        caches,
        ahead,
        progress,
        mount,
        known,
        metrics: metered,
        root,
        record_starts,
    };
    let snapshotter = Snapshotter::open(&args.root, Arc::new(images), args.memory.0).await;
    let snapshotter =
        Arc::new(snapshotter.map_err(|source| CliError::Snapshots { path: args.root, source })?);
    let monitored = metrics::served(args.metrics_listen, &metrics, &snapshotter).await?;
    let listener = Listener::bind(&args.socket);
    let listener =
        listener.map_err(|source| CliError::Write { path: args.socket.clone(), source })?;
    info!(socket = %args.socket.display(), "listening");
    let observer: CallObserver = Arc::new(move |call| metrics::count(&counted, call));
    tokio::select! {
        ended = serve(snapshotter, listener, observer, interrupted.map(|_| ())) => ended.map_err(CliError::Start),
        () = monitored => Ok(()),
    }
}

/// The options with a value that `mount` does not have.
const OWN_OPTIONS: [&str; 6] =
    ["--socket", "--root", "--config", "--metrics-listen", "--memory", "--record-starts"];

/// This command's options that are also those of `mount`.
fn mount_options(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut options = Vec::new();
    let mut is_own_value = false;
    for argument in arguments {
        let is_own = OWN_OPTIONS.iter().any(|own| {
            let rest = argument.as_encoded_bytes().strip_prefix(own.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'=')
        });
        if is_own {
            is_own_value = !argument.as_encoded_bytes().contains(&b'=');
        } else if !std::mem::take(&mut is_own_value) && argument != OsStr::new("snapshotter") {
            options.push(argument);
        }
    }
    options
}

/// Mounts images by `ociseek mount --detach`.
struct MountedByProcess {
    lazy: LazyArgs,
    caches: Caches,
    ahead: FetchingAhead,
    progress: Arc<dyn Progress>,
    mount: Vec<OsString>,
    /// Images that were looked up, by name with digest.
    known: Mutex<HashMap<String, KnownImage>>,
    metrics: Arc<SnapshotterMetrics>,
    root: PathBuf,
    record_starts: Option<Duration>,
}

/// An image that was looked up.
#[derive(Clone)]
struct KnownImage {
    at: Instant,
    layers: ImageLayers,
    /// What the registry said of it.
    answers: Recall,
    /// What is being fetched of it.
    fetching: Fetching,
}

impl MountedByProcess {
    /// What is known of an image since a short time.
    fn known(&self, image: &str) -> Option<KnownImage> {
        self.known.hold().get(image).filter(|known| known.at.elapsed() < KNOWN_FOR).cloned()
    }

    async fn coverage(&self, name: &str, answers: &Recall) -> Result<IndexCoverage, CliError> {
        let parsed = ImageName::from_str(name);
        let image =
            parsed.map_err(|source| CliError::ImageName { typed: name.to_owned(), source })?;
        let images = Images::new(self.lazy.registry()?, [&image], &self.progress).await?;
        let (source, root) = images.open(&image).await?;
        let source = source.recalling(answers);
        Ok(coverage(&source, &root, &self.lazy.open_options(&image)?, &self.caches, &self.progress)
            .await?)
    }

    /// Starts `ociseek mount`, and waits until the image is mounted.
    async fn mounted(&self, order: MountOrder<'_>) -> Result<OwnedFd, String> {
        let failed = |error: io::Error| format!("cannot start ociseek mount: {error}");
        let MountOrder { layer, point, log, fetched, answers, share, device, answers_xattrs } =
            order;
        if let Some(known) = self.known(&layer.image) {
            if !answers.exists() {
                // Without the file, the process asks the registry.
                let _ = block_in_place(|| known.answers.write(answers));
            }
            known.fetching.lock(answers);
        }
        let stdin = device.device.try_clone().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("mount").args(&self.mount).args(["--detach", "--detached", "--replace"]);
        command
            .args(["--allow-other", "--suid", "--dev", "--kept"])
            .arg(&device.identity)
            .arg("--fetched")
            .arg(fetched);
        // glibc then returns pieces of content to the kernel, and does not keep memory for each
        // thread. Other allocators ignore this.
        command.env("MALLOC_ARENA_MAX", "1").env("MALLOC_MMAP_THRESHOLD_", PIECE.to_string());
        command.arg("--share").arg(share).arg("--answers").arg(answers);
        command.args(device.is_mounted.then_some("--take-over"));
        command.args(answers_xattrs.then_some("--answer-xattrs"));
        // A server that replaces another one would see only a part of the start.
        if let (Some(time), false) = (self.record_starts, device.is_mounted || answers_xattrs)
            && let Some(file) = StartRecord::file_of(&self.root, &layer.image)
        {
            command
                .arg("--start-record")
                .arg(file)
                .arg(format!("--start-time={}s", time.as_secs()));
        }
        command.arg("--log").arg(log).arg("--lowest-layers").arg(layer.layers.to_string());
        command
            .arg(&layer.image)
            .arg(point)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let (Some(pid), Some(stdout), Some(mut stderr)) =
            (pid, child.stdout.take(), child.stderr.take())
        else {
            return Err("ociseek mount has no output".to_owned());
        };
        let server = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        let mut talk = Vec::new();
        let (output, read) =
            tokio::join!(read_output(BufReader::new(stdout)), stderr.read_to_end(&mut talk));
        if output.and_then(|output| read.map(|_| output.is_ready)).map_err(failed)? {
            return Ok(server);
        }
        Err(why(&String::from_utf8_lossy(&talk)))
    }
}

impl LazyImages for MountedByProcess {
    fn layers<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Option<ImageLayers>> {
        Box::pin(async move {
            if let Some(known) = self.known(image) {
                return Some(known.layers);
            }
            let answers = Recall::default();
            let found = match timeout(LOOKUP, self.coverage(image, &answers)).await {
                Ok(Ok(found)) => found,
                Ok(Err(error)) if needs_login(&error) => {
                    let hint = "log in as the user of the snapshotter, or give it kubelet's credential providers: \
                        it does not receive the logins of a pull, such as imagePullSecrets";
                    warn!(image, error = causes(&error), hint, "is unpacked");
                    self.metrics.count(SnapshotterCounter::Unpacked, "login");
                    return None;
                }
                Ok(Err(error)) => {
                    warn!(image, error = causes(&error), "is unpacked");
                    self.metrics.count(SnapshotterCounter::Unpacked, "failed");
                    return None;
                }
                Err(_) => {
                    let error =
                        format!("the registry did not answer within {} s", LOOKUP.as_secs());
                    warn!(image, error, "is unpacked");
                    self.metrics.count(SnapshotterCounter::Unpacked, "failed");
                    return None;
                }
            };
            let IndexCoverage { bytes, indexed, .. } = found;
            if indexed == 0 || indexed < bytes / 100 * COVERED_PERCENT {
                info!(image, bytes, indexed, "is unpacked");
                let reason = if indexed == 0 { "no-index" } else { "coverage" };
                self.metrics.count(SnapshotterCounter::Unpacked, reason);
                return None;
            }
            let layers = ImageLayers {
                digests: found.layers.iter().map(|layer| layer.digest.to_string()).collect(),
                chains: chains(&found.diff_ids),
            };
            let mut known = self.known.hold();
            if known.len() >= KNOWN {
                known.clear();
            }
            let fetching = self.ahead.start(found.documents);
            known.insert(
                image.to_owned(),
                KnownImage { at: Instant::now(), layers: layers.clone(), answers, fetching },
            );
            Some(layers)
        })
    }

    fn mount<'a>(&'a self, order: MountOrder<'a>) -> BoxFuture<'a, Result<OwnedFd, String>> {
        let is_replacement = order.device.is_mounted;
        Box::pin(async move {
            let mounted = self.mounted(order).await;
            let (done, counter) = if is_replacement {
                ("replaced", SnapshotterCounter::Replacements)
            } else {
                ("mounted", SnapshotterCounter::Mounts)
            };
            self.metrics.count(counter, if mounted.is_ok() { done } else { "failed" });
            mounted
        })
    }

    fn keep(&self, mount: &MountInfo, device: &OwnedFd) -> io::Result<OwnedFd> {
        start_keeper(mount, device)
    }
}

/// Whether the registry wants a login that may read the image.
fn needs_login(error: &CliError) -> bool {
    sources(error).any(|cause| {
        let refused = match cause.downcast_ref() {
            Some(StoreError::Registry(error)) => Some(error),
            _ => cause.downcast_ref::<RegistryError>(),
        };
        matches!(refused.and_then(RegistryError::status), Some(401 | 403))
    })
}

/// Why `ociseek mount` failed, from what it wrote to standard error. Hints are for its own options.
fn why(talk: &str) -> String {
    let lines =
        talk.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("hint:"));
    let lines: Vec<&str> = lines.map(|line| line.strip_prefix("error: ").unwrap_or(line)).collect();
    if lines.is_empty() { "ociseek mount failed".to_owned() } else { lines.join("; ") }
}

/// The chain IDs of the OCI image specification (config.md, "Layer ChainID").
fn chains(diff_ids: &[Digest]) -> Vec<String> {
    let mut chains: Vec<String> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        let above =
            |below: &String| Digest::sha256(format!("{below} {diff_id}").as_bytes()).to_string();
        chains.push(chains.last().map_or_else(|| diff_id.to_string(), above));
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_mount_are_passed_on_without_hints() {
        let talk = "warning: slow\nerror: cannot read it\n\nhint: check it\n";
        assert_eq!(why(talk), "warning: slow; cannot read it");
        assert_eq!(why(""), "ociseek mount failed");
    }

    #[test]
    fn mount_gets_the_options_but_for_its_own() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let given = words(
            "-v snapshotter --socket /s --trust repository --root=/r --cache-dir /c --plain-http",
        );
        assert_eq!(
            mount_options(given.into_iter()),
            words("-v --trust repository --cache-dir /c --plain-http")
        );
    }
}
