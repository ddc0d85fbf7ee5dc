//! Points in time in the representations of tar and Go.

/// Seconds since 1970 UTC and nanoseconds after those seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970, UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds: 0..1,000,000,000.
    pub nanos: u32,
}

/// The first second of year 0 and the last of year 9999. Outside this range Go's time.MarshalText
/// fails.
const RFC3339_SECONDS: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;
const DAY: i64 = 86_400;

impl Time {
    /// RFC 3339 in UTC with up to nine fractional digits without trailing zeros, as in Go's
    /// time.MarshalText. None for years outside 0..=9999.
    pub fn to_rfc3339(self) -> Option<String> {
        String::from_utf8(self.rfc3339()?.as_bytes().to_vec()).ok()
    }

    /// [`Time::to_rfc3339`] without an allocation. Every entry of a layer has a time, and
    /// formatting macros would noticeably slow down encoding a ztoc.
    pub(crate) fn rfc3339(self) -> Option<Rfc3339> {
        if !self.has_rfc3339() {
            return None;
        }
        let (year, month, day) = civil(self.seconds.div_euclid(DAY));
        let second = self.seconds.rem_euclid(DAY);
        let mut text = Rfc3339 { bytes: [0; Rfc3339::MOST], length: 0 };
        text.digits(year, 4, b'-');
        text.digits(month, 2, b'-');
        text.digits(day, 2, b'T');
        text.digits(second / 3600, 2, b':');
        text.digits(second / 60 % 60, 2, b':');
        if self.nanos == 0 {
            text.digits(second % 60, 2, b'Z');
        } else {
            text.digits(second % 60, 2, b'.');
            let mut fraction = i64::from(self.nanos);
            let mut count = 9;
            while fraction % 10 == 0 {
                (fraction, count) = (fraction / 10, count - 1);
            }
            text.digits(fraction, count, b'Z');
        }
        Some(text)
    }

    /// Whether [`Time::to_rfc3339`] returns a text.
    pub(crate) fn has_rfc3339(self) -> bool {
        RFC3339_SECONDS.contains(&self.seconds)
    }

    /// Parses the output of [`Time::to_rfc3339`], with any UTC offset (soci writes local time).
    /// None for other text.
    pub fn from_rfc3339(text: &str) -> Option<Time> {
        let number = |range: std::ops::Range<usize>| -> Option<i64> {
            let digits = text.get(range)?;
            if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
        };
        let is = |at: usize, byte: u8| (text.as_bytes().get(at) == Some(&byte)).then_some(());
        let year = number(0..4)?;
        let month = number(5..7)?;
        let day = number(8..10)?;
        let hour = number(11..13)?;
        let minute = number(14..16)?;
        let second = number(17..19)?;
        [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')]
            .iter()
            .try_for_each(|&(at, byte)| is(at, byte))?;
        if !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let days = days(year, month, day);
        if civil(days) != (year, month, day) {
            return None; // the 30th of February
        }
        let mut zone = 19;
        let mut nanos = 0;
        if text.as_bytes().get(19) == Some(&b'.') {
            let digits = text[20..].bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 || digits > 9 {
                return None;
            }
            nanos = number(20..20 + digits)? as u32 * 10u32.pow(9 - digits as u32);
            zone = 20 + digits;
        }
        let offset = match *text.as_bytes().get(zone)? {
            b'Z' if text.len() == zone + 1 => 0,
            sign @ (b'+' | b'-') if text.len() == zone + 6 => {
                is(zone + 3, b':')?;
                let hours = number(zone + 1..zone + 3)?;
                let minutes = number(zone + 4..zone + 6)?;
                if hours > 23 || minutes > 59 {
                    return None;
                }
                (hours * 3600 + minutes * 60) * if sign == b'-' { -1 } else { 1 }
            }
            _ => return None,
        };
        let seconds = days * DAY + hour * 3600 + minute * 60 + second - offset;
        Some(Time { seconds, nanos })
    }
}

/// A time as text.
pub(crate) struct Rfc3339 {
    bytes: [u8; Rfc3339::MOST],
    length: usize,
}

impl Rfc3339 {
    /// The length of a time with nine fractional digits.
    const MOST: usize = "0000-00-00T00:00:00.000000000Z".len();

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Appends the last `count` digits of `value`, and `end`.
    fn digits(&mut self, mut value: i64, count: usize, end: u8) {
        for digit in self.bytes[self.length..][..count].iter_mut().rev() {
            *digit = b'0' + (value % 10) as u8;
            value /= 10;
        }
        self.bytes[self.length + count] = end;
        self.length += count + 1;
    }
}

/// The year, month and day of a day counted from 1970-01-01 (Hinnant's civil_from_days).
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of [`civil`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + (153 * shifted + 2) / 5 + day - 1;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_as_in_go() {
        for (seconds, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (1_700_000_000, 123_456_789, "2023-11-14T22:13:20.123456789Z"),
            (1_700_000_000, 500_000_000, "2023-11-14T22:13:20.5Z"),
            (-2, 500_000_000, "1969-12-31T23:59:58.5Z"),
            (951_782_400, 0, "2000-02-29T00:00:00Z"),
            (-62_167_219_200, 0, "0000-01-01T00:00:00Z"),
            (253_402_300_799, 999_999_999, "9999-12-31T23:59:59.999999999Z"),
        ] {
            let time = Time { seconds, nanos };
            assert_eq!(time.to_rfc3339().as_deref(), Some(text));
            assert_eq!(Time::from_rfc3339(text), Some(time));
        }
        for seconds in [253_402_300_800, -62_167_219_201, i64::MIN, i64::MAX] {
            assert_eq!(Time { seconds, nanos: 0 }.to_rfc3339(), None);
        }
    }

    #[test]
    fn other_zones_are_parsed_and_invalid_times_rejected() {
        assert_eq!(Time::from_rfc3339("1970-01-01T02:00:00+02:00"), Some(Time::default()));
        for bad in [
            "",
            "1970-01-01",
            "1970-02-30T00:00:00Z",
            "1970-01-01T00:00:00",
            "1970-01-01T00:00:00.Z",
            "é",
        ] {
            assert_eq!(Time::from_rfc3339(bad), None, "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn times_round_trip(seconds in RFC3339_SECONDS, nanos in 0u32..1_000_000_000) {
            let time = Time { seconds, nanos };
            proptest::prop_assert_eq!(Time::from_rfc3339(&time.to_rfc3339().unwrap()), Some(time));
        }
    }
}
