//! A difference between a ztoc and what it should be, for people and in JSON.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::ops::verify::Difference;

/// `code` is a stable word (see [`Difference::code`]), `message` a line for people. `span` is a span's number; `entry` is an
/// entry's number in the ztoc and `name` its name, in base64 as `name_b64` where it is not UTF-8. Fields that do not apply are left out.
#[derive(Debug, Serialize)]
pub struct DifferenceJson {
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_b64: Option<String>,
}

impl From<&Difference> for DifferenceJson {
    fn from(difference: &Difference) -> DifferenceJson {
        let (entry, name) = difference.entry().map_or((None, None), |(entry, name)| (entry, Some(name)));
        let text = name.and_then(|name| std::str::from_utf8(name).ok());
        DifferenceJson {
            code: difference.code().word(),
            message: difference.to_string(),
            span: difference.span().map(|span| span.0),
            entry,
            name: text.map(str::to_owned),
            name_b64: name.filter(|_| text.is_none()).map(|name| STANDARD.encode(name)),
        }
    }
}

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
