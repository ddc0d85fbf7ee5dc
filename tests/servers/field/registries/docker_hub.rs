//! Docker Hub.

use super::super::profile::{Command, Login, Profile, Referrers, Refusal, Trait};

pub const DOCKER_HUB: Profile = Profile {
    name: "Docker Hub",
    traits: &[
        (Trait::Login(Login::Token), "docker/hub-feedback#2360"),
        (Trait::AnonymousPull, "docker/hub-feedback#1771"),
        (Trait::MountReadsTheOther, "oras-project/rust-oci-client#235"),
        (Trait::RateLimit(40), "docker/hub-feedback#1907, docker/docs#11648"),
        (Trait::Referrers(Referrers::Missing(404)), "docker/roadmap#724"),
        (Trait::DeleteHasItsScope, "docker/hub-feedback#2360"),
        (Trait::DeleteRefused(405), "docker/hub-feedback#2360"),
    ],
    refusals: &[(
        Command::DELETES,
        Refusal { says: "does not allow deleting manifests", because: "it deletes nothing" },
    )],
};
