//! registry.centos.org, as it was in 2022.

use super::super::profile::{Profile, Trait};

pub const CENTOS: Profile = Profile {
    name: "registry.centos.org",
    traits: &[(Trait::HeadRefused(403), "containerd/containerd#6684")],
    refusals: &[],
};
