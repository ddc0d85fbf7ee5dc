//! GitLab.

use super::super::profile::{Login, Profile, Referrers, Trait};

pub const GITLAB: Profile = Profile {
    name: "GitLab",
    traits: &[
        (Trait::Login(Login::Token), "oras-project/oras-go#1396"),
        (Trait::Referrers(Referrers::Missing(404)), "oras-project/oras-go#1396"),
        (Trait::ShaTagIsDigest, "oras-project/oras-go#1396, oras-project/oras#2148"),
        (Trait::SubjectFirst(404), "docker/buildx#3991"),
    ],
    refusals: &[],
};
