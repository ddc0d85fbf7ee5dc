//! Mounting an opened image.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, spawn_blocking};

use super::open::RootFs;
use crate::digest::Digest;
use crate::progress::Progress;
use crate::rootfs::fuse::{FuseOptions, MountError, Mounted};
use crate::rootfs::record::{ReadRecorder, Touch};
use crate::tree::{NodeKind, Tree};

/// What is done beside mounting.
#[derive(Default)]
pub struct MountOptions {
    /// How the kernel is told to mount it.
    pub fuse: FuseOptions,
    /// What is read first is noted.
    pub record: Option<Record>,
    /// What is fetched before it is read.
    pub prefetch: Prefetch,
}

/// What is fetched in the background before anybody reads it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prefetch {
    /// Not even what the index lists.
    pub ignore_lists: bool,
    /// In the end, everything.
    pub all: bool,
}

/// Where the notes go.
pub enum Record {
    /// A line at once for each.
    File(File),
    /// [`LiveMount::touches`] has them.
    Kept,
}

/// A mounted image. It is unmounted when this is dropped.
pub struct LiveMount {
    /// The mount itself.
    pub mounted: Mounted,
    recorder: Option<Arc<ReadRecorder>>,
    prefetch: AbortHandle,
    since: Instant,
}

/// Mounts `image` on `point`, a path that [`crate::rootfs::fuse::prepare`] gave. Reads run on the
/// tokio runtime of the caller.
///
/// # Errors
/// When it cannot be mounted.
pub async fn mount(
    image: &RootFs,
    point: &Path,
    options: MountOptions,
    progress: &Arc<dyn Progress>,
) -> Result<LiveMount, MountError> {
    let MountOptions { mut fuse, record, prefetch: Prefetch { ignore_lists, all } } = options;
    let (tree, content) = (&image.tree, &image.content);
    let recorder = record.map(|record| {
        let layers: Vec<Digest> = image.layers.iter().map(|layer| layer.descriptor.digest).collect();
        let file = match record {
            Record::File(file) => Some(file),
            Record::Kept => None,
        };
        Arc::new(ReadRecorder::new(Arc::clone(tree), content.clone(), layers, file, Arc::clone(progress)))
    });
    fuse.recorder = recorder.clone();
    let (files, reads, at, runtime) = (Arc::clone(tree), content.clone(), point.to_owned(), Handle::current());
    let mounted = spawn_blocking(move || Mounted::new(files, reads, &at, &fuse, runtime)).await;
    let mounted = mounted.map_err(|error| MountError::Session { point: point.to_owned(), source: error.into() })??;
    let content = content.clone();
    let artifacts = if ignore_lists { Vec::new() } else { image.prefetch.clone() };
    let fetching = async move {
        content.prefetch_listed(artifacts).await;
        if all {
            content.prefetch().await;
        }
    };
    let prefetch = tokio::spawn(fetching).abort_handle();
    Ok(LiveMount { mounted, recorder, prefetch, since: Instant::now() })
}

impl LiveMount {
    /// How long it has been mounted.
    pub fn since(&self) -> Duration {
        self.since.elapsed()
    }

    /// What was read first, if the notes are kept.
    pub fn touches(&self) -> Vec<Touch> {
        self.recorder.as_ref().map(|recorder| recorder.touches()).unwrap_or_default()
    }

    /// Notes the read of a file that was not read through the mount, if reads are noted.
    pub fn note(&self, tree: &Tree, path: &str) {
        if let (Some(recorder), Ok(id)) = (&self.recorder, tree.resolve(path.as_bytes(), true))
            && let NodeKind::File(extent) = &tree.node(id).kind
        {
            recorder.touched(id, extent.layer, 0, extent.offset, extent.size);
        }
    }

    /// As [`Mounted::unmount`].
    ///
    /// # Errors
    /// When it stays mounted.
    pub async fn unmount(mut self) -> Result<bool, MountError> {
        let point = self.mounted.point().to_owned();
        let unmounted = spawn_blocking(move || self.mounted.unmount()).await;
        unmounted.map_err(|error| MountError::Session { point, source: error.into() })?
    }
}

impl Drop for LiveMount {
    fn drop(&mut self) {
        self.prefetch.abort();
    }
}
