//! What a compressed block (RFC 8878 section 3.1.1.3) leaves for the blocks after it: its tables
//! and repeat offsets. And which earlier output it refers to.

use super::fse::{Bits, Field, Table, top};

/// The maximum size of a block in bytes, compressed or not.
pub(super) const MAX_BLOCK: usize = 128 << 10;
/// A Huffman table of two symbols, for dictionaries whose table is not used.
const UNUSED_HUFFMAN: [u8; 2] = *b"\x80\x10";
/// The size of three repeat offsets in a dictionary.
const REPEATS: usize = 12;

/// A block's parts.
pub(super) struct BlockLayout<'a> {
    /// The number of literals.
    literals: u32,
    huffman: Literals<'a>,
    sequences: u32,
    /// The sequences: the modes of the three tables, then the tables and the bits.
    section: &'a [u8],
}

enum Literals<'a> {
    /// Without Huffman codes.
    Plain,
    Described(&'a [u8]),
    Repeated,
}

/// How a block gets the table of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Predefined,
    Rle,
    Described,
    Repeat,
}

impl<'a> BlockLayout<'a> {
    /// None if the bytes are not valid.
    pub(super) fn parse(content: &'a [u8]) -> Option<BlockLayout<'a>> {
        let mut word = [0; 8];
        let size = content.len().min(5);
        word[..size].copy_from_slice(&content[..size]);
        let word = u64::from_le_bytes(word);
        let (kind, format) = (word & 3, word >> 2 & 3);
        let low = |from: u32, count: u32| (word >> from & ((1 << count) - 1)) as u32;
        let (literals, huffman, rest) = if kind < 2 {
            let (header, literals) = match format {
                1 => (2, low(4, 12)),
                3 => (3, low(4, 20)),
                _ => (1, low(3, 5)),
            };
            let stored = if kind == 1 { 1 } else { literals as usize };
            (literals, Literals::Plain, content.get(header..)?.get(stored..)?)
        } else {
            let (header, count) = [(3, 10), (3, 10), (4, 14), (5, 18)][format as usize];
            let (literals, stored) = (low(4, count), low(4 + count, count) as usize);
            let (stored, rest) = content.get(header..)?.split_at_checked(stored)?;
            let huffman = match kind {
                2 => Literals::Described(stored.get(..huffman_size(stored)?)?),
                _ => Literals::Repeated,
            };
            (literals, huffman, rest)
        };
        if literals as usize > MAX_BLOCK {
            return None;
        }
        let (header, sequences) = match *rest {
            [count @ 0..=127, ..] => (1, u32::from(count)),
            [255, low, high, ..] => (3, u32::from(u16::from_le_bytes([low, high])) + 0x7f00),
            [high, low, ..] => (2, u32::from(high - 128) << 8 | u32::from(low)),
            [..] => return None,
        };
        let section = rest.get(header..)?;
        match sequences {
            0 if !section.is_empty() => None,
            _ => Some(BlockLayout { literals, huffman, sequences, section }),
        }
    }

    fn mode(&self, field: Field) -> Mode {
        let shift = match field {
            Field::LiteralLength => 6,
            Field::Offset => 4,
            Field::MatchLength => 2,
        };
        match self.section.first() {
            Some(modes) => {
                [Mode::Predefined, Mode::Rle, Mode::Described, Mode::Repeat][usize::from(modes >> shift & 3)]
            }
            // No sequence is there to change a table.
            None => Mode::Repeat,
        }
    }
}

/// The size of the Huffman table that `bytes` begin with (RFC 8878 section 4.2.1).
fn huffman_size(bytes: &[u8]) -> Option<usize> {
    let first = usize::from(*bytes.first()?);
    Some(1 + if first < 128 { first } else { (first - 127).div_ceil(2) })
}

/// What a block takes over from the blocks before it.
#[derive(Clone)]
pub(super) struct Tables {
    huffman: Option<Box<[u8]>>,
    literal_length: Option<Table>,
    offset: Option<Table>,
    match_length: Option<Table>,
    repeats: [u32; 3],
}

impl Default for Tables {
    /// As at the start of a frame.
    fn default() -> Tables {
        Tables { huffman: None, literal_length: None, offset: None, match_length: None, repeats: [1, 4, 8] }
    }
}

/// A match, as far as it lies before a certain position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZstdReference {
    /// How far before that position it begins, in bytes.
    pub back: u32,
    /// How many bytes of it lie before that position.
    pub length: u32,
}

/// What is known about a block's place in its frame.
#[derive(Clone, Copy)]
pub(super) struct BlockPlace {
    /// How many bytes before it its frame has, and how many bytes back it can refer at most.
    pub before: u64,
    pub window: u64,
    /// How much of this is after the position that references are wanted to. None if none are.
    pub since: Option<u64>,
}

impl Tables {
    /// The tables and repeat offsets that [`Tables::write`] wrote.
    pub(super) fn read(bytes: &[u8]) -> Option<Tables> {
        let (huffman, rest) = bytes.split_at_checked(huffman_size(bytes)?)?;
        let (offset, size) = Table::described(Field::Offset, rest)?;
        let rest = rest.get(size..)?;
        let (match_length, size) = Table::described(Field::MatchLength, rest)?;
        let rest = rest.get(size..)?;
        let (literal_length, size) = Table::described(Field::LiteralLength, rest)?;
        let rest: [u8; REPEATS] = rest.get(size..)?.try_into().ok()?;
        let mut repeats = [0; 3];
        repeats.iter_mut().zip(rest.as_chunks().0).for_each(|(to, bytes)| *to = u32::from_le_bytes(*bytes));
        Some(Tables {
            huffman: Some(huffman.into()),
            literal_length: Some(literal_length),
            offset: Some(offset),
            match_length: Some(match_length),
            repeats,
        })
    }

    /// The largest of the repeat offsets, to which a dictionary must reach.
    pub(super) fn reach(&self) -> u32 {
        self.repeats.into_iter().max().unwrap_or(0)
    }

    /// Writes what a dictionary has before its content. Tables that were not used yet are not used
    /// later either; others stand in for them.
    pub(super) fn write(&self) -> Box<[u8]> {
        let mut bytes = self.huffman.as_deref().unwrap_or(&UNUSED_HUFFMAN).to_vec();
        for (field, table) in [
            (Field::Offset, &self.offset),
            (Field::MatchLength, &self.match_length),
            (Field::LiteralLength, &self.literal_length),
        ] {
            let description = table.as_ref().and_then(|table| table.description.as_deref());
            bytes.extend_from_slice(description.unwrap_or(field.predefined()));
        }
        self.repeats.iter().for_each(|repeat| bytes.extend_from_slice(&repeat.to_le_bytes()));
        bytes.into()
    }

    /// Whether a dictionary can state them. It cannot state a table of one symbol, which the next
    /// block may repeat.
    pub(super) fn can_be_stated(&self) -> bool {
        let tables = [&self.literal_length, &self.offset, &self.match_length];
        tables.into_iter().flatten().all(|table| table.description.is_some())
    }

    /// Reads a block. Adds its references, and returns the size of what it decodes to. None if it
    /// is not valid.
    pub(super) fn take(
        &mut self,
        block: &BlockLayout<'_>,
        place: BlockPlace,
        references: &mut Vec<ZstdReference>,
    ) -> Option<u64> {
        match block.huffman {
            Literals::Plain => {}
            Literals::Described(description) => self.huffman = Some(description.into()),
            Literals::Repeated => drop(self.huffman.as_ref()?),
        }
        if block.sequences == 0 {
            return Some(block.literals.into());
        }
        let mut rest = block.section.get(1..).filter(|_| block.section[0] & 3 == 0)?;
        for (field, table) in [
            (Field::LiteralLength, &mut self.literal_length),
            (Field::Offset, &mut self.offset),
            (Field::MatchLength, &mut self.match_length),
        ] {
            match block.mode(field) {
                Mode::Predefined => *table = Some(Table::predefined(field)?),
                Mode::Rle => {
                    let (&symbol, after) = rest.split_first()?;
                    *table = Some(Table::rle(field, symbol)?);
                    rest = after;
                }
                Mode::Described => {
                    let (described, size) = Table::described(field, rest)?;
                    *table = Some(described);
                    rest = rest.get(size..)?;
                }
                Mode::Repeat => {}
            }
        }
        let start = block.section.len() - rest.len();
        let bits = Bits::new(block.section, start)?;
        self.decode(block, bits, place, references)
    }

    fn decode(
        &mut self,
        block: &BlockLayout<'_>,
        mut bits: Bits<'_>,
        place: BlockPlace,
        references: &mut Vec<ZstdReference>,
    ) -> Option<u64> {
        const MASK: usize = 511;
        let [lengths, offsets, matches] =
            [self.literal_length.as_ref()?, self.offset.as_ref()?, self.match_length.as_ref()?];
        let word = bits.peek();
        let first = top(word, lengths.log);
        let second = top(word << lengths.log, offsets.log);
        let third = top(word << (lengths.log + offsets.log), matches.log);
        bits.pass(u32::from(lengths.log + offsets.log + matches.log))?;
        let mut states = [first as usize, second as usize, third as usize];
        let [lengths, offsets, matches] = [lengths, offsets, matches].map(|table| &*table.states);
        let mut repeats = self.repeats;
        // References are wanted of matches that begin at least this far back.
        let far = place.since.unwrap_or(u64::MAX);
        let (mut at, mut literals) = (0u64, 0u64);
        for number in (0..block.sequences).rev() {
            let (length, offset, matched) =
                (lengths[states[0] & MASK], offsets[states[1] & MASK], matches[states[2] & MASK]);
            let mut word = bits.peek();
            let value = offset.base.wrapping_add(top(word, offset.extra));
            bits.pass(offset.extra.into())?;
            // The two others have 32 bits at most.
            word = if offset.extra > 25 { bits.peek() } else { word << offset.extra };
            let match_length = matched.base + top(word, matched.extra);
            word <<= matched.extra;
            let literal_length = length.base + top(word, length.extra);
            bits.pass(u32::from(matched.extra) + u32::from(length.extra))?;
            if number > 0 {
                let mut word = bits.peek();
                states[0] = usize::from(length.next) + top(word, length.bits) as usize;
                word <<= length.bits;
                states[2] = usize::from(matched.next) + top(word, matched.bits) as usize;
                word <<= matched.bits;
                states[1] = usize::from(offset.next) + top(word, offset.bits) as usize;
                bits.pass(u32::from(length.bits) + u32::from(matched.bits) + u32::from(offset.bits))?;
            }
            let distance = if value > 3 {
                repeats = [value - 3, repeats[0], repeats[1]];
                value - 3
            } else {
                // Without literals, the first repeat offset is out of question.
                match value - u32::from(literal_length != 0) {
                    0 => {}
                    1 => repeats.swap(0, 1),
                    2 => repeats = [repeats[2], repeats[0], repeats[1]],
                    _ => repeats = [repeats[0].wrapping_sub(1), repeats[0], repeats[1]],
                }
                repeats[0]
            };
            literals += u64::from(literal_length);
            at += u64::from(literal_length);
            if distance == 0 || u64::from(distance) > (place.before + at).min(place.window) {
                return None;
            }
            // The match begins `back` bytes before the wanted position.
            if let Some(back) =
                u64::from(distance).checked_sub(at).and_then(|back| back.checked_sub(far)).filter(|back| *back > 0)
            {
                let back = back as u32;
                references.push(ZstdReference { back, length: match_length.min(back) });
            }
            at += u64::from(match_length);
        }
        if !bits.is_over() || literals > u64::from(block.literals) {
            return None;
        }
        self.repeats = repeats;
        Some(at + u64::from(block.literals) - literals)
    }
}
