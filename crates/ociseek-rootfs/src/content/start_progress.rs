//! How far the recorded start has come: which of its spans were fetched in advance and not read,
//! and which have arrived, so that they can be put into the kernel's caches.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::StartStats;
use super::span_of::SpanOf;
use ociseek_format::offset::{LayerId, SpanId};
use ociseek_store::lock::Hold;

/// How many requests may fail in a row before fetching stops.
const FAILURES: u32 = 8;
/// After this many reads that miss spans outside the recorded start, it is of little use to the
/// program.
const OUTSIDE: u32 = 8;
/// The interval of checks whether the program has read what was fetched.
const UNREAD_PAUSE: Duration = Duration::from_millis(20);
/// Fetching does not go on if the program reads nothing of it for so long.
const UNUSED: Duration = Duration::from_secs(60);

/// A span that was fetched in advance.
#[derive(Default)]
pub(super) struct UnreadSpan {
    /// Its compressed size in bytes.
    pub blob: u64,
    /// How many bytes of the tar were put into memory.
    pub in_memory: u64,
}

/// The progress of the recorded start.
#[derive(Default)]
pub(super) struct StartProgress {
    /// All its spans.
    pub planned: Mutex<HashSet<SpanOf>>,
    /// The spans that were fetched in advance and not read.
    unread: Mutex<HashMap<SpanOf, UnreadSpan>>,
    /// The sum of their compressed sizes.
    unread_bytes: AtomicU64,
    spans: AtomicU64,
    /// How many bytes of the tar were put into memory and not read.
    pub in_memory: AtomicU64,
    /// Whether it is being fetched.
    is_running: AtomicBool,
    pub under_way: AtomicUsize,
    /// How many bytes these requests are for.
    pub under_way_bytes: AtomicUsize,
    pub failures: AtomicU32,
    /// Whether too much is unread, or fetching was given up.
    stopped: AtomicBool,
    given_up: AtomicBool,
    /// The number of reads that missed spans outside of it.
    outside: AtomicU32,
    arrivals: Mutex<Option<Arrivals>>,
}

/// Spans of a layer that have arrived, in order.
pub(super) struct ArrivedStart {
    pub layer: LayerId,
    pub spans: Vec<SpanId>,
}

/// What has arrived since fetching began.
struct Arrivals {
    /// None when nothing more will arrive.
    sender: Option<Sender<ArrivedStart>>,
    receiver: Option<Receiver<ArrivedStart>>,
}

/// Exists while the recorded start is being fetched.
pub(super) struct StartFetch<'a>(&'a StartProgress);

impl Drop for StartFetch<'_> {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Relaxed);
        if let Some(arrivals) = &mut *self.0.arrivals.hold() {
            arrivals.sender = None;
        }
    }
}

impl StartProgress {
    /// Fetching begins.
    pub(super) fn begin(&self) -> StartFetch<'_> {
        self.is_running.store(true, Ordering::Relaxed);
        let (sender, receiver) = channel();
        *self.arrivals.hold() = Some(Arrivals { sender: Some(sender), receiver: Some(receiver) });
        StartFetch(self)
    }

    /// What has arrived and what will. None if fetching has not begun, or a caller has it already.
    pub(super) fn arrivals(&self) -> Option<Receiver<ArrivedStart>> {
        self.arrivals.hold().as_mut()?.receiver.take()
    }

    pub(super) fn arrived(&self, arrived: ArrivedStart) {
        let arrivals = self.arrivals.hold();
        if let Some(sender) = arrivals.as_ref().and_then(|arrivals| arrivals.sender.as_ref()) {
            // Without a receiver, it is not needed.
            let _ = sender.send(arrived);
        }
    }

    /// The kernel gets `others`, so it will not ask for them when the program reads them. Instead,
    /// a read of `first` counts as a read of all.
    pub(super) fn hand_on(&self, first: SpanOf, others: impl Iterator<Item = SpanOf>) {
        let mut unread = self.unread.hold();
        let mut handed_on = UnreadSpan::default();
        for UnreadSpan { blob, in_memory } in others.filter_map(|span| unread.remove(&span)) {
            handed_on.blob += blob;
            handed_on.in_memory += in_memory;
        }
        match unread.get_mut(&first) {
            Some(first) => {
                first.blob += handed_on.blob;
                first.in_memory += handed_on.in_memory;
            }
            None => self.count_read(&handed_on),
        }
    }

    fn count_read(&self, read: &UnreadSpan) {
        self.unread_bytes.fetch_sub(read.blob, Ordering::Relaxed);
        self.in_memory.fetch_sub(read.in_memory, Ordering::Relaxed);
    }

    /// Whether it is being fetched, and all of these spans belong to it.
    pub(super) fn brings(&self, spans: impl Iterator<Item = SpanOf>) -> bool {
        self.is_under_way() && self.covers(spans)
    }

    /// Whether all of these spans belong to the recorded start.
    pub(super) fn covers(&self, mut spans: impl Iterator<Item = SpanOf>) -> bool {
        let planned = self.planned.hold();
        !planned.is_empty() && spans.all(|span| planned.contains(&span))
    }

    /// Records a read that must fetch these spans itself. Returns whether the spans after them are
    /// worth fetching too, because the recorded start will not bring them. It brings nothing if it
    /// is ignored or has stopped.
    pub(super) fn note_miss(&self, mut spans: impl Iterator<Item = SpanOf>) -> bool {
        let stopped = self.stopped.load(Ordering::Relaxed);
        let planned = self.planned.hold();
        let is_outside = spans.any(|span| stopped || !planned.contains(&span));
        is_outside && self.outside.fetch_add(1, Ordering::Relaxed) >= OUTSIDE
    }

    /// Whether a span was fetched in advance and not read.
    pub(super) fn is_unread(&self, span: SpanOf) -> bool {
        let is_any = self.unread_bytes.load(Ordering::Relaxed) > 0;
        is_any && self.unread.hold().contains_key(&span)
    }

    /// Records a read of these spans.
    pub(super) fn read(&self, spans: impl Iterator<Item = SpanOf>) {
        if self.unread_bytes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut unread = self.unread.hold();
        for read in spans.filter_map(|span| unread.remove(&span)) {
            self.count_read(&read);
        }
    }

    /// Whether it is being fetched, and does not wait for the program.
    pub(super) fn is_under_way(&self) -> bool {
        self.is_running.load(Ordering::Relaxed) && !self.stopped.load(Ordering::Relaxed)
    }

    /// Whether `size` more bytes may be put into a memory of `max` bytes: the spans of this image
    /// must not displace each other.
    pub(super) fn has_room(&self, max: u64, size: u64) -> bool {
        self.in_memory.load(Ordering::Relaxed).saturating_add(size) <= max / 2
    }

    /// Waits while more than `most` bytes are unread: the program may be slower than the link.
    /// Returns false if fetching is of no use any more.
    pub(super) async fn goes_on(&self, most: u64) -> bool {
        let unread = || self.unread_bytes.load(Ordering::Relaxed);
        let mut known = unread();
        let mut since = Instant::now();
        loop {
            if self.failures.load(Ordering::Relaxed) >= FAILURES || since.elapsed() > UNUSED {
                self.given_up.store(true, Ordering::Relaxed);
            }
            let goes_on = !self.given_up.load(Ordering::Relaxed);
            let waits = goes_on && unread() > most;
            self.stopped.store(waits || !goes_on, Ordering::Relaxed);
            if !waits {
                return goes_on;
            }
            sleep(UNREAD_PAUSE).await;
            if unread() != known {
                known = unread();
                since = Instant::now();
            }
        }
    }

    pub(super) fn requested(&self, span: SpanOf, requested: UnreadSpan) {
        self.spans.fetch_add(1, Ordering::Relaxed);
        let mut unread = self.unread.hold();
        self.unread_bytes.fetch_add(requested.blob, Ordering::Relaxed);
        self.in_memory.fetch_add(requested.in_memory, Ordering::Relaxed);
        if let Some(old) = unread.insert(span, requested) {
            self.count_read(&old);
        }
    }

    pub(super) fn stats(&self) -> StartStats {
        StartStats {
            spans: self.spans.load(Ordering::Relaxed),
            unread_bytes: self.unread_bytes.load(Ordering::Relaxed),
            stopped: self.stopped.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_read_of_a_span_counts_for_those_that_the_kernel_got_with_it() {
        let start = StartProgress::default();
        let of = |span: u32| SpanOf { layer: LayerId(0), span: SpanId(span) };
        (0..6).for_each(|span| start.requested(of(span), UnreadSpan { blob: 10, in_memory: 100 }));
        let left = || (start.stats().unread_bytes, start.in_memory.load(Ordering::Relaxed));
        start.hand_on(of(0), (1..3).map(of));
        assert_eq!(left(), (60, 600));
        start.read((1..4).map(of));
        assert_eq!(left(), (50, 500), "the kernel has two of them, so only one was counted");
        start.read([of(0)].into_iter());
        assert_eq!(left(), (20, 200));
        // The program was faster.
        start.read([of(4)].into_iter());
        start.hand_on(of(4), [of(5)].into_iter());
        assert_eq!(left(), (0, 0));
    }

    #[test]
    fn arrivals_wait_until_they_are_taken_and_end_with_the_fetch() {
        let start = StartProgress::default();
        let arrive = |span| {
            start.arrived(ArrivedStart { layer: LayerId(0), spans: vec![SpanId(span)] });
        };
        arrive(1);
        assert!(start.arrivals().is_none(), "fetching has not begun");
        let fetch = start.begin();
        arrive(2);
        let arrivals = start.arrivals().unwrap();
        assert!(start.arrivals().is_none(), "it was taken");
        arrive(3);
        drop(fetch);
        arrive(4);
        let spans: Vec<SpanId> = arrivals.into_iter().flat_map(|arrived| arrived.spans).collect();
        assert_eq!(spans, [SpanId(2), SpanId(3)]);
        assert!(!start.is_under_way());
    }

    #[test]
    fn misses_outside_of_what_is_planned_are_counted_and_all_of_them_after_it_stopped() {
        let start = StartProgress::default();
        let of = |span: u32| SpanOf { layer: LayerId(0), span: SpanId(span) };
        start.planned.lock().unwrap().extend((0..10).map(of));
        let wanted_after = |spans: &[u32], times: usize| -> usize {
            (0..times).filter(|_| start.note_miss(spans.iter().copied().map(of))).count()
        };
        assert_eq!(wanted_after(&[3], 100), 0);
        assert_eq!(wanted_after(&[], 100), 0, "only read-ahead");
        assert_eq!(wanted_after(&[9, 10], 8), 0);
        assert_eq!(wanted_after(&[10], 2), 2);
        assert_eq!(wanted_after(&[3], 100), 0, "they are still planned");
        start.stopped.store(true, Ordering::Relaxed);
        assert_eq!(wanted_after(&[3], 2), 2);
    }
}
