//! What the bytes of a document consist of: numbers of variable length (LEB128: seven bits in a
//! byte, low ones first), and zstd frames.

use zstd::zstd_safe::{
    ErrorCode, InBuffer, OutBuffer, ResetDirective, compress_bound, find_frame_compressed_size,
    get_frame_content_size,
};

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
        let (taken, rest) =
            self.bytes.split_at_checked(count).ok_or(FineError::Short(self.section))?;
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
        usize::try_from(value)
            .ok()
            .filter(|length| *length <= self.left())
            .ok_or(FineError::Short(self.section))
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

/// Compresses data to frames that state their size. All frames share one zstd context.
pub(super) struct Compressor {
    level: i32,
    context: Option<zstd::bulk::Compressor<'static>>,
    stored: Vec<u8>,
}

impl Compressor {
    /// Takes no memory until it is used.
    pub(super) fn new(level: i32) -> Compressor {
        Compressor { level, context: None, stored: Vec::new() }
    }

    /// Compresses `plain` to a frame that does not depend on earlier ones.
    ///
    /// # Errors
    /// If zstd cannot allocate memory.
    pub(super) fn compress(&mut self, plain: &[u8]) -> Result<Vec<u8>, FineError> {
        let context = prepared(&mut self.context, self.level)?;
        self.stored.clear();
        self.stored.reserve(compress_bound(plain.len()));
        context.compress_to_buffer(plain, &mut self.stored).map_err(|_| FineError::Compress)?;
        // Copied, to drop the capacity reserved for the worst case.
        Ok(self.stored.to_vec())
    }

    /// The same for data of two kinds, of which each gets blocks with entropy tables of their own.
    ///
    /// # Errors
    /// If zstd cannot allocate memory.
    pub(super) fn compress_both(
        &mut self,
        first: &[u8],
        second: &[u8],
    ) -> Result<Vec<u8>, FineError> {
        let context = prepared(&mut self.context, self.level)?.context_mut();
        let size = first.len() + second.len();
        self.stored.clear();
        // What ends the first part takes a block more.
        self.stored.reserve(compress_bound(size) + 64);
        let mut stored = OutBuffer::around(&mut self.stored);
        let mut compressed = || {
            context.reset(ResetDirective::SessionOnly)?;
            context.set_pledged_src_size(Some(size as u64))?;
            let mut one = InBuffer::around(first);
            let mut other = InBuffer::around(second);
            context.compress_stream(&mut stored, &mut one)?;
            let left = context.flush_stream(&mut stored)?;
            context.compress_stream(&mut stored, &mut other)?;
            Ok(left + context.end_stream(&mut stored)? + (size - one.pos() - other.pos()))
        };
        match compressed() {
            Ok(0) => Ok(self.stored.to_vec()),
            Ok(_) | Err::<_, ErrorCode>(_) => Err(FineError::Compress),
        }
    }
}

/// The context, which is made at its first use.
fn prepared<'a>(
    context: &'a mut Option<zstd::bulk::Compressor<'static>>,
    level: i32,
) -> Result<&'a mut zstd::bulk::Compressor<'static>, FineError> {
    Ok(match context {
        Some(context) => context,
        none => none.insert(zstd::bulk::Compressor::new(level).map_err(|_| FineError::Compress)?),
    })
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").field("level", &self.level).finish_non_exhaustive()
    }
}

/// Decodes a frame to `size` bytes, for which the caller has reserved memory. Errors name
/// `section`.
///
/// # Errors
/// If `frame` is not exactly one such frame.
pub(super) fn decompress(
    frame: &[u8],
    size: usize,
    section: &'static str,
) -> Result<Vec<u8>, FineError> {
    let is_stated =
        matches!(get_frame_content_size(frame), Ok(Some(stated)) if stated == size as u64);
    let is_one = find_frame_compressed_size(frame).is_ok_and(|length| length == frame.len());
    if !is_stated || !is_one {
        return Err(FineError::Frame(section));
    }
    let plain = zstd::bulk::decompress(frame, size).map_err(|_| FineError::Frame(section))?;
    if plain.len() == size { Ok(plain) } else { Err(FineError::Frame(section)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        let mut bytes = Vec::new();
        let unsigned = [0, 1, 127, 128, 300, u64::MAX];
        let signed = [0, -1, 1, 63, -64, 64, i64::MIN, i64::MAX];
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

    #[test]
    fn frames_do_not_depend_on_earlier_ones() {
        let mut compressor = Compressor::new(3);
        // Each input repeats much of the previous one, to which its frame must not refer. Sizes go
        // up and down.
        for size in [100_000, 70, 0, 9_000, 1 << 20, 300_000, 30_000] {
            let plain: Vec<u8> = (0..size as u32)
                .flat_map(|n| (n.wrapping_mul(n) / 5).to_le_bytes())
                .take(size)
                .collect();
            let frame = compressor.compress(&plain).unwrap();
            assert_eq!(frame, zstd::bulk::compress(&plain, 3).unwrap(), "{size} bytes");
            assert_eq!(frame.capacity(), frame.len());
        }
    }

    #[test]
    fn both_parts_are_in_one_frame() {
        let mut compressor = Compressor::new(3);
        for (first, second) in
            [(0, 0), (0, 9), (9, 0), (1, 1), (300_000, 4), (70, 4 << 20), (1 << 20, 500_000)]
        {
            let numbers: Vec<u8> =
                (0..first as u32).map(|n| (n.wrapping_mul(n) >> 7) as u8 & 15).collect();
            let noise: Vec<u8> =
                (0..second as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let frame = compressor.compress_both(&numbers, &noise).unwrap();
            assert_eq!(decompress(&frame, first + second, "x"), Ok([numbers, noise].concat()));
        }
    }

    #[test]
    fn only_a_single_frame_with_a_stated_size_is_accepted() {
        let plain: Vec<u8> = (0..5000u32).flat_map(u32::to_le_bytes).collect();
        let frame = Compressor::new(3).compress(&plain).unwrap();
        assert_eq!(decompress(&frame, plain.len(), "x"), Ok(plain.clone()));

        let streamed = zstd::stream::encode_all(&plain[..], 3).unwrap();
        let skippable = [&b"\x50\x2a\x4d\x18\x03\0\0\0abc"[..], &frame].concat();
        let mut lie = frame.clone();
        lie[5] ^= 1;
        let frames = [&frame[..], &frame].concat();
        for wrong in
            [&streamed[..], &skippable, &lie, &frames, &frame[..frame.len() - 1], b"abc", b""]
        {
            assert_eq!(decompress(wrong, plain.len(), "x"), Err(FineError::Frame("x")));
        }
        assert_eq!(decompress(&frame, plain.len() - 1, "x"), Err(FineError::Frame("x")));
        assert_eq!(decompress(&frame, usize::MAX, "x"), Err(FineError::Frame("x")));
    }
}
