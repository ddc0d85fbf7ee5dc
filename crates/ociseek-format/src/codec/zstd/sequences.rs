//! The sequences of a block (RFC 8878 section 3.1.1.4): how much each one writes, and which earlier
//! output it copies. Nothing is copied here.
//!
//! Why it is fast: the bits of a sequence are loaded at once, and each of its six fields takes a
//! shift and a mask. A table entry is one word, and neither has to mask a part of it. Repeat
//! offsets are chosen, and references collected, without a branch. The only branches are for
//! sequences of more than 56 bits, and for the first 8 bytes of the bits, which are read last.
//!
//! The only unsafe operation is calling a function that needs a CPU with BMI2, where both take one
//! instruction. The function without BMI2 is the same code, and safe. The fuzz target `zstd_scan`
//! compares what is found with what libzstd decodes.

use std::hint::select_unpredictable;

use super::block::{BlockPlace, Sequences, Tables, TakenBlock};
use super::fse::{Field, State, Table};

/// A match, as far as it lies before a certain position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZstdReference {
    /// How far before that position it begins, in bytes.
    pub back: u32,
    /// How many bytes of it lie before that position.
    pub length: u32,
}

/// The tables of the last block, ready to decode with, and what its sequences refer to.
pub(super) struct SequenceDecoder {
    /// Of literal lengths, offsets and match lengths. In one place, so that one address is enough.
    tables: Box<[Table; 3]>,
    /// Of which the first `count` are of the last block.
    references: Vec<ZstdReference>,
    count: usize,
}

/// What the sequences of a block come to, in bytes.
#[derive(Clone, Copy)]
pub(super) struct SequenceSums {
    /// The literals that they take.
    pub literals: u64,
    /// What they copy from earlier output.
    pub matched: u64,
}

impl SequenceDecoder {
    pub(super) fn new() -> SequenceDecoder {
        SequenceDecoder {
            tables: Box::new(
                [Field::LiteralLength, Field::Offset, Field::MatchLength].map(Table::new),
            ),
            references: Vec::new(),
            count: 0,
        }
    }

    /// The references of the last block, if its sequences are valid.
    pub(super) fn references(&self) -> &[ZstdReference] {
        self.references.get(..self.count).unwrap_or_default()
    }

    /// Reads the sequences of a block, and returns the size of what it decodes to. None if it is
    /// not valid.
    pub(super) fn read(
        &mut self,
        block: &TakenBlock<'_>,
        tables: &mut Tables,
        place: BlockPlace,
    ) -> Option<u64> {
        self.count = 0;
        let all = u64::from(block.literals);
        let Some(sequences) = &block.sequences else { return Some(all) };
        let SequenceSums { literals, matched } = self.decode(sequences, tables, place)?;
        // Literals that no sequence takes come last.
        (literals <= all).then_some(all + matched)
    }

    /// Decodes the sequences of a block, to which `tables` apply. Finds its references, and sets
    /// the repeat offsets. None if they are not valid, as far as that is checked: distances are
    /// only if they reach back to what is wanted.
    pub(super) fn decode(
        &mut self,
        sequences: &Sequences<'_>,
        tables: &mut Tables,
        place: BlockPlace,
    ) -> Option<SequenceSums> {
        for (table, source) in self.tables.iter_mut().zip(&tables.sources) {
            table.make(source.as_ref()?)?;
        }
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("bmi2") {
            // SAFETY: the CPU has BMI2.
            return unsafe { self.decode_bmi2(sequences, &mut tables.repeats, place) };
        }
        self.decode_any(sequences, &mut tables.repeats, place, low_bits)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi2")]
    fn decode_bmi2(
        &mut self,
        sequences: &Sequences<'_>,
        repeats: &mut [u32; 3],
        place: BlockPlace,
    ) -> Option<SequenceSums> {
        self.decode_any(sequences, repeats, place, |word, count| {
            std::arch::x86_64::_bzhi_u64(word, count)
        })
    }

    /// `low` returns the low bits of its first argument; the low 8 bits of the second are their
    /// number.
    #[inline(always)]
    fn decode_any(
        &mut self,
        sequences: &Sequences<'_>,
        repeats: &mut [u32; 3],
        place: BlockPlace,
        low: impl Fn(u64, u32) -> u64,
    ) -> Option<SequenceSums> {
        const MASK: usize = 511;
        let mut bits = Bits::new(sequences.bits)?;
        let [lengths, offsets, matches] = &*self.tables;
        let mut length = bits.take(lengths.log.into())? as usize;
        let mut offset = bits.take(offsets.log.into())? as usize;
        let mut matched = bits.take(matches.log.into())? as usize;
        let lengths = &lengths.states;
        let offsets = &offsets.states;
        let matches = &matches.states;
        let mut left = sequences.count;
        if self.references.len() < left as usize {
            self.references.resize(left as usize, ZstdReference { back: 0, length: 0 });
        }
        let mut walk = Walk::new(*repeats, place.since, &mut self.references);
        while left > 0 {
            while left > 1
                && let Some((word, mut end)) = bits.full()
            {
                // No state leads out of its table. Unlike a mask, the check delays no load.
                let (Some(&State(l)), Some(&State(o)), Some(&State(m))) =
                    (lengths.get(length), offsets.get(offset), matches.get(matched))
                else {
                    return None;
                };
                let sums = l.wrapping_add(o).wrapping_add(m);
                let all = sums.wrapping_add(sums >> 8) as u8;
                if all > FULL {
                    break;
                }
                // The low 8 bits of `count` are how many to take. Of what is subtracted above them,
                // only the low 6 bits of `end` matter.
                let mut field = |count: u64| {
                    end = end.wrapping_sub(count);
                    low(word.wrapping_shr(end as u32), count as u32)
                };
                let value = ((o >> 32) + field(o)) as u32;
                let match_length = (m >> 32) + field(m);
                let literal_length = (l >> 32) + field(l);
                length = (usize::from((l >> 16) as u16)) + field(l >> 8) as usize;
                matched = (usize::from((m >> 16) as u16)) + field(m >> 8) as usize;
                offset = (usize::from((o >> 16) as u16)) + field(o >> 8) as usize;
                walk.sequence(value, match_length, literal_length);
                bits.end -= usize::from(all);
                left -= 1;
            }
            let l = lengths[length & MASK];
            let o = offsets[offset & MASK];
            let m = matches[matched & MASK];
            let value = o.base().wrapping_add(bits.take(o.extra())?);
            let match_length = u64::from(m.base()) + u64::from(bits.take(m.extra())?);
            let literal_length = u64::from(l.base()) + u64::from(bits.take(l.extra())?);
            walk.sequence(value, match_length, literal_length);
            left -= 1;
            if left > 0 {
                length = l.next() + bits.take(l.bits())? as usize;
                matched = m.next() + bits.take(m.bits())? as usize;
                offset = o.next() + bits.take(o.bits())? as usize;
            }
        }
        let Walk { repeats: after, matched, edge, far, furthest, count, .. } = walk;
        let most = place.before.checked_sub(far);
        let is_right =
            |reference: &ZstdReference| most.is_some_and(|most| u64::from(reference.back) <= most);
        if bits.end != 0
            || furthest > place.window
            || !self.references.get(..count)?.iter().all(is_right)
        {
            return None;
        }
        (*repeats, self.count) = (after, count);
        Some(SequenceSums { literals: edge - far - matched, matched })
    }
}

/// Follows the sequences of a block.
struct Walk<'a> {
    repeats: [u32; 3],
    /// The bytes that matches have written.
    matched: u64,
    /// References are wanted of matches that begin more than this many bytes before the block, and
    /// before the place that was reached.
    far: u64,
    edge: u64,
    /// The largest distance of these matches.
    furthest: u64,
    /// Has room for a reference of each sequence.
    references: &'a mut [ZstdReference],
    count: usize,
}

impl Walk<'_> {
    fn new(repeats: [u32; 3], since: Option<u64>, references: &mut [ZstdReference]) -> Walk<'_> {
        // Further than any match reaches.
        let far = since.unwrap_or(u64::MAX >> 2);
        Walk { repeats, matched: 0, far, edge: far, furthest: 0, references, count: 0 }
    }

    /// Takes a sequence. `value` is an offset plus 3, or the number of a repeat offset (RFC 8878
    /// section 3.1.1.5).
    #[inline(always)]
    fn sequence(&mut self, value: u32, match_length: u64, literal_length: u64) {
        let [first, second, third] = self.repeats;
        // Without literals, the first repeat offset is out of question.
        let number = value.wrapping_sub(u32::from(literal_length != 0));
        // Not one of the repeat offsets.
        let other = select_unpredictable(value > 3, value.wrapping_sub(3), first.wrapping_sub(1));
        let distance = select_unpredictable(number > 0, second, first);
        let distance = select_unpredictable(number > 1, third, distance);
        let distance = select_unpredictable(number > 2, other, distance);
        self.repeats = [
            distance,
            select_unpredictable(number > 0, first, second),
            select_unpredictable(number > 1, second, third),
        ];
        self.edge += literal_length;
        // The match begins this many bytes before the wanted position, if it does.
        let back = u64::from(distance).wrapping_sub(self.edge);
        let is_wanted = u64::from(distance) > self.edge;
        // Written in any case, since whether a match is wanted cannot be predicted.
        if let Some(next) = self.references.get_mut(self.count) {
            *next = ZstdReference { back: back as u32, length: match_length.min(back) as u32 };
        }
        self.count += usize::from(is_wanted);
        self.furthest = self.furthest.max(select_unpredictable(is_wanted, distance.into(), 0));
        self.edge += match_length;
        self.matched += match_length;
    }
}

/// How many bits a full word has at least.
const FULL: u8 = 56;

/// Bits that are read from the last one to the first (RFC 8878 section 4.1).
struct Bits<'a> {
    bytes: &'a [u8],
    /// How many were not read yet.
    end: usize,
}

impl<'a> Bits<'a> {
    /// None if the last byte is missing or zero, so that nothing marks the end of the bits.
    fn new(bytes: &'a [u8]) -> Option<Bits<'a>> {
        let last = bytes.last()?.checked_ilog2()?;
        Some(Bits { bytes, end: (bytes.len() - 1) * 8 + last as usize })
    }

    /// A word with at least the next [`FULL`] bits, and the number of its bits below their end, of
    /// which only the low 6 bits are valid. None close to the start.
    #[inline(always)]
    fn full(&self) -> Option<(u64, u64)> {
        // Seven bytes, and the one that has the end.
        let from = (self.end / 8).wrapping_sub(7);
        let word = self.bytes.get(from..)?.first_chunk()?;
        Some((u64::from_le_bytes(*word), self.end as u64 | 56))
    }

    /// The next `count` bits, at most 31.
    fn take(&mut self, count: u32) -> Option<u32> {
        self.end = self.end.checked_sub(count as usize)?;
        let from = self.bytes.get(self.end / 8..)?;
        let mut word = [0; 8];
        let size = from.len().min(8);
        word[..size].copy_from_slice(&from[..size]);
        Some((u64::from_le_bytes(word) >> (self.end % 8)) as u32 & ((1 << count) - 1))
    }
}

/// The low bits of a word; the low 8 bits of `count` are how many, fewer than 64.
fn low_bits(word: u64, count: u32) -> u64 {
    word & !u64::MAX.wrapping_shl(count)
}

#[cfg(test)]
mod tests {
    use super::super::block::{BlockLayout, MAX_BLOCK};
    use super::super::blocks::Block;
    use super::super::frame::FrameHead;
    use super::super::tests::text;
    use super::*;

    #[test]
    fn both_functions_find_the_same() {
        let plain = text(2_000_000, 4);
        for level in [1, 3, 12] {
            let frame = zstd::stream::encode_all(&plain[..], level).unwrap();
            let mut rest = &frame[FrameHead::read(&frame).unwrap().length..];
            let mut decoder = SequenceDecoder::new();
            let mut tables = Tables::default();
            let mut before = 0u64;
            while let Some(block) = Block::read(rest) {
                let (content, after) = rest[Block::HEADER..].split_at(block.stored());
                rest = after;
                // No less than there is.
                before += MAX_BLOCK as u64;
                if block.kind != 2 {
                    continue;
                }
                let taken = tables.take(&BlockLayout::parse(content).unwrap()).unwrap();
                let Some(sequences) = &taken.sequences else { continue };
                let place = BlockPlace { before, window: 1 << 27, since: Some(before / 2) };
                let mut repeats = tables.repeats;
                let chosen = decoder.decode(sequences, &mut tables, place).unwrap();
                let references = decoder.references().to_vec();
                let safe = decoder.decode_any(sequences, &mut repeats, place, low_bits).unwrap();
                assert_eq!((chosen.literals, chosen.matched), (safe.literals, safe.matched));
                assert!(tables.repeats == repeats && references == decoder.references());
            }
        }
    }
}
