//! GitHub Packages (ghcr.io).

use super::super::profile::{Command, Login, Profile, Referrers, Refusal, Trait};

pub const GHCR: Profile = Profile {
    name: "GitHub Packages (ghcr.io)",
    traits: &[
        (Trait::Login(Login::Token), "radius-project/radius#12623"),
        (Trait::LargestChunk(4 << 20), "oras-project/rust-oci-client#35, ocx-sh/ocx#237"),
        (Trait::CancelRefused(405), "radius-project/radius#12623"),
        (Trait::Referrers(Referrers::Missing(404)), "rtvkiz/minimal#7"),
        (Trait::DeleteRefused(405), "podman-container-tools/skopeo#1880"),
    ],
    refusals: &[(
        Command::DELETES,
        Refusal { says: "does not allow deleting manifests", because: "it deletes nothing" },
    )],
};
