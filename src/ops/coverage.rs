//! How much of an image an index covers.

use std::collections::BTreeSet;

use crate::image::Descriptor;

/// How much of an image's layers an index covers. A layer that the image has twice is pulled once, and its bytes count once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
    pub layers: usize,
    pub of_layers: usize,
    /// Of the layers' blobs, compressed as they are.
    pub bytes: u64,
    pub of_bytes: u64,
}

impl Coverage {
    pub fn of<'a>(layers: impl IntoIterator<Item = &'a Descriptor>, covers: impl Fn(&Descriptor) -> bool) -> Coverage {
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

    /// Of the bytes. Of nothing, all is covered.
    pub fn percent(&self) -> f64 {
        if self.of_bytes == 0 { 100.0 } else { self.bytes as f64 * 100.0 / self.of_bytes as f64 }
    }

    /// The same for people: cut, not rounded, so that only all is 100.0%.
    pub fn shown(&self) -> String {
        format!("{:.1}%", (self.percent() * 10.0).floor() / 10.0)
    }

    /// Whether at least `share` of the bytes is covered; exact, unlike a comparison of [`Coverage::percent`].
    pub fn reaches(&self, share: Share) -> bool {
        u128::from(self.bytes) * u128::from(Share::ALL) >= u128::from(self.of_bytes) * u128::from(share.0)
    }
}

/// A part of a whole, in hundredths of a percent: 0 to 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    const ALL: u32 = 10_000;

    /// None: it is more than the whole.
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
        let blob = |(n, size): (usize, &u64)| Descriptor::new("x/y", crate::digest::Digest::sha256(&[n as u8]), *size);
        sizes.iter().enumerate().map(blob).collect()
    }

    #[test]
    fn what_is_there_twice_counts_once() {
        let mut layers = layers(&[100, 300]);
        layers.push(layers[0].clone());
        let coverage = Coverage::of(&layers, |layer| layer.size == 100);
        assert_eq!(coverage, Coverage { layers: 2, of_layers: 3, bytes: 100, of_bytes: 400 });
        assert_eq!(coverage.percent(), 25.0);
    }

    #[test]
    fn shares_are_exact() {
        let share = |hundredths| Share::new(hundredths).unwrap();
        let two_thirds = Coverage { layers: 1, of_layers: 2, bytes: 2, of_bytes: 3 };
        assert!(two_thirds.reaches(share(6666)) && !two_thirds.reaches(share(6667)));
        let nearly = Coverage { layers: 1, of_layers: 2, bytes: u64::MAX - 1, of_bytes: u64::MAX };
        assert!(!nearly.reaches(share(10_000)) && nearly.reaches(share(9_999)));
        assert_eq!(two_thirds.shown(), "66.6%");
        assert_eq!(Coverage { bytes: 99_999, of_bytes: 100_000, ..nearly }.shown(), "99.9%");
        assert!(Coverage::of(&layers(&[]), |_| false).reaches(share(10_000)));
        assert!(Coverage::of(&layers(&[7]), |_| false).reaches(share(0)));
        assert_eq!(Share::new(10_001), None);
        let shown = [8000, 8050, 8005, 0].map(|hundredths| share(hundredths).to_string());
        assert_eq!(shown, ["80%", "80.5%", "80.05%", "0%"]);
    }
}
