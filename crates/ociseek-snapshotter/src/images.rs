//! The mounts of images. Each is served by a process of its own, which outlives this one; it is
//! found again in the kernel's list of mounts.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::mount::UnmountFlags;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::info;

use super::error::SnapshotError;
use super::rows::LazyLayer;
use ociseek_rootfs::fuse::{FS_TYPE, mounted_at, take_down};

/// How long the server of a mount may take to answer statfs(2).
const PATIENCE: Duration = Duration::from_secs(10);

/// The layers of an image that is worth mounting, from the bottom up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageLayers {
    /// The digests of the layers, as the image manifest lists them.
    pub digests: Vec<String>,
    /// The names of the snapshots that have each layer and those below it: chain IDs.
    pub chains: Vec<String>,
}

/// Judges and mounts images. Names have the digest of the image manifest.
pub trait LazyImages: Send + Sync {
    /// The layers of the image, if it should be mounted. None to have containerd unpack it.
    fn layers<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Option<ImageLayers>>;

    /// Mounts the lowest layers of an image on `point`, replacing a dead mount there, and returns
    /// once it is mounted. Later warnings are written to `log`.
    fn mount<'a>(&'a self, layer: &'a LazyLayer, point: &'a Path, log: &'a Path) -> BoxFuture<'a, Result<(), String>>;
}

/// The directory of the mounts, one for each snapshot that was mounted.
pub(crate) struct ImageDir {
    dir: PathBuf,
    lazy: Arc<dyn LazyImages>,
    /// One for each image, so that a registry that is away delays the containers of one image.
    busy: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<()>>>>,
}

impl ImageDir {
    pub(crate) fn new(dir: PathBuf, lazy: Arc<dyn LazyImages>) -> ImageDir {
        ImageDir { dir, lazy, busy: Mutex::default() }
    }

    pub(crate) async fn layers(&self, image: &str) -> Option<ImageLayers> {
        self.lazy.layers(image).await
    }

    fn busy(&self, id: u64) -> Arc<tokio::sync::Mutex<()>> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(busy.entry(id).or_default())
    }

    /// Mounts the image of the snapshot `id`, unless it is mounted and its server is alive.
    pub(crate) async fn mounted(&self, id: u64, layer: &LazyLayer) -> Result<PathBuf, SnapshotError> {
        let dir = self.dir.join(id.to_string());
        let point = dir.join("fs");
        let busy = self.busy(id);
        let _busy = busy.lock().await;
        if is_alive(&point).await.map_err(files(&point))? {
            return Ok(point);
        }
        // A dead mount point cannot be inspected, so it is not created again.
        match fs::create_dir_all(&dir).and_then(|()| fs::create_dir(&point)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(files(&point)(error)),
            _ => {}
        }
        self.lazy.mount(layer, &point, &dir.join("log")).await.map_err(SnapshotError::Mount)?;
        info!(image = layer.image, layers = layer.layers, point = %point.display(), "mounted");
        Ok(point)
    }

    /// Unmounts the image of the snapshot `id`, and removes what belongs to the mount.
    pub(crate) async fn remove(&self, id: u64) -> Result<(), SnapshotError> {
        let busy = self.busy(id);
        let _busy = busy.lock().await;
        let dir = self.dir.join(id.to_string());
        let removed = spawn_blocking(move || remove(&dir)).await;
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        removed.unwrap_or_else(|error| Err(files(&self.dir)(error.into())))
    }
}

fn files(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    |source| SnapshotError::Files { path, source }
}

fn remove(dir: &Path) -> Result<(), SnapshotError> {
    let point = dir.join("fs");
    while mounted_at(&point).map_err(files(&point))?.is_some() {
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        take_down(&point, flags).map_err(|error| files(&point)(io::Error::other(error)))?;
    }
    // Not remove_dir_all, which would follow a mount.
    for gone in [fs::remove_dir(&point), fs::remove_file(dir.join("log")), fs::remove_dir(dir)] {
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(files(dir)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Whether an image is mounted there whose server answers. The kernel answers stat(2) for the root
/// of a dead mount, but not statfs(2).
async fn is_alive(point: &Path) -> io::Result<bool> {
    let path = point.to_owned();
    let answer = spawn_blocking(move || match mounted_at(&path)? {
        Some(mount) if mount.fs_type == FS_TYPE => Ok(rustix::fs::statfs(&path).is_ok()),
        _ => Ok(false),
    });
    let late = || io::Error::other("the server of the mount does not answer");
    timeout(PATIENCE, answer).await.map_err(|_| late())??
}
