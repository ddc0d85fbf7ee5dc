//! Mounts an opened image.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::background::BackgroundTask;
use super::open::RootFs;
use ociseek_format::digest::Digest;
use ociseek_format::progress::Progress;
use ociseek_format::tree::{OpaqueXattr, Tree};
use ociseek_rootfs::content::{BackgroundFetches, Content};
use ociseek_rootfs::fuse::{FuseMount, FuseOptions, MountError, release_freed_memory};
use ociseek_rootfs::layers::OpenLayer;
pub use ociseek_rootfs::record::Record;
use ociseek_rootfs::record::{ReadRecorder, Touch};

/// Content that is not read for this long is dropped from memory, after at most twice the time.
/// Most containers read little after their start.
const UNUSED: Duration = Duration::from_secs(30);

/// How long after mounting the memory is released that only opening needs. A container that starts
/// needs the processor.
const SETTLED: Duration = Duration::from_secs(5);
/// An image with more files settles at once: others may wait for its memory.
const LONG_LIST: usize = 1 << 16;

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
#[derive(Debug, Clone, Default)]
pub struct Prefetch {
    /// Do not even fetch the lists in the index.
    pub ignore_lists: bool,
    /// Finally fetch everything, with this in common with other images.
    pub rest: Option<Arc<BackgroundFetches>>,
}

/// A mounted image. It is unmounted when this is dropped.
pub struct LiveMount {
    /// The mount itself.
    pub mount: FuseMount,
    recorder: Option<Arc<ReadRecorder>>,
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
    let MountOptions { mut fuse, record, prefetch: Prefetch { ignore_lists, rest } } = options;
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
        if let Some(shared) = rest {
            content.fetch_rest(&shared).await;
        }
    });
    let content = image.content.clone();
    let files = tree.len();
    let dropping = BackgroundTask::spawn(async move {
        settle(&content, files).await;
        loop {
            sleep(UNUSED).await;
            content.drop_unused();
        }
    });
    Ok(LiveMount { mount, recorder, _background: [prefetch, dropping], since: Instant::now() })
}

/// Returns the memory that only opening an image took, as soon as its first reads are over. `files`
/// is the number of its files.
pub async fn settle(content: &Content, files: usize) {
    if files <= LONG_LIST {
        sleep(SETTLED).await;
    }
    let content = content.clone();
    let settling = spawn_blocking(move || {
        content.layers().for_each(OpenLayer::settle);
        release_freed_memory();
    });
    let _ = settling.await;
}

impl LiveMount {
    /// The time since mounting.
    pub fn since(&self) -> Duration {
        self.since.elapsed()
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
