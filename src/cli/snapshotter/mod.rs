//! `ociseek snapshotter`.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustix::process::geteuid;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::cli::image_fs::LazyArgs;
use crate::cli::shared::args::{FormatArgs, RegistryArgs};
use crate::cli::shared::caches::{self, NODE_CACHE};
use crate::cli::shared::error::{CliError, DONE};
use crate::cli::shared::notify;
use crate::cli::shared::parse;
use crate::cli::shared::progress::Display;
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::size::ByteSize;
use crate::cli::shared::source::{Images, check_hosts};
use crate::cli::shared::terminal::Stdout;
use crate::cli::shared::trust::{LazyFromArgs, of_a_node};
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::{blocking, until};
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::{ImageName, Reference};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_ops::ahead::{DocumentsAhead, Fetching, FetchingAhead};
use ociseek_ops::judge::{JudgedLayer, NotLazy, judge};
use ociseek_ops::lazy_from::LazyFrom;
use ociseek_ops::open::{LayerChoice, OpenOptions, open};
use ociseek_ops::trust::NotedDocuments;
use ociseek_rootfs::content::ContentOptions;
use ociseek_rootfs::fuse::release_freed_memory;
use ociseek_rootfs::layers::Caches;
use ociseek_snapshotter::{
    ANSWER, CallObserver, ImageLayers, ImageService, LazyImages, LazyStack, Listener, MountAttempt,
    OpenedLayers, ServingOptions, Snapshotter, repositories_with, serve,
};
use ociseek_store::Source;
use ociseek_store::lock::Hold;
use ociseek_store::recall::Recall;
use ociseek_store::registry::{FindRepositories, LoginOfPull, PulledLogins};

pub(crate) use config::ConfigFileError;
use install::{InstallArgs, UninstallArgs};
use metrics::{SnapshotterCounter, SnapshotterMetrics};
use status::{ImagesArgs, StatusArgs};

mod config;
mod containerd;
pub(super) mod doctor;
mod host;
mod install;
mod metrics;
pub(crate) mod status;

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

Exit status: 0 stopped by SIGINT, SIGTERM or SIGHUP, 1 failure, 2 usage error.";

/// Where containerd has its `hosts.toml` by default.
const CONTAINERD_HOSTS: &str = "/etc/containerd/certs.d";
/// How long containerd may take to say where else an image is.
const CONTAINERD: Duration = Duration::from_secs(5);
/// For how many images the layers are kept in memory, and for how long: containerd asks for each
/// layer of a pull, and mounts the image soon after that.
const KNOWN: usize = 256;
const KNOWN_FOR: Duration = Duration::from_secs(300);
/// The memory for what the registry said of an image, and of all, in bytes.
const ANSWERS: u64 = 4 << 20;
const ALL_ANSWERS: u64 = 32 << 20;
/// How long a pull waits to learn whether the image has an index. containerd may reach the registry
/// by a mirror that is not configured here. The CRI cancels a pull that makes no progress for a
/// minute or more (`image_pull_progress_timeout`).
const LOOKUP: Duration = Duration::from_secs(15);
/// Otherwise the call would fail, and the pull with it, and nobody would unpack the image.
const _: () = assert!(LOOKUP.as_secs() + 4 < ANSWER.as_secs());

/// The logins of pulls do not outlive the snapshotter.
const LOGIN_IS_GONE: &str = "the logins of pulls are in memory only, and a restart of the snapshotter loses them: \
                             pull the image once more, as a pod with imagePullPolicy: Always does";

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
    /// environment have precedence. Unknown keys are errors.
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
    /// recorded start are left out (docs/snapshotter.md).
    #[arg(long, value_name = "DURATION", env = "OCISEEK_SNAPSHOTTER_RECORD_STARTS")]
    #[arg(value_parser = parse::duration_of(1, 3600))]
    pub record_starts: Option<Duration>,

    /// Take the logins of pulls, such as imagePullSecrets, by serving containerd's image service
    ///
    /// PATH is containerd's socket. Kubelet's option image-service-endpoint names --socket then.
    /// Calls are passed on unchanged. A login is in memory only, and is used for the repository of
    /// its pull (docs/kubernetes.md).
    #[arg(long, value_name = "PATH", env = "OCISEEK_SNAPSHOTTER_IMAGE_SERVICE")]
    #[arg(value_parser = parse::socket)]
    pub image_service: Option<PathBuf>,

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
    let typed = std::env::args_os();
    let mut args = match args.config.clone() {
        Some(path) => config::read(&path, typed).map_err(ConfigFileError::at(&path))?,
        None => args,
    };
    if args.lazy.stats.is_some()
        || args.lazy.view.index.is_some()
        || args.lazy.registry.password_stdin
    {
        return Err(CliError::Usage(
            "--stats-file, --index and --password-stdin are for one image",
        ));
    }
    check_hosts(&args.lazy.registry)?;
    let word = args.lazy_from.word(&args.lazy.view.trust)?;
    with_defaults_of_node(&mut args.lazy);
    let progress: Arc<dyn Progress> = Arc::new(Display::new(verbosity));
    let caches = caches::reading(&args.lazy.cache, &progress).await?;
    let metrics = Arc::<SnapshotterMetrics>::default();
    let counted = Arc::clone(&metrics);
    let pulls = args.image_service.is_some().then(PulledLogins::default);
    let containerd = args.image_service.clone().unwrap_or(args.containerd);
    let images = Arc::new(NodeImages {
        pulls: pulls.clone(),
        containerd,
        record_starts: args.record_starts,
        ..NodeImages::new(word, args.lazy, caches, progress, Arc::clone(&metrics))
    });
    let forgetting = Arc::clone(&images).forget_old();
    let judging = Arc::clone(&images);
    let image_service = args.image_service.zip(pulls).map(|(containerd, logins)| ImageService {
        containerd,
        logins,
        is_wanted: Arc::new(move |image| {
            judging.word.rules_for(&ImageName::Registry(image.clone())).is_ok()
        }),
    });
    let snapshotter = Snapshotter::open(&args.root, images, args.memory.0).await;
    let snapshotter =
        Arc::new(snapshotter.map_err(|source| CliError::Snapshots { path: args.root, source })?);
    let monitored = metrics::served(args.metrics_listen, &metrics, &snapshotter).await?;
    let listener = Listener::bind(&args.socket);
    let listener =
        listener.map_err(|source| CliError::Write { path: args.socket.clone(), source })?;
    info!(socket = %args.socket.display(), "listening");
    notify::ready();
    let observer: CallObserver = Arc::new(move |call| metrics::count(&counted, call));
    let serving = serve(snapshotter, listener, observer, image_service, interrupted.map(|_| ()));
    let ended = tokio::select! {
        ended = serving => ended.map_err(CliError::Start),
        () = monitored => Ok(()),
        never = forgetting => match never {},
    };
    if ended.is_ok() {
        // Without this, reads that are not answered would fail. The next server answers them.
        std::process::exit(DONE.into());
    }
    ended
}

/// Fills in where a node has its cache and the `hosts.toml` of containerd.
fn with_defaults_of_node(lazy: &mut LazyArgs) {
    let cache = &mut lazy.cache.cache.dir.cache_dir;
    if cache.is_none() && geteuid().is_root() {
        *cache = Some(NODE_CACHE.into());
    }
    let hosts = &mut lazy.logins.hosts_dir;
    if hosts.is_none() && Path::new(CONTAINERD_HOSTS).is_dir() {
        *hosts = Some(CONTAINERD_HOSTS.into());
    }
}

/// Judges and opens the images of this node.
struct NodeImages {
    word: LazyFrom,
    /// The logins of pulls, if kubelet gives them.
    pulls: Option<PulledLogins>,
    lazy: LazyArgs,
    caches: Caches,
    ahead: FetchingAhead,
    progress: Arc<dyn Progress>,
    /// Images that were looked up, by name with digest.
    known: Mutex<HashMap<String, KnownImage>>,
    metrics: Arc<SnapshotterMetrics>,
    record_starts: Option<Duration>,
    /// The memory for opening, of all images together.
    opening: Budget,
    /// Its socket.
    containerd: PathBuf,
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

impl NodeImages {
    /// By these options, without the logins of pulls, records of starts and containerd's socket.
    fn new(
        word: LazyFrom,
        lazy: LazyArgs,
        caches: Caches,
        progress: Arc<dyn Progress>,
        metrics: Arc<SnapshotterMetrics>,
    ) -> NodeImages {
        NodeImages {
            ahead: FetchingAhead::new(caches.clone(), LOOKUP),
            opening: Budget::new(lazy.registry.memory.max_memory.0),
            known: Mutex::default(),
            pulls: None,
            record_starts: None,
            containerd: PathBuf::new(),
            word,
            lazy,
            caches,
            progress,
            metrics,
        }
    }

    /// What is known of an image since a short time.
    fn known(&self, image: &str) -> Option<KnownImage> {
        self.known.hold().get(image).filter(|known| known.at.elapsed() < KNOWN_FOR).cloned()
    }

    /// The layers of an image that starts lazily, and what opening it reads first.
    async fn judged(
        &self,
        name: &str,
        answers: &Recall,
    ) -> Result<(Vec<JudgedLayer>, DocumentsAhead), NotLazy> {
        let image = ImageName::from_str(name).map_err(|source| {
            NotLazy::of(&CliError::ImageName { typed: name.to_owned(), source })
        })?;
        let trust = self.word.rules_for(&image)?;
        let judging = |registry: RegistryArgs| {
            let trust = trust.clone();
            let image = &image;
            async move {
                let images = Images::new(registry, [image], &self.progress).await?;
                let (source, root) = images.open(image).await?;
                // The image is often opened right after this.
                let source = source
                    .recalling(answers)
                    .with_budget(self.opening.clone())
                    .with_documents_in(&self.caches.ztocs);
                let options = OpenOptions { trust, ..self.lazy.open_options(image)? };
                let judged = judge(&source, &root, &options, &self.caches, &self.progress).await?;
                let documents = DocumentsAhead::of(&source, &judged, &options);
                Ok::<_, CliError>((judged, documents))
            }
        };
        let (judged, documents) = match timeout(LOOKUP, self.with_logins(&image, judging)).await {
            Ok(judged) => judged.map_err(|error| NotLazy::of(&error))?,
            Err(_) => return Err(NotLazy::Silent(LOOKUP)),
        };
        Ok((judged.lazy_layers()?, documents))
    }

    /// Reads an image with each login of its pulls, until one may read it, and then with those of
    /// the node.
    async fn with_logins<T, Reading>(
        &self,
        image: &ImageName,
        read: impl Fn(RegistryArgs) -> Reading,
    ) -> Result<T, CliError>
    where
        Reading: Future<Output = Result<T, CliError>>,
    {
        let registry = self.lazy.registry()?;
        for login in self.logins_of(image) {
            let has_login = login.has_login();
            let read = read(RegistryArgs { pull: Some(login), ..registry.clone() }).await;
            match read {
                Err(error) if has_login && matches!(NotLazy::of(&error), NotLazy::Login(_)) => {}
                read => return read,
            }
        }
        read(registry).await
    }

    fn logins_of(&self, image: &ImageName) -> Vec<LoginOfPull> {
        match (&self.pulls, image) {
            (Some(pulls), ImageName::Registry(image)) => pulls.of(image),
            _ => Vec::new(),
        }
    }

    /// Says why an image is left to containerd.
    fn unpacked(&self, image: &str, reason: &NotLazy) {
        let code = reason.code();
        let why = reason.to_string();
        match (reason, self.hint(reason)) {
            (NotLazy::Login(_) | NotLazy::Silent(_) | NotLazy::Failed(_), hint) => {
                warn!(name: "unpacked", image, reason = code, error = why, hint);
            }
            (_, hint) => info!(name: "unpacked", image, reason = code, message = why, hint),
        }
        self.metrics.count(SnapshotterCounter::Unpacked, code);
    }

    /// What the operator can do about it, if that is not plain.
    fn hint(&self, reason: &NotLazy) -> Option<&'static str> {
        match reason {
            NotLazy::Login(_) if self.pulls.is_some() => Some(LOGIN_IS_GONE),
            NotLazy::Login(_) => Some(
                "log in as the user of the snapshotter, or give it kubelet's credential providers; the logins of \
                 pulls, such as imagePullSecrets, come with image-service",
            ),
            NotLazy::NotListed => {
                Some("lazy-from names the repositories whose images start lazily")
            }
            NotLazy::Zstd => Some("ociseek index --kind fine makes an index for zstd layers"),
            _ => None,
        }
    }

    /// Why an image cannot be opened.
    fn unopened(&self, error: &CliError) -> String {
        let why = causes(error);
        match NotLazy::of(error) {
            NotLazy::Login(_) if self.pulls.is_some() => format!("{why}; {LOGIN_IS_GONE}"),
            _ => why,
        }
    }

    /// Opens the lowest layers of an image.
    async fn opened(
        &self,
        stack: &LazyStack,
        noted: NotedDocuments,
        answers: &Path,
    ) -> Result<OpenedLayers, CliError> {
        let name = &stack.top.image;
        let parsed = ImageName::from_str(name);
        let image = parsed.map_err(|source| CliError::ImageName { typed: name.clone(), source })?;
        let file = answers.to_owned();
        let read = blocking(move || Ok::<_, CliError>(Recall::read(&file))).await?;
        let recalled = match (read, self.known(name)) {
            (Some(read), _) => read,
            (None, Some(known)) => {
                known.fetching.done().await;
                known.answers
            }
            (None, None) => Recall::default(),
        };
        let progress: Arc<dyn Progress> = Arc::new(ImageLog(name.clone()));
        let node = Images::new(self.lazy.registry()?, [&image], &progress).await?;
        let others = match &image {
            ImageName::Registry(own) => Some(self.others(own, stack, node)),
            _ => None,
        };
        let content = ContentOptions { deadline: self.lazy.deadline, ..ContentOptions::default() };
        let layers = LayerChoice::Lowest(stack.layers.len());
        let trust = self.word.rules_in_use(&image, noted);
        let options = OpenOptions { layers, content, trust, ..self.lazy.open_options(&image)? };
        let opening = |registry: RegistryArgs| async {
            let images = Images::new(registry, [&image], &progress).await?;
            let (source, root) = images.open(&image).await?;
            let source = match (source, &others) {
                (Source::Registry(repository), Some(others)) => {
                    Source::Registry(repository.with_others(Arc::clone(others)))
                }
                (source, _) => source,
            };
            let source = source.recalling(&recalled).with_budget(self.opening.clone());
            Ok::<_, CliError>(open(&source, &root, &options, &self.caches, &progress).await?)
        };
        let opened = self.with_logins(&image, opening).await?;
        let file = answers.to_owned();
        let written = blocking(move || Ok::<_, CliError>(recalled.write(&file))).await?;
        if let Err(error) = written {
            // Another server would ask the registry.
            warn!(image = name, %error, "the answers of the registry are not kept");
        }
        Ok(OpenedLayers { image: opened, progress })
    }

    /// Finds other repositories with the layers of an image, as far as the operator names them.
    fn others(&self, own: &Reference, stack: &LazyStack, images: Images) -> FindRepositories {
        let own = (own.registry.clone(), own.repository.clone());
        let socket = self.containerd.clone();
        let place = stack.layers.len().saturating_sub(1);
        let layer = stack.layers.last().map(|(layer, _)| layer.clone()).unwrap_or_default();
        let image = stack.top.image.clone();
        let word = self.word.clone();
        let named = move |name: String| {
            // containerd leaves out the port.
            let name = match name.split_once('/') {
                Some((host, repository)) if host == host_of(&own.0) => {
                    format!("{}/{repository}", own.0)
                }
                _ => name,
            };
            let ImageName::Registry(other) = name.parse().ok()? else { return None };
            let is_other = (&other.registry, &other.repository) != (&own.0, &own.1);
            let is_listed = word.rules_for(&ImageName::Registry(other.clone())).is_ok();
            if is_other && is_listed { images.repository(&other).ok() } else { None }
        };
        let named = Arc::new(named);
        Arc::new(move || {
            let socket = socket.clone();
            let layer = layer.clone();
            let image = image.clone();
            let named = Arc::clone(&named);
            let find = async move {
                let asked = timeout(CONTAINERD, repositories_with(&socket, &layer, place)).await;
                let found = asked.map_err(io::Error::from).flatten();
                let found = found.unwrap_or_else(|error| {
                    warn!(image, %error, "containerd does not say where else the image is");
                    BTreeSet::new()
                });
                found.into_iter().filter_map(|name| named(name)).collect()
            };
            find.boxed()
        })
    }

    fn remember(&self, image: &str, mut known: KnownImage) {
        if known.answers.size() > ANSWERS {
            known.answers = Recall::default();
        }
        let mut all = self.known.hold();
        let size: u64 = all.values().map(|other| other.answers.size()).sum();
        if all.len() >= KNOWN || size + known.answers.size() > ALL_ANSWERS {
            all.clear();
        }
        all.insert(image.to_owned(), known);
    }

    /// Forgets images some time after they were looked up.
    async fn forget_old(self: Arc<Self>) -> Infallible {
        loop {
            sleep(KNOWN_FOR / 5).await;
            self.known.hold().retain(|_, known| known.at.elapsed() < KNOWN_FOR);
            if let Some(pulls) = &self.pulls {
                pulls.forget_old();
            }
            // Lists of referrers of strangers are large, and few of them are kept.
            let _ = spawn_blocking(release_freed_memory).await;
        }
    }
}

/// Logs the warnings about an image.
struct ImageLog(String);

impl Progress for ImageLog {
    fn report(&self, event: ProgressEvent) {
        if let ProgressEvent::Warning(text) = event {
            warn!(image = self.0, "{text}");
        }
    }
}

impl LazyImages for NodeImages {
    fn cannot_share(&self, image: &str, target: &str, other: &str) {
        let other = NotLazy::OtherDocument { layer: target.to_owned(), image: other.to_owned() };
        self.unpacked(image, &other);
    }

    fn layers<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Option<ImageLayers>> {
        Box::pin(async move {
            if let Some(known) = self.known(image) {
                return Some(known.layers);
            }
            let answers = Recall::default();
            let (layers, documents) = match self.judged(image, &answers).await {
                Ok(judged) => judged,
                Err(reason) => {
                    self.unpacked(image, &reason);
                    return None;
                }
            };
            let layers = ImageLayers {
                chains: chains(layers.iter().map(|layer| layer.diff_id)),
                documents: layers.iter().map(|layer| layer.document.map(text)).collect(),
                digests: layers.iter().map(|layer| text(layer.descriptor.digest)).collect(),
            };
            let fetching = self.ahead.start(documents);
            let known =
                KnownImage { at: Instant::now(), layers: layers.clone(), answers, fetching };
            self.remember(image, known);
            Some(layers)
        })
    }

    fn open<'a>(
        &'a self,
        stack: &'a LazyStack,
        answers: &'a Path,
    ) -> BoxFuture<'a, Result<OpenedLayers, String>> {
        Box::pin(async move {
            let noted = noted(stack).ok_or("its row has an invalid digest")?;
            let opened = self.opened(stack, noted, answers).await;
            let opened = opened.map_err(|error| self.unopened(&error))?;
            let layers = opened.image.layers.iter().map(|layer| text(layer.descriptor.digest));
            if layers.eq(stack.layers.iter().map(|(layer, _)| layer.clone())) {
                Ok(opened)
            } else {
                Err("its manifest has other layers than those that were noted".to_owned())
            }
        })
    }

    fn serving(&self) -> ServingOptions {
        ServingOptions { prefetch: self.lazy.prefetching(), record_starts: self.record_starts }
    }

    fn attempted(&self, attempt: MountAttempt) {
        let (done, counter) = if attempt.is_replacement {
            ("replaced", SnapshotterCounter::Replacements)
        } else {
            ("mounted", SnapshotterCounter::Mounts)
        };
        self.metrics.count(counter, if attempt.has_succeeded { done } else { "failed" });
    }
}

/// A registry without its port.
fn host_of(registry: &str) -> &str {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let host = registry.rsplit_once(':').filter(|(_, port)| is_port(port));
    host.map_or(registry, |(host, _)| host).trim_matches(['[', ']'])
}

/// The documents by which the layers of a mount are read.
fn noted(stack: &LazyStack) -> Option<NotedDocuments> {
    let parsed = |(layer, document): &(String, Option<String>)| {
        let document = document.as_deref().map(Digest::from_str).transpose();
        Some((layer.parse().ok()?, document.ok()?))
    };
    stack.layers.iter().map(parsed).collect()
}

fn text(digest: Digest) -> String {
    digest.to_string()
}

/// The chain IDs of the OCI image specification (config.md, "Layer ChainID").
fn chains(diff_ids: impl Iterator<Item = Digest>) -> Vec<String> {
    let mut chains: Vec<String> = Vec::new();
    for diff_id in diff_ids {
        let above =
            |below: &String| Digest::sha256(format!("{below} {diff_id}").as_bytes()).to_string();
        chains.push(chains.last().map_or_else(|| diff_id.to_string(), above));
    }
    chains
}
