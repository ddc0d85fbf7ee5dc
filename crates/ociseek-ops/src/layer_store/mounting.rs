//! Mounts a store, or takes over from one that was killed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{Signal, pidfd_send_signal};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::{LayerStore, StoreOptions};
use crate::mount::DeviceKeeper;
use ociseek_format::progress::Progress;
use ociseek_rootfs::fuse::store::KnownNames;
use ociseek_rootfs::fuse::{
    ExistingMount, FS_TYPE, FuseMount, FuseOptions, KeptDevice, MountError, MountInfo, TakenDevice,
    can_take_over, device_holders, mounted_at, open_device, prepare, without_following,
};

/// A store that is mounted.
pub struct MountedStore {
    /// Its layers.
    pub store: Arc<LayerStore>,
    /// The mount itself.
    pub mount: FuseMount,
    /// The process that keeps its device, where that is possible, or why it could not be started.
    pub keeper: io::Result<Option<DeviceKeeper>>,
}

ociseek_format::opaque_debug!(MountedStore);

/// Why a store is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum StoreMountError {
    #[error("{}: cannot write", dir.display())]
    State { dir: PathBuf, source: io::Error },
    #[error("cannot start")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// A mounted store whose server was killed.
struct Orphaned {
    mount: MountInfo,
    names: KnownNames,
    taken: TakenDevice,
}

impl Orphaned {
    /// The one on `dir` of a store with its state in `root`, if there is one. It may also be alive:
    /// then the state is locked. Blocks.
    fn find(dir: &Path, root: &Path) -> Option<Orphaned> {
        // Without a server, the kernel does not answer for the mount point.
        let point = without_following(dir).ok()?;
        let mount = mounted_at(&point).ok().flatten().filter(|mount| mount.fs_type == FS_TYPE)?;
        let names = LayerStore::names_of(root, &mount)?;
        let holders = device_holders().ok()?;
        let taken = holders.iter().find_map(|holder| holder.take(&mount).ok().flatten())?;
        Some(Orphaned { mount, names, taken })
    }
}

/// A store right after it was mounted, without its keeper.
struct NewMount {
    store: Arc<LayerStore>,
    mount: FuseMount,
    /// What a keeper can keep.
    kept: Option<(MountInfo, OwnedFd)>,
    /// The pidfd of the process that kept the device of the store that was killed.
    replaced: Option<OwnedFd>,
}

/// Where a store is mounted.
pub struct StorePoint {
    /// A store that was killed, or a directory that is ready for a mount.
    found: Result<Orphaned, PathBuf>,
    root: PathBuf,
    is_root: bool,
}

ociseek_format::opaque_debug!(StorePoint);

impl StorePoint {
    /// Finds a store on `dir` that was killed, with its state in `root`, or prepares `dir` for a
    /// new mount.
    ///
    /// # Errors
    /// If nothing can be mounted there.
    pub async fn find(
        dir: PathBuf,
        existing: ExistingMount,
        root: PathBuf,
    ) -> Result<StorePoint, StoreMountError> {
        let is_root = rustix::process::geteuid().is_root();
        blocking(move || {
            let orphaned = Some(())
                .filter(|()| is_root && can_take_over())
                .and_then(|()| Orphaned::find(&dir, &root));
            let found = match orphaned {
                Some(orphaned) => Ok(orphaned),
                None => Err(prepare(&dir, existing)?),
            };
            Ok(StorePoint { found, root, is_root })
        })
        .await
    }

    /// Opens the store and mounts it, or takes over from the one that was killed. Reads run on the
    /// caller's tokio runtime.
    ///
    /// # Errors
    /// If the state cannot be opened, or mounting fails.
    pub async fn mount(
        self,
        options: StoreOptions,
        progress: Arc<dyn Progress>,
    ) -> Result<MountedStore, StoreMountError> {
        let runtime = Handle::current();
        let NewMount { store, mount, kept, replaced } =
            blocking(move || self.mounted(options, progress, runtime)).await?;
        let keeper = kept.map(|(info, device)| DeviceKeeper::start(info, device)).transpose();
        if let Some(replaced) = replaced {
            // It has ended, if it is not a keeper.
            let _ = pidfd_send_signal(replaced, Signal::KILL);
        }
        Ok(MountedStore { store, mount, keeper })
    }

    fn mounted(
        self,
        options: StoreOptions,
        progress: Arc<dyn Progress>,
        runtime: Handle,
    ) -> Result<NewMount, StoreMountError> {
        let StorePoint { found, root, is_root } = self;
        let store = LayerStore::open(&root, options, progress);
        let store = Arc::new(store.map_err(|source| StoreMountError::State { dir: root, source })?);
        let mut fuse = FuseOptions {
            source: "layers".to_owned(),
            // Containers have other users. The store's own directories are for this user only.
            allow_other: is_root,
            suid: is_root,
            dev: is_root,
            passes_changes: true,
            ..FuseOptions::default()
        };
        let source = Arc::clone(&store);
        let (mount, device, replaced) = match found {
            Ok(Orphaned { mount, names, taken: TakenDevice { process, device } }) => {
                let kept = device.try_clone().map_err(StoreMountError::Start)?;
                let mount = FuseMount::of_store_again(
                    source,
                    &names,
                    device,
                    &mount.point,
                    &fuse,
                    runtime,
                )?;
                (mount, Some(kept), Some(process))
            }
            Err(point) => {
                let device = if is_root && can_take_over() {
                    open_device().ok().map(Arc::new)
                } else {
                    None
                };
                let kept = |device: &Arc<OwnedFd>| KeptDevice {
                    device: Arc::clone(device),
                    is_mounted: false,
                    identity: PathBuf::new(),
                };
                fuse.kept = device.as_ref().map(kept);
                let mount = FuseMount::of_store(source, &point, &fuse, runtime)?;
                (mount, device.and_then(|device| device.try_clone().ok()), None)
            }
        };
        let info = mounted_at(mount.point()).ok().flatten();
        if let Some(info) = &info {
            store.mounted(info);
        }
        Ok(NewMount { store, mount, kept: info.zip(device), replaced })
    }
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreMountError> + Send + 'static,
) -> Result<T, StoreMountError> {
    spawn_blocking(work).await.map_err(|error| StoreMountError::Start(error.into()))?
}
