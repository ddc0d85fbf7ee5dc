//! Parses and prints sizes.

use std::fmt;
use std::str::FromStr;

pub(crate) use ociseek_format::printable::human_size as human;
use ociseek_format::printable::{SIZE_UNITS, exact_size};

/// Units that are accepted but never printed. A single letter is a power of 1024, as in ls, dd and
/// docker.
const ALSO_READ: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("T", 1 << 40),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
];

/// A number of bytes, typed as `4MiB`, `10MB`, `64K` or `512B`. Without a unit, only 0 is a size:
/// people mean MiB or GiB. Prints its exact shortest form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub u64);

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    #[error("expected a size, such as 4MiB, 64KiB or 512B")]
    NotASize,
    #[error(
        "unknown unit {0:?}: expected KiB, MiB, GiB, TiB or K, M, G, T (powers of 1024), KB, MB, GB, TB (powers of \
         1000), or B for bytes"
    )]
    Unit(String),
    #[error("{0} of what? Did you mean {0}MiB? For bytes, write {0}B")]
    NoUnit(u64),
    #[error("{0} of what? For bytes, write {written}", written = ByteSize(*.0))]
    NoUnitOfBytes(u64),
    #[error(
        "{0:?} is not a whole number: write it in the next smaller unit, such as 4608KiB for 4.5MiB"
    )]
    Fraction(String),
    #[error("too large")]
    TooLarge,
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<ByteSize, SizeError> {
        let text = text.trim();
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(SizeError::NotASize);
        }
        let unit = unit.trim_start();
        let factor = match SIZE_UNITS
            .iter()
            .chain(&ALSO_READ)
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        {
            Some((_, factor)) => *factor,
            None if unit.eq_ignore_ascii_case("b") => 1,
            None if unit.is_empty() => {
                return match number.parse() {
                    Ok(0) => Ok(ByteSize(0)),
                    // Nobody means that number of MiB.
                    Ok(number) if number >= 1 << 16 => Err(SizeError::NoUnitOfBytes(number)),
                    Ok(number) => Err(SizeError::NoUnit(number)),
                    Err(_) => Err(SizeError::TooLarge),
                };
            }
            None if unit.starts_with(['.', ',']) => {
                return Err(SizeError::Fraction(text.chars().take(40).collect()));
            }
            None => return Err(SizeError::Unit(unit.chars().take(20).collect())),
        };
        let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
        number.checked_mul(factor).map(ByteSize).ok_or(SizeError::TooLarge)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&exact_size(self.0))
    }
}

/// A rate in megabytes (10^6) per second, as usual for networks and disks. Empty if the time is too
/// short to tell.
pub(crate) fn rate(bytes: u64, seconds: f64) -> String {
    if seconds < 0.001 {
        return String::new();
    }
    let rate = bytes as f64 / seconds / 1e6;
    if rate < 10.0 { format!("{rate:.1} MB/s") } else { format!("{rate:.0} MB/s") }
}

/// A duration for people.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 120.0 => format!("{s:.1} s"),
        s => format!("{} min {:02} s", s as u64 / 60, s as u64 % 60),
    }
}

/// An estimated duration: whole seconds, minutes or hours.
pub(crate) fn about(seconds: f64) -> String {
    match seconds.ceil() as u64 {
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s.div_ceil(60)),
        s => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
    }
}

/// A number with its noun in singular or plural.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!("4MiB".parse(), Ok(ByteSize(4 << 20)));
        assert_eq!("64 kib".parse(), Ok(ByteSize(64 << 10)));
        assert_eq!("2GiB".parse(), Ok(ByteSize(2 << 30)));
        assert_eq!("4194304B".parse(), Ok(ByteSize(4 << 20)));
        assert_eq!("0".parse(), Ok(ByteSize(0)));
        assert_eq!("512B".parse(), Ok(ByteSize(512)));
        assert_eq!("10MB".parse(), Ok(ByteSize(10_000_000)));
        assert_eq!("10m".parse(), Ok(ByteSize(10 << 20)));
    }

    #[test]
    fn invalid_sizes_are_refused() {
        assert_eq!("4XB".parse::<ByteSize>(), Err(SizeError::Unit("XB".into())));
        assert_eq!("1.5MiB".parse::<ByteSize>(), Err(SizeError::Fraction("1.5MiB".into())));
        assert_eq!("4,5MiB".parse::<ByteSize>(), Err(SizeError::Fraction("4,5MiB".into())));
        let bytes = "4194304".parse::<ByteSize>().unwrap_err().to_string();
        assert_eq!(bytes, "4194304 of what? For bytes, write 4MiB");
        assert_eq!("512".parse::<ByteSize>(), Err(SizeError::NoUnit(512)));
        assert_eq!("".parse::<ByteSize>(), Err(SizeError::NotASize));
        assert_eq!("-1".parse::<ByteSize>(), Err(SizeError::NotASize));
        assert_eq!("99999999999999999999".parse::<ByteSize>(), Err(SizeError::TooLarge));
        assert_eq!("99999999999GiB".parse::<ByteSize>(), Err(SizeError::TooLarge));
    }

    #[test]
    fn printed_sizes_parse() {
        for bytes in [0, 1, 1023, 1024, 10 << 20, (4 << 20) + 1, 3 << 30] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
        assert_eq!(ByteSize(10 << 20).to_string(), "10MiB");
    }

    #[test]
    fn human_sizes_have_three_digits() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(18_140_000), "17.3 MiB");
        assert_eq!(rate(50_000_000, 0.5), "100 MB/s");
        assert_eq!(rate(1, 0.0), "");
        assert_eq!(duration(0.0421), "42 ms");
        assert_eq!(duration(3.06), "3.1 s");
        assert_eq!(duration(125.0), "2 min 05 s");
        assert_eq!([0.2, 119.5, 130.0, 7300.0].map(about), ["1 s", "2 min", "3 min", "2 h 01 min"]);
    }
}
