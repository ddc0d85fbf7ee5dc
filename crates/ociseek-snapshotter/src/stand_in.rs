//! A snapshotter whose images cannot be mounted, for tests.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};

use super::error::SnapshotError;
use super::images::{ImageLayers, LazyImages, MountOrder};
use super::messages::CreateRequest;
use super::snapshotter::{IMAGE, LAYER, MANIFEST, Snapshotter, TARGET};
use ociseek_rootfs::fuse::MountInfo;

/// An image of the layers `a` and `b`, and one that states their names for others. They cannot
/// be mounted.
struct Unmountable;

impl LazyImages for Unmountable {
    fn layers<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Option<ImageLayers>> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        let digests = match image {
            "host/name:tag@manifest" => Some(words("a b")),
            "host/name:tag@lying" => Some(words("x y")),
            _ => None,
        };
        ready(digests.map(|digests| ImageLayers { digests, chains: words("chain-a chain-b") })).boxed()
    }

    fn mount<'a>(&'a self, _: MountOrder<'a>) -> BoxFuture<'a, Result<OwnedFd, String>> {
        ready(Err("the registry is away".to_owned())).boxed()
    }

    fn keep(&self, _: &MountInfo, _: &OwnedFd) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

pub(crate) async fn open(root: &Path) -> Result<Snapshotter, SnapshotError> {
    Snapshotter::open(root, Arc::new(Unmountable), 512 << 20).await
}

pub(crate) fn request(key: &str, parent: &str, labels: &[(&str, &str)]) -> CreateRequest {
    let labels = labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    CreateRequest { key: key.to_owned(), parent: parent.to_owned(), labels }
}

pub(crate) fn layer(parent: &str, target: &str, manifest: &str, digest: &str) -> CreateRequest {
    let labels = [(TARGET, target), (IMAGE, "host/name:tag"), (MANIFEST, manifest), (LAYER, digest)];
    request("unpacking", parent, &labels)
}
