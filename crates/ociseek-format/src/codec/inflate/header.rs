//! The codes of a block: the fixed ones, and those in the header of a dynamic block (RFC 1951,
//! sections 3.2.6 and 3.2.7).

use super::tables::{BadCode, DISTANCE_SYMBOLS, LITLEN_SYMBOLS, bits, low_bits};
use super::{Inflate, InflateError, Input};

/// A code length takes at most 7 bits for its code and 7 for a run.
const CODE_LENGTH_AT_MOST: u32 = 14;

impl Inflate {
    /// Decodes code lengths of a dynamic block's header from index `read`, while 8 bytes of input
    /// are left, and returns the bytes it over-read. As in the fast loop, these come from this
    /// input, because a code that was incomplete before is decoded first.
    pub(super) fn code_lengths(
        &mut self,
        input: &mut Input<'_>,
        mut read: usize,
    ) -> Result<usize, InflateError> {
        let total = self.litlen_count + self.distance_count;
        let start = read;
        while read < total
            && let Some(next) = input.bytes[input.at..].first_chunk()
        {
            self.bits |= u64::from_le_bytes(*next) << self.count;
            input.at += (63 - self.count as usize) >> 3;
            self.count |= 56;
            while read < total && self.count >= CODE_LENGTH_AT_MOST {
                read = self.code_length(read)?;
            }
        }
        if read > start {
            input.at -= self.count as usize >> 3;
            self.count &= 7;
        }
        self.bits = low_bits(self.bits, self.count);
        Ok(read)
    }

    /// Decodes one code length or run, whose bits are all available. Returns the new number of
    /// lengths.
    pub(super) fn code_length(&mut self, read: usize) -> Result<usize, InflateError> {
        let (symbol, code, extra) = self.code_length_code();
        let extra_bits = low_bits(self.bits >> code, extra) as usize;
        self.drop_bits(code + extra);
        let (length, run) = match (symbol, read) {
            (0..16, _) => {
                self.lengths[read] = symbol as u8;
                return Ok(read + 1);
            }
            (16, 0) => return Err(InflateError("invalid bit length repeat")),
            (16, _) => (self.lengths[read - 1], 3 + extra_bits),
            (17, _) => (0, 3 + extra_bits),
            _ => (0, 11 + extra_bits),
        };
        if read + run > self.litlen_count + self.distance_count {
            return Err(InflateError("invalid bit length repeat"));
        }
        self.lengths[read..read + run].fill(length);
        Ok(read + run)
    }

    /// The next symbol of the code for code lengths, the length of its code, and its extra bits.
    pub(super) fn code_length_code(&self) -> (u32, u32, u32) {
        let (entry, _) = self.code_length_table.resolve(self.bits);
        let extra = match entry >> 16 {
            0..16 => 0,
            16 => 2,
            17 => 3,
            _ => 7,
        };
        (entry >> 16, bits(entry), extra)
    }

    pub(super) fn use_dynamic_codes(&mut self) -> Result<(), InflateError> {
        let lengths = &self.lengths[..self.litlen_count + self.distance_count];
        let (litlen, distance) = lengths.split_at(self.litlen_count);
        if litlen[256] == 0 {
            return Err(InflateError("invalid code -- missing end-of-block"));
        }
        self.codes
            .litlen
            .build_litlen(litlen)
            .map_err(|_| InflateError("invalid literal/lengths set"))?;
        self.codes
            .distance
            .build_distance(distance)
            .map_err(|_| InflateError("invalid distances set"))
    }

    /// Uses the fixed codes (RFC 1951, section 3.2.6).
    pub(super) fn use_fixed_codes(&mut self) -> Result<(), InflateError> {
        let mut litlen = [8; LITLEN_SYMBOLS];
        litlen[144..256].fill(9);
        litlen[256..280].fill(7);
        let built: Result<(), BadCode> = self
            .codes
            .litlen
            .build_litlen(&litlen)
            .and_then(|()| self.codes.distance.build_distance(&[5; DISTANCE_SYMBOLS]));
        built.map_err(|_| InflateError("the fixed codes are complete"))
    }
}
