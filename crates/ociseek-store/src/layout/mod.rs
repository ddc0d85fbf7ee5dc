//! OCI image layouts (image-spec image-layout.md): a directory of blobs and its index.json.

mod blob;
mod error;
pub(super) mod read;
mod write;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;

pub use blob::BlobReader;
pub(super) use blob::{FileRange, open_regular, open_without_waiting, read_bounded};
pub use error::LayoutError;
use read::LayoutFiles;
pub use read::tag_of;

use super::blob::{AttachMethod, Document, Referrers, Target};
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::{Descriptor, ImageSelector, json};

/// The size limit of the file `oci-layout`, in bytes.
pub(super) const MAX_MARKER: usize = 4096;

/// An image layout in a directory. All calls block.
#[derive(Debug, Clone)]
pub struct Layout {
    dir: PathBuf,
    budget: Budget,
    /// Whether there was no layout when it was opened. The first write creates it.
    is_new: bool,
}

impl Layout {
    /// The same layout with another budget.
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Layout {
        Layout { budget, ..self }
    }

    /// The memory budget for the work on an image.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Opens an existing layout.
    pub fn open(dir: &Path) -> Result<Layout, LayoutError> {
        let not = |reason: &str| LayoutError::NotALayout { path: dir.to_owned(), reason: reason.to_owned() };
        let metadata = std::fs::metadata(dir).map_err(|source| LayoutError::Io {
            action: "open",
            path: dir.to_owned(),
            source,
        })?;
        if !metadata.is_dir() {
            return Err(not("it is not a directory; for an archive, use oci-archive:FILE"));
        }
        let marker = dir.join("oci-layout");
        let bytes = match open_regular(&marker).and_then(|file| read_bounded(file, MAX_MARKER)) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound && dir.join("manifest.json").exists() => {
                return Err(not(
                    "it has a manifest.json and no oci-layout, so skopeo's dir: or an old docker save wrote it",
                ));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(not("it has no file oci-layout")),
            Err(source) => return Err(LayoutError::Io { action: "read", path: marker, source }),
        };
        let layout = Layout { dir: dir.to_owned(), budget: Budget::default(), is_new: false };
        check_marker(&layout, &bytes)?;
        Ok(layout)
    }

    /// Opens a layout, or an empty one if the directory is missing or empty. The first write
    /// creates its files, so a command that fails before leaves nothing.
    ///
    /// # Errors
    /// If the directory has other content, or a layout cannot be written there.
    pub fn open_or_new(dir: &Path) -> Result<Layout, LayoutError> {
        match Layout::open(dir) {
            Err(LayoutError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(LayoutError::NotALayout { .. }) if dir.is_dir() => {}
            opened => return opened,
        }
        write::check_place(dir)?;
        Ok(Layout { dir: dir.to_owned(), budget: Budget::default(), is_new: true })
    }

    /// The entry of index.json that `select` names. Entries that are not images (referrers) are
    /// skipped. If index.json itself lists the platforms of an image, then index.json is the image,
    /// and [`Layout::manifest`] returns it.
    pub fn find(&self, select: &ImageSelector) -> Result<Descriptor, LayoutError> {
        read::find(self, select)
    }

    /// The images in index.json: the name of each, or its digest if it has none, and its digest.
    pub fn images(&self) -> Result<Vec<(String, Digest)>, LayoutError> {
        read::images(self)
    }

    /// A manifest or index of at most 4 MiB with a verified digest.
    pub fn manifest(&self, target: &Target) -> Result<Document, LayoutError> {
        read::manifest(self, target)
    }

    /// A blob's bytes. The file has exactly the size that `blob` states.
    pub fn blob(&self, blob: &Descriptor) -> Result<BlobReader, LayoutError> {
        read::blob(self, blob)
    }

    /// The bytes of `range`, which must be within the blob.
    pub fn blob_range(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, LayoutError> {
        read::blob_range(self, blob, range)
    }

    /// A small blob with a verified digest. Blobs of more than `limit` bytes are refused.
    pub fn blob_bytes(&self, blob: &Descriptor, limit: u64) -> Result<Bytes, LayoutError> {
        read::blob_bytes(self, blob, limit)
    }

    /// Whether the blob is in the layout, with this `size` if that is given. It is not read.
    pub fn blob_exists(&self, digest: &Digest, size: Option<u64>) -> Result<bool, LayoutError> {
        Ok(LayoutFiles::blob(self, digest)?.is_some_and(|found| size.is_none_or(|size| size == found.size)))
    }

    /// The referrers of `subject`, in the order of index.json.
    pub fn referrers(&self, subject: &Digest, artifact_type: Option<&str>) -> Result<Referrers, LayoutError> {
        read::referrers(self, subject, artifact_type)
    }

    /// Writes a blob. Returns false if it already exists and is complete.
    pub fn write_blob(&self, blob: &Descriptor, content: &[u8]) -> Result<bool, LayoutError> {
        write::blob(self, &blob.digest, content)
    }

    /// Writes a blob from batches of its chunks in order, and checks its size and digest. A None
    /// ends the batches early: then nothing is written.
    pub fn write_chunks(
        &self,
        blob: &Descriptor,
        batches: impl Iterator<Item = Option<Vec<Bytes>>>,
    ) -> Result<(), LayoutError> {
        write::chunks(self, blob, batches)
    }

    /// Lists an existing image in index.json under the name `tag`, or without a name. Another image
    /// with that name loses it: its entry stays without a name if it is `keep`, and is removed
    /// otherwise.
    pub fn name(&self, image: &Descriptor, tag: Option<&str>, keep: Option<&Digest>) -> Result<(), LayoutError> {
        write::name(self, image, tag, keep)
    }

    /// Writes a manifest whose blobs exist, and lists it in index.json as a referrer, replacing the
    /// first of `replaces` and removing the others from the list. Their blobs stay. Its subject
    /// need not be in this layout.
    pub fn attach(
        &self,
        index: &Descriptor,
        manifest: &[u8],
        replaces: &[Digest],
    ) -> Result<AttachMethod, LayoutError> {
        write::blob(self, &index.digest, manifest)?;
        write::entry(self, index, replaces)?;
        Ok(AttachMethod::Layout)
    }

    /// Whether both are the same directory.
    pub fn is_same(&self, other: &Layout) -> bool {
        let real = |layout: &Layout| layout.dir.canonicalize().unwrap_or_else(|_| layout.dir.clone());
        real(self) == real(other)
    }

    /// Removes manifests from the lists of referrers of `subject`. Their blobs stay.
    pub fn detach(&self, subject: &Digest, referrers: &[Digest]) -> Result<(), LayoutError> {
        write::unlist(self, subject, referrers)
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("blobs").join(digest.algorithm().name()).join(digest.hex())
    }
}

impl LayoutFiles for Layout {
    fn path(&self) -> &Path {
        &self.dir
    }

    fn index_json(&self) -> Result<Vec<u8>, LayoutError> {
        let path = self.dir.join("index.json");
        let bytes = open_regular(&path).and_then(|file| read_bounded(file, read::MAX_INDEX_JSON));
        if self.is_new && bytes.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return Ok(write::EMPTY_INDEX.to_vec());
        }
        bytes.map_err(|source| LayoutError::Io { action: "read", path, source })
    }

    fn blob(&self, digest: &Digest) -> Result<Option<FileRange>, LayoutError> {
        let path = self.blob_path(digest);
        let opened = open_regular(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        match opened {
            Ok((size, file)) => Ok(Some(FileRange { file: Arc::new(file), offset: 0, size, sparse: None })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(LayoutError::Io { action: "open", path, source }),
        }
    }
}

/// Checks the content of the file `oci-layout`.
pub(super) fn check_marker(files: &impl LayoutFiles, bytes: &[u8]) -> Result<(), LayoutError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Marker {
        image_layout_version: String,
    }
    let marker: Marker =
        json::parse(bytes, MAX_MARKER, &[]).map_err(|source| read::document_error(files, "oci-layout", source))?;
    if marker.image_layout_version == "1" || marker.image_layout_version.starts_with("1.") {
        return Ok(());
    }
    let version: String = marker.image_layout_version.chars().take(40).collect();
    let reason = format!("unknown layout version {version:?} (expected 1.0.0)");
    Err(LayoutError::NotALayout { path: files.path().to_owned(), reason })
}
