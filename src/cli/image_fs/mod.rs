//! Shared by `mount`, `bundle` and `try`: opens the image, serves it until it should end, and
//! writes the statistics.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tokio::sync::oneshot;

use crate::cli::shared::args::{NodeLoginArgs, ReadCacheArgs, RegistryArgs, ViewArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::file::Replacement;
use crate::cli::shared::json::{Document, milliseconds, text as text_of};
use crate::cli::shared::parse::RestArg;
use crate::cli::shared::progress::Display;
use crate::cli::shared::report::report_error;
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::source::Images;
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{complain, safe};
use crate::cli::shared::trust::UseOfFiles;
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::shared::{caches, parse};
use json::{Figures, Ready, Stats};
use ociseek_format::image::ImageName;
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_ops::bundle::RunOptions;
use ociseek_ops::mount::{LiveMount, Prefetch};
use ociseek_ops::open::{DocumentFetch, LayerChoice, OpenOptions, RootFs, open};
use ociseek_rootfs::content::{BackgroundFetches, ContentOptions};

pub(super) mod bundle;
pub(super) mod detach;
pub(super) mod json;
pub(super) mod mount;
pub(super) mod store;
pub(super) mod store_status;

/// An opened image with the settings for its output.
pub(super) struct OpenedImage {
    pub image: RootFs,
    pub name: String,
    pub progress: Arc<dyn Progress>,
    started: Instant,
    stats: Option<Replacement>,
    quiet: bool,
}

impl OpenedImage {
    /// An image that was opened by another command.
    pub(super) fn of(image: RootFs, name: &str, verbosity: VerbosityArgs) -> OpenedImage {
        OpenedImage {
            image,
            name: name.to_owned(),
            progress: Arc::new(Display::new(verbosity)),
            started: Instant::now(),
            stats: None,
            quiet: verbosity.quiet,
        }
    }
}

/// Opens the image, or some of its layers.
pub(super) async fn open_image(
    name: &ImageName,
    layers: LayerChoice,
    args: LazyArgs,
    verbosity: VerbosityArgs,
) -> Result<OpenedImage, CliError> {
    let started = Instant::now();
    // Detects that the file cannot be written before anything is fetched.
    let stats = args.stats.as_deref().map(Replacement::new).transpose()?;
    let display = Arc::new(Display::new(verbosity));
    let progress: Arc<dyn Progress> = display.clone();
    let (name, image) = (name.to_string(), name);
    let opening = async {
        let images = Images::new(args.registry()?, [image], &progress).await?;
        let (source, root) = images.open(image).await?;
        let caches = caches::reading(&args.cache, &progress).await?;
        let content = ContentOptions { deadline: args.deadline, ..ContentOptions::default() };
        let index = args.view.index(&source, &root, &progress).await?;
        let options = OpenOptions { layers, content, index, ..args.open_options(image)? };
        Ok::<_, CliError>(open(&source, &root, &options, &caches, &progress).await?)
    };
    let image = display.during(&name, opening).await?;
    Ok(OpenedImage { image, name, progress, started, stats, quiet: verbosity.quiet })
}

/// Refuses a directory in place of the image, and an image in place of the directory.
///
/// # Errors
/// If the two are swapped.
pub(super) fn check_order(name: &ImageName, dir: &Path) -> Result<(), CliError> {
    let ImageName::Registry(image) = name else { return Ok(()) };
    let typed = image.repository.strip_prefix("library/").unwrap_or(&image.repository);
    let is_swapped =
        Path::new(typed).is_dir() && !dir.exists() && dir.to_string_lossy().contains(':');
    if is_swapped {
        Err(CliError::usage("the image comes first, then the directory"))
    } else {
        Ok(())
    }
}

impl OpenedImage {
    /// Reports that the image is mounted. `what` tells where, and how to unmount it.
    pub(super) fn tell_ready(&self, what: &str) {
        if self.quiet {
            return;
        }
        let image = &self.image;
        let bytes: u64 = image.layers.iter().map(|layer| layer.descriptor.size).sum();
        let read: u64 = image.layers.iter().map(|layer| layer.bytes_read).sum();
        let files = counted(image.tree.len() as u64, "file", "files");
        let trust = image.trust();
        let text = format!(
            "{what}: {files}, {trust}; {} of {} of layers read so far",
            human(read),
            human(bytes)
        );
        complain(&safe(&text));
    }

    /// Like [`tell_ready`](OpenedImage::tell_ready), as JSON on standard output.
    pub(super) fn print_ready(&self, dir: &Path) -> Result<(), CliError> {
        let ready = Ready {
            dir: dir.display().to_string(),
            figures: Figures::of(self),
            seconds_to_mount: milliseconds(self.started.elapsed().as_secs_f64()),
        };
        let text = text_of(ready)?;
        Stdout::new().print(text)
    }

    /// Prints a warning unless the output is quiet.
    pub(super) fn warn(&self, text: &str) {
        self.progress.report(ProgressEvent::Warning(text.to_owned()));
    }

    /// Writes the statistics to the file that the user named, if any.
    pub(super) fn write_stats(&mut self, mounted: Duration) -> Result<(), CliError> {
        let stats = Stats {
            figures: Figures::of(self),
            seconds_to_mount: milliseconds(
                self.started.elapsed().saturating_sub(mounted).as_secs_f64(),
            ),
            seconds_mounted: milliseconds(mounted.as_secs_f64()),
        };
        let Some(file) = self.stats.take() else { return Ok(()) };
        let mut text = Vec::new();
        Document::new(stats)
            .write(&mut text)
            .and_then(|()| file.write(&text))
            .map_err(|error| file.failed(error))?;
        file.complete().map(drop)
    }
}

/// Handles an error after the document was printed: reports it only on standard error, and sets the
/// exit status.
pub(super) fn too_late(error: &CliError) -> CliError {
    if !error.is_reported() {
        report_error(None, error);
    }
    CliError::exit(error.exit_code())
}

/// Why a mount ends.
pub(super) enum End {
    /// This process was asked to stop.
    Stopped,
    /// Another process unmounted it.
    Unmounted,
}

/// Serves until the mount should end.
pub(super) async fn serve(
    mount: &mut LiveMount,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<End, CliError> {
    tokio::select! {
        biased;
        Ok(_) = interrupted => Ok(End::Stopped),
        ended = mount.mount.ended() => Ok(ended.map(|()| End::Unmounted)?),
    }
}

/// The options of the container.
pub(super) fn run_options(args: ContainerArgs, command: Vec<String>) -> RunOptions {
    RunOptions {
        command: (!command.is_empty()).then_some(command),
        entrypoint: args
            .entrypoint
            .map(|program| if program.is_empty() { Vec::new() } else { vec![program] }),
        terminal: args.tty,
        host_network: args.net == NetArg::Host,
    }
}

/// The options that all commands share which serve an image's files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reading")]
pub(crate) struct LazyArgs {
    #[command(flatten)]
    pub view: ViewArgs,

    /// Fetch the rest of the image in the background; --prefetch=100Mbit limits the speed
    #[arg(long, value_name = "SPEED", env = "OCISEEK_PREFETCH", value_parser = parse::prefetch)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(default_value = "false", hide_default_value = true, help_heading = "Reading")]
    pub prefetch: RestArg,

    /// Ignore the prefetch lists of the index, and the recorded startup of a fine index
    #[arg(long, env = "OCISEEK_IGNORE_PREFETCH_LIST", value_parser = parse::switch, hide_short_help = true)]
    #[arg(help_heading = "Reading")]
    pub ignore_prefetch_list: bool,

    /// How long a read waits for the registry before it fails with an input/output error
    ///
    /// For one second after that, other reads of the same bytes fail immediately, because the
    /// kernel retries each failed read.
    #[arg(long, value_name = "DURATION", env = "OCISEEK_DEADLINE", default_value = "60s")]
    #[arg(value_parser = parse::duration_of(1, 3600), help_heading = "Reading", hide_short_help = true)]
    pub deadline: Duration,

    /// On exit, write statistics to this file as JSON: times, requests, bytes fetched, cache hits
    #[arg(
        long = "stats-file",
        value_name = "FILE",
        help_heading = "Reading",
        hide_short_help = true
    )]
    pub stats: Option<PathBuf>,

    #[command(flatten)]
    pub cache: ReadCacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub logins: NodeLoginArgs,
}

impl LazyArgs {
    /// The options for the registry, with the logins of the node.
    pub(crate) fn registry(&self) -> Result<RegistryArgs, CliError> {
        let providers = self.logins.providers()?;
        let hosts_dir = self.logins.hosts_dir.clone();
        Ok(RegistryArgs { providers, hosts_dir, ..self.registry.clone() })
    }

    /// What to open of `image`, without the index that the user named.
    pub(crate) fn open_options(&self, image: &ImageName) -> Result<OpenOptions, CliError> {
        Ok(OpenOptions {
            platform: self.view.platform.platform.clone(),
            soci_only: !self.view.trust.fine,
            trust: self.view.trust.rules(image, UseOfFiles::Run)?,
            documents: DocumentFetch { start: !self.ignore_prefetch_list },
            ..OpenOptions::default()
        })
    }

    pub(crate) fn prefetching(&self) -> Prefetch {
        Prefetch { ignore_lists: self.ignore_prefetch_list, rest: self.background() }
    }

    /// For the images of this process alone.
    pub(crate) fn background(&self) -> Option<Arc<BackgroundFetches>> {
        let shared = BackgroundFetches::default();
        shared.speed.set(self.prefetch.speed());
        self.prefetch.is_wanted().then(|| Arc::new(shared))
    }
}

/// How a command that serves files runs.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Run until stopped or unmounted (the default)
    #[arg(long, conflicts_with = "detach", hide_short_help = true)]
    pub foreground: bool,

    /// Return once mounted, and serve from a background process until unmounted
    #[arg(long)]
    pub detach: bool,

    /// With --detach: write warnings to this file once mounted
    #[arg(long, value_name = "FILE", requires = "detach")]
    pub log: Option<PathBuf>,

    /// Record the first reads in order, as JSON lines for `index --profile`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// Options for running a container.
#[derive(Debug, Args)]
#[command(next_help_heading = "Container")]
pub(crate) struct ContainerArgs {
    /// Run this instead of the image's entrypoint and command; if empty, run only what follows --
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<String>,

    /// The container's network: only a loopback interface, or the host's with its /etc/resolv.conf
    /// and /etc/hosts
    #[arg(long, value_name = "KIND", value_enum, default_value_t = NetArg::None)]
    pub net: NetArg,

    /// Give the container a terminal
    #[arg(long)]
    pub tty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetArg {
    None,
    Host,
}
