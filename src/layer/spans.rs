//! Where checkpoints go, and the digests of the spans between them.

use crate::codec::gzip::BlockStart;
use crate::digest::{Algorithm, Digest, Hasher};
use crate::offset::Compressed;
use crate::ztoc::Checkpoint;

/// Chooses checkpoints among block starts and hashes the blob span by span.
pub(crate) struct GzipSpans {
    span_size: u64,
    pub list: Vec<Checkpoint>,
    pub digests: Vec<Digest>,
    /// The digest of the span that is being read; none before the first checkpoint.
    current: Option<Hasher>,
    /// How many checkpoints the hashing has met.
    met: usize,
    /// How much of the blob has been hashed or passed over, and the byte before that.
    position: Compressed,
    last_byte: u8,
}

impl GzipSpans {
    pub fn new(span_size: u64) -> GzipSpans {
        GzipSpans {
            span_size,
            list: Vec::new(),
            digests: Vec::new(),
            current: None,
            met: 0,
            position: Compressed(0),
            last_byte: 0,
        }
    }

    /// Takes a checkpoint at the first block, and wherever more than a span size was decoded since the last one
    /// (soci-snapshotter, gzip_zinfo.c; unlike it, never twice at output 0, since consumers refuse that).
    pub fn block_start(&mut self, at: BlockStart<'_>) {
        if self.list.last().is_some_and(|last| at.output - last.output <= self.span_size) {
            return;
        }
        self.list.push(Checkpoint { input: at.input, output: at.output, bits: at.bits, window: Box::new(*at.window) });
    }

    /// Hashes the next chunk of the blob, after its checkpoints were taken.
    pub fn hash(&mut self, chunk: &[u8]) {
        let start = self.position;
        let mut from = 0;
        for checkpoint in &self.list[self.met..] {
            let to = (checkpoint.input - start) as usize;
            let mut next = Hasher::new(Algorithm::Sha256);
            if let Some(mut hasher) = self.current.take() {
                hasher.update(&chunk[from..to]);
                self.digests.push(hasher.finish());
            }
            if checkpoint.bits != 0 {
                // Neighbours share the byte in which one ends and the other begins.
                next.update(&[if to == 0 { self.last_byte } else { chunk[to - 1] }]);
            }
            self.current = Some(next);
            from = to;
        }
        self.met = self.list.len();
        if let Some(hasher) = &mut self.current {
            hasher.update(&chunk[from..]);
        }
        self.position = start + chunk.len() as u64;
        self.last_byte = chunk.last().copied().unwrap_or(self.last_byte);
    }

    /// The blob is at its end, and so is its last span.
    pub fn finish(mut self) -> (Vec<Checkpoint>, Vec<Digest>) {
        self.digests.extend(self.current.take().map(Hasher::finish));
        (self.list, self.digests)
    }
}

/// Hashes the slices of a plain tar.
pub(crate) struct PlainSpans {
    span_size: u64,
    digests: Vec<Digest>,
    current: Hasher,
    /// Bytes that the current span still lacks.
    left: u64,
}

impl PlainSpans {
    pub fn new(span_size: u64) -> PlainSpans {
        PlainSpans { span_size, digests: Vec::new(), current: Hasher::new(Algorithm::Sha256), left: span_size }
    }

    pub fn hash(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            let taken = chunk.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.current.update(&chunk[..taken]);
            self.left -= taken as u64;
            if self.left == 0 {
                let done = std::mem::replace(&mut self.current, Hasher::new(Algorithm::Sha256));
                self.digests.push(done.finish());
                self.left = self.span_size;
            }
            chunk = &chunk[taken..];
        }
    }

    pub fn finish(mut self) -> Vec<Digest> {
        if self.left < self.span_size {
            self.digests.push(self.current.finish());
        }
        self.digests
    }
}
