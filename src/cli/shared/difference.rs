//! The output for a difference between a ztoc and its layer, for people and in JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::json::utf8;
use ociseek_format::layer::prove::Difference;

// Without a description, because the documents describe the field.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Status {
    Right,
    Different,
}

impl Status {
    pub(crate) fn of(is_right: bool) -> Status {
        if is_right { Status::Right } else { Status::Different }
    }
}

/// A difference.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DifferenceJson {
    /// A stable word.
    code: &'static str,
    /// For people.
    text: String,
    /// The number of the affected span.
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<u32>,
    /// The number of the affected entry in the ztoc.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<usize>,
    /// The name of that entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// That name, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_b64: Option<String>,
}

impl From<&Difference> for DifferenceJson {
    fn from(difference: &Difference) -> DifferenceJson {
        let (entry, name) =
            difference.entry().map_or((None, None), |(entry, name)| (entry, Some(name)));
        let (name, name_b64) = name.map_or((None, None), utf8);
        DifferenceJson {
            code: difference.code().word(),
            text: difference.to_string(),
            span: difference.span().map(|span| span.0),
            entry,
            name: name.map(str::to_owned),
            name_b64,
        }
    }
}

/// How many differences of each kind are printed.
const SHOWN: usize = 10;

/// The kinds and texts to print: the first ones of each kind, and finally the number of the others.
pub(crate) fn shown<'a>(
    findings: impl IntoIterator<Item = (&'a str, String)>,
) -> Vec<(&'a str, String)> {
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
    fn the_first_of_each_kind_is_shown_with_a_count_of_the_rest() {
        let lines =
            shown((0..25).map(|i| (if i % 5 == 0 { "rare" } else { "many" }, i.to_string())));
        assert_eq!(lines.iter().filter(|(kind, _)| *kind == "rare").count(), 5);
        assert_eq!(lines.len(), 5 + SHOWN + 1);
        assert_eq!(
            lines.last().map(|(kind, text)| (*kind, text.starts_with("and 10 more"))),
            Some(("many", true))
        );
    }
}
