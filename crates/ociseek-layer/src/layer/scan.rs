//! The first half of indexing: decoding and the tar walk. The second half is [`LayerHashes`].

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::contents::{Contents, Listed, Policy};
use super::fine::{FineGzip, FineMade, FinePlain};
use super::format::format;
use super::hashes::{Found, Hashed, LayerHashes, Spans};
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

/// From so many files on, starting a thread costs less than it saves.
const MANY_FILES: usize = 4096;

/// Takes a layer's blob in chunks, decodes it and walks the tar. What it says of each chunk goes with that chunk to a
/// [`LayerHashes`], on this thread or on another one.
pub(super) struct LayerScan {
    /// Bytes of tar between two checkpoints, at least.
    span_size: u64,
    expected: Option<(Digest, u64)>,
    /// Bytes of the blob so far.
    size: u64,
    body: Body,
    /// None once the body has it.
    start: Option<Start>,
    failed: Option<LayerError>,
    /// What was wrong with a blob that ended before it was clear what it is.
    failed_at_end: Option<LayerError>,
}

/// What the body of a blob begins with.
struct Start {
    purpose: Purpose,
    memory: Charge,
}

/// What a layer is scanned for.
enum Purpose {
    Publish {
        /// Also by a fine document.
        fine: bool,
    },
    Read {
        options: ReadOptions,
        /// The digests of spans.
        hashed: Receiver<Digest>,
    },
}

/// How a layer is read that is not to be published.
pub struct ReadOptions {
    /// Bytes of tar between two checkpoints, at least; greater than 0.
    pub span_size: u64,
    /// Bytes of tar in a span of a layer that can only be decoded from its start.
    pub whole_span_size: u64,
    /// Gets the plain bytes of spans.
    pub keeper: Option<Box<dyn KeepSpans>>,
    /// Also those of a layer that is a plain tar.
    pub keeps_plain: bool,
}

/// A layer that was read here, so that it can be read again by parts.
pub struct MappedLayer {
    /// What it can be read by.
    pub map: LayerMap,
    /// What was found out on the way.
    pub notes: Notes,
    /// What the map takes.
    pub memory: Charge,
}

/// A blob that was read to its end.
pub(super) struct Scanned {
    digest: Digest,
    size: u64,
    outcome: Result<Sound, Unservable>,
}

/// A layer that has entries and spans.
struct Sound {
    listed: Listed,
    starts: Starts,
    span_digests: Vec<Digest>,
    /// Of the blob.
    size: u64,
    /// Of the blob; 0 if it is not gzip.
    gzip_members: u64,
    /// If there is to be a fine document.
    fine: Option<FineMade>,
}

/// What [`LayerScan::push_decoded`] did.
pub(super) struct Decoded {
    pub spans: Spans,
    /// What was decoded before was of use.
    pub was_right: bool,
    /// To decode another stretch into.
    pub plain: Vec<u8>,
}

enum Body {
    /// Too few bytes yet to say what the blob is.
    Unknown(Vec<u8>),
    Gzip(Box<GzipBody>),
    Plain(Box<PlainBody>),
    Zstd(Box<ZstdReader>, Box<WholeBody>),
    /// Nothing that a ztoc could be made for: only digest and size are checked.
    Unread(Unservable),
    /// Nothing that is read here.
    Failed(LayerError),
}

struct GzipBody {
    reader: GzipReader,
    sink: GzipSink,
}

struct GzipSink {
    contents: Contents,
    spans: GzipSpans,
    /// If there is to be a fine document.
    fine: Option<FineGzip>,
    slices: Option<GzipSlices>,
}

struct PlainBody {
    contents: Contents,
    spans: PlainSpans,
    fine: Option<FinePlain>,
    /// Hashes the spans too, if there is one.
    slices: Option<Slices>,
}

/// The tar of a blob of which only the tar has spans.
struct WholeBody {
    contents: Contents,
    span_size: u64,
    slices: Slices,
}

impl LayerScan {
    /// Both halves, for a blob that is to be published. Its digest and its size in bytes may be
    /// known; if so, they are checked. `memory` grows with what is collected.
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

    /// Whether the half that hashes is told of a fine document. Only before the first bytes.
    pub(super) fn is_fine(&self) -> bool {
        matches!(self.start, Some(Start { purpose: Purpose::Publish { fine: true }, .. }))
    }

    /// Both halves, for a blob that is only read here.
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

    /// The next bytes of the blob. Chunk borders carry no meaning.
    ///
    /// # Errors
    /// When the layer is broken; every further call fails the same way.
    pub(super) fn push(&mut self, chunk: &[u8]) -> Result<Spans, LayerError> {
        self.push_all(&[chunk])
    }

    /// The same for several chunks, which are to be hashed at once too.
    ///
    /// # Errors
    /// As [`LayerScan::push`].
    pub(super) fn push_all<C: AsRef<[u8]>>(&mut self, chunks: &[C]) -> Result<Spans, LayerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let pushed = chunks.iter().try_for_each(|chunk| self.take(chunk.as_ref()));
        self.failed = pushed.as_ref().err().cloned();
        pushed.map(|()| self.body.spans(Compressed(self.size)))
    }

    /// The next bytes of the blob, in chunks, which were decoded to `stretch` before this came to
    /// them: does the same as pushing the chunks one after the other.
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
        // A blob that is too long is told from one that is broken by what comes first: then it goes on chunk by chunk.
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

    /// Decides what the blob is by what there is of it.
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

    /// The blob is at its end: what is to be said of bytes that were undecided. What is wrong with
    /// so short a blob is told by [`LayerScan::finish`], where the digest comes first.
    ///
    /// # Errors
    /// When the layer is broken, as [`LayerScan::push`] has said.
    pub(super) fn end(&mut self) -> Result<Spans, LayerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.failed_at_end = self.sniff().err();
        if let Body::Gzip(body) = &mut self.body {
            body.reader.tell_used(&mut body.sink);
        }
        Ok(self.body.spans(Compressed(self.size)))
    }

    /// What came of the blob, after [`LayerScan::end`], with its digests.
    ///
    /// # Errors
    /// When size or digest are not the expected ones, or when the blob ends too soon.
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
                return Body::gzip(Policy::Strict, span_size, fine, None, memory);
            }
            Format::Plain => {
                let fine = fine.then(FinePlain::default);
                return Body::plain(Policy::Strict, span_size, fine, None, memory);
            }
            Format::Zstd => "zstd",
            Format::Foreign(name) => name,
        };
        Body::Unread(not_read_lazily(compressed))
    }

    fn to_read(format: Format, options: ReadOptions, hashed: Receiver<Digest>, memory: Charge) -> Body {
        let ReadOptions { span_size, whole_span_size, keeper, keeps_plain } = options;
        let policy = Policy::Lenient(Notes::default());
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
        policy: Policy,
        span_size: u64,
        fine: Option<FineGzip>,
        slices: Option<GzipSlices>,
        memory: Charge,
    ) -> Body {
        let (contents, spans) = (Contents::new(policy, memory), GzipSpans::new(span_size));
        let sink = GzipSink { contents, spans, fine, slices };
        Body::Gzip(Box::new(GzipBody { reader: GzipReader::new(), sink }))
    }

    fn plain(policy: Policy, span_size: u64, fine: Option<FinePlain>, slices: Option<Slices>, memory: Charge) -> Body {
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

    /// The spans that began in what was pushed since this was asked last; the blob has come to `end`.
    fn spans(&mut self, end: Compressed) -> Spans {
        let found = match self {
            Body::Unknown(_) => Found::Undecided,
            Body::Unread(_) | Body::Failed(_) | Body::Zstd(..) => Found::Unwanted,
            Body::Gzip(body) if body.sink.contents.is_refused() => Found::Unwanted,
            Body::Gzip(body) => Found::Starts(body.sink.spans.starts()),
            Body::Plain(body) if body.contents.is_refused() || body.slices.is_some() => Found::Unwanted,
            Body::Plain(body) => Found::Starts(body.spans.starts(end)),
        };
        let fine = match self {
            Body::Gzip(body) => body.sink.fine.as_mut().map(FineGzip::notes),
            Body::Plain(body) => body.fine.as_mut().map(|fine| fine.notes(end)),
            _ => None,
        };
        Spans { found, fine: fine.unwrap_or_default() }
    }

    fn finish(
        self,
        span_size: u64,
        size: u64,
        span_digests: Vec<Digest>,
        fine: Option<FineMade>,
    ) -> Result<Sound, NoZtoc> {
        match self {
            // `sniff` has settled an unknown body before this.
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
    /// Between two calls of the decoder: gives back the memory that is of no more use, and hands
    /// over spans that are complete.
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
    /// For others: a ztoc, if they can be served from it.
    ///
    /// # Errors
    /// When it does not fit into memory.
    pub(super) fn publish(self, options: LayerOptions) -> Result<IndexedLayer, LayerError> {
        let built = self.outcome.map_err(NoZtoc::Unservable).and_then(|sound| sound.build(self.digest, options));
        let (outcome, fine) = match built {
            Ok((built, fine)) => (Outcome::Ztoc(built), fine),
            Err(NoZtoc::Unservable(unservable)) => (Outcome::Unservable(unservable), None),
            Err(NoZtoc::Broken(error)) => return Err(error),
        };
        Ok(IndexedLayer { digest: self.digest, size: self.size, outcome, fine })
    }

    /// For ourselves.
    ///
    /// # Errors
    /// When it is too large.
    pub(super) fn map(self) -> Result<MappedLayer, LayerError> {
        // What is only read here has a verdict for no other reason.
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
    /// `digest` is that of the blob.
    fn build(self, digest: Digest, options: LayerOptions) -> Result<(BuiltZtoc, Option<FineLayer>), NoZtoc> {
        /// What judging an entry takes: its place in a tree.
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
            // Each of these takes long then, and other threads have nothing to do any more.
            let (judged, bytes) = beside(judge, || ztoc::encode(&ztoc));
            judged?;
            if fine.is_some() {
                files = std::mem::take(&mut ztoc.files);
            }
            let (_, digest) = beside(move || drop(ztoc), || Digest::sha256(&bytes));
            (bytes, digest)
        };
        let fine = match fine {
            // Their memory is charged until here.
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

/// How a layer of this form is compressed.
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

/// Does two things at once.
fn beside<A: Send, B>(other: impl FnOnce() -> A + Send, this: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let other = scope.spawn(other);
        let this = this();
        (other.join().unwrap_or_else(|panic| resume_unwind(panic)), this)
    })
}
