//! Random numbers that a seed repeats.

/// xorshift64* (Vigna: An experimental exploration of Marsaglia's xorshift generators).
pub struct Random(u64);

impl Random {
    /// Each `stream` of a seed is another sequence.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random((seed ^ (stream + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        random.below(2);
        random
    }

    /// A number from 0 to `end`, without it.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % end
    }
}
