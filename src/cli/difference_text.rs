//! Differences as lines for people: one damage can have thousands of consequences.

use std::collections::BTreeMap;

/// How many of one kind are printed.
const SHOWN: usize = 10;

/// Kinds and texts of what is printed: of each kind the first ones, and at the end how many more there are.
pub fn shown<'a>(findings: impl IntoIterator<Item = (&'a str, String)>) -> Vec<(&'a str, String)> {
    let mut lines = Vec::new();
    let mut of_kind: BTreeMap<&str, usize> = BTreeMap::new();
    for (kind, text) in findings {
        let seen = of_kind.entry(kind).or_default();
        *seen += 1;
        if *seen <= SHOWN {
            lines.push((kind, text));
        }
    }
    for (kind, seen) in of_kind.into_iter().filter(|(_, seen)| *seen > SHOWN) {
        lines.push((kind, format!("and {} more {kind}; --format json lists them", seen - SHOWN)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_each_kind_and_how_many_more() {
        let lines = shown((0..25).map(|i| (if i % 5 == 0 { "rare" } else { "many" }, i.to_string())));
        assert_eq!(lines.iter().filter(|(kind, _)| *kind == "rare").count(), 5);
        assert_eq!(lines.len(), 5 + SHOWN + 1);
        assert_eq!(lines.last().map(|(kind, text)| (*kind, text.starts_with("and 10 more"))), Some(("many", true)));
    }
}
