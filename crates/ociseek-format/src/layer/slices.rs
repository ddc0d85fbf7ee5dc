//! Collects the plain bytes of spans while a layer is read, for a cache that keeps them.

use std::sync::mpsc::Receiver;

use crate::digest::{Algorithm, Digest, Hasher};
use crate::ztoc::Checkpoint;

/// Keeps plain bytes of spans.
pub trait KeepSpans: Send {
    /// Keeps a span. `digest` is that of its compressed bytes, which are decoded from `checkpoint`;
    /// without a checkpoint it is the digest of `plain`. Returns false if no more spans are wanted.
    fn keep(&mut self, digest: &Digest, checkpoint: Option<&Checkpoint>, plain: &[u8]) -> bool;
}

/// None if no spans are kept, or no more.
pub(super) type Keeper = Option<Box<dyn KeepSpans>>;

/// Cuts a plain tar into spans of equal size, hashes them and keeps them.
pub(super) struct Slices {
    size: u64,
    keeper: Keeper,
    /// The current slice. Only hashed if nothing is kept.
    slice: Vec<u8>,
    hasher: Hasher,
    length: u64,
    digests: Vec<Digest>,
}

impl Slices {
    pub(super) fn new(size: u64, keeper: Keeper) -> Slices {
        let hasher = Hasher::new(Algorithm::Sha256);
        Slices { size, keeper, slice: Vec::new(), hasher, length: 0, digests: Vec::new() }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = usize::try_from(self.size - self.length).unwrap_or(usize::MAX);
            let (taken, rest) = bytes.split_at(bytes.len().min(room));
            self.hasher.update(taken);
            if self.keeper.is_some() {
                self.slice.extend_from_slice(taken);
            }
            self.length += taken.len() as u64;
            if self.length == self.size {
                self.end_slice();
            }
            bytes = rest;
        }
    }

    pub(super) fn finish(mut self) -> Vec<Digest> {
        if self.length > 0 {
            self.end_slice();
        }
        self.digests
    }

    fn end_slice(&mut self) {
        let digest = std::mem::replace(&mut self.hasher, Hasher::new(Algorithm::Sha256)).finish();
        let slice = &self.slice;
        self.keeper = self.keeper.take().and_then(|mut keeper| keeper.keep(&digest, None, slice).then_some(keeper));
        self.slice.clear();
        self.length = 0;
        self.digests.push(digest);
    }
}

/// The most bytes that are buffered until a span ends. Larger spans are not kept.
const WAITING: usize = 32 << 20;

/// Keeps the spans of a gzip layer as it is decoded.
pub(super) struct GzipSlices {
    keeper: Keeper,
    plain: Vec<u8>,
    /// Where in the tar `plain` begins, and how much of the tar was decoded.
    start: u64,
    end: u64,
    /// Receives the digests of spans from the hashing thread, and those received so far.
    hashed: Receiver<Digest>,
    digests: Vec<Digest>,
    /// The first span that was not handled yet.
    next: usize,
}

impl GzipSlices {
    pub(super) fn new(keeper: Keeper, hashed: Receiver<Digest>) -> GzipSlices {
        GzipSlices { keeper, plain: Vec::new(), start: 0, end: 0, hashed, digests: Vec::new(), next: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.keeper.is_none() {
            return;
        }
        self.end += bytes.len() as u64;
        if self.plain.len() + bytes.len() > WAITING {
            self.start += (self.plain.len() + bytes.len()) as u64;
            self.plain = Vec::new();
        } else {
            self.plain.extend_from_slice(bytes);
        }
    }

    /// Keeps the spans whose digests are known by now.
    pub(super) fn keep(&mut self, checkpoints: &[Checkpoint]) {
        self.digests.extend(self.hashed.try_iter());
        let Some(keeper) = &mut self.keeper else { return };
        while let (Some(checkpoint), Some(digest)) = (checkpoints.get(self.next), self.digests.get(self.next)) {
            self.next += 1;
            let from = checkpoint.output.0;
            let to = checkpoints.get(self.next).map_or(self.end, |next| next.output.0);
            let Some(skipped) = from.checked_sub(self.start) else { continue };
            let (skipped, length) = (skipped as usize, (to - from) as usize);
            if let Some(span) = self.plain.get(skipped..skipped + length) {
                if !keeper.keep(digest, Some(checkpoint), span) {
                    (self.keeper, self.plain) = (None, Vec::new());
                    return;
                }
                self.plain.drain(..skipped + length);
                self.start = to;
            }
        }
    }
}
