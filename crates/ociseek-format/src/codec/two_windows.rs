//! Decoding without the window. Whatever the bytes before a block are, its matches are the same: so
//! it is decoded twice, with two windows that were made up. They differ in each byte, and no two
//! bytes of a window have the same pair. Where the results agree, they do not depend on the window;
//! where they differ, the pair says which byte of the window belongs there.
//!
//! Others decode once, to symbols of 16 bits that are bytes or places in the window (pugz,
//! rapidgzip). That takes a second decoder, and its output must be narrowed.

use super::WINDOW;

/// The windows that are made up.
pub(super) static WINDOWS: [[u8; WINDOW]; 2] = {
    let mut windows = [[0; WINDOW]; 2];
    let mut at = 0;
    while at < WINDOW {
        windows[0][at] = at as u8;
        windows[1][at] = (at as u8).wrapping_add(1 + (at >> 8) as u8);
        at += 1;
    }
    windows
};

/// Where a pair of results is looked up. The pairs of equal bytes come first, those of the window's
/// bytes follow in their order.
fn place(one: u8, other: u8) -> usize {
    usize::from(other.wrapping_sub(one)) << 8 | usize::from(one)
}

/// Puts the bytes of `window` into `plain`, which was decoded with the first of [`WINDOWS`].
/// `other` is the beginning of what the second one gives, as far as they may differ.
pub(super) fn resolve(plain: &mut [u8], other: &[u8], window: &[u8; WINDOW]) {
    // One look-up for each byte, whether they agree or not: where they do is hard to predict.
    let mut meant = vec![0; 1 << 16];
    for (at, byte) in (0..=u8::MAX).chain(window.iter().copied()).enumerate() {
        meant[at] = byte;
    }
    for (one, other) in plain.iter_mut().zip(other) {
        *one = meant[place(*one, *other)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_of_a_window_is_told_from_the_others_and_from_plain_bytes() {
        let [one, other] = &WINDOWS;
        for at in 0..WINDOW {
            assert_ne!(one[at], other[at]);
            assert_eq!(place(one[at], other[at]), 256 + at);
            assert_eq!(place(at as u8, at as u8), at % 256);
        }
        let window: [u8; WINDOW] = std::array::from_fn(|at| (at / 3) as u8);
        let mut plain = [&one[..], b"plain", &one[7..9]].concat();
        resolve(&mut plain, &[&other[..], b"plain", &other[7..9]].concat(), &window);
        assert_eq!(plain, [&window[..], b"plain", &window[7..9]].concat());
        // What the second one does not have is not touched.
        let mut plain = *one;
        resolve(&mut plain, &other[..5], &window);
        assert_eq!(plain[..5], window[..5]);
        assert_eq!(plain[5..], one[5..]);
    }
}
