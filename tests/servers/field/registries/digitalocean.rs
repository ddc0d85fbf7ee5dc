//! DigitalOcean.

use super::super::profile::{Command, Login, Profile, Refusal, Trait};

const LIMIT: &str = "registry contains 1 repositories, limit is 1";

pub const DIGITALOCEAN: Profile = Profile {
    name: "DigitalOcean",
    traits: &[
        (Trait::Login(Login::Token), "docker/build-push-action#586"),
        (Trait::NoNewRepositories(403, LIMIT), "docker/build-push-action#586"),
    ],
    refusals: &[(
        &[Command::ConvertNew],
        Refusal { says: LIMIT, because: "there may be too many" },
    )],
};
