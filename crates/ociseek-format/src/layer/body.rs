//! What is done with the bytes of a layer's blob, by its format.

use std::sync::mpsc::Receiver;

use super::contents::{Contents, EntryPolicy, Notes};
use super::fine::{FineGzip, FineParts, FinePlain, FineZstd, ZstdPlan};
use super::hashes::{ScannedSpans, SpanStarts};
use super::model::{NoZtoc, ReadOptions, not_read_lazily};
use super::scan_result::ValidLayer;
use super::slices::{GzipSlices, GzipSpans, PlainSpans, Slices};
use super::{LayerError, Starts, UnservableCode, UnservableReason};
use crate::budget::Charge;
use crate::codec::gzip::{BlockStart, GzipReader, Sink};
use crate::codec::inflate::BackReference;
use crate::codec::sniff::Format;
use crate::codec::stretch::{Handover, Stretch};
use crate::codec::zstd::{ZstdOutput, ZstdReader};
use crate::digest::Digest;
use crate::offset::{Compressed, SpanSize, Uncompressed};
use crate::ztoc::{Checkpoints, MAX_ENCODED};

/// What reads the blob.
pub(super) enum LayerBody {
    /// Too few bytes to know the format.
    Unknown(Vec<u8>),
    Gzip(Box<GzipBody>),
    Plain(Box<PlainBody>),
    Zstd(Box<ZstdReader>, Box<WholeBody>),
    /// Zstd, for which only a fine document is made.
    FineZstd(Box<ZstdBody>),
    /// A format without ztocs: only digest and size are checked.
    Unread(UnservableReason),
    /// A format that cannot be read here.
    Failed(LayerError),
}

pub(super) struct GzipBody {
    pub reader: GzipReader,
    pub sink: GzipSink,
}

pub(super) struct GzipSink {
    contents: Contents,
    spans: GzipSpans,
    /// Present if a fine document is collected.
    fine: Option<FineGzip>,
    slices: Option<GzipSlices>,
}

pub(super) struct PlainBody {
    contents: Contents,
    spans: PlainSpans,
    fine: Option<FinePlain>,
    /// If present, also hashes the spans.
    slices: Option<Slices>,
}

pub(super) struct ZstdBody {
    reader: ZstdReader,
    output: ZstdContents,
    /// The plan of the bytes that are decoded next.
    plan: Option<ZstdPlan>,
}

/// What a blob of zstd decodes to.
struct ZstdContents {
    contents: Contents,
    fine: FineZstd,
}

/// The tar of a blob that has no spans itself: spans are cut from the tar.
pub(super) struct WholeBody {
    contents: Contents,
    span_size: SpanSize,
    slices: Slices,
}

impl LayerBody {
    pub(super) fn to_publish(
        format: Format,
        span_size: SpanSize,
        fine: bool,
        memory: Charge,
    ) -> LayerBody {
        match format {
            Format::Gzip => {
                let fine = fine.then(FineGzip::new);
                LayerBody::gzip(EntryPolicy::Strict, span_size, fine, None, memory)
            }
            Format::Plain => {
                let fine = fine.then(FinePlain::default);
                LayerBody::plain(EntryPolicy::Strict, span_size, fine, None, memory)
            }
            Format::Zstd if fine => {
                let fine = FineZstd::new();
                match ZstdReader::new() {
                    Ok(reader) => {
                        let output = ZstdContents {
                            contents: Contents::new(EntryPolicy::Strict, memory),
                            fine,
                        };
                        LayerBody::FineZstd(Box::new(ZstdBody { reader, output, plan: None }))
                    }
                    Err(error) => LayerBody::Failed(error.into()),
                }
            }
            Format::Zstd | Format::Foreign(_) => LayerBody::Unread(not_read_lazily(format)),
        }
    }

    pub(super) fn to_read(
        format: Format,
        options: ReadOptions,
        hashed: Receiver<Digest>,
        memory: Charge,
    ) -> LayerBody {
        let ReadOptions { span_size, whole_span_size, keeper, keeps_plain } = options;
        let policy = EntryPolicy::Lenient(Notes::default());
        match format {
            Format::Gzip => {
                let slices = keeper.map(|keeper| GzipSlices::new(Some(keeper), hashed));
                LayerBody::gzip(policy, span_size, None, slices, memory)
            }
            Format::Plain => {
                let slices = keeper
                    .filter(|_| keeps_plain)
                    .map(|keeper| Slices::new(span_size.get(), Some(keeper)));
                LayerBody::plain(policy, span_size, None, slices, memory)
            }
            Format::Zstd => {
                let contents = Contents::new(policy, memory);
                let slices = Slices::new(whole_span_size.get(), keeper);
                let body = WholeBody { contents, span_size: whole_span_size, slices };
                match ZstdReader::new() {
                    Ok(reader) => LayerBody::Zstd(Box::new(reader), Box::new(body)),
                    Err(error) => LayerBody::Failed(error.into()),
                }
            }
            Format::Foreign(name) => LayerBody::Failed(LayerError::Compression(name)),
        }
    }

    fn gzip(
        policy: EntryPolicy,
        span_size: SpanSize,
        fine: Option<FineGzip>,
        slices: Option<GzipSlices>,
        memory: Charge,
    ) -> LayerBody {
        let contents = Contents::new(policy, memory);
        let spans = GzipSpans::new(span_size);
        let sink = GzipSink { contents, spans, fine, slices };
        LayerBody::Gzip(Box::new(GzipBody { reader: GzipReader::new(), sink }))
    }

    fn plain(
        policy: EntryPolicy,
        span_size: SpanSize,
        fine: Option<FinePlain>,
        slices: Option<Slices>,
        memory: Charge,
    ) -> LayerBody {
        let contents = Contents::new(policy, memory);
        let spans = PlainSpans::new(span_size);
        LayerBody::Plain(Box::new(PlainBody { contents, spans, fine, slices }))
    }

    /// Takes the next bytes of the blob, up to its byte `end`.
    pub(super) fn push(&mut self, chunk: &[u8], end: Compressed) -> Result<(), LayerError> {
        match self {
            LayerBody::Unknown(_) | LayerBody::Unread(_) => Ok(()),
            LayerBody::Failed(error) => Err(error.clone()),
            LayerBody::Gzip(body) => body.push(chunk),
            LayerBody::Plain(body) => {
                body.contents.push(chunk);
                if let Some(slices) = &mut body.slices {
                    slices.push(chunk);
                }
                body.contents.check()
            }
            LayerBody::Zstd(reader, body) => {
                body.contents.permit(end);
                reader.push(chunk, &mut |plain| body.push(plain))
            }
            LayerBody::FineZstd(body) => {
                body.output.contents.permit(end);
                body.reader.push_into(chunk, &mut body.output)
            }
        }
    }

    /// Fails if the decoded bytes are not a tar.
    pub(super) fn check(&self) -> Result<(), LayerError> {
        match self {
            LayerBody::Unknown(_) | LayerBody::Unread(_) => Ok(()),
            LayerBody::Failed(error) => Err(error.clone()),
            LayerBody::Gzip(body) => body.sink.contents.check(),
            LayerBody::Plain(body) => body.contents.check(),
            LayerBody::Zstd(_, body) => body.contents.check(),
            LayerBody::FineZstd(body) => body.output.contents.check(),
        }
    }

    /// Takes the plan of the bytes that are pushed next.
    pub(super) fn expect(&mut self, plan: ZstdPlan) {
        if let LayerBody::FineZstd(body) = self {
            body.expect(plan);
        }
    }

    /// Call this after the bytes that a plan is for.
    ///
    /// # Errors
    /// If they are not what the plan says.
    pub(super) fn end_plan(&mut self) -> Result<(), LayerError> {
        match self {
            LayerBody::FineZstd(body) => body.end_plan(),
            _ => Ok(()),
        }
    }

    /// Ends the blob. [`LayerBody::spans`] must follow.
    pub(super) fn end(&mut self) {
        if let LayerBody::Gzip(body) = self {
            body.sink.fine.iter_mut().for_each(FineGzip::end);
        }
    }

    /// The spans that began since the last call. `end` is the number of bytes of the blob so far.
    pub(super) fn spans(&mut self, end: Compressed) -> ScannedSpans {
        let starts = match self {
            LayerBody::Unknown(_) => SpanStarts::Undecided,
            LayerBody::Unread(_) | LayerBody::Failed(_) | LayerBody::Zstd(..) => {
                SpanStarts::Unwanted
            }
            LayerBody::FineZstd(body) if body.output.contents.is_refused() => SpanStarts::Unwanted,
            LayerBody::FineZstd(_) => SpanStarts::Unhashed,
            LayerBody::Gzip(body) if body.sink.contents.is_refused() => SpanStarts::Unwanted,
            LayerBody::Gzip(body) => SpanStarts::Starts(body.sink.spans.starts()),
            LayerBody::Plain(body) if body.contents.is_refused() || body.slices.is_some() => {
                SpanStarts::Unwanted
            }
            LayerBody::Plain(body) => SpanStarts::Starts(body.spans.starts(end)),
        };
        let fine = match self {
            LayerBody::Gzip(body) => body.sink.fine.as_mut().map(FineGzip::notes),
            LayerBody::Plain(body) => body.fine.as_mut().map(|fine| fine.notes(end)),
            LayerBody::FineZstd(body) => Some(body.output.fine.notes()),
            _ => None,
        };
        ScannedSpans { starts, fine: fine.unwrap_or_default() }
    }

    pub(super) fn finish(
        self,
        span_size: SpanSize,
        size: u64,
        span_digests: Vec<Digest>,
        fine: Option<FineParts>,
    ) -> Result<ValidLayer, NoZtoc> {
        match self {
            // `sniff` has already replaced an unknown body.
            LayerBody::Unknown(_) => {
                Err(UnservableReason::new(UnservableCode::Empty, "the blob is empty").into())
            }
            LayerBody::Unread(unservable) => Err(unservable.into()),
            LayerBody::Failed(error) => Err(error.into()),
            LayerBody::Gzip(body) => {
                Ok(ValidLayer { fine, ..body.finish(span_size, size, span_digests)? })
            }
            LayerBody::Plain(body) => {
                let span_digests = body.slices.map_or(span_digests, Slices::finish);
                let starts = Starts::InBlob(Checkpoints::Uncompressed { span_size, size });
                Ok(ValidLayer {
                    listed: body.contents.finish()?,
                    starts,
                    span_digests,
                    size,
                    gzip_members: 0,
                    fine,
                })
            }
            LayerBody::Zstd(reader, body) => {
                reader.finish()?;
                let WholeBody { contents, span_size, slices } = *body;
                let listed = contents.finish()?;
                let starts = Starts::Unpacked { span_size };
                Ok(ValidLayer {
                    listed,
                    starts,
                    span_digests: slices.finish(),
                    size,
                    gzip_members: 0,
                    fine,
                })
            }
            LayerBody::FineZstd(body) => {
                body.reader.finish()?;
                let listed = body.output.contents.finish()?;
                let starts = Starts::Unpacked { span_size };
                Ok(ValidLayer { listed, starts, span_digests, size, gzip_members: 0, fine })
            }
        }
    }
}

impl ZstdBody {
    fn expect(&mut self, mut plan: ZstdPlan) {
        self.output.fine.expect(&mut plan);
        self.plan = Some(plan);
    }

    fn end_plan(&mut self) -> Result<(), LayerError> {
        let Some(plan) = self.plan.take() else { return Ok(()) };
        // Windows may end with the blob.
        self.output.pass();
        self.output.fine.check(&plan)
    }
}

impl ZstdContents {
    /// Takes what is known of the output so far. A layer whose fine document would be too large is
    /// valid, but has none.
    fn pass(&mut self) {
        if self.contents.is_refused() {
            self.fine.give_up();
        }
        if let Err(error) = self.fine.pass() {
            self.fine.give_up();
            self.contents
                .refuse(UnservableReason::new(UnservableCode::SpanTooLarge, error.to_string()));
        }
    }
}

impl ZstdOutput<LayerError> for ZstdContents {
    fn room(&mut self) -> Result<&mut [u8], LayerError> {
        Ok(self.fine.room())
    }

    fn written(&mut self, size: usize) -> Result<(), LayerError> {
        self.contents.push(self.fine.take(size));
        self.pass();
        self.contents.check()
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

    pub(super) fn take_over(&mut self, stretch: Stretch) -> Handover {
        let handed_over = stretch.hand_over(&mut self.reader, &mut self.sink);
        self.sink.settle();
        handed_over
    }

    fn finish(
        mut self,
        span_size: SpanSize,
        size: u64,
        span_digests: Vec<Digest>,
    ) -> Result<ValidLayer, NoZtoc> {
        let end = self.reader.finish()?;
        self.sink.settle();
        let trailing = end
            .trailing
            .map(|from| format!("non-gzip bytes follow its last member, from byte {from}"));
        if let Some(trailing) = &trailing {
            self.sink.contents.note(trailing.clone());
        }
        let is_strict = self.sink.contents.is_strict();
        let listed = self.sink.contents.finish()?;
        if let Some(reason) = trailing.filter(|_| is_strict) {
            return Err(UnservableReason::new(UnservableCode::TrailingBytes, reason).into());
        }
        let starts = Starts::InBlob(Checkpoints::Gzip { span_size, list: self.sink.spans.list });
        Ok(ValidLayer { listed, starts, span_digests, size, gzip_members: end.members, fine: None })
    }
}

impl GzipSink {
    /// Frees memory that is no longer needed, and hands over the spans that are complete. Called
    /// between two calls of the decoder.
    fn settle(&mut self) {
        if self.contents.is_refused() {
            (self.spans, self.fine, self.slices) = (GzipSpans::new(SpanSize::DEFAULT), None, None);
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
            self.contents.refuse(UnservableReason::new(UnservableCode::ZtocTooLarge, reason));
        }
    }

    fn wants_references(&self) -> bool {
        self.fine.as_ref().is_some_and(FineGzip::wants_references)
    }

    fn references(&mut self, base: Uncompressed, references: &[BackReference]) {
        if let Some(fine) = &mut self.fine {
            fine.references(base, references);
        }
    }
}
