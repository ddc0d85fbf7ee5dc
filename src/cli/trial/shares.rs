//! Shares of parts in a whole that add up to 100 percent.

use std::fmt;

use ociseek_ops::report::{LayerBreakdown, Report};

/// A part of a whole, in tenths of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Percent {
    tenths: u64,
    /// Whether it is more than nothing, and less than everything.
    is_part: bool,
}

impl Percent {
    pub(super) fn is_below(self, tenths: u64) -> bool {
        self.tenths < tenths
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tenths {
            0 if self.is_part => f.write_str("less than 0.1%"),
            1000 if self.is_part => f.write_str("more than 99.9%"),
            tenths if tenths % 10 == 0 => write!(f, "{}%", tenths / 10),
            tenths => write!(f, "{}.{}%", tenths / 10, tenths % 10),
        }
    }
}

/// The share of each part in their sum. Rounded so that the printed numbers add up to 100: the
/// parts that lose most by rounding down get the missing tenths.
pub(super) fn shares(parts: &[u64]) -> Vec<Percent> {
    let all: u128 = parts.iter().map(|&part| u128::from(part)).sum();
    let scaled = |part: u64| u128::from(part) * 1000;
    let mut tenths: Vec<u64> =
        parts.iter().map(|&part| (scaled(part) / all.max(1)) as u64).collect();
    let missing = if all == 0 { 0 } else { 1000 - tenths.iter().sum::<u64>() };
    let mut by_loss: Vec<usize> = (0..parts.len()).collect();
    by_loss.sort_by_key(|&place| std::cmp::Reverse(scaled(parts[place]) % all.max(1)));
    by_loss.iter().take(missing as usize).for_each(|&place| tenths[place] += 1);
    let is_part = |part: u64| part > 0 && u128::from(part) < all;
    tenths
        .into_iter()
        .zip(parts)
        .map(|(tenths, &part)| Percent { tenths, is_part: is_part(part) })
        .collect()
}

/// The share of each shown layer in the image. A blob counts once.
pub(super) fn shares_of_layers(report: &Report) -> Vec<Percent> {
    let size = |layer: &LayerBreakdown| match layer.same_as {
        Some(_) => 0,
        None => layer.descriptor.size,
    };
    let mut sizes: Vec<u64> = report.layers.iter().map(size).collect();
    let shown = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
    sizes.push(report.coverage.of_bytes.saturating_sub(shown));
    shares(&sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_100() {
        let shown =
            |parts: &[u64]| shares(parts).iter().map(Percent::to_string).collect::<Vec<_>>();
        assert_eq!(shown(&[896_900, 103_100]), ["89.7%", "10.3%"]);
        assert_eq!(shown(&[1, 1, 1]), ["33.4%", "33.3%", "33.3%"]);
        assert_eq!(shown(&[0, 5]), ["0%", "100%"]);
        assert_eq!(shown(&[1, 1_000_000]), ["less than 0.1%", "more than 99.9%"]);
        assert_eq!(shown(&[0, 0]), ["0%", "0%"]);
        for parts in [&[3, 5, 7, 11, 13][..], &[u64::MAX, u64::MAX, 1], &[7; 23]] {
            assert_eq!(
                shares(parts).iter().map(|share| share.tenths).sum::<u64>(),
                1000,
                "{parts:?}"
            );
        }
    }
}
