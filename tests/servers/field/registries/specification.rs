//! Not one registry, but what the distribution specification lets each do.

use super::super::profile::{Location, Login, Profile, Referrers, Trait};

pub const SPECIFICATION: Profile = Profile {
    name: "The specification's choices",
    traits: &[
        (Trait::Login(Login::Token), "distribution/distribution:docs/content/spec/auth/token.md"),
        (Trait::DeleteHasItsScope, "distribution/distribution:docs/content/spec/auth/scope.md"),
        (Trait::UploadLocation(Location::OtherHost), "opencontainers/distribution-spec:spec.md"),
        (Trait::Referrers(Referrers::Pages(1)), "opencontainers/distribution-spec:spec.md"),
        (Trait::NoRanges, "opencontainers/distribution-spec:spec.md"),
    ],
    refusals: &[],
};
