//! Derives the tag of a SOCI-enabled image from the tag of its original.

use std::fmt;
use std::str::FromStr;

use super::reference::{is_referrers_tag, is_tag};
use crate::digest::Digest;

const TAG: &str = "{tag}";
const DIGEST: &str = "{digest}";

/// A tag with `{tag}` and `{digest}` in it, such as `{tag}-soci`: the tag of an image, and the
/// first 12 hex digits of its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagTemplate(String);

/// Why a template gives no valid tag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum TagError {
    #[error("{0:?} does not make a valid tag: expected a tag with {{tag}} or {{digest}} in it, such as {{tag}}-soci")]
    Template(String),
    #[error("{{tag}} in {0} has no value: the image is named by its digest only")]
    NoTag(TagTemplate),
    #[error("{tag:?}, which the template makes, is not a valid tag")]
    Invalid { tag: String },
    #[error("{0} is the image's own tag, which is never overwritten")]
    Own(String),
}

impl TagTemplate {
    /// The tag for an image. `tag` is the tag in the image's name, if any.
    ///
    /// # Errors
    /// If the template needs a tag that is missing, or if the result is not a tag.
    pub fn fill(&self, tag: Option<&str>, digest: &Digest) -> Result<String, TagError> {
        if self.needs_tag() && tag.is_none() {
            return Err(TagError::NoTag(self.clone()));
        }
        let made = self.with(tag.unwrap_or_default(), &digest.short());
        match is_tag(&made) && !is_referrers_tag(&made) {
            false => Err(TagError::Invalid { tag: made }),
            true => Ok(made),
        }
    }

    /// Whether the template needs the image's tag, so it cannot be used for images that are only
    /// named by digest.
    pub fn needs_tag(&self) -> bool {
        self.0.contains(TAG)
    }

    /// Whether different images get different tags, none of which is their own.
    pub fn tells_apart(&self) -> bool {
        self.0 != TAG && (self.needs_tag() || self.0.contains(DIGEST))
    }

    fn with(&self, tag: &str, digest: &str) -> String {
        // Tags and digests have no braces, so nothing is replaced twice.
        self.0.replace(TAG, tag).replace(DIGEST, digest)
    }
}

impl FromStr for TagTemplate {
    type Err = TagError;

    fn from_str(text: &str) -> Result<TagTemplate, TagError> {
        let template = TagTemplate(text.to_owned());
        match is_tag(&template.with("t", "0123456789ab")) {
            true => Ok(template),
            false => Err(TagError::Template(text.to_owned())),
        }
    }
}

impl fmt::Display for TagTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates() {
        let digest = Digest::sha256(b"{}");
        let made = |template: &str, tag| template.parse::<TagTemplate>().unwrap().fill(tag, &digest);
        for (template, tag, want) in [
            ("{tag}-soci", Some("v1"), "v1-soci"),
            ("soci_{tag}.{digest}", Some("v1"), "soci_v1.44136fa355b3"),
            ("{digest}-soci", None, "44136fa355b3-soci"),
            ("v2", None, "v2"),
            ("{tag}{tag}", Some("a"), "aa"),
        ] {
            assert_eq!(made(template, tag), Ok(want.to_owned()), "{template}");
        }
        assert!(matches!(made("{tag}-soci", None), Err(TagError::NoTag(_))));
        let long = "x".repeat(128);
        assert!(matches!(made("{tag}-soci", Some(&long)), Err(TagError::Invalid { .. })));
        let referrers = format!("sha256-{}", "0".repeat(64));
        assert_eq!(made("{tag}", Some(&referrers)), Err(TagError::Invalid { tag: referrers }));
        for bad in ["", "-{tag}", "{tag}:x", "{Tag}", "{tag", "tag}", "{{tag}}", "a b", "{name}-soci", &long.repeat(2)]
        {
            assert_eq!(bad.parse::<TagTemplate>(), Err(TagError::Template(bad.to_owned())));
        }
        for (template, apart) in [("{tag}", false), ("soci", false), ("{tag}-soci", true), ("{digest}", true)] {
            assert_eq!(template.parse::<TagTemplate>().unwrap().tells_apart(), apart, "{template}");
        }
    }
}
