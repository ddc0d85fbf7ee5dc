//! The coverage of an image by an index.

use std::collections::BTreeSet;

use super::Descriptor;

/// The part of an image's layers that an index covers. A layer that occurs twice in the image is
/// pulled once, so its bytes count once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
    /// The number of covered layers.
    pub layers: usize,
    /// The number of all layers.
    pub of_layers: usize,
    /// The compressed size of the covered layers in bytes.
    pub bytes: u64,
    /// The compressed size of all layers in bytes.
    pub of_bytes: u64,
}

impl Coverage {
    /// Counts the layers for which `covers` holds.
    pub fn of<'a>(
        layers: impl IntoIterator<Item = &'a Descriptor>,
        covers: impl Fn(&Descriptor) -> bool,
    ) -> Coverage {
        let mut coverage = Coverage::default();
        let mut seen = BTreeSet::new();
        for layer in layers {
            let bytes = if seen.insert(layer.digest) { layer.size } else { 0 };
            coverage.of_layers += 1;
            coverage.of_bytes = coverage.of_bytes.saturating_add(bytes);
            if covers(layer) {
                coverage.layers += 1;
                coverage.bytes = coverage.bytes.saturating_add(bytes);
            }
        }
        coverage
    }

    /// The share of the bytes that is covered, or 100% if there are no bytes. Rounded down, so only
    /// full coverage is 100%.
    pub fn share(&self) -> Share {
        let bytes = u128::from(self.bytes);
        let all = u128::from(self.of_bytes);
        let cut = (bytes * u128::from(Share::ALL))
            .checked_div(all)
            .and_then(|share| u32::try_from(share).ok());
        Share(cut.unwrap_or(Share::ALL).min(Share::ALL))
    }

    /// Whether at least `least` of the bytes are covered.
    pub fn reaches(&self, least: Share) -> bool {
        self.share() >= least
    }
}

/// A part of a whole, in hundredths of a percent: 0 to 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    const ALL: u32 = 10_000;

    /// The share in percent.
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// None if the share exceeds the whole.
    pub fn new(hundredths_of_a_percent: u32) -> Option<Share> {
        (hundredths_of_a_percent <= Share::ALL).then_some(Share(hundredths_of_a_percent))
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}%", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(sizes: &[u64]) -> Vec<Descriptor> {
        let blob = |(n, size): (usize, &u64)| {
            Descriptor::new("x/y", crate::digest::Digest::sha256(&[n as u8]), *size)
        };
        sizes.iter().enumerate().map(blob).collect()
    }

    #[test]
    fn repeated_layers_count_once() {
        let mut layers = layers(&[100, 300]);
        layers.push(layers[0].clone());
        let coverage = Coverage::of(&layers, |layer| layer.size == 100);
        assert_eq!(coverage, Coverage { layers: 2, of_layers: 3, bytes: 100, of_bytes: 400 });
        assert_eq!(
            (coverage.share().to_string(), coverage.share().percent()),
            ("25%".to_owned(), 25.0)
        );
    }

    #[test]
    fn shares_are_exact() {
        let share = |hundredths| Share::new(hundredths).unwrap();
        let two_thirds = Coverage { layers: 1, of_layers: 2, bytes: 2, of_bytes: 3 };
        assert!(two_thirds.reaches(share(6666)) && !two_thirds.reaches(share(6667)));
        let nearly = Coverage { layers: 1, of_layers: 2, bytes: u64::MAX - 1, of_bytes: u64::MAX };
        assert!(!nearly.reaches(share(10_000)) && nearly.reaches(share(9_999)));
        assert_eq!(
            (two_thirds.share().to_string(), two_thirds.share().percent()),
            ("66.66%".to_owned(), 66.66)
        );
        assert_eq!(
            (nearly.share().to_string(), nearly.share().percent()),
            ("99.99%".to_owned(), 99.99)
        );
        assert_eq!(Coverage { bytes: u64::MAX, ..nearly }.share().to_string(), "100%");
        assert!(Coverage::of(&layers(&[]), |_| false).reaches(share(10_000)));
        assert!(Coverage::of(&layers(&[7]), |_| false).reaches(share(0)));
        assert_eq!(Share::new(10_001), None);
        let shown = [8000, 8050, 8005, 0].map(|hundredths| share(hundredths).to_string());
        assert_eq!(shown, ["80%", "80.5%", "80.05%", "0%"]);
    }
}
