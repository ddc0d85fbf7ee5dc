//! The digests of a layer: of the whole blob, and of each span.

use std::sync::mpsc::Sender;

use super::fine::{FineHashes, FineMessage, FineParts};
use super::slices::SpanStart;
use crate::budget::Charge;
use crate::digest::{Algorithm, Digest, Hasher};
use crate::fine::FineError;
use crate::offset::Compressed;

/// The spans that [`LayerScan`](super::scan::LayerScan) found in the bytes it was given.
#[derive(Debug)]
pub(super) struct ScannedSpans {
    pub(super) starts: SpanStarts,
    /// The messages for the fine document. Empty if none is collected.
    pub(super) fine: Vec<FineMessage>,
}

#[derive(Debug)]
pub(super) enum SpanStarts {
    /// More bytes are needed to tell.
    Undecided,
    /// The layer gets no ztoc and no fine document.
    Unwanted,
    /// The layer gets no ztoc.
    Unhashed,
    /// These spans begin in the given bytes, or in earlier ones that were undecided.
    Starts(Vec<SpanStart>),
}

/// Hashes the bytes that a [`LayerScan`](super::scan::LayerScan) has read. This half of the work
/// can run on another thread.
pub(super) struct LayerHashes {
    blob: Hasher,
    /// None if the layer gets no ztoc.
    spans: Option<SpanHashes>,
    /// Bytes received before it was known where spans begin.
    undecided: Vec<u8>,
    /// None if the layer gets no fine document.
    fine: Option<FineHashes>,
    /// Receives the digests of spans as they become known, with the number sent so far.
    listener: Option<(Sender<Digest>, usize)>,
}

/// The digests of a blob.
pub(super) struct BlobDigests {
    pub(super) blob: Digest,
    pub(super) spans: Vec<Digest>,
    pub(super) fine: Option<Result<FineParts, FineError>>,
}

impl LayerHashes {
    pub(super) fn new(algorithm: Algorithm) -> LayerHashes {
        let blob = Hasher::new(algorithm);
        let spans = Some(SpanHashes::default());
        LayerHashes { blob, spans, undecided: Vec::new(), fine: None, listener: None }
    }

    /// Also collects what a fine document needs, if the blob's digest is a SHA-256. The collected
    /// data is charged to `memory`.
    pub(super) fn with_fine(self, memory: Charge) -> LayerHashes {
        LayerHashes {
            fine: matches!(self.blob, Hasher::Sha256(_)).then(|| FineHashes::new(memory)),
            ..self
        }
    }

    /// Also sends each span's digest to `listener` as soon as it is known.
    pub(super) fn sending_to(self, listener: Sender<Digest>) -> LayerHashes {
        LayerHashes { listener: Some((listener, 0)), ..self }
    }

    /// Takes the next bytes of the blob, with what the scan found in them.
    pub(super) fn push(&mut self, chunk: &[u8], spans: ScannedSpans) {
        self.push_all(&[chunk], spans);
    }

    /// Takes chunks that the scan took together.
    pub(super) fn push_all<C: AsRef<[u8]>>(&mut self, chunks: &[C], spans: ScannedSpans) {
        let ScannedSpans { starts: begun, fine: notes } = spans;
        let mut starts = match &begun {
            SpanStarts::Undecided => None,
            SpanStarts::Unwanted => {
                (self.spans, self.fine) = (None, None);
                Some(&[][..])
            }
            SpanStarts::Unhashed => {
                self.spans = None;
                Some(&[][..])
            }
            SpanStarts::Starts(starts) => Some(&starts[..]),
        };
        if let Some(fine) = &mut self.fine {
            fine.note(notes);
        }
        for chunk in chunks.iter().map(C::as_ref) {
            let Some(starts) = &mut starts else {
                self.undecided.extend_from_slice(chunk);
                continue;
            };
            let before = std::mem::take(&mut self.undecided);
            let chunk = if before.is_empty() { chunk } else { &[&before, chunk].concat() };
            let mut rest = chunk;
            // Runs once for each chunk, unless states are wanted inside it.
            loop {
                // Only if more bytes follow: a border at the end of the blob does not count.
                let fine = self.fine.as_mut().filter(|_| !rest.is_empty());
                let taken = fine.map_or(rest.len(), |fine| fine.reach(rest.len(), &self.blob));
                let (piece, after) = rest.split_at(taken);
                match &mut self.spans {
                    Some(hashes) => hashes.push(piece, starts, &mut self.blob),
                    None => self.blob.update(piece),
                }
                if let Some(fine) = &mut self.fine {
                    fine.pass(piece);
                }
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
        }
        self.send_new();
    }

    fn send_new(&mut self) {
        if let (Some((listener, sent)), Some(hashes)) = (&mut self.listener, &self.spans) {
            for digest in &hashes.digests[*sent..] {
                // The receiver is gone if nothing more is kept.
                let _ = listener.send(*digest);
            }
            *sent = hashes.digests.len();
        }
    }

    /// Call this at the end of the blob.
    pub(super) fn finish(self) -> BlobDigests {
        let spans = self.spans.map(SpanHashes::finish).unwrap_or_default();
        if let Some((listener, sent)) = self.listener {
            for digest in spans.iter().skip(sent) {
                let _ = listener.send(*digest);
            }
        }
        BlobDigests { blob: self.blob.finish(), spans, fine: self.fine.map(FineHashes::finish) }
    }
}

/// Hashes a blob span by span.
#[derive(Default)]
struct SpanHashes {
    /// The digests of the spans that are complete.
    digests: Vec<Digest>,
    /// The digest of the current span. None before the first span.
    current: Option<Hasher>,
    /// How many bytes of the blob were hashed or skipped, and the last of them.
    position: Compressed,
    last_byte: u8,
}

impl SpanHashes {
    /// Takes the next bytes of the blob, and from the front of `starts` the spans that begin in or
    /// right after them. Also adds all bytes to the hash of the whole `blob`.
    fn push(&mut self, chunk: &[u8], starts: &mut &[SpanStart], blob: &mut Hasher) {
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
    fn finish(mut self) -> Vec<Digest> {
        self.digests.extend(self.current.take().map(Hasher::finish));
        self.digests
    }
}
