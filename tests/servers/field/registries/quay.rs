//! Quay.

use super::super::profile::{Command, Login, PatchRange, Profile, Referrers, Refusal, Trait};

pub const QUAY: Profile = Profile {
    name: "Quay",
    traits: &[
        (Trait::Login(Login::Token), "quay/quay:endpoints/v2/blob.py"),
        (Trait::PatchRange(PatchRange::Quay), "quay/quay:endpoints/v2/blob.py"),
        (Trait::Referrers(Referrers::Filtered), "quay/quay#3047, quay/quay#6385"),
    ],
    refusals: &[],
};

/// As quay.io was in January 2023.
pub const QUAY_2023: Profile = Profile {
    name: "Quay of 2023",
    traits: &[
        (Trait::Login(Login::Token), "quay/quay:endpoints/v2/blob.py"),
        (Trait::PatchRange(PatchRange::Quay), "quay/quay:endpoints/v2/blob.py"),
        (Trait::Referrers(Referrers::Missing(404)), "quay/quay#1706"),
        (Trait::OnlyImages(400), "oras-project/oras#738"),
    ],
    refusals: &[(
        &[
            Command::Index,
            Command::IndexV2,
            Command::IndexFine,
            Command::ConvertWithin,
            Command::ConvertInPlace,
            Command::ConvertAcross,
            Command::ConvertNew,
            Command::HookServe,
            Command::HookWorker,
            Command::Backfill,
        ],
        Refusal {
            says: "config.mediaType is not one of the known",
            because: "it takes images alone",
        },
    )],
};
