//! `ociseek store`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::cli::image_fs::LazyArgs;
use crate::cli::image_fs::detach::{self, Log};
use crate::cli::image_fs::store_status::{self, StoreStatusArgs, default_root};
use crate::cli::shared::args::FormatArgs;
use crate::cli::shared::caches::{self, NODE_CACHE};
use crate::cli::shared::error::CliError;
use crate::cli::shared::notify;
use crate::cli::shared::progress::Display;
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::source::{Images, check_hosts};
use crate::cli::shared::terminal::{complain, safe};
use crate::cli::shared::trust::{LazyFromArgs, of_a_node};
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::{blocking, until};
use ociseek_format::budget::Budget;
use ociseek_format::image::{ImageName, Reference};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_node::store::{ImageOpener, MountedStore, StoreOptions, StorePoint};
use ociseek_ops::mount::opaque_xattr;
use ociseek_ops::open::OpenOptions;
use ociseek_rootfs::content::ContentOptions;
use ociseek_rootfs::fuse::{ExistingMount, MountLook};
use ociseek_store::Source;

const STORE_LONG_ABOUT: &str = "\
Serves podman, CRI-O and Buildah as an additional layer store on DIR: containers start before their image is pulled, \
through its fine or SOCI index. The image does not change.

With DIR in additionallayerstores of storage.conf (docs/podman.md), a pull takes the manifest, the config, and from \
DIR those layers that an index covers. Layers without an index, and images of repositories that --lazy-from does not \
name, are pulled as before. \
Data is fetched when containers read it.

podman up to 5.0 looks for layers by their digest, so images need not change. Since podman 5.1 (CRI-O 1.31), it looks \
for them by an annotation of the layers: see docs/podman.md.

Images are read as by ociseek mount, with the same options and logins. DIR must exist and be empty.";

const STORE_AFTER_HELP: &str = "\
Examples:
  mkdir -p /run/ociseek/layers
  ociseek store --lazy-from 'registry.example/team/*' /run/ociseek/layers
  In /etc/containers/storage.conf, under [storage.options]:
    additionallayerstores = [\"/run/ociseek/layers:ref\"]

When it is stopped while containers use layers, it leaves DIR and serves them until they end; a second signal ends it \
at once. After it was killed, start it again: containers wait for that (as root, with Linux 6.9). Otherwise, ociseek \
store --replace DIR, and start the containers again.

Exit status: 0 stopped by SIGINT, SIGTERM or SIGHUP, or unmounted; 1 failure, 2 usage error.";

/// How long the kernel may take to end a session that nobody uses.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// For how long the store may not answer until it is started again.
const SILENCE: Duration = Duration::from_secs(20);
/// Decoded content that is kept in memory for each open image, in bytes.
const MEMORY: u64 = 16 << 20;

/// Start containers in podman and CRI-O before their image is pulled
#[derive(Debug, Args)]
#[command(long_about = STORE_LONG_ABOUT, after_long_help = STORE_AFTER_HELP)]
#[command(mut_args(of_a_node))]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    pub command: Option<StoreCommand>,

    /// Where to mount the store
    #[arg(value_name = "DIR", required = true)]
    pub dir: Option<PathBuf>,

    /// Where to record which layers are in use; created if it is missing [default:
    /// /var/lib/ociseek/store, for users ~/.local/share/ociseek/store]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Tell podman the digest of each layer's tar that the image's config claims, for machines
    /// whose images all come from people who trust each other
    ///
    /// podman up to 5.0 then uses such a layer for each image that states the same digest, and can
    /// push and save lazy images. The digest is not verified, so an image can claim that of another
    /// image's layer. Without this option, podman gets another digest, and an image that it has
    /// pulled must be removed before it can be pulled lazily.
    #[arg(long)]
    pub share_layers: bool,

    /// Return once mounted, and serve from a background process
    #[arg(long)]
    pub detach: bool,

    /// With --detach: write warnings to this file once mounted
    #[arg(long, value_name = "FILE", requires = "detach")]
    pub log: Option<PathBuf>,

    /// Replace an existing (or dead) ociseek mount on DIR
    #[arg(long)]
    pub replace: bool,

    #[command(flatten)]
    pub lazy_from: LazyFromArgs,

    #[command(flatten)]
    pub lazy: LazyArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    Status(StoreStatusArgs),
}

impl StoreCommand {
    /// The output format.
    pub(crate) fn format(&self) -> FormatArgs {
        match self {
            StoreCommand::Status(args) => args.format,
        }
    }
}

pub(crate) async fn run(
    args: StoreArgs,
    verbosity: VerbosityArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    let mut args = args;
    if let Some(StoreCommand::Status(status)) = args.command.take() {
        return store_status::run(status).await;
    }
    let is_word = |word: &&str| args.dir.as_deref() == Some(Path::new(word));
    if ["list", "ls", "images", "ps"].iter().any(|word| is_word(word) && !Path::new(word).exists())
    {
        return Err(CliError::usage("ociseek store status lists the images that it serves"));
    }
    if args.lazy.stats.is_some()
        || args.lazy.view.index.is_some()
        || args.lazy.registry.password_stdin
    {
        return Err(CliError::usage(
            "--stats-file, --index and --password-stdin are for one image",
        ));
    }
    check_hosts(&args.lazy.registry)?;
    args.lazy_from.word(&args.lazy.view.trust)?;
    let is_background = args.detach && detach::is_background();
    if args.detach && !is_background {
        return detach::start(interrupted).await;
    }
    let log = is_background.then(|| Log::open(args.log.as_deref())).transpose()?;
    let progress: Arc<dyn Progress> = Arc::new(Display::new(verbosity));
    let MountedStore { store, mut mount, keeper } =
        until(interrupted, mounted(args, &progress)).await?;
    let point = mount.point().display().to_string();
    if !verbosity.quiet {
        complain(&safe(&format!("layers are served at {point}")));
    }
    match log {
        Some(log) => log.ready()?,
        None => notify::ready(),
    }
    let look = MountLook::start(mount.point().to_owned());
    let answers = || look.as_ref().is_none_or(|look| look.look() < SILENCE);
    let ended = tokio::select! {
        biased;
        Ok(_) = interrupted => None,
        ended = mount.ended() => Some(ended),
        never = notify::alive(answers) => match never {},
    };
    drop(look);
    if let Some(ended) = ended {
        MountedStore::give_up(keeper.as_ref());
        return Ok(ended?);
    }
    let mut mount = blocking(move || mount.detach().map(|_| mount)).await?;
    store.retire();
    // Nobody takes over from a store that has left.
    MountedStore::give_up(keeper.as_ref());
    // The mount point is not in use where only overlays are above it. But the kernel ends the
    // session only when nobody uses it.
    if let Ok(ended) = timeout(LAST_ANSWERS, mount.ended()).await {
        return Ok(ended?);
    }
    progress.report(ProgressEvent::Warning(format!(
        "containers use layers of {point}: they are served until they end, or until another signal"
    )));
    Ok(mount.ended().await?)
}

/// Mounts the store, or takes over from one that was killed.
async fn mounted(args: StoreArgs, progress: &Arc<dyn Progress>) -> Result<MountedStore, CliError> {
    let StoreArgs { dir, root, mut lazy, lazy_from, replace, share_layers, .. } = args;
    let lazy_from = lazy_from.word(&lazy.view.trust)?;
    let cache = &mut lazy.cache.cache.dir.cache_dir;
    if cache.is_none() && rustix::process::geteuid().is_root() {
        *cache = Some(NODE_CACHE.into());
    }
    let existing = if replace { ExistingMount::Replace } else { ExistingMount::Refuse };
    let root = root
        .or_else(default_root)
        .ok_or(CliError::usage("--root is needed where HOME is not set"))?;
    let dir = dir.ok_or(CliError::usage("name the directory to mount the store on"))?;
    let point = StorePoint::find(dir, existing, root).await?;
    let options = StoreOptions {
        opaque: opaque_xattr(),
        deadline: lazy.deadline,
        rest: lazy.background(),
        claims: share_layers,
        lazy_from,
        caches: caches::reading(&lazy.cache, progress).await?,
        opener: opener(lazy, Arc::clone(progress)),
    };
    Ok(point.mount(options, Arc::clone(progress)).await?)
}

/// Opens images with the options of the command line. All have one memory budget.
fn opener(lazy: LazyArgs, progress: Arc<dyn Progress>) -> ImageOpener {
    let budget = Budget::new(lazy.registry.memory.max_memory.0);
    let lazy = Arc::new(lazy);
    Arc::new(move |reference: Reference| {
        let lazy = Arc::clone(&lazy);
        let budget = budget.clone();
        let progress = Arc::clone(&progress);
        let open = async move {
            let images =
                Images::at(lazy.registry()?, std::iter::once(&*reference.registry), &progress)
                    .await?;
            let name = ImageName::Registry(reference);
            let (source, _) = images.open(&name).await?;
            let content = ContentOptions {
                deadline: lazy.deadline,
                memory: MEMORY,
                ..ContentOptions::default()
            };
            let options = OpenOptions { content, ..lazy.open_options(&name)? };
            Ok::<(Source, OpenOptions), CliError>((source.with_budget(budget.within()), options))
        };
        open.map(|opened| opened.map_err(|error| causes(&error))).boxed()
    })
}
