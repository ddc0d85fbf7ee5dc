//! The names of owners and groups.

use crate::copy::copy_short;

/// The name of an owner or a group: any bytes, and rarely more than `root` or `systemd-network`.
/// A list of files has two for each file, so short ones take no allocation of their own.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnerName(Text);

#[derive(Clone, PartialEq, Eq)]
enum Text {
    /// The bytes after the length are 0.
    Short { length: u8, bytes: [u8; OwnerName::SHORT] },
    /// Two allocations, so that the common case has the size of one `Box<[u8]>`.
    Long(Box<Box<[u8]>>),
}

impl OwnerName {
    /// The longest name without an allocation of its own, in bytes.
    pub const SHORT: usize = 14;
}

impl Default for OwnerName {
    fn default() -> OwnerName {
        OwnerName(Text::Short { length: 0, bytes: [0; OwnerName::SHORT] })
    }
}

impl std::ops::Deref for OwnerName {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Text::Short { length, bytes } => &bytes[..usize::from(*length)],
            Text::Long(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for OwnerName {
    fn from(name: &[u8]) -> OwnerName {
        let mut bytes = [0; OwnerName::SHORT];
        OwnerName(match bytes.get_mut(..name.len()) {
            Some(start) => {
                copy_short(start, name);
                Text::Short { length: name.len() as u8, bytes }
            }
            None => Text::Long(Box::new(name.into())),
        })
    }
}

impl<const N: usize> From<[u8; N]> for OwnerName {
    fn from(name: [u8; N]) -> OwnerName {
        name[..].into()
    }
}

impl std::fmt::Debug for OwnerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_names_round_trip() {
        assert_eq!(size_of::<OwnerName>(), size_of::<Box<[u8]>>());
        assert_eq!(OwnerName::default(), b""[..].into());
        for length in 0..40 {
            let bytes = vec![b'n'; length];
            let name = OwnerName::from(&bytes[..]);
            assert_eq!(*name, bytes[..]);
            assert_eq!(matches!(name.0, Text::Short { .. }), length <= OwnerName::SHORT);
            assert_eq!(name, name.clone());
            assert_ne!(name, OwnerName::from(&[&bytes[..], b"\0"].concat()[..]));
        }
    }
}
