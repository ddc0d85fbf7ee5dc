//! Where the cache keeps spans: those of a fine index are small, so neighbours share a file. It is
//! sparse where spans are missing. Others have separate files.

use std::ops::Range;

use super::entry::{EntryLayout, SpanKey, heads_end};
use ociseek_format::digest::{Algorithm, Hasher, hex};
use ociseek_format::layer::span::{HasSpans, SpanTable};
use ociseek_format::offset::{SpanId, Uncompressed};

/// How many bytes of the tar share a file: its spans are those that begin there.
const SHARED: u64 = 4 << 20;
/// The size limit of a span that is kept, in bytes.
pub(super) const MAX_SPAN: u64 = 1 << 30;
/// Where the pieces begin in a shared file is a multiple of this.
const ALIGNED: u64 = 4 << 10;

/// Where the cache keeps a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanPlace {
    key: SpanKey,
    size: u64,
    shared: Option<SharedPlace>,
}

/// The place of a span in a file that others share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SharedPlace {
    /// Of the first of them, which names the file together with the next two.
    first: SpanKey,
    /// How many they are, and how many bytes they have together.
    spans: u32,
    size: u64,
    /// How many spans are before this one, and how many bytes they have together.
    number: u32,
    offset: u64,
}

impl SpanPlace {
    /// The place of a span of `size` bytes that is alone in its file.
    pub fn alone(key: SpanKey, size: u64) -> SpanPlace {
        SpanPlace { key, size, shared: None }
    }

    /// The place of a span of this table, which must be below its count. `key` is [`SpanKey::of`].
    pub fn of<T: HasSpans>(
        table: &SpanTable<T>,
        span: SpanId,
        key: impl Fn(SpanId) -> SpanKey,
    ) -> SpanPlace {
        let plain = table.plain_range(span);
        let size = plain.end - plain.start;
        let shared = || {
            let near = neighbours(table, plain.start).filter(|near| near.contains(&span))?;
            let begin = table.plain_range(near.start).start;
            let last = SpanId(near.end.0 - 1);
            let shared = SharedPlace {
                first: key(near.start),
                spans: near.end.0 - near.start.0,
                size: table.plain_range(last).end - begin,
                number: span.0 - near.start.0,
                offset: plain.start - begin,
            };
            // A document can state any size. The place of the heads grows with it.
            (shared.size <= MAX_SPAN).then_some(shared)
        };
        SpanPlace { key: key(span), size, shared: table.is_fine().then(shared).flatten() }
    }

    /// The key of the span.
    pub fn key(&self) -> &SpanKey {
        &self.key
    }

    /// The size of the span in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The name of the file.
    pub(super) fn name(&self) -> String {
        let Some(shared) = &self.shared else { return hex(self.key.bytes()) };
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(b"ociseek spans 1\n");
        hasher.update(shared.first.bytes());
        hasher.update(&shared.spans.to_le_bytes());
        hasher.update(&shared.size.to_le_bytes());
        hex(hasher.finish().as_bytes())
    }

    /// None if the span has too many pieces to number them.
    pub(super) fn layout(&self) -> Option<EntryLayout> {
        match self.shared {
            None => EntryLayout::new(self.size),
            Some(shared) => {
                let pieces_at = shared.pieces_at()?;
                EntryLayout::shared(self.size, shared.number, shared.offset, pieces_at)
            }
        }
    }

    /// The most bytes that its file has.
    pub(super) fn file_size(&self, layout: &EntryLayout) -> u64 {
        let all = |shared: SharedPlace| shared.pieces_at()?.checked_add(shared.size);
        self.shared.map_or(layout.stored(), |shared| all(shared).unwrap_or(u64::MAX))
    }
}

impl SharedPlace {
    /// Where the pieces of the first span begin.
    fn pieces_at(&self) -> Option<u64> {
        heads_end(self.spans, self.size).checked_next_multiple_of(ALIGNED)
    }
}

/// The spans that share a file with what begins at `start`. None if it is only one.
fn neighbours<T: HasSpans>(table: &SpanTable<T>, start: Uncompressed) -> Option<Range<SpanId>> {
    let from = Uncompressed(start.0 / SHARED * SHARED);
    let to = Uncompressed(from.0.saturating_add(SHARED));
    let mut near = table.covering(from..to);
    // It may begin before.
    near.start.0 += u32::from(table.plain_range(near.start).start < from);
    (near.end.0 > near.start.0 + 1).then_some(near)
}

/// The places of spans, with these keys and sizes, that share a file.
#[cfg(test)]
pub(super) fn in_one_file(spans: &[(SpanKey, u64)]) -> Vec<SpanPlace> {
    let size = spans.iter().map(|(_, size)| size).sum();
    let mut offset = 0;
    let place = |(number, &(key, own)): (u32, &(SpanKey, u64))| {
        let count = spans.len() as u32;
        let shared = SharedPlace { first: spans[0].0, spans: count, size, number, offset };
        offset += own;
        SpanPlace { key, size: own, shared: Some(shared) }
    };
    (0..).zip(spans).map(place).collect()
}
