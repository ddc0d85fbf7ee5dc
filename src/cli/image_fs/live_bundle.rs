//! Creates a bundle for an image that was not pulled, for `bundle` and `trace`.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use crate::cli::image_fs::OpenedImage;
use crate::cli::shared::error::{CliError, LazyError};
use ociseek_ops::bundle::{ACCOUNTS, Bundle, RunOptions, plan};
use ociseek_ops::mount::{LiveMount, MountOptions, Prefetch, Record, mount};
use ociseek_rootfs::fuse::FuseOptions;

/// A bundle that a runtime can start. The overlay is unmounted before the image below it.
pub(crate) struct LiveBundle {
    pub bundle: Bundle,
    pub live: LiveMount,
}

/// Mounts the image and the overlay, and writes config.json.
pub(crate) async fn make(
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
    let (config, live) = (config.map_err(LazyError::from)?, live.map_err(LazyError::from)?);
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
            opened.warn(&format!("{dir} was removed while process {pid} was running in it and has lost its files"));
        }
        Ok(())
    }
}

pub(crate) async fn blocking<T: Send + 'static, E: Into<LazyError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, CliError> {
    Ok(spawn_blocking(work).await.map_err(|error| CliError::Start(error.into()))?.map_err(E::into)?)
}
