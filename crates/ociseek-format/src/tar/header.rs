//! A header block of any tar dialect (archive/tar reader.go readHeader, format.go).

use super::numeric::{cut_at_nul, field, octal};
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
pub fn has_valid_checksum(block: &[u8; BLOCK]) -> bool {
    let Some(stored) = octal(&block[148..156]) else { return false };
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    // The checksum field itself counts as spaces.
    let (before, after) = (&block[..148], &block[156..]);
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
        let number = |range: std::ops::Range<usize>, what| field(&block[range]).ok_or(BadHeader::Number(what));
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
                let time = |range: std::ops::Range<usize>| block[range.start] == 0 || field(&block[range]).is_some();
                let prefix = if time(345..357) && time(357..369) { &[][..] } else { text(block, 345..500) };
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
