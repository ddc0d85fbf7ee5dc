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

/// xorshift64 (Marsaglia: Xorshift RNGs).
pub fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    })
}

/// Letters that compress to about a third, without regularities that could hide a mistake.
pub fn letters(seed: u64) -> impl Iterator<Item = u8> {
    numbers(seed).map(|number| b"etaoin shrdlu\n\0"[(number >> 33) as usize % 15])
}

/// Which of `total` points to test: all if `variable` is `all`, otherwise `sample` of them, one of
/// each group of neighbours, by the seed in the variable.
pub fn sampled(variable: &str, total: usize, sample: usize) -> Vec<usize> {
    let asked = std::env::var(variable).unwrap_or_else(|_| "1".to_owned());
    if asked == "all" || total <= sample {
        return (0..total).collect();
    }
    let group = total.div_ceil(sample);
    let numbers = numbers(asked.parse().expect("a seed"));
    let steps = (0..total).step_by(group).zip(numbers);
    steps.map(|(at, number)| (at + (number >> 33) as usize % group).min(total - 1)).collect()
}
