//! The first half of indexing: decoding and the tar walk. The second half is [`LayerHashes`].

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::contents::{Contents, EntryPolicy, Listed};
use super::fine::{FineGzip, FineMade, FinePlain};
use super::format::format;
use super::hashes::{Hashed, LayerHashes, ScannedSpans, SpanStarts};
use super::lenient::Notes;
use super::model::NoZtoc;
use super::slices::{GzipSlices, KeepSpans, Slices};
use super::spans::{GzipSpans, PlainSpans};
use super::{BlobForm, BuiltZtoc, IndexedLayer, LayerError, LayerMap, LayerOptions, Outcome, Starts};
use super::{Unservable, UnservableCode, consumer, record};
use crate::budget::Charge;
use crate::codec::Used;
use crate::codec::gzip::{BlockStart, GzipReader, Sink};
use crate::codec::sniff::Format;
use crate::codec::stretch::{HandedOver, Stretch};
use crate::codec::zstd::ZstdReader;
use crate::digest::{Algorithm, Digest};
use crate::fine::{Codec, FineLayer, FineSpans, SPAN_SIZE, SpanParts};
use crate::offset::{Compressed, Uncompressed};
use crate::tar;
use crate::ztoc::{self, Checkpoints, MAX_ENCODED, VERSION, Ztoc};

/// With at least this many files, another thread saves more than it costs.
const MANY_FILES: usize = 4096;

/// Takes a layer's blob in chunks, decodes it and walks the tar. The findings for each chunk go to
/// a [`LayerHashes`] together with the chunk, on this or another thread.
pub(super) struct LayerScan {
    /// The least distance between two checkpoints, in bytes of the tar.
    span_size: u64,
    expected: Option<(Digest, u64)>,
    /// Bytes of the blob so far.
    size: u64,
    body: Body,
    /// What the body needs to start. None after the body took it.
    start: Option<Start>,
    failed: Option<LayerError>,
    /// The fault of a blob that ended before its format was known.
    failed_at_end: Option<LayerError>,
}

/// What the body of a blob starts with.
struct Start {
    purpose: Purpose,
    memory: Charge,
}

/// Why a layer is scanned.
enum Purpose {
    Publish {
        /// Whether to collect a fine document too.
        fine: bool,
    },
    Read {
        options: ReadOptions,
        /// Receives the digests of spans.
        hashed: Receiver<Digest>,
    },
}

/// Options for reading a layer locally, without publishing an index.
pub struct ReadOptions {
    /// The least distance between two checkpoints, in bytes of the tar; greater than 0.
    pub span_size: u64,
    /// The size of a span in bytes of the tar, for a layer that can only be decoded from its start.
    pub whole_span_size: u64,
    /// Receives the plain bytes of spans.
    pub keeper: Option<Box<dyn KeepSpans>>,
    /// Whether `keeper` also receives the spans of a plain tar.
    pub keeps_plain: bool,
}

/// A layer that was read here, with the map for reading parts of it later.
pub struct MappedLayer {
    /// The map by which to read it.
    pub map: LayerMap,
    /// Notes taken while reading.
    pub notes: Notes,
    /// The memory that the map takes.
    pub memory: Charge,
}

/// The result for a blob that was read to its end.
pub(super) struct Scanned {
    digest: Digest,
    size: u64,
    outcome: Result<Sound, Unservable>,
}

/// A valid layer with entries and spans.
struct Sound {
    listed: Listed,
    starts: Starts,
    span_digests: Vec<Digest>,
    /// The size of the blob in bytes.
    size: u64,
    /// The number of members in the blob; 0 if it is not gzip.
    gzip_members: u64,
    /// The data of the fine document, if it was requested.
    fine: Option<FineMade>,
}

/// The result of [`LayerScan::push_decoded`].
pub(super) struct Decoded {
    pub spans: ScannedSpans,
    /// Whether the bytes decoded in advance were usable.
    pub was_right: bool,
    /// A buffer to decode another stretch into.
    pub plain: Vec<u8>,
}

enum Body {
    /// Too few bytes to know the format.
    Unknown(Vec<u8>),
    Gzip(Box<GzipBody>),
    Plain(Box<PlainBody>),
    Zstd(Box<ZstdReader>, Box<WholeBody>),
    /// A format without ztocs: only digest and size are checked.
    Unread(Unservable),
    /// A format that cannot be read here.
    Failed(LayerError),
}

struct GzipBody {
    reader: GzipReader,
    sink: GzipSink,
}

struct GzipSink {
    contents: Contents,
    spans: GzipSpans,
    /// Present if a fine document is collected.
    fine: Option<FineGzip>,
    slices: Option<GzipSlices>,
}

struct PlainBody {
    contents: Contents,
    spans: PlainSpans,
    fine: Option<FinePlain>,
    /// If present, also hashes the spans.
    slices: Option<Slices>,
}

/// The tar of a blob that has no spans itself: spans are cut from the tar.
struct WholeBody {
    contents: Contents,
    span_size: u64,
    slices: Slices,
}

impl LayerScan {
    /// Both halves, for a blob whose index will be published. `expected` are its digest and its
    /// size in bytes, which are checked. Charges what is collected to `memory`.
    pub(super) fn to_publish(
        options: &LayerOptions,
        expected: Option<(Digest, u64)>,
        memory: Charge,
    ) -> (LayerScan, LayerHashes) {
        let LayerOptions { span_size, fine, .. } = *options;
        let for_fine = memory.budget().open();
        let (scan, hashes) = LayerScan::new(span_size, expected, Start { purpose: Purpose::Publish { fine }, memory });
        (scan, if fine { hashes.with_fine(for_fine) } else { hashes })
    }

    /// Whether a fine document is collected. Only valid before the first bytes.
    pub(super) fn is_fine(&self) -> bool {
        matches!(self.start, Some(Start { purpose: Purpose::Publish { fine: true }, .. }))
    }

    /// Both halves, for a blob that is only read locally.
    pub(super) fn to_read(options: ReadOptions, expected: (Digest, u64), memory: Charge) -> (LayerScan, LayerHashes) {
        let (listener, hashed) = channel();
        let (span_size, is_heard) = (options.span_size, options.keeper.is_some());
        let start = Start { purpose: Purpose::Read { options, hashed }, memory };
        let (scan, hashes) = LayerScan::new(span_size, Some(expected), start);
        (scan, if is_heard { hashes.heard_by(listener) } else { hashes })
    }

    fn new(span_size: u64, expected: Option<(Digest, u64)>, start: Start) -> (LayerScan, LayerHashes) {
        let algorithm = expected.map_or(Algorithm::Sha256, |(digest, _)| digest.algorithm());
        let (body, start) = (Body::Unknown(Vec::new()), Some(start));
        let scan = LayerScan { span_size, expected, size: 0, body, start, failed: None, failed_at_end: None };
        (scan, LayerHashes::new(algorithm))
    }

    /// Takes the next bytes of the blob. Chunk boundaries do not matter.
    ///
    /// # Errors
    /// If the layer is broken. Further calls fail the same way.
    pub(super) fn push(&mut self, chunk: &[u8]) -> Result<ScannedSpans, LayerError> {
        self.push_all(&[chunk])
    }

    /// Takes several chunks, which must be hashed together as well.
    ///
    /// # Errors
    /// As [`LayerScan::push`].
    pub(super) fn push_all<C: AsRef<[u8]>>(&mut self, chunks: &[C]) -> Result<ScannedSpans, LayerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let pushed = chunks.iter().try_for_each(|chunk| self.take(chunk.as_ref()));
        self.failed = pushed.as_ref().err().cloned();
        pushed.map(|()| self.body.spans(Compressed(self.size)))
    }

    /// Takes the next chunks of the blob, which were decoded to `stretch` in advance. The result is
    /// the same as if the chunks were pushed one after the other.
    ///
    /// # Errors
    /// As [`LayerScan::push`].
    pub(super) fn push_decoded<C: AsRef<[u8]>>(
        &mut self,
        chunks: &[C],
        stretch: Stretch,
    ) -> Result<Decoded, LayerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let size: usize = chunks.iter().map(|chunk| chunk.as_ref().len()).sum();
        // Whether a blob is reported as too long or as broken depends on what comes first. For
        // that, a blob that exceeds its size is scanned chunk by chunk.
        let HandedOver { mut taken, plain } = match &mut self.body {
            Body::Gzip(body) if self.expected.is_none_or(|(_, expected)| self.size + size as u64 <= expected) => {
                body.take_over(stretch)
            }
            _ => stretch.give_up(),
        };
        let was_right = taken > 0;
        self.size += taken as u64;
        let mut push = || {
            if was_right {
                self.body.check()?;
            }
            for chunk in chunks {
                let (before, rest) = chunk.as_ref().split_at(taken.min(chunk.as_ref().len()));
                taken -= before.len();
                if !rest.is_empty() {
                    self.take(rest)?;
                }
            }
            Ok(())
        };
        let pushed = push();
        self.failed = pushed.as_ref().err().cloned();
        pushed.map(|()| Decoded { spans: self.body.spans(Compressed(self.size)), was_right, plain })
    }

    fn take(&mut self, chunk: &[u8]) -> Result<(), LayerError> {
        self.size += chunk.len() as u64;
        if let Some((_, expected)) = self.expected
            && self.size > expected
        {
            return Err(LayerError::Size { expected, actual: self.size });
        }
        let Body::Unknown(head) = &mut self.body else { return self.body.push(chunk, Compressed(self.size)) };
        let taken = chunk.len().min(tar::BLOCK - head.len());
        head.extend_from_slice(&chunk[..taken]);
        if head.len() == tar::BLOCK {
            self.sniff()?;
            self.body.push(&chunk[taken..], Compressed(self.size))?;
        }
        Ok(())
    }

    /// Determines the format from the bytes so far.
    fn sniff(&mut self) -> Result<(), LayerError> {
        let Body::Unknown(head) = &mut self.body else { return Ok(()) };
        let head = std::mem::take(head);
        let Some(Start { purpose, memory }) = self.start.take() else { return Ok(()) };
        self.body = match purpose {
            Purpose::Publish { fine } => Body::to_publish(format(&head), self.span_size, fine, memory),
            Purpose::Read { options, hashed } => Body::to_read(format(&head), options, hashed, memory),
        };
        self.body.push(&head, Compressed(self.size))
    }

    /// Ends the blob and reports the spans in bytes that were undecided. Faults in a blob this
    /// short are reported by [`LayerScan::finish`], after the digest was checked.
    ///
    /// # Errors
    /// The error of [`LayerScan::push`] if the layer is broken.
    pub(super) fn end(&mut self) -> Result<ScannedSpans, LayerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.failed_at_end = self.sniff().err();
        if let Body::Gzip(body) = &mut self.body {
            body.reader.tell_used(&mut body.sink);
        }
        Ok(self.body.spans(Compressed(self.size)))
    }

    /// The result for the blob and its digests. Call it after [`LayerScan::end`].
    ///
    /// # Errors
    /// If the size or digest is not the expected one, or the blob is truncated.
    pub(super) fn finish(self, hashed: Hashed) -> Result<Scanned, LayerError> {
        if let Some((expected, expected_size)) = self.expected {
            if self.size != expected_size {
                return Err(LayerError::Size { expected: expected_size, actual: self.size });
            }
            if hashed.blob != expected {
                return Err(LayerError::Digest { expected, actual: hashed.blob });
            }
        }
        if let Some(error) = self.failed_at_end {
            return Err(error);
        }
        let Hashed { blob, spans, fine } = hashed;
        let fine = fine.transpose()?;
        let outcome = match self.body.finish(self.span_size, self.size, spans, fine) {
            Ok(sound) => Ok(sound),
            Err(NoZtoc::Unservable(unservable)) => Err(unservable),
            Err(NoZtoc::Broken(error)) => return Err(error),
        };
        Ok(Scanned { digest: blob, size: self.size, outcome })
    }
}

impl Body {
    fn to_publish(format: Format, span_size: u64, fine: bool, memory: Charge) -> Body {
        let compressed = match format {
            Format::Gzip => {
                let fine = fine.then(FineGzip::new);
                return Body::gzip(EntryPolicy::Strict, span_size, fine, None, memory);
            }
            Format::Plain => {
                let fine = fine.then(FinePlain::default);
                return Body::plain(EntryPolicy::Strict, span_size, fine, None, memory);
            }
            Format::Zstd => "zstd",
            Format::Foreign(name) => name,
        };
        Body::Unread(not_read_lazily(compressed))
    }

    fn to_read(format: Format, options: ReadOptions, hashed: Receiver<Digest>, memory: Charge) -> Body {
        let ReadOptions { span_size, whole_span_size, keeper, keeps_plain } = options;
        let policy = EntryPolicy::Lenient(Notes::default());
        match format {
            Format::Gzip => {
                let slices = keeper.map(|keeper| GzipSlices::new(Some(keeper), hashed));
                Body::gzip(policy, span_size, None, slices, memory)
            }
            Format::Plain => {
                let slices = keeper.filter(|_| keeps_plain).map(|keeper| Slices::new(span_size, Some(keeper)));
                Body::plain(policy, span_size, None, slices, memory)
            }
            Format::Zstd => {
                let (contents, slices) = (Contents::new(policy, memory), Slices::new(whole_span_size, keeper));
                let body = WholeBody { contents, span_size: whole_span_size, slices };
                match ZstdReader::new() {
                    Ok(reader) => Body::Zstd(Box::new(reader), Box::new(body)),
                    Err(error) => Body::Failed(error.into()),
                }
            }
            Format::Foreign(name) => Body::Failed(LayerError::Compression(name)),
        }
    }

    fn gzip(
        policy: EntryPolicy,
        span_size: u64,
        fine: Option<FineGzip>,
        slices: Option<GzipSlices>,
        memory: Charge,
    ) -> Body {
        let (contents, spans) = (Contents::new(policy, memory), GzipSpans::new(span_size));
        let sink = GzipSink { contents, spans, fine, slices };
        Body::Gzip(Box::new(GzipBody { reader: GzipReader::new(), sink }))
    }

    fn plain(
        policy: EntryPolicy,
        span_size: u64,
        fine: Option<FinePlain>,
        slices: Option<Slices>,
        memory: Charge,
    ) -> Body {
        let (contents, spans) = (Contents::new(policy, memory), PlainSpans::new(span_size));
        Body::Plain(Box::new(PlainBody { contents, spans, fine, slices }))
    }

    /// Takes the next bytes of the blob, up to its byte `end`.
    fn push(&mut self, chunk: &[u8], end: Compressed) -> Result<(), LayerError> {
        match self {
            Body::Unknown(_) | Body::Unread(_) => Ok(()),
            Body::Failed(error) => Err(error.clone()),
            Body::Gzip(body) => body.push(chunk),
            Body::Plain(body) => {
                body.contents.push(chunk);
                if let Some(slices) = &mut body.slices {
                    slices.push(chunk);
                }
                body.contents.check()
            }
            Body::Zstd(reader, body) => {
                body.contents.permit(end);
                reader.push(chunk, &mut |plain| body.push(plain))
            }
        }
    }

    /// Fails if the decoded bytes are not a tar.
    fn check(&self) -> Result<(), LayerError> {
        match self {
            Body::Unknown(_) | Body::Unread(_) => Ok(()),
            Body::Failed(error) => Err(error.clone()),
            Body::Gzip(body) => body.sink.contents.check(),
            Body::Plain(body) => body.contents.check(),
            Body::Zstd(_, body) => body.contents.check(),
        }
    }

    /// The spans that began since the last call. `end` is the number of bytes of the blob so far.
    fn spans(&mut self, end: Compressed) -> ScannedSpans {
        let found = match self {
            Body::Unknown(_) => SpanStarts::Undecided,
            Body::Unread(_) | Body::Failed(_) | Body::Zstd(..) => SpanStarts::Unwanted,
            Body::Gzip(body) if body.sink.contents.is_refused() => SpanStarts::Unwanted,
            Body::Gzip(body) => SpanStarts::Starts(body.sink.spans.starts()),
            Body::Plain(body) if body.contents.is_refused() || body.slices.is_some() => SpanStarts::Unwanted,
            Body::Plain(body) => SpanStarts::Starts(body.spans.starts(end)),
        };
        let fine = match self {
            Body::Gzip(body) => body.sink.fine.as_mut().map(FineGzip::notes),
            Body::Plain(body) => body.fine.as_mut().map(|fine| fine.notes(end)),
            _ => None,
        };
        ScannedSpans { found, fine: fine.unwrap_or_default() }
    }

    fn finish(
        self,
        span_size: u64,
        size: u64,
        span_digests: Vec<Digest>,
        fine: Option<FineMade>,
    ) -> Result<Sound, NoZtoc> {
        match self {
            // `sniff` has already replaced an unknown body.
            Body::Unknown(_) => Err(Unservable::new(UnservableCode::Empty, "the blob is empty").into()),
            Body::Unread(unservable) => Err(unservable.into()),
            Body::Failed(error) => Err(error.into()),
            Body::Gzip(body) => Ok(Sound { fine, ..body.finish(span_size, size, span_digests)? }),
            Body::Plain(body) => {
                let span_digests = body.slices.map_or(span_digests, Slices::finish);
                let starts = Starts::InBlob(Checkpoints::Uncompressed { span_size, size });
                Ok(Sound { listed: body.contents.finish()?, starts, span_digests, size, gzip_members: 0, fine })
            }
            Body::Zstd(reader, body) => {
                reader.finish()?;
                let WholeBody { contents, span_size, slices } = *body;
                let (listed, starts) = (contents.finish()?, Starts::Unpacked { span_size });
                Ok(Sound { listed, starts, span_digests: slices.finish(), size, gzip_members: 0, fine })
            }
        }
    }
}

impl WholeBody {
    fn push(&mut self, plain: &[u8]) -> Result<(), LayerError> {
        self.contents.push(plain);
        self.slices.push(plain);
        self.contents.check()
    }
}

impl GzipBody {
    fn push(&mut self, chunk: &[u8]) -> Result<(), LayerError> {
        self.reader.push(chunk, &mut self.sink)?;
        self.sink.settle();
        self.sink.contents.check()
    }

    fn take_over(&mut self, stretch: Stretch) -> HandedOver {
        let handed_over = stretch.hand_over(&mut self.reader, &mut self.sink);
        self.sink.settle();
        handed_over
    }

    fn finish(mut self, span_size: u64, size: u64, span_digests: Vec<Digest>) -> Result<Sound, NoZtoc> {
        let end = self.reader.finish()?;
        self.sink.settle();
        let trailing = end.trailing.map(|from| format!("non-gzip bytes follow its last member, from byte {from}"));
        if let Some(trailing) = &trailing {
            self.sink.contents.note(trailing.clone());
        }
        let is_strict = self.sink.contents.is_strict();
        let listed = self.sink.contents.finish()?;
        if let Some(reason) = trailing.filter(|_| is_strict) {
            return Err(Unservable::new(UnservableCode::TrailingBytes, reason).into());
        }
        let starts = Starts::InBlob(Checkpoints::Gzip { span_size, list: self.sink.spans.list });
        Ok(Sound { listed, starts, span_digests, size, gzip_members: end.members, fine: None })
    }
}

impl GzipSink {
    /// Between two calls of the decoder: frees memory that is no longer needed and hands over
    /// complete spans.
    fn settle(&mut self) {
        if self.contents.is_refused() {
            (self.spans, self.fine, self.slices) = (GzipSpans::new(0), None, None);
        }
        if let Some(slices) = &mut self.slices {
            slices.keep(&self.spans.list);
        }
    }
}

impl Sink for GzipSink {
    fn output(&mut self, bytes: &[u8]) {
        self.contents.push(bytes);
        if let Some(slices) = &mut self.slices {
            slices.push(bytes);
        }
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        /// A checkpoint and the digest of its span.
        const CHECKPOINT: usize = 33 << 10;
        if self.contents.is_refused() {
            return;
        }
        self.contents.permit(at.input);
        let before = self.spans.list.len();
        self.spans.block_start(at);
        if let Some(fine) = &mut self.fine {
            fine.block_start(at);
        }
        let spans = self.spans.list.len();
        if spans > before {
            self.contents.charge_checkpoint(CHECKPOINT);
        }
        if spans * CHECKPOINT > MAX_ENCODED {
            let reason = format!("its checkpoints would exceed {} MiB", MAX_ENCODED >> 20);
            self.contents.refuse(Unservable::new(UnservableCode::ZtocTooLarge, reason));
        }
    }

    fn wants_used(&mut self) -> bool {
        self.fine.as_mut().is_some_and(FineGzip::wants_used)
    }

    fn used(&mut self, used: &Used) {
        if let Some(fine) = &mut self.fine {
            fine.used(used);
        }
    }
}

impl Scanned {
    /// For publishing: a ztoc, if consumers could serve the layer from it.
    ///
    /// # Errors
    /// If it does not fit into memory.
    pub(super) fn publish(self, options: LayerOptions) -> Result<IndexedLayer, LayerError> {
        let built = self.outcome.map_err(NoZtoc::Unservable).and_then(|sound| sound.build(self.digest, options));
        let (outcome, fine) = match built {
            Ok((built, fine)) => (Outcome::Ztoc(built), fine),
            Err(NoZtoc::Unservable(unservable)) => (Outcome::Unservable(unservable), None),
            Err(NoZtoc::Broken(error)) => return Err(error),
        };
        Ok(IndexedLayer { digest: self.digest, size: self.size, outcome, fine })
    }

    /// For local reading.
    ///
    /// # Errors
    /// If the layer is too large.
    pub(super) fn map(self) -> Result<MappedLayer, LayerError> {
        // In local reading, a verdict can only mean that a limit was exceeded.
        let sound = self.outcome.map_err(|_| LayerError::TooLarge)?;
        let Sound { listed, starts, span_digests, size, .. } = sound;
        let Listed { files, sparse, notes, size: tar_size, memory, .. } = listed;
        let size = match starts {
            Starts::InBlob(_) | Starts::Fine(_) => size,
            Starts::Unpacked { .. } => tar_size,
        };
        let (size, tar_end) = (Compressed(size), Uncompressed(tar_size));
        let map = LayerMap { files, sparse, tar_end, size, starts, span_digests };
        if record::encoded_size_bound(&map) > MAX_ENCODED {
            return Err(LayerError::TooLarge);
        }
        Ok(MappedLayer { map, notes, memory })
    }
}

impl Sound {
    /// `digest` is the blob's.
    fn build(self, digest: Digest, options: LayerOptions) -> Result<(BuiltZtoc, Option<FineLayer>), NoZtoc> {
        /// The memory for judging an entry: its place in a tree.
        const JUDGED: usize = 96;
        let Sound { listed, starts, span_digests, size, gzip_members, fine } = self;
        let blob = digest;
        let Starts::InBlob(checkpoints) = starts else { return Err(not_read_lazily("zstd").into()) };
        let Listed { files, end: uncompressed_size, mut memory, .. } = listed;
        let compressed_size = Compressed(size);
        let form = match checkpoints {
            Checkpoints::Gzip { .. } => BlobForm::Gzip { members: Some(gzip_members) },
            Checkpoints::Uncompressed { .. } => BlobForm::Tar,
        };
        memory.grow((files.len() * JUDGED) as u64, || "the tree of its files".to_owned())?;
        let encoded = ztoc::encoded_size_bound(&files, &checkpoints);
        if encoded > MAX_ENCODED {
            let judged = consumer::layer(&files, &checkpoints, compressed_size, uncompressed_size);
            let reason = format!("its ztoc would exceed {} MiB", MAX_ENCODED >> 20);
            return Err(judged.err().unwrap_or_else(|| Unservable::new(UnservableCode::ZtocTooLarge, reason)).into());
        }
        memory.grow(encoded as u64, || format!("its ztoc of {encoded} bytes"))?;
        let mut ztoc = Ztoc {
            version: VERSION.into(),
            build_tool_identifier: options.build_tool_identifier.into_bytes().into(),
            compressed_size,
            uncompressed_size,
            files,
            checkpoints,
            span_digests,
        };
        let judge = || consumer::layer(&ztoc.files, &ztoc.checkpoints, compressed_size, uncompressed_size);
        let (spans, entries) = (ztoc.checkpoints.spans() as u32, ztoc.files.len());
        let mut files = Vec::new();
        let (bytes, digest) = if entries < MANY_FILES {
            judge()?;
            let bytes = ztoc::encode(&ztoc);
            let digest = Digest::sha256(&bytes);
            if fine.is_some() {
                files = ztoc.files;
            }
            (bytes, digest)
        } else {
            // For many files each of the two takes long, and the other threads are idle by now.
            let (judged, bytes) = beside(judge, || ztoc::encode(&ztoc));
            judged?;
            if fine.is_some() {
                files = std::mem::take(&mut ztoc.files);
            }
            let (_, digest) = beside(move || drop(ztoc), || Digest::sha256(&bytes));
            (bytes, digest)
        };
        let fine = match fine {
            // Their memory stays charged until here.
            Some(FineMade { starts, windows, memory: _charged }) => {
                let (codec, tar_end) = (codec(form), uncompressed_size);
                let parts = SpanParts { layer: blob, codec, blob_size: size, tar_end, span_size: SPAN_SIZE, starts };
                Some(FineLayer::of_groups(files, FineSpans::new(parts)?, windows)?)
            }
            None => None,
        };
        let (entries, uncompressed_size) = (entries as u64, uncompressed_size.0);
        Ok((BuiltZtoc { digest, bytes, spans, entries, uncompressed_size, form }, fine))
    }
}

/// The codec of a layer in this format.
fn codec(form: BlobForm) -> Codec {
    match form {
        BlobForm::Tar => Codec::Plain,
        BlobForm::Gzip { .. } => Codec::Gzip,
    }
}

fn not_read_lazily(compressed: &str) -> Unservable {
    let reason = format!("it is compressed with {compressed}, which consumers of SOCI indexes do not read lazily");
    Unservable::new(UnservableCode::Compression, reason)
}

/// Runs two functions at the same time.
fn beside<A: Send, B>(other: impl FnOnce() -> A + Send, this: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let other = scope.spawn(other);
        let this = this();
        (other.join().unwrap_or_else(|panic| resume_unwind(panic)), this)
    })
}
