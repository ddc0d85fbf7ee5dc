//! What the program does for the snapshotter: it judges and opens images.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::rows::LazyStack;
use ociseek_format::progress::Progress;
use ociseek_ops::mount::Prefetch;
use ociseek_ops::open::RootFs;

/// The layers of an image that is worth mounting, from the bottom up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageLayers {
    /// The digests of the layers, as the image manifest lists them.
    pub digests: Vec<String>,
    /// The names of the snapshots that have each layer and those below it: chain IDs.
    pub chains: Vec<String>,
    /// The digests of the documents that each layer is read by: a ztoc, or the head of a fine
    /// document. None for a layer that is read completely, and compared with its digest.
    pub documents: Vec<Option<String>>,
}

/// Judges and opens images. Names have the digest of the image manifest.
pub trait LazyImages: Send + Sync {
    /// The layers of the image, if it should be mounted. None to have containerd unpack it.
    fn layers<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Option<ImageLayers>>;

    /// Notes that an image is unpacked, although it should be mounted, because the snapshot
    /// `target` has another layer of the image `other`, or reads it by another document.
    fn cannot_share(&self, image: &str, target: &str, other: &str);

    /// Notes that layers of an image are unpacked, without asking [`LazyImages::layers`], because
    /// those below them are unpacked already: another image has them. Called for each layer.
    fn lies_on_unpacked(&self, image: &str);

    /// Opens the lowest layers of an image: these, by these documents and no others. `answers` is a
    /// file with the answers of the registry by which it was opened before. They are not asked for
    /// again, and the file gets the others.
    fn open<'a>(
        &'a self,
        stack: &'a LazyStack,
        answers: &'a Path,
    ) -> BoxFuture<'a, Result<OpenedLayers, String>>;

    /// How images are served.
    fn serving(&self) -> ServingOptions {
        ServingOptions::default()
    }

    /// Learns that an attempt to mount an image, or to continue with a mount, has ended.
    fn attempted(&self, attempt: MountAttempt) {
        let _ = attempt;
    }
}

/// Layers that can be mounted.
pub struct OpenedLayers {
    /// Their files.
    pub image: RootFs,
    /// Receives warnings of reads.
    pub progress: Arc<dyn Progress>,
}

ociseek_format::opaque_debug!(OpenedLayers);

/// How images are served.
#[derive(Debug, Clone, Default)]
pub struct ServingOptions {
    /// What to fetch before it is read.
    pub prefetch: Prefetch,
    /// How long the start of an image is recorded, if it is.
    pub record_starts: Option<Duration>,
}

/// An attempt to mount an image, or to continue with the mount of an earlier server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountAttempt {
    /// Whether there was a mount before.
    pub is_replacement: bool,
    /// Whether it is served now.
    pub has_succeeded: bool,
}
