//! Reads and writes numbers of variable length (LEB128: seven bits in a byte, low ones first).

use super::FineError;

/// Appends `value`.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number: 0, -1, 1, -2 become 0, 1, 2, 3.
pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, (value << 1 ^ value >> 63) as u64);
}

/// Reads a section from the front. Errors name the section.
#[derive(Clone)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    section: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], section: &'static str) -> Reader<'a> {
        Reader { bytes, section }
    }

    /// The number of bytes left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], FineError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(FineError::Short(self.section))?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, FineError> {
        let (first, rest) = self.bytes.split_first().ok_or(FineError::Short(self.section))?;
        self.bytes = rest;
        Ok(*first)
    }

    #[inline]
    pub(super) fn number(&mut self) -> Result<u64, FineError> {
        // Most numbers have one byte.
        match self.bytes {
            [byte @ 0..0x80, rest @ ..] => {
                self.bytes = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> Result<u64, FineError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let low = u64::from(byte & 0x7f);
            // The tenth byte may only have one bit.
            if shift == 63 && byte > 1 {
                return Err(self.out_of_range());
            }
            value |= low << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.out_of_range())
    }

    /// Skips `count` numbers, and returns a reader that starts with the first of them.
    pub(super) fn column(&mut self, count: usize) -> Result<Reader<'a>, FineError> {
        let column = self.clone();
        for _ in 0..count {
            self.number()?;
        }
        Ok(column)
    }

    pub(super) fn signed(&mut self) -> Result<i64, FineError> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(super) fn u32(&mut self) -> Result<u32, FineError> {
        u32::try_from(self.number()?).map_err(|_| self.out_of_range())
    }

    /// Reads a count of items that take at least a byte each, and checks it against the bytes left.
    pub(super) fn length(&mut self) -> Result<usize, FineError> {
        let value = self.number()?;
        usize::try_from(value).ok().filter(|length| *length <= self.left()).ok_or(FineError::Short(self.section))
    }

    pub(super) fn out_of_range(&self) -> FineError {
        FineError::Number(self.section)
    }

    /// # Errors
    /// If bytes are left.
    pub(super) fn end(&self) -> Result<(), FineError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(FineError::Rest(self.section)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        let mut bytes = Vec::new();
        let (unsigned, signed) = ([0, 1, 127, 128, 300, u64::MAX], [0, -1, 1, 63, -64, 64, i64::MIN, i64::MAX]);
        unsigned.iter().for_each(|value| put(&mut bytes, *value));
        signed.iter().for_each(|value| put_signed(&mut bytes, *value));
        let mut reader = Reader::new(&bytes, "numbers");
        assert_eq!(unsigned.map(|_| reader.number().unwrap()), unsigned);
        assert_eq!(signed.map(|_| reader.signed().unwrap()), signed);
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn invalid_numbers_are_refused() {
        for (bytes, error) in [
            (&[][..], FineError::Short("x")),
            (&[0x80], FineError::Short("x")),
            (&[0xff; 10], FineError::Number("x")),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], FineError::Number("x")),
        ] {
            assert_eq!(Reader::new(bytes, "x").number(), Err(error));
        }
        assert_eq!(Reader::new(&[3, 1, 1], "x").length(), Err(FineError::Short("x")));
        assert_eq!(Reader::new(&[3, 1], "x").end(), Err(FineError::Rest("x")));
    }
}
