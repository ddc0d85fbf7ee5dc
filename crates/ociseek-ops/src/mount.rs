//! Mounts an opened image, and keeps the FUSE device of a mount open.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::background::BackgroundTask;
use super::open::RootFs;
use ociseek_format::digest::Digest;
use ociseek_format::progress::Progress;
use ociseek_format::tree::{OpaqueXattr, Tree};
use ociseek_rootfs::fuse::{
    FuseMount, FuseOptions, MountError, MountInfo, keeper_arguments, release_freed_memory,
};
pub use ociseek_rootfs::record::Record;
use ociseek_rootfs::record::{ReadRecorder, Touch};

/// Content that is not read for this long is dropped from memory, after at most twice the time.
/// Most containers read little after their start.
const UNUSED: Duration = Duration::from_secs(30);

/// How long after mounting the memory is released that only opening needs. A container that starts
/// needs the processor.
const SETTLED: Duration = Duration::from_secs(5);

/// The pause before a keeper that ended is replaced.
const PAUSE: Duration = Duration::from_secs(1);

/// Options for mounting and for the work in the background.
#[derive(Debug, Default)]
pub struct MountOptions {
    /// Options for the kernel.
    pub fuse: FuseOptions,
    /// Whether first reads are recorded, and where.
    pub record: Option<Record>,
    /// What to fetch before it is read.
    pub prefetch: Prefetch,
}

/// What to fetch in the background before it is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prefetch {
    /// Do not even fetch the lists in the index.
    pub ignore_lists: bool,
    /// Finally fetch everything.
    pub all: bool,
}

/// A mounted image. It is unmounted when this is dropped.
pub struct LiveMount {
    /// The mount itself.
    pub mount: FuseMount,
    recorder: Option<Arc<ReadRecorder>>,
    is_settled: Arc<AtomicBool>,
    _background: [BackgroundTask; 2],
    since: Instant,
}

ociseek_format::opaque_debug!(LiveMount);

/// Mounts `image` on `point`, a path returned by [`ociseek_rootfs::fuse::prepare`]. Reads run on
/// the caller's tokio runtime.
///
/// # Errors
/// If mounting fails.
pub async fn mount(
    image: &RootFs,
    point: &Path,
    options: MountOptions,
    progress: &Arc<dyn Progress>,
) -> Result<LiveMount, MountError> {
    let MountOptions { mut fuse, record, prefetch: Prefetch { ignore_lists, all } } = options;
    let tree = &image.tree;
    let content = &image.content;
    let recorder = record.map(|record| {
        let layers: Vec<Digest> =
            image.layers.iter().map(|layer| layer.descriptor.digest).collect();
        Arc::new(ReadRecorder::new(
            Arc::clone(tree),
            content.clone(),
            layers,
            record,
            Arc::clone(progress),
        ))
    });
    fuse.recorder = recorder.clone();
    fuse.fill = !ignore_lists;
    let files = Arc::clone(tree);
    let reads = content.clone();
    let at = point.to_owned();
    let runtime = Handle::current();
    let mount = spawn_blocking(move || FuseMount::new(files, reads, &at, &fuse, runtime)).await;
    let mount = mount
        .map_err(|error| MountError::Session { point: point.to_owned(), source: error.into() })??;
    let content = content.clone();
    let artifacts = if ignore_lists { Vec::new() } else { image.prefetch.clone() };
    let prefetch = BackgroundTask::spawn(async move {
        content.prefetch_artifacts(artifacts).await;
        if all {
            content.prefetch().await;
        }
    });
    let content = image.content.clone();
    let layers = image.layers.clone();
    let is_settled = Arc::new(AtomicBool::new(false));
    let settled = Arc::clone(&is_settled);
    let dropping = BackgroundTask::spawn(async move {
        sleep(SETTLED).await;
        let settle = spawn_blocking(move || {
            layers.iter().for_each(|layer| layer.map.files.pack());
            release_freed_memory();
            settled.store(true, Ordering::Relaxed);
        });
        let _ = settle.await;
        loop {
            sleep(UNUSED).await;
            content.drop_unused();
        }
    });
    Ok(LiveMount {
        mount,
        recorder,
        is_settled,
        _background: [prefetch, dropping],
        since: Instant::now(),
    })
}

impl LiveMount {
    /// The time since mounting.
    pub fn since(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether the memory that only opening needs was released.
    pub fn is_settled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_settled)
    }

    /// The recorded reads, if they are kept in memory.
    pub fn touches(&self) -> Vec<Touch> {
        self.recorder.as_ref().map(|recorder| recorder.touches()).unwrap_or_default()
    }

    /// What records its reads, if they are recorded.
    pub fn recorder(&self) -> Option<Arc<ReadRecorder>> {
        self.recorder.clone()
    }

    /// Records the read of a file that did not go through the mount, if reads are recorded.
    pub fn note(&self, tree: &Tree, path: &str) {
        if let (Some(recorder), Ok(id)) = (&self.recorder, tree.resolve(path.as_bytes(), true))
            && let kind = &tree.node(id).kind
            && let Some(stored) = kind.stored_in(0..kind.size())
        {
            recorder.record_read(id, 0..kind.size(), stored);
        }
    }

    /// Like [`FuseMount::unmount`].
    ///
    /// # Errors
    /// If it stays mounted.
    pub async fn unmount(mut self) -> Result<bool, MountError> {
        let point = self.mount.point().to_owned();
        let unmounted = spawn_blocking(move || self.mount.unmount()).await;
        unmounted.map_err(|error| MountError::Session { point, source: error.into() })?
    }
}

/// How overlayfs marks opaque directories here: only root of the initial user namespace has trusted
/// attributes.
pub fn opaque_xattr() -> OpaqueXattr {
    /// All user IDs, each mapped to itself (user_namespaces(7)).
    const INITIAL: [&str; 3] = ["0", "0", "4294967295"];
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if rustix::process::geteuid().is_root() && map.split_whitespace().eq(INITIAL) {
        OpaqueXattr::Trusted
    } else {
        OpaqueXattr::User
    }
}

/// Starts a process that keeps the FUSE device of a mount open, for when the mount's server and
/// those who would replace it are killed at the same time. Returns a pidfd of it. Must be called on
/// a tokio runtime.
///
/// # Errors
/// If it cannot be started.
pub fn start_keeper(mount: &MountInfo, device: &OwnedFd) -> io::Result<OwnedFd> {
    let pid = spawn_keeper(mount, device)?.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    Ok(pidfd_open(pid.ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?)
}

/// A keeper of one mount, which is replaced when it ends.
pub struct DeviceKeeper {
    mount: MountInfo,
    device: OwnedFd,
    child: Child,
}

ociseek_format::opaque_debug!(DeviceKeeper);

impl DeviceKeeper {
    /// Must be called on a tokio runtime.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(mount: MountInfo, device: OwnedFd) -> io::Result<DeviceKeeper> {
        let child = spawn_keeper(&mount, &device)?;
        Ok(DeviceKeeper { mount, device, child })
    }

    /// Starts another process whenever one has ended, until that fails.
    pub async fn watch(&mut self) -> io::Error {
        loop {
            if let Err(error) = self.child.wait().await {
                return error;
            }
            sleep(PAUSE).await;
            match spawn_keeper(&self.mount, &self.device) {
                Ok(child) => self.child = child,
                Err(error) => return error,
            }
        }
    }

    /// Ends the process.
    pub async fn end(mut self) {
        // It may have ended by itself.
        let _ = self.child.kill().await;
    }
}

/// Starts this program as the keeper ([`is_keeper`](ociseek_rootfs::fuse::is_keeper)).
fn spawn_keeper(mount: &MountInfo, device: &OwnedFd) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ociseek").args(keeper_arguments(mount)).stdin(device.try_clone()?);
    // Signals for this process are not for the keeper, such as those of a terminal.
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).current_dir("/");
    command.spawn()
}
