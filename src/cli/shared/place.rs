//! A repository, a layout or an image, for commands that accept all of these.

use std::fmt;
use std::str::FromStr;

use ociseek_format::image::{ImageName, ImageNameError};

/// An image, or all images of a repository or layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListPlace {
    Repository { registry: String, repository: String },
    Image(ImageName),
}

impl ListPlace {
    /// The registry, if it is in one.
    pub(crate) fn registry(&self) -> Option<&str> {
        match self {
            ListPlace::Repository { registry, .. } => Some(registry),
            ListPlace::Image(image) => crate::cli::shared::source::registry(image),
        }
    }
}

impl FromStr for ListPlace {
    type Err = ImageNameError;

    fn from_str(typed: &str) -> Result<ListPlace, ImageNameError> {
        Ok(match typed.parse()? {
            // The default tag of a name without one does not appear in the text.
            ImageName::Registry(image)
                if image.digest.is_none() && !typed.rsplit('/').next().is_some_and(|last| last.contains(':')) =>
            {
                ListPlace::Repository { registry: image.registry, repository: image.repository }
            }
            image => ListPlace::Image(image),
        })
    }
}

impl fmt::Display for ListPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListPlace::Repository { registry, repository } => write!(f, "{registry}/{repository}"),
            ListPlace::Image(image) => image.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_tag_is_a_repository() {
        let shown = |typed: &str| match typed.parse().unwrap() {
            place @ ListPlace::Repository { .. } => format!("repository {place}"),
            place @ ListPlace::Image(_) => format!("image {place}"),
        };
        for (typed, want) in [
            ("localhost:5000/a/b", "repository localhost:5000/a/b"),
            ("debian", "repository docker.io/library/debian"),
            ("localhost:5000/a/b:v1", "image localhost:5000/a/b:v1"),
            ("debian:latest", "image docker.io/library/debian:latest"),
            ("oci:dir", "image oci:dir"),
        ] {
            assert_eq!(shown(typed), want);
        }
        assert!("docker://a".parse::<ListPlace>().is_err());
    }
}
