//! Patterns for the tools that may make indexes: `ociseek`, `ociseek >= 0.1, < 2`, `AWS SOCI *`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use ociseek_format::glob;

/// The longest tool identifier that is compared with a pattern, in bytes. Longer ones never match.
const MAX_IDENTIFIER: usize = 256;

/// Matches tools by a glob for the name and bounds for the version.
///
/// A tool identifier is a name, followed by a version if the last word is one: `ociseek v0.1.0`. A
/// pattern without bounds is compared with the name and with the whole identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolPattern {
    text: String,
    name: String,
    bounds: Vec<(Operator, Version)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    AtLeast,
    MoreThan,
    AtMost,
    LessThan,
}

/// A version, ordered as in semantic versioning. Missing numbers are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    numbers: Vec<u64>,
    pre_release: Option<String>,
}

/// Why a text is not a tool pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolPatternError {
    #[error("expected NAME or NAME >= VERSION, such as 'ociseek >= 0.1, < 2'")]
    NoName,
    #[error("{0:?} is not a bound: expected one of = >= > <= < and a version, such as >= 0.1")]
    Bound(String),
}

impl ToolPattern {
    /// Whether the tool with this identifier matches. A tool without a version is never within
    /// bounds.
    pub fn allows(&self, identifier: &str) -> bool {
        if identifier.len() > MAX_IDENTIFIER {
            return false;
        }
        let (name, version) = split(identifier);
        let is_named = |text: &str| glob::matches(self.name.as_bytes(), text.as_bytes());
        if self.bounds.is_empty() {
            return is_named(name) || is_named(identifier);
        }
        let Some(version) = version else { return false };
        is_named(name)
            && self.bounds.iter().all(|(operator, bound)| operator.holds(version.cmp(bound)))
    }
}

impl FromStr for ToolPattern {
    type Err = ToolPatternError;

    fn from_str(text: &str) -> Result<ToolPattern, ToolPatternError> {
        let text = text.trim();
        let (name, bounds) = text.split_at(text.find(['=', '<', '>']).unwrap_or(text.len()));
        let name = name.trim();
        if name.is_empty() || text.len() > MAX_IDENTIFIER {
            return Err(ToolPatternError::NoName);
        }
        let bounds = match bounds {
            "" => Vec::new(),
            bounds => bounds.split(',').map(bound).collect::<Result<_, _>>()?,
        };
        Ok(ToolPattern { text: text.to_owned(), name: name.to_owned(), bounds })
    }
}

impl fmt::Display for ToolPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn bound(text: &str) -> Result<(Operator, Version), ToolPatternError> {
    const OPERATORS: [(&str, Operator); 5] = [
        (">=", Operator::AtLeast),
        ("<=", Operator::AtMost),
        (">", Operator::MoreThan),
        ("<", Operator::LessThan),
        ("=", Operator::Equal),
    ];
    let text = text.trim();
    let parsed =
        OPERATORS.iter().find_map(|(sign, operator)| Some((*operator, text.strip_prefix(sign)?)));
    parsed
        .and_then(|(operator, version)| Some((operator, Version::parse(version.trim())?)))
        .ok_or_else(|| ToolPatternError::Bound(text.to_owned()))
}

/// The name and version in a tool identifier.
fn split(identifier: &str) -> (&str, Option<Version>) {
    let identifier = identifier.trim();
    match identifier
        .rsplit_once(char::is_whitespace)
        .map(|(name, last)| (name, Version::parse(last)))
    {
        Some((name, Some(version))) => (name.trim_end(), Some(version)),
        _ => (identifier, None),
    }
}

impl Operator {
    fn holds(self, found: Ordering) -> bool {
        match self {
            Operator::Equal => found.is_eq(),
            Operator::AtLeast => found.is_ge(),
            Operator::MoreThan => found.is_gt(),
            Operator::AtMost => found.is_le(),
            Operator::LessThan => found.is_lt(),
        }
    }
}

impl Version {
    /// Parses `v1.2.3-rc.1+build`. The `v`, and everything after the first number, is optional.
    fn parse(text: &str) -> Option<Version> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split_once('+').map_or(text, |(text, _)| text);
        let (core, pre_release) = match text.split_once('-') {
            Some((core, pre_release)) => (core, Some(pre_release.to_owned())),
            None => (text, None),
        };
        let number =
            |part: &str| part.parse().ok().filter(|_| part.bytes().all(|b| b.is_ascii_digit()));
        let numbers = core.split('.').map(number).collect::<Option<_>>()?;
        Some(Version { numbers, pre_release })
    }

    fn cmp(&self, other: &Version) -> Ordering {
        let count = self.numbers.len().max(other.numbers.len());
        let numbers = |version: &Version| {
            let mut numbers = version.numbers.clone();
            numbers.resize(count, 0);
            numbers
        };
        let by_pre_release = || match (&self.pre_release, &other.pre_release) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(a), Some(b)) => pre_releases(a, b),
        };
        numbers(self).cmp(&numbers(other)).then_with(by_pre_release)
    }
}

/// Compares pre-releases (semantic versioning 2.0.0, section 11.4).
fn pre_releases(a: &str, b: &str) -> Ordering {
    let of = |text: &str| {
        text.split('.').map(|part| (part.parse::<u64>().ok(), part.to_owned())).collect::<Vec<_>>()
    };
    let a = of(a);
    let b = of(b);
    let differing = a.iter().zip(&b).map(|(a, b)| match (a.0, b.0) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.1.cmp(&b.1),
    });
    differing.into_iter().find(|order| order.is_ne()).unwrap_or(a.len().cmp(&b.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(pattern: &str, identifier: &str) -> bool {
        pattern.parse::<ToolPattern>().unwrap().allows(identifier)
    }

    #[test]
    fn tool_names_match_exactly() {
        for (pattern, identifier, want) in [
            ("ociseek", "ociseek v0.1.0", true),
            ("ociseek", "ociseek", true),
            ("ociseek", "ociseek-fork v0.1.0", false),
            ("ociseek", "not ociseek v0.1.0", false),
            ("ociseek v0.1.0", "ociseek v0.1.0", true),
            ("ociseek v0.1.*", "ociseek v0.1.7", true),
            ("ociseek v0.1.*", "ociseek v0.2.0", false),
            ("AWS SOCI *", "AWS SOCI CLI v0.2", true),
            ("AWS SOCI CLI", "AWS SOCI CLI v0.2", true),
            ("*", "anything", true),
            ("ociseek", "", false),
        ] {
            assert_eq!(allows(pattern, identifier), want, "{pattern:?} {identifier:?}");
        }
        assert!(!allows("**", &"x".repeat(MAX_IDENTIFIER + 1)));
    }

    #[test]
    fn tool_versions_are_compared() {
        for (pattern, identifier, want) in [
            ("ociseek >= 0.1", "ociseek v0.1.0", true),
            ("ociseek>=0.1", "ociseek v0.1.0", true),
            ("ociseek >= v0.1.1", "ociseek v0.1.0", false),
            ("ociseek > 0.1", "ociseek v0.1.0", false),
            ("ociseek > 0.9", "ociseek v0.10", true),
            ("ociseek = 0.1", "ociseek v0.1.0+commit", true),
            ("ociseek >= 0.1, < 0.3", "ociseek v0.2.9", true),
            ("ociseek >= 0.1, < 0.3", "ociseek v0.3.0", false),
            ("ociseek <= 1", "ociseek v1.0.1", false),
            // A pre-release comes before its release.
            ("ociseek >= 1", "ociseek v1.0.0-rc.1", false),
            ("ociseek >= 1.0.0-rc.2", "ociseek v1.0.0-rc.10", true),
            ("ociseek >= 1.0.0-rc.2", "ociseek v1.0.0-rc", false),
            ("ociseek >= 1.0.0-alpha", "ociseek v1.0.0-1", false),
            ("* >= 0.2", "AWS SOCI CLI v0.2", true),
            // A tool without a version is never within bounds.
            ("ociseek >= 0", "ociseek", false),
            ("ociseek >= 0", "ociseek v1.x", false),
            ("ociseek >= 0", "ociseek v+1", false),
            ("ociseek >= 0", "ociseek v99999999999999999999", false),
        ] {
            assert_eq!(allows(pattern, identifier), want, "{pattern:?} {identifier:?}");
        }
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for text in ["", "  ", ">= 1", &"x".repeat(300)] {
            assert_eq!(text.parse::<ToolPattern>(), Err(ToolPatternError::NoName), "{text}");
        }
        for text in
            ["a >=", "a >= x", "a => 1", "a == 1", "a >= 1,", "a >= 1 < 2", "a >= 1, 2", "a >= -1"]
        {
            assert!(
                matches!(text.parse::<ToolPattern>(), Err(ToolPatternError::Bound(_))),
                "{text}"
            );
        }
        assert_eq!(" a >=1 ".parse::<ToolPattern>().unwrap().to_string(), "a >=1");
    }
}
