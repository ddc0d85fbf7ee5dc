//! Compares our deflate decoder with zlib-rs: it must accept the same streams and give the same
//! bytes and the same end, with any chunks.

use flate2::{Compress, Compression, FlushCompress};
use ociseek_format::internals::{Inflate, Stop};
use proptest::prelude::*;

use crate::bodies::inflate::{compare, ours};

fn data(kind: u8, size: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut data = Vec::with_capacity(size);
    while data.len() < size {
        match kind % 6 {
            0 => data.push(random() as u8),
            1 => data.push(b'a' + (random() % 4) as u8),
            2 => data.extend_from_slice(format!("line {} of a log\n", random() % 1000).as_bytes()),
            3 => data.extend(std::iter::repeat_n(random() as u8, (random() % 700) as usize + 1)),
            4 => data.push((random() as u8).leading_zeros() as u8 * 3),
            // Copies from near and far, of every length and of every small distance.
            _ => {
                let distance = 1 + random() as usize % if random() % 2 == 0 { 20 } else { 32_768 };
                if distance > data.len() {
                    data.push(random() as u8);
                } else {
                    let from = data.len() - distance;
                    for i in 0..3 + random() as usize % 300 {
                        data.push(data[from + i]);
                    }
                }
            }
        }
    }
    data.truncate(size);
    data
}

fn deflate(data: &[u8], level: u32, flush_every: usize) -> Vec<u8> {
    let mut encoder = Compress::new(Compression::new(level), false);
    let mut out = Vec::with_capacity(data.len() + 1024);
    for part in data.chunks(flush_every.max(1)) {
        out.reserve(part.len() * 2 + 1024);
        encoder.compress_vec(part, &mut out, FlushCompress::Sync).unwrap();
    }
    out.reserve(1024);
    encoder.compress_vec(&[], &mut out, FlushCompress::Finish).unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn valid_streams(kind: u8, size in 0usize..300_000, seed: u32, level in 0u32..10,
                     flush in prop_oneof![Just(1 << 20), 1usize..50_000],
                     chunks in prop::collection::vec(1usize..3_000, 0..40)) {
        let data = data(kind, size, seed);
        let stream = deflate(&data, level, flush);
        let behind = [&stream[..], b"what follows the stream is not its own"].concat();
        let decoded = compare(&behind);
        prop_assert!(decoded == Some((data, stream.len())));
        prop_assert!(ours(&behind, chunks) == decoded);
    }

    #[test]
    fn damaged_streams(kind: u8, size in 0usize..20_000, seed: u32, level in 0u32..10,
                       flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4), head_only: bool) {
        let mut stream = deflate(&data(kind, size, seed), level, 1 << 20);
        let reach = if head_only { stream.len().min(80) } else { stream.len() };
        for (at, bit) in flips {
            stream[at.index(reach)] ^= 1 << bit;
        }
        compare(&stream);
    }

    #[test]
    fn noise(first in 0u8..8, rest in prop::collection::vec(any::<u8>(), 0..400)) {
        compare(&[&[rest.first().copied().unwrap_or(0) & !7 | first], &rest[..]].concat());
    }

    #[test]
    fn truncated_streams(kind: u8, size in 1usize..5_000, seed: u32, level in 0u32..10, at: prop::sample::Index) {
        let stream = deflate(&data(kind, size, seed), level, 1 << 20);
        prop_assert!(compare(&stream[..at.index(stream.len())]).is_none());
    }
}

/// Writes bits, low ones first. Codes must be passed in reverse.
#[derive(Default)]
struct Bits(Vec<u8>, usize);

impl Bits {
    fn put(mut self, value: u64, count: usize) -> Bits {
        for i in 0..count {
            if self.1.is_multiple_of(8) {
                self.0.push(0);
            }
            if let Some(last) = self.0.last_mut() {
                *last |= (value.checked_shr(i as u32).unwrap_or(0) as u8 & 1) << (self.1 % 8);
            }
            self.1 += 1;
        }
        self
    }

    fn code(self, code: u64, count: usize) -> Bits {
        let reversed = code.reverse_bits() >> (64 - count);
        self.put(reversed, count)
    }
}

/// Streams at the limits of the format, which compressors do not produce.
#[test]
fn streams_at_the_limits_of_the_format() {
    let fixed = || Bits::default().put(0b011, 3);
    let end = |bits: Bits| bits.code(0, 7).0;
    let accepted = |stream: &[u8]| compare(stream).is_some();
    assert!(accepted(&end(fixed())), "an empty fixed block");
    assert!(!accepted(&end(fixed().code(0b11000110, 8))), "length symbol 286");
    assert!(!accepted(&end(fixed().code(0b11000111, 8))), "length symbol 287");
    assert!(!accepted(&end(fixed().code(0x30, 8).code(1, 7).code(30, 5))), "distance symbol 30");
    assert!(
        accepted(&end(fixed().code(0x30, 8).code(1, 7).code(0, 5))),
        "distance 1 after one byte"
    );
    assert!(
        !accepted(&end(fixed().code(0x30, 8).code(1, 7).code(1, 5))),
        "distance 2 after one byte"
    );
    assert!(!accepted(&Bits::default().put(0b111, 3).0), "block type 3");
    assert!(!accepted(&[1, 1, 0, 0xff, 0xff, 0]), "stored length and its complement differ");
    assert!(accepted(&[1, 1, 0, 0xfe, 0xff, 0]));

    // Dynamic blocks: counts, the code length code, and the rest from the test.
    let dynamic = |litlen: u64, distance: u64| {
        Bits::default().put(0b101, 3).put(litlen - 257, 5).put(distance - 1, 5)
    };
    assert!(!accepted(&dynamic(287, 1).put(0, 200).0), "287 length symbols");
    assert!(!accepted(&dynamic(257, 31).put(0, 200).0), "31 distance symbols");
    // Code lengths 0 and 1 and the run 18, with 1, 2 and 2 bits: order 16 17 18 0 8 7 9 6 10 5 11 4
    // 12 3 13 2 14 1.
    let lengths = |bits: Bits| {
        let bits = bits.put(14, 4).put(0, 3).put(0, 3).put(2, 3).put(1, 3);
        (0..13).fold(bits, |bits, _| bits.put(0, 3)).put(2, 3)
    };
    let zeros = |bits: Bits, n: u64| bits.code(0b11, 2).put(n - 11, 7);
    let one = |bits: Bits| bits.code(0b10, 2);
    let zero = |bits: Bits| bits.code(0, 1);
    let only_end = |distance: &dyn Fn(Bits) -> Bits| {
        let bits = zeros(zeros(lengths(dynamic(257, 1)), 138), 118);
        distance(one(bits)).put(0, 1)
    };
    assert!(accepted(&only_end(&zero).0), "a code of the end alone, no distances");
    assert!(accepted(&only_end(&one).0), "one distance of one bit");
    let other_bit = |distance: &dyn Fn(Bits) -> Bits| {
        let bits = zeros(zeros(lengths(dynamic(257, 1)), 138), 118);
        distance(one(bits)).put(1, 1).put(0, 20)
    };
    assert!(!accepted(&other_bit(&zero).0), "the bit that no code begins with");
    assert!(
        !accepted(&zeros(zeros(lengths(dynamic(258, 1)), 138), 121).put(0, 50).0),
        "no end of block"
    );
    assert!(
        !accepted(&zeros(zeros(lengths(dynamic(257, 1)), 138), 138).put(0, 50).0),
        "a run past the end"
    );
}

/// A second stream starts with an empty history, but the window spans both.
#[test]
fn a_second_stream_starts_with_an_empty_history() {
    let mut decoder = Inflate::new();
    let first = deflate(&[b'a'; 1000], 6, 1 << 20);
    let mut at = 0;
    loop {
        let step = decoder.step(&first[at..]).unwrap();
        at += step.consumed;
        if step.stop == Stop::End {
            break;
        }
    }
    decoder.restart();
    assert!(decoder.output().is_empty());
    assert!(decoder.window().ends_with(&[b'a'; 1000]));
    let reaches_back = Bits::default().put(0b011, 3).code(1, 7).code(0, 5).code(0, 7).0;
    assert!(decoder.step(&reaches_back).is_err());
}
