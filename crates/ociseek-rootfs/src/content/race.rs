//! Fetches a range of a blob over one connection. If that takes several times as long as usual,
//! because the connection is silent or slow, a second one is tried in addition, and the faster one
//! is kept.

use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_all;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use tokio::time::{Instant, timeout_at};

use super::Purpose;
use super::fetch::CountedPart;
use super::inner::LayerHandle;
use ociseek_store::StoreError;
use ociseek_store::lock::Hold;

/// How many times a silent connection is given up before the deadline.
const PATIENCE: u32 = 4;

/// How long nothing may arrive.
pub(super) fn stall(deadline: Duration) -> Duration {
    deadline / PATIENCE
}

/// Fewer bytes in a second, over the time of a stall, are as good as none: a server that sends one
/// now and then would never end.
const TRICKLE: f64 = 1024.0;

/// A request is slow if it takes this many times as long as usual.
const TIMES: f64 = 4.0;
/// No request is slow before this time.
const LEAST: Duration = Duration::from_secs(1);
/// The assumed speed of an unknown registry: seconds to the first byte, and bytes per second.
const UNKNOWN: (f64, f64) = (0.5, 262_144.0);
/// How many second connections are tried in any case. Further ones are limited to one in `ONE_IN`
/// requests.
const FREE: u64 = 2;
const ONE_IN: u64 = 8;
/// How many bytes the slow connection must deliver to be kept after all.
const RECOVERED: u64 = 64 << 10;
/// The weight that remains for earlier requests after each new one.
const DECAY: f64 = 0.8;
/// How many requests must have been measured before their cost is known.
const MEASURED: u32 = 4;
/// The least and the most seconds of our own that count as the cost of a request: a read goes
/// through the kernel and three tasks, and on a busy machine all takes long.
const HANDLING: [f64; 2] = [0.004, 0.02];

/// The usual duration of requests. Newer ones have more weight.
#[derive(Default)]
pub(super) struct Pace(Mutex<Sums>);

#[derive(Default)]
struct Sums {
    requests: f64,
    /// The sum of the seconds to the first byte.
    first: f64,
    bytes: f64,
    /// The sum of the seconds from the first byte to the last.
    rest: f64,
    /// The least seconds to the first byte of any request, and the number of requests.
    soonest: f64,
    measured: u32,
    /// The number of spans whose own handling was measured, and the sum of its seconds.
    handled: f64,
    handling: f64,
}

impl Pace {
    /// Records a request for `bytes` bytes, with the times until its first and its last byte.
    fn note(&self, bytes: u64, first: Duration, all: Duration) {
        let mut sums = self.0.hold();
        let add = |sum: &mut f64, more: f64| *sum = *sum * DECAY + more;
        add(&mut sums.requests, 1.0);
        add(&mut sums.first, first.as_secs_f64());
        add(&mut sums.bytes, bytes as f64);
        add(&mut sums.rest, all.saturating_sub(first).as_secs_f64());
        // Requests that wait for each other on a slow link must not look like one over a long way.
        let first = first.as_secs_f64();
        sums.soonest = if sums.measured == 0 { first } else { sums.soonest.min(first) };
        sums.measured = sums.measured.saturating_add(1);
    }

    /// Records how long our own part of a fetch took: to decode a span and store it.
    pub(super) fn note_handling(&self, time: Duration) {
        let mut sums = self.0.hold();
        sums.handled = sums.handled * DECAY + 1.0;
        sums.handling = sums.handling * DECAY + time.as_secs_f64();
    }

    /// How many bytes arrive in the fixed time of a request: until its first byte, and for our
    /// own part. 0 if that is not known yet.
    pub(super) fn bytes_per_request(&self) -> u64 {
        let sums = self.0.hold();
        if sums.measured < MEASURED {
            return 0;
        }
        let [least, most] = HANDLING;
        let handling = (sums.handling / sums.handled.max(1.0)).clamp(least, most);
        ((sums.soonest + handling) * sums.bytes / sums.rest.max(1e-6)) as u64
    }

    /// How many bytes a connection delivers in this time. 0 if that is not known yet.
    pub(super) fn bytes_in(&self, time: Duration) -> u64 {
        let sums = self.0.hold();
        (sums.bytes * time.as_secs_f64() / sums.rest.max(1e-6)) as u64
    }

    /// The time after which a request for `bytes` bytes is slow; at most `most`.
    fn patience(&self, bytes: u64, most: Duration) -> Duration {
        let sums = self.0.hold();
        let (first, rate) = if sums.requests > 0.0 {
            (sums.first / sums.requests, sums.bytes / sums.rest.max(1e-6))
        } else {
            UNKNOWN
        };
        let seconds = TIMES * (first + bytes as f64 / rate.max(1.0));
        Duration::from_secs_f64(seconds.min(most.as_secs_f64())).clamp(LEAST.min(most), most)
    }
}

/// A connection that delivers the range from some byte on.
struct Lane<'a> {
    chunks: BoxStream<'a, Result<Bytes, StoreError>>,
    /// The position of the next byte that it delivers.
    position: u64,
}

/// A range that is being fetched.
pub(super) struct Race<'a> {
    handle: &'a LayerHandle,
    purpose: Purpose,
    /// The position of the next byte, and the end.
    range: Range<u64>,
    /// The second connection, if there is one, was added because the first one is slow.
    lanes: Vec<Lane<'a>>,
    /// When the first one started, and when its first byte arrived.
    begun: Instant,
    first: Option<Duration>,
    /// When more than a trickle had arrived last, and the position then.
    progress: (Instant, u64),
    /// When the range becomes slow, unless a second connection was tried.
    slow: Option<Instant>,
    /// The position when a second connection was tried.
    doubled_at: u64,
    /// How long a connection may be silent.
    stall: Duration,
}

impl<'a> Race<'a> {
    pub(super) fn new(handle: &'a LayerHandle, range: Range<u64>, purpose: Purpose) -> Race<'a> {
        let now = Instant::now();
        let stall = stall(handle.inner.options.deadline);
        let slow = now + handle.inner.pace.patience(range.end - range.start, stall);
        let mut race = Race {
            handle,
            purpose,
            doubled_at: range.start,
            progress: (now, range.start),
            range,
            lanes: Vec::new(),
            begun: now,
            first: None,
            slow: Some(slow),
            stall,
        };
        race.add_lane(false);
        race
    }

    /// The next bytes of the range; None at its end. The future may be dropped at any time.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        loop {
            if self.lanes.is_empty() {
                return Ok(None);
            }
            let silent = self.progress.0 + self.stall;
            let due = self.slow.map_or(silent, |slow| slow.min(silent));
            let coming = select_all(self.lanes.iter_mut().map(|lane| lane.chunks.next()));
            let Ok((chunk, number, _)) = timeout_at(due, coming).await else {
                self.late();
                continue;
            };
            match chunk {
                Some(Ok(chunk)) => {
                    if let Some(chunk) = self.take(number, chunk) {
                        return Ok(Some(chunk));
                    }
                }
                // The other connection may do better.
                Some(Err(error)) if self.lanes.len() == 1 => return Err(error),
                Some(Err(_)) => drop(self.lanes.remove(number)),
                None => {
                    self.note();
                    self.lanes.clear();
                }
            }
        }
    }

    /// The new bytes among those that a connection delivered.
    fn take(&mut self, number: usize, mut chunk: Bytes) -> Option<Bytes> {
        self.first.get_or_insert_with(|| self.begun.elapsed());
        let lane = self.lanes.get_mut(number)?;
        let known = self.range.start.saturating_sub(lane.position).min(chunk.len() as u64);
        lane.position += chunk.len() as u64;
        let position = lane.position;
        let chunk = chunk.split_off(known as usize);
        if chunk.is_empty() {
            return None;
        }
        self.range.start = position;
        if (position - self.progress.1) as f64 >= TRICKLE * self.stall.as_secs_f64() {
            self.progress = (Instant::now(), position);
        }
        // Either the second connection has overtaken the first, or the first was not slow after
        // all.
        if self.lanes.len() > 1 && (number == 1 || position - self.doubled_at >= RECOVERED) {
            let best = self.lanes.swap_remove(number);
            self.lanes = vec![best];
        }
        Some(chunk)
    }

    /// Reacts to a timeout.
    fn late(&mut self) {
        let now = Instant::now();
        let counts = &self.handle.inner.counts;
        if self.slow.take().is_some() {
            let doubled = counts.doubled.get();
            let requests = counts.requests.get();
            if self.lanes.len() == 1 && doubled < FREE + requests / ONE_IN {
                counts.doubled.add(1);
                counts.retries.add(1);
                self.doubled_at = self.range.start;
                self.progress = (now, self.range.start);
                self.add_lane(false);
            }
            return;
        }
        // Nothing has arrived for long, so try another connection: to another host or repository,
        // if there is one.
        counts.retries.add(1);
        self.lanes.clear();
        self.progress = (now, self.range.start);
        self.add_lane(true);
    }

    /// Requests the missing bytes over another connection, not from a mirror if that `was_silent`.
    fn add_lane(&mut self, was_silent: bool) {
        let handle = self.handle;
        let purpose = self.purpose;
        let range = self.range.clone();
        let position = range.start;
        let open = async move {
            let part = handle
                .inner
                .source
                .blob_part(&handle.layer.open.descriptor, range, was_silent)
                .await?;
            let part = CountedPart::new(part, &handle.inner.counts, purpose);
            let next = |mut part: CountedPart<'a>| async move {
                Ok::<_, StoreError>(part.next().await?.map(|chunk| (chunk, part)))
            };
            Ok::<_, StoreError>(stream::try_unfold(part, next))
        };
        self.lanes.push(Lane { chunks: stream::once(open).try_flatten().boxed(), position });
    }

    /// Records the duration of the complete request, unless a second connection was tried.
    fn note(&self) {
        if self.slow.is_some() {
            let bytes = self.range.end - self.doubled_at;
            self.handle.inner.pace.note(
                bytes,
                self.first.unwrap_or_default(),
                self.begun.elapsed(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_slow_after_a_multiple_of_the_usual_time() {
        let pace = Pace::default();
        let most = Duration::from_secs(15);
        // 4 × (0.5 + 1) s.
        assert_eq!(pace.patience(256 << 10, most), Duration::from_secs(6));
        assert_eq!(pace.patience(1 << 30, most), most);
        for _ in 0..100 {
            pace.note(1 << 20, Duration::from_millis(100), Duration::from_millis(1100));
        }
        let soon = pace.patience(4 << 20, Duration::from_secs(60)).as_secs_f64();
        assert!((soon - 16.4).abs() < 0.1, "{soon}");
        // Newer requests have more weight.
        for _ in 0..20 {
            pace.note(1 << 20, Duration::from_millis(1), Duration::from_millis(11));
        }
        assert_eq!(pace.patience(1 << 20, most), LEAST);
        assert_eq!(pace.patience(1 << 20, LEAST / 2), LEAST / 2);
    }

    #[test]
    fn the_speed_of_a_connection_does_not_include_the_wait_for_the_first_byte() {
        let pace = Pace::default();
        let ms = Duration::from_millis;
        assert_eq!(pace.bytes_in(ms(50)), 0);
        // 64 MiB/s.
        pace.note(1 << 26, ms(700), ms(1700));
        assert_eq!(pace.bytes_in(ms(250)), 16 << 20);
    }

    #[test]
    fn the_cost_of_a_request_in_bytes_is_known_after_some_requests() {
        let ms = Duration::from_millis;
        let pace = Pace::default();
        let assert_is = |expected: u64| {
            let bytes = pace.bytes_per_request();
            assert!(bytes.abs_diff(expected) < 1 << 10, "{bytes}");
        };
        for _ in 0..MEASURED {
            assert_is(0);
            // 100 MiB/s.
            pace.note(1 << 20, ms(20), ms(30));
        }
        assert_is((24 << 20) / 10);
        // On a link in use, requests wait longer. The way to the registry is not longer.
        pace.note(1 << 20, ms(500), ms(510));
        assert_is((24 << 20) / 10);
        // A near registry's requests are not free: decoding and storing a span takes time, too.
        pace.note(1 << 20, ms(0), ms(10));
        assert_is((4 << 20) / 10);
        pace.note_handling(ms(10));
        assert_is(1 << 20);
        for _ in 0..100 {
            pace.note_handling(ms(1000));
        }
        assert_is(2 << 20);
    }
}
