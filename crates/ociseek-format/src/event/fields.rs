//! The fields that events of all registries share, and their validation.

use super::{IgnoreReason, Item, MAX_ID, PushEvent, cut};
use crate::image::{fine, is_registry, is_repository, is_tag, soci};

/// The image in an event, not yet validated.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct PushFields<'a> {
    pub id: Option<&'a str>,
    pub registry: Option<&'a str>,
    pub repository: &'a str,
    pub tag: Option<&'a str>,
    pub digest: Option<&'a str>,
}

impl PushFields<'_> {
    /// Validates the fields. Empty tags and digests count as missing.
    pub(super) fn push(self) -> Item {
        let malformed = |value: &str, what| IgnoreReason::Malformed(cut(value), what);
        if let Some(registry) = self.registry.filter(|registry| !is_registry(registry)) {
            return Err(malformed(registry, "registry host"));
        }
        if !is_repository(self.repository) {
            return Err(malformed(self.repository, "repository name"));
        }
        let tag = self.tag.filter(|tag| !tag.is_empty());
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(malformed(tag, "tag"));
        }
        let digest = match self.digest.filter(|digest| !digest.is_empty()) {
            Some(digest) => Some(digest.parse().map_err(|_| malformed(digest, "digest"))?),
            None => None,
        };
        if tag.is_none() && digest.is_none() {
            return Err(IgnoreReason::Nameless);
        }
        // Whether the parts make a name together depends on the registry, which may be replaced:
        // `PushEvent::image` judges that.
        Ok(PushEvent {
            // An id that is too long to be remembered is treated as missing.
            id: self.id.filter(|id| !id.is_empty() && id.len() <= MAX_ID).map(str::to_owned),
            registry: self.registry.map(str::to_ascii_lowercase),
            repository: self.repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest,
        })
    }
}

/// Splits `HOST/REPOSITORY[:TAG][@DIGEST]`. The first part is always taken as the host.
pub(super) fn split_name<'a>(name: &'a str, id: Option<&'a str>) -> PushFields<'a> {
    let (named, digest) =
        name.split_once('@').map_or((name, None), |(named, digest)| (named, Some(digest)));
    let (registry, rest) =
        named.split_once('/').map_or((None, named), |(host, rest)| (Some(host), rest));
    let (repository, tag) =
        rest.split_once(':').map_or((rest, None), |(repository, tag)| (repository, Some(tag)));
    PushFields { id, registry, repository, tag, digest }
}

/// Checks that a media type is that of an image's manifest or index. Events for blobs have other
/// types, and those for our own indexes have an artifact type. Without a media type the event is
/// accepted.
pub(super) fn image_media_type(
    media_type: Option<&str>,
    artifact_type: Option<&str>,
) -> Result<(), IgnoreReason> {
    let indexes = [soci::INDEX_V1, soci::INDEX_V2, fine::FINE_INDEX];
    if let Some(ours) = artifact_type.filter(|artifact_type| indexes.contains(artifact_type)) {
        return Err(IgnoreReason::NotAnImage(ours.to_owned()));
    }
    let manifest =
        |media_type: &str| media_type.contains(".manifest.") || media_type.contains(".index.");
    match media_type.filter(|media_type| !media_type.is_empty() && !manifest(media_type)) {
        Some(other) => Err(IgnoreReason::NotAnImage(cut(other))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_ignored() {
        let fields = PushFields {
            registry: Some("R.example:5000"),
            repository: "a/b",
            tag: Some("t"),
            ..PushFields::default()
        };
        assert_eq!(fields.push().unwrap().registry.as_deref(), Some("r.example:5000"));
        let digest = format!("sha256:{}", "0".repeat(64));
        let bad = [
            PushFields { repository: "../../x", ..fields },
            PushFields { repository: "%2e%2e", ..fields },
            PushFields { repository: "A/b", ..fields },
            PushFields { repository: "", ..fields },
            PushFields { repository: "a?b", ..fields },
            PushFields { repository: "a#b", ..fields },
            PushFields { repository: "_catalog", ..fields },
            PushFields { tag: Some("$(x)"), ..fields },
            PushFields { tag: Some(&digest), ..fields },
            PushFields { digest: Some("latest"), ..fields },
            PushFields { digest: Some("sha256:../../x"), ..fields },
            PushFields { registry: Some("u@r.example"), ..fields },
            PushFields { registry: Some("r.example/x"), ..fields },
            PushFields { registry: Some("r。example"), ..fields },
            PushFields { registry: Some(""), ..fields },
        ];
        for fields in bad {
            assert!(matches!(fields.push(), Err(IgnoreReason::Malformed(..))), "{fields:?}");
        }
        let long = "a".repeat(300);
        assert!(PushFields { repository: &long, ..fields }.push().is_err());
        assert_eq!(
            PushFields { tag: Some(""), digest: Some(""), ..fields }.push(),
            Err(IgnoreReason::Nameless)
        );
        assert_eq!(PushFields { id: Some(&long), ..fields }.push().unwrap().id, None);
    }

    #[test]
    fn a_registry_that_is_replaced_need_not_be_part_of_a_valid_name() {
        let fields = PushFields { repository: "web", tag: Some("t"), ..PushFields::default() };
        // Their names would be read as images of Docker Hub, or as other ones of it.
        for registry in ["team", "docker.io"] {
            let push = PushFields { registry: Some(registry), ..fields }.push().unwrap();
            assert!(
                matches!(push.image(None), Err(IgnoreReason::Malformed(_, "image name"))),
                "{registry}"
            );
            assert_eq!(push.image(Some("r.example")).unwrap().to_string(), "r.example/web:t");
        }
    }
}
