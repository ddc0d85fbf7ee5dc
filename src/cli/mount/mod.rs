//! `ociseek mount`.

use tokio::sync::oneshot;

use crate::cli::lazy::detach::{self, Log};
use crate::cli::lazy::error::LazyError;
use crate::cli::lazy::live_bundle::blocking;
use crate::cli::lazy::{self, End};
use crate::cli::run::until;
use crate::cli::shared::error::CliError;
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::talk::TalkArgs;
use args::MountArgs;
use ociseek_ops::mount::{LiveMount, MountOptions, Record, mount};
use ociseek_rootfs::fuse::{ExistingMount, FuseOptions, prepare};

pub(super) mod args;

pub(super) async fn run(
    args: MountArgs,
    talk: TalkArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    let serve = args.serve;
    if serve.detach && !serve.detached {
        return detach::start(interrupted).await;
    }
    let log = serve.detached.then(|| Log::open(serve.log.as_deref())).transpose()?;
    let record = serve.record.as_deref().map(lazy::create).transpose()?;
    let existing = if args.replace { ExistingMount::Replace } else { ExistingMount::Refuse };
    let (dir, name) = (args.dir, args.image);
    let (mut opened, mut live) = until(interrupted, async {
        let point = blocking(move || prepare(&dir, existing)).await?;
        let prefetch = args.lazy.prefetching();
        let opened = lazy::open_image(&name, args.layer, args.lazy, talk).await?;
        let fuse = FuseOptions {
            source: opened.name.clone(),
            allow_other: args.allow_other,
            suid: args.suid,
            dev: args.dev,
            ..FuseOptions::default()
        };
        let options = MountOptions { fuse, record: record.map(Record::File), prefetch };
        let live = mount(&opened.image, &point, options, &opened.progress).await.map_err(LazyError::from)?;
        Ok((opened, live))
    })
    .await?;
    let point = live.mount.point().display();
    let unmount = if rustix::process::geteuid().is_root() { "umount" } else { "fusermount3 -u" };
    let or_interrupt = if serve.detached { "" } else { "Ctrl-C or " };
    opened.tell_ready(&format!("{} is mounted at {point} ({or_interrupt}{unmount} {point} ends it)", opened.name));
    let format = args.format;
    if format.is_json() {
        opened.print_ready(live.mount.point())?;
    }
    if let Some(log) = log {
        log.ready()?;
    }
    let end = lazy::serve(&mut live, interrupted).await;
    let mounted = live.since();
    let ended = match end {
        Ok(End::Stopped) => stop(&opened, live).await,
        Ok(End::Unmounted) => Ok(()),
        Err(error) => Err(error),
    };
    let written = opened.write_stats(mounted);
    ended.and(written).map_err(|error| if format.is_json() { lazy::too_late(&error) } else { error })
}

async fn stop(opened: &lazy::OpenedImage, live: LiveMount) -> Result<(), CliError> {
    let point = live.mount.point().display().to_string();
    if live.unmount().await.map_err(LazyError::from)? {
        opened.warn(&format!("{point} was in use when it was unmounted: open files can no longer be read"));
    }
    Ok(())
}
