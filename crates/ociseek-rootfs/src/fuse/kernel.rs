//! The version of the kernel, for what it can do.

use std::fmt;
use std::fs;

/// Major and minor version of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

impl Release {
    /// That of this machine. Zero if it is unknown.
    pub fn here() -> Release {
        Release::parse(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default())
    }

    fn parse(text: &str) -> Release {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
        Release(next(), next())
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        for (text, release) in [
            ("6.9.0", Release(6, 9)),
            ("6.18.44-fc", Release(6, 18)),
            ("7.0-rc1", Release(7, 0)),
            ("5.15.0-113", Release(5, 15)),
            ("", Release(0, 0)),
        ] {
            assert_eq!(Release::parse(text), release, "{text}");
        }
        assert!(Release(6, 18) > Release(6, 9) && Release(7, 0) > Release(6, 18) && Release(5, 15) < Release(6, 9));
    }
}
