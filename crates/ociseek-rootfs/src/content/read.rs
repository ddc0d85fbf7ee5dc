//! A single read: finds its bytes, and waits for those that must be fetched.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use tokio::task::yield_now;
use tracing::trace;

use super::budget::ReadBudget;
use super::fetch::Disk;
use super::in_flight::{FetchRole, SpanRequest, Waiter};
use super::inner::{CountGuard, LayerHandle, on_disk};
use super::pieces::{HANDED_OVER, Run, covering, start_of};
use super::{FetchCause, ReadError};
use ociseek_format::offset::{SpanId, Uncompressed};
use ociseek_store::cache::TARGET;
use ociseek_store::lock::Hold;

/// How many times a read looks again for spans that disappeared. Caches that lose their content
/// faster than it can be read are broken.
const LOOKS: usize = 16;

/// The bytes of a span that a read wants.
struct Part {
    span: SpanId,
    /// Relative to the start of the span.
    range: Range<u64>,
    found: Option<Vec<Bytes>>,
}

/// What memory has of adjacent pieces of a span.
struct KnownEnds {
    first: Vec<Bytes>,
    /// The numbers of those between.
    missing: Range<u32>,
    last: Vec<Bytes>,
}

/// The bytes of all parts. None if they are not `size` bytes.
fn joined(parts: Vec<Part>, size: usize) -> Option<Bytes> {
    let mut pieces = parts.into_iter().filter_map(|part| part.found).flatten();
    let first = pieces.next().unwrap_or_default();
    let bytes = if first.len() == size {
        first
    } else {
        let mut bytes = BytesMut::with_capacity(size);
        bytes.extend_from_slice(&first);
        pieces.for_each(|piece| bytes.extend_from_slice(&piece));
        bytes.freeze()
    };
    (bytes.len() == size).then_some(bytes)
}

impl LayerHandle {
    pub(super) async fn read(
        &self,
        at: Uncompressed,
        size: usize,
        budget: ReadBudget,
    ) -> Result<Bytes, ReadError> {
        let layer = self.layer.digest();
        self.inner.check_index(self.layer.open.how)?;
        if size == 0 {
            return Ok(Bytes::new());
        }
        let range = self.range(at, size).ok_or(ReadError::Beyond { layer, at, size })?;
        let ahead = self.layer.readers.hold().note(range.clone(), |at| self.layer.file_at(at));
        let mut parts = self.parts(&range);
        // What follows and belongs to the recorded start is fetched anyway; the rest is not needed.
        let ahead = ahead
            .filter(|_| !self.inner.start.brings(parts.iter().map(|part| self.span(part.span))));
        self.inner.start.read(parts.iter().map(|part| self.span(part.span)));
        self.inner.counts.memory_hits.add(self.look_in_memory(&mut parts));
        self.look_in_page_cache(&mut parts);
        if ahead.is_some() || parts.iter().any(|part| part.found.is_none()) {
            // Callers that poll once to see whether the bytes are here need not have a runtime.
            yield_now().await;
            let _waiting = CountGuard::new(&self.inner.waiting);
            match budget.wait(self.gather(&mut parts, ahead, budget)).await {
                Some(gathered) => gathered?,
                None => {
                    let missing =
                        || parts.iter().filter(|part| part.found.is_none()).map(|part| part.span);
                    self.inner.misses.add(missing().map(|span| self.span(span)));
                    let span = missing().next().unwrap_or_default();
                    return Err(budget.exceeded(layer, span));
                }
            }
        }
        // Another task may have found the contradiction meanwhile.
        self.inner.check_index(self.layer.open.how)?;
        joined(parts, size).ok_or(ReadError::Beyond { layer, at, size })
    }

    /// See [`super::Content::read_at_hand`].
    pub(super) async fn read_at_hand(&self, at: Uncompressed, size: usize) -> Option<Bytes> {
        self.inner.check_index(self.layer.open.how).ok()?;
        let mut parts = self.parts(&self.range(at, size)?);
        self.look_in_memory(&mut parts);
        self.look_in_page_cache(&mut parts);
        if parts.iter().any(|part| part.found.is_none()) {
            yield_now().await;
            self.look_on_disk(&mut parts).await;
        }
        joined(parts, size)
    }

    /// None if the layer has no such bytes.
    fn range(&self, at: Uncompressed, size: usize) -> Option<Range<u64>> {
        let end = at.0.checked_add(size as u64).filter(|end| *end <= self.layer.end())?;
        Some(at.0..end)
    }

    fn parts(&self, range: &Range<u64>) -> Vec<Part> {
        self.layer
            .parts(range)
            .into_iter()
            .map(|(span, range)| Part { span, range, found: None })
            .collect()
    }

    /// Finds or fetches all parts.
    async fn gather(
        &self,
        parts: &mut [Part],
        mut ahead: Option<Range<u64>>,
        budget: ReadBudget,
    ) -> Result<(), ReadError> {
        let inner = &self.inner;
        for look in 0..LOOKS {
            self.look_in_memory(parts);
            self.look_on_disk(parts).await;
            let missed = parts
                .iter()
                .find(|part| part.found.is_none() && inner.misses.has(self.span(part.span)));
            if let Some(missed) = missed.filter(|_| look == 0) {
                return Err(budget.exceeded(self.layer.digest(), missed.span));
            }
            let disk = if look == 0 { Disk::Ask } else { Disk::Skip };
            let mut waiters = self.join(parts, ahead.take(), disk);
            if waiters.is_empty() {
                return Ok(());
            }
            for (part, waiter) in
                parts.iter_mut().filter(|part| part.found.is_none()).zip(waiters.drain(..))
            {
                let is_joined_ahead = waiter.is_joined_ahead;
                match waiter.result().await {
                    Some(Err(_)) if is_joined_ahead => {}
                    // Another task's deadline expired, whose fetch began before ours would have.
                    // Our own deadline is checked above.
                    None | Some(Err(ReadError::Deadline { .. })) => {}
                    Some(result) => part.found = result?.get(&part.range),
                }
            }
            if parts.iter().all(|part| part.found.is_some()) {
                return Ok(());
            }
        }
        let span = parts
            .iter()
            .find(|part| part.found.is_none())
            .map(|part| part.span)
            .unwrap_or_default();
        Err(ReadError::Lost { layer: self.layer.digest(), span })
    }

    /// Looks in memory for the missing parts. Returns how many it found.
    fn look_in_memory(&self, parts: &mut [Part]) -> u64 {
        let mut count = 0;
        for part in parts.iter_mut().filter(|part| part.found.is_none()) {
            part.found = self.in_memory(part);
            count += u64::from(part.found.is_some());
        }
        count
    }

    fn in_memory(&self, part: &Part) -> Option<Vec<Bytes>> {
        let numbers = covering(&part.range);
        let pieces: Option<Vec<Bytes>> = numbers
            .clone()
            .map(|number| self.inner.memory.get(self.piece(part.span, number)))
            .collect();
        Run { first: numbers.start, pieces: pieces? }.get(&part.range)
    }

    /// Looks for the missing parts in what the system has in memory of the cache on disk.
    fn look_in_page_cache(&self, parts: &mut [Part]) {
        if !self.keeps_on_disk() {
            return;
        }
        let LayerHandle { inner, layer, .. } = self;
        for part in parts.iter_mut().filter(|part| self.may_be_on_disk(part)) {
            let ends = self.ends_in_memory(part.span, &part.range);
            let missing = ends.missing.clone();
            let pieces = inner.cache.read_nonblocking(&layer.place(part.span), missing);
            part.found =
                pieces.and_then(|pieces| self.found_on_disk(part.span, &part.range, ends, pieces));
        }
    }

    /// What memory has of the pieces with bytes of `range`. A read mostly starts in the piece in
    /// which the one before ended.
    fn ends_in_memory(&self, span: SpanId, range: &Range<u64>) -> KnownEnds {
        let get = |number| self.inner.memory.get(self.piece(span, number));
        let mut missing = covering(range);
        let first: Vec<Bytes> = missing.clone().map_while(get).collect();
        missing.start += first.len() as u32;
        let mut last: Vec<Bytes> = missing.clone().rev().map_while(get).collect();
        missing.end -= last.len() as u32;
        last.reverse();
        KnownEnds { first, missing, last }
    }

    /// Puts pieces from the cache on disk into memory, and returns what a part wants of them. Those
    /// that it wants whole are not kept: the reader has all of their bytes.
    fn found_on_disk(
        &self,
        span: SpanId,
        range: &Range<u64>,
        ends: KnownEnds,
        pieces: Vec<Bytes>,
    ) -> Option<Vec<Bytes>> {
        let inner = &self.inner;
        let of = self.layer.digest();
        trace!(name: "lookup", target: TARGET, what = "span", %of, span = span.0, hit = true);
        for (number, bytes) in ends.missing.zip(&pieces) {
            let start = start_of(number);
            let size = bytes.len() as u64;
            if start < range.start || start + size > range.end {
                inner.memory.put(self.piece(span, number), bytes.clone(), size);
            }
        }
        inner.counts.disk_hits.add(1);
        let pieces = [ends.first, pieces, ends.last].concat();
        Run { first: covering(range).start, pieces }.get(range)
    }

    /// Looks on disk for all missing parts together.
    async fn look_on_disk(&self, parts: &mut [Part]) {
        if !self.keeps_on_disk() {
            return;
        }
        let mut missing = Vec::new();
        let mut asked = Vec::new();
        for part in parts.iter_mut().filter(|part| self.may_be_on_disk(part)) {
            missing.push((part.span, part.range.clone()));
            asked.push(part);
        }
        if missing.is_empty() {
            return;
        }
        let handle = self.clone();
        let looked = on_disk(move || {
            let read = |(span, range): (SpanId, Range<u64>)| {
                let LayerHandle { inner, layer, .. } = &handle;
                let ends = handle.ends_in_memory(span, &range);
                let Some(pieces) = inner.cache.read(&layer.place(span), ends.missing.clone())
                else {
                    let of = layer.digest();
                    trace!(name: "lookup", target: TARGET, what = "span", %of, span = span.0, hit = false);
                    return None;
                };
                handle.found_on_disk(span, &range, ends, pieces)
            };
            missing.into_iter().map(read).collect::<Vec<_>>()
        });
        for (part, pieces) in asked.into_iter().zip(looked.await.unwrap_or_default()) {
            part.found = pieces;
        }
    }

    /// Whether a part is missing, and its span is not being fetched: a fetch looks on disk first.
    fn may_be_on_disk(&self, part: &Part) -> bool {
        part.found.is_none() && !self.inner.in_flight.has(self.span(part.span))
    }

    /// Joins the fetches of the missing parts. Starts those that no other task has started,
    /// together with the spans to read ahead. Returns a waiter for each part that is still missing.
    fn join(&self, parts: &mut [Part], ahead: Option<Range<u64>>, disk: Disk) -> Vec<Waiter> {
        let inner = &self.inner;
        let mut waiters = Vec::new();
        let mut wanted = Vec::new();
        for part in parts.iter_mut().filter(|part| part.found.is_none()) {
            match inner.in_flight.join(self.span(part.span), FetchCause::Read) {
                FetchRole::Wait(waiter) => waiters.push(waiter),
                FetchRole::Fetch(promise, waiter) => {
                    // It may have arrived after we looked and before we joined.
                    part.found = self.in_memory(part);
                    if part.found.is_none() {
                        wanted.push(SpanRequest { promise, pieces: Some(covering(&part.range)) });
                        waiters.push(waiter);
                    }
                }
            }
        }
        let missed = wanted.len();
        let is_on_disk = self.keeps_on_disk();
        for (span, range) in ahead.map(|ahead| self.layer.parts(&ahead)).unwrap_or_default() {
            let size = self.layer.size(span);
            // If memory would keep only a part of a span, the task that wants that part must fetch
            // it.
            if (size > HANDED_OVER && !is_on_disk)
                || inner.in_flight.has(self.span(span))
                || self.is_in_memory(span)
            {
                continue;
            }
            if let FetchRole::Fetch(promise, _) = inner.in_flight.join(self.span(span), FetchCause::Readahead)
                // It may have arrived after we looked and before we joined.
                && !self.is_in_memory(span)
            {
                wanted.push(SpanRequest { promise, pieces: Some(covering(&range)) });
            }
        }
        if let Some(last) = wanted.iter().map(|wanted| wanted.promise.span()).max() {
            let next = self.next_spans(last, &wanted[..missed]);
            wanted.extend(next);
        }
        self.launch(wanted, disk, FetchCause::Read);
        waiters
    }
}
