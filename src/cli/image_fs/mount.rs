//! `ociseek mount`.

use std::path::PathBuf;

use clap::Args;
use tokio::sync::oneshot;

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
use ociseek_ops::open::LayerChoice;
use ociseek_rootfs::fuse::{ExistingMount, FuseOptions, prepare};

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
    #[arg(long, value_name = "N", value_parser = parse::layer)]
    pub layer: Option<usize>,

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
    let is_background = serve.detach && detach::is_background();
    if serve.detach && !is_background {
        return detach::start(interrupted).await;
    }
    let log = is_background.then(|| Log::open(serve.log.as_deref())).transpose()?;
    let record = serve.record.as_deref().map(Replacement::new).transpose()?;
    let recorder = record.as_ref().map(|file| file.handle().map(Record::File)).transpose()?;
    let existing = if args.replace { ExistingMount::Replace } else { ExistingMount::Refuse };
    let dir = args.dir;
    let name = args.image;
    image_fs::check_order(&name, &dir)?;
    let layers =
        args.layer.map_or(LayerChoice::All, |layer| LayerChoice::Only(layer, opaque_xattr()));
    let (mut opened, mut live) = until(
        interrupted,
        boxed(async || {
            let point = blocking(move || prepare(&dir, existing)).await?;
            let prefetch = args.lazy.prefetching();
            let opened = image_fs::open_image(&name, layers, args.lazy, verbosity).await?;
            let fuse = FuseOptions {
                source: opened.name.clone(),
                allow_other: args.allow_other,
                suid: args.suid,
                dev: args.dev,
                ..FuseOptions::default()
            };
            let options = MountOptions { fuse, record: recorder, prefetch };
            let live = mount(&opened.image, &point, options, &opened.progress).await?;
            record.map(Replacement::complete).transpose()?;
            Ok((opened, live))
        }),
    )
    .await?;
    let point = live.mount.point().display();
    let unmount = if rustix::process::geteuid().is_root() { "umount" } else { "fusermount3 -u" };
    let or_interrupt = if is_background { "" } else { "Ctrl-C or " };
    opened.tell_ready(&format!(
        "{} mounted at {point} ({or_interrupt}{unmount} {point} to unmount)",
        opened.name
    ));
    let format = args.format;
    if format.is_json() {
        opened.print_ready(live.mount.point())?;
    }
    if let Some(log) = log {
        log.ready()?;
    }
    let end = image_fs::serve(&mut live, interrupted).await;
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

async fn stop(opened: &OpenedImage, live: LiveMount) -> Result<(), CliError> {
    let point = live.mount.point().display().to_string();
    if live.unmount().await? {
        opened.warn(&format!(
            "{point} was in use when it was unmounted: open files can no longer be read"
        ));
    }
    Ok(())
}
