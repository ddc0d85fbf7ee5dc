//! The local cache of ztocs: a layer that was indexed once is not read again.
//!
//! An entry is one file, named by the digest of its key: the digest of all that follows, a line of
//! JSON, and the ztoc. It is written to a temporary file and then renamed. Nothing is locked, so
//! that no process waits for another: a rename is whole by itself. A process that dies leaves a
//! temporary file at most, and an entry that is not exactly what was written does not match its
//! digest and is dropped.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::entries::{drop_entry, evict, make_dir, open_entry, temporary};
use crate::digest::{Algorithm, Digest, Hasher};
use crate::layer::{BuiltZtoc, Outcome, Unservable, UnservableCode};
use crate::progress::{Event, Progress};

/// Changes whenever another outcome for the same layer and options became right: entries of other versions are not found.
const FORMAT_VERSION: &str = "ociseek 1, ztoc 0.9";
/// What all entries may take together unless the user says otherwise, in bytes. When it is passed,
/// the entries that were not used for longest go, down to 9/10.
pub const MAX_CACHE: u64 = 1 << 30;
/// The largest entry that is read or kept, in bytes.
const MAX_ENTRY: u64 = 256 << 20;

/// What a cached outcome is the outcome of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheKey<'a> {
    /// The digest of the layer's blob.
    pub layer: &'a Digest,
    /// Bytes.
    pub span_size: u64,
    /// What stands in the ztoc as the tool that built it.
    pub build_tool_identifier: &'a str,
}

impl<'a> CacheKey<'a> {
    /// No layer is indexed with spans of no bytes, so that this is the key of none.
    fn of_ztoc(digest: &'a Digest) -> CacheKey<'a> {
        CacheKey { layer: digest, span_size: 0, build_tool_identifier: "" }
    }

    /// Everything that decides about the outcome. The identifier comes last, so no other key reads the same.
    fn text(&self) -> String {
        format!("{FORMAT_VERSION}\n{}\n{}\n{}", self.layer, self.span_size, self.build_tool_identifier)
    }
}

/// The line of JSON in an entry.
#[derive(Serialize, Deserialize)]
struct Meta {
    key: String,
    layer_size: u64,
    outcome: Kept,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kept {
    Ztoc { spans: u32, entries: u64, uncompressed_size: u64, gzip_members: u64 },
    Unservable { code: String, reason: String },
}

/// Outcomes of layers, kept in a directory that any number of processes may share. It never fails: what cannot be read is
/// not there, what cannot be written is not kept, and the first such trouble is reported as a warning.
#[derive(Clone)]
pub struct ZtocCache {
    inner: Arc<Inner>,
}

struct Inner {
    dir: Option<PathBuf>,
    max: u64,
    warned: AtomicBool,
    progress: Arc<dyn Progress>,
}

impl ZtocCache {
    /// Where the entries lie, of the directory of all caches.
    pub fn dir_in(all: &Path) -> PathBuf {
        all.to_owned()
    }

    /// A cache in `dir`, made when it is missing; `None` is a cache that keeps nothing.
    pub fn open(dir: Option<&Path>, progress: Arc<dyn Progress>) -> ZtocCache {
        ZtocCache::with_limit(dir, MAX_CACHE, progress)
    }

    /// A cache of which all entries together take at most `max` bytes.
    pub fn with_limit(dir: Option<&Path>, max: u64, progress: Arc<dyn Progress>) -> ZtocCache {
        let mut inner = Inner { dir: dir.map(Path::to_owned), max, warned: AtomicBool::new(false), progress };
        if let Some(dir) = dir
            && let Err(e) = make_dir(dir)
        {
            inner.warn(dir, &e);
            inner.dir = None;
        }
        ZtocCache { inner: Arc::new(inner) }
    }

    /// The outcome kept under `key`, and the layer's size in bytes.
    pub fn get(&self, key: CacheKey<'_>) -> Option<(u64, Outcome)> {
        let path = self.entry_path(&key)?;
        match open_entry(&path, MAX_ENTRY) {
            Ok((file, size)) => {
                let found = read_entry(&file, size).and_then(|bytes| decode(bytes, &key));
                if found.is_some() {
                    // The age by which entries go. A cache that cannot be written serves all the same.
                    let _ = file.set_modified(SystemTime::now());
                } else {
                    drop_entry(&path);
                }
                found
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.inner.warn(&path, &e);
                None
            }
            Err(_) => {
                drop_entry(&path);
                None
            }
        }
    }

    /// Keeps an outcome of a layer of `size` bytes.
    pub fn put(&self, key: CacheKey<'_>, size: u64, outcome: &Outcome) {
        let (kept, ztoc) = kept(outcome);
        self.put_entry(&key, size, kept, ztoc);
    }

    fn put_entry(&self, key: &CacheKey<'_>, size: u64, kept: Kept, ztoc: &[u8]) {
        let (Some(dir), Some(path)) = (&self.inner.dir, self.entry_path(key)) else { return };
        let Some(head) = head(key, size, kept, ztoc) else { return };
        if (head.len() + ztoc.len()) as u64 > MAX_ENTRY.min(self.inner.max) {
            return;
        }
        if let Err(e) = write_entry(dir, &path, &[&head, ztoc]).and_then(|()| evict(dir, self.inner.max).map(|_| ())) {
            self.inner.warn(dir, &e);
        }
    }

    /// A ztoc that somebody else made, by its own digest.
    pub fn get_ztoc(&self, digest: &Digest) -> Option<Vec<u8>> {
        match self.get(CacheKey::of_ztoc(digest))? {
            (_, Outcome::Ztoc(kept)) if kept.digest == *digest => Some(kept.bytes),
            _ => None,
        }
    }

    /// Keeps a ztoc, which is the content of `digest`.
    pub fn put_ztoc(&self, digest: &Digest, bytes: &[u8]) {
        let kept = Kept::Ztoc { spans: 0, entries: 0, uncompressed_size: 0, gzip_members: 0 };
        self.put_entry(&CacheKey::of_ztoc(digest), 0, kept, bytes);
    }

    fn entry_path(&self, key: &CacheKey<'_>) -> Option<PathBuf> {
        Some(self.inner.dir.as_ref()?.join(Digest::sha256(key.text().as_bytes()).hex()))
    }
}

impl Inner {
    fn warn(&self, path: &Path, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            let what = format!("the cache at {} is not used as it should be: {error}", path.display());
            self.progress.report(Event::Warning(what));
        }
    }
}

/// What is kept of an outcome: facts, and the ztoc.
fn kept(outcome: &Outcome) -> (Kept, &[u8]) {
    match outcome {
        Outcome::Ztoc(z) => {
            let BuiltZtoc { bytes, spans, entries, uncompressed_size, gzip_members, .. } = z;
            let (spans, entries) = (*spans, *entries);
            let (uncompressed_size, gzip_members) = (*uncompressed_size, *gzip_members);
            (Kept::Ztoc { spans, entries, uncompressed_size, gzip_members }, &bytes[..])
        }
        Outcome::Unservable(verdict) => {
            let (code, reason) = (verdict.code.word().to_owned(), verdict.reason.clone());
            (Kept::Unservable { code, reason }, &[][..])
        }
    }
}

/// What an entry's file has in front of the ztoc. `None` only if its meta data could not be written as JSON.
fn head(key: &CacheKey<'_>, layer_size: u64, outcome: Kept, ztoc: &[u8]) -> Option<Vec<u8>> {
    let mut meta = serde_json::to_vec(&Meta { key: key.text(), layer_size, outcome }).ok()?;
    meta.push(b'\n');
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(&meta);
    hasher.update(ztoc);
    let mut head = hasher.finish().as_bytes().to_vec();
    head.append(&mut meta);
    Some(head)
}

/// `None` for whatever was not written for this key.
fn decode(mut entry: Vec<u8>, key: &CacheKey<'_>) -> Option<(u64, Outcome)> {
    let (digest, body) = entry.split_at_checked(32)?;
    if Digest::sha256(body).as_bytes() != digest {
        return None;
    }
    let end = body.iter().position(|&b| b == b'\n')?;
    let meta: Meta = serde_json::from_slice(&body[..end]).ok()?;
    if meta.key != key.text() {
        return None;
    }
    // In place: a ztoc can be large.
    entry.drain(..32 + end + 1);
    let bytes = entry;
    let outcome = match meta.outcome {
        Kept::Ztoc { spans, entries, uncompressed_size, gzip_members } => {
            let digest = Digest::sha256(&bytes);
            Outcome::Ztoc(BuiltZtoc { bytes, digest, spans, entries, uncompressed_size, gzip_members })
        }
        Kept::Unservable { code, reason } => {
            Outcome::Unservable(Unservable::new(UnservableCode::from_word(&code)?, reason))
        }
    };
    Some((meta.layer_size, outcome))
}

fn read_entry(file: &File, size: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(size).ok()?.saturating_add(1));
    file.take(size + 1).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn write_entry(dir: &Path, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = temporary(dir)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}
