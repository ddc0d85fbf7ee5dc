//! The header of a gzip member (RFC 1952, section 2.3), parsed byte by byte.

/// Go's compress/gzip, which consumers parse the header with, rejects longer names and comments.
const GO_STRING_LIMIT: u32 = 512;

const FHCRC: u8 = 1 << 1;
const FEXTRA: u8 = 1 << 2;
const FNAME: u8 = 1 << 3;
const FCOMMENT: u8 = 1 << 4;
const RESERVED: u8 = 0b1110_0000;

/// Why a header is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum HeaderError {
    #[error("no gzip magic bytes")]
    Magic,
    #[error("unsupported compression method {0} (only deflate, 8, is supported)")]
    Method(u8),
    #[error("reserved flags are set ({0:#04x})")]
    Reserved(u8),
    #[error("the name or comment exceeds the 511-byte limit of Go's gzip reader")]
    LongString,
    #[error("the header checksum is {0:#06x}, but its bytes give {1:#06x}")]
    Crc(u16, u16),
}

/// A partly parsed header.
#[derive(Clone, Default)]
pub(crate) struct HeaderParser {
    field: Field,
    flags: u8,
    crc: crc32fast::Hasher,
}

crate::opaque_debug!(HeaderParser);

#[derive(Clone, Copy, Default)]
enum Field {
    #[default]
    Id1,
    Id2,
    Method,
    Flags,
    /// MTIME, XFL and OS: the number of bytes still to come.
    Ignored(u8),
    ExtraLength(Option<u8>),
    Extra(u16),
    Name(u32),
    Comment(u32),
    Crc(Option<u8>),
    Done,
}

impl HeaderParser {
    /// Whether no byte has been consumed yet.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.field, Field::Id1)
    }

    /// Consumes bytes from the front of `input`. Returns how many, and whether the header is
    /// complete.
    ///
    /// # Errors
    /// On anything that zlib or Go's compress/gzip rejects.
    pub(crate) fn parse(&mut self, input: &[u8]) -> Result<(usize, bool), HeaderError> {
        for (taken, &byte) in input.iter().enumerate() {
            self.byte(byte)?;
            if matches!(self.field, Field::Done) {
                return Ok((taken + 1, true));
            }
        }
        Ok((input.len(), false))
    }

    fn byte(&mut self, byte: u8) -> Result<(), HeaderError> {
        if !matches!(self.field, Field::Crc(_)) {
            self.crc.update(&[byte]);
        }
        self.field = match self.field {
            Field::Id1 if byte == 0x1f => Field::Id2,
            Field::Id2 if byte == 0x8b => Field::Method,
            Field::Id1 | Field::Id2 => return Err(HeaderError::Magic),
            Field::Method if byte == 8 => Field::Flags,
            Field::Method => return Err(HeaderError::Method(byte)),
            Field::Flags if byte & RESERVED != 0 => {
                return Err(HeaderError::Reserved(byte & RESERVED));
            }
            Field::Flags => {
                self.flags = byte;
                Field::Ignored(6)
            }
            Field::Ignored(1) => self.after_fixed(),
            Field::Ignored(left) => Field::Ignored(left - 1),
            Field::ExtraLength(None) => Field::ExtraLength(Some(byte)),
            Field::ExtraLength(Some(low)) => match u16::from_le_bytes([low, byte]) {
                0 => self.after_extra(),
                length => Field::Extra(length),
            },
            Field::Extra(1) => self.after_extra(),
            Field::Extra(left) => Field::Extra(left - 1),
            Field::Name(_) if byte == 0 => self.after_name(),
            Field::Name(length) => Field::Name(longer(length)?),
            Field::Comment(_) if byte == 0 => self.after_comment(),
            Field::Comment(length) => Field::Comment(longer(length)?),
            Field::Crc(None) => Field::Crc(Some(byte)),
            Field::Crc(Some(low)) => {
                let stored = u16::from_le_bytes([low, byte]);
                let actual = self.crc.clone().finalize() as u16;
                if stored != actual {
                    return Err(HeaderError::Crc(stored, actual));
                }
                Field::Done
            }
            Field::Done => Field::Done,
        };
        Ok(())
    }

    fn after_fixed(&self) -> Field {
        if self.flags & FEXTRA != 0 { Field::ExtraLength(None) } else { self.after_extra() }
    }

    fn after_extra(&self) -> Field {
        if self.flags & FNAME != 0 { Field::Name(0) } else { self.after_name() }
    }

    fn after_name(&self) -> Field {
        if self.flags & FCOMMENT != 0 { Field::Comment(0) } else { self.after_comment() }
    }

    fn after_comment(&self) -> Field {
        if self.flags & FHCRC != 0 { Field::Crc(None) } else { Field::Done }
    }
}

/// Adds one byte, not counting the terminator.
fn longer(length: u32) -> Result<u32, HeaderError> {
    // The terminator must be among the first 512 bytes.
    if length + 1 >= GO_STRING_LIMIT { Err(HeaderError::LongString) } else { Ok(length + 1) }
}
