//! GitLab.

use super::super::profile::{Command, Login, Profile, Referrers, Refusal, Trait};

pub const GITLAB: Profile = Profile {
    name: "GitLab",
    traits: &[
        (Trait::Login(Login::Token), "oras-project/oras-go#1396"),
        (Trait::Referrers(Referrers::Missing(404)), "oras-project/oras-go#1396"),
        (Trait::ShaTagIsDigest, "oras-project/oras-go#1396, oras-project/oras#2148"),
        (Trait::SubjectFirst(404), "docker/buildx#3991"),
    ],
    refusals: &[
        (
            &[
                Command::Index,
                Command::IndexV2,
                Command::IndexFine,
                Command::HookServe,
                Command::HookWorker,
                Command::Backfill,
            ],
            Refusal { says: "cannot attach index", because: "nothing can be attached: `convert`" },
        ),
        (
            &[Command::Verify],
            Refusal { says: "has neither a SOCI index", because: "an image has no index" },
        ),
    ],
};
