//! Tar headers that lie in two spans. The part in either span is kept until the other span is
//! decoded, and both together are compared with the entry that the index states.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use ociseek_format::layer::NearbyFiles;
use ociseek_format::layer::prove::{Difference, SpanHeaders, headers_across};
use ociseek_format::offset::Uncompressed;
use ociseek_store::lock::Hold;

/// Larger headers are not compared, in bytes.
const LARGEST: u64 = 64 << 10;
/// How many bytes of headers are kept for a layer.
const KEPT: usize = 1 << 20;

/// The parts that wait for the other one.
#[derive(Default)]
pub(super) struct SplitHeaders(Mutex<WaitingParts>);

#[derive(Default)]
struct WaitingParts {
    bytes: usize,
    /// By the offset where the first span ends: what it holds, or what the second one holds.
    by_offset: BTreeMap<Uncompressed, [Option<Vec<u8>>; 2]>,
}

impl SplitHeaders {
    /// Keeps a part. Returns both parts if the other one is here.
    fn join(&self, at: Uncompressed, part: usize, bytes: Vec<u8>) -> Option<[Vec<u8>; 2]> {
        let mut waiting = self.0.hold();
        let WaitingParts { bytes: kept, by_offset } = &mut *waiting;
        let mut parts = by_offset.remove(&at).unwrap_or_default();
        *kept -= parts.iter().flatten().map(Vec::len).sum::<usize>();
        parts[part] = Some(bytes);
        match parts {
            [Some(first), Some(second)] => Some([first, second]),
            parts => {
                let size = parts.iter().flatten().map(Vec::len).sum::<usize>();
                if *kept + size <= KEPT {
                    *kept += size;
                    by_offset.insert(at, parts);
                }
                None
            }
        }
    }
}

/// What a span holds of headers that begin before it or end after it.
pub(super) struct SpanEnds<'a> {
    near: &'a NearbyFiles,
    position: Uncompressed,
    ends: Vec<SpanEnd>,
}

struct SpanEnd {
    /// The offset between the two spans.
    at: Uncompressed,
    /// 0 if this span holds the first part of the headers, 1 if it holds the second one.
    part: usize,
    headers: Range<Uncompressed>,
    bytes: Vec<u8>,
}

impl SpanEnd {
    /// This span's part of the headers.
    fn wanted(&self) -> Range<Uncompressed> {
        if self.part == 0 { self.headers.start..self.at } else { self.at..self.headers.end }
    }
}

impl<'a> SpanEnds<'a> {
    /// For the bytes of the tar in `span`, which has the entries in `near`.
    pub(super) fn new(near: &'a NearbyFiles, span: &Range<Uncompressed>) -> SpanEnds<'a> {
        let ends = [(span.start, 1), (span.end, 0)].into_iter().filter_map(|(at, part)| {
            let headers = headers_across(&near.files, at).filter(|headers| headers.end - headers.start <= LARGEST)?;
            Some(SpanEnd { at, part, headers, bytes: Vec::new() })
        });
        SpanEnds { near, position: span.start, ends: ends.collect() }
    }

    /// Takes the next bytes of the span.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let (start, end) = (self.position, self.position + piece.len() as u64);
        for one in &mut self.ends {
            let wanted = one.wanted();
            let (from, to) = (wanted.start.max(start), wanted.end.min(end));
            if from < to {
                one.bytes.extend_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
            }
        }
        self.position = end;
    }

    /// Ends the span. Returns a difference of headers if this was their missing part.
    pub(super) fn finish(self, waiting: &SplitHeaders) -> Option<Difference> {
        let NearbyFiles { first, files } = self.near;
        self.ends.into_iter().find_map(|end| {
            let wanted = end.wanted();
            // A span may have been decoded only in part.
            if wanted.end - wanted.start != end.bytes.len() as u64 {
                return None;
            }
            let parts = waiting.join(end.at, end.part, end.bytes)?;
            let mut both = SpanHeaders::among(*first, files, &end.headers);
            parts.iter().for_each(|part| both.push(part));
            both.finish().into_iter().next()
        })
    }
}
