//! Decoding tables for deflate's Huffman codes (RFC 1951, section 3.2.2).
//!
//! A table is indexed by the next bits of the stream, low bit first. Codes longer than its main
//! part continue in a subtable. An entry holds everything about its symbol: the number of bits of
//! its code, the same with extra bits, and its base value. So each symbol costs one lookup.

/// A literal; the byte is in bits 16..24.
pub(super) const LITERAL: u32 = 1 << 31;
/// Not a length or distance: a subtable, the end of the block, or an error.
pub(super) const EXCEPTIONAL: u32 = 1 << 15;
/// A subtable: bits 16..31 are its start, bits 8..12 the number of bits of its index.
pub(super) const SUBTABLE: u32 = 1 << 14;
pub(super) const END_OF_BLOCK: u32 = 1 << 13;
/// No symbol has this code, or the symbol is not allowed.
pub(super) const INVALID: u32 = 1 << 12;

/// Symbols of the literal/length and distance codes; the last two of each never occur in a valid
/// stream.
pub(super) const LITLEN_SYMBOLS: usize = 288;
pub(super) const DISTANCE_SYMBOLS: usize = 32;
pub(super) const CODE_LENGTH_SYMBOLS: usize = 19;

/// Index bits of the main tables. The sizes hold any code: 2,342 and 402 entries are the most
/// (zlib's enough.c), rounded up to powers of two so that a mask proves every index in range.
const LITLEN_BITS: u32 = 11;
const DISTANCE_BITS: u32 = 8;
const CODE_LENGTH_BITS: u32 = 7;
const MAIN_DISTANCES: usize = 1 << DISTANCE_BITS;
pub(super) const LITLEN_TABLE: usize = 4096;
pub(super) const DISTANCE_TABLE: usize = 512;
pub(super) const CODE_LENGTH_TABLE: usize = 128;

const LENGTH_BASE: [u16; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131,
    163, 195, 227, 258,
];
const LENGTH_EXTRA: [u8; 29] =
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];

/// The entries of all symbols, without the lengths of their codes.
const LITLEN_ENTRIES: [u32; LITLEN_SYMBOLS] = {
    let mut entries = [EXCEPTIONAL | INVALID; LITLEN_SYMBOLS];
    let mut symbol = 0;
    while symbol < 256 {
        entries[symbol] = LITERAL | (symbol as u32) << 16;
        symbol += 1;
    }
    entries[256] = EXCEPTIONAL | END_OF_BLOCK;
    let mut length = 0;
    while length < LENGTH_BASE.len() {
        entries[257 + length] = (LENGTH_BASE[length] as u32) << 16 | LENGTH_EXTRA[length] as u32;
        length += 1;
    }
    entries
};
const DISTANCE_ENTRIES: [u32; DISTANCE_SYMBOLS] = {
    let mut entries = [EXCEPTIONAL | INVALID; DISTANCE_SYMBOLS];
    let mut symbol = 0;
    while symbol < 30 {
        let extra = if symbol < 4 { 0 } else { symbol / 2 - 1 };
        let base = if symbol < 4 { symbol } else { (2 + symbol % 2) << extra };
        entries[symbol as usize] = (base + 1) << 16 | extra;
        symbol += 1;
    }
    entries
};

/// A table of `N` entries and the mask of its main part.
pub(super) struct CodeTable<const N: usize> {
    entries: [u32; N],
    mask: u32,
}

/// The codes of a block in one struct, so that the fast loop reaches both from one pointer.
pub(super) struct Codes {
    pub litlen: LitlenTable,
    pub distance: DistanceTable,
}

pub(super) type LitlenTable = CodeTable<LITLEN_TABLE>;
pub(super) type DistanceTable = CodeTable<DISTANCE_TABLE>;
pub(super) type CodeLengthTable = CodeTable<CODE_LENGTH_TABLE>;

/// Why a set of code lengths is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadCode {
    OverSubscribed,
    Incomplete,
}

/// How many bits an entry takes, including extra bits.
pub(super) fn bits(entry: u32) -> u32 {
    entry & 0xff
}

/// A length or distance: the base value and what the extra bits add. `taken` are the bits that its
/// entry takes.
#[inline(always)]
pub(super) fn value(entry: u32, taken: u64) -> u32 {
    // The shift counts by its low 6 bits: the length of the code, since the flags above are those
    // of other entries.
    (entry >> 16) + taken.wrapping_shr(entry >> 8) as u32
}

/// The low bits of `stream`; the low 6 bits of `count` are their number.
#[inline(always)]
pub(super) fn low_bits(stream: u64, count: u32) -> u64 {
    stream & ((1 << (count & 63)) - 1)
}

impl<const N: usize> CodeTable<N> {
    pub(super) fn new() -> CodeTable<N> {
        CodeTable { entries: [0; N], mask: 0 }
    }

    /// The entries, and the mask that makes bits of the stream an index of the main part: always
    /// less than `N`.
    #[inline(always)]
    pub(super) fn parts(&self) -> (&[u32; N], usize) {
        (&self.entries, self.mask as usize & (N - 1))
    }

    /// The entry for the next bits, which may lead to a subtable.
    fn main(&self, stream: u64) -> u32 {
        let (entries, mask) = self.parts();
        entries[stream as usize & mask]
    }

    /// The entry in the subtable of `entry`; `stream` starts after the bits of `entry`.
    #[inline(always)]
    pub(super) fn sub(&self, entry: u32, stream: u64) -> u32 {
        let mask = (1u32 << (entry >> 8 & 15)) - 1;
        self.entries[((entry >> 16) + (stream as u32 & mask)) as usize & (N - 1)]
    }

    /// The entry for the next bits and the bits of main table that were skipped for it.
    pub(super) fn resolve(&self, stream: u64) -> (u32, u32) {
        let entry = self.main(stream);
        if entry & SUBTABLE == 0 {
            return (entry, 0);
        }
        (self.sub(entry, stream >> bits(entry)), bits(entry))
    }

    /// Builds the table of the canonical code with these code lengths (each at most 15).
    ///
    /// Over-subscribed codes are errors. Incomplete codes are errors, too, unless `lenient` is set
    /// and the code has one symbol of one bit or no symbols. This is as strict as zlib's
    /// inftrees.c.
    fn build(
        &mut self,
        lengths: &[u8],
        main_bits: u32,
        lenient: bool,
        entry: impl Fn(usize) -> u32,
    ) -> Result<(), BadCode> {
        let mut counts = [0u32; 16];
        for &length in lengths {
            counts[usize::from(length & 15)] += 1;
        }
        counts[0] = 0;
        let longest = counts.iter().rposition(|&count| count > 0).unwrap_or(0) as u32;
        let mut left = 1i32;
        for &count in &counts[1..] {
            left = (left << 1) - count as i32;
            if left < 0 {
                return Err(BadCode::OverSubscribed);
            }
        }
        if left > 0 {
            if !lenient || longest > 1 {
                return Err(BadCode::Incomplete);
            }
            // At most one code of one bit: the other bit is an error only if it occurs.
            self.mask = 1;
            self.entries[..2].fill(EXCEPTIONAL | INVALID | 1);
            if let Some(symbol) = lengths.iter().position(|&length| length == 1) {
                self.entries[0] = with_length(entry(symbol), 1);
            }
            return Ok(());
        }
        let main_bits = main_bits.min(longest);
        self.mask = (1 << main_bits) - 1;
        // Symbols in the order of their codes: by length, then by number.
        let mut next = [0u32; 17];
        for length in 1..16 {
            next[length + 1] = next[length] + counts[length];
        }
        let mut sorted = [0u16; LITLEN_SYMBOLS];
        for (symbol, &length) in lengths.iter().enumerate() {
            if length > 0 {
                let place = &mut next[usize::from(length & 15)];
                sorted[*place as usize % LITLEN_SYMBOLS] = symbol as u16;
                *place += 1;
            }
        }
        let mut code = 0u32; // the code, most significant bit first
        let mut symbols = sorted.iter().map(|&symbol| usize::from(symbol));
        // The main part grows with the codes' length: it is copied behind itself, and each code
        // writes a single entry.
        for length in 1..=main_bits {
            let half = 1 << (length - 1);
            self.entries.copy_within(..half, half);
            code <<= 1;
            for symbol in symbols.by_ref().take(counts[length as usize] as usize) {
                let reversed = code.reverse_bits() >> (32 - length);
                self.entries[reversed as usize & (N - 1)] = with_length(entry(symbol), length);
                code += 1;
            }
        }
        let mut end = 1usize << main_bits; // of the entries in use
        let mut prefix = u32::MAX; // the main bits of the current subtable
        let mut sub = (0, 0); // where it begins, and its index bits
        for length in main_bits + 1..=longest {
            code <<= 1;
            let mut remaining = counts[length as usize];
            for symbol in symbols.by_ref().take(remaining as usize) {
                let reversed = code.reverse_bits() >> (32 - length);
                if reversed & self.mask != prefix {
                    prefix = reversed & self.mask;
                    sub = (end, subtable_bits(&counts, length, main_bits, remaining));
                    end += 1 << sub.1;
                    self.entries[prefix as usize & (N - 1)] =
                        EXCEPTIONAL | SUBTABLE | (sub.0 as u32) << 16 | sub.1 << 8 | main_bits;
                }
                let first = sub.0 + (reversed >> main_bits) as usize;
                let entry = with_length(entry(symbol), length - main_bits);
                self.fill(first, 1 << (length - main_bits), sub.0 + (1 << sub.1), entry);
                code += 1;
                remaining -= 1;
            }
        }
        Ok(())
    }

    fn fill(&mut self, first: usize, stride: usize, end: usize, entry: u32) {
        let end = end.min(N);
        let mut at = first;
        while at < end {
            self.entries[at] = entry;
            at += stride;
        }
    }
}

/// Adds the length of its code to an entry.
fn with_length(entry: u32, length: u32) -> u32 {
    entry + (length << 8) + length
}

/// How many bits index a subtable whose first code has `length` bits, so that all codes with its
/// prefix fit.
fn subtable_bits(counts: &[u32; 16], length: u32, main_bits: u32, remaining: u32) -> u32 {
    let mut bits = length - main_bits;
    let mut used = remaining;
    while used < 1 << bits && main_bits + bits < 15 {
        bits += 1;
        used = (used << 1) + counts[(main_bits + bits) as usize];
    }
    bits
}

impl Codes {
    pub(super) fn new() -> Codes {
        Codes { litlen: CodeTable::new(), distance: CodeTable::new() }
    }
}

impl LitlenTable {
    pub(super) fn build_litlen(&mut self, lengths: &[u8]) -> Result<(), BadCode> {
        self.build(lengths, LITLEN_BITS, true, |symbol| LITLEN_ENTRIES[symbol % LITLEN_SYMBOLS])
    }
}

impl DistanceTable {
    pub(super) fn build_distance(&mut self, lengths: &[u8]) -> Result<(), BadCode> {
        self.build(lengths, DISTANCE_BITS, true, |symbol| {
            DISTANCE_ENTRIES[symbol % DISTANCE_SYMBOLS]
        })?;
        // The main part has one size for all codes: the fast loop has no register to spare for a
        // mask.
        while self.mask < MAIN_DISTANCES as u32 - 1 {
            let filled = self.mask as usize + 1;
            self.entries.copy_within(..filled, filled);
            self.mask = self.mask << 1 | 1;
        }
        Ok(())
    }

    /// The entry for the next bits in the main part.
    #[inline(always)]
    pub(super) fn far(&self, stream: u64) -> u32 {
        self.entries[stream as usize % MAIN_DISTANCES]
    }
}

impl CodeLengthTable {
    pub(super) fn build_code_lengths(
        &mut self,
        lengths: &[u8; CODE_LENGTH_SYMBOLS],
    ) -> Result<(), BadCode> {
        self.build(lengths, CODE_LENGTH_BITS, false, |symbol| (symbol as u32) << 16)
    }
}
