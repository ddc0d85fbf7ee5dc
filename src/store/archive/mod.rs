//! OCI archives: the tar of an image layout, read in place. Nothing is unpacked, so names in it lead nowhere.

mod tar;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use self::tar::{Headers, Kind};
use super::blob::{Document, Referrers, Target};
use super::layout::read::{self, Files};
use super::layout::{BlobReader, Extent, LayoutError, check_marker, open_without_waiting};
use crate::budget::Budget;
use crate::digest::Digest;
use crate::image::{Descriptor, Select};

/// The largest index.json and oci-layout that are read, in bytes; their parsers refuse less.
const MAX_INDEX_JSON: u64 = 16 << 20;

/// An image layout in a tar file, as `docker save` (since Docker 25), BuildKit's `type=oci`, skopeo and podman write it. All calls
/// block. The file is open for as long as the archive is used, so replacing it changes nothing.
#[derive(Debug, Clone)]
pub struct Archive {
    path: PathBuf,
    file: Arc<File>,
    blobs: Arc<HashMap<Digest, (u64, u64)>>,
    index_json: Arc<Vec<u8>>,
    budget: Budget,
}

impl Archive {
    /// As [`Layout::with_budget`](super::layout::Layout::with_budget).
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Archive {
        Archive { budget, ..self }
    }

    /// What the work on one image of it may take.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Walks the headers of the tar, without reading what lies between.
    pub fn open(path: &Path) -> Result<Archive, LayoutError> {
        let io = |action, source| LayoutError::Io { action, path: path.to_owned(), source };
        let not = |reason: &str| LayoutError::NotALayout { path: path.to_owned(), reason: reason.to_owned() };
        let file = open_without_waiting(path).map_err(|e| io("open", e))?;
        let metadata = file.metadata().map_err(|e| io("open", e))?;
        if metadata.is_dir() {
            return Err(not("it is a directory; an image layout is written oci:DIR"));
        }
        if !metadata.is_file() {
            return Err(not("it is not a regular file, and an archive is read at many places: store it first"));
        }
        let file = Arc::new(file);
        refuse_compressed(path, &file)?;

        let mut blobs = HashMap::new();
        let mut marker = None;
        let mut index = None;
        let mut docker = false;
        for header in Headers::new(Arc::clone(&file), metadata.len()) {
            let header = header.map_err(|e| e.at(path))?;
            let name = header.name.strip_prefix(b"./").unwrap_or(&header.name);
            let Some(member) = Member::named(name) else { continue };
            if header.kind == Kind::Directory {
                continue;
            }
            let offset = header.header_offset;
            let unsound = |reason: String| LayoutError::Tar { path: path.to_owned(), reason, offset };
            if header.kind != Kind::Regular {
                return Err(unsound(format!("{} is not a regular file", String::from_utf8_lossy(name))));
            }
            let place = (header.offset, header.size);
            let twice = match member {
                Member::Marker => marker.replace(place).is_some(),
                Member::IndexJson => index.replace(place).is_some(),
                // Which of two the reader takes does not matter: its digest is checked.
                Member::Blob(digest) => {
                    blobs.entry(digest).or_insert(place);
                    false
                }
                Member::DockerManifest => {
                    docker = true;
                    false
                }
            };
            if twice {
                return Err(unsound(format!("{} is there twice", String::from_utf8_lossy(name))));
            }
        }
        let (marker, index) = match (marker, index) {
            (Some(marker), Some(index)) => (marker, index),
            _ if docker => {
                return Err(not(
                    "Docker before 25 saved it, in a format of its own: load it into a newer Docker and save it \
                     again, or use `skopeo copy docker-archive:FILE oci:DIR`",
                ));
            }
            (None, _) => return Err(not("it has no file oci-layout")),
            (_, None) => return Err(not("it has no index.json")),
        };
        let whole = |(offset, size): (u64, u64)| {
            let mut bytes = Vec::new();
            let extent = Extent { file: Arc::clone(&file), offset, size: size.min(MAX_INDEX_JSON + 1) };
            BlobReader::new(extent).read_to_end(&mut bytes).map(|_| bytes).map_err(|e| io("read", e))
        };
        let (marker, index_json) = (whole(marker)?, Arc::new(whole(index)?));
        let budget = Budget::default();
        let archive = Archive { path: path.to_owned(), file, blobs: Arc::new(blobs), index_json, budget };
        check_marker(&archive, &marker)?;
        Ok(archive)
    }

    /// As [`Layout::find`](super::layout::Layout::find).
    pub fn find(&self, select: &Select) -> Result<Descriptor, LayoutError> {
        read::find(self, select)
    }

    /// A manifest or index of at most 4 MiB, its digest checked.
    pub fn manifest(&self, target: &Target) -> Result<Document, LayoutError> {
        read::manifest(self, target)
    }

    /// A blob's bytes; the archive holds exactly as many as `blob` says.
    pub fn blob(&self, blob: &Descriptor) -> Result<BlobReader, LayoutError> {
        read::blob(self, blob)
    }

    /// The bytes of `range`, which lies within the blob.
    pub fn blob_range(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, LayoutError> {
        read::blob_range(self, blob, range)
    }

    /// A small blob whole, its digest checked; more than `limit` bytes are refused.
    pub fn blob_bytes(&self, blob: &Descriptor, limit: u64) -> Result<Bytes, LayoutError> {
        read::blob_bytes(self, blob, limit)
    }

    pub fn blob_exists(&self, digest: &Digest) -> Result<bool, LayoutError> {
        Ok(self.blobs.contains_key(digest))
    }

    /// Referrers of `subject`, in the order of index.json.
    pub fn referrers(&self, subject: &Digest, artifact_type: Option<&str>) -> Result<Referrers, LayoutError> {
        read::referrers(self, subject, artifact_type)
    }
}

impl Files for Archive {
    fn path(&self) -> &Path {
        &self.path
    }

    fn index_json(&self) -> Result<Vec<u8>, LayoutError> {
        Ok(self.index_json.to_vec())
    }

    fn blob(&self, digest: &Digest) -> Result<Option<Extent>, LayoutError> {
        let place = self.blobs.get(digest);
        Ok(place.map(|&(offset, size)| Extent { file: Arc::clone(&self.file), offset, size }))
    }
}

/// A name in the tar that means something to a layout.
enum Member {
    Marker,
    IndexJson,
    Blob(Digest),
    DockerManifest,
}

impl Member {
    fn named(name: &[u8]) -> Option<Member> {
        match name {
            b"oci-layout" => Some(Member::Marker),
            b"index.json" => Some(Member::IndexJson),
            b"manifest.json" => Some(Member::DockerManifest),
            _ => {
                let path = std::str::from_utf8(name).ok()?.strip_prefix("blobs/")?;
                let (algorithm, hex) = path.split_once('/')?;
                format!("{algorithm}:{hex}").parse().ok().map(Member::Blob)
            }
        }
    }
}

fn refuse_compressed(path: &Path, file: &Arc<File>) -> Result<(), LayoutError> {
    const MAGIC: [(&[u8], &str, &str); 4] = [
        (b"\x1f\x8b", "gzip", "gunzip"),
        (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
        (b"\xfd7zXZ\0", "xz", "unxz"),
        (b"BZh", "bzip2", "bunzip2"),
    ];
    let mut head = Vec::new();
    BlobReader::new(Extent { file: Arc::clone(file), offset: 0, size: 8 })
        .read_to_end(&mut head)
        .map(|_| ())
        .or_else(|e| if e.kind() == std::io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(e) })
        .map_err(|source| LayoutError::Io { action: "read", path: path.to_owned(), source })?;
    match MAGIC.iter().find(|(magic, ..)| head.starts_with(magic)) {
        Some(&(_, with, command)) => Err(LayoutError::Compressed { path: path.to_owned(), with, command }),
        None => Ok(()),
    }
}
