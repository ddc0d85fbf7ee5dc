//! Plain bytes on their way into the span cache.

use crate::digest::{Algorithm, Digest, Hasher};
use crate::rootfs::cache::{SpanCache, SpanKey};
use crate::ztoc::Checkpoint;

/// Spans of one layer go into the cache through it, as long as there is room for them.
pub(super) struct Shelf {
    cache: SpanCache,
    room: u64,
}

impl Shelf {
    /// For a layer whose blob has `compressed` bytes.
    pub fn new(cache: &SpanCache, compressed: u64) -> Shelf {
        Shelf { cache: cache.clone(), room: cache.room_for(compressed) }
    }

    /// Keeps a span. False: there is no room for it or any other, or the cache does not take it.
    fn keep(&mut self, key: &SpanKey, span: &[u8]) -> bool {
        let size = span.len() as u64;
        if self.cache.has(key, size) {
            return true;
        }
        match self.room.checked_sub(size) {
            Some(room) => {
                self.room = room;
                self.cache.put(key, span)
            }
            None => false,
        }
    }
}

/// Cuts a plain tar into spans of equal size and keeps them.
pub(super) struct Slices {
    size: u64,
    /// `None` where nothing is to be kept any more.
    shelf: Option<Shelf>,
    /// The current slice, or its digest alone where nothing is kept.
    slice: Vec<u8>,
    hasher: Hasher,
    length: u64,
    pub digests: Vec<Digest>,
}

impl Slices {
    pub fn new(size: u64, shelf: Option<Shelf>) -> Slices {
        let hasher = Hasher::new(Algorithm::Sha256);
        Slices { size, shelf, slice: Vec::new(), hasher, length: 0, digests: Vec::new() }
    }

    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = usize::try_from(self.size - self.length).unwrap_or(usize::MAX);
            let (taken, rest) = bytes.split_at(bytes.len().min(room));
            self.hasher.update(taken);
            if self.shelf.is_some() {
                self.slice.extend_from_slice(taken);
            }
            self.length += taken.len() as u64;
            if self.length == self.size {
                self.end_slice();
            }
            bytes = rest;
        }
    }

    pub fn finish(mut self) -> Vec<Digest> {
        if self.length > 0 {
            self.end_slice();
        }
        self.digests
    }

    fn end_slice(&mut self) {
        let digest = std::mem::replace(&mut self.hasher, Hasher::new(Algorithm::Sha256)).finish();
        let (key, slice) = (SpanKey::plain(&digest, self.length), &self.slice);
        self.shelf = self.shelf.take().and_then(|mut shelf| shelf.keep(&key, slice).then_some(shelf));
        self.slice.clear();
        self.length = 0;
        self.digests.push(digest);
    }
}

/// The most that waits for its span's end, in bytes; a larger span is not kept.
const WAITING: usize = 32 << 20;

/// Keeps the spans of a gzip layer while they are decoded anyway.
pub(super) struct GzipSlices {
    /// `None` where nothing is to be kept any more.
    shelf: Option<Shelf>,
    plain: Vec<u8>,
    /// Where in the tar `plain` begins.
    start: u64,
    /// The first span that was not looked at.
    next: usize,
}

impl GzipSlices {
    pub fn new(shelf: Option<Shelf>) -> GzipSlices {
        GzipSlices { shelf, plain: Vec::new(), start: 0, next: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.shelf.is_none() {
            return;
        }
        if self.plain.len() + bytes.len() > WAITING {
            self.start += (self.plain.len() + bytes.len()) as u64;
            self.plain = Vec::new();
        } else {
            self.plain.extend_from_slice(bytes);
        }
    }

    /// Keeps the spans of which the digests are known by now. The tar has `end` bytes so far.
    pub fn keep(&mut self, checkpoints: &[Checkpoint], digests: &[Digest], end: u64) {
        let Some(shelf) = &mut self.shelf else { return };
        while let (Some(checkpoint), Some(digest)) = (checkpoints.get(self.next), digests.get(self.next)) {
            self.next += 1;
            let from = checkpoint.output.0;
            let to = checkpoints.get(self.next).map_or(end, |next| next.output.0);
            let Some(skipped) = from.checked_sub(self.start) else { continue };
            let (skipped, length) = (skipped as usize, (to - from) as usize);
            if let Some(span) = self.plain.get(skipped..skipped + length) {
                if !shelf.keep(&SpanKey::gzip(digest, checkpoint, to - from), span) {
                    (self.shelf, self.plain) = (None, Vec::new());
                    return;
                }
                self.plain.drain(..skipped + length);
                self.start = to;
            }
        }
    }
}
