//! The first half of indexing: decoding and the tar walk. The second half is [`LayerHashes`].

use std::panic::resume_unwind;
use std::thread;

use super::consumer;
use super::contents::Contents;
use super::hashes::{Found, Hashed, LayerHashes, Spans};
use super::spans::{GzipSpans, PlainSpans};
use super::{BuiltZtoc, IndexedLayer, LayerError, LayerOptions, Outcome, Unservable};
use crate::budget::Charge;
use crate::codec::gzip::{BlockStart, GzipReader, Sink};
use crate::codec::sniff::{self, Content};
use crate::codec::stretch::{HandedOver, Stretch};
use crate::digest::{Algorithm, Digest};
use crate::offset::{Compressed, Uncompressed};
use crate::tar;
use crate::ztoc::{self, Checkpoints, FileMetadata, MAX_ENCODED, VERSION, Ztoc};

/// From so many files on, starting a thread costs less than it saves.
const MANY_FILES: usize = 4096;

/// Takes a layer's blob in chunks, decodes it and walks the tar. What it says of each chunk goes with that chunk to a
/// [`LayerHashes`], on this thread or on another one.
pub struct LayerScan {
    options: LayerOptions,
    expected: Option<(Digest, u64)>,
    /// Bytes of the blob so far.
    size: u64,
    body: Body,
    /// None once the body has it.
    memory: Option<Charge>,
    failed: Option<LayerError>,
    /// What was wrong with a blob that ended before it was clear what it is.
    failed_at_end: Option<LayerError>,
}

/// What [`LayerScan::push_decoded`] did.
pub struct Decoded {
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
    /// Nothing that a ztoc could be made for: only digest and size are checked.
    Unread(Unservable),
}

struct GzipBody {
    reader: GzipReader,
    sink: GzipSink,
}

struct GzipSink {
    contents: Contents,
    spans: GzipSpans,
}

struct PlainBody {
    contents: Contents,
    spans: PlainSpans,
}

impl LayerScan {
    /// Both halves, for a blob of which digest and size in bytes may be known; if so, they are
    /// checked. `memory` grows with what is collected.
    pub fn new(options: LayerOptions, expected: Option<(Digest, u64)>, memory: Charge) -> (LayerScan, LayerHashes) {
        let algorithm = expected.map_or(Algorithm::Sha256, |(digest, _)| digest.algorithm());
        let body = Body::Unknown(Vec::new());
        let memory = Some(memory);
        let scan = LayerScan { options, expected, size: 0, body, memory, failed: None, failed_at_end: None };
        (scan, LayerHashes::new(algorithm))
    }

    /// The next bytes of the blob. Chunk borders carry no meaning.
    ///
    /// # Errors
    /// When the layer is broken; every further call fails the same way.
    pub fn push(&mut self, chunk: &[u8]) -> Result<Spans, LayerError> {
        self.push_all(&[chunk])
    }

    /// The same for several chunks, which are to be hashed at once too.
    ///
    /// # Errors
    /// As [`LayerScan::push`].
    pub fn push_all<C: AsRef<[u8]>>(&mut self, chunks: &[C]) -> Result<Spans, LayerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let pushed = chunks.iter().try_for_each(|chunk| self.take(chunk.as_ref()));
        self.failed = pushed.as_ref().err().cloned();
        pushed.map(|()| self.body.spans(Compressed(self.size)))
    }

    /// The next bytes of the blob, in chunks, which were decoded to `stretch` before this came to them: does the same as pushing
    /// the chunks one after the other.
    ///
    /// # Errors
    /// As [`LayerScan::push`].
    pub fn push_decoded<C: AsRef<[u8]>>(&mut self, chunks: &[C], stretch: Stretch) -> Result<Decoded, LayerError> {
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
        let Body::Unknown(head) = &mut self.body else { return self.body.push(chunk) };
        let taken = chunk.len().min(tar::BLOCK - head.len());
        head.extend_from_slice(&chunk[..taken]);
        if head.len() == tar::BLOCK {
            self.tell()?;
            self.body.push(&chunk[taken..])?;
        }
        Ok(())
    }

    /// Decides what the blob is by what there is of it.
    fn tell(&mut self) -> Result<(), LayerError> {
        let Body::Unknown(head) = &mut self.body else { return Ok(()) };
        let head = std::mem::take(head);
        let Some(memory) = self.memory.take() else { return Ok(()) };
        self.body = Body::told_by(&head, self.options.span_size, memory);
        self.body.push(&head)
    }

    /// The blob is at its end: what is to be said of bytes that were undecided. What is wrong with so short a blob is told by
    /// [`LayerScan::finish`], where the digest comes first.
    ///
    /// # Errors
    /// When the layer is broken, as [`LayerScan::push`] has said.
    pub fn end(&mut self) -> Result<Spans, LayerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.failed_at_end = self.tell().err();
        Ok(self.body.spans(Compressed(self.size)))
    }

    /// What came of the blob, after [`LayerScan::end`], with its digests.
    ///
    /// # Errors
    /// When size or digest are not the expected ones, or when the blob ends too soon.
    pub fn finish(self, hashed: Hashed) -> Result<IndexedLayer, LayerError> {
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
        let outcome = match self.body.finish(self.options, self.size, hashed.spans)? {
            Ok(built) => Outcome::Ztoc(built),
            Err(unservable) => Outcome::Unservable(unservable),
        };
        Ok(IndexedLayer { digest: hashed.blob, size: self.size, outcome })
    }
}

impl Body {
    /// Decides by the first block of a blob, or by all of it if it has less.
    fn told_by(head: &[u8], span_size: u64, memory: Charge) -> Body {
        let is_tar = head.first_chunk().is_some_and(tar::has_valid_checksum);
        match sniff::content(head) {
            Content::Gzip => Body::Gzip(Box::new(GzipBody {
                reader: GzipReader::new(),
                sink: GzipSink { contents: Contents::new(memory), spans: GzipSpans::new(span_size) },
            })),
            Content::Foreign(name) if !is_tar => {
                let reason =
                    format!("it is compressed with {name}, which consumers of SOCI indexes do not read lazily");
                Body::Unread(Unservable::new("compression", reason))
            }
            Content::Foreign(_) | Content::Plain => {
                Body::Plain(Box::new(PlainBody { contents: Contents::new(memory), spans: PlainSpans::new(span_size) }))
            }
        }
    }

    fn push(&mut self, chunk: &[u8]) -> Result<(), LayerError> {
        match self {
            Body::Unknown(_) | Body::Unread(_) => Ok(()),
            Body::Gzip(body) => body.push(chunk),
            Body::Plain(body) => {
                body.contents.push(chunk);
                body.contents.check()
            }
        }
    }

    /// Fails if what was decoded is no tar.
    fn check(&self) -> Result<(), LayerError> {
        match self {
            Body::Unknown(_) | Body::Unread(_) => Ok(()),
            Body::Gzip(body) => body.sink.contents.check(),
            Body::Plain(body) => body.contents.check(),
        }
    }

    /// The spans that began in what was pushed since this was asked last; the blob has come to `end`.
    fn spans(&mut self, end: Compressed) -> Spans {
        Spans(match self {
            Body::Unknown(_) => Found::Undecided,
            Body::Unread(_) => Found::Unwanted,
            Body::Gzip(body) if body.sink.contents.is_refused() => Found::Unwanted,
            Body::Gzip(body) => Found::Starts(body.sink.spans.starts()),
            Body::Plain(body) if body.contents.is_refused() => Found::Unwanted,
            Body::Plain(body) => Found::Starts(body.spans.starts(end)),
        })
    }

    fn finish(
        self,
        options: LayerOptions,
        size: u64,
        digests: Vec<Digest>,
    ) -> Result<Result<BuiltZtoc, Unservable>, LayerError> {
        match self {
            // `tell` has settled an unknown body before this.
            Body::Unknown(_) => Ok(Err(Unservable::new("empty", "the blob has no bytes"))),
            Body::Unread(unservable) => Ok(Err(unservable)),
            Body::Gzip(body) => body.finish(options, size, digests),
            Body::Plain(body) => {
                let (files, end, memory) = match body.contents.finish()? {
                    Ok(contents) => contents,
                    Err(unservable) => return Ok(Err(unservable)),
                };
                let checkpoints = Checkpoints::Uncompressed { span_size: options.span_size, size };
                build(options, files, checkpoints, digests, Compressed(size), end, 0, memory)
            }
        }
    }
}

impl GzipBody {
    fn push(&mut self, chunk: &[u8]) -> Result<(), LayerError> {
        self.reader.push(chunk, &mut self.sink)?;
        self.sink.give_memory_back();
        self.sink.contents.check()
    }

    fn take_over(&mut self, stretch: Stretch) -> HandedOver {
        let handed_over = stretch.hand_over(&mut self.reader, &mut self.sink);
        self.sink.give_memory_back();
        handed_over
    }

    fn finish(
        self,
        options: LayerOptions,
        size: u64,
        digests: Vec<Digest>,
    ) -> Result<Result<BuiltZtoc, Unservable>, LayerError> {
        let end = self.reader.finish()?;
        let (files, tar_end, memory) = match self.sink.contents.finish()? {
            Ok(contents) => contents,
            Err(unservable) => return Ok(Err(unservable)),
        };
        if let Some(from) = end.trailing {
            let reason = format!("bytes that are not gzip follow its last member, from byte {from} on");
            return Ok(Err(Unservable::new("trailing-bytes", reason)));
        }
        let checkpoints = Checkpoints::Gzip { span_size: options.span_size, list: self.sink.spans.list };
        build(options, files, checkpoints, digests, Compressed(size), tar_end, end.members, memory)
    }
}

impl GzipSink {
    fn give_memory_back(&mut self) {
        if self.contents.is_refused() {
            self.spans = GzipSpans::new(0);
        }
    }
}

impl Sink for GzipSink {
    fn output(&mut self, bytes: &[u8]) {
        self.contents.push(bytes);
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
        let spans = self.spans.list.len();
        if spans > before {
            self.contents.charge_checkpoint(CHECKPOINT);
        }
        if spans * CHECKPOINT > MAX_ENCODED {
            let reason = format!("its checkpoints would pass {} MiB", MAX_ENCODED >> 20);
            self.contents.refuse(Unservable::new("ztoc-too-large", reason));
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "each is a part of the ztoc, but for the charge")]
fn build(
    options: LayerOptions,
    files: Vec<FileMetadata>,
    checkpoints: Checkpoints,
    span_digests: Vec<Digest>,
    compressed_size: Compressed,
    uncompressed_size: Uncompressed,
    gzip_members: u64,
    mut memory: Charge,
) -> Result<Result<BuiltZtoc, Unservable>, LayerError> {
    /// What judging an entry takes: its place in a tree.
    const JUDGED: usize = 96;
    memory.grow((files.len() * JUDGED) as u64, || "the tree of its files".to_owned())?;
    let encoded = ztoc::encoded_size_bound(&files, &checkpoints);
    if encoded > MAX_ENCODED {
        let judged = consumer::layer(&files, &checkpoints, compressed_size, uncompressed_size);
        let reason = format!("its ztoc would pass {} MiB", MAX_ENCODED >> 20);
        return Ok(Err(judged.err().unwrap_or_else(|| Unservable::new("ztoc-too-large", reason))));
    }
    memory.grow(encoded as u64, || format!("its ztoc of {encoded} bytes"))?;
    let ztoc = Ztoc {
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
    let (bytes, digest) = if entries < MANY_FILES {
        if let Err(unservable) = judge() {
            return Ok(Err(unservable));
        }
        let bytes = ztoc::encode(&ztoc);
        let digest = Digest::sha256(&bytes);
        (bytes, digest)
    } else {
        // Each of these takes long then, and other threads have nothing to do any more.
        let (judged, bytes) = beside(judge, || ztoc::encode(&ztoc));
        if let Err(unservable) = judged {
            return Ok(Err(unservable));
        }
        let (_, digest) = beside(move || drop(ztoc), || Digest::sha256(&bytes));
        (bytes, digest)
    };
    let (entries, uncompressed_size) = (entries as u64, uncompressed_size.0);
    Ok(Ok(BuiltZtoc { digest, bytes, spans, entries, uncompressed_size, gzip_members }))
}

/// Does two things at once.
fn beside<A: Send, B>(other: impl FnOnce() -> A + Send, this: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let other = scope.spawn(other);
        let this = this();
        (other.join().unwrap_or_else(|panic| resume_unwind(panic)), this)
    })
}
