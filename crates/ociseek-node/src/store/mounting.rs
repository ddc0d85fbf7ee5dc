//! Mounts a store, or takes over from one that was killed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::{LayerStore, StoreOptions};
use ociseek_format::progress::Progress;
use ociseek_rootfs::fuse::store::KnownNames;
use ociseek_rootfs::fuse::{
    DeviceKeeper, ExistingMount, FS_TYPE, FuseMount, FuseOptions, HeldMount, KeptDevice, LeftMount,
    MountError, MountInfo, can_take_over, keeper_of, mounted_at, open_device, prepare,
    without_following,
};

/// A store that is mounted.
pub struct MountedStore {
    /// Its layers.
    pub store: Arc<LayerStore>,
    /// The mount itself.
    pub mount: FuseMount,
    /// The process that keeps its device, where that is possible.
    pub keeper: Option<DeviceKeeper>,
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

/// The name of the store for the keeper of its device.
const NAME: &str = "store";

/// A mounted store whose server was killed.
struct Orphaned {
    mount: MountInfo,
    names: KnownNames,
}

impl Orphaned {
    /// The one on `dir` of a store with its state in `root`, if there is one. It may also be alive:
    /// then the state is locked. Blocks.
    fn find(dir: &Path, root: &Path) -> Option<Orphaned> {
        // Without a server, the kernel does not answer for the mount point.
        let point = without_following(dir).ok()?;
        let mount = mounted_at(&point).ok().flatten().filter(|mount| mount.fs_type == FS_TYPE)?;
        let names = LayerStore::names_of(root, &mount)?;
        keeper_of(root)?;
        Some(Orphaned { mount, names })
    }
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
        blocking(move || self.mounted(options, progress, runtime)).await
    }

    fn mounted(
        self,
        options: StoreOptions,
        progress: Arc<dyn Progress>,
        runtime: Handle,
    ) -> Result<MountedStore, StoreMountError> {
        let StorePoint { found, root, is_root } = self;
        let store = LayerStore::open(&root, options, progress);
        let store = store.map_err(|source| StoreMountError::State { dir: root.clone(), source })?;
        let store = Arc::new(store);
        let is_kept = is_root && can_take_over();
        let (keeper, left) = is_kept
            .then(|| DeviceKeeper::open(&root))
            .map_or((None, Vec::new()), |(keeper, left)| (Some(keeper), left));
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
        let (mount, device) = match found {
            Ok(Orphaned { mount, names }) => {
                let of_store =
                    |(held, _): &LeftMount| held.name == NAME && held.point == mount.point;
                let lost = || StoreMountError::Start(io::Error::other("its device is lost"));
                let (_, device) = left.into_iter().find(of_store).ok_or_else(lost)?;
                let copy = device.try_clone().map_err(StoreMountError::Start)?;
                let mount = FuseMount::of_store_again(
                    source,
                    &names,
                    device,
                    &mount.point,
                    &fuse,
                    runtime,
                )?;
                (mount, Some(Arc::new(copy)))
            }
            Err(point) => {
                let device = if is_kept { open_device().ok().map(Arc::new) } else { None };
                let kept = |device: &Arc<OwnedFd>| KeptDevice {
                    device: Arc::clone(device),
                    mounted: None,
                };
                fuse.kept = device.as_ref().map(kept);
                (FuseMount::of_store(source, &point, &fuse, runtime)?, device)
            }
        };
        let info = mounted_at(mount.point()).ok().flatten();
        if let Some(info) = &info {
            store.mounted(info);
        }
        if let (Some(keeper), Some(info), Some(device)) = (&keeper, info, device) {
            let MountInfo { point, device: number, .. } = info;
            let name = NAME.to_owned();
            keeper.keep(HeldMount { name, point, device: number, tree: None }, device);
        }
        Ok(MountedStore { store, mount, keeper })
    }
}

impl MountedStore {
    /// The device is not kept any more: nobody continues with the mount.
    pub fn give_up(keeper: Option<&DeviceKeeper>) {
        if let Some(keeper) = keeper {
            keeper.release(NAME);
        }
    }
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreMountError> + Send + 'static,
) -> Result<T, StoreMountError> {
    spawn_blocking(work).await.map_err(|error| StoreMountError::Start(error.into()))?
}
