//! An additional layer store, from which podman, CRI-O and Buildah take layers instead of pulling
//! them (containers/storage, `drivers/overlay`): `REFERENCE/LAYER/{diff,info,blob}`, where
//! REFERENCE is the image's name in base64 and LAYER a digest.
//!
//! A runtime looks for these three names. It creates the file `use` in a layer's directory when it
//! begins to use the layer, removes the directory when it ends to, and expects both to fail with
//! ENOENT. So the mount is writable, and refuses every other change.
//!
//! `nodes` has the names and numbers of what is known, and `filesystem` answers the kernel. Which
//! layers there are is up to a [`LayerSource`].

mod filesystem;
mod nodes;

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub(super) use filesystem::StoreFs;
pub use nodes::KnownNames;
pub(super) use nodes::is_of_store;

use crate::content::Content;
use ociseek_format::digest::Digest;
use ociseek_format::tree::Tree;

/// A layer that a store serves.
pub struct StoredLayer {
    /// Its files, as a lower directory of overlayfs.
    pub tree: Arc<Tree>,
    /// Their content.
    pub content: Content,
    /// What containers/storage notes down of the layer, as JSON.
    pub info: Bytes,
    /// Where its files come from.
    pub origin: LayerOrigin,
    /// The size of the layer's blob in bytes.
    pub blob_size: u64,
    /// The layer's blob.
    pub blob: Arc<dyn LayerBlob>,
    /// What must live as long as the layer is open.
    pub hold: Arc<dyn Any + Send + Sync>,
}

ociseek_format::opaque_debug!(StoredLayer);

/// Where the files of a layer come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerOrigin {
    /// The digest of the image manifest that it was opened by.
    pub manifest: Digest,
    /// The digest of its blob.
    pub blob: Digest,
    /// The digest of the document that it is read by.
    pub document: Digest,
}

/// Reads the blob of a layer.
pub trait LayerBlob: Send + Sync + 'static {
    /// At most `size` bytes from `offset` on. None if they cannot be read; the reason was reported.
    fn read(&self, offset: u64, size: usize) -> BoxFuture<'_, Option<Bytes>>;
}

/// Why a layer is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoLayer {
    /// The runtime has to pull it.
    LeftToRuntime,
    /// It cannot be read at present. The reason was reported.
    Failed,
}

/// The layers of a store. A reference is the name of an image as the runtime knows it.
pub trait LayerSource: Send + Sync + 'static {
    /// Whether images can have this name. Needs no registry.
    fn is_image(&self, reference: &str) -> bool;

    /// Opens a layer of an image, by the digest of its blob or of its table of contents.
    fn open<'a>(
        &'a self,
        reference: &'a str,
        layer: &'a Digest,
    ) -> BoxFuture<'a, Result<StoredLayer, NoLayer>>;

    /// Whether a runtime uses a layer.
    fn is_used(&self, reference: &str, layer: &Digest) -> bool;

    /// A runtime begins to use a layer once more. `origin` is known if it was opened. Blocks.
    fn begin_use(&self, reference: &str, layer: &Digest, origin: Option<LayerOrigin>);

    /// A runtime ends to use a layer once. Blocks.
    fn end_use(&self, reference: &str, layer: &Digest);

    /// Keeps what a server needs that takes over after this one was killed. Blocks briefly.
    fn save_names(&self, names: KnownNames);
}
