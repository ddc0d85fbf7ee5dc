//! Shared by `mount`, `bundle` and `trace`: opens the image, serves it until it should end, and
//! writes the statistics.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use self::json::{Figures, Ready, Stats};
use crate::cli::shared::caches;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{Document, milliseconds, text as text_of};
use crate::cli::shared::progress::Display;
use crate::cli::shared::report::report_error;
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::source::Images;
use crate::cli::shared::talk::TalkArgs;
use crate::cli::shared::terminal::{Stdout, complain, safe};
use args::{ContainerArgs, LazyArgs, NetArg};
use error::LazyError;
use ociseek_format::image::ImageName;
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_ops::bundle::RunOptions;
use ociseek_ops::mount::LiveMount;
use ociseek_ops::open::{OpenOptions, RootFs, open};
use ociseek_rootfs::content::ContentOptions;

pub(super) mod args;
pub(super) mod detach;
pub(super) mod error;
pub(super) mod json;
pub(super) mod live_bundle;

/// An opened image with the settings for its output.
pub(super) struct OpenedImage {
    pub image: RootFs,
    pub name: String,
    pub progress: Arc<dyn Progress>,
    started: Instant,
    stats: Option<(PathBuf, File)>,
    quiet: bool,
}

/// Opens the image. `layer` selects a single layer of it.
pub(super) async fn open_image(
    name: &ImageName,
    layer: Option<usize>,
    args: LazyArgs,
    talk: TalkArgs,
) -> Result<OpenedImage, CliError> {
    let started = Instant::now();
    // Detects that the file cannot be written before anything is fetched.
    let stats = args.stats.map(|path| create(&path).map(|file| (path, file))).transpose()?;
    let display = Arc::new(Display::new(talk));
    let progress: Arc<dyn Progress> = display.clone();
    let (name, image) = (name.to_string(), name);
    let opening = async {
        let images = Images::new(args.registry, [image], &progress).await?;
        let (source, root) = images.open(image).await?;
        let caches = caches::reading(&args.cache, &progress).await?;
        let content = ContentOptions { deadline: Duration::from_secs(args.deadline), ..ContentOptions::default() };
        let options = OpenOptions {
            platform: args.view.platform.platform,
            index: args.view.index,
            layer,
            soci_only: false,
            start: !args.ignore_prefetch_list,
            content,
        };
        Ok::<_, CliError>(open(&source, &root, &options, &caches, &progress).await?)
    };
    let image = display.during(&name, opening).await?;
    Ok(OpenedImage { image, name, progress, started, stats, quiet: talk.quiet })
}

/// Creates a file, or truncates an existing one.
pub(super) fn create(path: &Path) -> Result<File, CliError> {
    File::create(path).map_err(|source| CliError::Write { path: path.to_owned(), source })
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
        let text = format!("{what}: {files}; {} of {} of layers read so far", human(read), human(bytes));
        complain(&safe(&text));
    }

    /// Like [`tell_ready`](OpenedImage::tell_ready), as JSON on standard output.
    pub(super) fn print_ready(&self, dir: &Path) -> Result<(), CliError> {
        let ready = Ready {
            dir: dir.display().to_string(),
            figures: Figures::of(self),
            seconds_to_mount: milliseconds(self.started.elapsed().as_secs_f64()),
        };
        let text = text_of(ready).map_err(CliError::Stdout)?;
        Stdout::new().write_whole(text.as_bytes()).map_err(CliError::Stdout)
    }

    /// Prints a warning unless the output is quiet.
    pub(super) fn warn(&self, text: &str) {
        self.progress.report(ProgressEvent::Warning(text.to_owned()));
    }

    /// Writes the statistics to the file that the user named, if any.
    pub(super) fn write_stats(&mut self, mounted: Duration) -> Result<(), CliError> {
        let stats = Stats {
            figures: Figures::of(self),
            seconds_to_mount: milliseconds(self.started.elapsed().saturating_sub(mounted).as_secs_f64()),
            seconds_mounted: milliseconds(mounted.as_secs_f64()),
        };
        let Some((path, file)) = &mut self.stats else { return Ok(()) };
        Document::new(stats).write(file).map_err(|source| CliError::Write { path: path.clone(), source })
    }
}

/// Handles an error after the document was printed: reports it only on standard error, and sets the
/// exit status.
pub(super) fn too_late(error: &CliError) -> CliError {
    if !error.is_reported() {
        report_error(None, error);
    }
    CliError::Exit(error.exit_code())
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
        ended = mount.mount.ended() => Ok(ended.map(|()| End::Unmounted).map_err(LazyError::from)?),
    }
}

/// The options of the container.
pub(super) fn run_options(args: ContainerArgs, command: Vec<String>) -> RunOptions {
    RunOptions {
        command: (!command.is_empty()).then_some(command),
        entrypoint: args.entrypoint.map(|program| if program.is_empty() { Vec::new() } else { vec![program] }),
        terminal: args.tty,
        host_network: args.net == NetArg::Host,
    }
}
