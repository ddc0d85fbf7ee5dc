//! Copies of short texts.

/// Copies `from` to `to`, which has the same length.
///
/// `copy_from_slice` calls memcpy. For a few bytes, musl's memcpy takes longer than everything else
/// that writing them needs, and a ztoc has six texts for each file.
#[inline]
pub(crate) fn copy_short(to: &mut [u8], from: &[u8]) {
    debug_assert_eq!(to.len(), from.len());
    match from.len() {
        0 => {}
        length @ 1..4 => [0, length / 2, length - 1].into_iter().for_each(|at| to[at] = from[at]),
        4..8 => copy_ends::<4>(to, from),
        8..16 => copy_ends::<8>(to, from),
        16..32 => copy_ends::<16>(to, from),
        32..64 => copy_ends::<32>(to, from),
        64..=128 => copy_ends::<64>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first and the last `N` bytes, which meet or overlap.
#[inline]
fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    if let (Some(first), Some(to)) = (from.first_chunk::<N>(), to.first_chunk_mut()) {
        *to = *first;
    }
    if let (Some(last), Some(to)) = (from.last_chunk::<N>(), to.last_chunk_mut()) {
        *to = *last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_whole() {
        let from: Vec<u8> = (1..=200).collect();
        for length in 0..from.len() {
            let mut to = vec![0; length];
            copy_short(&mut to, &from[..length]);
            assert_eq!(to, from[..length]);
        }
    }
}
