//! Guesses which tags of a repository name images with the same layers. Registries do not list tags
//! by age, so only the names can be used.

use std::cmp::Reverse;

use ociseek_format::image::{DEFAULT_TAG, is_referrers_tag};

/// At most `most` of `names`: `latest`, then those that differ from the image's own tag only in
/// their numbers, nearest first, then those with a common prefix. Leaves out tags of referrers
/// lists, and the image's own.
pub(super) fn nearest(own: Option<&str>, mut names: Vec<String>, most: usize) -> Vec<String> {
    names.retain(|name| Some(name.as_str()) != own && !is_referrers_tag(name));
    names.sort_by_cached_key(|name| rank(own.unwrap_or_default(), name));
    names.dedup();
    names.truncate(most);
    names
}

/// Where to continue the list of tags if there is more than one page: tags are listed in byte
/// order, so those similar to `own` follow its prefix.
pub(super) fn before(own: &str) -> Option<&str> {
    // Tags are ASCII. Removing two characters leaves some hundred neighbours, about a page.
    own.len().checked_sub(2).filter(|length| *length > 0).and_then(|length| own.get(..length))
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Text(String),
    Number(u64),
}

/// Smaller ranks are more likely.
type Rank = (u8, Vec<u64>, bool, Reverse<usize>, Reverse<Vec<Part>>);

fn rank(own: &str, name: &str) -> Rank {
    let (mine, other) = (parts(own), parts(name));
    let common = own.bytes().zip(name.bytes()).take_while(|(one, other)| one == other).count();
    let tier = match distances(&mine, &other) {
        // Most repositories keep it on their newest image.
        _ if name == DEFAULT_TAG => 0,
        Some(_) => 1,
        None => 2,
    };
    // Of two tags at the same distance, the older one is more likely to be indexed.
    let newer = tier == 1 && other > mine;
    let distances = distances(&mine, &other).filter(|_| tier == 1).unwrap_or_default();
    (tier, distances, newer, Reverse(common), Reverse(other))
}

/// The distances between the numbers, if nothing else differs.
fn distances(mine: &[Part], other: &[Part]) -> Option<Vec<u64>> {
    let mut distances = Vec::new();
    if mine.len() != other.len() {
        return None;
    }
    for parts in mine.iter().zip(other) {
        match parts {
            (Part::Number(mine), Part::Number(other)) => distances.push(mine.abs_diff(*other)),
            (Part::Text(mine), Part::Text(other)) if mine == other => {}
            _ => return None,
        }
    }
    Some(distances)
}

/// A tag's numbers and the text between them.
fn parts(tag: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = tag;
    while let Some(first) = rest.chars().next() {
        let digits = first.is_ascii_digit();
        let length = rest.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(length);
        parts.push(match part.parse() {
            Ok(number) if digits => Part::Number(number),
            _ => Part::Text(part.to_owned()),
        });
        rest = behind;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(own: Option<&str>, names: &[&str], most: usize) -> Vec<String> {
        nearest(own, names.iter().map(|name| (*name).to_owned()).collect(), most)
    }

    #[test]
    fn versions_are_compared_by_number() {
        let names = ["v1.4.2", "latest", "v1.4.10", "v1.4.1", "v1.4.3", "v0.9", "v2.0.0", "v1.3.9", "dev"];
        let nearest = ["latest", "v1.4.1", "v1.4.3", "v1.4.10", "v1.3.9", "v2.0.0", "v0.9", "dev"];
        assert_eq!(found(Some("v1.4.2"), &names, 20), nearest);
        assert_eq!(found(Some("v1.4.2"), &names, 3), nearest[..3]);
        let builds = ["main-99", "main-100", "main-102", "feature-101"];
        assert_eq!(found(Some("main-101"), &builds, 2), ["main-100", "main-102"]);
        assert_eq!(found(Some("1.4-alpine"), &["1.4", "1.3-alpine", "1.3"], 1), ["1.3-alpine"]);
    }

    #[test]
    fn commits_are_grouped_by_prefix() {
        let names = ["sha-1a2b3c4", "main", "sha-0f0f0f0", "pr-7"];
        assert_eq!(found(Some("sha-ffeedd1"), &names, 2), ["sha-1a2b3c4", "sha-0f0f0f0"]);
    }

    #[test]
    fn without_a_tag_the_highest_versions_come_first() {
        assert_eq!(found(None, &["v1.9", "v1.10", "latest"], 2), ["latest", "v1.10"]);
        assert_eq!(found(Some("latest"), &["v1.9", "v1.10", "latest"], 1), ["v1.10"]);
    }

    #[test]
    fn fallback_tags_are_not_images() {
        let hex = "0123456789abcdef".repeat(4);
        let names = [format!("sha256-{hex}"), format!("sha256-{hex}.sig"), "v1".into(), "v1".into()];
        assert_eq!(nearest(Some("v2"), names.to_vec(), 9), ["v1"]);
        assert_eq!(found(Some(""), &["99999999999999999999999", "x"], 9).len(), 2);
    }

    #[test]
    fn lists_start_before_tags_with_the_same_prefix() {
        assert_eq!(before("build-1234"), Some("build-12"));
        assert_eq!((before("v1"), before("")), (None, None));
    }
}
