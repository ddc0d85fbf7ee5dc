//! The two coordinates of a layer, the spans between checkpoints, and the layers of an image, as
//! separate types that cannot be confused.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Add, AddAssign, Range, Sub};

macro_rules! offset {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        /// The offset moved forward by `bytes`.
        impl Add<u64> for $name {
            type Output = $name;
            #[inline]
            fn add(self, bytes: u64) -> $name {
                $name(self.0 + bytes)
            }
        }

        impl AddAssign<u64> for $name {
            #[inline]
            fn add_assign(&mut self, bytes: u64) {
                *self = *self + bytes;
            }
        }

        /// The distance in bytes. Panics if `other` is larger, in release builds too.
        impl Sub for $name {
            type Output = u64;
            #[inline]
            #[track_caller]
            fn sub(self, other: $name) -> u64 {
                match self.0.checked_sub(other.0) {
                    Some(bytes) => bytes,
                    None => lies_behind(self.0, other.0),
                }
            }
        }
    };
}

#[cold]
#[track_caller]
fn lies_behind(offset: u64, other: u64) -> ! {
    panic!("offset {other} is past {offset}")
}

offset!(
    /// A byte offset into a layer's blob as the registry stores it.
    Compressed
);
offset!(
    /// A byte offset into a layer's tar stream.
    Uncompressed
);

/// The number of a span, counted from 0: span `i` starts at checkpoint `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub u32);

impl SpanId {
    /// The spans of a range, in order.
    pub fn each(
        range: Range<SpanId>,
    ) -> impl DoubleEndedIterator<Item = SpanId> + ExactSizeIterator + Clone {
        (range.start.0..range.end.0).map(SpanId)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The least number of tar bytes between two checkpoints of a ztoc: from 1 to [`i64::MAX`], since
/// soci stores it as a signed number (soci-snapshotter, ztoc/fbs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanSize(NonZeroU64);

impl SpanSize {
    /// 4 MiB, the default of soci's own tool.
    pub const DEFAULT: SpanSize = SpanSize::mib::<4>();

    /// One byte.
    pub const LEAST: SpanSize = SpanSize(NonZeroU64::MIN);

    /// None if the number is out of range.
    pub const fn new(bytes: u64) -> Option<SpanSize> {
        match NonZeroU64::new(bytes) {
            Some(size) if bytes <= i64::MAX as u64 => Some(SpanSize(size)),
            _ => None,
        }
    }

    /// A number of MiB. Does not compile for a number out of range.
    pub const fn mib<const MEBIBYTES: u64>() -> SpanSize {
        const {
            match SpanSize::new(MEBIBYTES.saturating_mul(1 << 20)) {
                Some(size) => size,
                None => panic!("a span size out of range"),
            }
        }
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for SpanSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a layer in its image, counted from 0 at the bottom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId(pub u32);

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_count_bytes() {
        let mut at = Uncompressed(5);
        at += 3;
        assert_eq!((at, at - Uncompressed(5), at + 1), (Uncompressed(8), 3, Uncompressed(9)));
        let spans: Vec<_> = SpanId::each(SpanId(2)..SpanId(4)).collect();
        assert_eq!(spans, [SpanId(2), SpanId(3)]);
    }

    #[test]
    #[should_panic(expected = "offset 8 is past 5")]
    fn a_distance_is_never_negative() {
        let _ = Compressed(5) - Compressed(8);
    }
}
