//! Why nothing is made for an image, or no SOCI-enabled image.

use std::collections::BTreeSet;

use ociseek_format::digest::Digest;
use ociseek_format::image::TagError;
use ociseek_format::printable::{exact_size, human_size};
use ociseek_ops::index::LeftOutReason;

/// Why there is nothing to do for a pushed manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SkipReason {
    #[error("{0} is a fallback tag, where registries without the referrers API list referrers")]
    ReferrersTag(String),
    #[error("it is {0}")]
    NotAnImage(String),
    /// Its platforms, none of which was requested.
    #[error("{0}")]
    OtherPlatforms(String),
    #[error("it is attached to {0}")]
    Subject(Digest),
    #[error("it is a SOCI-enabled image, or belongs to one")]
    SociEnabled,
    #[error("its layers have {}; the limit is {}", human_size(*size), exact_size(*limit))]
    TooLarge { size: u64, limit: u64 },
    #[error("all of its layers are smaller than {}", exact_size(*least))]
    LayersTooSmall { least: u64 },
    /// The stable words of the reasons.
    #[error("none of its layers can be served lazily ({})", .0.join(", "))]
    NotServable(Vec<&'static str>),
    /// Only a SOCI-enabled image was requested.
    #[error("no SOCI-enabled image: {0}")]
    NotEnabled(NotEnabled),
}

impl SkipReason {
    /// A stable word for logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            SkipReason::ReferrersTag(_) => "referrers-tag",
            SkipReason::NotAnImage(_) => "not-an-image",
            SkipReason::OtherPlatforms(_) => "other-platforms",
            SkipReason::Subject(_) => "has-a-subject",
            SkipReason::SociEnabled => "soci-enabled",
            SkipReason::TooLarge { .. } => "too-large",
            SkipReason::LayersTooSmall { .. } => "layers-too-small",
            SkipReason::NotServable(_) => "not-servable",
            SkipReason::NotEnabled(why) => why.code(),
        }
    }

    /// The reason why the index has no layers. An image that only has small layers is normal, but
    /// about other reasons its author should be told.
    pub(super) fn nothing_to_index<'a>(
        reasons: impl Iterator<Item = &'a LeftOutReason>,
    ) -> SkipReason {
        let mut codes = BTreeSet::new();
        let mut size = None;
        for reason in reasons {
            codes.insert(reason.code());
            if let LeftOutReason::Small { least } = reason {
                size = Some(*least);
            }
        }
        match size {
            Some(least) if codes.len() == 1 => SkipReason::LayersTooSmall { least },
            _ if codes.is_empty() => SkipReason::NotServable(vec!["no-layers"]),
            _ => SkipReason::NotServable(codes.into_iter().collect()),
        }
    }
}

/// Why no SOCI-enabled image was written although nothing failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotEnabled {
    #[error(transparent)]
    Tag(#[from] TagError),
    #[error(
        "the tag already points to {0}, which is not a SOCI-enabled image, and was left unchanged"
    )]
    Occupied(Digest),
    #[error("the tag {0} names another image now")]
    Moved(String),
    #[error("the tag {0} is gone")]
    Untagged(String),
    /// For the image that the tag names now.
    #[error("the tag names another image now: {0}")]
    Skipped(Box<SkipReason>),
}

impl NotEnabled {
    /// A stable word for logs.
    pub fn code(&self) -> &'static str {
        match self {
            NotEnabled::Tag(TagError::NoTag(_)) => "no-tag",
            NotEnabled::Tag(TagError::Own(_)) => "own-tag",
            NotEnabled::Tag(_) => "invalid-tag",
            NotEnabled::Occupied(_) => "tag-taken",
            NotEnabled::Moved(_) => "tag-moved",
            NotEnabled::Untagged(_) => "tag-gone",
            NotEnabled::Skipped(skipped) => skipped.code(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::image::{LayerKind, NotIndexed};

    #[test]
    fn skip_reasons_follow_from_the_layers() {
        let small = LeftOutReason::Small { least: 10 };
        let zstd =
            LeftOutReason::Kind { why: NotIndexed::Kind(LayerKind::Zstd), reason: String::new() };
        let skipped =
            |reasons: &[&LeftOutReason]| SkipReason::nothing_to_index(reasons.iter().copied());
        assert_eq!(skipped(&[&small, &small]), SkipReason::LayersTooSmall { least: 10 });
        assert_eq!(
            skipped(&[&zstd, &small, &zstd]),
            SkipReason::NotServable(vec!["too-small", "zstd"])
        );
        assert_eq!(skipped(&[&zstd]).to_string(), "none of its layers can be served lazily (zstd)");
        assert_eq!(skipped(&[]).to_string(), "none of its layers can be served lazily (no-layers)");
    }
}
