//! The spans of a layer as it is read: where those of a ztoc start, and their plain bytes, for a
//! cache that keeps them.

use std::sync::mpsc::Receiver;

use crate::codec::gzip::BlockStart;
use crate::digest::{Algorithm, Digest, Hasher};
use crate::offset::{Compressed, SpanSize, Uncompressed};
use crate::ztoc::Checkpoint;

/// The first byte of a span in the blob.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanStart {
    pub at: Compressed,
    /// Whether bits of the previous byte belong to the span. That byte is then part of both spans.
    pub shares_byte: bool,
}

/// Chooses checkpoints among the block starts of a gzip blob.
pub(super) struct GzipSpans {
    span_size: SpanSize,
    /// The checkpoints that were chosen so far.
    pub list: Vec<Checkpoint>,
    /// How many of them [`GzipSpans::starts`] has returned.
    reported: usize,
}

impl GzipSpans {
    /// Chooses a checkpoint whenever more than `span_size` bytes of tar followed the last one.
    pub(super) fn new(span_size: SpanSize) -> GzipSpans {
        GzipSpans { span_size, list: Vec::new(), reported: 0 }
    }

    /// Takes a checkpoint at the first block, and wherever more than a span size was decoded since
    /// the last one (soci-snapshotter, gzip_zinfo.c; unlike it, never twice at output 0, since
    /// consumers refuse that).
    pub(super) fn block_start(&mut self, at: BlockStart<'_>) {
        if self.list.last().is_some_and(|last| !is_apart(last.output, at.output, self.span_size)) {
            return;
        }
        self.list.push(Checkpoint {
            input: at.input,
            output: at.output,
            bits: at.bits,
            window: Box::new(*at.window),
        });
    }

    /// The spans that started since the last call.
    pub(super) fn starts(&mut self) -> Vec<SpanStart> {
        let new = &self.list[self.reported..];
        self.reported = self.list.len();
        new.iter()
            .map(|checkpoint| SpanStart { at: checkpoint.input, shares_byte: checkpoint.bits != 0 })
            .collect()
    }
}

fn is_apart(last: Uncompressed, next: Uncompressed, span_size: SpanSize) -> bool {
    next - last > span_size.get()
}

/// Whether indexing a gzip blob could have chosen these checkpoints. They must be in order.
pub fn are_chosen(list: &[Checkpoint], span_size: SpanSize) -> bool {
    let starts = list
        .first()
        .is_some_and(|first| first.bits == 0 && first.window.iter().all(|byte| *byte == 0));
    starts && list.windows(2).all(|two| is_apart(two[0].output, two[1].output, span_size))
}

/// Cuts a plain tar into slices.
pub(super) struct PlainSpans {
    span_size: SpanSize,
    next: Compressed,
}

impl PlainSpans {
    /// Cuts every `span_size` bytes.
    pub(super) fn new(span_size: SpanSize) -> PlainSpans {
        PlainSpans { span_size, next: Compressed(0) }
    }

    /// The spans that start before the byte `end` and were not returned by earlier calls.
    pub(super) fn starts(&mut self, end: Compressed) -> Vec<SpanStart> {
        let mut starts = Vec::new();
        while self.next < end {
            starts.push(SpanStart { at: self.next, shares_byte: false });
            self.next += self.span_size.get();
        }
        starts
    }
}

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
        self.keeper = self
            .keeper
            .take()
            .and_then(|mut keeper| keeper.keep(&digest, None, slice).then_some(keeper));
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
        GzipSlices {
            keeper,
            plain: Vec::new(),
            start: 0,
            end: 0,
            hashed,
            digests: Vec::new(),
            next: 0,
        }
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
        while let (Some(checkpoint), Some(digest)) =
            (checkpoints.get(self.next), self.digests.get(self.next))
        {
            self.next += 1;
            let from = checkpoint.output.0;
            let to = checkpoints.get(self.next).map_or(self.end, |next| next.output.0);
            let Some(skipped) = from.checked_sub(self.start) else { continue };
            let skipped = skipped as usize;
            let length = (to - from) as usize;
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
