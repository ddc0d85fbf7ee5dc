//! Docker Hardened Images.

use super::super::profile::{Login, Profile, Trait};

/// In July 2026.
pub const DOCKER_HARDENED: Profile = Profile {
    name: "Docker Hardened Images (dhi.io), July 2026",
    traits: &[
        (Trait::Login(Login::Token), "docker/hub-feedback#2530"),
        (Trait::NoChallengeAfterExpiry, "docker/hub-feedback#2530"),
    ],
    refusals: &[],
};
