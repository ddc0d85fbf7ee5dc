//! JFrog Artifactory.

use super::super::profile::{Login, Profile, Referrers, Trait};

/// A virtual repository, where one of those behind it is not open to the user.
pub const ARTIFACTORY: Profile = Profile {
    name: "Artifactory",
    traits: &[
        (Trait::Login(Login::Token), "moby/buildkit#1130"),
        (Trait::Referrers(Referrers::Missing(406)), "google/go-containerregistry#1962"),
        (Trait::MissingTag(403), "sigstore/cosign#2973, google/go-containerregistry#1691"),
    ],
    refusals: &[],
};

/// 7.117, with the referrers API.
pub const ARTIFACTORY_7_117: Profile = Profile {
    name: "Artifactory 7.117",
    traits: &[
        (Trait::Login(Login::Token), "moby/buildkit#1130"),
        (Trait::Referrers(Referrers::Api), "oras-project/oras#2047"),
        (Trait::MissingTag(403), "sigstore/cosign#2973, google/go-containerregistry#1691"),
    ],
    refusals: &[],
};

/// 6.11 (2019), which took the content of a blob by PATCH alone.
pub const ARTIFACTORY_6: Profile = Profile {
    name: "Artifactory 6.11",
    traits: &[
        (Trait::Login(Login::Token), "moby/buildkit#1130"),
        (Trait::PutTakesNoContent(404), "docker/buildx#196, moby/buildkit#1130"),
    ],
    refusals: &[],
};
