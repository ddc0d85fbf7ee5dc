//! Pull-through caches: distribution, Harbor's proxy projects, GitLab's virtual registries.

use super::super::profile::{Command, Profile, Refusal, Trait};

pub const CACHE: Profile = Profile {
    name: "Pull-through cache",
    traits: &[
        (
            Trait::ReadOnly(405, "The operation is unsupported."),
            "goharbor/harbor#667, distribution/distribution#1849, oras-project/oras-go#323",
        ),
        (Trait::NoHeadOfBlobs, "goharbor/harbor#22609"),
        (Trait::SignedManifests, "moby/moby#50065"),
    ],
    refusals: &[(
        Command::CHANGES,
        Refusal { says: "The operation is unsupported.", because: "it is read-only" },
    )],
};
