//! The FSE tables of sequences (RFC 8878 section 4.1), and the bits that are decoded with them.

/// The most states of a table: those of literal and match lengths have 2^9 at most.
const STATES: usize = 512;
/// The most symbols: match lengths have 53.
const SYMBOLS: usize = 53;

/// One of the three fields of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    LiteralLength,
    Offset,
    MatchLength,
}

/// A state of a table: what it stands for, and how to get to the next state.
#[derive(Clone, Copy, Default)]
pub(super) struct State {
    /// The value, without the extra bits that are added to it.
    pub base: u32,
    /// The number of extra bits.
    pub extra: u8,
    /// The number of bits to read for the next state, and what is added to them.
    pub bits: u8,
    pub next: u16,
}

/// The table of a field.
#[derive(Clone)]
pub(super) struct Table {
    pub states: Box<[State; STATES]>,
    /// The number of bits of the first state.
    pub log: u8,
    /// The table as a dictionary states it. None if it has only one symbol of a block in RLE mode,
    /// which no dictionary can express.
    pub description: Option<Box<[u8]>>,
}

impl Field {
    fn most_log(self) -> u8 {
        match self {
            Field::LiteralLength | Field::MatchLength => 9,
            Field::Offset => 8,
        }
    }

    /// The base and number of extra bits of a code (RFC 8878 section 3.1.1.3.2.1.1).
    fn code(self, symbol: usize) -> Option<(u32, u8)> {
        let code = match self {
            Field::LiteralLength => match symbol {
                0..=15 => (symbol as u32, 0),
                _ => *LITERAL_LENGTHS.get(symbol - 16)?,
            },
            Field::MatchLength => match symbol {
                0..=31 => (symbol as u32 + 3, 0),
                _ => *MATCH_LENGTHS.get(symbol - 32)?,
            },
            Field::Offset if symbol <= 31 => (1 << symbol, symbol as u8),
            Field::Offset => return None,
        };
        Some(code)
    }

    /// The predefined table, as a dictionary states it (RFC 8878 section 3.1.1.3.2.2).
    pub(super) fn predefined(self) -> &'static [u8] {
        match self {
            Field::LiteralLength => &LITERAL_LENGTHS_DESCRIPTION,
            Field::Offset => &OFFSETS_DESCRIPTION,
            Field::MatchLength => &MATCH_LENGTHS_DESCRIPTION,
        }
    }
}

const LITERAL_LENGTHS: [(u32, u8); 20] = [
    (16, 1),
    (18, 1),
    (20, 1),
    (22, 1),
    (24, 2),
    (28, 2),
    (32, 3),
    (40, 3),
    (48, 4),
    (64, 6),
    (128, 7),
    (256, 8),
    (512, 9),
    (1024, 10),
    (2048, 11),
    (4096, 12),
    (8192, 13),
    (16384, 14),
    (32768, 15),
    (65536, 16),
];
const MATCH_LENGTHS: [(u32, u8); 21] = [
    (35, 1),
    (37, 1),
    (39, 1),
    (41, 1),
    (43, 2),
    (47, 2),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 5),
    (131, 7),
    (259, 8),
    (515, 9),
    (1027, 10),
    (2051, 11),
    (4099, 12),
    (8195, 13),
    (16387, 14),
    (32771, 15),
    (65539, 16),
];
const LITERAL_LENGTHS_DESCRIPTION: [u8; 20] =
    *b"\x51\x10\x63\x8c\x31\xc6\x18\x63\x0c\x21\xc4\x18\x63\x66\x66\x86\x46\x92\x04\0";
const OFFSETS_DESCRIPTION: [u8; 14] = *b"\x20\x84\x10\x42\x66\x46\x44\x44\x44\x44\x24\x49\x02\0";
const MATCH_LENGTHS_DESCRIPTION: [u8; 29] = *b"\x21\x14\xc4\x18\x63\x8c\x21\x84\x10\x42\x08\x21\x84\x10\x42\
    \x08\x21\x44\x44\x44\x44\x44\x44\x44\x44\x24\x09\0\0";

impl Table {
    /// The predefined table of a field.
    pub(super) fn predefined(field: Field) -> Option<Table> {
        Table::described(field, field.predefined()).map(|(table, _)| table)
    }

    /// The table of a block in RLE mode.
    pub(super) fn rle(field: Field, symbol: u8) -> Option<Table> {
        let (base, extra) = field.code(symbol.into())?;
        let mut states = Box::new([State::default(); STATES]);
        states[0] = State { base, extra, bits: 0, next: 0 };
        Some(Table { states, log: 0, description: None })
    }

    /// The table that `bytes` begin with, and the size of its description. None if they are not
    /// valid.
    pub(super) fn described(field: Field, bytes: &[u8]) -> Option<(Table, usize)> {
        let Distribution { counts, symbols, log, size } = Distribution::read(bytes)?;
        if log > field.most_log() {
            return None;
        }
        let total = 1usize << log;
        let mut table =
            Table { states: Box::new([State::default(); STATES]), log, description: Some(bytes.get(..size)?.into()) };
        let mut spread = [0u8; STATES];
        let mut next = [0u16; SYMBOLS];
        let mut high = total;
        for symbol in 0..symbols {
            // A code is only used if its symbol has a share.
            if counts[symbol] != 0 {
                field.code(symbol)?;
            }
            if counts[symbol] == -1 {
                high = high.checked_sub(1)?;
                spread[high] = symbol as u8;
                next[symbol] = 1;
            }
        }
        let (step, mask) = ((total >> 1) + (total >> 3) + 3, total - 1);
        let mut at = 0;
        for symbol in 0..symbols {
            let count = counts[symbol].max(0);
            if count > 0 {
                next[symbol] = count as u16;
            }
            for _ in 0..count {
                spread[at] = symbol as u8;
                at = (at + step) & mask;
                while at >= high {
                    at = (at + step) & mask;
                }
            }
        }
        for (state, symbol) in table.states[..total].iter_mut().zip(spread) {
            let symbol = usize::from(symbol);
            let (base, extra) = field.code(symbol)?;
            let number = next[symbol];
            next[symbol] += 1;
            let bits = log - number.checked_ilog2()? as u8;
            let next = ((usize::from(number) << bits) - total) as u16;
            *state = State { base, extra, bits, next };
        }
        Some((table, size))
    }
}

/// The shares of symbols in a table (RFC 8878 section 4.1.1).
struct Distribution {
    counts: [i16; SYMBOLS],
    symbols: usize,
    log: u8,
    /// Bytes of the description.
    size: usize,
}

impl Distribution {
    fn read(bytes: &[u8]) -> Option<Distribution> {
        let mut at = 0usize;
        let mut read = |count: u32, advance: u32| {
            let mut word = [0; 4];
            let from = bytes.get(at / 8..).unwrap_or_default();
            let taken = from.len().min(4);
            word[..taken].copy_from_slice(&from[..taken]);
            let value = (u32::from_le_bytes(word) >> (at % 8)) & ((1 << count) - 1);
            at += advance as usize;
            value
        };
        let log = read(4, 4) as u8 + 5;
        if log > 9 {
            return None;
        }
        let (mut counts, mut symbols) = ([0; SYMBOLS], 0);
        let mut left = 1u32 << log;
        while left > 0 {
            if symbols >= SYMBOLS {
                return None;
            }
            // Values up to `left + 1` take this many bits, small ones a bit less.
            let bits = (left + 1).ilog2() + 1;
            let short = (1 << bits) - 1 - (left + 1);
            let low = read(bits - 1, 0);
            let value = if low < short {
                read(bits - 1, bits - 1)
            } else {
                let value = read(bits, bits);
                if value >= 1 << (bits - 1) { value - short } else { value }
            };
            let count = value as i16 - 1;
            left = left.checked_sub(count.unsigned_abs().into())?;
            counts[symbols] = count;
            symbols += 1;
            if count == 0 {
                loop {
                    let zeros = read(2, 2);
                    symbols += zeros as usize;
                    if symbols > SYMBOLS {
                        return None;
                    }
                    if zeros < 3 {
                        break;
                    }
                }
            }
        }
        let size = at.div_ceil(8);
        (size <= bytes.len()).then_some(Distribution { counts, symbols, log, size })
    }
}

/// Bits that are read from the last one to the first (RFC 8878 section 4.1).
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// Where in `bytes` the bits begin, and where those that were not read yet end, in bits.
    start: usize,
    end: usize,
}

impl<'a> Bits<'a> {
    /// The bits of `bytes`, beginning with byte `start`. None if the last byte is missing or zero,
    /// so that nothing marks the end of the bits (RFC 8878 section 4.1).
    pub(super) fn new(bytes: &'a [u8], start: usize) -> Option<Bits<'a>> {
        let last = bytes.get(start..)?.last()?.checked_ilog2()?;
        Some(Bits { bytes, start: start * 8, end: (bytes.len() - 1) * 8 + last as usize })
    }

    /// At least the next 57 bits, from the top. What follows the bits themselves is arbitrary.
    #[inline(always)]
    pub(super) fn peek(&self) -> u64 {
        let end = self.end.div_ceil(8);
        let word = match end.checked_sub(8).and_then(|from| self.bytes.get(from..end)?.first_chunk()) {
            Some(word) => u64::from_le_bytes(*word),
            None => {
                let mut word = [0; 8];
                let bytes = self.bytes.get(..end).unwrap_or_default();
                word[8 - bytes.len().min(8)..].copy_from_slice(&bytes[..bytes.len().min(8)]);
                u64::from_le_bytes(word)
            }
        };
        word << (end * 8 - self.end)
    }

    /// Counts `count` bits as read. None if there are not that many.
    #[inline(always)]
    pub(super) fn pass(&mut self, count: u32) -> Option<()> {
        self.end = self.end.checked_sub(count as usize).filter(|end| *end >= self.start)?;
        Some(())
    }

    pub(super) fn is_over(&self) -> bool {
        self.end == self.start
    }
}

/// The top bits of a word.
#[inline(always)]
pub(super) fn top(word: u64, count: u8) -> u32 {
    // In two steps, because a shift by 64 is none.
    ((word >> 1) >> (63 - u32::from(count))) as u32
}
