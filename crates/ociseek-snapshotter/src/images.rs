//! The mounts of images. Each is served by a process of its own, which outlives this one; it is
//! found again in the kernel's list of mounts. A server that is killed is replaced, on the same
//! FUSE device. This process has the device, too, and a keeper has it for when both are killed.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::mount::UnmountFlags;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::keep::{end, ended};
use super::messages::SnapshotError;
use super::rows::LazyLayer;
use ociseek_rootfs::fuse::{
    FS_TYPE, KeptDevice, MountInfo, TakenDevice, can_take_over, device_holders, mounted_at, mounts,
    open_device, take_down,
};
use ociseek_store::lock::Hold;

/// How long the server of a mount may take to answer statfs(2), and how often that is tried.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOKS: u32 = 10;

/// The pauses between attempts to replace a server, in seconds: some ten minutes together.
const PAUSES: [u64; 15] = [1, 2, 4, 8, 15, 30, 60, 60, 60, 60, 60, 60, 60, 60, 60];
/// How long a new container waits for another one that mounts the image, or for its new server.
const WAIT: Duration = Duration::from_secs(60);
/// The pause before a keeper that ended is replaced.
const KEEPER_PAUSE: Duration = Duration::from_secs(1);

/// The end of the name of a mount's directory, if the mount supports extended attributes.
const WITH_XATTRS: &str = ".xattrs";

/// The file of a mount's directory with the number of bytes fetched for it.
const FETCHED: &str = "fetched";

/// The file with the memory for the server of each mount, and that for everything, in bytes.
const SHARE: &str = "share";
/// The memory of the snapshotter itself, with the program's code that all processes share.
const SNAPSHOTTER: u64 = 32 << 20;
/// The memory of the process that keeps a mount's device.
const KEEPER: u64 = 1 << 20;

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

    /// Starts a process that keeps the device of a mount open, and returns a pidfd of it.
    ///
    /// # Errors
    /// If it cannot be started.
    fn keep(&self, mount: &MountInfo, device: &OwnedFd) -> io::Result<OwnedFd>;
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
    /// The file with the answers of the registry by which the image was opened before, and is
    /// opened again. The process may write it.
    pub answers: &'a Path,
    /// A file whose first line is the number of bytes of memory that the process may use. It
    /// changes when images are mounted and unmounted.
    pub share: &'a Path,
    /// The device, which this process keeps, too.
    pub device: KeptDevice,
    /// Whether extended attributes are supported even if no file has any (see
    /// `FuseOptions::answers_xattrs` of ociseek-rootfs).
    pub answers_xattrs: bool,
}

/// A mount of the lazy snapshot `id`. It has one for containers, and one for programs that compare
/// files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MountKey {
    pub id: u64,
    /// Slower for containers: an overlay asks for attributes of each file that it looks up.
    pub answers_xattrs: bool,
}

impl MountKey {
    /// Both mounts that a snapshot can have.
    fn both(id: u64) -> [MountKey; 2] {
        [false, true].map(|answers_xattrs| MountKey { id, answers_xattrs })
    }

    /// The name of its directory.
    fn dir(self) -> String {
        format!("{}{}", self.id, if self.answers_xattrs { WITH_XATTRS } else { "" })
    }

    /// The mount with this directory.
    pub(crate) fn of_dir(name: &str) -> Option<MountKey> {
        let id = name.strip_suffix(WITH_XATTRS);
        Some(MountKey { id: id.unwrap_or(name).parse().ok()?, answers_xattrs: id.is_some() })
    }
}

/// The directory of the mounts, one for each snapshot that was mounted.
#[derive(Clone)]
pub(crate) struct ImageDir(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    lazy: Arc<dyn LazyImages>,
    can_replace: bool,
    /// For this process and those of all mounts, in bytes.
    memory: u64,
    /// One for each mount, so that a registry that is away delays the containers of one image.
    busy: Mutex<HashMap<MountKey, Arc<tokio::sync::Mutex<()>>>>,
    /// The bytes that were fetched for mounts that are removed.
    fetched: AtomicU64,
    /// The tasks that replace the servers of mounts. Each holds the mount's device.
    kept: Mutex<HashMap<MountKey, AbortHandle>>,
    /// The pidfds of the processes that keep devices.
    keepers: Mutex<HashMap<MountKey, Arc<OwnedFd>>>,
}

impl ImageDir {
    pub(crate) fn new(dir: PathBuf, lazy: Arc<dyn LazyImages>, memory: u64) -> ImageDir {
        let can_replace = can_take_over();
        let busy = Mutex::default();
        let fetched = AtomicU64::new(0);
        let kept = Mutex::default();
        let keepers = Mutex::default();
        ImageDir(Arc::new(Inner { dir, lazy, can_replace, memory, busy, fetched, kept, keepers }))
    }

    pub(crate) async fn layers(&self, image: &str) -> Option<ImageLayers> {
        self.0.lazy.layers(image).await
    }

    fn busy(&self, key: MountKey) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.0.busy.hold().entry(key).or_default())
    }

    fn dir(&self, key: MountKey) -> PathBuf {
        self.0.dir.join(key.dir())
    }

    fn point(&self, key: MountKey) -> PathBuf {
        self.dir(key).join("fs")
    }

    /// The file with the registry's answers, the same for both mounts of a snapshot.
    fn answers(&self, key: MountKey) -> PathBuf {
        self.dir(MountKey { answers_xattrs: false, ..key }).join("answers")
    }

    /// Whether this is the mount point of an image.
    pub(crate) fn has(&self, point: &Path) -> bool {
        point.starts_with(&self.0.dir)
    }

    /// Mounts the image of a snapshot, unless it is mounted and its server is alive.
    pub(crate) async fn mounted(
        &self,
        key: MountKey,
        layer: &LazyLayer,
    ) -> Result<PathBuf, SnapshotError> {
        let point = self.point(key);
        let busy = self.busy(key);
        let late = |_| SnapshotError::Mount(format!("{} is not mounted yet", layer.image));
        let mut looks = 1..=LOOKS;
        let _busy = loop {
            let held = timeout(WAIT, busy.lock()).await.map_err(late)?;
            match is_alive(&point).await {
                Ok(true) => return Ok(point),
                Ok(false) => break held,
                // If the server has just been killed, the task that replaces it waits for the lock.
                Err(error)
                    if error.kind() == io::ErrorKind::TimedOut && looks.next() != Some(LOOKS) => {}
                Err(error) => return Err(files(&point)(error)),
            }
        };
        // A dead mount point cannot be inspected, so it is not created again.
        let dirs = [Some(self.dir(key)), self.answers(key).parent().map(Path::to_owned)];
        let made = dirs.into_iter().flatten().try_for_each(fs::create_dir_all);
        match made.and_then(|()| fs::create_dir(&point)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(files(&point)(error));
            }
            _ => {}
        }
        self.share_memory(1).await;
        let device =
            open_device().map_err(|error| SnapshotError::Mount(format!("/dev/fuse: {error}")))?;
        let device = Arc::new(device);
        let server = self.serve(key, layer, &device, false).await.map_err(SnapshotError::Mount)?;
        info!(image = layer.image, layers = layer.layers, point = %point.display(), "mounted");
        self.keep(key, layer.clone(), Some(server), device);
        Ok(point)
    }

    /// Divides the memory among all mounts, and `more` that do not exist yet.
    pub(crate) async fn share_memory(&self, more: u64) {
        let images = Arc::clone(&self.0);
        let written = spawn_blocking(move || {
            let mounts = mounts()?.into_iter();
            let ours = mounts
                .filter(|mount| mount.fs_type == FS_TYPE && mount.point.starts_with(&images.dir));
            let share = share(images.memory, ours.count() as u64 + more);
            let mut file =
                tempfile::NamedTempFile::new_in(images.dir.parent().unwrap_or(&images.dir))?;
            writeln!(file, "{share}\n{}", images.memory)?;
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
        key: MountKey,
        layer: &LazyLayer,
        device: &Arc<OwnedFd>,
        is_mounted: bool,
    ) -> Result<OwnedFd, String> {
        let dir = self.dir(key);
        let answers_xattrs = key.answers_xattrs;
        let device =
            KeptDevice { device: Arc::clone(device), is_mounted, identity: dir.join("tree") };
        let point = &dir.join("fs");
        let log = &dir.join("log");
        let fetched = &dir.join(FETCHED);
        let answers = &self.answers(key);
        let share = &self.0.dir.join(SHARE);
        self.0
            .lazy
            .mount(MountOrder {
                layer,
                point,
                log,
                fetched,
                answers,
                share,
                device,
                answers_xattrs,
            })
            .await
    }

    /// Keeps the device of a mount from now on, and replaces its server when that ends: at once if
    /// there is none.
    fn keep(&self, key: MountKey, layer: LazyLayer, server: Option<OwnedFd>, device: Arc<OwnedFd>) {
        if !self.0.can_replace {
            return;
        }
        let images = self.clone();
        let task = tokio::spawn(async move {
            images.replace_servers(key, &layer, server, &device).await;
            images.end_keeper(key);
        });
        if let Some(old) = self.0.kept.hold().insert(key, task.abort_handle()) {
            old.abort();
        }
    }

    /// Returns when the image is unmounted, or its server cannot be replaced. The mount is dead
    /// then, until the next container gets a new one.
    async fn replace_servers(
        &self,
        key: MountKey,
        layer: &LazyLayer,
        server: Option<OwnedFd>,
        device: &Arc<OwnedFd>,
    ) {
        let mut server = server;
        loop {
            if let Some(running) = &server
                && let Err(error) = self.watch(key, running, device).await
            {
                warn!(image = layer.image, error = %error, "the server of the mount cannot be watched");
                return;
            }
            match self.replace_server(key, layer, device).await {
                Some(new) => server = Some(new),
                None => return,
            }
        }
    }

    /// Waits until the server of a mount has ended. Meanwhile there is a keeper.
    async fn watch(&self, key: MountKey, server: &OwnedFd, device: &OwnedFd) -> io::Result<()> {
        loop {
            let keeper = self.keeper(key, device);
            let alone = async {
                if let Some(keeper) = keeper {
                    let _ = ended(&keeper).await;
                    self.0.keepers.hold().remove(&key);
                }
                sleep(KEEPER_PAUSE).await;
            };
            tokio::select! {
                server = ended(server) => return server,
                () = alone => {}
            }
        }
    }

    /// The process that keeps the device of a mount, which is started if it is missing. None if it
    /// cannot be, or nothing is mounted.
    fn keeper(&self, key: MountKey, device: &OwnedFd) -> Option<Arc<OwnedFd>> {
        if let Some(keeper) = self.0.keepers.hold().get(&key) {
            return Some(Arc::clone(keeper));
        }
        let point = self.point(key);
        let mount = mounted_at(&point).ok().flatten().filter(|mount| mount.fs_type == FS_TYPE)?;
        match self.0.lazy.keep(&mount, device) {
            Ok(keeper) => {
                let keeper = Arc::new(keeper);
                self.0.keepers.hold().insert(key, Arc::clone(&keeper));
                Some(keeper)
            }
            Err(error) => {
                warn!(point = %point.display(), %error, "no process can be started that keeps the mount's device");
                None
            }
        }
    }

    fn end_keeper(&self, key: MountKey) {
        if let Some(keeper) = self.0.keepers.hold().remove(&key) {
            end(&keeper);
        }
    }

    /// Replaces the server of a mount, which has ended. None if the image is unmounted, or it
    /// cannot be replaced.
    async fn replace_server(
        &self,
        key: MountKey,
        layer: &LazyLayer,
        device: &Arc<OwnedFd>,
    ) -> Option<OwnedFd> {
        let point = self.point(key);
        // Containers that are created now wait for the new server.
        let busy = self.busy(key);
        let _busy = busy.lock().await;
        let mut pauses = PAUSES.iter();
        loop {
            if !matches!(mounted_at(&point), Ok(Some(mount)) if mount.fs_type == FS_TYPE) {
                return None;
            }
            match (self.serve(key, layer, device, true).await, pauses.next()) {
                (Ok(server), _) => {
                    info!(image = layer.image, point = %point.display(), "the server of the mount is replaced");
                    return Some(server);
                }
                (Err(error), Some(pause)) => {
                    warn!(
                        image = layer.image,
                        error, "the mount has no server, and does not get one yet"
                    );
                    sleep(Duration::from_secs(*pause)).await;
                }
                (Err(error), None) => {
                    warn!(
                        image = layer.image,
                        error, "the mount has no server, and cannot get one"
                    );
                    return None;
                }
            }
        }
    }

    /// Kills servers that were not ready when the process that started them was killed. They would
    /// unmount what they mount.
    pub(crate) async fn end_unready(&self) {
        let dir = self.0.dir.clone();
        let ended = spawn_blocking(move || {
            let holders = device_holders()?.into_iter();
            let unready =
                holders.filter(|it| it.serves && it.point.starts_with(&dir) && !it.is_ready());
            unready.map(|server| server.kill()).fold(Ok(()), Result::and)
        });
        if let Err(error) = ended.await.map_err(io::Error::from).flatten() {
            warn!(%error, "the servers of mounts that were not ready cannot be ended");
        }
    }

    /// Keeps the devices of the mounts that another process made. Those whose server was killed get
    /// a new one.
    pub(crate) async fn adopt(&self, layers: Vec<(u64, LazyLayer)>) {
        if !self.0.can_replace {
            return;
        }
        let layers: Vec<(MountKey, LazyLayer)> = layers
            .into_iter()
            .flat_map(|(id, layer)| MountKey::both(id).map(|key| (key, layer.clone())))
            .collect();
        let points: HashMap<PathBuf, MountKey> =
            layers.iter().map(|(key, _)| (self.point(*key), *key)).collect();
        let mut found =
            match spawn_blocking(move || taken(&points)).await.map_err(io::Error::from).flatten() {
                Ok(found) => found,
                Err(error) => return warn!(%error, "the servers of the mounts cannot be watched"),
            };
        for (key, layer) in layers {
            let Some(Taken { server, keeper }) = found.remove(&key) else { continue };
            let (keeper, kept) = keeper.map(|taken| (taken.process, taken.device)).unzip();
            let (server, served) = server.map(|taken| (taken.process, taken.device)).unzip();
            if let Some(keeper) = keeper {
                self.0.keepers.hold().insert(key, Arc::new(keeper));
            }
            if let Some(device) = served.or(kept) {
                self.keep(key, layer, server, Arc::new(device));
            }
        }
    }

    /// The bytes that were fetched for the mounts of the snapshots with these ids, and for those
    /// that were removed since the start of this process.
    pub(crate) fn fetched(&self, ids: impl Iterator<Item = u64>) -> u64 {
        let removed = self.0.fetched.load(Ordering::Relaxed);
        ids.flat_map(MountKey::both)
            .fold(removed, |sum, key| sum.saturating_add(fetched(&self.dir(key))))
    }

    /// Unmounts the image of the snapshot `id`, and removes what belongs to its mounts.
    pub(crate) async fn remove(&self, id: u64) -> Result<(), SnapshotError> {
        let mut was_mounted = false;
        // The answers, which both use, are removed last.
        for key in MountKey::both(id).into_iter().rev() {
            was_mounted |= self.remove_mount(key).await?;
        }
        if was_mounted {
            self.share_memory(0).await;
        }
        Ok(())
    }

    /// Returns whether it was mounted.
    async fn remove_mount(&self, key: MountKey) -> Result<bool, SnapshotError> {
        if let Some(task) = self.0.kept.hold().remove(&key) {
            task.abort();
        }
        let busy = self.busy(key);
        let _busy = busy.lock().await;
        let dir = self.dir(key);
        self.0.fetched.fetch_add(fetched(&dir), Ordering::Relaxed);
        let removed = spawn_blocking(move || remove(&dir)).await;
        self.end_keeper(key);
        self.0.busy.hold().remove(&key);
        removed.unwrap_or_else(|error| Err(files(&self.0.dir)(error.into())))
    }
}

/// What was taken from the processes that have the device of a mount.
#[derive(Default)]
struct Taken {
    server: Option<TakenDevice>,
    keeper: Option<TakenDevice>,
}

/// The devices of the mounts on `points`.
fn taken(points: &HashMap<PathBuf, MountKey>) -> io::Result<HashMap<MountKey, Taken>> {
    // The last one mounted on a point is visible.
    let mounts = mounts()?.into_iter().map(|mount| (mount.point.clone(), mount));
    let mounts: HashMap<PathBuf, MountInfo> =
        mounts.filter(|(point, _)| points.contains_key(point)).collect();
    let mut found: HashMap<MountKey, Taken> = HashMap::new();
    for holder in device_holders()? {
        let (Some(key), Some(mount)) = (points.get(&holder.point), mounts.get(&holder.point))
        else {
            continue;
        };
        match holder.take(mount) {
            Ok(Some(taken)) => {
                let entry = found.entry(*key).or_default();
                let place = if holder.serves { &mut entry.server } else { &mut entry.keeper };
                *place = Some(taken);
            }
            Ok(None) => {}
            Err(error) => {
                warn!(point = %holder.point.display(), %error, "the process that serves it cannot be watched")
            }
        }
    }
    Ok(found)
}

/// The memory for the server of each of some mounts.
fn share(memory: u64, mounts: u64) -> u64 {
    (memory.saturating_sub(SNAPSHOTTER) / mounts.max(1)).saturating_sub(KEEPER)
}

/// The memory that the snapshotter with this directory of mounts may use, if it ran.
pub(crate) fn limit(dir: &Path) -> Option<u64> {
    fs::read_to_string(dir.join(SHARE)).ok()?.lines().nth(1)?.trim().parse().ok()
}

fn files(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    |source| SnapshotError::Files { path, source }
}

/// Returns whether it was mounted.
fn remove(dir: &Path) -> Result<bool, SnapshotError> {
    let point = dir.join("fs");
    let mut was_mounted = false;
    while mounted_at(&point).map_err(files(&point))?.is_some() {
        was_mounted = true;
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        take_down(&point, flags).map_err(|error| files(&point)(io::Error::other(error)))?;
    }
    match remove_files(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(files(dir)(error)),
        _ => Ok(was_mounted),
    }
}

/// Removes a directory of files and empty directories, also what a crash left of a file. Not
/// remove_dir_all, which would follow a mount.
fn remove_files(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let gone = if entry.file_type()?.is_dir() {
            fs::remove_dir(entry.path())
        } else {
            fs::remove_file(entry.path())
        };
        // Its server may have removed it.
        gone.or_else(
            |error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) },
        )?;
    }
    fs::remove_dir(dir)
}

/// The bytes that were fetched for the mount with this directory; none if it has no file for that.
pub(crate) fn fetched(dir: &Path) -> u64 {
    fs::read_to_string(dir.join(FETCHED))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Whether an image is mounted there whose server answers. The kernel answers stat(2) for the root
/// of a dead mount, but not statfs(2).
async fn is_alive(point: &Path) -> io::Result<bool> {
    let path = point.to_owned();
    let answer = spawn_blocking(move || match mounted_at(&path)? {
        Some(mount) if mount.fs_type == FS_TYPE => Ok(rustix::fs::statfs(&path).is_ok()),
        _ => Ok(false),
    });
    let late =
        || io::Error::new(io::ErrorKind::TimedOut, "the server of the mount does not answer");
    timeout(PATIENCE, answer).await.map_err(|_| late())??
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_divided_among_the_mounts() {
        const MIB: u64 = 1 << 20;
        for (mounts, share_of_each) in
            [(0, 479), (1, 479), (8, 59), (16, 29), (30, 15), (512, 0), (5000, 0)]
        {
            assert_eq!(share(512 * MIB, mounts) / MIB, share_of_each, "{mounts}");
            let all = SNAPSHOTTER + (share(512 * MIB, mounts) + KEEPER) * mounts;
            assert!(all <= 512 * MIB || share(512 * MIB, mounts) == 0, "{mounts}");
        }
        assert_eq!(share(0, 3), 0);
    }

    #[test]
    fn both_mounts_of_a_snapshot_have_a_directory() {
        for key in MountKey::both(7) {
            assert_eq!(MountKey::of_dir(&key.dir()), Some(key));
            // What is found there belongs to this snapshot.
            assert_eq!(key.dir().split('.').next(), Some("7"));
        }
        for other in ["share", "7.removed", ".xattrs", "7.xattrs.xattrs"] {
            assert_eq!(MountKey::of_dir(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_crash_left_of_a_file_is_removed_with_its_image() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("1");
        fs::create_dir_all(dir.join("fs")).unwrap();
        for name in ["log", "tree", "answers", "unfinished-aB3dEf"] {
            fs::write(dir.join(name), "").unwrap();
        }
        assert!(!remove(&dir).unwrap() && !dir.exists());
        assert!(!remove(&dir).unwrap());
        // What is not empty may be a mount that was not seen.
        fs::create_dir_all(dir.join("fs/file")).unwrap();
        assert!(remove(&dir).is_err() && dir.join("fs/file").exists());
    }
}
