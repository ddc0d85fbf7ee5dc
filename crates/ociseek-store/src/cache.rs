//! The local cache of ztocs: a layer that was indexed before is not read again.
//!
//! The keys (`Key`) define ten kinds of entries: the outcome of indexing a layer, its fine
//! document, a ztoc from elsewhere, the head of a fine document from elsewhere, the pages for a
//! recorded start that follow a head, the map of a layer, the manifests and configs of images that
//! were read, marks for documents that were proven, what images were when they were last opened,
//! and the trees of their files. An entry is a file named by the digest of its key. It holds the
//! digest of the following bytes, a line of JSON, and the content. It is written to a temporary
//! file, which is then renamed. Renaming is atomic, so processes need no locks and never wait for
//! each other. A process that dies leaves at most a temporary file. A damaged entry does not match
//! its digest and is dropped.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::disk_watch::DiskWatch;
use super::entries::{drop_entry, evict, make_dir, open_entry, temporary};
use ociseek_format::budget::{Charge, OverBudget};
use ociseek_format::digest::{Algorithm, Digest, Hasher};
use ociseek_format::fine;
use ociseek_format::layer::record::{self, RECORD_VERSION};
use ociseek_format::layer::{
    BlobForm, BuiltZtoc, LayerMap, Notes, Outcome, UnservableCode, UnservableReason,
};
use ociseek_format::offset::SpanSize;
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_format::tree::Tree;

/// Must change whenever another outcome becomes correct for the same layer and options. Entries of
/// other versions are ignored.
const FORMAT_VERSION: &str = "ociseek 1, ztoc 0.9";
/// The default limit for all entries together, in bytes. If they exceed it, the least recently used
/// entries are removed until they take 9/10 of it.
pub const MAX_CACHE: u64 = 1 << 30;
/// The `tracing` target of cache events, also used by the cache of spans.
pub const TARGET: &str = "ociseek::cache";
/// The size limit of an entry that is read or stored, in bytes.
const MAX_ENTRY: u64 = 256 << 20;
/// An entry up to this size is copied, so that nobody waits for a disk that hangs to store it.
const COPIED: usize = 4 << 20;

/// The key of a cached outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheKey<'a> {
    /// The digest of the layer's blob.
    pub layer: &'a Digest,
    /// The span size in bytes.
    pub span_size: SpanSize,
    /// The tool name recorded in the ztoc.
    pub build_tool_identifier: &'a str,
}

/// The key of a layer's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapKey<'a> {
    /// The digest of the layer's blob.
    pub layer: &'a Digest,
    /// The size of the blob in bytes.
    pub size: u64,
    /// The size of a span in bytes of the tar, for maps that are made here.
    pub span_size: SpanSize,
}

/// The key of an entry.
enum Key<'a> {
    /// The outcome of indexing a layer.
    Outcome(CacheKey<'a>),
    /// A ztoc from elsewhere, by its own digest.
    Ztoc(&'a Digest),
    /// The head of a fine document, by the head's own digest.
    Head(&'a Digest),
    /// The pages for a recorded start that follow the head with this digest.
    Start(&'a Digest),
    /// A manifest, an index or a config, by its own digest.
    Document(&'a Digest),
    /// The map of a layer.
    Map(MapKey<'a>),
    /// The fine document of a layer without a recorded start, by the digest of the layer's blob.
    Fine(&'a Digest),
    /// What an image was when it was last opened, by a digest of its name.
    Opened(&'a Digest),
    /// The tree of an image's files, by a digest of what it was made from. The number in its text
    /// must change whenever trees are made or stored differently.
    Tree(&'a Digest),
    /// The mark that a document was made from a layer here, or compared completely with it.
    Proven {
        /// The digest of the layer's blob.
        layer: &'a Digest,
        /// That of the ztoc, or of the head of the fine document.
        document: &'a Digest,
    },
}

impl Key<'_> {
    /// The kind of the entry, for the log.
    fn word(&self) -> &'static str {
        match self {
            Key::Outcome(_) | Key::Ztoc(_) => "ztoc",
            Key::Head(_) => "head",
            Key::Start(_) => "start",
            Key::Document(_) => "document",
            Key::Map(_) => "map",
            Key::Fine(_) => "fine document",
            Key::Opened(_) => "opened image",
            Key::Tree(_) => "tree",
            Key::Proven { .. } => "proof",
        }
    }

    /// The digest of the layer, the ztoc, the head, the document or the name.
    fn digest(&self) -> &Digest {
        match self {
            Key::Outcome(CacheKey { layer, .. }) | Key::Map(MapKey { layer, .. }) => layer,
            Key::Proven { document, .. } => document,
            Key::Ztoc(digest)
            | Key::Head(digest)
            | Key::Start(digest)
            | Key::Document(digest)
            | Key::Fine(digest)
            | Key::Opened(digest)
            | Key::Tree(digest) => digest,
        }
    }

    /// Everything that determines the content and its kind. The first line differs between kinds. A
    /// tool's identifier may contain any text, so it comes last.
    fn text(&self) -> String {
        match self {
            Key::Outcome(CacheKey { layer, span_size, build_tool_identifier }) => {
                format!("{FORMAT_VERSION}\n{layer}\n{span_size}\n{build_tool_identifier}")
            }
            Key::Ztoc(digest) => format!("ociseek found ztoc 1\n{digest}"),
            Key::Head(digest) => format!("ociseek fine head 1\n{digest}"),
            Key::Start(head) => format!("ociseek fine start 1\n{head}"),
            Key::Document(digest) => format!("ociseek document 1\n{digest}"),
            Key::Opened(name) => format!("ociseek opened image 1\n{name}"),
            Key::Tree(sources) => format!("ociseek tree 1\n{sources}"),
            Key::Fine(layer) => format!("ociseek fine document 1\n{}\n{layer}", fine::SPAN_SIZE),
            Key::Proven { layer, document } => format!("ociseek proof 1\n{layer}\n{document}"),
            Key::Map(MapKey { layer, size, span_size }) => {
                format!("{RECORD_VERSION}\n{layer}\n{size}\n{span_size}")
            }
        }
    }
}

/// The line of JSON in an entry.
#[derive(Serialize, Deserialize)]
struct Meta<F> {
    key: String,
    #[serde(flatten)]
    facts: F,
}

/// The facts in that line for an outcome.
#[derive(Serialize, Deserialize)]
struct OutcomeFacts {
    layer_size: u64,
    outcome: StoredOutcome,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredOutcome {
    Ztoc {
        spans: u32,
        entries: u64,
        uncompressed_size: u64,
        /// 0 for a plain tar.
        gzip_members: Option<u64>,
    },
    Unservable {
        code: String,
        reason: String,
    },
}

/// The facts in that line for a document.
#[derive(Serialize, Deserialize)]
struct DocumentFacts {
    media_type: String,
}

/// No facts: the content is sufficient.
#[derive(Serialize, Deserialize)]
struct NoFacts {}

/// Outcomes, ztocs and maps of layers, stored in a directory that any number of processes may
/// share. It never fails: entries that cannot be read count as missing, entries that cannot be
/// written are not stored, and the first such problem is reported as a warning.
#[derive(Clone)]
pub struct ZtocCache {
    inner: Arc<Inner>,
}

ociseek_format::opaque_debug!(ZtocCache);

struct Inner {
    dir: Option<PathBuf>,
    max: u64,
    watch: Arc<DiskWatch>,
    warned: AtomicBool,
    progress: Arc<dyn Progress>,
}

impl ZtocCache {
    /// A cache in `dir`, which is created if it does not exist. With None, nothing is stored.
    pub fn open(dir: Option<&Path>, progress: Arc<dyn Progress>) -> ZtocCache {
        ZtocCache::with_limit(dir, MAX_CACHE, progress)
    }

    /// A cache whose entries take at most `max` bytes together.
    pub fn with_limit(dir: Option<&Path>, max: u64, progress: Arc<dyn Progress>) -> ZtocCache {
        let mut inner = Inner {
            dir: dir.map(Path::to_owned),
            max,
            watch: Arc::default(),
            warned: AtomicBool::new(false),
            progress,
        };
        if let Some(dir) = dir
            && let Err(e) = make_dir(dir)
        {
            inner.warn(dir, &e);
            inner.dir = None;
        }
        ZtocCache { inner: Arc::new(inner) }
    }

    /// Whether anything is stored.
    pub fn is_stored(&self) -> bool {
        self.inner.dir.is_some()
    }

    /// The outcome stored under `key`, and the layer's size in bytes.
    pub fn get(&self, key: CacheKey<'_>) -> Option<(u64, Outcome)> {
        self.load(&Key::Outcome(key), |OutcomeFacts { layer_size, outcome }, bytes| {
            Some((layer_size, outcome_of(outcome, bytes)?))
        })
    }

    /// Stores the outcome for a layer of `size` bytes, which was read here. Its ztoc counts as
    /// proven.
    pub fn put(&self, key: CacheKey<'_>, size: u64, outcome: &Outcome) {
        if let Outcome::Ztoc(ztoc) = outcome {
            self.put_proven(key.layer, &ztoc.digest);
        }
        let (outcome, ztoc) = stored(outcome);
        self.store(&Key::Outcome(key), OutcomeFacts { layer_size: size, outcome }, &[ztoc]);
    }

    /// Whether this machine made a document from the layer, or compared it completely with the
    /// layer. `document` is the digest of a ztoc, or of the head of a fine document.
    pub fn is_proven(&self, layer: &Digest, document: &Digest) -> bool {
        self.load(&Key::Proven { layer, document }, |NoFacts {}, _| Some(())).is_some()
    }

    /// Stores that a document was made here from the layer, or compared completely with the layer.
    pub fn put_proven(&self, layer: &Digest, document: &Digest) {
        self.store(&Key::Proven { layer, document }, NoFacts {}, &[]);
    }

    /// A ztoc from elsewhere, by its own digest.
    pub fn get_ztoc(&self, digest: &Digest) -> Option<Vec<u8>> {
        self.load(&Key::Ztoc(digest), |NoFacts {}, bytes| matching(digest, bytes))
    }

    /// Stores a ztoc with this digest.
    pub fn put_ztoc(&self, digest: &Digest, bytes: &[u8]) {
        self.store(&Key::Ztoc(digest), NoFacts {}, &[bytes]);
    }

    /// The head of a fine document, by the head's digest.
    pub fn get_head(&self, digest: &Digest) -> Option<Vec<u8>> {
        self.load(&Key::Head(digest), |NoFacts {}, bytes| matching(digest, bytes))
    }

    /// Stores the head of a fine document, with the head's digest.
    pub fn put_head(&self, digest: &Digest, bytes: &[u8]) {
        self.store(&Key::Head(digest), NoFacts {}, &[bytes]);
    }

    /// The pages for a recorded start that follow the head with this digest. They were not checked
    /// when they were stored. Only the first caller gets them: later, the spans that need them are
    /// in the cache.
    pub fn take_start(&self, head: &Digest) -> Option<Vec<u8>> {
        let key = Key::Start(head);
        let pages = self.load(&key, |NoFacts {}, bytes| Some(bytes))?;
        self.inner.drop_entry(self.entry_path(&key)?);
        Some(pages)
    }

    /// Stores the pages that follow the head with this digest.
    pub fn put_start(&self, head: &Digest, pages: &[u8]) {
        self.store(&Key::Start(head), NoFacts {}, &[pages]);
    }

    /// A manifest, an index or a config, by its own digest, with its media type.
    pub(crate) fn get_document(&self, digest: &Digest) -> Option<(String, Vec<u8>)> {
        self.load(&Key::Document(digest), |DocumentFacts { media_type }, bytes| {
            Some((media_type, matching(digest, bytes)?))
        })
    }

    /// Stores a document with this digest.
    pub fn put_document(&self, digest: &Digest, media_type: &str, bytes: &[u8]) {
        self.store(
            &Key::Document(digest),
            DocumentFacts { media_type: media_type.to_owned() },
            &[bytes],
        );
    }

    /// The fine document of a layer, which was not checked when it was read.
    pub fn get_fine(&self, layer: &Digest) -> Option<Vec<u8>> {
        self.load(&Key::Fine(layer), |NoFacts {}, bytes| Some(bytes))
    }

    /// Stores the fine document of a layer without a recorded start.
    pub fn put_fine(&self, layer: &Digest, document: &[u8]) {
        self.store(&Key::Fine(layer), NoFacts {}, &[document]);
    }

    /// What an image was when it was last opened, by a digest of its name. It may have changed.
    pub fn get_opened(&self, name: &Digest) -> Option<Vec<u8>> {
        self.load(&Key::Opened(name), |NoFacts {}, bytes| Some(bytes))
    }

    /// Stores what the image with this digest of its name is.
    pub fn put_opened(&self, name: &Digest, image: &[u8]) {
        self.store(&Key::Opened(name), NoFacts {}, &[image]);
    }

    /// Whether there is an entry for [`ZtocCache::get_tree`], valid or not.
    pub fn may_have_tree(&self, sources: &Digest) -> bool {
        self.entry_path(&Key::Tree(sources)).is_some_and(|path| self.inner.has(path))
    }

    /// The stored tree of an image's files, by a digest of what it was made from.
    pub fn get_tree(&self, sources: &Digest) -> Option<Tree> {
        self.load(&Key::Tree(sources), |NoFacts {}, bytes| Tree::from_stored(&bytes))
    }

    /// Stores the tree that was made from what has this digest, if it can be stored.
    pub fn put_tree(&self, sources: &Digest, tree: &Tree) {
        if let Some(bytes) = self.inner.dir.as_ref().and_then(|_| tree.to_stored()) {
            self.store(&Key::Tree(sources), NoFacts {}, &[&bytes]);
        }
    }

    /// The map of the layer under `key`, with its notes. Charged to `memory`.
    ///
    /// # Errors
    /// If the map exists and does not fit into memory.
    pub fn get_map(
        &self,
        key: MapKey<'_>,
        memory: &mut Charge,
    ) -> Result<Option<(LayerMap, Notes)>, OverBudget> {
        let decoded = self
            .load(&Key::Map(key), |NoFacts {}, bytes| record::decode(&bytes, memory).transpose());
        decoded.transpose()
    }

    /// Stores the map of a layer, if its record fits into what is left of `memory`'s budget.
    pub fn put_map(&self, key: MapKey<'_>, map: &LayerMap, notes: &Notes, memory: &Charge) {
        let size = record::encoded_size_bound(map) as u64;
        let Ok(_memory) = memory.budget().charge(size, String::new) else { return };
        let Some([head, rest]) = record::encode(map, notes) else { return };
        self.store(&Key::Map(key), NoFacts {}, &[&head, &rest]);
    }

    /// Passes the entry under `key` to `read`. An entry that `read` rejects is dropped.
    fn load<F: DeserializeOwned, T>(
        &self,
        key: &Key<'_>,
        read: impl FnOnce(F, Vec<u8>) -> Option<T>,
    ) -> Option<T> {
        let path = self.entry_path(key)?;
        let entry = self.load_entry(key, &path, read);
        debug!(name: "lookup", target: TARGET, what = key.word(), of = %key.digest(), hit = entry.is_some());
        entry
    }

    fn load_entry<F: DeserializeOwned, T>(
        &self,
        key: &Key<'_>,
        path: &Path,
        read: impl FnOnce(F, Vec<u8>) -> Option<T>,
    ) -> Option<T> {
        let entry = match self.inner.read(path) {
            Ok(bytes) => decode(bytes, key).and_then(|(facts, bytes)| read(facts, bytes)),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::TimedOut) => {
                return None;
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.inner.warn(path, &e);
                return None;
            }
            Err(_) => None,
        };
        if entry.is_none() {
            self.inner.drop_entry(path.to_owned());
        }
        entry
    }

    fn store<F: Serialize>(&self, key: &Key<'_>, facts: F, content: &[&[u8]]) {
        let (Some(dir), Some(path)) = (&self.inner.dir, self.entry_path(key)) else { return };
        let Some(head) = head(key, facts, content) else { return };
        let size = head.len() + content.iter().map(|part| part.len()).sum::<usize>();
        if size as u64 > MAX_ENTRY.min(self.inner.max) {
            return;
        }
        let written = self.inner.write(dir, &path, &head, content);
        if let Err(e) = written.and_then(|()| evict(dir, self.inner.max).map(|_| ())) {
            // One that hangs may answer again.
            if e.kind() != io::ErrorKind::TimedOut {
                self.inner.warn(dir, &e);
            }
        } else {
            debug!(name: "store", target: TARGET, what = key.word(), of = %key.digest(), bytes = size);
        }
    }

    /// Whether there is an entry for the layer's map. It may turn out to be invalid.
    pub fn has_map(&self, key: MapKey<'_>) -> bool {
        self.entry_path(&Key::Map(key)).is_some_and(|path| self.inner.has(path))
    }

    fn entry_path(&self, key: &Key<'_>) -> Option<PathBuf> {
        Some(self.inner.dir.as_ref()?.join(Digest::sha256(key.text().as_bytes()).hex()))
    }
}

impl Inner {
    /// The content of a file.
    ///
    /// # Errors
    /// If it is not an entry or cannot be read, or the disk hangs.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let begin = |bytes| self.watch.begin_with(bytes).ok_or(io::ErrorKind::TimedOut);
        let path = path.to_owned();
        let (file, size) = begin(0)?.in_time(move || open_entry(&path, MAX_ENTRY))??;
        begin(size)?.in_time(move || {
            let bytes = read_entry(&file, size)?;
            // Entries are evicted by this time. A cache that is read-only still works.
            let _ = file.set_modified(SystemTime::now());
            Ok(bytes)
        })?
    }

    fn write(&self, dir: &Path, path: &Path, head: &[u8], content: &[&[u8]]) -> io::Result<()> {
        let size = head.len() + content.iter().map(|part| part.len()).sum::<usize>();
        let access = self.watch.begin_with(size as u64).ok_or(io::ErrorKind::TimedOut)?;
        if size > COPIED {
            let written = write_entry(dir, path, head, content);
            drop(access);
            return written;
        }
        let copy = [&[head], content].concat().concat();
        let (dir, path) = (dir.to_owned(), path.to_owned());
        access.in_time(move || write_entry(&dir, &path, &copy, &[]))?
    }

    fn has(&self, path: PathBuf) -> bool {
        let is_file = self.watch.begin_with(0).map(|access| access.in_time(move || path.is_file()));
        is_file.is_some_and(|is_file| is_file.unwrap_or(false))
    }

    fn drop_entry(&self, path: PathBuf) {
        if let Some(access) = self.watch.begin_with(0) {
            // If it hangs, it is found again next time.
            let _ = access.in_time(move || drop_entry(&path));
        }
    }

    fn warn(&self, path: &Path, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            let what = format!("cannot use the cache at {}: {error}", path.display());
            self.progress.report(ProgressEvent::Warning(what));
        }
    }
}

/// The bytes, if they have this digest.
fn matching(digest: &Digest, bytes: Vec<u8>) -> Option<Vec<u8>> {
    (Digest::of(digest.algorithm(), &bytes) == *digest).then_some(bytes)
}

/// The stored form of an outcome: facts, and the ztoc.
fn stored(outcome: &Outcome) -> (StoredOutcome, &[u8]) {
    match outcome {
        Outcome::Ztoc(BuiltZtoc { bytes, spans, entries, uncompressed_size, form, .. }) => {
            let spans = *spans;
            let entries = *entries;
            let uncompressed_size = *uncompressed_size;
            (
                StoredOutcome::Ztoc {
                    spans,
                    entries,
                    uncompressed_size,
                    gzip_members: form.gzip_members(),
                },
                bytes,
            )
        }
        Outcome::Unservable(verdict) => {
            let code = verdict.code.word().to_owned();
            let reason = verdict.reason.clone();
            (StoredOutcome::Unservable { code, reason }, &[])
        }
    }
}

fn outcome_of(stored: StoredOutcome, bytes: Vec<u8>) -> Option<Outcome> {
    Some(match stored {
        StoredOutcome::Ztoc { spans, entries, uncompressed_size, gzip_members } => {
            let form = match gzip_members {
                Some(0) => BlobForm::Tar,
                members => BlobForm::Gzip { members },
            };
            let digest = Digest::sha256(&bytes);
            Outcome::Ztoc(BuiltZtoc { bytes, digest, spans, entries, uncompressed_size, form })
        }
        StoredOutcome::Unservable { code, reason } => {
            Outcome::Unservable(UnservableReason::new(UnservableCode::from_word(&code)?, reason))
        }
    })
}

/// The bytes before the content in an entry's file. None only if the line cannot be written as
/// JSON.
fn head<F: Serialize>(key: &Key<'_>, facts: F, content: &[&[u8]]) -> Option<Vec<u8>> {
    let mut meta = serde_json::to_vec(&Meta { key: key.text(), facts }).ok()?;
    meta.push(b'\n');
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(&meta);
    content.iter().for_each(|part| hasher.update(part));
    let mut head = hasher.finish().as_bytes().to_vec();
    head.append(&mut meta);
    Some(head)
}

/// None if the entry was not written for this key.
fn decode<F: DeserializeOwned>(mut entry: Vec<u8>, key: &Key<'_>) -> Option<(F, Vec<u8>)> {
    let (digest, body) = entry.split_at_checked(32)?;
    if Digest::sha256(body).as_bytes() != digest {
        return None;
    }
    let end = body.iter().position(|&b| b == b'\n')?;
    let meta: Meta<F> = serde_json::from_slice(&body[..end]).ok()?;
    if meta.key != key.text() {
        return None;
    }
    // Removed in place, because a ztoc can be large.
    entry.drain(..32 + end + 1);
    Some((meta.facts, entry))
}

fn read_entry(file: &File, size: u64) -> io::Result<Vec<u8>> {
    let capacity = usize::try_from(size).map_err(io::Error::other)?.saturating_add(1);
    let mut bytes = Vec::with_capacity(capacity);
    file.take(size + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn write_entry(dir: &Path, path: &Path, head: &[u8], content: &[&[u8]]) -> io::Result<()> {
    let mut file = temporary(dir)?;
    file.write_all(head)?;
    content.iter().try_for_each(|part| file.write_all(part))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}
