//! One read: where its bytes are, and waiting for those that are nowhere yet.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Inner;
use super::decode::HANDED_OVER;
use super::error::ReadError;
use super::fetch::launch;
use super::flights::{Boarding, Waiter, Wanted};
use super::layer::Layer;
use super::pieces::{Run, covering};
use crate::offset::Uncompressed;
use crate::rootfs::cache::PIECE;

/// How often a read looks again for what was there and is gone: caches that lose their content faster than it can be read are broken.
const LOOKS: usize = 16;

/// Bytes of one span that a read wants.
struct Part {
    span: u32,
    /// Counted from the start of the span.
    range: Range<u64>,
    found: Option<Vec<Bytes>>,
}

pub(super) async fn read(inner: &Arc<Inner>, number: u32, at: Uncompressed, size: usize) -> Result<Bytes, ReadError> {
    let layer = inner.layers.get(number as usize).ok_or(ReadError::NoLayer(number))?;
    let digest = layer.open.descriptor.digest;
    if size == 0 {
        return Ok(Bytes::new());
    }
    let end = at.0.checked_add(size as u64).filter(|end| *end <= layer.end());
    let range = at.0..end.ok_or(ReadError::Beyond { layer: digest, at, size })?;
    let ahead = layer.ahead.lock().unwrap_or_else(PoisonError::into_inner).note(range.clone());
    let parts = layer.parts(&range);
    let mut parts: Vec<Part> = parts.into_iter().map(|(span, range)| Part { span, range, found: None }).collect();
    let _waiting = Waiting::new(&inner.waiting);
    let deadline = inner.options.deadline;
    match timeout(deadline, gather(inner, number, layer, &mut parts, ahead)).await {
        Ok(gathered) => gathered?,
        Err(_) => {
            let missing = || parts.iter().filter(|part| part.found.is_none()).map(|part| part.span);
            inner.late.add(number, missing());
            return Err(ReadError::Deadline { layer: digest, span: missing().next().unwrap_or(0), after: deadline });
        }
    }
    let mut found = parts.into_iter().filter_map(|part| part.found).flatten();
    let first = found.next().unwrap_or_default();
    let bytes = if first.len() == size {
        first
    } else {
        let mut bytes = BytesMut::with_capacity(size);
        bytes.extend_from_slice(&first);
        found.for_each(|piece| bytes.extend_from_slice(&piece));
        bytes.freeze()
    };
    if bytes.len() == size { Ok(bytes) } else { Err(ReadError::Beyond { layer: digest, at, size }) }
}

/// Finds or fetches all parts.
async fn gather(
    inner: &Arc<Inner>,
    number: u32,
    layer: &Layer,
    parts: &mut [Part],
    mut ahead: Option<Range<u64>>,
) -> Result<(), ReadError> {
    for look in 0..LOOKS {
        for part in parts.iter_mut().filter(|part| part.found.is_none()) {
            part.found = inner.in_memory(number, part);
            inner.counts.memory_hits.add(u64::from(part.found.is_some() && look == 0));
        }
        from_disk(inner, number, layer, parts).await;
        let late = parts.iter().find(|part| part.found.is_none() && inner.late.has(number, part.span));
        if let Some(late) = late.filter(|_| look == 0) {
            let (layer, after) = (layer.open.descriptor.digest, inner.options.deadline);
            return Err(ReadError::Deadline { layer, span: late.span, after });
        }
        let mut waiters = board(inner, number, layer, parts, ahead.take(), look > 0);
        if waiters.is_empty() {
            return Ok(());
        }
        for (part, waiter) in parts.iter_mut().filter(|part| part.found.is_none()).zip(waiters.drain(..)) {
            match waiter.landed().await {
                // It was somebody else's deadline, whose fetch began before ours would have: our own is watched above.
                None | Some(Err(ReadError::Deadline { .. })) => {}
                Some(landed) => part.found = landed?.get(&part.range),
            }
        }
        if parts.iter().all(|part| part.found.is_some()) {
            return Ok(());
        }
    }
    let span = parts.iter().find(|part| part.found.is_none()).map_or(0, |part| part.span);
    Err(ReadError::Lost { layer: layer.open.descriptor.digest, span })
}

/// Looks on the disk for what is missing, all at once.
async fn from_disk(inner: &Arc<Inner>, number: u32, layer: &Layer, parts: &mut [Part]) {
    if !inner.keeps_on_disk(layer) {
        return;
    }
    let missing: Vec<(u32, Range<u64>)> =
        parts.iter().filter(|part| part.found.is_none()).map(|part| (part.span, part.range.clone())).collect();
    if missing.is_empty() {
        return;
    }
    let inner_too = Arc::clone(inner);
    let looked = spawn_blocking(move || {
        let Some(layer) = inner_too.layers.get(number as usize) else { return Vec::new() };
        let read = |(span, range): (u32, Range<u64>)| {
            let numbers = covering(&range);
            let pieces = inner_too.cache.read(&layer.key(span), layer.size(span), numbers.clone())?;
            for (piece, bytes) in numbers.clone().zip(&pieces) {
                inner_too.memory.put((number, span, piece), bytes.clone());
            }
            inner_too.counts.disk_hits.add(1);
            Run { first: numbers.start, pieces }.get(&range)
        };
        missing.into_iter().map(read).collect()
    });
    let found = looked.await.unwrap_or_default();
    for (part, found) in parts.iter_mut().filter(|part| part.found.is_none()).zip(found) {
        part.found = found;
    }
}

/// Boards the flights of what is missing, and launches those that nobody had launched, and with them those of what lies ahead. There is
/// a waiter for each part that is missing after this.
fn board(
    inner: &Arc<Inner>,
    number: u32,
    layer: &Layer,
    parts: &mut [Part],
    ahead: Option<Range<u64>>,
    anew: bool,
) -> Vec<Waiter> {
    let (mut waiters, mut wanted) = (Vec::new(), Vec::new());
    for part in parts.iter_mut().filter(|part| part.found.is_none()) {
        match inner.flights.board(number, part.span) {
            Boarding::Wait(waiter) => waiters.push(waiter),
            Boarding::Fetch(flight, waiter) => {
                // It may have landed between our looking and our boarding.
                part.found = inner.in_memory(number, part);
                if part.found.is_none() {
                    wanted.push(Wanted { flight, pieces: Some(covering(&part.range)) });
                    waiters.push(waiter);
                }
            }
        }
    }
    let is_on_disk = inner.keeps_on_disk(layer);
    for (span, range) in ahead.map(|ahead| layer.parts(&ahead)).unwrap_or_default() {
        let size = layer.size(span);
        let last = (size.saturating_sub(1) / PIECE as u64) as u32;
        let is_in_memory = || [0, last].into_iter().all(|piece| inner.memory.get((number, span, piece)).is_some());
        // A span of which memory would keep a part only must be fetched by whoever wants that part.
        if (size > HANDED_OVER && !is_on_disk) || inner.flights.has(number, span) || is_in_memory() {
            continue;
        }
        if let Boarding::Fetch(flight, _) = inner.flights.board(number, span) {
            wanted.push(Wanted { flight, pieces: Some(covering(&range)) });
        }
    }
    launch(inner, number, wanted, anew);
    waiters
}

impl Inner {
    fn in_memory(&self, number: u32, part: &Part) -> Option<Vec<Bytes>> {
        let numbers = covering(&part.range);
        let pieces: Option<Vec<Bytes>> =
            numbers.clone().map(|piece| self.memory.get((number, part.span, piece))).collect();
        Run { first: numbers.start, pieces: pieces? }.get(&part.range)
    }
}

/// Counts a read for as long as it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Waiting<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
