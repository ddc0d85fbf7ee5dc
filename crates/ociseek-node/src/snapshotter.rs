//! The snapshots: rows, directories and mounts together.
//!
//! A row is written after what it needs, and removed before that. What a crash leaves without a row
//! is removed at the next start, or by containerd's `Cleanup`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::block_in_place;
use tokio::time::timeout;
use tracing::{info, warn};

use super::ids::{MappedIds, Owner, owner};
use super::images::{ImageDir, MountKey};
use super::lazy::LazyImages;
use super::messages::{
    CommitRequest, CreateRequest, SnapshotError, SnapshotFilter, SnapshotInfo, SnapshotMount,
};
use super::rows::{LazyLayer, RowStore, SnapshotKind, SnapshotRow, SnapshotRows, warned};
use super::status::{points, usage};
use ociseek_rootfs::fuse::Release;
use ociseek_store::state_file::make_directory;

/// The label with the name of the snapshot that containerd would commit (`core/snapshots`).
pub(crate) const TARGET: &str = "containerd.io/snapshot.ref";
/// The labels of a layer's image (`pkg/snapshotters/annotations.go`).
pub(crate) const IMAGE: &str = "containerd.io/snapshot/cri.image-ref";
pub(crate) const MANIFEST: &str = "containerd.io/snapshot/cri.manifest-digest";
pub(crate) const LAYER: &str = "containerd.io/snapshot/cri.layer-digest";
/// The labels of BuildKit, for a snapshotter with the name `stargz` (`util/estargz/labels.go`). The
/// reference has the digest of the image manifest or of the image index.
const BUILD_REFERENCE: &str = "containerd.io/snapshot/remote/stargz.reference";
const BUILD_LAYER: &str = "containerd.io/snapshot/remote/stargz.digest";

/// How many calls use the disk at a time. If it does not answer, each keeps a thread.
const DISK_CALLS: usize = 16;
/// How long others wait for them.
const DISK_WAIT: Duration = Duration::from_secs(10);

/// The end of the name of a directory whose snapshot was removed.
const HIDDEN: &str = "removed";

/// A snapshotter's state. Only one process can have it at a time.
pub struct Snapshotter {
    root: PathBuf,
    store: RowStore,
    images: ImageDir,
    /// For [`Snapshotter::on_disk`].
    disk: Semaphore,
}

ociseek_format::opaque_debug!(Snapshotter);

/// What a snapshotter keeps, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptNumbers {
    /// All snapshots.
    pub snapshots: u64,
    /// The images whose layers are not pulled.
    pub images: u64,
    /// Those that are mounted.
    pub mounts: u64,
    /// The bytes that were fetched for all mounts since the start of this process, and before that
    /// for those that are still there.
    pub fetched: u64,
    /// The mounts that do not answer.
    pub silent: u64,
}

impl Snapshotter {
    /// Opens the state in the directory `root`, which is created if it is missing. Removes what a
    /// crash left. `memory` is for the content that all mounts keep in memory, in bytes.
    ///
    /// # Errors
    /// If the state cannot be read, is damaged, or is used by another process.
    pub async fn open(
        root: &Path,
        lazy: Arc<dyn LazyImages>,
        memory: u64,
    ) -> Result<Snapshotter, SnapshotError> {
        let failed = |source| SnapshotError::Files { path: root.to_owned(), source };
        let create = || {
            DirBuilder::new().recursive(true).mode(0o700).create(root)?;
            let root = root.canonicalize()?;
            DIRS.iter().try_for_each(|dir| make_directory(&root.join(dir), &warned))?;
            DIRS.iter().for_each(|dir| close_to_others(&root.join(dir)));
            // They cannot be escaped in the options that containerd passes to the kernel.
            match root.to_str().filter(|path| !path.contains([',', ':', '\\'])) {
                Some(_) => Ok(root),
                None => Err(io::Error::other(
                    "its path must be UTF-8 without commas, colons and backslashes",
                )),
            }
        };
        let root = create().map_err(failed)?;
        let existing = directories(&root).map_err(failed)?;
        let store = RowStore::open(&root, &existing).map_err(failed)?;
        let stacks = store.read(|rows| {
            rows.iter().filter_map(|(_, row)| Some((row.id, rows.stack(row)?))).collect()
        });
        let images = ImageDir::open(&root, lazy, memory, stacks).await;
        let disk = Semaphore::new(DISK_CALLS);
        let snapshotter = Snapshotter { root, store, images, disk };
        // Containers of the node need a snapshotter more than they need these to be gone.
        for left in [snapshotter.remove_gone().await, snapshotter.remove_unknown(|_, _| true).await]
        {
            if let Err(error) = left {
                warn!(name: "state", %error, "cannot remove what an earlier process left");
            }
        }
        Ok(snapshotter)
    }

    /// From now on, all mounts together use this many bytes of memory.
    pub fn limit_memory(&self, bytes: u64) {
        self.images.limit_memory(bytes);
    }

    /// Has the socket kept that calls come to, also while no process serves them, and returns the
    /// one of an earlier process.
    pub fn keep_socket(&self, socket: OwnedFd) -> Option<OwnedFd> {
        block_in_place(|| self.images.keep_socket(socket))
    }

    /// Whether all mounts answer.
    pub fn is_ready(&self) -> bool {
        self.images.silent() == 0
    }

    /// The current numbers. Those that the kernel does not tell are zero.
    pub fn numbers(&self) -> KeptNumbers {
        self.store.read(|rows| {
            let lazy: Vec<_> =
                rows.iter().filter_map(|(_, row)| Some((row.id, row.lazy.as_ref()?))).collect();
            let images: HashSet<&str> =
                lazy.iter().map(|(_, layer)| layer.image.as_str()).collect();
            KeptNumbers {
                snapshots: rows.iter().count() as u64,
                images: images.len() as u64,
                mounts: points(&self.root, rows).map_or(0, |points| points.len() as u64),
                fetched: self.images.fetched(),
                silent: self.images.silent(),
            }
        })
    }

    /// Does what may wait for the disk. A disk that does not answer stops neither reads of
    /// containers nor calls that do not need it, and gives all others an answer.
    async fn on_disk<T>(
        &self,
        work: impl FnOnce() -> Result<T, SnapshotError>,
    ) -> Result<T, SnapshotError> {
        let silent = || SnapshotError::Silent(self.root.clone());
        // It is never closed.
        let Ok(Ok(_permit)) = timeout(DISK_WAIT, self.disk.acquire()).await else {
            return Err(silent());
        };
        block_in_place(work)
    }

    fn dir(&self, id: u64) -> PathBuf {
        self.root.join("snapshots").join(id.to_string())
    }

    fn part(&self, id: u64, part: &str) -> String {
        // The root was checked.
        self.dir(id).join(part).to_string_lossy().into_owned()
    }

    /// `Prepare` and `View`.
    pub(crate) async fn create(
        &self,
        kind: SnapshotKind,
        request: CreateRequest,
    ) -> Result<Vec<SnapshotMount>, SnapshotError> {
        if kind == SnapshotKind::Active
            && let Some(target) = self.noted(&request).await?
        {
            return Err(SnapshotError::Exists(target));
        }
        let CreateRequest { key, parent, labels } = request;
        MappedIds::of(&labels)?;
        let mut new = None;
        let added = self.on_disk(|| {
            self.store.change(|rows| {
                let id = rows.add(kind, &key, &parent, labels, None)?;
                new = Some(id);
                let dir = self.dir(id);
                self.make(&dir, kind).map_err(|source| SnapshotError::Files { path: dir, source })
            })
        });
        let added = added.await;
        if let (Err(_), Some(id)) = (&added, new) {
            // What cannot be removed now is removed at the next start.
            let _ = self.discard(id).await;
        }
        added?;
        let mounts = self.prepared(&key).await;
        if let (Err(error), Some(id)) = (&mounts, new) {
            warn!(name: "state", key, %error, "cannot create the snapshot");
            self.remove(&key).await?;
            self.discard(id).await?;
        }
        mounts
    }

    fn make(&self, dir: &Path, kind: SnapshotKind) -> io::Result<()> {
        let made = |path: PathBuf, mode| match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => fs::set_permissions(path, Permissions::from_mode(mode)),
        };
        made(dir.to_owned(), 0o700)?;
        made(dir.join("fs"), 0o755)?;
        if kind == SnapshotKind::Active { made(dir.join("work"), 0o711) } else { Ok(()) }
    }

    /// If the layer that should be unpacked is one of an image that should be mounted, notes it
    /// down, and returns its name.
    async fn noted(&self, request: &CreateRequest) -> Result<Option<String>, SnapshotError> {
        let CreateRequest { parent, labels, .. } = request;
        let Some((target, image, digest)) = remote_layer(labels) else { return Ok(None) };
        let below = self.store.read(|rows| {
            if parent.is_empty() {
                Some(0)
            } else {
                rows.get(parent).ok().and_then(|row| row.lazy.as_ref()).map(|lazy| lazy.layers)
            }
        });
        // An unpacked layer below it is not one of a mount.
        let Some(below) = below else {
            self.images.lies_on_unpacked(&image);
            return Ok(None);
        };
        let Some(layers) = self.images.layers(&image).await else { return Ok(None) };
        // Labels come from the client that asks containerd to unpack an image.
        if layers.digests.get(below) != Some(digest) || layers.chains.get(below) != Some(target) {
            warn!(
                name: "wrong-labels", image, target,
                "the labels do not fit the image: its layer is unpacked"
            );
            return Ok(None);
        }
        let document = layers.documents.get(below).cloned().flatten();
        let lazy = LazyLayer { image, digest: digest.clone(), document, layers: below + 1 };
        let other = self.on_disk(|| {
            self.store.change(|rows| match rows.get(target) {
                Ok(row) => Ok(other_than(row, parent, &lazy)),
                Err(_) => rows
                    .add(
                        SnapshotKind::Committed,
                        target,
                        parent,
                        labels.clone(),
                        Some(lazy.clone()),
                    )
                    .map(|_| None),
            })
        });
        if let Some(other) = other.await? {
            self.images.cannot_share(&lazy.image, target, &other);
            return Ok(None);
        }
        info!(name: "noted", layer = target, image = lazy.image, "the layer is not pulled");
        Ok(Some(target.clone()))
    }

    /// The mounts of a new snapshot.
    async fn prepared(&self, key: &str) -> Result<Vec<SnapshotMount>, SnapshotError> {
        let (top, lower) = self.layers(key).await?;
        let mounts = self.on_disk(|| {
            self.own(&top, lower.first())?;
            Ok(vec![self.mount(&top, lower)?])
        });
        mounts.await
    }

    /// The mounts of an active snapshot or view. Mounts its image if necessary.
    pub(crate) async fn mounts(&self, key: &str) -> Result<Vec<SnapshotMount>, SnapshotError> {
        let (top, lower) = self.layers(key).await?;
        self.on_disk(|| Ok(vec![self.mount(&top, lower)?])).await
    }

    /// Gives the root directory of a new snapshot its owner: the root of the user namespace, or
    /// that of the directory below it.
    fn own(&self, top: &SnapshotRow, below: Option<&LowerDir>) -> Result<(), SnapshotError> {
        let owner = match (MappedIds::of(&top.labels)?, below) {
            (Some(ids), _) => ids.root,
            (None, Some(below)) => below.owner()?,
            (None, None) => return Ok(()),
        };
        let path = self.dir(top.id).join("fs");
        lchown(&path, Some(owner.0), Some(owner.1))
            .map_err(|source| SnapshotError::Files { path, source })
    }

    /// An active snapshot or view, and the directories below it from the top down. Mounts its image
    /// if necessary.
    async fn layers(&self, key: &str) -> Result<(SnapshotRow, Vec<LowerDir>), SnapshotError> {
        let (top, unpacked, lazy) = self.store.read(|rows| {
            let top = rows.get(key)?.clone();
            let mut unpacked: Vec<SnapshotRow> = rows.below(&top).cloned().collect();
            if let Some(missing) = rows.missing_below(&top) {
                return Err(SnapshotError::Precondition(format!(
                    "the row of {missing}, below snapshot {key}, was damaged"
                )));
            }
            let at = unpacked.iter().position(|row| row.lazy.is_some());
            let lazy = at.and_then(|at| unpacked.drain(at..).next());
            let stack = lazy.as_ref().map(|row| {
                let damaged = || format!("the rows of the image below snapshot {key} are damaged");
                rows.stack(row).ok_or_else(|| SnapshotError::Precondition(damaged()))
            });
            Ok::<_, SnapshotError>((top, unpacked, stack.transpose()?.zip(lazy)))
        })?;
        if top.kind == SnapshotKind::Committed {
            return Err(SnapshotError::Precondition(format!(
                "snapshot {key} is neither active nor a view"
            )));
        }
        let dir = |row: SnapshotRow| LowerDir { path: self.part(row.id, "fs"), owner: None };
        let mut lower: Vec<LowerDir> = unpacked.into_iter().map(dir).collect();
        if let Some((stack, row)) = lazy {
            let key = MountKey { id: row.id, answers_xattrs: is_compared(&top, &row) };
            let mounted = self.images.mounted(key, &stack).await?;
            let path = mounted.point.to_string_lossy().into_owned();
            lower.push(LowerDir { path, owner: Some(mounted.owner) });
        }
        Ok((top, lower))
    }

    fn mount(
        &self,
        top: &SnapshotRow,
        lower: Vec<LowerDir>,
    ) -> Result<SnapshotMount, SnapshotError> {
        let is_active = top.kind == SnapshotKind::Active;
        let mode = if is_active { "rw" } else { "ro" };
        let mut options = match (MappedIds::of(&top.labels)?, lower.first()) {
            (Some(ids), Some(below)) => {
                let is_lazy = lower.iter().any(|dir| self.images.has(Path::new(&dir.path)));
                ids.options(below.owner()?, is_lazy, Release::here())?
            }
            // Nothing is below it, and its own directory already belongs to the mapped ids.
            _ => Vec::new(),
        };
        let mut lower: Vec<String> = lower.into_iter().map(|below| below.path).collect();
        if let ([below], false) = (&mut lower[..], options.is_empty()) {
            // Before 2.3, containerd maps ids in the directory above all lower ones, without the
            // mounts in it (`core/mount/mount_linux.go`, `getCommonDirectory`): here the image's
            // root directory itself.
            below.push_str("/.");
        }
        if lower.is_empty() || (!is_active && lower.len() == 1) {
            let source = lower.pop().unwrap_or_else(|| self.part(top.id, "fs"));
            options.extend([mode.into(), "rbind".into()]);
            return Ok(SnapshotMount { kind: "bind".into(), source, options });
        }
        if is_active {
            options.push(format!("workdir={}", self.part(top.id, "work")));
            options.push(format!("upperdir={}", self.part(top.id, "fs")));
        }
        options.push(format!("lowerdir={}", lower.join(":")));
        Ok(SnapshotMount { kind: "overlay".into(), source: "overlay".into(), options })
    }

    pub(crate) async fn commit(&self, request: CommitRequest) -> Result<(), SnapshotError> {
        let used = self.usage(&request.key).await?;
        self.on_disk(|| self.store.change(|rows| rows.commit(request, used))).await
    }

    /// Removes a snapshot and its mount. Its files stay until [`Snapshotter::cleanup`]: containerd
    /// lets all other calls to a snapshotter wait for this one, and not for that
    /// (`core/metadata/snapshot.go`, `garbageCollect`), and a large directory takes its time.
    pub(crate) async fn remove(&self, key: &str) -> Result<(), SnapshotError> {
        let removed = self.on_disk(|| self.store.remove(key, |row| self.hide(row.id)));
        let row = removed.await?;
        self.images.remove(row.id).await?;
        self.catch_up().await
    }

    async fn catch_up(&self) -> Result<(), SnapshotError> {
        let written = self.on_disk(|| {
            self.store.catch_up();
            Ok(())
        });
        written.await
    }

    /// The name that a directory gets if its row cannot be removed from the file before.
    fn hidden(&self, id: u64) -> PathBuf {
        self.dir(id).with_added_extension(HIDDEN)
    }

    fn hide(&self, id: u64) -> Result<(), SnapshotError> {
        let dir = self.dir(id);
        match fs::rename(&dir, self.hidden(id)) {
            // A layer that is only noted has none.
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(SnapshotError::Files { path: dir, source })
            }
            _ => Ok(()),
        }
    }

    /// Removes the directories and the mount of a snapshot without a row.
    async fn discard(&self, id: u64) -> Result<(), SnapshotError> {
        self.images.remove(id).await?;
        for dir in [self.dir(id), self.hidden(id)] {
            let removed = self.on_disk(|| match fs::remove_dir_all(&dir) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    Err(SnapshotError::Files { path: dir.clone(), source })
                }
                _ => Ok(()),
            });
            removed.await?;
        }
        Ok(())
    }

    /// Removes the rows of snapshots whose directory is missing. A row is written after its
    /// directory, so the snapshot was removed while the disk was full.
    async fn remove_gone(&self) -> Result<(), SnapshotError> {
        let is_gone = |row: &SnapshotRow| {
            row.lazy.is_none() && matches!(self.dir(row.id).try_exists(), Ok(false))
        };
        let removed = self.on_disk(|| self.store.remove_gone(is_gone)).await?;
        if !removed.is_empty() {
            warn!(name: "state", ?removed, "snapshots without their directories are removed");
        }
        Ok(())
    }

    /// Removes what belongs to no snapshot.
    pub(crate) async fn cleanup(&self) -> Result<(), SnapshotError> {
        // Without a row for it, the next directory is empty, and the next snapshot takes it.
        self.remove_unknown(SnapshotRows::was_used).await?;
        self.catch_up().await
    }

    async fn remove_unknown(
        &self,
        is_old: impl Fn(&SnapshotRows, u64) -> bool,
    ) -> Result<(), SnapshotError> {
        let left = |rows: &SnapshotRows| {
            let known: HashSet<u64> = rows.iter().map(|(_, row)| row.id).collect();
            let mut left = directories(&self.root)?;
            left.retain(|id| is_old(rows, *id) && !known.contains(id) && !rows.is_left(*id));
            Ok(left)
        };
        let failed = |source| SnapshotError::Files { path: self.root.clone(), source };
        // Meanwhile no snapshot is created.
        let left = self.on_disk(|| self.store.unchanged(left).map_err(failed)).await?;
        let mut first = Ok(());
        for id in left {
            // One that cannot be removed does not keep the others.
            first = first.and(self.discard(id).await);
        }
        first
    }

    pub(crate) fn stat(&self, key: &str) -> Result<SnapshotInfo, SnapshotError> {
        self.store.read(|rows| rows.get(key).map(|row| row.info(key)))
    }

    pub(crate) async fn update(
        &self,
        info: &SnapshotInfo,
        fields: &[String],
    ) -> Result<SnapshotInfo, SnapshotError> {
        self.on_disk(|| self.store.change(|rows| rows.update(info, fields))).await
    }

    /// The snapshots that pass one of the filters; all, without filters.
    pub(crate) fn list(&self, filters: &[String]) -> Result<Vec<SnapshotInfo>, SnapshotError> {
        let parsed = |text: &String| {
            SnapshotFilter::parse(text)
                .ok_or_else(|| SnapshotError::Invalid(format!("filter {text:?}")))
        };
        let filters = filters.iter().map(parsed).collect::<Result<Vec<_>, _>>()?;
        let passes = |info: &SnapshotInfo| {
            filters.is_empty() || filters.iter().any(|filter| filter.passes(info))
        };
        let all = self
            .store
            .read(|rows| rows.iter().map(|(name, row)| row.info(name)).collect::<Vec<_>>());
        Ok(all.into_iter().filter(passes).collect())
    }

    /// The bytes and inodes that a snapshot takes, without those below it.
    pub(crate) async fn usage(&self, key: &str) -> Result<(u64, u64), SnapshotError> {
        let row = self.store.read(|rows| rows.get(key).cloned())?;
        if row.kind == SnapshotKind::Committed {
            return Ok(row.usage);
        }
        let path = self.dir(row.id).join("fs");
        let used = self.on_disk(|| {
            usage(&path).map_err(|source| match source.kind() {
                // It was removed meanwhile.
                io::ErrorKind::NotFound => SnapshotError::NotFound(key.to_owned()),
                _ => SnapshotError::Files { path: path.clone(), source },
            })
        });
        used.await
    }
}

/// The directories of snapshots and of their mounts.
const DIRS: [&str; 2] = ["snapshots", "images"];

/// Files of images are for their containers alone: users of the node would find private ones here,
/// and programs that run as root. They get this far if another user or tool made `root`.
fn close_to_others(dir: &Path) {
    if let Err(error) = fs::set_permissions(dir, Permissions::from_mode(0o700)) {
        warned(&format!("{}: others may see what is in it: {error}", dir.display()));
    }
}

/// The ids of the directories in `root`.
fn directories(root: &Path) -> io::Result<BTreeSet<u64>> {
    let mut ids = BTreeSet::new();
    for dir in DIRS {
        for entry in fs::read_dir(root.join(dir))? {
            let name = entry?.file_name();
            let id = name.to_str().map(|name| name.split('.').next().unwrap_or_default());
            ids.extend(id.and_then(|id| id.parse::<u64>().ok()));
        }
    }
    Ok(ids)
}

/// A directory below a snapshot.
struct LowerDir {
    path: String,
    /// Its owner, if this process serves it: it would have to answer itself.
    owner: Option<Owner>,
}

impl LowerDir {
    fn owner(&self) -> Result<Owner, SnapshotError> {
        self.owner.map_or_else(|| owner(&self.path), Ok)
    }
}

/// The name of the snapshot, the image with a digest, and the digest of the layer, if the labels
/// say that a layer of an image should be unpacked.
fn remote_layer(labels: &BTreeMap<String, String>) -> Option<(&String, String, &String)> {
    let label = |name: &str| labels.get(name).filter(|value| !value.is_empty());
    let target = label(TARGET)?;
    if let (Some(image), Some(manifest), Some(digest)) =
        (label(IMAGE), label(MANIFEST), label(LAYER))
    {
        let name = image.split('@').next().unwrap_or_default();
        return Some((target, format!("{name}@{manifest}"), digest));
    }
    let image = label(BUILD_REFERENCE).filter(|image| image.contains('@'))?;
    Some((target, image.clone(), label(BUILD_LAYER)?))
}

/// Whether programs may compare the files of the lazy snapshot `below` with those of `top` above
/// it. containerd does that with a view. BuildKit has a view, too, and checks that its mounts are
/// those below the active snapshot, so that both need the same.
fn is_compared(top: &SnapshotRow, below: &SnapshotRow) -> bool {
    top.kind == SnapshotKind::View || below.labels.contains_key(BUILD_REFERENCE)
}

/// The image of a snapshot that exists, if it does not show the layer `lazy`.
///
/// The name of a snapshot comes from the config of an image, where anyone can write the digest of
/// another image's layer. containerd checks that when it unpacks a layer; one that is not pulled is
/// only known by its own digest, and what it shows is what its document says. Both have to be the
/// same, and everything below. Otherwise the image is unpacked under a name of its own.
fn other_than(row: &SnapshotRow, parent: &str, lazy: &LazyLayer) -> Option<String> {
    let Some(known) = &row.lazy else { return Some("an unpacked image".to_owned()) };
    let is_same =
        known.digest == lazy.digest && known.document == lazy.document && row.parent == *parent;
    (!is_same).then(|| known.image.clone())
}

#[cfg(test)]
mod tests;
