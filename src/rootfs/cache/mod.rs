//! The local cache of decoded spans, which spares the next reader the network and the decoder: the
//! next mount of the image, and any other process that reads the same layer.
//!
//! An entry is one file, named by its [`SpanKey`]: all that decides about its content. Every 64 KiB
//! of it have a digest of their own, so that reading a little of a large span costs little. Nothing
//! is locked and nothing synced: a file gets its name by a rename, and what is not exactly what was
//! written does not match its digests and is dropped.

mod entry;
mod key;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::io::Errno;
use tracing::trace;

pub use entry::PIECE;
pub use key::SpanKey;

use crate::progress::{Event, Progress};
use crate::store::cache::TARGET;
use crate::store::entries::{drop_entry, evict, make_dir, open_entry, temporary};
use entry::Layout;

/// What all entries may take together unless the user says otherwise, in bytes: 4 GiB, a few large images.
pub const DEFAULT_MAX: u64 = 4 << 30;
/// The largest span that is kept, in bytes.
const MAX_SPAN: u64 = 1 << 30;
/// What is kept ahead of any layer, however small its blob, in bytes; and for each byte of its
/// blob. Layers of programs and their data are decoded to less than 20 times their size.
const WORTH: u64 = 64 << 20;
const WORTH_TIMES: u64 = 64;
/// An entry's time of use is not written down again within this time.
const TOUCH: Duration = Duration::from_secs(1);

/// Decoded spans, kept in a directory that any number of processes may share. It never fails: what
/// cannot be read is not there, what cannot be written is not kept, and the first such trouble is
/// reported as a warning. All calls block. Cheap to clone.
#[derive(Clone)]
pub struct SpanCache {
    inner: Arc<Inner>,
}

struct Inner {
    dir: Option<PathBuf>,
    max: u64,
    /// What all entries took when they were last looked at; `u64::MAX` before that. Then what was written since.
    total: AtomicU64,
    written: AtomicU64,
    warned: AtomicBool,
    progress: Arc<dyn Progress>,
}

impl SpanCache {
    /// Where the entries lie, of the directory of all caches.
    pub fn dir_in(all: &Path) -> PathBuf {
        all.join("spans")
    }

    /// A cache of at most `max_bytes` in `dir/spans`, made when it is missing; `None` is a cache
    /// that keeps nothing. When the entries pass `max_bytes`, those that were not used for longest
    /// go, down to 9/10.
    pub fn open(dir: Option<&Path>, max_bytes: u64, progress: Arc<dyn Progress>) -> SpanCache {
        let dir = dir.filter(|_| max_bytes > 0).map(SpanCache::dir_in);
        let mut inner = Inner {
            dir,
            max: max_bytes,
            total: AtomicU64::new(u64::MAX),
            written: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            progress,
        };
        if let Some(dir) = &inner.dir
            && let Err(e) = make_dir(dir)
        {
            inner.warn(&e);
            inner.dir = None;
        }
        SpanCache { inner: Arc::new(inner) }
    }

    /// Whether anything is kept at all.
    pub fn is_enabled(&self) -> bool {
        self.inner.dir.is_some()
    }

    /// What all entries may take together, in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.inner.max
    }

    /// Whether there is an entry that looks whole; reading it may still show that it is not.
    pub fn has(&self, key: &SpanKey, size: u64) -> bool {
        let (Some(path), Some(layout)) = (self.path(key), Layout::new(size)) else { return false };
        open_entry(&path, layout.file_size()).is_ok_and(|(_, length)| length == layout.file_size())
    }

    /// The pieces of a span of `size` bytes with these numbers. A piece is [`PIECE`] bytes, the
    /// last one of a span may be shorter.
    pub fn read(&self, key: &SpanKey, size: u64, pieces: Range<u32>) -> Option<Vec<Bytes>> {
        let path = self.path(key)?;
        let layout = Layout::new(size).filter(|layout| size <= MAX_SPAN && pieces.end <= layout.pieces())?;
        match open_entry(&path, layout.file_size()) {
            Ok((file, length)) => {
                let found = entry::read(&file, length, key, &layout, pieces);
                match &found {
                    Some(_) => touch(&file),
                    None => drop_entry(&path),
                }
                found
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.inner.warn(&e);
                None
            }
            // Not for want of file descriptors, say.
            Err(e) if !matches!(Errno::from_io_error(&e), None | Some(Errno::LOOP | Errno::NXIO)) => None,
            Err(_) => {
                drop_entry(&path);
                None
            }
        }
    }

    /// Begins to keep a span of `size` bytes. `None` where it is not to be kept.
    pub fn writer(&self, key: &SpanKey, size: u64) -> Option<Writer> {
        let (dir, path) = (self.inner.dir.as_ref()?, self.path(key)?);
        let layout = Layout::new(size).filter(|l| size <= MAX_SPAN && l.file_size() <= self.inner.max / 2)?;
        let entry = temporary(dir).map(|file| entry::Writer::new(file, *key, layout));
        match entry {
            Ok(entry) => Some(Writer { cache: self.clone(), path, entry }),
            Err(e) => {
                self.inner.warn(&e);
                None
            }
        }
    }

    /// Keeps a whole span. False: it is not kept.
    pub fn put(&self, key: &SpanKey, span: &[u8]) -> bool {
        let Some(mut writer) = self.writer(key, span.len() as u64) else { return false };
        span.chunks(PIECE).all(|piece| writer.write(piece)) && writer.finish()
    }

    /// How many bytes of a layer may be kept that nobody has asked for yet, where its blob has
    /// `compressed` bytes. No layer may push out all others, and one that is fetched in no time is
    /// not worth much room, however large it is when decoded.
    pub fn room_for(&self, compressed: u64) -> u64 {
        (self.inner.max / 10 * 8).min(WORTH.saturating_add(compressed.saturating_mul(WORTH_TIMES)))
    }

    fn path(&self, key: &SpanKey) -> Option<PathBuf> {
        Some(self.inner.dir.as_ref()?.join(key.hex()))
    }
}

/// A span that is being kept. Dropped before its end, it leaves nothing.
pub struct Writer {
    cache: SpanCache,
    path: PathBuf,
    entry: entry::Writer,
}

impl Writer {
    /// Takes the next piece. False: it could not be written, and no other needs to be.
    #[must_use]
    pub fn write(&mut self, piece: &[u8]) -> bool {
        let written = self.entry.write(piece);
        written.as_ref().err().into_iter().for_each(|e| self.cache.inner.warn(e));
        written.is_ok()
    }

    /// All pieces are there: from now on the span is in the cache. False: it could not be kept.
    pub fn finish(self) -> bool {
        let inner = &self.cache.inner;
        let finished = self.entry.finish(&self.path).and_then(|size| inner.make_room(size));
        finished.as_ref().err().into_iter().for_each(|e| inner.warn(e));
        let of = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        trace!(name: "store", target: TARGET, what = "span", of, kept = finished.is_ok());
        finished.is_ok()
    }
}

impl Inner {
    /// An entry of `size` bytes was added. The directory is looked through only when there may be
    /// too much in it: this process knows what it wrote itself, and looks again after a 16th of
    /// `max` for what others did.
    fn make_room(&self, size: u64) -> io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let written = self.written.fetch_add(size, Ordering::Relaxed).saturating_add(size);
        let total = self.total.load(Ordering::Relaxed);
        if total.saturating_add(written) <= self.max && written <= self.max / 16 {
            return Ok(());
        }
        self.written.store(0, Ordering::Relaxed);
        self.total.store(evict(dir, self.max)?, Ordering::Relaxed);
        Ok(())
    }

    fn warn(&self, error: &io::Error) {
        let Some(dir) = &self.dir else { return };
        if !self.warned.swap(true, Ordering::Relaxed) {
            let what = format!("cannot use the cache at {}: {error}", dir.display());
            self.progress.report(Event::Warning(what));
        }
    }
}

/// Writes down that an entry was used: the age by which entries go. A cache that cannot be written serves all the same.
fn touch(file: &File) {
    let now = SystemTime::now();
    let used = file.metadata().and_then(|m| m.modified());
    if used.is_ok_and(|used| now.duration_since(used).map_or(true, |age| age > TOUCH)) {
        let _ = file.set_modified(now);
    }
}
