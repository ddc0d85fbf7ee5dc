//! Layers in which no place can be decoded alone: what the cache on disk has no more is decoded
//! again, from the layer's start. If there is room for the whole layer, the cache gets all that it
//! lacks; else it ends with the last span that somebody waits for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::Inner;
use super::decode::Landing;
use super::error::ReadError;
use super::flights::Wanted;
use super::layer::Layer;
use crate::codec::zstd::ZstdReader;
use crate::digest::Hasher;
use crate::layer::span::SpanError;
use crate::offset::SpanId;
use crate::rootfs::layers::OpenError;
use crate::store::feed::{Abandoned, Batches, FeedError, feed};

/// The spans that are still to come, in order; shared by the thread that decodes them and the task that says why they did not come.
type Queue = Arc<Mutex<VecDeque<Wanted>>>;

/// Lands the flights of spans of a layer that is decoded whole. `spans` is in order. It goes on
/// after that for the cache, as long as that keeps what it gets.
pub(super) async fn decode_again(inner: &Arc<Inner>, number: u32, layer: &Layer, spans: Vec<Wanted>, anew: bool) {
    let _alone = layer.again.lock().await;
    // Whoever was before us has left it all there.
    let spans = if anew { spans } else { inner.not_on_disk(number, spans).await };
    if spans.is_empty() {
        return;
    }
    let digest = layer.open.descriptor.digest;
    inner.counts.requests.add(1);
    let queue: Queue = Arc::new(Mutex::new(spans.into()));
    let fed = match inner.source.blob(&layer.open.descriptor).await {
        Ok(blob) => {
            let (inner_too, queue) = (Arc::clone(inner), Arc::clone(&queue));
            let on_chunk = |bytes| inner.counts.bytes_fetched.add(bytes);
            feed(blob, 1, on_chunk, move |batches| run(&inner_too, number, &queue, batches)).await
        }
        Err(error) => Err(error.into()),
    };
    let error = match fed {
        Err(FeedError::Work(error)) => error,
        Err(FeedError::Store(source)) => OpenError::Read { layer: digest, read: 0, source },
        Ok(()) | Err(FeedError::Lost) => OpenError::Ending { layer: digest },
    };
    let source = Arc::new(error);
    let left = std::mem::take(&mut *queue.lock().unwrap_or_else(PoisonError::into_inner));
    for wanted in left {
        let span = wanted.flight.span;
        wanted.flight.land(Err(ReadError::Again { layer: digest, span, source: Arc::clone(&source) }));
    }
}

/// The thread's body.
fn run(inner: &Inner, number: u32, queue: &Queue, mut batches: Batches) -> Result<(), OpenError> {
    let Some(layer) = inner.layers.get(number as usize) else { return Ok(()) };
    let digest = layer.open.descriptor.digest;
    let broken = |source| OpenError::Zstd { layer: digest, source };
    let mut reader = ZstdReader::new().map_err(broken)?;
    let mut spans = Spans { inner, number, layer, queue, next: 0, current: None, fills: fills(inner, layer) };
    while let Some(batch) = batches.receive().map_err(|Abandoned| OpenError::Ending { layer: digest })? {
        for chunk in batch {
            match reader.push(&chunk, &mut |plain| spans.push(plain)) {
                Ok(()) => {}
                Err(Stop::Enough) => return Ok(()),
                Err(Stop::Broken(source)) => return Err(broken(source)),
                Err(Stop::Span(source)) => return Err(OpenError::Spans { layer: digest, source }),
            }
        }
    }
    reader.finish().map_err(broken)
}

/// Whether all of a layer is kept. It says so once where the cache is too small for it.
fn fills(inner: &Inner, layer: &Layer) -> bool {
    let fits = inner.keeps_whole(layer);
    if !fits && inner.cache.is_enabled() {
        let (digest, size) = (layer.open.descriptor.digest, layer.end());
        inner.warn(format!(
            "layer {digest} is zstd and has {size} bytes when decoded, more than the cache keeps of it: \
             it is fetched again, from its start, for what the cache lacks"
        ));
    }
    fits
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
    inner: &'a Inner,
    number: u32,
    layer: &'a Layer,
    queue: &'a Queue,
    next: u32,
    current: Option<Current<'a>>,
    /// What nobody waits for is decoded too, for the cache.
    fills: bool,
}

struct Current<'a> {
    span: u32,
    /// Bytes that it still lacks.
    left: u64,
    /// `None` for a span that is of no use to anyone.
    landing: Option<(Landing<'a>, Hasher)>,
}

impl<'a> Spans<'a> {
    fn push(&mut self, mut bytes: &[u8]) -> Result<(), Stop> {
        while !bytes.is_empty() {
            let mut current = match self.current.take() {
                Some(current) => current,
                None => self.begin()?,
            };
            let taken = usize::try_from(current.left).map_or(bytes.len(), |left| left.min(bytes.len()));
            let (now, rest) = bytes.split_at(taken);
            if let Some((landing, hasher)) = &mut current.landing {
                hasher.update(now);
                let _ = landing.push(now);
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

    fn begin(&mut self) -> Result<Current<'a>, Stop> {
        let (span, left) = (self.next, self.layer.size(self.next));
        if span >= self.layer.open.spans.count() || left == 0 {
            return Err(Stop::Enough);
        }
        self.next += 1;
        let pieces = {
            let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if queue.is_empty() && !self.fills {
                return Err(Stop::Enough);
            }
            queue.front().filter(|first| first.flight.span == span).map(|first| first.pieces.clone())
        };
        let lacks = || self.fills && !self.inner.cache.has(&self.layer.key(span), left);
        let landing = (pieces.is_some() || lacks()).then(|| {
            let landing = Landing::new(self.inner, self.number, self.layer, span, pieces.flatten().as_ref());
            (landing, Hasher::new(self.layer.open.spans.digest(SpanId(span)).algorithm()))
        });
        // It would be decoded to its end for nothing.
        self.fills &= landing.as_ref().is_none_or(|(landing, _)| landing.is_kept());
        Ok(Current { span, left, landing })
    }

    fn end(&mut self, current: Current<'a>) -> Result<(), Stop> {
        let Some((landing, hasher)) = current.landing else { return Ok(()) };
        let span = SpanId(current.span);
        let (expected, actual) = (*self.layer.open.spans.digest(span), hasher.finish());
        if actual != expected {
            return Err(Stop::Span(SpanError::Digest { span, expected, actual }));
        }
        let (run, is_kept) = landing.finish();
        self.fills &= is_kept;
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.front().is_some_and(|first| first.flight.span == current.span)
            && let Some(first) = queue.pop_front()
        {
            first.flight.land(Ok(Arc::new(run)));
        }
        Ok(())
    }
}
