//! The spans of a ztoc in a form for printing.

use std::ops::Range;

use ociseek_format::digest::Digest;
use ociseek_format::offset::{Compressed, SpanId, Uncompressed};
use ociseek_format::ztoc::{Checkpoints, Ztoc};

pub(super) struct Span {
    pub number: u32,
    /// The start of the bytes that the digest covers.
    pub start: Compressed,
    pub end: Compressed,
    pub uncompressed: Range<Uncompressed>,
    pub digest: Digest,
    /// For gzip layers: the number of high bits of the byte at `start` that belong to the span; 0
    /// means the whole byte.
    pub bits: Option<u8>,
    /// For gzip layers: the SHA-256 of the window.
    pub window: Option<Digest>,
}

pub(super) fn spans(ztoc: &Ztoc) -> impl Iterator<Item = Span> {
    (0..).zip(&ztoc.span_digests).filter_map(|(number, digest)| {
        let (start, from) = ztoc.checkpoints.start(SpanId(number))?;
        let last = (ztoc.compressed_size, ztoc.uncompressed_size);
        let (end, to) = match &ztoc.checkpoints {
            // Neighbours share a byte if the border is inside it.
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
