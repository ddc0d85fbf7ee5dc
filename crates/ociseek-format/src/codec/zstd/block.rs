//! What a compressed block (RFC 8878 section 3.1.1.3) leaves for the blocks after it: its tables
//! and repeat offsets. And which earlier output it refers to.

use super::fse::{Description, Field, TableSource};

/// The maximum size of a block in bytes, compressed or not.
pub(crate) const MAX_BLOCK: usize = 128 << 10;
/// A Huffman table of two symbols, for dictionaries whose table is not used.
const UNUSED_HUFFMAN: [u8; 2] = *b"\x80\x10";
/// The size of three repeat offsets in a dictionary.
const REPEATS: usize = 12;

/// The fields in the order of a block.
const FIELDS: [Field; 3] = [Field::LiteralLength, Field::Offset, Field::MatchLength];

/// A block's parts.
pub(super) struct BlockLayout<'a> {
    /// The number of literals.
    literals: u32,
    huffman: Literals<'a>,
    /// None if it has only literals.
    sequences: Option<SequencesSection<'a>>,
}

struct SequencesSection<'a> {
    count: u32,
    modes: u8,
    /// The tables and the bits.
    rest: &'a [u8],
}

/// The sequences of a block.
pub(super) struct Sequences<'a> {
    /// At least 1.
    pub count: u32,
    pub bits: &'a [u8],
}

enum Literals<'a> {
    /// Without Huffman codes.
    Plain,
    Described(&'a [u8]),
    Repeated,
}

impl<'a> BlockLayout<'a> {
    /// None if the bytes are not valid.
    pub(super) fn parse(content: &'a [u8]) -> Option<BlockLayout<'a>> {
        let mut word = [0; 8];
        let size = content.len().min(5);
        word[..size].copy_from_slice(&content[..size]);
        let word = u64::from_le_bytes(word);
        let kind = word & 3;
        let format = word >> 2 & 3;
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
            let literals = low(4, count);
            let stored = low(4 + count, count) as usize;
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
        let rest = rest.get(header..)?;
        let sequences = match (sequences, rest) {
            (0, []) => None,
            // The two low bits are reserved.
            (1.., [modes, rest @ ..]) if modes & 3 == 0 => {
                Some(SequencesSection { count: sequences, modes: *modes, rest })
            }
            _ => return None,
        };
        Some(BlockLayout { literals, huffman, sequences })
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
    huffman: Option<Description>,
    /// Of literal lengths, offsets and match lengths. None before the first block with sequences.
    pub sources: [Option<TableSource>; 3],
    pub repeats: [u32; 3],
}

impl Default for Tables {
    /// As at the start of a frame.
    fn default() -> Tables {
        Tables { huffman: None, sources: [None; 3], repeats: [1, 4, 8] }
    }
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
        let (offsets, rest) = Field::Offset.description(rest)?;
        let (match_lengths, rest) = Field::MatchLength.description(rest)?;
        let (literal_lengths, rest) = Field::LiteralLength.description(rest)?;
        let rest: [u8; REPEATS] = rest.try_into().ok()?;
        let mut repeats = [0; 3];
        repeats
            .iter_mut()
            .zip(rest.as_chunks().0)
            .for_each(|(to, bytes)| *to = u32::from_le_bytes(*bytes));
        let sources = [literal_lengths, offsets, match_lengths]
            .map(|table| Some(TableSource::Described(table)));
        Some(Tables { huffman: Some(Description::new(huffman)?), sources, repeats })
    }

    /// The largest of the repeat offsets, to which a dictionary must reach.
    pub(super) fn reach(&self) -> u32 {
        self.repeats.into_iter().max().unwrap_or(0)
    }

    /// Writes what a dictionary has before its content. Tables that were not used yet are not used
    /// later either; others stand in for them.
    pub(super) fn write(&self) -> Box<[u8]> {
        let mut bytes =
            self.huffman.as_ref().map_or(&UNUSED_HUFFMAN[..], Description::bytes).to_vec();
        let [literal_lengths, offsets, match_lengths] = &self.sources;
        for (field, source) in [
            (Field::Offset, offsets),
            (Field::MatchLength, match_lengths),
            (Field::LiteralLength, literal_lengths),
        ] {
            let description = match source {
                Some(TableSource::Described(description)) => Some(*description),
                _ => field.predefined(),
            };
            bytes.extend_from_slice(description.as_ref().map_or(&[], Description::bytes));
        }
        self.repeats.iter().for_each(|repeat| bytes.extend_from_slice(&repeat.to_le_bytes()));
        bytes.into()
    }

    /// Whether a dictionary can state them. It cannot state a table of one symbol, which the next
    /// block may repeat.
    pub(super) fn can_be_stated(&self) -> bool {
        !self.sources.iter().any(|source| matches!(source, Some(TableSource::Symbol(_))))
    }

    /// Takes the tables that a block states, and returns its sequences. The repeat offsets stay
    /// those of before the block. None if it is not valid.
    pub(super) fn take<'a>(&mut self, block: &BlockLayout<'a>) -> Option<TakenBlock<'a>> {
        match block.huffman {
            Literals::Plain => {}
            Literals::Described(description) => self.huffman = Some(Description::new(description)?),
            Literals::Repeated => drop(self.huffman.as_ref()?),
        }
        let literals = block.literals;
        let Some(SequencesSection { count, modes, mut rest }) = block.sequences else {
            return Some(TakenBlock { literals, sequences: None });
        };
        for ((field, source), shift) in FIELDS.into_iter().zip(&mut self.sources).zip([6, 4, 2]) {
            match modes >> shift & 3 {
                0 => *source = field.predefined().map(TableSource::Described),
                1 => {
                    let (&symbol, after) = rest.split_first()?;
                    *source = Some(TableSource::Symbol(symbol));
                    rest = after;
                }
                2 => {
                    let (description, after) = field.description(rest)?;
                    *source = Some(TableSource::Described(description));
                    rest = after;
                }
                // Repeated.
                _ => {}
            }
        }
        Some(TakenBlock { literals, sequences: Some(Sequences { count, bits: rest }) })
    }
}

/// A block whose tables were taken.
pub(super) struct TakenBlock<'a> {
    pub literals: u32,
    pub sequences: Option<Sequences<'a>>,
}
