//! Finds where deflate blocks may begin in the middle of a stream.
//!
//! Only blocks with codes of their own are found, other than the last one of a stream (RFC 1951,
//! section 3.2.7): their header says much that is seldom true of other bits. What is found is a
//! guess, which decoding confirms.

/// The three bits of such a block: not the last one, and type 2. The lowest comes first.
const DYNAMIC: u32 = 0b100;
/// There are at most 286 literal and length codes, and 30 distance codes; the header counts them
/// from 257 and from 1.
const MOST_COUNTED: u32 = 29;
/// The bits of the three counts and of the lengths of the code for code lengths, at most.
const COUNTS: u32 = 14;
const LENGTHS: u32 = 19 * 3;

/// What a complete code adds up to, if a code of `n` bits counts 2^(7-n).
const COMPLETE: u16 = 128;
/// The sum over four lengths of three bits each.
const FOUR_LENGTHS: [u16; 4096] = {
    let mut sums = [0; 4096];
    let mut lengths = 0;
    while lengths < sums.len() {
        let mut rest = lengths;
        while rest > 0 {
            let length = rest & 7;
            sums[lengths] += if length == 0 { 0 } else { COMPLETE >> length };
            rest >>= 3;
        }
        lengths += 1;
    }
    sums
};

/// The positions in `bytes`, counted in bits from bit `from`, at which such a block may begin. The
/// last 16 bytes are not searched.
pub(super) fn blocks(bytes: &[u8], from: usize) -> impl Iterator<Item = usize> {
    let words = (from / 8..bytes.len()).map_while(|at| Some((at, word(bytes, at)?)));
    words
        .flat_map(|(at, word)| (0..8).map(move |bit| (at * 8 + bit, word >> bit)))
        .filter(move |(at, bits)| *at >= from && begins_block(*bits))
        .map(|(at, _)| at)
}

/// The 16 bytes at `at`.
fn word(bytes: &[u8], at: usize) -> Option<u128> {
    bytes[at..].first_chunk().map(|word| u128::from_le_bytes(*word))
}

/// Whether `bits` may be the header of a block.
fn begins_block(bits: u128) -> bool {
    let head = bits as u32;
    if head & 7 != DYNAMIC || head >> 3 & 31 > MOST_COUNTED || head >> 8 & 31 > MOST_COUNTED {
        return false;
    }
    let given = (head >> 13 & 15) + 4;
    let lengths = (bits >> (3 + COUNTS)) as u64 & ((1 << LENGTHS) - 1) & ((1 << (given * 3)) - 1);
    let sum = |at: u32| FOUR_LENGTHS[(lengths >> at) as usize % FOUR_LENGTHS.len()];
    sum(0) + sum(12) + sum(24) + sum(36) + sum(48) == COMPLETE
}

#[cfg(test)]
mod tests {
    use super::super::gzip::{BlockStart, GzipReader, Sink};
    use super::*;
    use std::io::Write;

    /// The bits at which the blocks of a blob begin.
    #[derive(Default)]
    struct Blocks(Vec<usize>);

    impl Sink for Blocks {
        fn output(&mut self, _bytes: &[u8]) {}

        fn block_start(&mut self, at: BlockStart<'_>) {
            self.0.push(at.input.0 as usize * 8 - usize::from(at.bits));
        }
    }

    #[test]
    fn each_block_but_the_last_is_found_and_little_else() {
        let text: Vec<u8> = (0u32..400_000)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_string().into_bytes())
            .collect();
        for level in [2, 6, 9] {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
            encoder.write_all(&text).unwrap();
            let blob = encoder.finish().unwrap();
            let mut real = Blocks::default();
            GzipReader::new().push(&blob, &mut real).unwrap();
            let offsets: Vec<usize> = blocks(&blob, 0).collect();
            let (_, all_but_last) = real.0.split_last().unwrap();
            assert!(all_but_last.len() > 10, "{}", real.0.len());
            assert!(all_but_last.iter().all(|at| offsets.contains(at)));
            // One guess in 2,000 bits is wrong, and is refused when its codes are read.
            assert!(offsets.len() < blob.len() * 8 / 500, "{} of {}", offsets.len(), blob.len());
            let (first, rest) = offsets.split_at(offsets.len() / 2);
            assert_eq!(blocks(&blob, rest[0]).collect::<Vec<_>>(), rest);
            assert_ne!(blocks(&blob, rest[0] + 1).next(), Some(rest[0]));
            assert!(first.len() > 1);
        }
    }

    #[test]
    fn short_input_has_no_blocks() {
        for size in 0..16 {
            assert_eq!(blocks(&vec![4; size], 0).next(), None);
        }
        assert_eq!(blocks(&[0; 1000], 0).next(), None);
        assert_eq!(blocks(&[0xff; 1000], 0).next(), None);
    }
}
