//! A header block of any tar dialect (archive/tar reader.go readHeader, format.go), and the numbers
//! in header blocks and PAX records (strconv.go).

use super::{BLOCK, OwnerName};
use crate::time::Time;

/// The dialect according to a block's magic bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    V7,
    /// ustar and PAX share their magic.
    Ustar,
    Star,
    Gnu,
}

/// The fields of one header block. Its texts are read when it is clear that they are needed.
#[derive(Debug)]
pub(super) struct Header {
    pub dialect: Dialect,
    pub flag: u8,
    pub size: i64,
    pub mode: i64,
    pub uid: i64,
    pub gid: i64,
    pub mtime: Time,
    pub devmajor: i64,
    pub devminor: i64,
}

/// Why a block is not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadHeader {
    Checksum,
    Number(&'static str),
}

/// Whether the block is a tar header of any dialect, which suggests that the blob is a tar.
pub(crate) fn has_valid_checksum(block: &[u8; BLOCK]) -> bool {
    let Some(stored) = octal(&block[148..156]) else { return false };
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    // The checksum field itself counts as spaces.
    let before = &block[..148];
    let after = &block[156..];
    let unsigned = i64::from(sum(before) + sum(after) + 8 * u32::from(b' '));
    if stored == unsigned {
        return true;
    }
    // Some writers add signed bytes, so each byte with its high bit set counts 256 less.
    let high = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte >> 7)).sum::<u32>();
    stored == unsigned - 256 * i64::from(high(before) + high(after))
}

fn dialect(block: &[u8; BLOCK]) -> Dialect {
    match (&block[257..263], &block[263..265], &block[508..512]) {
        (b"ustar\0", _, b"tar\0") => Dialect::Star,
        (b"ustar\0", _, _) => Dialect::Ustar,
        (b"ustar ", b" \0", _) => Dialect::Gnu,
        _ => Dialect::V7,
    }
}

impl Header {
    pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Header, BadHeader> {
        if !has_valid_checksum(block) {
            return Err(BadHeader::Checksum);
        }
        let number = |range: std::ops::Range<usize>, what| {
            field(&block[range]).ok_or(BadHeader::Number(what))
        };
        let dialect = dialect(block);
        let mut header = Header {
            dialect,
            flag: block[156],
            size: number(124..136, "size")?,
            mode: number(100..108, "mode")?,
            uid: number(108..116, "uid")?,
            gid: number(116..124, "gid")?,
            mtime: Time { seconds: number(136..148, "mtime")?, nanos: 0 },
            devmajor: 0,
            devminor: 0,
        };
        if dialect != Dialect::V7 {
            header.devmajor = number(329..337, "device major")?;
            header.devminor = number(337..345, "device minor")?;
        }
        if dialect == Dialect::Star {
            number(476..488, "atime")?;
            number(488..500, "ctime")?;
        }
        Ok(header)
    }

    /// The name in the block.
    pub(super) fn name(&self, block: &[u8; BLOCK]) -> Box<[u8]> {
        let prefix = match self.dialect {
            Dialect::V7 => &[][..],
            Dialect::Ustar => text(block, 345..500),
            Dialect::Star => text(block, 345..476),
            Dialect::Gnu => {
                // GNU has times here, but Go before 1.8 wrote a prefix in spite of that. If the
                // bytes are not valid times, they are a prefix.
                let time = |range: std::ops::Range<usize>| {
                    block[range.start] == 0 || field(&block[range]).is_some()
                };
                let prefix =
                    if time(345..357) && time(357..369) { &[][..] } else { text(block, 345..500) };
                if prefix.is_ascii() { prefix } else { &[][..] }
            }
        };
        let name = text(block, 0..100);
        if prefix.is_empty() { name.into() } else { [prefix, b"/", name].concat().into() }
    }

    /// The owner's and the group's name in the block.
    pub(super) fn owners(&self, block: &[u8; BLOCK]) -> (OwnerName, OwnerName) {
        match self.dialect {
            Dialect::V7 => Default::default(),
            _ => (text(block, 265..297).into(), text(block, 297..329).into()),
        }
    }
}

/// The target of a link in the block.
pub(super) fn linkname(block: &[u8; BLOCK]) -> Box<[u8]> {
    text(block, 157..257).into()
}

fn text(block: &[u8; BLOCK], range: std::ops::Range<usize>) -> &[u8] {
    cut_at_nul(&block[range])
}

/// A field of a header block: base-256 if its first bit is set, otherwise octal (strconv.go
/// parseNumeric).
pub(super) fn field(bytes: &[u8]) -> Option<i64> {
    let Some(&first) = bytes.first() else { return Some(0) };
    if first & 0x80 == 0 {
        return octal(bytes);
    }
    let invert = if first & 0x40 != 0 { 0xff } else { 0 };
    let mut value: u64 = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        let mut byte = byte ^ invert;
        if i == 0 {
            byte &= 0x7f; // without the mark of base-256
        }
        if value >> 56 > 0 {
            return None;
        }
        value = value << 8 | u64::from(byte);
    }
    if value >> 63 > 0 {
        return None;
    }
    let value = value as i64;
    Some(if invert == 0 { value } else { !value })
}

/// Octal digits between spaces and NULs, up to the first NUL (strconv.go parseOctal). Empty is 0.
fn octal(bytes: &[u8]) -> Option<i64> {
    let is_pad = |b: &u8| *b == b' ' || *b == 0;
    let Some(from) = bytes.iter().position(|b| !is_pad(b)) else { return Some(0) };
    let mut value: u64 = 0;
    for (at, &byte) in bytes.iter().enumerate().skip(from) {
        match byte {
            b'0'..=b'7' if value >> 61 == 0 => value = value << 3 | u64::from(byte - b'0'),
            0 => break,
            b' ' if bytes[at..].iter().all(is_pad) => break,
            _ => return None,
        }
    }
    Some(value as i64)
}

/// A C string in a field: the whole field if it has no NUL.
pub(super) fn cut_at_nul(bytes: &[u8]) -> &[u8] {
    match bytes.iter().position(|&b| b == 0) {
        Some(end) => &bytes[..end],
        None => bytes,
    }
}

/// strconv.ParseInt(text, 10, 64): a sign, at least one digit, nothing else.
pub(super) fn decimal(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"+").or(text.strip_prefix(b"-")).unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A PAX time, `[-]SECONDS[.FRACTION]`; digits past the ninth are cut (strconv.go parsePAXTime).
pub(super) fn pax_time(text: &[u8]) -> Option<Time> {
    let (whole, fraction) = match text.iter().position(|&b| b == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &[][..]),
    };
    let seconds = decimal(whole)?;
    let mut nanos: u32 = 0;
    for (i, &digit) in fraction.iter().enumerate() {
        if !digit.is_ascii_digit() {
            return None;
        }
        if i < 9 {
            nanos += u32::from(digit - b'0') * 10u32.pow(8 - i as u32);
        }
    }
    // The fraction has the sign of the seconds, which wrap as in Go.
    Some(if nanos > 0 && whole.first() == Some(&b'-') {
        Time { seconds: seconds.wrapping_sub(1), nanos: 1_000_000_000 - nanos }
    } else {
        Time { seconds, nanos }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        for (bytes, value) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"  644 \0 ", Some(0o644)),
            (b"        ", Some(0)),
            (b"12\x0034\0\0\0", Some(0o12)),
            (b"12\x0089\0\0\0", Some(0o12)),
            (b"12 \0 34 \0", None),
            (b"12 34\0\0\0", None),
            (b"\0 12 \0  ", Some(0o12)),
            (b"1777777777777777777777", Some(-1)),
            (b"2777777777777777777777", None),
            (b"0000648\0", None),
            (b"-000644\0", None),
            (b"+644\0\0\0\0", None),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
            (b"\xff\xff\xff\xff\x80\0\0\0\0\0\0\0", Some(i64::MIN)),
            (b"777777777777", Some(0o777777777777)),
        ] {
            assert_eq!(field(bytes), value, "{bytes:?}");
        }
    }

    #[test]
    fn pax_numbers() {
        for (text, value) in [
            ("5", Some(5)),
            ("+5", Some(5)),
            ("-05", Some(-5)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("1_0", None),
            ("0x1", None),
            (" 1", None),
        ] {
            assert_eq!(decimal(text.as_bytes()), value, "{text}");
        }
        for (text, value) in [
            ("1.5", Some((1, 500_000_000))),
            ("-1.5", Some((-2, 500_000_000))),
            ("-0.25", Some((-1, 750_000_000))),
            ("1.", Some((1, 0))),
            ("1.1234567899", Some((1, 123_456_789))),
            (".5", None),
            ("1.5s", None),
            ("1.2.3", None),
            ("1e9", None),
        ] {
            let time = value.map(|(seconds, nanos)| Time { seconds, nanos });
            assert_eq!(pax_time(text.as_bytes()), time, "{text}");
        }
    }
}
