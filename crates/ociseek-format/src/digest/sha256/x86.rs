//! The rounds of two SHA-256 with the SHA instructions of x86, interleaved.
//!
//! The only unsafe operation is calling a function that needs a CPU with these instructions. The
//! function itself works on values, without pointers. The tests of `sha256` and the fuzz target
//! `sha256` compare it with the sha2 crate.

use std::arch::x86_64::*;

use super::BLOCK;

/// Section 4.2.2, four to a row.
const K: [[u32; 4]; 16] = [
    [0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5],
    [0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5],
    [0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3],
    [0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174],
    [0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc],
    [0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da],
    [0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7],
    [0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967],
    [0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13],
    [0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85],
    [0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3],
    [0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070],
    [0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5],
    [0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3],
    [0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208],
    [0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2],
];

/// Compresses the same number of blocks into each of the two states. Returns false if the CPU
/// cannot.
pub(super) fn compress_both(
    a: &mut [u32; 8],
    blocks_a: &[[u8; BLOCK]],
    b: &mut [u32; 8],
    blocks_b: &[[u8; BLOCK]],
) -> bool {
    let able = is_x86_feature_detected!("sha")
        && is_x86_feature_detected!("sse2")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("sse4.1");
    if able {
        // SAFETY: the CPU has the instructions that the function needs.
        unsafe { compress(a, blocks_a, b, blocks_b) };
    }
    able
}

/// The state in the layout of the instructions: words a, b, e, f and c, d, g, h, with the first of
/// each highest.
#[derive(Clone, Copy)]
struct State {
    abef: __m128i,
    cdgh: __m128i,
}

#[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
fn compress(
    state_a: &mut [u32; 8],
    blocks_a: &[[u8; BLOCK]],
    state_b: &mut [u32; 8],
    blocks_b: &[[u8; BLOCK]],
) {
    let mut one = load(state_a);
    let mut two = load(state_b);
    for (block_a, block_b) in blocks_a.iter().zip(blocks_b) {
        let before_one = one;
        let before_two = two;
        let [mut a, mut b, mut c, mut d] = words(block_a);
        let [mut e, mut f, mut g, mut h] = words(block_b);
        /// Four rounds of both hashes, with the words `$m` and `$n`. Written as a macro because in
        /// a loop the words would not stay in registers.
        macro_rules! rounds {
            ($row:literal, $m:ident, $n:ident) => {
                let k = vector(K[$row]);
                let w = _mm_add_epi32($m, k);
                let v = _mm_add_epi32($n, k);
                one.cdgh = _mm_sha256rnds2_epu32(one.cdgh, one.abef, w);
                two.cdgh = _mm_sha256rnds2_epu32(two.cdgh, two.abef, v);
                one.abef = _mm_sha256rnds2_epu32(one.abef, one.cdgh, _mm_shuffle_epi32(w, 0x0e));
                two.abef = _mm_sha256rnds2_epu32(two.abef, two.cdgh, _mm_shuffle_epi32(v, 0x0e));
            };
        }
        /// The next sixteen words of both hashes, which replace the used ones, and their rounds.
        macro_rules! scheduled_rounds {
            ($first:literal, $second:literal, $third:literal, $fourth:literal) => {
                (a, e) = (scheduled(a, b, c, d), scheduled(e, f, g, h));
                rounds!($first, a, e);
                (b, f) = (scheduled(b, c, d, a), scheduled(f, g, h, e));
                rounds!($second, b, f);
                (c, g) = (scheduled(c, d, a, b), scheduled(g, h, e, f));
                rounds!($third, c, g);
                (d, h) = (scheduled(d, a, b, c), scheduled(h, e, f, g));
                rounds!($fourth, d, h);
            };
        }
        rounds!(0, a, e);
        rounds!(1, b, f);
        rounds!(2, c, g);
        rounds!(3, d, h);
        scheduled_rounds!(4, 5, 6, 7);
        scheduled_rounds!(8, 9, 10, 11);
        scheduled_rounds!(12, 13, 14, 15);
        (one, two) = (sum(one, before_one), sum(two, before_two));
    }
    (*state_a, *state_b) = (store(one), store(two));
}

/// Section 6.2.2, step 1: four words from the sixteen before them.
#[inline]
#[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
fn scheduled(first: __m128i, second: __m128i, third: __m128i, fourth: __m128i) -> __m128i {
    let sum = _mm_add_epi32(_mm_sha256msg1_epu32(first, second), _mm_alignr_epi8(fourth, third, 4));
    _mm_sha256msg2_epu32(sum, fourth)
}

#[inline]
#[target_feature(enable = "sse2")]
fn sum(a: State, b: State) -> State {
    State { abef: _mm_add_epi32(a.abef, b.abef), cdgh: _mm_add_epi32(a.cdgh, b.cdgh) }
}

/// A vector of four words, the first lowest.
#[inline]
#[target_feature(enable = "sse2")]
fn vector([a, b, c, d]: [u32; 4]) -> __m128i {
    _mm_set_epi32(d as i32, c as i32, b as i32, a as i32)
}

/// A block's words, which are stored with the high byte first.
#[inline]
#[target_feature(enable = "sse2,ssse3")]
fn words(block: &[u8; BLOCK]) -> [__m128i; 4] {
    let (rows, _) = block.as_chunks::<16>();
    // Not a closure: inside one, these instructions would become calls.
    [row(rows[0]), row(rows[1]), row(rows[2]), row(rows[3])]
}

#[inline]
#[target_feature(enable = "sse2,ssse3")]
fn row(bytes: [u8; 16]) -> __m128i {
    let bytes = u128::from_le_bytes(bytes);
    let swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    _mm_shuffle_epi8(_mm_set_epi64x((bytes >> 64) as i64, bytes as i64), swap)
}

#[inline]
#[target_feature(enable = "sse2")]
fn load([a, b, c, d, e, f, g, h]: &[u32; 8]) -> State {
    State { abef: vector([*f, *e, *b, *a]), cdgh: vector([*h, *g, *d, *c]) }
}

#[inline]
#[target_feature(enable = "sse2,sse4.1")]
fn store(state: State) -> [u32; 8] {
    let word = |vector: __m128i| {
        [
            _mm_extract_epi32(vector, 0) as u32,
            _mm_extract_epi32(vector, 1) as u32,
            _mm_extract_epi32(vector, 2) as u32,
            _mm_extract_epi32(vector, 3) as u32,
        ]
    };
    let ([f, e, b, a], [h, g, d, c]) = (word(state.abef), word(state.cdgh));
    [a, b, c, d, e, f, g, h]
}
