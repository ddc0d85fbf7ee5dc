//! `ociseek bundle`.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::args::BundleArgs;
use super::detach::{self, Log};
use super::lazy::{self, End, Opened};
use super::report::CliError;
use super::signals::Interrupt;
use super::until;
use crate::ops::bundle::{Bundle, BundleError, RunOptions, plan, remove};
use crate::ops::mount::{LiveMount, MountOptions, Prefetch, Record, mount};
use crate::rootfs::fuse::FuseOptions;

pub async fn run(args: BundleArgs, interrupted: &mut oneshot::Receiver<Interrupt>) -> Result<(), CliError> {
    if let Some(dir) = args.rm {
        let removed = spawn_blocking(move || remove(&dir)).await.map_err(|error| CliError::Start(error.into()))?;
        return Ok(removed?);
    }
    let (Some(name), Some(dir)) = (args.image, args.dir) else {
        return Err(CliError::Usage("want IMAGE and DIR, or --rm DIR"));
    };
    let serve = args.serve;
    if serve.detach && !serve.detached {
        return detach::start(interrupted).await;
    }
    let log = serve.detached.then(|| Log::open(serve.log.as_deref())).transpose()?;
    let record = serve.record.as_deref().map(lazy::create).transpose()?.map(Record::File);
    let style = lazy::style(&serve);
    let (mut opened, made) = until(interrupted, async {
        let image = name.to_string();
        let bundle = blocking(move || Bundle::new(&dir, &image)).await?;
        let run = lazy::run_options(args.container, args.command);
        let prefetch = args.lazy.prefetching();
        let opened = lazy::open_image(&name, None, args.lazy, style).await?;
        let made = make(&opened, bundle, &run, record, prefetch).await?;
        Ok((opened, made))
    })
    .await?;
    let Made { bundle, mut live } = made;
    opened.tell_ready(&format!("{} is a bundle in {}", opened.name, bundle.dir().display()));
    if let Some(log) = log {
        log.ready()?;
    }
    let end = lazy::serve(&mut live, interrupted).await;
    let mounted = live.since();
    match end {
        Ok(End::Asked) => Made { bundle, live }.take_down(&opened).await?,
        // Who unmounted it clears up too.
        Ok(End::Unmounted) => bundle.leave(),
        Err(_) => {}
    }
    opened.write_stats(mounted)?;
    end.map(|_| ())
}

/// A bundle that a runtime can start. The overlay goes before the mount below it.
pub struct Made {
    pub bundle: Bundle,
    pub live: LiveMount,
}

/// Mounts the image and the overlay, and writes config.json.
pub async fn make(
    opened: &Opened,
    bundle: Bundle,
    run: &RunOptions,
    record: Option<Record>,
    prefetch: Prefetch,
) -> Result<Made, CliError> {
    let image = &opened.image;
    let config = plan(&image.manifest.digest, &image.config, &image.tree, &image.content, run).await?;
    let fuse = FuseOptions {
        source: opened.name.clone(),
        // The container's users are not the one who mounts; the directory is closed to all others.
        allow_other: true,
        under_overlay: true,
        ..FuseOptions::default()
    };
    let options = MountOptions { fuse, record, prefetch };
    let live = mount(image, &bundle.image_point(), options, &opened.progress).await?;
    let tree = Arc::clone(&image.tree);
    let bundle = blocking(move || bundle.complete(&tree, &config).map(|()| bundle)).await?;
    Ok(Made { bundle, live })
}

impl Made {
    pub async fn take_down(self, opened: &Opened) -> Result<(), CliError> {
        let Made { bundle, live } = self;
        let dir = bundle.dir().display().to_string();
        let user = blocking(move || bundle.remove()).await?;
        drop(live);
        if let Some(pid) = user {
            opened.warn(&format!("{dir} was taken down while process {pid} ran in it, which has no files any more"));
        }
        Ok(())
    }
}

pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BundleError> + Send + 'static,
) -> Result<T, CliError> {
    Ok(spawn_blocking(work).await.map_err(|error| CliError::Start(error.into()))??)
}
