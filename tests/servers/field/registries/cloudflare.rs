//! Cloudflare's serverless registry.

use super::super::profile::{Location, Login, Profile, Trait};

pub const CLOUDFLARE: Profile = Profile {
    name: "Cloudflare serverless-registry",
    traits: &[
        (Trait::Login(Login::Basic), "cloudflare/serverless-registry#122"),
        (
            Trait::UploadLocation(Location::WithState),
            "cloudflare/serverless-registry:src/router.ts",
        ),
        (
            Trait::LargestBody(100_000_000),
            "cloudflare/serverless-registry:src/chunk.ts, cloudflare/serverless-registry#42",
        ),
        (Trait::NoRanges, "cloudflare/serverless-registry:src/router.ts"),
        (Trait::DeleteByDigest, "cloudflare/serverless-registry:src/router.ts"),
        (Trait::PlainLinks, "cloudflare/serverless-registry:src/router.ts"),
    ],
    refusals: &[],
};
