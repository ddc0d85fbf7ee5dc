//! OCI image layouts (image-spec image-layout.md): a directory of blobs and its index.json, how its
//! files are opened and read, and why it or its archive cannot be used.

pub(super) mod read;
mod write;

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

pub use read::tag_of;

use super::blob::{AttachMethod, Document, Referrers, Target};
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::config::ConfigError;
use ociseek_format::image::{Descriptor, ImageSelector, JsonError, json};
use ociseek_format::printable::exact_size;
use ociseek_format::tar::SparseMap;
use read::LayoutFiles;

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
        let not = |reason: &str| LayoutError::NotALayout {
            path: dir.to_owned(),
            reason: reason.to_owned(),
        };
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
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(not("it has no file oci-layout"));
            }
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
        Ok(LayoutFiles::blob(self, digest)?
            .is_some_and(|metadata| size.is_none_or(|size| size == metadata.size)))
    }

    /// The referrers of `subject`, in the order of index.json.
    pub fn referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Result<Referrers, LayoutError> {
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
    pub fn name(
        &self,
        image: &Descriptor,
        tag: Option<&str>,
        keep: Option<&Digest>,
    ) -> Result<(), LayoutError> {
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
        let real =
            |layout: &Layout| layout.dir.canonicalize().unwrap_or_else(|_| layout.dir.clone());
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
            Ok((size, file)) => {
                Ok(Some(FileRange { file: Arc::new(file), offset: 0, size, sparse: None }))
            }
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
    let marker: Marker = json::parse(bytes, MAX_MARKER, &[])
        .map_err(|source| read::document_error(files, "oci-layout", source))?;
    if marker.image_layout_version == "1" || marker.image_layout_version.starts_with("1.") {
        return Ok(());
    }
    let version: String = marker.image_layout_version.chars().take(40).collect();
    let reason = format!("unknown layout version {version:?} (expected 1.0.0)");
    Err(LayoutError::NotALayout { path: files.path().to_owned(), reason })
}

/// Opens a regular file. Refuses a FIFO or device, without waiting for it. Follows symbolic links,
/// because shared blob stores consist of them and all content is checked by digest.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = open_without_waiting(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

/// Opens a file for reading. Does not block on a FIFO without a writer.
pub(crate) fn open_without_waiting(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// A whole document, up to one byte past `limit`: its parser refuses longer ones.
pub(crate) fn read_bounded(document: impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    document.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Bytes that a file holds: a range of it, or a sparse file whose parts such a range holds.
#[derive(Debug, Clone)]
pub(crate) struct FileRange {
    pub file: Arc<File>,
    pub offset: u64,
    /// With the holes of a sparse file.
    pub size: u64,
    pub sparse: Option<SparseMap>,
}

impl FileRange {
    /// Reads some of the bytes from `at` on.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let room =
            usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..room];
        let Some(map) = &self.sparse else { return self.file.read_at(buffer, self.offset + at) };
        match map.within(at..at + room as u64).next() {
            Some(part) if part.file.start == at => {
                let length = (part.file.end - at) as usize;
                self.file.read_at(&mut buffer[..length], self.offset + part.stored)
            }
            part => {
                let hole = part.map_or(room, |part| (part.file.start - at) as usize);
                buffer[..hole].fill(0);
                Ok(hole)
            }
        }
    }
}

/// The bytes of a blob, exactly as many as its descriptor states. Their digest is not checked.
#[derive(Debug)]
pub struct BlobReader {
    extent: FileRange,
    at: u64,
}

impl BlobReader {
    pub(crate) fn new(extent: FileRange) -> BlobReader {
        BlobReader { extent, at: 0 }
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.extent.size - self.at;
        if left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let got = self.extent.read_at(buffer, self.at)?;
        if got == 0 {
            // The file was longer when it was opened.
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the file ends {left} bytes early"),
            ));
        }
        self.at += got as u64;
        Ok(got)
    }
}

/// The bytes of `range`, relative to the start of `extent` and within it.
fn read_range(extent: &FileRange, range: std::ops::Range<u64>) -> io::Result<Vec<u8>> {
    let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    BlobReader { extent: extent.clone(), at: range.start }.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum LayoutError {
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not an image layout: {reason}", path.display())]
    NotALayout { path: PathBuf, reason: String },
    /// An archive in Docker's own format.
    #[error(
        "{} is not an image layout: it has a manifest.json, as written by docker save: use docker-archive:FILE",
        path.display()
    )]
    Saved { path: PathBuf },
    /// The one who placed the link chose where the files go.
    #[error("{} is a symbolic link, and a layout is not written through links", path.display())]
    Link { path: PathBuf },
    #[error("{} is not a docker save archive: {reason}", path.display())]
    NotSaved { path: PathBuf, reason: String },
    /// A file that a document of the archive names.
    #[error("{name:?} in {} {reason}", path.display())]
    Member { path: PathBuf, name: String, reason: &'static str },
    #[error("{name:?} in {} cannot be decompressed", path.display())]
    Decompress {
        path: PathBuf,
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("{name:?} in {} cannot be used", path.display())]
    SavedConfig {
        path: PathBuf,
        name: String,
        #[source]
        source: ConfigError,
    },
    #[error("{} in {} is not valid", name, path.display())]
    Document {
        path: PathBuf,
        name: String,
        #[source]
        source: JsonError,
    },
    /// It lists only indexes or other artifacts, or nothing.
    #[error("{} holds no image", path.display())]
    NoImage { path: PathBuf },
    #[error("{} has no image {wanted}; it has {}", path.display(), listed(there, "no images at all"))]
    NoSuchImage { path: PathBuf, wanted: String, there: Vec<String> },
    #[error("{} holds several images: choose one of {}", path.display(), listed(there, "none"))]
    SeveralImages { path: PathBuf, there: Vec<String> },
    #[error("{} does not hold {digest}", path.display())]
    Missing { path: PathBuf, digest: Digest },
    #[error("{digest} in {} has {actual} bytes, but its descriptor says {expected}", path.display())]
    Size { path: PathBuf, digest: Digest, expected: u64, actual: u64 },
    #[error("{digest} in {} has {size} bytes; the limit is {}", path.display(), exact_size(*limit))]
    TooLarge { path: PathBuf, digest: Digest, size: u64, limit: u64 },
    #[error("{expected} in {} is damaged: its content is {actual}", path.display())]
    Damaged { path: PathBuf, expected: Digest, actual: Digest },
    #[error("the content for {expected} is {actual}")]
    Content { expected: Digest, actual: Digest },
    /// The tar of an archive is not valid. `offset` is the position in the file.
    #[error("{} is not a valid tar archive: {reason} at offset {offset}", path.display())]
    Tar { path: PathBuf, reason: String, offset: u64 },
    #[error("{} is compressed with {with} and must be decompressed first ({command})", path.display())]
    Compressed { path: PathBuf, with: &'static str, command: &'static str },
}

/// Lists at most ten names and the number of the others. Without names, returns `none`.
fn listed(names: &[String], none: &str) -> String {
    match names.len() {
        0 => none.to_owned(),
        n if n > 10 => format!("{} and {} more", names[..10].join(", "), n - 10),
        _ => names.join(", "),
    }
}
