//! What reads use of the rest of the project.

pub(super) mod fetch {
    use std::sync::Arc;

    use bytes::Bytes;
    use shuttle::rand::Rng;
    use tokio::task::yield_now;

    use super::super::in_flight::SpanRequest;
    use super::layer::{LayerHandle, bytes};
    use super::model::{FetchCause, ReadError};
    use super::pieces::Run;
    use crate::offset::SpanId;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(in super::super) enum Disk {
        Ask,
        Skip,
    }

    impl LayerHandle {
        /// No registry is far away here.
        pub(in super::super) fn next_spans(
            &self,
            _: SpanId,
            _: &[SpanRequest],
        ) -> Vec<SpanRequest> {
            Vec::new()
        }

        /// Fetches spans, each in a task of its own, as the schedule wants it.
        pub(in super::super) fn launch(&self, spans: Vec<SpanRequest>, _: Disk, _: FetchCause) {
            for wanted in spans {
                let fetch = tokio::spawn(self.clone().fetch(wanted));
                self.inner.tally.tasks.lock().unwrap().push(fetch);
            }
        }

        async fn fetch(self, wanted: SpanRequest) {
            let inner = &self.inner;
            let span = wanted.promise.span();
            let layer = self.layer.digest();
            inner.tally.fetches.lock().unwrap().push(span);
            yield_now().await;
            let coin = |left: &std::sync::atomic::AtomicU32| {
                use std::sync::atomic::Ordering::SeqCst;
                shuttle::rand::thread_rng().gen_ratio(1, 2)
                    && left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
            };
            if coin(&inner.tally.may_abandon) {
                return;
            }
            if coin(&inner.tally.may_miss) {
                return wanted.promise.complete(Err(ReadError::Deadline {
                    layer,
                    span,
                    after: inner.options.deadline,
                }));
            }
            if coin(&inner.tally.may_fail) {
                return wanted.promise.complete(Err(ReadError::Fetch { layer, span }));
            }
            let piece = Bytes::copy_from_slice(&bytes(span));
            inner.memory.put(self.piece(span, 0), piece.clone(), piece.len() as u64);
            let run = Arc::new(Run { first: 0, pieces: vec![piece] });
            // It is stored on disk between the two.
            wanted.promise.deliver(Ok(Arc::clone(&run)));
            yield_now().await;
            wanted.promise.complete(Ok(run));
        }
    }
}

pub(super) mod inner {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::task::{JoinHandle, spawn_blocking};

    use super::super::in_flight::{Misses, SpansInFlight};
    use super::super::lru::Lru;
    pub(in super::super) use super::layer::{LayerHandle, SpanOf};
    use super::model::ReadError;
    use super::pieces::PieceId;
    use crate::offset::SpanId;

    pub(in super::super) async fn on_disk<T: Send + 'static>(
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        spawn_blocking(look).await.ok()
    }

    pub(in super::super) struct Inner {
        pub in_flight: SpansInFlight,
        pub memory: Lru<PieceId, Bytes>,
        pub misses: Misses,
        pub options: Options,
        pub waiting: AtomicUsize,
        pub counts: Counts,
        pub start: Start,
        pub cache: NoCache,
        pub tally: Tally,
    }

    impl Inner {
        /// No index is contradicted here.
        pub(in super::super) fn check_index(&self, (): ()) -> Result<(), ReadError> {
            Ok(())
        }
    }

    pub(in super::super) struct Options {
        pub deadline: Duration,
    }

    /// What the fetches did, and how many of them may yet be abandoned, miss the deadline, or fail.
    #[derive(Default)]
    pub(in super::super) struct Tally {
        pub fetches: Mutex<Vec<SpanId>>,
        /// The tasks that fetch.
        pub tasks: Mutex<Vec<JoinHandle<()>>>,
        pub may_abandon: AtomicU32,
        pub may_miss: AtomicU32,
        pub may_fail: AtomicU32,
    }

    impl Tally {
        /// The fetched spans in order, each as often as it was fetched.
        pub(in super::super) fn fetches(&self) -> Vec<SpanId> {
            let mut fetches = self.fetches.lock().unwrap().clone();
            fetches.sort();
            fetches
        }
    }

    pub(in super::super) struct CountGuard<'a>(&'a AtomicUsize);

    impl<'a> CountGuard<'a> {
        pub(in super::super) fn new(count: &'a AtomicUsize) -> CountGuard<'a> {
            count.fetch_add(1, Ordering::Relaxed);
            CountGuard(count)
        }
    }

    impl Drop for CountGuard<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[derive(Default)]
    pub(in super::super) struct Counts {
        pub memory_hits: Count,
        pub disk_hits: Count,
    }

    #[derive(Default)]
    pub(in super::super) struct Count;

    impl Count {
        pub(in super::super) fn add(&self, _: u64) {}
    }

    pub(in super::super) struct Start;

    impl Start {
        pub(in super::super) fn read(&self, _: impl Iterator<Item = SpanOf>) {}

        pub(in super::super) fn brings(&self, _: impl Iterator<Item = SpanOf>) -> bool {
            false
        }
    }

    pub(in super::super) struct NoCache;

    impl NoCache {
        pub(in super::super) fn read<K, P>(&self, _: K, _: P) -> Option<Vec<Bytes>> {
            None
        }

        pub(in super::super) fn read_nonblocking<K, P>(&self, _: K, _: P) -> Option<Vec<Bytes>> {
            None
        }
    }
}

pub(super) mod layer {
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    use super::inner::Inner;
    use super::pieces::PieceId;
    use crate::digest::Digest;
    use crate::offset::{LayerId, SpanId};

    /// The size of each span.
    pub(in super::super) const SPAN: u64 = 4;

    /// The bytes of a span.
    pub(in super::super) fn bytes(span: SpanId) -> [u8; SPAN as usize] {
        [span.0 as u8; SPAN as usize]
    }

    #[derive(Clone)]
    pub(in super::super) struct LayerHandle {
        pub inner: Arc<Inner>,
        pub layer: Arc<Layer>,
    }

    pub(in super::super) struct Layer {
        pub open: OpenLayer,
        pub readers: Mutex<Readers>,
        pub spans: u32,
    }

    /// How the layer was opened.
    #[derive(Default)]
    pub(in super::super) struct OpenLayer {
        pub how: (),
    }

    /// Reads ahead as many bytes after each read.
    pub(in super::super) struct Readers(pub u64);

    impl Readers {
        pub(in super::super) fn note(
            &mut self,
            read: Range<u64>,
            _: impl FnOnce(u64) -> Option<Range<u64>>,
        ) -> Option<Range<u64>> {
            (self.0 > 0).then(|| read.end..read.end + self.0)
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub(in super::super) struct SpanOf {
        pub layer: LayerId,
        pub span: SpanId,
    }

    impl Layer {
        pub(in super::super) fn digest(&self) -> Digest {
            Digest(0)
        }

        pub(in super::super) fn end(&self) -> u64 {
            u64::from(self.spans) * SPAN
        }

        /// The whole tar is one file.
        pub(in super::super) fn file_at(&self, _: u64) -> Option<Range<u64>> {
            Some(0..self.end())
        }

        pub(in super::super) fn size(&self, _: SpanId) -> u64 {
            SPAN
        }

        pub(in super::super) fn place(&self, span: SpanId) -> SpanId {
            span
        }

        pub(in super::super) fn parts(&self, range: &Range<u64>) -> Vec<(SpanId, Range<u64>)> {
            let part = |span: u64| {
                let start = span * SPAN;
                let [from, to] =
                    [range.start, range.end].map(|at| at.clamp(start, start + SPAN) - start);
                (SpanId(span as u32), from..to)
            };
            (0..u64::from(self.spans)).map(part).filter(|(_, part)| !part.is_empty()).collect()
        }
    }

    impl LayerHandle {
        pub(in super::super) fn span(&self, span: SpanId) -> SpanOf {
            SpanOf { layer: LayerId(0), span }
        }

        pub(in super::super) fn piece(&self, span: SpanId, number: u32) -> PieceId {
            PieceId { of: self.span(span), number }
        }

        pub(in super::super) fn is_in_memory(&self, span: SpanId) -> bool {
            self.inner.memory.get(self.piece(span, 0)).is_some()
        }

        pub(in super::super) fn keeps_on_disk(&self) -> bool {
            false
        }
    }
}

pub(super) mod model {
    use std::time::Duration;

    use crate::digest::Digest;
    use crate::offset::{SpanId, Uncompressed};

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(in super::super) enum FetchCause {
        Read,
        Readahead,
    }

    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(in super::super) enum ReadError {
        Beyond { layer: Digest, at: Uncompressed, size: usize },
        Deadline { layer: Digest, span: SpanId, after: Duration },
        Fetch { layer: Digest, span: SpanId },
        Lost { layer: Digest, span: SpanId },
    }
}

pub(super) mod pieces {
    use std::ops::Range;

    use bytes::Bytes;

    use super::layer::SpanOf;

    pub(in super::super) const HANDED_OVER: u64 = 16 << 20;

    /// Each span is one piece.
    pub(in super::super) fn covering(_: &Range<u64>) -> Range<u32> {
        0..1
    }

    pub(in super::super) fn start_of(_: u32) -> u64 {
        0
    }

    #[derive(Debug, Default)]
    pub(in super::super) struct Run {
        pub first: u32,
        pub pieces: Vec<Bytes>,
    }

    impl Run {
        pub(in super::super) fn get(&self, range: &Range<u64>) -> Option<Vec<Bytes>> {
            let piece = self.pieces.first()?;
            Some(vec![piece.slice(range.start as usize..range.end as usize)])
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub(in super::super) struct PieceId {
        pub of: SpanOf,
        pub number: u32,
    }
}
