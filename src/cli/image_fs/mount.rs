//! `ociseek mount`.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::oneshot;
use tokio::task::block_in_place;

use crate::cli::image_fs::detach::Log;
use crate::cli::image_fs::{self, End, LazyArgs, OpenedImage, ServeArgs, detach};
use crate::cli::shared::args::FormatArgs;
use crate::cli::shared::error::CliError;
use crate::cli::shared::file::Replacement;
use crate::cli::shared::parse;
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::{blocking, boxed, until};
use ociseek_format::image::ImageName;
use ociseek_ops::mount::{LiveMount, MountOptions, Record, mount, opaque_xattr};
use ociseek_ops::mount_server::{FetchedFile, MemoryShare, StartRecord, report};
use ociseek_ops::open::LayerChoice;
use ociseek_rootfs::fuse::{ExistingMount, FuseOptions, KeptDevice, prepare};
use ociseek_store::recall::Recall;

const MOUNT_LONG_ABOUT: &str = "\
Mounts an image's root file system on DIR, read-only. Nothing is pulled in advance: data is fetched when it is read, \
through the image's fine or SOCI index. Layers that no index covers (small ones, or zstd without a fine index) are \
read completely and indexed before the mount is ready; the cache keeps their ztocs.

IMAGE is as for ociseek index, or docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] for an archive from docker save.
DIR must exist and be empty.

The bytes of the layers are checked against the index, and the index against each span that is read. A read fails \
with an input/output error if the data cannot be fetched in time or does not match. The reason is logged, and the next \
read retries. If the index itself is wrong, all later reads fail.

If IMAGE has a digest, indexes that only the repository vouches for are not used: see --trust.

Root needs only /dev/fuse. Other users need fusermount3 (Debian: fuse3).";

const MOUNT_AFTER_HELP: &str = "\
Examples:
  Look into an image:
    mkdir /mnt/python && ociseek mount python:3.13 /mnt/python

  In a script:
    ociseek mount --detach --log mount.log ghcr.io/acme/app:1.4 /mnt/app
    ls /mnt/app/etc
    umount /mnt/app                      (as a user: fusermount3 -u /mnt/app)

  After the process was killed (\"Transport endpoint is not connected\"):
    ociseek mount --replace ghcr.io/acme/app:1.4 /mnt/app

--record: each line is {\"ms\", \"path\", \"layer\", \"offset\", \"size\", \"spans\"}: a read that is the first of \
its file, or the first of some of its bytes. spans: the spans of the layer that no earlier line has.

--format json prints one document once the image is mounted; docs/json.md describes each field of it and of \
--stats-file.

Exit status: 0 after a successful mount was unmounted or stopped by SIGINT, SIGTERM or SIGHUP; 1 failure, 2 usage \
error, 129, 130 or 143 interrupted before it was mounted.";

/// Mount an image's files without pulling it
#[derive(Debug, Args)]
#[command(long_about = MOUNT_LONG_ABOUT, after_long_help = MOUNT_AFTER_HELP)]
pub(crate) struct MountArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Where to mount it
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// Mount only this layer, counted from 0 at the bottom
    ///
    /// What the layer hides of lower ones is shown as overlayfs wants it: whiteouts are character
    /// devices with the number 0/0, and opaque directories have the attribute
    /// trusted.overlay.opaque (in a user namespace: user.overlay.opaque). So mounts of all layers
    /// can be the lower directories of an overlay.
    #[arg(long, value_name = "N")]
    pub layer: Option<usize>,

    /// Mount only this many layers, from the bottom. For the snapshotter
    #[arg(long, value_name = "N", conflicts_with = "layer", hide = true)]
    pub lowest_layers: Option<usize>,

    /// Standard input is the FUSE device, which the snapshotter keeps. The kernel's view of the
    /// files is identified in this file
    #[arg(long, value_name = "FILE", hide = true, requires = "detached")]
    pub kept: Option<PathBuf>,

    /// With --kept: the device is mounted on DIR, and its server was killed
    #[arg(long, hide = true, requires = "kept")]
    pub take_over: bool,

    /// Keep the number of bytes fetched in this file. For the snapshotter
    #[arg(long, value_name = "FILE", hide = true, requires = "kept")]
    pub fetched: Option<PathBuf>,

    /// Read what the registry said before from this file, and add what it says now. As long as it
    /// is locked, the snapshotter fetches documents into the cache. For the snapshotter
    #[arg(long, value_name = "FILE", hide = true, requires = "kept")]
    pub answers: Option<PathBuf>,

    /// Use as much memory as this file says, in bytes. For the snapshotter
    #[arg(long, value_name = "FILE", hide = true, requires = "kept")]
    pub share: Option<PathBuf>,

    /// Support extended attributes, even if no file has any. For the snapshotter
    #[arg(long, hide = true, requires = "kept")]
    pub answer_xattrs: bool,

    /// Record the reads of the first --start-time in this file. For the snapshotter
    #[arg(long, value_name = "FILE", hide = true, requires = "kept", conflicts_with = "record")]
    pub start_record: Option<PathBuf>,

    /// With --start-record: how long
    #[arg(
        long,
        value_name = "TIME",
        hide = true,
        requires = "start_record",
        default_value = "60s"
    )]
    #[arg(value_parser = parse::duration)]
    pub start_time: Duration,

    #[command(flatten)]
    pub serve: ServeArgs,

    /// Replace an existing (or dead) ociseek mount on DIR
    #[arg(long)]
    pub replace: bool,

    /// Let other users access the mount (file permissions are enforced)
    #[arg(long)]
    pub allow_other: bool,

    /// Honour set-user-ID bits and file capabilities (root only)
    #[arg(long)]
    pub suid: bool,

    /// Allow device files to be used (root only)
    #[arg(long)]
    pub dev: bool,

    #[command(flatten)]
    pub lazy: LazyArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(crate) async fn run(
    args: MountArgs,
    verbosity: VerbosityArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    let serve = args.serve;
    if serve.detach && !serve.detached {
        return detach::start(interrupted).await;
    }
    let log = serve.detached.then(|| Log::open(serve.log.as_deref())).transpose()?;
    let record = serve.record.as_deref().map(Replacement::new).transpose()?;
    let recorder = record.as_ref().map(|file| file.handle().map(Record::File)).transpose()?;
    let existing = if args.replace { ExistingMount::Replace } else { ExistingMount::Refuse };
    let dir = args.dir;
    let name = args.image;
    image_fs::check_order(&name, &dir)?;
    let lowest = args.lowest_layers.map_or(LayerChoice::All, LayerChoice::Lowest);
    let layers = args.layer.map_or(lowest, |layer| LayerChoice::Only(layer, opaque_xattr()));
    let kept = args.kept.map(|identity| kept_device(identity, args.take_over)).transpose()?;
    let keeps_stdin = kept.is_some();
    let answers = match args.answers.clone() {
        Some(path) => Some(
            blocking(move || Ok::<_, CliError>(Recall::read(&path).unwrap_or_default())).await?,
        ),
        None => None,
    };
    let (mut opened, mut live, share) = until(
        interrupted,
        boxed(async || {
            let point = match args.take_over {
                // Without a server, the kernel does not answer for the mount point.
                true => dir,
                false => blocking(move || prepare(&dir, existing)).await?,
            };
            let prefetch = args.lazy.prefetching();
            let answers = answers.as_ref().zip(args.answers.clone());
            let opened = image_fs::open_image(&name, layers, args.lazy, verbosity, answers).await?;
            let share = args
                .share
                .map(|path| block_in_place(|| MemoryShare::new(path, &opened.image.content)));
            let fuse = FuseOptions {
                source: opened.name.clone(),
                allow_other: args.allow_other,
                suid: args.suid,
                dev: args.dev,
                answers_xattrs: args.answer_xattrs,
                kept,
                ..FuseOptions::default()
            };
            let is_recorded = args.start_record.is_some()
                && StartRecord::is_wanted(&opened.image, args.lowest_layers);
            let start = is_recorded.then_some(Record::Memory(StartRecord::MAX_READS));
            let options = MountOptions { fuse, record: recorder.or(start), prefetch };
            let live = mount(&opened.image, &point, options, &opened.progress).await?;
            record.map(Replacement::complete).transpose()?;
            Ok((opened, live, share))
        }),
    )
    .await?;
    let point = live.mount.point().display();
    let unmount = if rustix::process::geteuid().is_root() { "umount" } else { "fusermount3 -u" };
    let or_interrupt = if serve.detached { "" } else { "Ctrl-C or " };
    opened.tell_ready(&format!(
        "{} mounted at {point} ({or_interrupt}{unmount} {point} to unmount)",
        opened.name
    ));
    let format = args.format;
    if format.is_json() {
        opened.print_ready(live.mount.point())?;
    }
    if let Some(log) = log {
        log.ready(keeps_stdin)?;
    }
    if let (Some(answers), Some(path)) = (answers, args.answers) {
        // Another server would ask the registry.
        if let Err(error) = block_in_place(|| answers.write(&path)) {
            opened.warn(&format!("cannot write {}: {error}", path.display()));
        }
    }
    let counter = args.fetched.map(|path| {
        let opened = FetchedFile::open(&path);
        opened.map_err(|source| CliError::Write { path, source })
    });
    let counter = counter.transpose()?;
    let mut start = StartRecord::new(&live, args.start_record);
    let settled = live.is_settled();
    let end = tokio::select! {
        end = image_fs::serve(&mut live, interrupted) => end,
        never = report(counter, share, settled, &opened.image) => match never {},
        never = write_start_after(args.start_time, &mut start, &opened) => match never {},
    };
    write_start(&mut start, &opened);
    let mounted = live.since();
    let ended = match end {
        Ok(End::Stopped) => stop(&opened, live).await,
        Ok(End::Unmounted) => Ok(()),
        Err(error) => Err(error),
    };
    let written = opened.write_stats(mounted);
    ended
        .and(written)
        .map_err(|error| if format.is_json() { image_fs::too_late(&error) } else { error })
}

/// Writes the record of a start, if any, after `time`.
async fn write_start_after(
    time: Duration,
    record: &mut Option<StartRecord>,
    opened: &OpenedImage,
) -> Infallible {
    tokio::time::sleep(time).await;
    write_start(record, opened);
    std::future::pending().await
}

/// Writes the record of a start, if any.
fn write_start(record: &mut Option<StartRecord>, opened: &OpenedImage) {
    let Some(record) = record.take() else { return };
    if let Err(error) = block_in_place(|| record.write()) {
        opened.warn(&format!("the start is not recorded: {}: {error}", record.path().display()));
    }
}

/// The FUSE device on standard input.
fn kept_device(identity: PathBuf, is_mounted: bool) -> Result<KeptDevice, CliError> {
    let device = io::stdin().as_fd().try_clone_to_owned().map_err(CliError::Start)?;
    Ok(KeptDevice { device: Arc::new(device), is_mounted, identity })
}

async fn stop(opened: &OpenedImage, live: LiveMount) -> Result<(), CliError> {
    let point = live.mount.point().display().to_string();
    if live.unmount().await? {
        opened.warn(&format!(
            "{point} was in use when it was unmounted: open files can no longer be read"
        ));
    }
    Ok(())
}
