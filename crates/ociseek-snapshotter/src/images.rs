//! The mounts of images. Each is served by a process of its own, which outlives this one; it is
//! found again in the kernel's list of mounts. A server that is killed is replaced.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::mount::UnmountFlags;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::error::SnapshotError;
use super::keep::{can_replace_servers, ended, server_of};
use super::rows::LazyLayer;
use ociseek_rootfs::fuse::{FS_TYPE, KeptDevice, mounted_at, mounts, open_device, take_down};

/// How long the server of a mount may take to answer statfs(2).
const PATIENCE: Duration = Duration::from_secs(10);

/// The pauses between attempts to replace a server, in seconds.
const PAUSES: [u64; 6] = [1, 2, 4, 8, 15, 30];

/// The file of a mount's directory with the number of bytes fetched for it.
const FETCHED: &str = "fetched";

/// The file with the memory for the content of each mount.
const SHARE: &str = "share";
/// The least and the most memory for the content of a mount, in bytes.
const SHARES: (u64, u64) = (1 << 20, 64 << 20);

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

    /// Starts a process that serves the lowest layers of an image, and returns a pidfd of it once
    /// it is ready. The device is its standard input, and the mount point its last argument.
    fn mount<'a>(&'a self, order: MountOrder<'a>) -> BoxFuture<'a, Result<OwnedFd, String>>;
}

/// What to mount, and where.
#[derive(Debug)]
pub struct MountOrder<'a> {
    /// The layers.
    pub layer: &'a LazyLayer,
    /// The mount point. A dead mount there is replaced, unless the device is mounted on it.
    pub point: &'a Path,
    /// The file for warnings of the process once it is ready.
    pub log: &'a Path,
    /// The file for the number of bytes that the process fetches.
    pub fetched: &'a Path,
    /// A file with the number of bytes of content that the process may keep in memory. It changes
    /// when images are mounted and unmounted.
    pub share: &'a Path,
    /// The device, which this process keeps, too.
    pub device: KeptDevice,
}

/// The directory of the mounts, one for each snapshot that was mounted.
#[derive(Clone)]
pub(crate) struct ImageDir(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    lazy: Arc<dyn LazyImages>,
    can_replace: bool,
    /// For the content of all mounts, in bytes.
    memory: u64,
    /// One for each image, so that a registry that is away delays the containers of one image.
    busy: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<()>>>>,
    /// The bytes that were fetched for mounts that are removed.
    fetched: AtomicU64,
    /// The tasks that replace the servers of mounts. Each holds the mount's device.
    kept: Mutex<HashMap<u64, AbortHandle>>,
}

/// Locks what is never left in an invalid state.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ImageDir {
    pub(crate) fn new(dir: PathBuf, lazy: Arc<dyn LazyImages>, memory: u64) -> ImageDir {
        let can_replace = can_replace_servers();
        let (busy, fetched, kept) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
        ImageDir(Arc::new(Inner { dir, lazy, can_replace, memory, busy, fetched, kept }))
    }

    pub(crate) async fn layers(&self, image: &str) -> Option<ImageLayers> {
        self.0.lazy.layers(image).await
    }

    fn busy(&self, id: u64) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(locked(&self.0.busy).entry(id).or_default())
    }

    fn point(&self, id: u64) -> PathBuf {
        self.0.dir.join(id.to_string()).join("fs")
    }

    /// Mounts the image of the snapshot `id`, unless it is mounted and its server is alive.
    pub(crate) async fn mounted(&self, id: u64, layer: &LazyLayer) -> Result<PathBuf, SnapshotError> {
        let point = self.point(id);
        let busy = self.busy(id);
        let _busy = busy.lock().await;
        if is_alive(&point).await.map_err(files(&point))? {
            return Ok(point);
        }
        // A dead mount point cannot be inspected, so it is not created again.
        match fs::create_dir_all(self.0.dir.join(id.to_string())).and_then(|()| fs::create_dir(&point)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(files(&point)(error)),
            _ => {}
        }
        self.share_memory(1).await;
        let device = open_device().map_err(|error| SnapshotError::Mount(format!("/dev/fuse: {error}")))?;
        let device = Arc::new(device);
        let server = self.serve(id, layer, &device, false).await.map_err(SnapshotError::Mount)?;
        info!(image = layer.image, layers = layer.layers, point = %point.display(), "mounted");
        self.keep(id, layer.clone(), server, device);
        Ok(point)
    }

    /// Divides the memory among all mounts, and `more` that do not exist yet.
    pub(crate) async fn share_memory(&self, more: u64) {
        let images = Arc::clone(&self.0);
        let written = spawn_blocking(move || {
            let mounts = mounts()?.into_iter();
            let ours = mounts.filter(|mount| mount.fs_type == FS_TYPE && mount.point.starts_with(&images.dir));
            let share = share(images.memory, ours.count() as u64 + more);
            let mut file = tempfile::NamedTempFile::new_in(images.dir.parent().unwrap_or(&images.dir))?;
            writeln!(file, "{share}")?;
            // If it is lost with the power, so are the mounts.
            file.persist(images.dir.join(SHARE))?;
            Ok::<_, io::Error>(())
        });
        if let Err(error) = written.await.map_err(io::Error::from).flatten() {
            warn!(%error, "the memory cannot be divided among the mounts");
        }
    }

    async fn serve(
        &self,
        id: u64,
        layer: &LazyLayer,
        device: &Arc<OwnedFd>,
        is_mounted: bool,
    ) -> Result<OwnedFd, String> {
        let dir = self.0.dir.join(id.to_string());
        let device = KeptDevice { device: Arc::clone(device), is_mounted, identity: dir.join("tree") };
        let (point, log, fetched) = (&dir.join("fs"), &dir.join("log"), &dir.join(FETCHED));
        let share = &self.0.dir.join(SHARE);
        self.0.lazy.mount(MountOrder { layer, point, log, fetched, share, device }).await
    }

    /// Keeps the device of a mount from now on, and replaces its server when that is killed.
    fn keep(&self, id: u64, layer: LazyLayer, server: OwnedFd, device: Arc<OwnedFd>) {
        if !self.0.can_replace {
            return;
        }
        let images = self.clone();
        let task = tokio::spawn(async move { images.replace_servers(id, &layer, server, &device).await });
        if let Some(old) = locked(&self.0.kept).insert(id, task.abort_handle()) {
            old.abort();
        }
    }

    /// Returns when the image is unmounted, or its server cannot be replaced. The mount is dead
    /// then, until the next container gets a new one.
    async fn replace_servers(&self, id: u64, layer: &LazyLayer, mut server: OwnedFd, device: &Arc<OwnedFd>) {
        let point = self.point(id);
        loop {
            if let Err(error) = ended(&server).await {
                warn!(image = layer.image, error = %error, "the server of the mount cannot be watched");
                return;
            }
            // Containers that are created now wait for the new server.
            let busy = self.busy(id);
            let _busy = busy.lock().await;
            let mut pauses = PAUSES.iter();
            server = loop {
                if !matches!(mounted_at(&point), Ok(Some(mount)) if mount.fs_type == FS_TYPE) {
                    return;
                }
                match (self.serve(id, layer, device, true).await, pauses.next()) {
                    (Ok(server), _) => break server,
                    (Err(error), Some(pause)) => {
                        warn!(image = layer.image, error, "the server of the mount ended, and is not replaced yet");
                        sleep(Duration::from_secs(*pause)).await;
                    }
                    (Err(error), None) => {
                        warn!(image = layer.image, error, "the server of the mount ended, and cannot be replaced");
                        return;
                    }
                }
            };
            info!(image = layer.image, point = %point.display(), "the server of the mount ended, and is replaced");
        }
    }

    /// Keeps the device of a mount that another process made, if its server is alive.
    pub(crate) async fn adopt(&self, id: u64, layer: &LazyLayer) {
        let point = self.point(id);
        let find = move || match mounted_at(&point)? {
            Some(mount) if mount.fs_type == FS_TYPE => server_of(&point),
            _ => Ok(None),
        };
        match spawn_blocking(find).await.map_err(io::Error::from).flatten() {
            Ok(Some((server, device))) => self.keep(id, layer.clone(), server, Arc::new(device)),
            Ok(None) => {}
            Err(error) => warn!(image = layer.image, error = %error, "the server of the mount cannot be watched"),
        }
    }

    /// The bytes that were fetched for the mounts with these ids, and for those that were removed
    /// since the start of this process.
    pub(crate) fn fetched(&self, ids: impl Iterator<Item = u64>) -> u64 {
        let removed = self.0.fetched.load(Ordering::Relaxed);
        ids.fold(removed, |sum, id| sum.saturating_add(fetched(&self.0.dir.join(id.to_string()))))
    }

    /// Unmounts the image of the snapshot `id`, and removes what belongs to the mount.
    pub(crate) async fn remove(&self, id: u64) -> Result<(), SnapshotError> {
        if let Some(task) = locked(&self.0.kept).remove(&id) {
            task.abort();
        }
        let busy = self.busy(id);
        let _busy = busy.lock().await;
        let dir = self.0.dir.join(id.to_string());
        self.0.fetched.fetch_add(fetched(&dir), Ordering::Relaxed);
        let removed = spawn_blocking(move || remove(&dir)).await;
        locked(&self.0.busy).remove(&id);
        let was_mounted = removed.unwrap_or_else(|error| Err(files(&self.0.dir)(error.into())))?;
        if was_mounted {
            self.share_memory(0).await;
        }
        Ok(())
    }
}

/// The memory for the content of each of some mounts.
fn share(memory: u64, mounts: u64) -> u64 {
    (memory / mounts.max(1)).clamp(SHARES.0, SHARES.1)
}

fn files(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    |source| SnapshotError::Files { path, source }
}

/// Returns whether it was mounted.
fn remove(dir: &Path) -> Result<bool, SnapshotError> {
    let (point, mut was_mounted) = (dir.join("fs"), false);
    while mounted_at(&point).map_err(files(&point))?.is_some() {
        was_mounted = true;
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        take_down(&point, flags).map_err(|error| files(&point)(io::Error::other(error)))?;
    }
    // Not remove_dir_all, which would follow a mount.
    for gone in [
        fs::remove_dir(&point),
        fs::remove_file(dir.join("log")),
        fs::remove_file(dir.join("tree")),
        fs::remove_file(dir.join(FETCHED)),
        fs::remove_dir(dir),
    ] {
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(files(dir)(error)),
            _ => {}
        }
    }
    Ok(was_mounted)
}

/// The bytes that were fetched for the mount with this directory; none if it has no file for that.
pub(crate) fn fetched(dir: &Path) -> u64 {
    fs::read_to_string(dir.join(FETCHED)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_divided_among_the_mounts() {
        const MIB: u64 = 1 << 20;
        for (mounts, share_of_each) in [(0, 64), (1, 64), (8, 64), (16, 32), (30, 17), (512, 1), (5000, 1)] {
            assert_eq!(share(512 * MIB, mounts) / MIB, share_of_each, "{mounts}");
        }
    }
}
