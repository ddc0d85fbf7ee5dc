//! distribution as a pull-through cache.

use super::super::profile::{Command, Profile, Refusal, Trait};

pub const CACHE: Profile = Profile {
    name: "Pull-through cache",
    traits: &[(
        Trait::ReadOnly(405, "The operation is unsupported."),
        "goharbor/harbor#667, distribution/distribution#1849, oras-project/oras-go#323",
    )],
    refusals: &[(Command::CHANGES, Refusal { says: "The operation is unsupported.", because: "it is read-only" })],
};
