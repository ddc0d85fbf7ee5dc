//! Chooses where the spans of a zstd blob begin, by what their windows take.
//!
//! Blocks refer to much of what precedes them in the same file, and to little of what precedes a
//! file of another kind. So a window can take ten times as much as at the next block. Which blocks
//! are cheap shows only in the blocks that follow, so the choice is made [`AHEAD`] later: of all
//! ways to divide what was read, the cheapest.

use std::collections::VecDeque;
use std::hint::select_unpredictable;

use crate::codec::zstd::{ZstdReference, ZstdState};
use crate::fine::{FineStart, MAX_ZSTD_WINDOW, SPAN_SIZE};
use crate::offset::Uncompressed;

/// The least distance between two blocks of which one is chosen, in bytes of the tar. Most encoders
/// make blocks of this size.
const PART: u64 = 128 << 10;
/// How much of the tar is read before the first span in it is chosen. With half of that, documents
/// of layers with large windows are up to half larger.
const AHEAD: u64 = 8 << 20;
/// The most bytes of the tar that a span holds, unless no block is suited.
const LONGEST: u64 = 16 << 20;
/// Spans end before their windows are expected to have more bytes than this.
const LARGEST: u64 = MAX_ZSTD_WINDOW as u64 / 2;
/// A byte of the document is weighed against bytes that are fetched for a read at a random place,
/// with one such read for this many bytes of the tar. This was found by trying: spans are about as
/// long as when each ended by its own window, and documents half as large.
const READ: u64 = 100_000_000;
/// Where windows take more than this part of the blob, a byte of the document counts twice. So text
/// at level 9 has a document of less than 5%.
const MUCH: u64 = 25;

/// Decoding this many bytes takes as long as fetching one.
const DECODED: u64 = 64;

/// The output is looked at in pieces of this many bytes: who refers to a part of one is taken for
/// referring to all of it that others referred to.
const PIECE: u64 = 32;
/// For how many pieces before a part it is known who referred to them last: 16 MiB.
const PIECES: usize = (LONGEST / PIECE) as usize;
/// What else a part of a window takes, for its place.
const PLACE: u64 = 2;
/// Parts that are this many back or more are not told apart: a span never has as many.
const OLD: usize = (LONGEST / PART) as usize + 8;

/// The parts of a blob since the last checkpoint. A span is one or more of them.
pub(super) struct BlobParts {
    list: VecDeque<BlobPart>,
    /// The number of the last part.
    number: u16,
    /// For each piece of the output before it, the last part that wrote or referred to it.
    users: Box<[u16]>,
    /// How many bytes it refers to, by how many parts ago these were written or referred to. The
    /// first number has no meaning.
    ages: Box<[u64]>,
    /// The ways to divide the list if a byte of the document counts once, or twice.
    divisions: [SpanDivisions; 2],
}

/// From one block at which a span could begin to the next.
pub(super) struct BlobPart {
    pub start: FineStart,
    /// What a checkpoint needs here.
    pub window: OpenWindow,
    /// Whether it begins with a frame. The window of the first part is elsewhere.
    is_frame: bool,
    /// Whether no span begins here, because it was decided so.
    is_passed: bool,
    /// What it refers to before its start.
    pub references: Vec<ZstdReference>,
    /// For each number of parts before it, how many bytes it refers to that none of these wrote or
    /// referred to: what it adds to the window of a span that begins with them.
    adds: Vec<u64>,
}

impl BlobParts {
    pub(super) fn new() -> BlobParts {
        let users = vec![0; PIECES].into();
        let ages = vec![0; OLD + 1].into();
        BlobParts {
            list: VecDeque::new(),
            number: 0,
            users,
            ages,
            divisions: [READ, 2 * READ].map(SpanDivisions::new),
        }
    }

    /// The start of the last part.
    pub(super) fn last(&self) -> Option<FineStart> {
        self.list.back().map(|part| part.start)
    }

    /// The parts that begin no span yet, but could.
    pub(super) fn undecided(&self) -> impl Iterator<Item = &BlobPart> {
        self.list.iter().skip(1).filter(|part| !part.is_passed)
    }

    /// Whether a part can begin here.
    pub(super) fn can_begin(&self, next: &FineStart) -> bool {
        self.last().is_none_or(|last| {
            next.output - last.output >= PART
                && (next.border() > last.border() || last.output.0 == 0)
        })
    }

    /// Begins a part, which ends the last one.
    pub(super) fn begin(&mut self, start: FineStart, window: OpenWindow) {
        self.count();
        if let Some(last) = self.last() {
            let from = last.output.0 / PIECE;
            let end = start.output.0 / PIECE;
            for piece in from.max(end.saturating_sub(PIECES as u64))..end {
                self.users[piece as usize % PIECES] = self.number;
            }
            self.number = self.number.wrapping_add(1);
        }
        self.ages.fill(0);
        let is_frame = matches!(window, OpenWindow::Frame);
        let references = Vec::new();
        let adds = Vec::new();
        self.list.push_back(BlobPart {
            start,
            window,
            is_frame,
            is_passed: false,
            references,
            adds,
        });
    }

    /// Takes what the last part refers to before its start. Returns whether it keeps that, because
    /// the part is not the first one.
    pub(super) fn refer(&mut self, references: &[ZstdReference]) -> bool {
        let is_undecided = self.list.len() > 1;
        let Some(last) = self.list.back_mut() else { return false };
        if is_undecided {
            last.references.extend_from_slice(references);
        }
        for ZstdReference { back, length } in references {
            let from = last.start.output.0.saturating_sub((*back).into());
            let mut at = from;
            let end = from + u64::from(*length);
            let mut place = PLACE;
            if u64::from(*back) > LONGEST {
                self.ages[OLD] += u64::from(*length) + place;
                continue;
            }
            while at < end {
                let next = ((at / PIECE + 1) * PIECE).min(end);
                let user =
                    std::mem::replace(&mut self.users[(at / PIECE) as usize % PIECES], self.number);
                let age = usize::from(self.number.wrapping_sub(user));
                self.ages[age.min(OLD)] += next - at + place;
                place = select_unpredictable(age > 0, 0, place);
                at = next;
            }
        }
        is_undecided
    }

    /// Notes what the last part adds to windows, as far as it was read.
    fn count(&mut self) {
        let parts = self.list.len().min(OLD);
        let Some(last) = self.list.back_mut() else { return };
        last.adds.clear();
        let mut older = self.ages.iter().sum::<u64>();
        for age in &self.ages[..parts] {
            older -= age;
            last.adds.push(older);
        }
    }

    /// How many parts the first span has, if enough was read to choose. The first part begins with
    /// a checkpoint.
    pub(super) fn choose(&mut self) -> Option<usize> {
        let first = self.list.front()?.start;
        let last = self.last()?;
        (last.output - first.output >= AHEAD)
            .then(|| self.cheapest(last, self.list.len() - 1))
            .flatten()
    }

    /// The same if nothing that follows matters, with the end of what was read.
    pub(super) fn choose_at_end(&mut self, end: FineStart) -> Option<usize> {
        self.count();
        // What the last part adds may change.
        self.divisions.iter_mut().for_each(SpanDivisions::clear);
        let first = self.cheapest(end, self.list.len());
        self.divisions.iter_mut().for_each(SpanDivisions::clear);
        first
    }

    /// How many parts the first span has if the first `count` parts, up to `end`, are divided in
    /// the cheapest way. None if that is a single span.
    fn cheapest(&mut self, end: FineStart, count: usize) -> Option<usize> {
        let stored = end.input - self.list.front()?.start.input;
        let [once, twice] = &mut self.divisions;
        let (first, document) = once.divide(&self.list, end, count);
        let first =
            if document > stored / MUCH { twice.divide(&self.list, end, count).0 } else { first };
        (first < count).then_some(first)
    }

    /// Lets no span begin at the parts so far. Nothing that follows refers to what precedes it.
    pub(super) fn pass(&mut self) {
        self.divisions.iter_mut().for_each(SpanDivisions::clear);
        for part in self.list.iter_mut().skip(1) {
            (part.is_passed, part.references) = (true, Vec::new());
        }
    }

    /// Removes the first parts. What follows begins with a checkpoint.
    pub(super) fn advance(&mut self, count: usize) -> Option<&mut BlobPart> {
        self.divisions.iter_mut().for_each(SpanDivisions::clear);
        self.list.drain(..count.min(self.list.len()));
        self.list.front_mut()
    }

    /// Those of the first `count` parts that follow the first one, with how far they are from its
    /// start, in bytes of the tar.
    pub(super) fn following(&self, count: usize) -> impl Iterator<Item = (u64, &BlobPart)> {
        let first = self.list.front().map(|part| part.start.output);
        let following = self.list.iter().take(count).skip(1);
        following.map(move |part| (first.map_or(0, |first| part.start.output - first), part))
    }

    /// Its memory in bytes.
    pub(super) fn footprint(&self) -> u64 {
        let of_part = |part: &BlobPart| {
            size_of::<BlobPart>()
                + part.references.capacity() * size_of::<ZstdReference>()
                + part.adds.capacity() * 8
        };
        (self.list.iter().map(of_part).sum::<usize>()
            + size_of_val(&*self.users)
            + size_of_val(&*self.ages)) as u64
    }
}

/// A window that is not complete.
pub(super) enum OpenWindow {
    Frame,
    Block {
        state: ZstdState,
        /// How far back it reaches at least.
        reach: u64,
        /// It needs nothing before that.
        from: Uncompressed,
    },
}

/// The cheapest ways to divide the first parts, one more part at a time.
struct SpanDivisions {
    /// What a byte of the document is weighed with.
    read: u64,
    /// For each part, how to divide what precedes it.
    best: Vec<Division>,
    /// For each of these parts, a span that begins with it.
    spans: Vec<LastSpan>,
}

/// The cheapest way to divide what precedes a part.
#[derive(Clone, Copy)]
struct Division {
    cost: u64,
    /// The part that the last span begins with.
    last: usize,
    /// What all spans take in the document.
    document: u64,
}

/// A span that begins with a certain part, as far as its end was looked for.
#[derive(Clone)]
struct LastSpan {
    start: FineStart,
    is_frame: bool,
    /// The bytes of its window.
    used: u64,
    /// Whether it can end before that.
    can_end: bool,
    is_too_long: bool,
}

impl SpanDivisions {
    fn new(read: u64) -> SpanDivisions {
        SpanDivisions { read, best: Vec::new(), spans: Vec::new() }
    }

    fn clear(&mut self) {
        self.best.clear();
        self.spans.clear();
    }

    /// Divides the first `count` parts, which end at `end`. Returns how many of them the first span
    /// has, and what all spans take in the document. What was found earlier is used again.
    fn divide(&mut self, list: &VecDeque<BlobPart>, end: FineStart, count: usize) -> (usize, u64) {
        if self.best.is_empty() {
            self.best.push(Division { cost: 0, last: 0, document: 0 });
        }
        // Bytes must follow a span's border: the blob may end here.
        while let Some(part) = list.get(self.best.len()).filter(|_| self.best.len() < count)
            && part.start.border() < end.input.0
        {
            let least = if part.is_passed { u64::MAX } else { SPAN_SIZE + 1 };
            let best = ending_at(part.start, least, self.read, list, &self.best, &mut self.spans);
            self.best.push(best);
        }
        let mut best = self.best.clone();
        let mut spans = self.spans.clone();
        while best.len() < count {
            let next = list.get(best.len()).map_or(end, |part| part.start);
            best.push(ending_at(next, u64::MAX, self.read, list, &best, &mut spans));
        }
        let whole = ending_at(end, 0, self.read, list, &best, &mut spans);
        let mut first = count;
        let mut before = whole.last;
        while before > 0 {
            (first, before) = (before, best[before].last);
        }
        (first, whole.document)
    }
}

/// The cheapest way to divide the parts before `next`. The last span has `least` bytes or more.
/// `best` is known for what precedes each of these parts, and `spans` begin with them.
fn ending_at(
    next: FineStart,
    least: u64,
    read: u64,
    list: &VecDeque<BlobPart>,
    best: &[Division],
    spans: &mut Vec<LastSpan>,
) -> Division {
    let new = list.iter().take(best.len()).skip(spans.len());
    spans.extend(new.map(|BlobPart { start, is_frame, .. }| LastSpan {
        start: *start,
        is_frame: *is_frame,
        used: 0,
        can_end: false,
        is_too_long: false,
    }));
    let adds = list.get(best.len() - 1).map_or(&[][..], |part| &part.adds);
    let mut cheapest = Division { cost: u64::MAX, last: 0, document: 0 };
    for (from, (span, before)) in spans.iter_mut().zip(best).enumerate() {
        // No span can end where this one begins.
        if span.is_too_long || before.cost == u64::MAX {
            continue;
        }
        span.used += adds.get(best.len() - 1 - from).copied().unwrap_or(0);
        let size = next.output - span.start.output;
        if size < least {
            continue;
        }
        span.is_too_long = span.can_end && (size > LONGEST || span.used > LARGEST);
        if span.is_too_long {
            continue;
        }
        span.can_end = true;
        let document = document(span.used, span.is_frame);
        let fetched = next.input - span.start.input + document + size / DECODED;
        let cost = document.saturating_mul(read).saturating_add(size.saturating_mul(fetched));
        let cost = before.cost.saturating_add(cost);
        if cost < cheapest.cost {
            cheapest = Division { cost, last: from, document: before.document + document };
        }
    }
    cheapest
}

/// What a span takes in the document if its window has `used` bytes.
fn document(used: u64, is_frame: bool) -> u64 {
    /// A proof, and the least that a page takes.
    const SPAN: u64 = 80;
    /// The tables and the repeat offsets.
    const TABLES: u64 = 170;
    // Windows compress to about half their size.
    SPAN + if is_frame { 0 } else { TABLES + used * 9 / 20 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::Compressed;

    fn at(input: u64, output: u64) -> FineStart {
        super::super::start(Compressed(input), Uncompressed(output), 0)
    }

    /// What it costs to begin spans at these parts and at the first one. None if that may not be.
    fn cost_of(parts: &BlobParts, end: FineStart, starts: &[usize]) -> Option<u64> {
        let starts: Vec<usize> = std::iter::once(0).chain(starts.iter().copied()).collect();
        let mut sum = 0;
        for (number, &from) in starts.iter().enumerate() {
            let to = starts.get(number + 1).copied().unwrap_or(parts.list.len());
            let (start, next) =
                (parts.list[from].start, parts.list.get(to).map_or(end, |part| part.start));
            let size = next.output - start.output;
            if to < parts.list.len() && (size <= SPAN_SIZE || next.border() >= end.input.0) {
                return None;
            }
            let used = (from..to).map(|part| parts.list[part].adds[part - from]).sum();
            let document = document(used, parts.list[from].is_frame);
            sum += document * READ + size * (next.input - start.input + document + size / DECODED);
        }
        Some(sum)
    }

    #[test]
    fn the_division_is_the_cheapest() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut firsts = Vec::new();
        for _ in 0..200 {
            let mut parts = BlobParts::new();
            let mut input = 0;
            let mut output = 0;
            for number in 0..10 {
                let state = crate::codec::zstd::ZstdState::initial();
                let block = OpenWindow::Block { state, reach: 8, from: Uncompressed(0) };
                let window = if number == 0 { OpenWindow::Frame } else { block };
                parts.begin(at(input, output), window);
                // So few that a byte of the document never counts twice.
                let references = (0..next(5)).map(|_| {
                    let back = 1 + next(output.max(1)) as u32;
                    ZstdReference { back, length: (1 + next(900) as u32).min(back) }
                });
                let references: Vec<_> = references.filter(|_| output > 0).collect();
                parts.refer(&references);
                (input, output) = (input + 20_000 + next(60_000), output + PART + next(PART));
            }
            let end = at(input, output);
            let cheapest = |parts: &BlobParts| {
                let count = parts.list.len();
                let ways = (0..1u32 << (count - 1)).filter_map(|way| {
                    let starts: Vec<usize> =
                        (1..count).filter(|part| way >> (part - 1) & 1 == 1).collect();
                    Some((cost_of(parts, end, &starts)?, starts))
                });
                ways.min().unwrap().1.first().copied()
            };
            let chosen = parts.choose_at_end(end);
            assert_eq!(chosen, cheapest(&parts));
            // The same after that.
            let mut next_chosen = chosen;
            while let Some(count) = next_chosen {
                let first = parts.advance(count).unwrap();
                first.window = OpenWindow::Frame;
                next_chosen = parts.choose_at_end(end);
                assert_eq!(next_chosen, cheapest(&parts));
            }
            firsts.push(chosen);
            // Nothing begins where that was passed.
            parts.pass();
            assert_eq!(parts.choose_at_end(end), None);
            assert_eq!(parts.undecided().count(), 0);
        }
        firsts.sort_unstable();
        firsts.dedup();
        assert!(firsts.len() > 3, "{firsts:?}");
    }

    #[test]
    fn earlier_divisions_hold_when_parts_follow() {
        let mut random = 3u64;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut divisions = Vec::new();
        for layer in 0..40 {
            let mut parts = BlobParts::new();
            let mut input = 0;
            let mut output = 0;
            for _ in 0..40 {
                let state = crate::codec::zstd::ZstdState::initial();
                parts.begin(
                    at(input, output),
                    OpenWindow::Block { state, reach: 8, from: Uncompressed(0) },
                );
                let references: Vec<_> = (0..next(30))
                    .map(|_| ZstdReference { back: 1 + next(output.max(1)) as u32, length: 1 })
                    .filter(|_| output > 0)
                    .collect();
                parts.refer(&references);
                // Of some layers so little that the last spans share the blob's last border.
                input += if layer % 2 == 0 { next(60) } else { 20_000 + next(60_000) };
                output += PART + next(2 * PART);
                if next(20) == 0 {
                    parts.choose_at_end(at(input, output));
                    parts.pass();
                }
                let last = parts.last().unwrap();
                let count = parts.list.len() - 1;
                if count > 0 {
                    let anew = SpanDivisions::new(READ).divide(&parts.list, last, count);
                    assert_eq!(parts.divisions[0].divide(&parts.list, last, count), anew);
                    divisions.push(anew.0);
                }
            }
        }
        divisions.sort_unstable();
        divisions.dedup();
        assert!(divisions.len() > 10, "{divisions:?}");
    }

    #[test]
    fn what_several_parts_refer_to_counts_once() {
        let mut parts = BlobParts::new();
        for number in 0..4 {
            parts.begin(at(number * 1000, number * PART), OpenWindow::Frame);
            // Each part but the first refers to the same 320 bytes, the first of the tar.
            let back = (number * PART) as u32;
            parts.refer(&[ZstdReference { back, length: if number == 0 { 0 } else { 320 } }]);
        }
        parts.count();
        let adds: Vec<&[u64]> = parts.list.iter().map(|part| &part.adds[..]).collect();
        // A span that begins at the second part needs them once, however long it is.
        let whole = 320 + PLACE;
        assert_eq!(adds, [&[0][..], &[whole, 0], &[whole, 0, 0], &[whole, 0, 0, 0]]);
    }
}
