//! The starts of spans, and their digests.

use crate::codec::gzip::BlockStart;
use crate::digest::{Algorithm, Digest, Hasher};
use crate::offset::{Compressed, Uncompressed};
use crate::ztoc::Checkpoint;

/// The first byte of a span in the blob.
#[derive(Debug, Clone, Copy)]
pub struct SpanStart {
    at: Compressed,
    /// Whether bits of the previous byte belong to the span. That byte is then part of both spans.
    shares_byte: bool,
}

/// Chooses checkpoints among the block starts of a gzip blob.
pub struct GzipSpans {
    span_size: u64,
    /// The checkpoints that were chosen so far.
    pub list: Vec<Checkpoint>,
    /// How many of them [`GzipSpans::starts`] has returned.
    reported: usize,
}

crate::opaque_debug!(GzipSpans);

impl GzipSpans {
    /// Chooses a checkpoint whenever more than `span_size` bytes of tar followed the last one.
    pub fn new(span_size: u64) -> GzipSpans {
        GzipSpans { span_size, list: Vec::new(), reported: 0 }
    }

    /// Takes a checkpoint at the first block, and wherever more than a span size was decoded since the last one
    /// (soci-snapshotter, gzip_zinfo.c; unlike it, never twice at output 0, since consumers refuse that).
    pub fn block_start(&mut self, at: BlockStart<'_>) {
        if self.list.last().is_some_and(|last| !is_apart(last.output, at.output, self.span_size)) {
            return;
        }
        self.list.push(Checkpoint { input: at.input, output: at.output, bits: at.bits, window: Box::new(*at.window) });
    }

    /// The spans that started since the last call.
    pub fn starts(&mut self) -> Vec<SpanStart> {
        let new = &self.list[self.reported..];
        self.reported = self.list.len();
        new.iter().map(|checkpoint| SpanStart { at: checkpoint.input, shares_byte: checkpoint.bits != 0 }).collect()
    }
}

fn is_apart(last: Uncompressed, next: Uncompressed, span_size: u64) -> bool {
    next - last > span_size
}

/// Whether [`GzipSpans`] could have chosen these checkpoints. They must be in order.
pub fn are_chosen(list: &[Checkpoint], span_size: u64) -> bool {
    let starts = list.first().is_some_and(|first| first.bits == 0 && first.window.iter().all(|byte| *byte == 0));
    starts && list.windows(2).all(|two| is_apart(two[0].output, two[1].output, span_size))
}

/// Cuts a plain tar into slices.
#[derive(Debug)]
pub struct PlainSpans {
    span_size: u64,
    next: Compressed,
}

impl PlainSpans {
    /// Cuts every `span_size` bytes.
    pub fn new(span_size: u64) -> PlainSpans {
        PlainSpans { span_size, next: Compressed(0) }
    }

    /// The spans that start before the byte `end` and were not returned by earlier calls.
    pub fn starts(&mut self, end: Compressed) -> Vec<SpanStart> {
        let mut starts = Vec::new();
        while self.next < end {
            starts.push(SpanStart { at: self.next, shares_byte: false });
            self.next += self.span_size;
        }
        starts
    }
}

/// Hashes a blob span by span.
#[derive(Default)]
pub struct SpanHashes {
    /// The digests of the spans that are complete.
    pub digests: Vec<Digest>,
    /// The digest of the current span. None before the first span.
    current: Option<Hasher>,
    /// How many bytes of the blob were hashed or skipped, and the last of them.
    position: Compressed,
    last_byte: u8,
}

crate::opaque_debug!(SpanHashes);

impl SpanHashes {
    /// Takes the next bytes of the blob, and from the front of `starts` the spans that begin in or
    /// right after them. Also adds all bytes to the hash of the whole `blob`.
    pub fn push(&mut self, chunk: &[u8], starts: &mut &[SpanStart], blob: &mut Hasher) {
        let mut from = 0;
        let end = self.position + chunk.len() as u64;
        let (here, later) = starts.split_at(starts.partition_point(|start| start.at <= end));
        *starts = later;
        for start in here {
            let to = (start.at - self.position) as usize;
            let mut next = Hasher::new(Algorithm::Sha256);
            self.update(&chunk[from..to], blob);
            self.digests.extend(self.current.take().map(Hasher::finish));
            if start.shares_byte {
                next.update(&[if to == 0 { self.last_byte } else { chunk[to - 1] }]);
            }
            self.current = Some(next);
            from = to;
        }
        self.update(&chunk[from..], blob);
        self.position += chunk.len() as u64;
        self.last_byte = chunk.last().copied().unwrap_or(self.last_byte);
    }

    fn update(&mut self, bytes: &[u8], blob: &mut Hasher) {
        match &mut self.current {
            Some(span) => Hasher::update_both(span, blob, bytes),
            None => blob.update(bytes),
        }
    }

    /// Call this at the end of the blob, which ends the last span.
    pub fn finish(mut self) -> Vec<Digest> {
        self.digests.extend(self.current.take().map(Hasher::finish));
        self.digests
    }
}
