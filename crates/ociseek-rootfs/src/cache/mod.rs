//! The local cache of decoded spans. It saves network traffic and decoding for the next mount of
//! the image and for other processes that read the same layer.
//!
//! A span has a [`SpanKey`], which determines its content. Each 64 KiB have a separate digest, so
//! reading a small part of a large span costs little. Nothing is synced, and nothing is locked:
//! data that is damaged or incomplete does not match its digests. The file of a single span is
//! named by its key, gets its name by renaming, and is dropped if it is damaged. Neighbours may
//! share a file (`place`): each process writes a span at its own position there, and a damaged one
//! is written again. Files are evicted as a whole. Who fetches a span may claim it (`claims`), so
//! that other images of the process do not fetch it too.

mod claims;
mod entry;
mod place;
mod room;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::trace;

pub(crate) use claims::{Claim, ClaimOutcome};
pub use entry::{PIECE, SpanKey};
use place::MAX_SPAN;
pub use place::SpanPlace;
pub(crate) use room::{LayerRoom, SpanSet};

use claims::Claims;
use entry::{EntryFile, EntryLayout, EntryWriter, SharedFile};
use ociseek_format::digest::Digest;
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_store::cache::TARGET;
use ociseek_store::disk_watch::DiskWatch;
use ociseek_store::entries::{
    Eviction, drop_entry, evict, make_dir, open_entry, open_own, own_entry, temporary,
};
use ociseek_store::lock::Hold;
use room::Rooms;

/// How many bytes of a layer are kept in advance: this many for any layer, plus a multiple of the
/// size of its blob. Layers with programs and their data decode to less than 20 times their size.
const WORTH: u64 = 64 << 20;
const WORTH_TIMES: u64 = 64;
/// The most decoded bytes that are being stored while others are decoded, for all images of a
/// process, in units of this size.
const STORING: u32 = (64 << 20) / STORING_UNIT as u32;
const STORING_UNIT: u64 = 64 << 10;
/// How often a decoder looks whether the disk has kept up.
const STORING_LOOK: Duration = Duration::from_millis(2);
/// The time of use of an entry is not updated again within this time.
const TOUCH: Duration = Duration::from_secs(1);
/// How many entries may wait for that.
const TOUCHES: usize = 64;

/// Decoded spans, stored in a directory that any number of processes may share. It never fails:
/// entries that cannot be read count as missing, entries that cannot be written are not stored, and
/// the first such problem is reported as a warning. All calls block. Cheap to clone.
#[derive(Clone)]
pub struct SpanCache {
    inner: Arc<Inner>,
}

ociseek_format::opaque_debug!(SpanCache);

struct Inner {
    dir: Option<PathBuf>,
    max: u64,
    size: Mutex<CacheSize>,
    warned: AtomicBool,
    counts: Counts,
    progress: Arc<dyn Progress>,
    claims: Arc<Claims>,
    watch: Arc<DiskWatch>,
    /// Whether the entries are being listed.
    lists: AtomicBool,
    touching: OnceLock<SyncSender<File>>,
    storing: Arc<Semaphore>,
    rooms: Arc<Rooms>,
}

/// What this process knows of the size of all entries, in bytes.
#[derive(Default)]
struct CacheSize {
    /// Their size when they were last listed. None before the first time.
    listed: Option<u64>,
    /// What was written since then.
    written: u64,
}

/// What happened to the entries since the cache was opened.
#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

/// The state of a cache, and what happened since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpanCacheStats {
    /// The size of all entries in bytes, as far as this process knows it.
    pub bytes: u64,
    /// The most that they may take.
    pub max_bytes: u64,
    /// How often a span was looked up and was there.
    pub hits: u64,
    /// How often it was not there, or damaged.
    pub misses: u64,
    /// How many entries this process evicted.
    pub evictions: u64,
    /// Whether its disk does not answer.
    pub is_silent: bool,
}

impl SpanCache {
    /// The cache's directory below the directory of all caches.
    pub fn dir_in(all: &Path) -> PathBuf {
        all.join("spans")
    }

    /// A cache of at most `max_bytes` in `dir/spans`, which is created if it does not exist. With
    /// None, nothing is stored. If the entries exceed `max_bytes`, the least recently used ones are
    /// removed until they take 9/10 of it.
    pub fn open(dir: Option<&Path>, max_bytes: u64, progress: Arc<dyn Progress>) -> SpanCache {
        let dir = dir.filter(|_| max_bytes > 0).map(SpanCache::dir_in);
        let mut inner = Inner {
            dir,
            max: max_bytes,
            size: Mutex::default(),
            warned: AtomicBool::new(false),
            counts: Counts::default(),
            progress,
            claims: Arc::default(),
            watch: Arc::default(),
            lists: AtomicBool::new(false),
            touching: OnceLock::new(),
            storing: Arc::new(Semaphore::new(STORING as usize)),
            rooms: Arc::default(),
        };
        if let Some(dir) = &inner.dir
            && let Err(e) = make_dir(dir)
        {
            inner.warn(&e);
            inner.dir = None;
        }
        SpanCache { inner: Arc::new(inner) }
    }

    /// Whether anything is stored at all.
    pub fn is_enabled(&self) -> bool {
        self.inner.dir.is_some()
    }

    /// Whether its disk does not answer. Nothing is read or stored meanwhile.
    pub fn is_silent(&self) -> bool {
        self.inner.watch.is_silent()
    }

    /// Waits until so much else is on disk that this many bytes can follow while others are
    /// decoded. None if the disk does not answer. Blocks.
    pub(crate) fn wait_to_store(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(STORING_UNIT)).unwrap_or(STORING).min(STORING);
        loop {
            match Arc::clone(&self.inner.storing).try_acquire_many_owned(units) {
                Ok(permit) => return Some(permit),
                Err(_) if self.is_silent() => return None,
                Err(_) => thread::sleep(STORING_LOOK),
            }
        }
    }

    /// The limit for all entries together, in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.inner.max
    }

    /// Lists the entries, so that [`SpanCache::stats`] has their size, and makes room if there are
    /// too many.
    pub fn measure(&self) {
        if let Some(dir) = &self.inner.dir
            && let Err(error) = self.inner.evict(dir)
        {
            self.inner.warn(&error);
        }
    }

    /// The state of the cache. Does not block: what was there before is known from the first entry
    /// that is stored, or [`SpanCache::measure`].
    pub fn stats(&self) -> SpanCacheStats {
        let Counts { hits, misses, evictions } = &self.inner.counts;
        SpanCacheStats {
            bytes: self.inner.bytes(),
            max_bytes: self.inner.max,
            hits: hits.load(Ordering::Relaxed),
            misses: misses.load(Ordering::Relaxed),
            evictions: evictions.load(Ordering::Relaxed),
            is_silent: self.is_silent(),
        }
    }

    /// Whether there is a span that looks complete. It may still turn out to be damaged when it is
    /// read.
    pub fn has(&self, place: &SpanPlace) -> bool {
        let Some((path, layout)) = self.to_read(place, &(0..0)) else { return false };
        let Some(_access) = self.inner.watch.begin() else { return false };
        let most = place.file_size(&layout);
        open_entry(&path, most).is_ok_and(|(file, length)| {
            if place.is_shared() {
                let fill = |bytes: &mut [u8], at| file.read_exact_at(bytes, at).ok();
                entry::head(place.key(), &layout, fill).is_some()
            } else {
                length == most
            }
        })
    }

    /// The pieces with these numbers of a span. A piece has [`PIECE`] bytes; the last one of a span
    /// may be shorter. The damaged file of a single span is dropped.
    pub fn read(&self, place: &SpanPlace, pieces: Range<u32>) -> Option<Vec<Bytes>> {
        let pieces_read = self.read_entry(place, pieces);
        let Counts { hits, misses, .. } = &self.inner.counts;
        if pieces_read.is_some() { hits } else { misses }.fetch_add(1, Ordering::Relaxed);
        pieces_read
    }

    fn read_entry(&self, place: &SpanPlace, pieces: Range<u32>) -> Option<Vec<Bytes>> {
        let (path, layout) = self.to_read(place, &pieces)?;
        let _access = self.inner.watch.begin()?;
        let most = place.file_size(&layout);
        match open_entry(&path, most) {
            Ok((file, length)) => {
                let fill = |bytes: &mut [u8], at| file.read_exact_at(bytes, at).ok();
                let is_whole = place.is_shared() || length == most;
                let entry =
                    is_whole.then(|| entry::read(place.key(), &layout, pieces, fill)).flatten();
                match &entry {
                    Some(_) => self.inner.touch(file),
                    None if !place.is_shared() => drop_entry(&path),
                    // Its pieces are damaged.
                    None if entry::head(place.key(), &layout, fill).is_some() => {
                        entry::forget(&path, &layout);
                    }
                    None => {}
                }
                entry
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.inner.warn(&e);
                None
            }
            // The entry is not at fault, for example if there are no more file descriptors.
            Err(e)
                if !matches!(Errno::from_io_error(&e), None | Some(Errno::LOOP | Errno::NXIO)) =>
            {
                None
            }
            Err(_) => {
                drop_entry(&path);
                None
            }
        }
    }

    /// Like [`SpanCache::read`], but never waits for a disk: None unless the system has all of it
    /// in memory. A damaged entry stays.
    pub fn read_nonblocking(&self, place: &SpanPlace, pieces: Range<u32>) -> Option<Vec<Bytes>> {
        let (path, layout) = self.to_read(place, &pieces)?;
        let most = place.file_size(&layout);
        let (file, length) = own_entry(entry::open_at_once(&path)?, most).ok()?;
        if !place.is_shared() && length != most {
            return None;
        }
        let fill = |bytes: &mut [u8], at| entry::fill_at_once(&file, bytes, at);
        let read = entry::read(place.key(), &layout, pieces, fill)?;
        self.inner.touch(file);
        self.inner.counts.hits.fetch_add(1, Ordering::Relaxed);
        Some(read)
    }

    /// Starts to store a span. None if it should not be stored.
    pub fn writer(&self, place: &SpanPlace) -> Option<SpanWriter> {
        let dir = self.inner.dir.as_ref()?;
        let path = self.path(place)?;
        let layout = self.layout_to_store(place)?;
        if self.is_silent() {
            return None;
        }
        let dir = dir.clone();
        let named = path.clone();
        let is_shared = place.is_shared();
        // The decoder does not wait for the disk.
        let file = EntryFile::Unopened(Box::new(move || {
            Ok(match is_shared {
                true => EntryFile::Shared(SharedFile::new(open_shared(&dir, &named)?, &layout)),
                false => EntryFile::Alone(temporary(&dir)?),
            })
        }));
        let entry = EntryWriter::new(file, *place.key(), layout);
        Some(SpanWriter { cache: self.clone(), path, entry })
    }

    /// Claims a span that will be fetched and stored. A caller that gets the claim must look again
    /// whether the span is there: another may have stored it before it gave up its claim. Nothing
    /// can be claimed if it would not be stored, or after any problem with the directory.
    pub(crate) fn claim(&self, place: &SpanPlace) -> ClaimOutcome {
        let is_stored = self.inner.dir.is_some()
            && self.layout_to_store(place).is_some()
            && !self.inner.warned.load(Ordering::Relaxed)
            && !self.is_silent();
        match is_stored {
            true => self.inner.claims.claim(place.key()),
            false => ClaimOutcome::Unavailable,
        }
    }

    /// Stores a whole span. Returns false if it was not stored.
    pub fn put(&self, place: &SpanPlace, span: &[u8]) -> bool {
        let Some(mut writer) = self.writer(place) else { return false };
        let mut pieces = span.chunks(PIECE).map(Bytes::copy_from_slice);
        pieces.all(|piece| writer.write(&piece)) && writer.finish()
    }

    /// How many bytes may be stored in advance, of all images together.
    pub(crate) fn room(&self) -> u64 {
        self.inner.max / 10 * 8
    }

    /// How many of them no image of this process has taken.
    pub(crate) fn room_left(&self) -> u64 {
        self.inner.rooms.left(self.room())
    }

    /// The room of a layer with this many spans.
    pub(crate) fn room_of(&self, layer: Digest, spans: u32) -> LayerRoom {
        self.inner.rooms.of(layer, spans, self.room())
    }

    /// How many bytes may be stored in advance of a layer whose blob has `compressed` bytes. No
    /// layer may displace all others, and a layer that is quickly fetched is not worth much space,
    /// however large it is when decoded.
    pub fn room_for(&self, compressed: u64) -> u64 {
        self.room().min(WORTH.saturating_add(compressed.saturating_mul(WORTH_TIMES)))
    }

    /// The file to read these pieces of a span from, and where they are in it.
    fn to_read(&self, place: &SpanPlace, pieces: &Range<u32>) -> Option<(PathBuf, EntryLayout)> {
        let is_there = |l: &EntryLayout| place.size() <= MAX_SPAN && pieces.end <= l.pieces();
        Some((self.path(place)?, place.layout().filter(is_there)?))
    }

    /// None if a span is too large to be stored.
    fn layout_to_store(&self, place: &SpanPlace) -> Option<EntryLayout> {
        let fits = |l: &EntryLayout| place.size() <= MAX_SPAN && l.stored() <= self.inner.max / 2;
        place.layout().filter(fits)
    }

    fn path(&self, place: &SpanPlace) -> Option<PathBuf> {
        Some(self.inner.dir.as_ref()?.join(place.name()))
    }
}

/// Opens the file of several spans, which is created if it does not exist.
fn open_shared(dir: &Path, path: &Path) -> io::Result<File> {
    let opened = match open_own(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            make_dir(dir)?;
            open_own(path)
        }
        opened => opened,
    };
    let is_foreign = |e: &io::Error| {
        matches!(Errno::from_io_error(e), None | Some(Errno::LOOP | Errno::NXIO | Errno::ISDIR))
    };
    match opened {
        Err(e) if is_foreign(&e) => {
            drop_entry(path);
            open_own(path)
        }
        opened => opened,
    }
}

/// A span that is being stored. If it is dropped before it is complete, nothing is left.
pub struct SpanWriter {
    cache: SpanCache,
    path: PathBuf,
    entry: EntryWriter,
}

ociseek_format::opaque_debug!(SpanWriter);

impl SpanWriter {
    /// Takes the next piece. Returns false if it could not be written; then the others are not
    /// needed.
    #[must_use]
    pub fn write(&mut self, piece: &Bytes) -> bool {
        let watch = &self.cache.inner.watch;
        let written = self.entry.write(piece, || watch.begin());
        // One that does not answer may answer again.
        let failed = written.as_ref().err().filter(|e| e.kind() != io::ErrorKind::TimedOut);
        failed.into_iter().for_each(|e| self.cache.inner.warn(e));
        written.is_ok()
    }

    /// Completes the span and adds it to the cache. Returns false if it could not be stored.
    pub fn finish(self) -> bool {
        let inner = &self.cache.inner;
        let Some(access) = inner.watch.begin() else { return false };
        let finished = self.entry.finish(&self.path);
        drop(access);
        let finished = finished.and_then(|size| inner.make_room(size));
        finished.as_ref().err().into_iter().for_each(|e| inner.warn(e));
        let of = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        trace!(name: "store", target: TARGET, what = "span", of, kept = finished.is_ok());
        finished.is_ok()
    }
}

impl Inner {
    /// Accounts for a new entry of `size` bytes. The directory is only listed if there may be too
    /// much in it: this process knows how much it has written itself, and after each 16th of `max`
    /// it lists the directory again to see what others wrote.
    fn make_room(&self, size: u64) -> io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        {
            let mut known = self.size.hold();
            let written = known.written.saturating_add(size);
            let fits =
                known.listed.is_some_and(|listed| listed.saturating_add(written) <= self.max);
            if fits && written <= self.max / 16 {
                known.written = written;
                return Ok(());
            }
            known.written = 0;
        }
        // Other writers do not wait for the listing.
        self.evict(dir)
    }

    /// Lists the entries, and removes what is too much. One thread at a time does that: it takes
    /// long if there are many, and for ever if the disk hangs.
    fn evict(&self, dir: &Path) -> io::Result<()> {
        if self.lists.swap(true, Ordering::Acquire) {
            return Ok(());
        }
        let evicted = self.list(dir);
        self.lists.store(false, Ordering::Release);
        evicted
    }

    fn list(&self, dir: &Path) -> io::Result<()> {
        let Eviction { left, evicted } = evict(dir, self.max)?;
        self.counts.evictions.fetch_add(evicted, Ordering::Relaxed);
        self.size.hold().listed = Some(left);
        Ok(())
    }

    /// Updates the time of use of an entry, which decides what is evicted. A thread of its own does
    /// that, because a disk may let it wait where reading does not. If that thread has much to do,
    /// the time stays. A cache that is read-only still works.
    fn touch(&self, file: File) {
        let sender = self.touching.get_or_init(|| {
            let (sender, files) = sync_channel(TOUCHES);
            // Without the thread, nothing is touched.
            let _ = thread::Builder::new().name("touching".to_owned()).spawn(move || {
                for file in files {
                    let _: io::Result<()> = File::set_modified(&file, SystemTime::now());
                }
            });
            sender
        });
        let now = SystemTime::now();
        let used = file.metadata().and_then(|m| m.modified());
        if used.is_ok_and(|used| now.duration_since(used).map_or(true, |age| age > TOUCH)) {
            let _ = sender.try_send(file);
        }
    }

    fn bytes(&self) -> u64 {
        let CacheSize { listed, written } = *self.size.hold();
        listed.unwrap_or(0).saturating_add(written)
    }

    fn warn(&self, error: &io::Error) {
        let Some(dir) = &self.dir else { return };
        if !self.warned.swap(true, Ordering::Relaxed) {
            let what = format!("cannot use the cache at {}: {error}", dir.display());
            self.progress.report(ProgressEvent::Warning(what));
        }
    }
}
