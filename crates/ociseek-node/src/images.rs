//! The mounts of images, all served by this process. A keeper has their devices, too, so that they
//! outlive this process, and the next one continues to serve them.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::lazy::{ImageLayers, LazyImages};
use super::messages::SnapshotError;
use super::rows::LazyStack;
use super::session::{ImageSession, Phase, SessionPlace, clear};
use crate::mount_server::{Fetched, divide_memory};
use ociseek_rootfs::fuse::{DeviceKeeper, FS_TYPE, mounted_at};
use ociseek_store::lock::Hold;

/// How long a call waits for a mount, and a removal for the end of one. containerd lets all other
/// calls wait meanwhile.
const WAIT: Duration = Duration::from_secs(15);
const REMOVAL: Duration = Duration::from_secs(8);
/// How often the memory is divided among the mounts.
const ROUND: Duration = Duration::from_secs(5);
/// The memory of the program itself, with what reads need, in bytes.
const OWN: u64 = 32 << 20;

/// The end of the name of a mount's directory, if the mount supports extended attributes.
const WITH_XATTRS: &str = ".xattrs";
/// The file of a mount's directory with the number of bytes fetched for it.
const FETCHED: &str = "fetched";

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
    /// The snapshotter's directory.
    root: PathBuf,
    dir: PathBuf,
    lazy: Arc<dyn LazyImages>,
    keeper: DeviceKeeper,
    /// For this process, in bytes.
    memory: AtomicU64,
    sessions: Mutex<HashMap<MountKey, Arc<ImageSession>>>,
    /// The bytes that were fetched for mounts that are removed.
    fetched: Mutex<u64>,
}

impl ImageDir {
    /// Continues with the mounts of an earlier server. `stacks` has what is mounted by the id of
    /// its snapshot. Must be called on a tokio runtime.
    pub(crate) async fn open(
        root: &Path,
        lazy: Arc<dyn LazyImages>,
        memory: u64,
        stacks: HashMap<u64, LazyStack>,
    ) -> ImageDir {
        let dir = root.to_owned();
        let (keeper, left) = match spawn_blocking(move || DeviceKeeper::open(&dir)).await {
            Ok(opened) => opened,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        let images = ImageDir(Arc::new(Inner {
            root: root.to_owned(),
            dir: root.join("images"),
            lazy,
            keeper,
            memory: AtomicU64::new(memory),
            sessions: Mutex::default(),
            fetched: Mutex::default(),
        }));
        for (held, device) in left {
            let stack = MountKey::of_dir(&held.name)
                .filter(|key| images.point(*key) == held.point && held.tree.is_some())
                .and_then(|key| Some((key, stacks.get(&key.id)?)));
            match stack {
                Some((key, stack)) => {
                    let left = Some((held, Arc::new(device)));
                    let session = ImageSession::start(images.place(key), stack.clone(), left);
                    images.0.sessions.hold().insert(key, session);
                }
                None => images.0.keeper.release(&held.name),
            }
        }
        let dividing = Arc::downgrade(&images.0);
        tokio::spawn(async move {
            while let Some(images) = dividing.upgrade() {
                ImageDir(images).share_memory().await;
                sleep(ROUND).await;
            }
        });
        images
    }

    pub(crate) async fn layers(&self, image: &str) -> Option<ImageLayers> {
        self.0.lazy.layers(image).await
    }

    pub(crate) fn cannot_share(&self, image: &str, target: &str, other: &str) {
        self.0.lazy.cannot_share(image, target, other);
    }

    pub(crate) fn lies_on_unpacked(&self, image: &str) {
        self.0.lazy.lies_on_unpacked(image);
    }

    fn dir(&self, key: MountKey) -> PathBuf {
        self.0.dir.join(key.dir())
    }

    fn point(&self, key: MountKey) -> PathBuf {
        self.dir(key).join("fs")
    }

    fn place(&self, key: MountKey) -> SessionPlace {
        let dir = self.dir(key);
        // The same for both mounts of a snapshot.
        let answers = self.dir(MountKey { answers_xattrs: false, ..key }).join("answers");
        SessionPlace {
            root: self.0.root.clone(),
            name: key.dir(),
            point: dir.join("fs"),
            fetched: dir.join(FETCHED),
            answers,
            answers_xattrs: key.answers_xattrs,
            lazy: Arc::clone(&self.0.lazy),
            keeper: self.0.keeper.clone(),
        }
    }

    /// Blocks until the keeper runs.
    pub(crate) fn keep_socket(&self, socket: OwnedFd) -> Option<OwnedFd> {
        self.0.keeper.keep_socket(socket)
    }

    /// Whether this is the mount point of an image.
    pub(crate) fn has(&self, point: &Path) -> bool {
        point.starts_with(&self.0.dir)
    }

    /// Mounts the image of a snapshot, unless it is mounted. If that takes long, it continues in
    /// the background.
    pub(crate) async fn mounted(
        &self,
        key: MountKey,
        stack: &LazyStack,
    ) -> Result<MountedImage, SnapshotError> {
        let point = self.point(key);
        let is_mounted = mounted_at(&point)
            .is_ok_and(|mount| mount.is_some_and(|mounted| mounted.fs_type == FS_TYPE));
        let session = self.session(key, stack, is_mounted);
        match timeout(WAIT, session.settled()).await {
            Ok(Phase::Serving { owner }) => Ok(MountedImage { point, owner }),
            Ok(Phase::Failed(why)) => {
                self.forget(key, &session);
                Err(SnapshotError::Mount(why))
            }
            Ok(Phase::Opening | Phase::Ended) => {
                Err(SnapshotError::Mount(format!("{} was unmounted", stack.top.image)))
            }
            Err(_) => Err(SnapshotError::Mount(format!(
                "{} is being mounted, try again",
                stack.top.image
            ))),
        }
    }

    /// The session of a mount, which is started unless it is there.
    fn session(&self, key: MountKey, stack: &LazyStack, is_mounted: bool) -> Arc<ImageSession> {
        let mut sessions = self.0.sessions.hold();
        if let Some(session) = sessions.get(&key) {
            match session.phase() {
                // It was unmounted by hand, and is served until nobody uses it.
                Phase::Serving { .. } if !is_mounted => session.cancel(),
                Phase::Failed(_) | Phase::Ended => {}
                Phase::Opening | Phase::Serving { .. } => return Arc::clone(session),
            }
        }
        let session = ImageSession::start(self.place(key), stack.clone(), None);
        if let Some(old) = sessions.insert(key, Arc::clone(&session)) {
            *self.0.fetched.hold() += old.fetched();
        }
        session
    }

    /// Lets the next caller try again.
    fn forget(&self, key: MountKey, session: &Arc<ImageSession>) {
        let mut sessions = self.0.sessions.hold();
        if sessions.get(&key).is_some_and(|current| Arc::ptr_eq(current, session)) {
            sessions.remove(&key);
        }
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<ImageSession>> {
        self.0.sessions.hold().values().cloned().collect()
    }

    /// From now on, this many bytes are for this process.
    pub(crate) fn limit_memory(&self, bytes: u64) {
        self.0.memory.store(bytes, Ordering::Relaxed);
    }

    /// Divides the memory among all mounts.
    async fn share_memory(&self) {
        let contents: Vec<_> =
            self.sessions().iter().filter_map(|session| session.content()).collect();
        let memory = self.0.memory.load(Ordering::Relaxed).saturating_sub(OWN);
        // If it panics, it is done again later.
        let _ = spawn_blocking(move || divide_memory(memory, &contents)).await;
    }

    /// The bytes that were fetched for all mounts since the start of this process, and before that
    /// for those that are still there.
    pub(crate) fn fetched(&self) -> u64 {
        let removed = *self.0.fetched.hold();
        self.sessions().iter().fold(removed, |sum, session| sum.saturating_add(session.fetched()))
    }

    /// How many mounts do not answer.
    pub(crate) fn silent(&self) -> u64 {
        self.sessions().iter().filter(|session| session.is_silent()).count() as u64
    }

    /// Unmounts the image of the snapshot `id`, and removes what belongs to its mounts. A mount
    /// that is being made is given up.
    pub(crate) async fn remove(&self, id: u64) -> Result<(), SnapshotError> {
        let ending = MountKey::both(id).map(|key| {
            let session = self.0.sessions.hold().remove(&key);
            async move {
                if let Some(session) = session {
                    session.cancel();
                    if timeout(REMOVAL, session.ended()).await.is_err() {
                        warn!(name: "not-unmounted", id, "the mount of a removed snapshot does not end");
                    }
                    *self.0.fetched.hold() += session.fetched();
                }
            }
        });
        join_all(ending).await;
        // The answers, which both use, are removed last.
        let dirs = MountKey::both(id).map(|key| self.dir(key));
        let removed = spawn_blocking(move || dirs.iter().rev().try_for_each(|dir| remove(dir)));
        match timeout(REMOVAL, removed).await {
            Ok(Ok(removed)) => removed,
            Ok(Err(error)) => Err(files(&self.0.dir)(error.into())),
            Err(_) => Err(files(&self.0.dir)(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// An image that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountedImage {
    pub point: PathBuf,
    /// The owner of its root directory. Asking the kernel would wait for this process.
    pub owner: (u32, u32),
}

fn files(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    |source| SnapshotError::Files { path, source }
}

fn remove(dir: &Path) -> Result<(), SnapshotError> {
    let point = dir.join("fs");
    clear(&point).map_err(files(&point))?;
    match remove_files(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(files(dir)(error)),
        _ => Ok(()),
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
        gone.or_else(
            |error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) },
        )?;
    }
    fs::remove_dir(dir)
}

/// What was fetched for the mount with this directory.
pub(crate) fn fetched(dir: &Path) -> Fetched {
    Fetched::read(&dir.join(FETCHED))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for name in ["fetched", "answers", "unfinished-aB3dEf"] {
            fs::write(dir.join(name), "").unwrap();
        }
        remove(&dir).unwrap();
        assert!(!dir.exists());
        remove(&dir).unwrap();
        // What is not empty may be a mount that was not seen.
        fs::create_dir_all(dir.join("fs/file")).unwrap();
        assert!(remove(&dir).is_err() && dir.join("fs/file").exists());
    }
}
