//! `ociseek bundle`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tokio::sync::oneshot;

use crate::cli::image_fs::detach::Log;
use crate::cli::image_fs::{self, ContainerArgs, End, LazyArgs, OpenedImage, ServeArgs, detach};
use crate::cli::shared::args::FormatArgs;
use crate::cli::shared::error::CliError;
use crate::cli::shared::file::Replacement;
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::{blocking, boxed, until};
use ociseek_format::image::ImageName;
use ociseek_ops::bundle::{ACCOUNTS, Bundle, RunOptions, plan, remove};
use ociseek_ops::mount::{LiveMount, MountOptions, Prefetch, Record, mount};
use ociseek_ops::open::LayerChoice;
use ociseek_rootfs::fuse::FuseOptions;

const BUNDLE_LONG_ABOUT: &str = "\
Creates an OCI runtime bundle in DIR without pulling the image: its root file system is a lazy mount (see ociseek \
mount) with a writable overlay on top. A container starts while its image is still in the registry:

  ociseek bundle --detach IMAGE DIR && runc run -b DIR NAME

config.json follows the image's config: entrypoint and command, environment, user (from the image's /etc/passwd and \
/etc/group) and working directory. Only org.opencontainers.image.* labels become annotations, since runtimes act on \
others. Everything else is as in docker: capabilities, mounts, masked paths. You can edit the file before starting the \
container. The image must be for Linux.

DIR is created if needed; otherwise it must be empty and owned by root. Other users cannot access it. Its parent \
directories must also be owned by root, and writable by nobody else unless they are sticky like /tmp. It cannot be \
on an overlay. Requires root.";

const BUNDLE_AFTER_HELP: &str = "\
Examples:
  ociseek bundle --detach redis:7 /run/redis && runc run -b /run/redis redis
  ociseek bundle --rm /run/redis

  With a command other than the image's:
    ociseek bundle --detach --tty debian:12 /run/deb -- bash && runc run -b /run/deb deb
    ociseek bundle --rm /run/deb

In the foreground it runs until SIGINT, SIGTERM or SIGHUP and then removes the bundle. Removing the bundle always \
discards what the container wrote.

Exit status: 0 success, 1 failure, 2 usage error, 129, 130 or 143 interrupted before the bundle was ready.";

/// Create an OCI runtime bundle without pulling the image
#[derive(Debug, Args)]
#[command(long_about = BUNDLE_LONG_ABOUT, after_long_help = BUNDLE_AFTER_HELP)]
#[command(
    override_usage = "ociseek bundle [OPTIONS] <IMAGE> <DIR> [-- <COMMAND>...]\n       ociseek bundle --rm <DIR>"
)]
pub(crate) struct BundleArgs {
    /// The image
    #[arg(value_name = "IMAGE", required_unless_present = "rm")]
    pub image: Option<ImageName>,

    /// The bundle's directory
    #[arg(value_name = "DIR", required_unless_present = "rm")]
    pub dir: Option<PathBuf>,

    /// The container's command, instead of the image's
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<String>,

    /// Remove the bundle in DIR and its mounts; its container must have exited
    #[arg(long, value_name = "DIR", conflicts_with_all = ["image", "dir", "command"])]
    pub rm: Option<PathBuf>,

    #[command(flatten)]
    pub serve: ServeArgs,

    #[command(flatten)]
    pub container: ContainerArgs,

    #[command(flatten)]
    pub lazy: LazyArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(crate) async fn run(
    args: BundleArgs,
    verbosity: VerbosityArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    if let Some(dir) = args.rm {
        return blocking(move || remove(&dir)).await;
    }
    let (Some(name), Some(dir)) = (args.image, args.dir) else {
        return Err(CliError::usage("expected IMAGE and DIR, or --rm DIR"));
    };
    image_fs::check_order(&name, &dir)?;
    let serve = args.serve;
    let format = args.format;
    let is_background = serve.detach && detach::is_background();
    if serve.detach && !is_background {
        return detach::start(interrupted).await;
    }
    CliError::check_command(&args.command)?;
    let log = is_background.then(|| Log::open(serve.log.as_deref())).transpose()?;
    let record = serve.record.as_deref().map(Replacement::new).transpose()?;
    let recorder = record.as_ref().map(|file| file.handle().map(Record::File)).transpose()?;
    let (mut opened, live_bundle) = until(
        interrupted,
        boxed(async || {
            let image = name.to_string();
            let bundle = blocking(move || Bundle::new(&dir, &image)).await?;
            let run = image_fs::run_options(args.container, args.command);
            let prefetch = args.lazy.prefetching();
            let opened =
                image_fs::open_image(&name, LayerChoice::All, args.lazy, verbosity).await?;
            let live_bundle = mount_bundle(&opened, bundle, &run, recorder, prefetch).await?;
            record.map(Replacement::complete).transpose()?;
            Ok((opened, live_bundle))
        }),
    )
    .await?;
    let LiveBundle { bundle, mut live } = live_bundle;
    let dir = bundle.dir().display();
    let or_interrupt = if is_background { "" } else { "Ctrl-C or " };
    opened.tell_ready(&format!(
        "bundle of {} created in {dir} ({or_interrupt}ociseek bundle --rm {dir} to remove it)",
        opened.name
    ));
    if format.is_json() {
        opened.print_ready(bundle.dir())?;
    }
    if let Some(log) = log {
        log.ready()?;
    }
    let end = image_fs::serve(&mut live, interrupted).await;
    let mounted = live.since();
    let ended = match end {
        Ok(End::Stopped) => LiveBundle { bundle, live }.take_down(&opened).await,
        // The process that unmounted it also removes the bundle.
        Ok(End::Unmounted) => {
            bundle.leave();
            Ok(())
        }
        Err(error) => Err(error),
    };
    let written = opened.write_stats(mounted);
    ended
        .and(written)
        .map_err(|error| if format.is_json() { image_fs::too_late(&error) } else { error })
}

/// A bundle that a runtime can start. The overlay is unmounted before the image below it.
pub(crate) struct LiveBundle {
    pub bundle: Bundle,
    pub live: LiveMount,
}

/// Mounts the image and the overlay, and writes config.json.
pub(crate) async fn mount_bundle(
    opened: &OpenedImage,
    bundle: Bundle,
    run: &RunOptions,
    record: Option<Record>,
    prefetch: Prefetch,
) -> Result<LiveBundle, CliError> {
    let image = &opened.image;
    let fuse = FuseOptions {
        source: opened.name.clone(),
        // The container's users differ from the user who mounts. The directory is not accessible to
        // others.
        allow_other: true,
        under_overlay: true,
        ..FuseOptions::default()
    };
    let options = MountOptions { fuse, record, prefetch };
    let point = bundle.image_point();
    // The image's list of users may have to be fetched, which happens during mounting.
    let (config, live) = tokio::join!(
        plan(&image.manifest.digest, &image.config, &image.tree, &image.content, run),
        mount(image, &point, options, &opened.progress),
    );
    let config = config?;
    let live = live?;
    ACCOUNTS.iter().for_each(|path| live.note(&image.tree, path));
    let tree = Arc::clone(&image.tree);
    let bundle = blocking(move || bundle.complete(&tree, &config).map(|()| bundle)).await?;
    Ok(LiveBundle { bundle, live })
}

impl LiveBundle {
    pub(crate) async fn take_down(self, opened: &OpenedImage) -> Result<(), CliError> {
        let LiveBundle { bundle, live } = self;
        let dir = bundle.dir().display().to_string();
        let user = blocking(move || bundle.remove()).await?;
        drop(live);
        if let Some(pid) = user {
            opened.warn(&format!(
                "{dir} was removed while process {pid} was running in it and has lost its files"
            ));
        }
        Ok(())
    }
}
