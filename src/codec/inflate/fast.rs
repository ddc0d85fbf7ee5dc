//! The fast loop: symbols while neither end is near.
//!
//! Why it is fast: 64 bits are filled at once, without a branch, and suffice for up to three literals or for a length with its
//! extra bits; one table look-up gives everything about a symbol; the next entry is loaded before the copy of a match, so
//! that its latency hides behind it; matches are copied by words past their end. None of it checks for the ends of input or
//! output, since both are known to be further away than one turn of the loop can reach.
//!
//! This and nothing else is why there is `unsafe` here: with slices every load and store would be checked again (measured: a
//! fifth slower). The invariants stand at the loop; the safe twin is the loop in `mod.rs`, and `tests/inflate.rs`
//! and the fuzz target `inflate` compare the two with each other and with zlib-rs.

use super::tables::{END_OF_BLOCK, EXCEPTIONAL, LITERAL, SUBTABLE, value};
use super::{Inflate, InflateError, Input, MARGIN};

/// Input that one turn of the loop may read: two fills of 8 bytes, the second at most 7 bytes further on.
const INPUT_MARGIN: usize = 16;
/// The fill before the loop moves by less than this.
const FIRST_FILL: usize = 8;

const INVALID_LITLEN: InflateError = InflateError("invalid literal/length code");
const INVALID_DISTANCE: InflateError = InflateError("invalid distance code");
const TOO_FAR: InflateError = InflateError("invalid distance too far back");

impl Inflate {
    /// Decodes symbols of the current block until an end is near; says whether the block ended.
    ///
    /// Starts and ends at a symbol's border, with fewer than 8 bits taken from the input and not used; or it starts with more
    /// of them, which earlier input gave for a symbol that was too long for it. Once it has filled, it decodes that symbol at
    /// least: then all bits that it gives back are of this input.
    pub(super) fn fast(&mut self, input: &mut Input<'_>) -> Result<bool, InflateError> {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("bmi2") {
            // SAFETY: the CPU has BMI2.
            return unsafe { self.fast_bmi2(input) };
        }
        self.fast_loop(input)
    }

    /// The same loop with shifts that take their count from any register.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi2")]
    fn fast_bmi2(&mut self, input: &mut Input<'_>) -> Result<bool, InflateError> {
        self.fast_loop(input)
    }

    #[inline(always)]
    fn fast_loop(&mut self, input: &mut Input<'_>) -> Result<bool, InflateError> {
        let Inflate { litlen, distance: distances, buffer, .. } = self;
        let range = input.bytes.as_ptr_range();
        let (Some(last_in), Some(last_out)) =
            (input.bytes.len().checked_sub(INPUT_MARGIN), buffer.len().checked_sub(MARGIN))
        else {
            return Ok(false);
        };
        if input.at + FIRST_FILL > last_in || self.end > last_out {
            return Ok(false);
        }
        let (mut bits, mut count) = (self.bits, self.count);
        // SAFETY: `at` and `last_in` are at most the input's length, `end`, `last_out` and `floor` at most the buffer's.
        let (mut next_in, last_in) = unsafe { (range.start.add(input.at), range.start.add(last_in)) };
        let base = buffer.as_mut_ptr();
        let (mut out, mut ended) = (self.end, false);

        /// Fills `bits` up to at least 56. `count` is exact in its low 8 bits only; above them subtractions leave noise.
        macro_rules! fill {
            () => {
                // SAFETY: at the loop's head `next_in <= last_in`, 16 bytes before the end; one turn fills twice and a fill
                // moves by at most 7 bytes.
                bits |= unsafe { load(next_in) }.wrapping_shl(count);
                next_in = unsafe { next_in.add((63 - (count & 0xff) as usize) >> 3) };
                count |= 56;
            };
        }
        /// Uses up the bits of an entry.
        macro_rules! consume {
            ($entry:expr) => {
                bits = bits.wrapping_shr($entry); // the low 6 bits count, and no entry has more than 28
                count = count.wrapping_sub($entry);
            };
        }
        macro_rules! literal {
            ($entry:expr) => {
                // SAFETY: at the loop's head `out <= last_out`, 320 bytes before the buffer's end; one turn writes at most
                // two literals and a match of 258 bytes with 15 more, or three literals.
                unsafe { base.add(out).write(($entry >> 16) as u8) };
                out += 1;
            };
        }

        /// The entry for the next bits in the main part of a table. Kept in registers: stores to the output could change
        /// the tables for all the compiler knows.
        macro_rules! next {
            ($entries:ident, $mask:ident) => {
                // SAFETY: `Table::parts` gives a mask below the number of entries.
                unsafe { *$entries.get_unchecked(bits as usize & $mask) }
            };
        }
        let (litlens, litlen_mask) = litlen.parts();
        let (fars, far_mask) = distances.parts();

        fill!();
        let mut entry = next!(litlens, litlen_mask);
        // Invariants: `next_in <= last_in` and `out <= last_out`; `entry` is the one for `bits`, which hold at least 11.
        while next_in <= last_in && out <= last_out {
            fill!();
            if entry & LITERAL != 0 {
                consume!(entry);
                literal!(entry);
                entry = next!(litlens, litlen_mask);
                if entry & LITERAL != 0 {
                    consume!(entry);
                    literal!(entry);
                    entry = next!(litlens, litlen_mask);
                    if entry & LITERAL != 0 {
                        consume!(entry);
                        literal!(entry);
                        entry = next!(litlens, litlen_mask);
                        continue;
                    }
                }
            }
            // At least 34 bits are left, and a length takes at most 20.
            let mut stream = bits;
            consume!(entry);
            if entry & EXCEPTIONAL != 0 {
                if entry & SUBTABLE != 0 {
                    entry = litlen.sub(entry, bits);
                    stream = bits;
                    consume!(entry);
                    if entry & LITERAL != 0 {
                        literal!(entry);
                        entry = next!(litlens, litlen_mask);
                        continue;
                    }
                }
                if entry & END_OF_BLOCK != 0 {
                    ended = true;
                    break;
                }
                if entry & EXCEPTIONAL != 0 {
                    return Err(INVALID_LITLEN);
                }
            }
            let length = value(entry, stream) as usize;
            fill!();
            // At least 56 bits: a distance takes at most 28 and leaves enough for the next entry.
            let mut far = next!(fars, far_mask);
            stream = bits;
            consume!(far);
            if far & EXCEPTIONAL != 0 {
                if far & SUBTABLE == 0 {
                    return Err(INVALID_DISTANCE);
                }
                far = distances.sub(far, bits);
                stream = bits;
                consume!(far);
                if far & EXCEPTIONAL != 0 {
                    return Err(INVALID_DISTANCE);
                }
            }
            let distance = value(far, stream) as usize;
            entry = next!(litlens, litlen_mask);
            if distance > out - self.floor {
                return Err(TOO_FAR);
            }
            // SAFETY: `distance` is at least 1 and reaches no further back than `floor`; the room is there, as above.
            unsafe { copy_match(base.add(out), distance, length) };
            out += length;
        }
        // Gives back the whole bytes that were not used: all of them came from this input.
        let left = count & 0xff;
        input.at = next_in as usize - range.start as usize - (left >> 3) as usize;
        self.count = left & 7;
        self.bits = bits & ((1 << self.count) - 1);
        self.end = out;
        Ok(ended)
    }
}

/// The 8 bytes at `from`, low byte first.
///
/// # Safety
/// They must be readable.
#[inline(always)]
unsafe fn load(from: *const u8) -> u64 {
    // SAFETY: the caller's.
    u64::from_le_bytes(unsafe { from.cast::<[u8; 8]>().read() })
}

/// Copies `length` bytes from `distance` before `to` to `to`, each byte as soon as it is there; writes up to 15 bytes more.
///
/// # Safety
/// `distance` bytes before `to` must be readable, and `length + 15` from `to` on readable and writable.
#[inline(always)]
unsafe fn copy_match(mut to: *mut u8, distance: usize, length: usize) {
    // SAFETY: the caller's; every access begins before the match's end.
    unsafe {
        let end = to.add(length);
        let mut from = to.sub(distance).cast_const();
        if distance >= 16 {
            while to < end {
                to.cast::<[u8; 16]>().write(from.cast::<[u8; 16]>().read());
                (to, from) = (to.add(16), from.add(16));
            }
        } else if distance >= 8 {
            while to < end {
                to.cast::<[u8; 8]>().write(from.cast::<[u8; 8]>().read());
                (to, from) = (to.add(8), from.add(8));
            }
        } else if distance == 1 {
            let run = [from.read(); 16];
            while to < end {
                to.cast::<[u8; 16]>().write(run);
                to = to.add(16);
            }
        } else {
            // The first `distance` of the 8 bytes are right, and the next turn mends the others.
            while to < end {
                to.cast::<[u8; 8]>().write(from.cast::<[u8; 8]>().read());
                (to, from) = (to.add(distance), from.add(distance));
            }
        }
    }
}
