//! Harbor.

use super::super::profile::{Command, Login, Profile, Referrers, Refusal, Trait};

pub const HARBOR: Profile = Profile {
    name: "Harbor",
    traits: &[
        (Trait::Login(Login::Token), "goharbor/harbor#18860"),
        (Trait::TokensExpire(2), "goharbor/harbor#18860"),
        (Trait::Referrers(Referrers::Filtered), "goharbor/harbor#18413"),
    ],
    refusals: &[],
};

/// Until 2.10.
pub const HARBOR_2_10: Profile = Profile {
    name: "Harbor before 2.11",
    traits: &[
        (Trait::Login(Login::Token), "goharbor/harbor#18860"),
        (Trait::Referrers(Referrers::OfConfigs), "goharbor/harbor#19867, goharbor/harbor#20187"),
    ],
    refusals: &[],
};

/// A project whose tags are immutable, and a version without the referrers API.
pub const HARBOR_IMMUTABLE: Profile = Profile {
    name: "Harbor, immutable tags",
    traits: &[
        (Trait::Login(Login::Token), "goharbor/harbor#18860"),
        (
            Trait::TagsStay(
                412,
                "PRECONDITION",
                "Failed to process request due to 'app:v1' configured as immutable.",
            ),
            "goharbor/harbor#17332",
        ),
    ],
    refusals: &[(
        &[Command::ConvertInPlace, Command::IndexFine, Command::RmObsolete, Command::Rm],
        Refusal { says: "configured as immutable", because: "tags cannot be moved" },
    )],
};

pub const HARBOR_READ_ONLY: Profile = Profile {
    name: "Harbor, read-only",
    traits: &[
        (Trait::Login(Login::Token), "goharbor/harbor#18860"),
        (Trait::Referrers(Referrers::Filtered), "goharbor/harbor#18413"),
        (
            Trait::ReadOnly(
                403,
                "The system is in read only mode. Any modification is prohibited.",
            ),
            "goharbor/harbor#4650, goharbor/harbor:src/server/middleware/readonly/readonly.go",
        ),
    ],
    refusals: &[(
        Command::CHANGES,
        Refusal { says: "The system is in read only mode.", because: "it is read-only" },
    )],
};
