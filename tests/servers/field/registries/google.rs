//! Google Artifact Registry, and what is left of Container Registry (gcr.io).

use super::super::profile::{Location, Login, Profile, Referrers, Trait};

/// How it takes uploads was measured on 24 September 2026 by `spawn_ar_stub` in the tests of
/// greenticai.
pub const GOOGLE: Profile = Profile {
    name: "Google Artifact Registry",
    traits: &[
        (Trait::Login(Login::Basic), "kitops-ml/kitops#780"),
        (Trait::PostNeedsLength(411), "oras-project/rust-oci-client#176"),
        (Trait::UploadLocation(Location::OtherPath), "greenticai (spawn_ar_stub)"),
        (Trait::OnePatch(405), "dotnet/sdk-container-builds#287, greenticai (spawn_ar_stub)"),
        (Trait::Referrers(Referrers::Api), "sigstore/cosign#3935"),
        (Trait::TaggedStays(400), "genuinetools/reg#136"),
    ],
    refusals: &[],
};
