//! Detects the format of a blob from its first bytes.

use std::fmt;

/// The format that a blob's first bytes indicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A gzip member begins.
    Gzip,
    /// A zstd frame begins, skippable or not.
    Zstd,
    /// Not recognized as anything else: the tar reader decides.
    Plain,
    /// Another compression used for layers. No consumer reads it lazily.
    Foreign(&'static str),
}

/// The name of the compression, or `not compressed`.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Gzip => "gzip",
            Format::Zstd => "zstd",
            Format::Plain => "not compressed",
            Format::Foreign(name) => name,
        })
    }
}

/// Detects the format of a blob that starts with `head`. Six bytes are enough.
pub fn format(head: &[u8]) -> Format {
    const FOREIGN: [(&[u8], &str); 6] = [
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"\x5d\0\0", "lzma"),
        (b"\x1f\x9d", "compress (.Z)"),
        (b"LZIP", "lzip"),
    ];
    if head.starts_with(b"\x1f\x8b") {
        return Format::Gzip;
    }
    // zstd's skippable frames: 0x184D2A5? little-endian.
    let is_skippable =
        head.len() >= 4 && head[0] & 0xf0 == 0x50 && head[1..4] == [0x2a, 0x4d, 0x18];
    if is_skippable || head.starts_with(b"\x28\xb5\x2f\xfd") {
        return Format::Zstd;
    }
    FOREIGN
        .iter()
        .find(|(magic, _)| head.starts_with(magic))
        .map_or(Format::Plain, |(_, name)| Format::Foreign(name))
}

/// A guess, for error messages, at what a blob is that is not a layer.
pub(crate) fn looks_like(head: &[u8]) -> Option<&'static str> {
    let text = head.trim_ascii_start();
    let zlib = head.len() >= 2
        && head[0] & 0x0f == 8
        && u16::from_be_bytes([head[0], head[1]]).is_multiple_of(31);
    if text.starts_with(b"<") {
        Some("an HTML or XML page")
    } else if text.starts_with(b"{") || text.starts_with(b"[") {
        Some("JSON")
    } else if head.starts_with(b"PK\x03\x04") {
        Some("a zip archive")
    } else if head.starts_with(b"\x7fELF") {
        Some("an executable")
    } else if zlib {
        Some("a zlib stream, not gzip")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_named_in_messages() {
        let formats = [Format::Gzip, Format::Zstd, Format::Plain, format(b"BZh9")];
        assert_eq!(
            formats.map(|format| format.to_string()),
            ["gzip", "zstd", "not compressed", "bzip2"]
        );
    }
}
