//! A deflate stream that no common tool writes.

use super::noise;

/// Writes deflate by hand and records the decoded bytes.
#[derive(Default)]
struct Deflate {
    bytes: Vec<u8>,
    bits: u64,
    count: u32,
    plain: Vec<u8>,
}

impl Deflate {
    fn put(&mut self, value: u64, count: u32) {
        self.bits |= value << self.count;
        self.count += count;
        while self.count >= 8 {
            self.bytes.push(self.bits as u8);
            (self.bits, self.count) = (self.bits >> 8, self.count - 8);
        }
    }

    /// Writes a fixed Huffman code, high bit first.
    fn code(&mut self, code: u64, count: u32) {
        self.put(code.reverse_bits() >> (64 - count), count);
    }

    fn stored(&mut self, bytes: &[u8], last: bool) {
        self.put(u64::from(last), 3);
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
        let length = bytes.len() as u64;
        self.put(length | (!length & 0xffff) << 16, 32);
        self.bytes.extend_from_slice(bytes);
        self.plain.extend_from_slice(bytes);
    }

    /// Starts a block with the fixed codes.
    fn fixed(&mut self) {
        self.put(0b010, 3);
    }

    fn literal(&mut self, byte: u8) {
        match byte {
            0..144 => self.code(0x30 + u64::from(byte), 8),
            144.. => self.code(0x190 + u64::from(byte - 144), 9),
        }
        self.plain.push(byte);
    }

    /// A match of 258 or 3 bytes.
    fn copy(&mut self, is_long: bool, distance: usize) {
        let length = if is_long { 258 } else { 3 };
        if is_long {
            self.code(0xc0 + 285 - 280, 8)
        } else {
            self.code(1, 7)
        }
        let far = distance - 1;
        let (symbol, extra) = match far {
            0..4 => (far as u64, 0),
            _ => {
                let log = far.ilog2();
                (u64::from(2 * log) + (far >> (log - 1) & 1) as u64, log - 1)
            }
        };
        self.code(symbol, 5);
        self.put((far & ((1 << extra) - 1)) as u64, extra);
        for _ in 0..length {
            self.plain.push(self.plain[self.plain.len() - distance]);
        }
    }

    fn end(&mut self) {
        self.code(0, 7);
    }

    /// The gzip member: header, written bytes, and trailer. Also returns the decoded bytes.
    fn member(mut self) -> (Vec<u8>, Vec<u8>) {
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
        let mut blob = b"\x1f\x8b\x08\0\0\0\0\0\0\xff".to_vec();
        blob.extend(self.bytes);
        blob.extend(crc32fast::hash(&self.plain).to_le_bytes());
        blob.extend((self.plain.len() as u32).to_le_bytes());
        (blob, self.plain)
    }
}

/// A stream that no common tool writes: a tar with one file, in blocks of all kinds, with the
/// farthest and nearest possible matches across the places where spans may begin.
pub(super) fn odd() -> Vec<u8> {
    const CONTENT: usize = 1_600_000;
    let mut header = tar::Header::new_gnu();
    header.set_size(CONTENT as u64);
    header.set_mode(0o644);
    header.set_path("odd").unwrap();
    header.set_cksum();
    let mut deflate = Deflate::default();
    deflate.stored(header.as_bytes(), false);
    deflate.stored(&[], false);
    let random = noise(1 << 20, 3);
    let mut at = random.iter().cycle();
    let mut next = || usize::from(*at.next().unwrap());
    while deflate.plain.len() < CONTENT - 70_000 {
        match next() % 6 {
            0 => deflate.stored(&random[..next() * 200], false),
            1 => deflate.stored(&[], false),
            2 => {
                deflate.fixed();
                deflate.end();
            }
            _ => {
                deflate.fixed();
                for _ in 0..next() * 8 {
                    let made = deflate.plain.len().min(32768);
                    match next() % 8 {
                        0 => deflate.literal(next() as u8),
                        1 => deflate.copy(true, made),
                        2 => deflate.copy(false, made),
                        3 => deflate.copy(true, 1 + next() % 5),
                        4 => deflate.copy(true, made - next() % 300),
                        _ => deflate.copy(false, 1 + (next() << 7 | next()) % made),
                    }
                }
                deflate.end();
            }
        }
    }
    while deflate.plain.len() < 512 + CONTENT {
        let left = 512 + CONTENT - deflate.plain.len();
        deflate.stored(&random[..left.min(60_000)], false);
    }
    let padding = CONTENT.next_multiple_of(512) - CONTENT;
    deflate.stored(&vec![0; padding + 1024], true);
    deflate.member().0
}
