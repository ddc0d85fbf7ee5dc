//! Cuts a gzip blob into stretches that can be decoded in parallel, at the starts of members, at
//! the checkpoints of a ztoc, or anywhere, and decodes them on threads ahead of the scan.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

use bytes::Bytes;

use crate::codec::WINDOW;
use crate::codec::stretch::{MemberFinder, Stretch, StretchStart};
use crate::layer::LayerError;
use crate::layer::hashes::ScannedSpans;
use crate::layer::scan::LayerScan;
use crate::offset::Compressed;
use crate::ztoc::{Checkpoint, Checkpoints, Ztoc};

/// Shorter stretches are not worth passing to another thread, unless they decode to the size of a
/// span.
const LEAST: usize = 256 << 10;
const SPAN: u64 = 4 << 20;
/// A stretch ends here if no border is found. The scan decodes what follows.
const MOST: usize = 4 << 20;
/// A blob without a second member up to here has one member, or too few to be worth the search.
const SEARCHED: u64 = 16 << 20;
/// The same where stretches may begin anywhere.
const SEARCHED_SOME: u64 = 4 << 20;
/// The size of stretches that begin anywhere. Their first part is decoded twice, and the part up to
/// the first block by the scan, so that they cannot be small.
const ANYWHERE: u64 = 2 << 20;
/// With fewer threads, decoding twice costs more than another thread gains.
const CORES_FOR_ANYWHERE: usize = 3;
/// After this many stretches in a row in which no block was found, or not one that is in the layer,
/// only some are tried.
const MISSED: usize = 2;

/// Takes a blob in chunks and returns it in pieces. No byte is copied.
pub(super) struct BlobCutter {
    search: Search,
    position: Compressed,
    last_byte: u8,
    open: Option<OpenStretch>,
    /// Whether stretches may begin anywhere.
    is_anywhere: bool,
}

enum Search {
    NotBegun,
    Members(Box<MemberFinder>),
    /// The number of the next possible checkpoint.
    Checkpoints(Arc<Ztoc>, usize),
    /// A stretch begins here, whatever is there.
    Anywhere(Compressed),
    Over,
}

/// A stretch that is being collected.
struct OpenStretch {
    at: Compressed,
    begin: StretchStart,
    chunks: Vec<Bytes>,
    size: usize,
}

/// The next part of a blob.
pub(super) enum Piece {
    Chunk(Bytes),
    Stretch { at: Compressed, begin: StretchStart, chunks: Vec<Bytes> },
}

impl BlobCutter {
    /// A cutter that returns chunks unchanged.
    pub(super) fn idle() -> BlobCutter {
        BlobCutter {
            search: Search::Over,
            position: Compressed(0),
            last_byte: 0,
            open: None,
            is_anywhere: false,
        }
    }

    /// Cuts for this many threads, at the checkpoints of `guide` if there is one.
    pub(super) fn new(threads: usize, guide: Option<Arc<Ztoc>>) -> BlobCutter {
        let search = guide.map_or(Search::NotBegun, |ztoc| Search::Checkpoints(ztoc, 0));
        BlobCutter { search, is_anywhere: threads >= CORES_FOR_ANYWHERE, ..BlobCutter::idle() }
    }

    /// Takes the next chunk of the blob and passes complete pieces to `out`.
    pub(super) fn push(&mut self, mut chunk: Bytes, mut out: impl FnMut(Piece)) {
        if self.position == Compressed(0) && !chunk.is_empty() {
            self.begin(&chunk);
        }
        while let Some((border, begin)) = self.border(&chunk) {
            let before = chunk.split_to(border);
            if let Some(whole) = self.add(before).or_else(|| self.close()) {
                out(whole);
            }
            self.open = Some(OpenStretch { at: self.position, begin, chunks: Vec::new(), size: 0 });
        }
        let ended = self.add(chunk);
        if matches!(self.search, Search::Members(_))
            && self.position.0 > if self.is_anywhere { SEARCHED_SOME } else { SEARCHED }
            && ended.is_some()
        {
            self.give_up();
        }
        if self.open.as_ref().is_some_and(|open| open.size > MOST)
            && let Some(stretch) = self.close()
        {
            out(stretch);
        }
        ended.into_iter().for_each(out);
    }

    /// Decides what to search for from the blob's first chunk. In blobs of small members,
    /// checkpoints are not used.
    fn begin(&mut self, chunk: &Bytes) {
        let members = MemberFinder::like(chunk).filter(|finder| match &self.search {
            Search::NotBegun => true,
            Search::Checkpoints(..) => finder.find(chunk, 1).is_some(),
            Search::Members(_) | Search::Anywhere(_) | Search::Over => false,
        });
        match members {
            Some(finder) => self.search = Search::Members(Box::new(finder)),
            None if matches!(self.search, Search::NotBegun) => self.search = Search::Over,
            None => {}
        }
    }

    /// Ends the blob and returns what is left of it.
    pub(super) fn end(&mut self) -> Option<Piece> {
        self.close()
    }

    /// Stops searching: cuts anywhere, or no more.
    pub(super) fn give_up(&mut self) {
        self.search = match self.search {
            Search::Members(_) | Search::Checkpoints(..) if self.is_anywhere => {
                Search::Anywhere(self.position)
            }
            Search::Anywhere(next) => Search::Anywhere(next),
            _ => Search::Over,
        };
    }

    /// Where in `chunk` a stretch should begin, and how.
    fn border(&mut self, chunk: &Bytes) -> Option<(usize, StretchStart)> {
        // The start of the blob needs no search.
        let least =
            |open: &Option<OpenStretch>| open.as_ref().map_or(1, |open| open.at.0 + LEAST as u64);
        match &mut self.search {
            Search::Members(finder) => {
                let from = least(&self.open).saturating_sub(self.position.0) as usize;
                Some((finder.find(chunk, from)?, StretchStart::Member))
            }
            Search::Checkpoints(ztoc, next) => {
                let Checkpoints::Gzip { list, .. } = &ztoc.checkpoints else { return None };
                let opened = next
                    .checked_sub(1)
                    .filter(|_| self.open.is_some())
                    .map(|opened| list[opened].output);
                let is_far = |checkpoint: &Checkpoint| {
                    let plain =
                        opened.map_or(0, |opened| checkpoint.output.0.saturating_sub(opened.0));
                    checkpoint.input.0 >= least(&self.open) || plain >= SPAN
                };
                // Decoding cannot start at a block before the first window is full.
                let is_early = |checkpoint: &Checkpoint| checkpoint.output.0 < WINDOW as u64;
                let skipped = |checkpoint: &&Checkpoint| {
                    checkpoint.input < self.position || is_early(checkpoint) || !is_far(checkpoint)
                };
                let number = *next + list[*next..].iter().take_while(skipped).count();
                let Checkpoint { input, bits, window, .. } = list.get(number)?;
                let at =
                    usize::try_from(*input - self.position).ok().filter(|at| *at < chunk.len())?;
                let before = at.checked_sub(1).map_or(self.last_byte, |before| chunk[before]);
                *next = number + 1;
                Some((at, StretchStart::Block { bits: *bits, before, window: window.clone() }))
            }
            Search::Anywhere(next) => {
                let at = next.0.saturating_sub(self.position.0) as usize;
                *next = self.position + at as u64;
                (at < chunk.len()).then(|| {
                    *next += ANYWHERE;
                    (at, StretchStart::Unknown)
                })
            }
            Search::NotBegun | Search::Over => None,
        }
    }

    /// Adds bytes to the open stretch, or returns them if there is none.
    fn add(&mut self, chunk: Bytes) -> Option<Piece> {
        self.last_byte = *chunk.last()?;
        self.position += chunk.len() as u64;
        match &mut self.open {
            Some(open) => {
                open.size += chunk.len();
                open.chunks.push(chunk);
                None
            }
            None => Some(Piece::Chunk(chunk)),
        }
    }

    fn close(&mut self) -> Option<Piece> {
        self.open.take().map(|OpenStretch { at, begin, chunks, .. }| Piece::Stretch {
            at,
            begin,
            chunks,
        })
    }
}

/// After this many plain bytes, the rest of a stretch is left to the scan.
const PLAIN: usize = 16 << 20;
/// What a stretch may take with what is decoded after that ([`Stretch::decode`]).
pub(super) const MOST_PLAIN: usize = PLAIN + (8 << 20);
/// After this many wrong guesses, either the layer has bytes that only look like gzip members, or
/// the ztoc belongs to another layer.
const WRONG: usize = 4;

/// The chunks of a stretch and the result of decoding them.
pub(super) struct QueuedStretch {
    pub chunks: Arc<Vec<Bytes>>,
    /// None if it is not decoded ahead.
    decoded: Option<Receiver<Stretch>>,
    /// Whether it began anywhere.
    is_anywhere: bool,
}

struct Job {
    at: Compressed,
    begin: StretchStart,
    chunks: Arc<Vec<Bytes>>,
    reply: SyncSender<Stretch>,
}

/// Decodes stretches on its own threads, which start with the first stretch.
pub(super) struct DecoderPool<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    threads: usize,
    /// Whether a fine document is collected.
    is_fine: bool,
    jobs: Option<Sender<Job>>,
    /// The number of stretches that began anywhere.
    tried: usize,
    shared: Arc<PoolState>,
}

/// What the pool shares with the scan.
#[derive(Default)]
pub(super) struct PoolState {
    /// Buffers of earlier stretches, for reuse.
    idle: Mutex<Vec<Vec<u8>>>,
    wrong: AtomicUsize,
    /// How many of the last stretches that began anywhere could not be used.
    missed: AtomicUsize,
}

impl<'scope, 'env> DecoderPool<'scope, 'env> {
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        threads: usize,
        is_fine: bool,
    ) -> DecoderPool<'scope, 'env> {
        DecoderPool { scope, threads, is_fine, jobs: None, tried: 0, shared: Arc::default() }
    }

    pub(super) fn shared(&self) -> Arc<PoolState> {
        Arc::clone(&self.shared)
    }

    /// Whether too many guesses were wrong.
    pub(super) fn is_misled(&self) -> bool {
        self.shared.wrong.load(Ordering::Relaxed) >= WRONG
    }

    /// Queues a stretch that lies at `at` in the blob for decoding.
    pub(super) fn decode(
        &mut self,
        at: Compressed,
        begin: StretchStart,
        chunks: Vec<Bytes>,
    ) -> QueuedStretch {
        let chunks = Arc::new(chunks);
        let is_anywhere = matches!(begin, StretchStart::Unknown);
        if is_anywhere && self.rests() {
            return QueuedStretch { chunks, decoded: None, is_anywhere };
        }
        let (reply, decoded) = sync_channel(1);
        let jobs = self
            .jobs
            .get_or_insert_with(|| start(self.scope, self.threads, self.is_fine, &self.shared));
        // If all threads are gone, the scan decodes the stretch.
        let _ = jobs.send(Job { at, begin, chunks: Arc::clone(&chunks), reply });
        QueuedStretch { chunks, decoded: Some(decoded), is_anywhere }
    }

    /// Whether to decode no stretch that begins anywhere, because many could not be used. Parts of
    /// a layer that cannot be compressed have no blocks that can be found.
    fn rests(&mut self) -> bool {
        self.tried = self.tried.wrapping_add(1);
        let missed = self.shared.missed.load(Ordering::Relaxed);
        missed >= MISSED && !self.tried.is_multiple_of(1 << missed.min(5))
    }
}

fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    threads: usize,
    is_fine: bool,
    shared: &Arc<PoolState>,
) -> Sender<Job> {
    let (jobs, queue) = channel::<Job>();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..threads {
        let queue = Arc::clone(&queue);
        let shared = Arc::clone(shared);
        scope.spawn(move || {
            loop {
                let next = locked(&queue).recv();
                let Ok(Job { at, begin, chunks, reply }) = next else { break };
                let plain = locked(&shared.idle).pop().unwrap_or_default();
                // The receiver is gone if the scan is over.
                let _ = reply.send(Stretch::decode(at, begin, &chunks, plain, PLAIN, is_fine));
            }
        });
    }
    jobs
}

impl PoolState {
    /// Waits for a stretch and passes it to `scan`.
    pub(super) fn scan(
        &self,
        queued: &QueuedStretch,
        scan: &mut LayerScan,
    ) -> Result<ScannedSpans, LayerError> {
        let Some(decoded) = &queued.decoded else { return scan.push_all(&queued.chunks, None) };
        // The stretch is missing if its thread panicked. The scope passes that on when it ends.
        let stretch = decoded.recv().unwrap_or_default();
        let decoded = scan.push_decoded(&queued.chunks, stretch)?;
        if queued.is_anywhere {
            // Only this thread counts.
            let missed = self.missed.load(Ordering::Relaxed) + 1;
            self.missed.store(if decoded.was_right { 0 } else { missed }, Ordering::Relaxed);
        } else if !decoded.was_right {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
        locked(&self.idle).push(decoded.plain);
        Ok(decoded.spans)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 1, 2, 3, 4, 0, 255];

    /// A blob with member headers at the given offsets.
    fn blob(size: usize, headers: &[usize]) -> Bytes {
        let mut blob = vec![b'.'; size];
        headers.iter().for_each(|&at| blob[at..at + HEADER.len()].copy_from_slice(&HEADER));
        blob.into()
    }

    /// The pieces of a blob that is pushed in chunks: their offsets, their sizes, and whether they
    /// are stretches.
    fn cut(blob: &Bytes, chunk: usize) -> Vec<(usize, usize, bool)> {
        let mut cutter = BlobCutter::new(2, None);
        let mut pieces = Vec::new();
        let mut joined = Vec::new();
        let mut out = |piece: Piece| {
            let (chunks, stretch) = match piece {
                Piece::Chunk(chunk) => (vec![chunk], None),
                Piece::Stretch { at, chunks, .. } => (chunks, Some(at)),
            };
            let at = joined.len();
            chunks.iter().for_each(|chunk| joined.extend_from_slice(chunk));
            assert!(stretch.is_none_or(|stretch| stretch == Compressed(at as u64)));
            pieces.push((at, joined.len() - at, stretch.is_some()));
        };
        for from in (0..blob.len()).step_by(chunk) {
            cutter.push(blob.slice(from..(from + chunk).min(blob.len())), &mut out);
        }
        cutter.end().into_iter().for_each(&mut out);
        assert!(joined == blob[..], "the pieces are not the blob");
        pieces
    }

    #[test]
    fn stretches_start_at_headers_and_have_a_minimum_size() {
        let headers: Vec<usize> = (0..40).map(|n| n * 50_000).collect();
        let blob = blob(2_010_000, &headers);
        for chunk in [256 << 10, 30_000, 2_010_000] {
            let pieces = cut(&blob, chunk);
            let stretches: Vec<_> = pieces.iter().filter(|piece| piece.2).collect();
            assert!(stretches.len() >= 5, "{pieces:?}");
            assert!(stretches.iter().all(|(at, _, _)| headers.contains(at)), "{pieces:?}");
            let (_, whole) = stretches.split_last().unwrap();
            assert!(
                whole.iter().all(|(_, size, _)| (LEAST..LEAST + 100_000).contains(size)),
                "{pieces:?}"
            );
        }
    }

    #[test]
    fn a_long_member_ends_a_stretch() {
        let blob = blob(20 << 20, &[0, 1 << 20, 2 << 20, 15 << 20]);
        let pieces = cut(&blob, 256 << 10);
        let stretches: Vec<_> =
            pieces.iter().filter(|piece| piece.2).map(|&(at, size, _)| (at, size)).collect();
        assert_eq!(
            stretches,
            [(1 << 20, 1 << 20), (2 << 20, MOST + (256 << 10)), (15 << 20, MOST + (256 << 10))]
        );
    }

    #[test]
    fn blobs_with_one_member_are_not_cut() {
        let one = blob(1 << 20, &[0]);
        let late = blob(20 << 20, &[0, 18 << 20]);
        let tar = Bytes::from(vec![0; 1 << 20]);
        for blob in [one, late, tar] {
            let pieces = cut(&blob, 256 << 10);
            assert!(pieces.iter().all(|&(_, size, is_stretch)| !is_stretch && size <= 256 << 10));
        }
    }
}
