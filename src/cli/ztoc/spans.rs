//! The spans of a ztoc, one by one, for those who print them.

use std::ops::Range;

use crate::digest::Digest;
use crate::offset::{Compressed, SpanId, Uncompressed};
use crate::ztoc::{Checkpoints, Ztoc};

pub(super) struct Span {
    pub number: u32,
    /// The bytes of the blob that the digest is over.
    pub start: Compressed,
    pub end: Compressed,
    pub uncompressed: Range<Uncompressed>,
    pub digest: Digest,
    /// Of a gzip layer: the high bits of the byte at `start` that belong to the span; 0 means all of it.
    pub bits: Option<u8>,
    /// Of a gzip layer: the SHA-256 of the window.
    pub window: Option<Digest>,
}

pub(super) fn spans(ztoc: &Ztoc) -> impl Iterator<Item = Span> {
    (0..).zip(&ztoc.span_digests).filter_map(|(number, digest)| {
        let (start, from) = ztoc.checkpoints.start(SpanId(number))?;
        let last = (ztoc.compressed_size, ztoc.uncompressed_size);
        let (end, to) = match &ztoc.checkpoints {
            // Neighbours share a byte where the border lies within it.
            Checkpoints::Gzip { list, .. } => {
                list.get(number as usize + 1).map_or(last, |next| (next.input, next.output))
            }
            Checkpoints::Uncompressed { .. } => ztoc.checkpoints.start(SpanId(number + 1)).unwrap_or(last),
        };
        let checkpoint = match &ztoc.checkpoints {
            Checkpoints::Gzip { list, .. } => list.get(number as usize),
            Checkpoints::Uncompressed { .. } => None,
        };
        Some(Span {
            number,
            start,
            end,
            uncompressed: from..to.max(from),
            digest: *digest,
            bits: checkpoint.map(|c| c.bits),
            window: checkpoint.map(|c| Digest::sha256(c.window.as_slice())),
        })
    })
}
