//! Layers that are read in another way than from the checkpoints of their index.
//!
//! Some can only be decoded from the start. Spans that are no longer in the cache on disk are
//! decoded again from the start of the layer. If the cache has room for the whole layer, it
//! receives all missing spans; otherwise decoding stops after the last span that is waited for.
//!
//! Of others, the fine document turns out to be damaged after they were opened. They are opened
//! again without it, and read in that other way from then on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::ReadError;
use super::budget::ReadBudget;
use super::fetch::Disk;
use super::in_flight::SpanRequest;
use super::inner::{Layer, LayerHandle};
use super::pieces::PieceSink;
use crate::layers::OpenError;
use ociseek_format::codec::ZstdReader;
use ociseek_format::digest::Hasher;
use ociseek_format::layer::span::SpanError;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_format::progress::causes;
use ociseek_store::feed::{Batches, FeedAborted, FeedError, feed};
use ociseek_store::lock::Hold;

/// The remaining spans in order, shared by the thread that decodes them and the task that reports
/// why they did not arrive.
type Queue = Arc<Mutex<VecDeque<SpanRequest>>>;

impl LayerHandle {
    /// Fetches spans of a layer that is decoded from its start. `spans` must be in
    /// order. Afterwards it continues for the cache, as long as that accepts spans.
    pub(super) async fn unpack(&self, spans: Vec<SpanRequest>, disk: Disk) {
        let LayerHandle { inner, layer, .. } = self;
        let _alone = layer.unpacking.lock().await;
        // The task before us has left all spans there.
        let spans = match disk {
            Disk::Ask => self.not_on_disk(spans).await,
            Disk::Skip => spans,
        };
        if spans.is_empty() {
            return;
        }
        let digest = layer.digest();
        let queue: Queue = Arc::new(Mutex::new(spans.into()));
        let mut fed = self.unpack_once(&queue, 1).await;
        let is_awaited = || !queue.hold().is_empty();
        let is_damage = matches!(&fed, Err(FeedError::Work(error)) if error.is_damage());
        if is_damage && inner.source.is_remote() && is_awaited() {
            // It may have been damaged on the way. The correct spans were taken from the queue.
            inner.counts.retries.add(1);
            fed = self.unpack_once(&queue, 2).await;
        }
        let error = match fed {
            Err(FeedError::Work(error)) => error,
            Err(FeedError::Store(source)) => OpenError::Read { layer: digest, read: 0, source },
            Ok(()) | Err(FeedError::Lost) => OpenError::Ending { layer: digest },
        };
        let source = Arc::new(error);
        let left = std::mem::take(&mut *queue.hold());
        for wanted in left {
            let span = wanted.promise.span();
            wanted.promise.complete(Err(ReadError::Unpack {
                layer: digest,
                span,
                source: Arc::clone(&source),
            }));
        }
    }

    /// Reads the layer for the first or second time, which is past caches.
    async fn unpack_once(&self, queue: &Queue, reads: u32) -> Result<(), FeedError<OpenError>> {
        let counts = &self.inner.counts;
        counts.requests.add(1);
        let blob = self.inner.source.blob(&self.layer.open.descriptor, reads > 1).await?;
        let handle = self.clone();
        let queue = Arc::clone(queue);
        let on_chunk = |bytes| counts.bytes_fetched.add(bytes);
        feed(blob, 1, on_chunk, move |batches| run(&handle, &queue, batches, reads)).await
    }

    /// Whether the whole layer is kept. Reports once if the cache is too small for it.
    fn fills_cache(&self) -> bool {
        let fits = self.keeps_whole();
        if !fits && self.inner.cache.is_enabled() {
            let digest = self.layer.digest();
            let size = self.layer.end();
            self.inner.warn(format!(
                "layer {digest} is zstd and has {size} bytes when decoded, more than the cache keeps of it: \
                 it is fetched again, from its start, for what the cache lacks"
            ));
        }
        fits
    }
}

/// The thread's function.
fn run(
    handle: &LayerHandle,
    queue: &Queue,
    mut batches: Batches,
    reads: u32,
) -> Result<(), OpenError> {
    let layer = handle.layer.digest();
    let broken = |source| OpenError::Zstd { layer, reads, source };
    let mut reader = ZstdReader::new().map_err(broken)?;
    let mut spans =
        Spans { handle, queue, next: SpanId(0), current: None, fills: handle.fills_cache() };
    while let Some(batch) = batches.receive().map_err(|FeedAborted| OpenError::Ending { layer })? {
        for chunk in batch {
            match reader.push(&chunk, &mut |plain| spans.push(plain)) {
                Ok(()) => {}
                Err(Stop::Enough) => return Ok(()),
                Err(Stop::Broken(source)) => return Err(broken(source)),
                Err(Stop::Span(source)) => return Err(OpenError::Spans { layer, source }),
            }
        }
    }
    reader.finish().map_err(broken)
}

enum Stop {
    Enough,
    Broken(std::io::Error),
    Span(SpanError),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Broken(error)
    }
}

/// Cuts the tar into spans.
struct Spans<'a> {
    handle: &'a LayerHandle,
    queue: &'a Queue,
    next: SpanId,
    current: Option<CurrentSpan<'a>>,
    /// Whether spans that nobody waits for are decoded too, for the cache.
    fills: bool,
}

struct CurrentSpan<'a> {
    span: SpanId,
    /// The number of bytes that the current span still lacks.
    left: u64,
    /// None for a span that is not needed.
    sink: Option<(PieceSink<'a>, Hasher)>,
}

impl<'a> Spans<'a> {
    fn push(&mut self, mut bytes: &[u8]) -> Result<(), Stop> {
        while !bytes.is_empty() {
            let mut current = match self.current.take() {
                Some(current) => current,
                None => self.begin()?,
            };
            let taken =
                usize::try_from(current.left).map_or(bytes.len(), |left| left.min(bytes.len()));
            let (now, rest) = bytes.split_at(taken);
            if let Some((sink, hasher)) = &mut current.sink {
                hasher.update(now);
                let _ = sink.push(now);
            }
            current.left -= taken as u64;
            bytes = rest;
            if current.left > 0 {
                self.current = Some(current);
            } else {
                self.end(current)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<CurrentSpan<'a>, Stop> {
        let handle = self.handle;
        let span = self.next;
        let left = handle.layer.size(span);
        if span.0 >= handle.layer.open.spans.count() || left == 0 {
            return Err(Stop::Enough);
        }
        self.next = SpanId(span.0 + 1);
        let pieces = {
            let queue = self.queue.hold();
            if queue.is_empty() && !self.fills {
                return Err(Stop::Enough);
            }
            queue
                .front()
                .filter(|first| first.promise.span() == span)
                .map(|first| first.pieces.clone())
        };
        let lacks = || self.fills && !handle.is_on_disk(span);
        let sink = (pieces.is_some() || lacks()).then(|| {
            let sink = PieceSink::new(handle, span, pieces.flatten().as_ref());
            (sink, Hasher::new(handle.layer.open.spans.digest(span).algorithm()))
        });
        // Otherwise the layer would be decoded to its end in vain.
        self.fills &= sink.as_ref().is_none_or(|(sink, _)| sink.is_kept());
        Ok(CurrentSpan { span, left, sink })
    }

    fn end(&mut self, current: CurrentSpan<'a>) -> Result<(), Stop> {
        let CurrentSpan { span, sink: Some((sink, hasher)), .. } = current else { return Ok(()) };
        let expected = self.handle.layer.open.spans.digest(span);
        let actual = hasher.finish();
        if actual != expected {
            return Err(Stop::Span(SpanError::Digest { span, expected, actual }));
        }
        let mut decoded = sink.finish();
        self.fills &= decoded.store();
        let mut queue = self.queue.hold();
        if queue.front().is_some_and(|first| first.promise.span() == span)
            && let Some(first) = queue.pop_front()
        {
            first.promise.complete(Ok(decoded.run));
        }
        Ok(())
    }
}

/// Why a layer cannot be read in another way after its fine document turned out to be damaged.
#[derive(Debug, thiserror::Error)]
#[error("its fine document lists other files than the layer")]
struct OtherFiles;

impl ReadError {
    /// Whether a layer's fine document may be the reason, and not the layer or the registry.
    fn is_of_document(&self) -> bool {
        match self {
            ReadError::Page { .. } => true,
            ReadError::Window { source, .. } => !source.is_transient(),
            // The whole layer decodes without the document, and has a digest to compare. What
            // contradicts the document ends the index.
            ReadError::Span { source, .. } => !source.is_contradiction(),
            _ => false,
        }
    }
}

impl LayerHandle {
    /// What the layer is read by instead of its fine document.
    pub(super) fn replacement(&self) -> Option<LayerHandle> {
        let layer = Arc::clone(self.layer.replacement.get()?.as_ref()?);
        // Its spans differ from those of the document, so they need another layer number.
        let id = LayerId(self.id.0 + self.inner.layers.len() as u32);
        Some(LayerHandle { inner: Arc::clone(&self.inner), layer, id })
    }

    /// Reads without the fine document what could not be read by it. Returns `error` if that is not
    /// the document's fault, or if nothing else can be read.
    pub(super) async fn read_without_document(
        &self,
        error: ReadError,
        at: Uncompressed,
        size: usize,
        budget: ReadBudget,
    ) -> Result<Bytes, ReadError> {
        if self.layer.open.document.is_none() || !error.is_of_document() {
            return Err(error);
        }
        self.replace(&error, budget).await;
        self.inner.check_index(self.layer.open.how)?;
        match self.replacement() {
            Some(other) => other.read(at, size, budget).await,
            None => Err(error),
        }
    }

    /// Opens the layer without its fine document, because of `error`.
    async fn replace(&self, error: &ReadError, budget: ReadBudget) {
        let Some(open) = self.inner.reopen.get().cloned() else { return };
        let handle = self.clone();
        let why = causes(error);
        // Opening may read the whole layer. If that takes longer than a read may wait, only later
        // reads benefit.
        let opening = tokio::spawn(async move {
            let opened = handle.layer.replacement.get_or_try_init(|| async {
                let inner = &handle.inner;
                let digest = handle.layer.digest();
                inner.warn(format!("reading layer {digest} without its fine document: {why}"));
                match open(handle.layer.open.descriptor.clone()).await {
                    // The tree was made from the document's entries.
                    Ok(open) if open.map().files != handle.layer.open.map().files => {
                        inner.contradict(handle.layer.open.how, &digest, &OtherFiles);
                        Ok(None)
                    }
                    Ok(open) => {
                        inner.counts.requests.add(u64::from(open.bytes_read > 0));
                        inner.counts.bytes_fetched.add(open.bytes_read);
                        Ok(Some(Arc::new(Layer::new(open, &inner.options))))
                    }
                    // The next read tries again.
                    Err(OpenError::Read { source, .. }) if source.is_transient() => Err(()),
                    Err(error) => {
                        inner.warn(causes(&error));
                        Ok(None)
                    }
                }
            });
            opened.await.is_ok()
        });
        let _ = budget.wait(opening).await;
    }
}
