//! The FSE tables of sequences (RFC 8878 section 4.1), and the bits that are decoded with them.

/// The most states of a table: those of literal and match lengths have 2^9 at most.
const STATES: usize = 512;
/// The most symbols: match lengths have 53.
const SYMBOLS: usize = 53;
/// The most bytes of a description: a Huffman table can have 128, and one of sequences 80 (4 bits,
/// and for each symbol 10 bits and 2 bits of a repeat).
const DESCRIPTION: usize = 128;

/// One of the three fields of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    LiteralLength,
    Offset,
    MatchLength,
}

/// A state of a table: what it stands for, and how to get to the next state. Packed, from the low
/// bits: the number of extra bits (8), the number of bits to read for the next state (8), what is
/// added to these (16), and the value without its extra bits (32). So one load gets all of it, and
/// the sum of three states has the sums of their numbers of bits.
#[derive(Clone, Copy, Default)]
pub(super) struct State(pub u64);

impl State {
    fn new(base: u32, extra: u8, bits: u8, next: u16) -> State {
        State(
            u64::from(base) << 32 | u64::from(next) << 16 | u64::from(bits) << 8 | u64::from(extra),
        )
    }

    #[inline(always)]
    pub(super) fn base(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    pub(super) fn next(self) -> usize {
        usize::from((self.0 >> 16) as u16)
    }

    #[inline(always)]
    pub(super) fn bits(self) -> u32 {
        (self.0 >> 8) as u32 & 0xff
    }

    #[inline(always)]
    pub(super) fn extra(self) -> u32 {
        self.0 as u32 & 0xff
    }
}

/// A table as a dictionary states it.
#[derive(Clone, Copy)]
pub(super) struct Description {
    size: u8,
    bytes: [u8; DESCRIPTION],
}

impl Description {
    /// None if it is longer than any is.
    pub(super) fn new(description: &[u8]) -> Option<Description> {
        let mut bytes = [0; DESCRIPTION];
        bytes.get_mut(..description.len())?.copy_from_slice(description);
        Some(Description { size: description.len() as u8, bytes })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.size.into()).unwrap_or_default()
    }
}

/// What a table is made from.
#[derive(Clone, Copy)]
pub(super) enum TableSource {
    /// The only symbol, of a block in RLE mode. No dictionary can state such a table.
    Symbol(u8),
    Described(Description),
}

impl TableSource {
    fn is(&self, other: &TableSource) -> bool {
        match (self, other) {
            (TableSource::Symbol(one), TableSource::Symbol(two)) => one == two,
            (TableSource::Described(one), TableSource::Described(two)) => {
                one.bytes() == two.bytes()
            }
            _ => false,
        }
    }
}

/// The table of a field.
pub(super) struct Table {
    field: Field,
    source: Option<TableSource>,
    pub states: [State; STATES],
    /// The number of bits of the first state.
    pub log: u8,
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

    /// The predefined table (RFC 8878 section 3.1.1.3.2.2).
    pub(super) fn predefined(self) -> Option<Description> {
        Description::new(match self {
            Field::LiteralLength => &LITERAL_LENGTHS_DESCRIPTION,
            Field::Offset => &OFFSETS_DESCRIPTION,
            Field::MatchLength => &MATCH_LENGTHS_DESCRIPTION,
        })
    }

    /// The description that `bytes` begin with, and what follows it. None if it is not valid.
    pub(super) fn description(self, bytes: &[u8]) -> Option<(Description, &[u8])> {
        let size = Distribution::read(bytes).filter(|shares| shares.log <= self.most_log())?.size;
        let (description, rest) = bytes.split_at_checked(size)?;
        Some((Description::new(description)?, rest))
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
const MATCH_LENGTHS_DESCRIPTION: [u8; 29] =
    *b"\x21\x14\xc4\x18\x63\x8c\x21\x84\x10\x42\x08\x21\x84\x10\x42\
    \x08\x21\x44\x44\x44\x44\x44\x44\x44\x44\x24\x09\0\0";

impl Table {
    /// A table that nothing was made into yet.
    pub(super) fn new(field: Field) -> Table {
        Table { field, source: None, states: [State::default(); STATES], log: 0 }
    }

    /// Makes the table from `source`. None if that is not valid.
    pub(super) fn make(&mut self, source: &TableSource) -> Option<()> {
        if self.source.as_ref().is_some_and(|own| own.is(source)) {
            return Some(());
        }
        self.source = None;
        match source {
            TableSource::Symbol(symbol) => {
                let (base, extra) = self.field.code((*symbol).into())?;
                self.states[0] = State::new(base, extra, 0, 0);
                self.log = 0;
            }
            TableSource::Described(description) => {
                self.spread(&Distribution::read(description.bytes())?)?
            }
        }
        self.source = Some(*source);
        Some(())
    }

    fn spread(&mut self, Distribution { counts, symbols, log, .. }: &Distribution) -> Option<()> {
        let total = 1usize << log;
        let mut spread = [0u8; STATES];
        let mut next = [0u16; SYMBOLS];
        let mut codes = [(0, 0); SYMBOLS];
        let mut high = total;
        let counts = counts.get(..*symbols)?;
        for (symbol, count) in counts.iter().enumerate() {
            // A code is only used if its symbol has a share.
            if *count != 0 {
                codes[symbol] = self.field.code(symbol)?;
            }
            if *count == -1 {
                high = high.checked_sub(1)?;
                spread[high] = symbol as u8;
                next[symbol] = 1;
            }
        }
        let step = (total >> 1) + (total >> 3) + 3;
        let mask = total - 1;
        let mut at = 0;
        for (symbol, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            next[symbol] = *count as u16;
            for _ in 0..*count {
                spread[at] = symbol as u8;
                at = (at + step) & mask;
                while at >= high {
                    at = (at + step) & mask;
                }
            }
        }
        for (state, symbol) in self.states[..total].iter_mut().zip(spread) {
            let (base, extra) = codes[usize::from(symbol)];
            let number = &mut next[usize::from(symbol)];
            let bits = log - number.checked_ilog2()? as u8;
            *state = State::new(base, extra, bits, ((usize::from(*number) << bits) - total) as u16);
            *number += 1;
        }
        self.log = *log;
        Some(())
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
        let mut counts = [0; SYMBOLS];
        let mut symbols = 0;
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
