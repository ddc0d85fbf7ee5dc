//! Azure Container Registry.

use super::super::profile::{Location, Login, Profile, Referrers, Trait};

pub const ACR: Profile = Profile {
    name: "Azure Container Registry",
    traits: &[
        (Trait::Login(Login::Identity), "devcontainers/cli#444, Azure/acr#32"),
        (Trait::UploadLocation(Location::WithState), "opencontainers/artifacts#55"),
        (Trait::NoRangeUnit, "dotnet/sdk-container-builds#258"),
        (Trait::Referrers(Referrers::WithoutTypes), "Azure/acr#784"),
    ],
    refusals: &[],
};

/// With replicas in several regions, between which its name moves.
pub const ACR_REPLICATED: Profile = Profile {
    name: "Azure Container Registry, geo-replicated",
    traits: &[
        (Trait::Login(Login::Identity), "devcontainers/cli#444, Azure/acr#32"),
        (Trait::KnowsBlobsLate(1), "Azure/acr#588"),
        (Trait::Referrers(Referrers::WithoutTypes), "Azure/acr#784"),
    ],
    refusals: &[],
};
