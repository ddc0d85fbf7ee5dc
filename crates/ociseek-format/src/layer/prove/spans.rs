//! Compares the spans of a ztoc with the layer: the digests of their compressed bytes, the windows
//! of their checkpoints, and what our decoder produces from each checkpoint.

use std::ops::Range;

use super::{Difference, Differences};
use crate::codec::WINDOW;
use crate::codec::gzip::{BlockStart, GzipReader, Sink};
use crate::digest::{Algorithm, Digest, Hasher};
use crate::layer::span::SpanTable;
use crate::offset::{Compressed, SpanId, Uncompressed};
use crate::ztoc::{Checkpoint, Checkpoints, FileKind, FileMetadata};

/// The compressed side: takes the blob's bytes.
pub(super) struct BlobSpans {
    table: SpanTable,
    /// The span that is being read, or the next one.
    current: u32,
    open: Option<OpenSpan>,
    /// The number of bytes of the blob so far, and the last of them.
    position: u64,
    last_byte: u8,
    /// The end of the first gzip header, if known.
    header: HeaderEnd,
    /// The digest of each decoded span.
    decoded: Vec<Result<Digest, String>>,
    /// The number of spans whose digest matches the ztoc.
    matching: u32,
}

/// A span that is being read.
struct OpenSpan {
    digest: Hasher,
    hashed_to: u64,
    /// None for a plain tar.
    decoder: Option<SpanDecoder>,
}

/// Decodes a span from its checkpoint.
struct SpanDecoder {
    reader: GzipReader,
    read_to: u64,
    error: Option<String>,
    output: OutputHasher,
}

/// Hashes the decoded span, up to the end that the ztoc states.
struct OutputHasher {
    hasher: Hasher,
    left: u64,
    excess: u64,
}

impl Sink for OutputHasher {
    fn output(&mut self, bytes: &[u8]) {
        let taken = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        self.hasher.update(&bytes[..taken]);
        self.left -= taken as u64;
        self.excess += (bytes.len() - taken) as u64;
    }

    fn block_start(&mut self, _at: BlockStart<'_>) {}
}

/// Finds the end of the first gzip header.
enum HeaderEnd {
    Reading(Box<GzipReader>),
    Known(Option<Compressed>),
}

struct FirstBlock(Option<Compressed>);

impl Sink for FirstBlock {
    fn output(&mut self, _bytes: &[u8]) {}

    fn block_start(&mut self, at: BlockStart<'_>) {
        self.0.get_or_insert(at.input);
    }
}

impl BlobSpans {
    pub(super) fn new(table: SpanTable) -> BlobSpans {
        let header = match table.ztoc().checkpoints {
            Checkpoints::Gzip { .. } => HeaderEnd::Reading(Box::default()),
            Checkpoints::Uncompressed { .. } => HeaderEnd::Known(None),
        };
        BlobSpans {
            table,
            current: 0,
            open: None,
            position: 0,
            last_byte: 0,
            header,
            decoded: Vec::new(),
            matching: 0,
        }
    }

    pub(super) fn push(&mut self, chunk: &[u8], differences: &mut Differences) {
        self.look_for_header_end(chunk);
        let start = self.position;
        let end = self.position + chunk.len() as u64;
        while self.current < self.table.count() {
            let span = SpanId(self.current);
            let range = self.table.blob_range(span);
            let from = range.start.0;
            let to = range.end.0;
            if from >= end {
                break;
            }
            let byte_at = |at: u64| match at.checked_sub(start) {
                Some(index) => chunk.get(index as usize).copied().unwrap_or(0),
                None => self.last_byte,
            };
            let table = &self.table;
            let open = self.open.get_or_insert_with(|| OpenSpan::new(table, span, byte_at(from)));
            open.take(chunk, start, to.min(end), self.last_byte);
            if to > end {
                break;
            }
            if let Some(open) = self.open.take() {
                self.close(open, differences);
            }
            self.current += 1;
        }
        self.position = end;
        self.last_byte = chunk.last().copied().unwrap_or(self.last_byte);
    }

    /// Ends the current span.
    fn close(&mut self, open: OpenSpan, differences: &mut Differences) {
        let span = SpanId(self.current);
        let stated = self.table.digest(span);
        let (actual, decoded) = open.close(&self.table, span);
        if stated == actual {
            self.matching += 1;
        } else {
            differences.add(Difference::SpanDigest { span, stated, actual });
        }
        self.decoded.push(decoded);
    }

    fn look_for_header_end(&mut self, chunk: &[u8]) {
        let HeaderEnd::Reading(reader) = &mut self.header else { return };
        let mut first = FirstBlock(None);
        // In small pieces, so that little is decoded past the header.
        for piece in chunk.chunks(64) {
            if reader.push(piece, &mut first).is_err() || first.0.is_some() {
                self.header = HeaderEnd::Known(first.0);
                return;
            }
        }
    }

    /// Ends the blob. `plain` holds the digests of the spans' bytes, from the layer decoded from
    /// start to end. Returns how many bytes were compared and how many spans match their digest.
    pub(super) fn finish(mut self, plain: &[Digest], differences: &mut Differences) -> (u64, u32) {
        if let Some(open) = self.open.take() {
            // The blob is shorter than the ztoc says, which is reported separately.
            self.close(open, differences);
        }
        let ztoc = self.table.ztoc().clone();
        let Checkpoints::Gzip { list, .. } = &ztoc.checkpoints else {
            return (ztoc.compressed_size.0, self.matching);
        };
        if let (HeaderEnd::Known(Some(header)), Some(first)) = (&self.header, list.first())
            && *header != first.input
        {
            let stated = first.input.0;
            let actual = header.0;
            differences.add(Difference::Size {
                what: "the end of the first gzip header",
                stated,
                actual,
            });
        }
        let mut compared = 0;
        let mut wrong: Vec<(SpanId, String)> = Vec::new();
        for number in 0..self.table.count() {
            let span = SpanId(number);
            let reason = match (self.decoded.get(number as usize), plain.get(number as usize)) {
                (Some(Ok(decoded)), Some(plain)) if decoded == plain => {
                    let range = self.table.plain_range(span);
                    compared += range.end - range.start;
                    continue;
                }
                (Some(Ok(_)), Some(_)) => "the decoded bytes differ from the layer".to_owned(),
                (Some(Err(reason)), _) => reason.clone(),
                (None, _) | (_, None) => "it is past the end of the layer".to_owned(),
            };
            wrong.push((span, reason));
        }
        if !wrong.is_empty() {
            let files = Files::of(&ztoc.files);
            for (span, reason) in wrong {
                let (files, first) = files.inside(self.table.plain_range(span));
                differences.add(Difference::SpanContent { span, reason, files, first });
            }
        }
        (compared, self.matching)
    }
}

/// The regular files of a ztoc, by offset.
struct Files<'a> {
    by_start: Vec<&'a FileMetadata>,
    ends: Vec<u64>,
}

impl<'a> Files<'a> {
    fn of(files: &'a [FileMetadata]) -> Files<'a> {
        let mut by_start: Vec<_> =
            files.iter().filter(|file| file.kind == FileKind::Regular && file.size > 0).collect();
        by_start.sort_by_key(|file| file.offset);
        let mut ends: Vec<u64> = by_start.iter().map(|file| file.offset.0 + file.size).collect();
        ends.sort_unstable();
        Files { by_start, ends }
    }

    /// The number of files with bytes in `range`, and the name of the first.
    fn inside(&self, range: Range<Uncompressed>) -> (u64, Option<Box<[u8]>>) {
        let started = self.by_start.partition_point(|file| file.offset < range.end);
        let ended = self.ends.partition_point(|end| *end <= range.start.0);
        let inside = started.saturating_sub(ended);
        let first = self.by_start.get(ended).filter(|_| inside > 0);
        (inside as u64, first.map(|file| file.name.clone()))
    }
}

impl OpenSpan {
    /// `before` is the byte before the checkpoint, which the span shares.
    fn new(table: &SpanTable, span: SpanId, before: u8) -> OpenSpan {
        let plain = table.plain_range(span);
        let decoder = match &table.ztoc().checkpoints {
            Checkpoints::Gzip { list, .. } => list.get(span.0 as usize).map(|checkpoint| {
                let Checkpoint { input, output, bits, window } = checkpoint;
                let at = BlockStart { input: *input, output: *output, bits: *bits, window };
                let output = OutputHasher {
                    hasher: Hasher::new(Algorithm::Sha256),
                    left: plain.end - plain.start,
                    excess: 0,
                };
                SpanDecoder {
                    reader: GzipReader::resume(at, before),
                    read_to: input.0,
                    error: None,
                    output,
                }
            }),
            Checkpoints::Uncompressed { .. } => None,
        };
        let digest = Hasher::new(table.digest(span).algorithm());
        OpenSpan { digest, hashed_to: table.blob_range(span).start.0, decoder }
    }

    /// Takes the part of `chunk` before `to`. The chunk begins at `start` in the blob.
    fn take(&mut self, chunk: &[u8], start: u64, to: u64, last_byte: u8) {
        if self.hashed_to < start {
            // The previous span had this byte too.
            self.digest.update(&[last_byte]);
            self.hashed_to = start;
        }
        let piece = |from: u64| {
            chunk.get((from - start) as usize..(to - start) as usize).unwrap_or_default()
        };
        if self.hashed_to < to {
            self.digest.update(piece(self.hashed_to));
            self.hashed_to = to;
        }
        if let Some(decoder) = &mut self.decoder
            && decoder.read_to < to
        {
            if decoder.error.is_none() {
                let pushed = decoder.reader.push(piece(decoder.read_to), &mut decoder.output);
                decoder.error = pushed.err().map(|error| error.to_string());
            }
            decoder.read_to = to;
        }
    }

    /// Ends the span. Returns the digests of its compressed and of its decoded bytes.
    fn close(self, table: &SpanTable, span: SpanId) -> (Digest, Result<Digest, String>) {
        let digest = self.digest.finish();
        (digest, self.decoder.map_or(Ok(digest), |decoder| decoder.close(table, span)))
    }
}

impl SpanDecoder {
    fn close(self, table: &SpanTable, span: SpanId) -> Result<Digest, String> {
        let SpanDecoder { error, output, .. } = self;
        if output.left == 0 && output.excess > 0 && span.0 + 1 < table.count() {
            return Err(format!("it decodes to {} bytes more than the ztoc says", output.excess));
        }
        match (error, output.left) {
            // Nobody reads past the wanted bytes, so later errors do not matter.
            (_, 0) => Ok(output.hasher.finish()),
            (Some(error), _) => Err(error),
            (None, left) => Err(format!("it decodes to {left} bytes fewer than the ztoc says")),
        }
    }
}

/// The uncompressed side: takes the layer decoded from start to end.
pub(super) struct PlainSpanCheck {
    table: SpanTable,
    /// The next checkpoint.
    next: usize,
    hasher: Option<Hasher>,
    position: u64,
    /// At least the last 32 KiB, or all bytes so far.
    recent: Vec<u8>,
    hashes: Vec<Digest>,
}

impl PlainSpanCheck {
    pub(super) fn new(table: SpanTable) -> PlainSpanCheck {
        PlainSpanCheck {
            table,
            next: 0,
            hasher: None,
            position: 0,
            recent: Vec::new(),
            hashes: Vec::new(),
        }
    }

    /// `layer` is updated with the same bytes.
    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        layer: &mut Hasher,
        differences: &mut Differences,
    ) {
        let ztoc = self.table.ztoc().clone();
        let Checkpoints::Gzip { list, .. } = &ztoc.checkpoints else { return layer.update(bytes) };
        loop {
            if let Some(checkpoint) =
                list.get(self.next).filter(|next| next.output.0 == self.position)
            {
                self.close();
                self.check_window(checkpoint, differences);
                self.hasher = Some(Hasher::new(Algorithm::Sha256));
                self.next += 1;
            }
            // The last span ends where the tar's reader stops.
            if self.next == list.len() && self.position == ztoc.uncompressed_size.0 {
                self.close();
            }
            if bytes.is_empty() {
                return;
            }
            let border = match list.get(self.next) {
                Some(next) => next.output.0,
                None if self.position < ztoc.uncompressed_size.0 => ztoc.uncompressed_size.0,
                None => u64::MAX,
            };
            let taken = usize::try_from(border - self.position)
                .map_or(bytes.len(), |most| most.min(bytes.len()));
            let (now, later) = bytes.split_at(taken);
            match &mut self.hasher {
                Some(span) => Hasher::update_both(span, layer, now),
                None => layer.update(now),
            }
            self.remember(now);
            self.position += taken as u64;
            bytes = later;
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        if self.recent.len() + bytes.len() > 8 * WINDOW {
            let length = self.recent.len().min(WINDOW);
            self.recent.drain(..self.recent.len() - length);
        }
        self.recent.extend_from_slice(&bytes[bytes.len().saturating_sub(WINDOW)..]);
    }

    fn check_window(&mut self, checkpoint: &Checkpoint, differences: &mut Differences) {
        let recent = &self.recent[self.recent.len().saturating_sub(WINDOW)..];
        let (zeros, history) = checkpoint.window.split_at(WINDOW - recent.len());
        let at = zeros.iter().position(|&b| b != 0).or_else(|| {
            history
                .iter()
                .zip(recent)
                .position(|(stated, actual)| stated != actual)
                .map(|at| zeros.len() + at)
        });
        if let Some(at) = at {
            let at = Uncompressed((checkpoint.output.0 + at as u64).saturating_sub(WINDOW as u64));
            differences.add(Difference::Window { span: SpanId(self.next as u32), at });
        }
    }

    fn close(&mut self) {
        self.hashes.extend(self.hasher.take().map(Hasher::finish));
    }

    /// Ends the layer. Returns the digest of each span's bytes, for the spans that the layer
    /// reached.
    pub(super) fn finish(mut self, differences: &mut Differences) -> Vec<Digest> {
        self.push(&[], &mut Hasher::new(Algorithm::Sha256), differences);
        self.hashes
    }
}
