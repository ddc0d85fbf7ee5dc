//! The two coordinates of a layer, and the spans between checkpoints: types that never mix.

use std::fmt;
use std::ops::{Add, Sub};

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

        /// The place `bytes` further on.
        impl Add<u64> for $name {
            type Output = $name;
            #[inline]
            fn add(self, bytes: u64) -> $name {
                $name(self.0 + bytes)
            }
        }

        /// The distance in bytes; panics (in debug builds) when `other` lies behind.
        impl Sub for $name {
            type Output = u64;
            #[inline]
            fn sub(self, other: $name) -> u64 {
                self.0 - other.0
            }
        }
    };
}

offset!(
    /// A byte offset into a layer's blob as the registry stores it.
    Compressed
);
offset!(
    /// A byte offset into a layer's tar stream.
    Uncompressed
);

/// The number of a span, counted from 0: span `i` begins at checkpoint `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub u32);

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
