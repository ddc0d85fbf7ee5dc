//! Texts that are usually short.

use std::cmp::Ordering;

use crate::copy::copy_short;

/// Any bytes. Up to `SHORT` of them take no separate allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct ShortText<const SHORT: usize>(Text<SHORT>);

/// The name of an owner or a group: rarely more than `root` or `systemd-network`. It has the size
/// of one `Box<[u8]>`.
pub type OwnerName = ShortText<14>;

/// The key or the value of a PAX record, most often `mtime` and a time with fractions of a second.
pub type PaxText = ShortText<22>;

#[derive(Clone, PartialEq, Eq)]
enum Text<const SHORT: usize> {
    /// The bytes after the length are 0.
    Short { length: u8, bytes: [u8; SHORT] },
    /// Two allocations, so that the common case is small.
    Long(Box<Box<[u8]>>),
}

impl<const SHORT: usize> ShortText<SHORT> {
    /// The longest text without a separate allocation, in bytes.
    pub const SHORT: usize = SHORT;
}

impl<const SHORT: usize> Default for ShortText<SHORT> {
    fn default() -> Self {
        ShortText(Text::Short { length: 0, bytes: [0; SHORT] })
    }
}

impl<const SHORT: usize> std::ops::Deref for ShortText<SHORT> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Text::Short { length, bytes } => &bytes[..usize::from(*length)],
            Text::Long(bytes) => bytes,
        }
    }
}

impl<const SHORT: usize> From<&[u8]> for ShortText<SHORT> {
    fn from(text: &[u8]) -> Self {
        let mut bytes = [0; SHORT];
        ShortText(match bytes.get_mut(..text.len()) {
            Some(start) => {
                copy_short(start, text);
                Text::Short { length: text.len() as u8, bytes }
            }
            None => Text::Long(Box::new(text.into())),
        })
    }
}

impl<const SHORT: usize, const N: usize> From<[u8; N]> for ShortText<SHORT> {
    fn from(text: [u8; N]) -> Self {
        text[..].into()
    }
}

impl<const SHORT: usize> Ord for ShortText<SHORT> {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(other)
    }
}

impl<const SHORT: usize> PartialOrd for ShortText<SHORT> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const SHORT: usize> std::fmt::Debug for ShortText<SHORT> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_texts_round_trip() {
        assert_eq!(size_of::<OwnerName>(), size_of::<Box<[u8]>>());
        assert_eq!(size_of::<PaxText>(), 24);
        round_trip::<{ OwnerName::SHORT }>();
        round_trip::<{ PaxText::SHORT }>();
    }

    fn round_trip<const SHORT: usize>() {
        assert_eq!(ShortText::<SHORT>::default(), b""[..].into());
        for length in 0..40 {
            let bytes = vec![b'n'; length];
            let text = ShortText::<SHORT>::from(&bytes[..]);
            assert_eq!(*text, bytes[..]);
            assert_eq!(matches!(text.0, Text::Short { .. }), length <= SHORT);
            assert_eq!(text, text.clone());
            let longer = ShortText::from(&[&bytes[..], b"\0"].concat()[..]);
            assert_ne!(text, longer);
            assert!(text < longer && longer < [b'o'].into());
        }
    }
}
