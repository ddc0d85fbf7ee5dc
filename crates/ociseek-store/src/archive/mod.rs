//! Archives, read in place: the tar of an image layout (`oci-archive:`), and the output of `docker
//! save` (`docker-archive:`). Nothing is unpacked, so names in an archive cannot refer to files
//! outside it.

mod saved;

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::blob::{Document, Referrers, Target};
use super::layout::read::{self, LayoutFiles, MAX_INDEX_JSON};
use super::layout::{
    BlobReader, FileRange, LayoutError, MAX_MARKER, check_marker, open_without_waiting,
    read_bounded,
};
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::{Descriptor, ImageSelector, SavedImageSelector};
use ociseek_format::progress::Progress;
use ociseek_format::tar::{BLOCK, Entry, Kind, SparseMap, TarError, Walker};

const MARKER: &str = "oci-layout";
const INDEX_JSON: &str = "index.json";

/// One or more images in a tar file. All calls block. The file stays open while the archive is
/// used, so replacing it has no effect.
#[derive(Debug, Clone)]
pub struct Archive {
    path: PathBuf,
    file: Arc<File>,
    kind: Documents,
    budget: Budget,
}

/// The location of a member's data in the file, in bytes.
#[derive(Debug, Clone)]
struct MemberPlace {
    offset: u64,
    /// With the holes of a sparse member.
    size: u64,
    sparse: Option<SparseMap>,
}

impl MemberPlace {
    fn of(self, file: &Arc<File>) -> FileRange {
        let MemberPlace { offset, size, sparse } = self;
        FileRange { file: Arc::clone(file), offset, size, sparse }
    }
}

/// The documents that name the archive's images.
#[derive(Debug, Clone)]
enum Documents {
    Layout {
        index_json: Arc<Vec<u8>>,
        members: Arc<Members>,
    },
    /// The selected image, with the manifest that was made for it.
    Saved {
        manifest: Box<Descriptor>,
        bytes: Bytes,
        /// The locations of its config and layers.
        blobs: Arc<HashMap<Digest, MemberPlace>>,
    },
}

impl Archive {
    /// Like [`Layout::with_budget`](super::layout::Layout::with_budget).
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Archive {
        Archive { budget, ..self }
    }

    /// The memory budget for the work on an image.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Opens the tar of an image layout, as written by `docker save` (since Docker 25), BuildKit's
    /// `type=oci`, skopeo and podman. Reads only the headers of the tar and skips the data.
    ///
    /// # Errors
    /// If it cannot be read, or is not such an archive.
    pub fn open(path: &Path) -> Result<Archive, LayoutError> {
        let not = |reason: &str| LayoutError::NotALayout {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        let archive_file = ArchiveFile::new(path, &not)?;
        let members = Members::of(&archive_file, &not)?;
        if !members.has(MARKER) {
            if members.has("manifest.json") {
                return Err(LayoutError::Saved { path: path.to_owned() });
            }
            return Err(not(&match members.folder_of(MARKER) {
                Some(folder) => in_folder(MARKER, &folder),
                None => "it has no file oci-layout".to_owned(),
            }));
        }
        if !members.has(INDEX_JSON) {
            return Err(not("it has no index.json"));
        }
        let marker = members.find(path, MARKER)?;
        let index = members.find(path, INDEX_JSON)?;
        let marker = archive_file.whole(marker, MAX_MARKER)?;
        let index_json = Arc::new(archive_file.whole(index, MAX_INDEX_JSON)?);
        let archive =
            archive_file.archive(Documents::Layout { index_json, members: Arc::new(members) });
        check_marker(&archive, &marker)?;
        Ok(archive)
    }

    /// Opens one image of an archive in Docker's own format, written by `docker save` or another
    /// tool. Reads the headers of the tar, the config, and all compressed layers. Each of these is
    /// reported as [`ProgressEvent::Reading`](ociseek_format::progress::ProgressEvent::Reading),
    /// with the digest of its uncompressed tar.
    ///
    /// # Errors
    /// If the archive cannot be read, is not in this format, or does not hold the complete image.
    pub fn open_saved(
        path: &Path,
        select: &SavedImageSelector,
        progress: &dyn Progress,
    ) -> Result<Archive, LayoutError> {
        let not = |reason: &str| LayoutError::NotSaved {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        let archive_file = ArchiveFile::new(path, &not)?;
        let saved::Saved { manifest, bytes, blobs } = saved::open(&archive_file, select, progress)?;
        Ok(archive_file.archive(Documents::Saved {
            manifest: Box::new(manifest),
            bytes,
            blobs: Arc::new(blobs),
        }))
    }

    /// Whether `docker save` or a similar tool wrote it. Then the only manifest of the image is the
    /// one that was made here.
    pub fn is_saved(&self) -> bool {
        matches!(self.kind, Documents::Saved { .. })
    }

    /// Like [`Layout::find`](super::layout::Layout::find).
    pub fn find(&self, select: &ImageSelector) -> Result<Descriptor, LayoutError> {
        read::find(self, select)
    }

    /// A manifest or index of at most 4 MiB with a verified digest.
    pub fn manifest(&self, target: &Target) -> Result<Document, LayoutError> {
        read::manifest(self, target)
    }

    /// A blob's bytes. The archive holds exactly as many as `blob` states.
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

    /// The referrers of `subject`, in the order of index.json.
    pub fn referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Result<Referrers, LayoutError> {
        read::referrers(self, subject, artifact_type)
    }
}

impl LayoutFiles for Archive {
    fn path(&self) -> &Path {
        &self.path
    }

    fn index_json(&self) -> Result<Vec<u8>, LayoutError> {
        Ok(match &self.kind {
            Documents::Layout { index_json, .. } => index_json.to_vec(),
            Documents::Saved { manifest, .. } => {
                serde_json::json!({"schemaVersion": 2, "manifests": [manifest]})
                    .to_string()
                    .into_bytes()
            }
        })
    }

    fn manifest(&self, digest: &Digest) -> Option<Bytes> {
        match &self.kind {
            Documents::Saved { manifest, bytes, .. } if manifest.digest == *digest => {
                Some(bytes.clone())
            }
            _ => None,
        }
    }

    fn blob(&self, digest: &Digest) -> Result<Option<FileRange>, LayoutError> {
        let place = match &self.kind {
            Documents::Layout { members, .. } => members.look_up(
                &self.path,
                &format!("blobs/{}/{}", digest.algorithm().name(), digest.hex()),
            )?,
            Documents::Saved { blobs, .. } => blobs.get(digest).cloned(),
        };
        Ok(place.map(|place| place.of(&self.file)))
    }
}

/// Why an archive cannot be used whose files are all in a folder.
fn in_folder(file: &str, folder: &str) -> String {
    format!(
        "it has {file} only in the folder {folder}: pack what is in the folder (tar -C {folder} -cf FILE .)"
    )
}

/// A file that may be an archive.
struct ArchiveFile<'a> {
    path: &'a Path,
    file: Arc<File>,
    /// The size in bytes.
    length: u64,
}

impl ArchiveFile<'_> {
    fn new<'a>(
        path: &'a Path,
        not: &dyn Fn(&str) -> LayoutError,
    ) -> Result<ArchiveFile<'a>, LayoutError> {
        let io = |source| LayoutError::Io { action: "open", path: path.to_owned(), source };
        let file = open_without_waiting(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if metadata.is_dir() {
            return Err(not("it is a directory; for an image layout, use oci:DIR"));
        }
        if !metadata.is_file() {
            return Err(not(
                "it is not a regular file, which random access needs: save it to a file first",
            ));
        }
        let archive_file = ArchiveFile { path, file: Arc::new(file), length: metadata.len() };
        if archive_file.length == 0 {
            return Err(not("it is empty"));
        }
        archive_file.refuse_compressed()?;
        Ok(archive_file)
    }

    fn archive(self, kind: Documents) -> Archive {
        Archive { path: self.path.to_owned(), file: self.file, kind, budget: Budget::default() }
    }

    fn reader(&self, place: MemberPlace) -> BlobReader {
        BlobReader::new(place.of(&self.file))
    }

    /// A whole member, like [`read_bounded`].
    fn whole(&self, place: MemberPlace, limit: usize) -> Result<Vec<u8>, LayoutError> {
        let bytes = read_bounded(self.reader(place), limit);
        bytes.map_err(|source| LayoutError::Io {
            action: "read",
            path: self.path.to_owned(),
            source,
        })
    }

    fn refuse_compressed(&self) -> Result<(), LayoutError> {
        const MAGIC: [(&[u8], &str, &str); 4] = [
            (b"\x1f\x8b", "gzip", "gunzip"),
            (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
            (b"\xfd7zXZ\0", "xz", "unxz"),
            (b"BZh", "bzip2", "bunzip2"),
        ];
        let head =
            self.whole(MemberPlace { offset: 0, size: self.length.min(8), sparse: None }, 8)?;
        match MAGIC.iter().find(|(magic, ..)| head.starts_with(magic)) {
            Some(&(_, with, command)) => {
                Err(LayoutError::Compressed { path: self.path.to_owned(), with, command })
            }
            None => Ok(()),
        }
    }
}

/// The maximum number of members. Old archives of Docker have three for each layer.
const MAX_MEMBERS: usize = 1 << 16;
/// The maximum total size of their names, link targets and sparse maps, in bytes.
const MAX_NAMES: usize = 16 << 20;
/// How many times the bytes of the archive a sparse member may have: its holes take no bytes, and
/// reading them takes time. Gzip compresses as far.
const MAX_EXPANSION: u64 = 1024;
/// The maximum length of a chain of links. Old archives use a link for a layer that is already
/// stored.
const MAX_LINKS: usize = 16;

/// The members of the tar by name. Of several with the same name, the last one counts, as when the
/// tar is unpacked.
#[derive(Debug)]
struct Members(HashMap<Box<[u8]>, Member>);

#[derive(Debug, Clone)]
enum Member {
    File(MemberPlace),
    /// A link with its target; None if the target is outside the archive.
    Link(Option<Box<[u8]>>),
    /// A sparse file that expands too far.
    TooSparse,
    Other,
}

impl Members {
    /// Reads the headers of the tar. `not` makes the error that the file is not such an archive.
    fn of(file: &ArchiveFile, not: &dyn Fn(&str) -> LayoutError) -> Result<Members, LayoutError> {
        let mut all: HashMap<Box<[u8]>, Member> = HashMap::new();
        let mut bytes = 0;
        members(file.path, &file.file, file.length, |name, entry| {
            // Nobody can ask for a name that leads out of the archive.
            let Some(name) = resolved(name).filter(|_| entry.kind != Kind::Directory) else {
                return Ok(());
            };
            bytes += entry.sparse.as_ref().map_or(0, SparseMap::footprint);
            let member = match member(&name, entry, file.length) {
                // A hard link is another name of what its target is now.
                Member::Link(Some(target)) if entry.kind == Kind::HardLink && *target != *name => {
                    all.get(&target).cloned().unwrap_or(Member::Link(Some(target)))
                }
                member => member,
            };
            bytes += name.len();
            if let Member::Link(Some(target)) = &member {
                bytes += target.len();
            }
            all.insert(name, member);
            if all.len() > MAX_MEMBERS || bytes > MAX_NAMES {
                return Err(not(&format!(
                    "it has more than {MAX_MEMBERS} files, or too long names or sparse maps"
                )));
            }
            Ok(())
        })?;
        Ok(Members(all))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name.as_bytes())
    }

    /// The folder at the top that holds a file of this name.
    fn folder_of(&self, file: &str) -> Option<String> {
        let folder = |name: &[u8]| {
            let folder = name.strip_suffix(file.as_bytes())?.strip_suffix(b"/")?;
            (!folder.contains(&b'/')).then(|| shown(&String::from_utf8_lossy(folder)))
        };
        self.0.keys().filter_map(|name| folder(name)).min()
    }

    /// The location of a file that a document of the archive names. None if it does not exist.
    fn look_up(&self, path: &Path, name: &str) -> Result<Option<MemberPlace>, LayoutError> {
        let wrong =
            |reason| LayoutError::Member { path: path.to_owned(), name: shown(name), reason };
        let leads_out = "is a link that leads out of the archive";
        let mut next =
            resolved(name.as_bytes()).ok_or_else(|| wrong("leads out of the archive"))?;
        for _ in 0..=MAX_LINKS {
            next = match self.0.get(&next) {
                Some(Member::File(place)) => return Ok(Some(place.clone())),
                Some(Member::Link(target)) => target.clone().ok_or_else(|| wrong(leads_out))?,
                Some(Member::TooSparse) => {
                    return Err(wrong(
                        "is a sparse file of more than 1024 times the bytes of the archive",
                    ));
                }
                Some(Member::Other) => return Err(wrong("is not a regular file")),
                // A folder on the way may be a link.
                None => {
                    let slashes = next
                        .iter()
                        .enumerate()
                        .filter(|(_, byte)| **byte == b'/')
                        .map(|(at, _)| at);
                    let folder = slashes.into_iter().find_map(|at| match self.0.get(&next[..at]) {
                        Some(Member::Link(target)) => Some((target.clone(), at)),
                        _ => None,
                    });
                    let Some((target, at)) = folder else { return Ok(None) };
                    let target = target.ok_or_else(|| wrong(leads_out))?;
                    resolved(&[&*target, &next[at..]].concat()).ok_or_else(|| wrong(leads_out))?
                }
            };
        }
        Err(wrong("is a link in a loop, or through too many links"))
    }

    /// Like [`Members::look_up`], for a file that must be there.
    fn find(&self, path: &Path, name: &str) -> Result<MemberPlace, LayoutError> {
        self.look_up(path, name)?.ok_or_else(|| LayoutError::Member {
            path: path.to_owned(),
            name: shown(name),
            reason: "is not in the archive",
        })
    }
}

fn member(name: &[u8], entry: &Entry, archive: u64) -> Member {
    let size = entry.size.unsigned_abs();
    match entry.kind {
        Kind::Sparse if size / MAX_EXPANSION > archive => Member::TooSparse,
        Kind::Regular | Kind::Sparse => {
            Member::File(MemberPlace { offset: entry.data.0, size, sparse: entry.sparse.clone() })
        }
        Kind::HardLink => Member::Link(resolved(&entry.linkname)),
        Kind::Symlink if entry.linkname.first() == Some(&b'/') => Member::Link(None),
        Kind::Symlink => {
            let directory =
                name.iter().rposition(|&b| b == b'/').map_or(&[][..], |slash| &name[..slash]);
            Member::Link(resolved(&[directory, b"/", &entry.linkname].concat()))
        }
        _ => Member::Other,
    }
}

/// The name without `.`, `..` and redundant slashes. None if it leads out of the archive.
fn resolved(name: &[u8]) -> Option<Box<[u8]>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join(&b'/').into())
}

/// A name from the archive, for messages.
fn shown(name: &str) -> String {
    name.chars().take(100).collect()
}

/// Passes each member of the tar to `each`: its name without a leading `./`, and its entry.
fn members(
    path: &Path,
    file: &Arc<File>,
    length: u64,
    mut each: impl FnMut(&[u8], &Entry) -> Result<(), LayoutError>,
) -> Result<(), LayoutError> {
    let mut walker = Walker::past_sparse_files();
    let mut at = 0;
    loop {
        at += walker.skip(length - at);
        let mut block = [0; BLOCK];
        let room = usize::try_from(length - at).unwrap_or(BLOCK).min(BLOCK);
        if room == 0 || walker.is_over() {
            return walker.finish().map(drop).map_err(|error| unsound(path, error));
        }
        let block = &mut block[..room];
        let read = file.read_exact_at(block, at);
        read.map_err(|source| LayoutError::Io { action: "read", path: path.to_owned(), source })?;
        at += room as u64;
        let mut member = None;
        walker
            .push(block, &mut |entry| member = Some(entry))
            .map_err(|error| unsound(path, error))?;
        if let Some(entry) = member.filter(|entry| entry.kind != Kind::GlobalHeader) {
            each(entry.name.strip_prefix(b"./").unwrap_or(&entry.name), &entry)?;
        }
    }
}

fn unsound(path: &Path, error: TarError) -> LayoutError {
    LayoutError::Tar {
        path: path.to_owned(),
        reason: error.fault.to_string(),
        offset: error.offset.0,
    }
}
