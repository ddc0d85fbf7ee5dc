//! The bytes of a window that are referred to.

use std::ops::Range;

use super::WINDOW;

const WORDS: usize = WINDOW / 64;

/// A set of bytes of a window, by position.
#[derive(Clone, PartialEq, Eq)]
pub struct UsedBytes {
    words: Box<[u64; WORDS]>,
}

impl Default for UsedBytes {
    fn default() -> UsedBytes {
        UsedBytes { words: Box::new([0; WORDS]) }
    }
}

impl UsedBytes {
    /// Empties the set.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Adds the bytes of `range` that lie inside the window.
    #[inline]
    pub fn mark(&mut self, range: Range<usize>) {
        let mut from = range.start;
        let end = range.end.min(WINDOW);
        while from < end {
            let word = from / 64;
            let bit = from % 64;
            let count = (end - from).min(64 - bit);
            self.words[word] |= (u64::MAX >> (64 - count)) << bit;
            from += count;
        }
    }

    /// The bytes of the set, in order and in as few ranges as possible.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, 0)?;
            let end = self.next(start, u64::MAX).unwrap_or(WINDOW);
            at = end;
            Some(start..end)
        })
    }

    /// The first position at or after `from` that is in the set, or, if all bits of `flip` are set,
    /// that is not.
    fn next(&self, from: usize, flip: u64) -> Option<usize> {
        let mut skipped = from % 64;
        for word in from / 64..WORDS {
            let bits = (self.words[word] ^ flip) >> skipped;
            if bits != 0 {
                return Some(word * 64 + skipped + bits.trailing_zeros() as usize);
            }
            skipped = 0;
        }
        None
    }
}

impl std::fmt::Debug for UsedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ranges()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_match_the_marked_bytes(marks in prop::collection::vec((0..WINDOW + 10, 0usize..300), 0..50)) {
            let mut used = UsedBytes::default();
            let mut expected = vec![false; WINDOW];
            for (from, length) in marks {
                used.mark(from..from + length);
                (from..from + length).filter(|at| *at < WINDOW).for_each(|at| expected[at] = true);
            }
            let mut marked = vec![false; WINDOW];
            let mut before = None;
            for range in used.ranges() {
                prop_assert!(!range.is_empty() && before.is_none_or(|end| end < range.start));
                before = Some(range.end);
                marked[range].fill(true);
            }
            prop_assert_eq!(marked, expected);
            used.clear();
            prop_assert_eq!(used, UsedBytes::default());
        }
    }
}
