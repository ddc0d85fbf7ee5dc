//! Amazon ECR, its private registries.

use super::super::profile::{
    Command, Location, Login, PatchRange, Profile, Referrers, Refusal, Trait,
};

pub const ECR: Profile = Profile {
    name: "Amazon ECR",
    traits: &[
        (Trait::Login(Login::Basic), "open-policy-agent/opa#6580"),
        (Trait::ExpiredPassword(403), "awslabs/amazon-ecr-credential-helper#7"),
        (Trait::NamesMustExist(404), "plexsystems/sinker#55"),
        (Trait::UploadLocation(Location::Relative), "openai/tart#273"),
        (Trait::PatchStatus(201), "aws/containers-roadmap#2831"),
        (Trait::PatchRange(PatchRange::FirstChunk), "aws/containers-roadmap#2831"),
        (Trait::MountsWhatManifestsList, "aws/containers-roadmap#2860"),
        (Trait::SignedUrls, "open-policy-agent/opa#6728"),
        (Trait::Referrers(Referrers::Api), "aws/containers-roadmap#43"),
        (Trait::NoLocationOfManifests, "apple/swift-container-plugin#27"),
    ],
    refusals: &[(
        &[Command::ConvertNew],
        Refusal { says: "does not exist in the registry", because: "it must be created first" },
    )],
};

/// As sigstore's client found it in June 2024. The status of the missing API was not reported.
pub const ECR_2024: Profile = Profile {
    name: "Amazon ECR of 2024",
    traits: &[
        (Trait::Login(Login::Basic), "open-policy-agent/opa#6580"),
        (Trait::PatchStatus(201), "aws/containers-roadmap#2831"),
        (Trait::PatchRange(PatchRange::FirstChunk), "aws/containers-roadmap#2831"),
        (Trait::SignedUrls, "open-policy-agent/opa#6728"),
        (Trait::Referrers(Referrers::Claimed), "sigstore/sigstore-js#1183"),
    ],
    refusals: &[],
};

const IMMUTABLE: &str = "The image tag already exists in the repository and cannot be \
    overwritten because the repository is immutable.";

/// A repository whose tags are immutable. The status is not reported, only the code, by what docker
/// shows.
pub const ECR_IMMUTABLE: Profile = Profile {
    name: "Amazon ECR, immutable tags",
    traits: &[
        (Trait::Login(Login::Basic), "open-policy-agent/opa#6580"),
        (Trait::PatchStatus(201), "aws/containers-roadmap#2831"),
        (Trait::PatchRange(PatchRange::FirstChunk), "aws/containers-roadmap#2831"),
        (Trait::SignedUrls, "open-policy-agent/opa#6728"),
        (Trait::Referrers(Referrers::Api), "aws/containers-roadmap#43"),
        (Trait::TagsStay(400, "TAG_INVALID", IMMUTABLE), "moby/buildkit#3776"),
    ],
    refusals: &[(
        &[Command::ConvertInPlace],
        Refusal { says: "the repository is immutable", because: "tags cannot be moved" },
    )],
};
