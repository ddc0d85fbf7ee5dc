//! The fast loop: symbols while neither end is near.
//!
//! Why it is fast: 64 bits are filled at once, without a branch, which is enough for three literals
//! or for a length with its extra bits. One table lookup gives everything about a symbol. The next
//! entry is loaded before a match is copied, which hides its latency. Matches are copied in words,
//! past their end. Nothing checks for the end of input or output, because both are further away
//! than one iteration can reach.
//!
//! Three changes that look better but are not, measured on layers (November 2026): copying 16 bytes
//! at once (the load stalls on the smaller stores before it), filling at the end of an iteration
//! instead of at its start, and masks that the compiler derives from shifts.
//!
//! Speed is the only reason for `unsafe` here: slices would check every load and store again
//! (measured: 20% slower). The invariants are stated at the loop. The loop in `mod.rs` does the
//! same safely; `tests/pure/inflate.rs` and the fuzz target `inflate` compare the two with each
//! other and with zlib-rs.

use super::tables::{END_OF_BLOCK, EXCEPTIONAL, LITERAL, SUBTABLE, low_bits, value};
use super::track::{NoTracker, Track};
use super::{Inflate, InflateError, Input, MARGIN};

/// Input that one iteration may read: two fills of 8 bytes, the second at most 7 bytes further on.
const INPUT_MARGIN: usize = 16;
/// The fill before the loop moves by less than this.
const FIRST_FILL: usize = 8;

const INVALID_LITLEN: InflateError = InflateError("invalid literal/length code");
const INVALID_DISTANCE: InflateError = InflateError("invalid distance code");
const TOO_FAR: InflateError = InflateError("invalid distance too far back");

impl Inflate {
    /// Decodes symbols of the current block until an end is near. Returns whether the block ended.
    ///
    /// It starts and ends between two symbols, with fewer than 8 unused bits. It may start with
    /// more, left from earlier input that ended inside a symbol. After filling, it decodes at least
    /// that symbol, so all bits that it returns come from this input.
    pub(super) fn fast(&mut self, input: &mut Input<'_>) -> Result<bool, InflateError> {
        match self.tracker.take() {
            Some(mut tracker) if self.end < tracker.end() => {
                let ended = self.fast_any(input, &mut *tracker);
                self.tracker = Some(tracker);
                ended
            }
            tracker => {
                self.tracker = tracker;
                self.fast_any(input, &mut NoTracker)
            }
        }
    }

    /// Stops where `track` ends.
    fn fast_any(
        &mut self,
        input: &mut Input<'_>,
        track: &mut impl Track,
    ) -> Result<bool, InflateError> {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("bmi2") {
            // SAFETY: the CPU has BMI2.
            return unsafe { self.fast_bmi2(input, track) };
        }
        self.fast_loop(input, track, low_bits)
    }

    /// The same loop with shifts that take their count from any register, and masks in one
    /// instruction.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi2")]
    fn fast_bmi2(
        &mut self,
        input: &mut Input<'_>,
        track: &mut impl Track,
    ) -> Result<bool, InflateError> {
        self.fast_loop(input, track, |stream, count| std::arch::x86_64::_bzhi_u64(stream, count))
    }

    /// `low` returns the low bits of its first argument; the low 8 bits of the second are their
    /// number.
    #[inline(always)]
    fn fast_loop(
        &mut self,
        input: &mut Input<'_>,
        track: &mut impl Track,
        low: impl Fn(u64, u32) -> u64,
    ) -> Result<bool, InflateError> {
        let Inflate { codes, buffer, .. } = self;
        let codes = &**codes;
        let range = input.bytes.as_ptr_range();
        let (Some(last_in), Some(last_out)) =
            (input.bytes.len().checked_sub(INPUT_MARGIN), buffer.len().checked_sub(MARGIN))
        else {
            return Ok(false);
        };
        let last_out = last_out.min(track.end());
        if input.at + FIRST_FILL > last_in || self.end > last_out {
            return Ok(false);
        }
        let mut bits = self.bits;
        let mut count = self.count;
        // SAFETY: `at` and `last_in` are at most the input's length; `end`, `last_out` and `floor`
        // are at most the buffer's length.
        let (mut next_in, last_in) =
            unsafe { (range.start.add(input.at), range.start.add(last_in)) };
        let base = buffer.as_mut_ptr();
        // SAFETY: as above.
        let (mut out, last_out, floor) =
            unsafe { (base.add(self.end), base.add(last_out), base.add(self.floor)) };
        let mut ended = false;

        /// Fills `bits` up to at least 56. `count` is exact in its low 8 bits only; above them
        /// subtractions leave noise.
        macro_rules! fill {
            () => {
                // SAFETY: at the loop's head `next_in <= last_in`, 16 bytes before the end; one
                // iteration fills twice, and each fill advances by at most 7 bytes.
                bits |= unsafe { load(next_in) }.wrapping_shl(count);
                next_in = unsafe { next_in.add((63 - (count & 0xff) as usize) >> 3) };
                count |= 56;
            };
        }
        /// Consumes the bits of an entry.
        macro_rules! consume {
            ($entry:expr) => {
                bits = bits.wrapping_shr($entry); // the low 6 bits count, and no entry has more than 28
                count = count.wrapping_sub($entry);
            };
        }
        macro_rules! literal {
            ($entry:expr) => {
                // SAFETY: at the loop's head `out <= last_out`, 320 bytes before the buffer's end;
                // one iteration writes at most two literals and a match of 258 bytes with 39 more,
                // or three literals.
                unsafe { out.write(($entry >> 16) as u8) };
                out = unsafe { out.add(1) };
            };
        }

        let (litlens, litlen_mask) = codes.litlen.parts();
        /// The entry for the next bits in the main part of a table. Kept in registers: stores to
        /// the output could change the tables for all the compiler knows.
        macro_rules! next {
            () => {
                // SAFETY: `Table::parts` gives a mask below the number of entries.
                unsafe { *litlens.get_unchecked(bits as usize & litlen_mask) }
            };
        }

        fill!();
        let mut entry = next!();
        // Invariants: `next_in <= last_in` and `out <= last_out`; `bits` were just filled, and
        // `entry` was looked up for them.
        while next_in <= last_in && out <= last_out {
            fill!();
            let mut stream = bits;
            consume!(entry);
            if entry & LITERAL != 0 {
                literal!(entry);
                entry = next!();
                stream = bits;
                consume!(entry);
                if entry & LITERAL != 0 {
                    literal!(entry);
                    entry = next!();
                    stream = bits;
                    consume!(entry);
                    if entry & LITERAL != 0 {
                        literal!(entry);
                        entry = next!();
                        continue;
                    }
                }
            }
            if entry & EXCEPTIONAL != 0 {
                if entry & SUBTABLE != 0 {
                    entry = codes.litlen.sub(entry, bits);
                    stream = bits;
                    consume!(entry);
                    if entry & LITERAL != 0 {
                        literal!(entry);
                        entry = next!();
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
            let length = value(entry, low(stream, entry)) as usize;
            let mut far = codes.distance.far(bits);
            if far & EXCEPTIONAL == 0 {
                if count & 0xff < 32 {
                    fill!();
                }
            } else {
                fill!();
                if far & SUBTABLE == 0 {
                    return Err(INVALID_DISTANCE);
                }
                consume!(far);
                far = codes.distance.sub(far, bits);
                if far & EXCEPTIONAL != 0 {
                    return Err(INVALID_DISTANCE);
                }
            }
            stream = bits;
            consume!(far);
            let distance = value(far, low(stream, far)) as usize;
            entry = next!();
            if distance > out as usize - floor as usize {
                return Err(TOO_FAR);
            }
            track.note(out as usize - base as usize, distance, length);
            // SAFETY: `distance` is at least 1 and reaches no further back than `floor`; there is
            // room, as above.
            unsafe { copy_match(out, distance, length) };
            out = unsafe { out.add(length) };
        }
        // Return the unused whole bytes: all of them came from this input.
        let left = count & 0xff;
        input.at = next_in as usize - range.start as usize - (left >> 3) as usize;
        self.count = left & 7;
        self.bits = bits & ((1 << self.count) - 1);
        self.end = out as usize - base as usize;
        Ok(ended)
    }
}

/// The 8 bytes at `from`, low byte first.
///
/// # Safety
/// The bytes must be readable.
#[inline(always)]
unsafe fn load(from: *const u8) -> u64 {
    // SAFETY: as the caller guarantees.
    u64::from_le_bytes(unsafe { from.cast::<[u8; 8]>().read() })
}

/// Copies `length` (3..=258) bytes from `distance` before `to` to `to`, where later bytes may copy
/// earlier ones. Writes up to 39 bytes more.
///
/// # Safety
/// `distance` bytes before `to` must be readable, and `length + 39` from `to` on readable and
/// writable.
#[inline(always)]
unsafe fn copy_match(to: *mut u8, distance: usize, length: usize) {
    // SAFETY: as the caller guarantees; every iteration begins before the match's end and writes at
    // most 40 bytes.
    unsafe {
        let from = to.sub(distance).cast_const();
        let mut done = 0;
        if distance >= 8 {
            // Most matches are no longer than this, so the next branch is nearly always predicted
            // correctly. As the first iteration of the loop, this made decoding 3% slower.
            copy_words(to, from);
            if length > 40 {
                let (mut to, mut from, end) = (to.add(40), from.add(40), to.add(length));
                while to < end {
                    copy_words(to, from);
                    (to, from) = (to.add(40), from.add(40));
                }
            }
        } else if distance == 1 {
            let run = [from.read(); 16];
            while done < length {
                to.add(done).cast::<[u8; 16]>().write(run);
                done += 16;
            }
        } else {
            // The first `distance` of the 8 bytes are right; the next iteration overwrites the
            // others.
            while done < length {
                copy_word(to.add(done), from.add(done));
                done += distance;
            }
        }
    }
}

/// Copies 40 bytes.
///
/// # Safety
/// 40 bytes must be readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy_words(to: *mut u8, from: *const u8) {
    for at in (0..40).step_by(8) {
        // SAFETY: as the caller guarantees.
        unsafe { copy_word(to.add(at), from.add(at)) };
    }
}

/// # Safety
/// 8 bytes must be readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy_word(to: *mut u8, from: *const u8) {
    // SAFETY: as the caller guarantees. All bytes are read before any is written.
    unsafe { to.cast::<[u8; 8]>().write(from.cast::<[u8; 8]>().read()) }
}
