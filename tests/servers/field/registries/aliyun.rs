//! Alibaba Cloud's registries (aliyun.com).

use super::super::profile::{PatchRange, Profile, Trait};

pub const ALIYUN: Profile = Profile {
    name: "Alibaba Cloud",
    traits: &[(Trait::PatchRange(PatchRange::ThisChunk), "regclient/regclient#627")],
    refusals: &[],
};
